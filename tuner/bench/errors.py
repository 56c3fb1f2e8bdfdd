"""Errors of the float products of several contenders on six kinds of data."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...codegen.problem import NORMWISE_ROUNDINGS, Grade, Problem
from ...runtime.check.kinds import KINDS, Exact
from ...runtime.device.protocol import Device, Launch, Operand
from .rows import KindError

BLOCK = 256
"""Number of rows of op(A) and columns of op(B) that are drawn at random; larger matrices repeat them."""


def error_kinds(device: Device, problem: Problem, contenders: Mapping[str, Launch]) -> tuple[KindError, ...]:
    """The errors of all contenders on each kind of data, at the size of the problem, so that each runs as it is timed.

    Only blocks along the diagonal of C are compared; each row and column of C crosses one. Raises LaunchError.
    """
    errors = []
    m, n, k = problem.m, problem.n, problem.k
    buffer = device.allocate(4 * m * n)
    c, out = buffer.array("float32", (m, n)), Operand(buffer.pointer, m, n, n, False, buffer)
    for kind, draw in KINDS.items():
        drawn = draw(np.random.default_rng(1), min(m, BLOCK), min(n, BLOCK), k)
        a, b = (device.xp.asarray(each) for each in drawn)
        operands = _repeated(device, a, m, 0, problem.trans_a), _repeated(device, b, n, 1, problem.trans_b)
        exact = Exact(a, b)
        for name, launch in contenders.items():
            c[...] = np.nan
            launch(*operands, out, 1.0, 0.0)
            device.synchronize()
            by_elements, by_norms = zip(*(exact.errors(block) for block in _blocks(c)))
            errors.append(KindError(kind, name, float(np.max(by_elements)), float(np.max(by_norms))))
    return tuple(errors)


def _repeated(device: Device, block: Any, size: int, axis: int, trans: bool) -> Operand:
    """An operand with `size` rows (axis 0) or columns (axis 1), which repeat those of a block."""
    lines, is_stored_by_line = block.T if axis else block, trans == bool(axis)
    rows, cols = (size, lines.shape[1]) if is_stored_by_line else (lines.shape[1], size)
    buffer = device.allocate(4 * rows * cols)
    array = buffer.array("float32", (rows, cols))
    repeated = array if is_stored_by_line else array.T
    for start in range(0, size, BLOCK):
        repeated[start : start + BLOCK] = lines[: size - start]
    return Operand(buffer.pointer, rows, cols, cols, trans, buffer)


def _blocks(c: Any) -> Iterator[Any]:
    """Blocks along the diagonal of C, which starts again where it reaches the end of the shorter side."""
    rows, cols = (range(0, size, BLOCK) for size in c.shape)
    for index in range(max(len(rows), len(cols))):
        top, left = rows[index % len(rows)], cols[index % len(cols)]
        yield c[top : top + BLOCK, left : left + BLOCK]


def broken_promise(problem: Problem, errors: tuple[KindError, ...], name: str) -> str:
    """The first kind of data on which the errors of `name` exceed the bound of the grade, in words; empty where none
    does."""
    for each in errors:
        most = problem.k + 2
        error = each.elementwise
        if problem.accuracy is Grade.NORMWISE:
            most, error = max(most, NORMWISE_ROUNDINGS), each.normwise
        # gamma(n) is slightly more than n u.
        if each.contender == name and not error <= most / (1 - most * problem.dtype.unit_roundoff):
            return f"on {each.kind} data the error is {error:.3g} u, its bound {most:,} u"
    return ""
