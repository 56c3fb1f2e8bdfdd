"""The product to compare with: far more exact than any kernel, on whatever array library the device has."""

import math
from dataclasses import dataclass
from typing import Any

from ...codegen.problem import DType, Problem

__all__ = ["Reference", "product"]


@dataclass(frozen=True, slots=True)
class Reference:
    """op(A) op(B) on some rows and columns of C, as two numbers whose sum it is, and |op(A)| |op(B)|."""

    rows: Any
    """Indices of the rows compared."""
    cols: Any
    """Indices of the columns compared."""
    high: Any
    """Leading part, float64."""
    low: Any
    """What the leading part leaves, float64."""
    magnitude: Any
    """|op(A)| |op(B)|, float64: what the error bounds scale with."""


def product(xp: Any, problem: Problem, a: Any, b: Any, rows: Any, cols: Any) -> Reference:
    """The reference of op(a) op(b) on `rows` and `cols`; a and b as stored, arrays of xp of the problem's dtype.

    Products of two floats are exact in double, so float needs one matrix product in double, whose error is some
    2^-29 of float's. Double goes by slices: each operand is split so that the products of its leading slices add
    without any rounding, whatever the order, and the rest is too small for its rounding to count
    (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication", 2012).
    """
    op_a = (a.T if problem.trans_a else a)[rows].astype(xp.float64)
    op_b = (b.T if problem.trans_b else b)[:, cols].astype(xp.float64)
    magnitude = abs(op_a) @ abs(op_b)
    if problem.dtype is DType.FLOAT or problem.k == 0:
        high = op_a @ op_b
        return Reference(rows, cols, high, xp.zeros_like(high), magnitude)
    bits = (53 - math.ceil(math.log2(problem.k))) // 2
    a1, a2, a3 = _slices(xp, op_a, bits, axis=1)
    b1, b2, b3 = _slices(xp, op_b, bits, axis=0)
    high, low = a1 @ b1, xp.zeros_like(magnitude)
    for term in (a1 @ b2, a2 @ b1, a2 @ b2, a1 @ b3 + a2 @ b3 + a3 @ op_b):
        high, error = two_sum(high, term)
        low += error
    return Reference(rows, cols, high, low, magnitude)


def two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y rounded, and what rounding lost, exactly (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _slices(xp: Any, matrix: Any, bits: int, axis: int) -> tuple[Any, Any, Any]:
    """Two slices of `bits` bits each, counted from the largest element along the axis, and the rest."""
    slices = []
    rest = matrix
    for _ in range(2):
        largest = xp.maximum(abs(rest).max(axis=axis, keepdims=True), 2.0**-900)
        # Adding and taking away a large power of two rounds to a multiple of a small one.
        anchor = 2.0 ** (xp.ceil(xp.log2(largest)) + (53 - bits))
        head = (rest + anchor) - anchor
        slices.append(head)
        rest = rest - head
    return slices[0], slices[1], rest
