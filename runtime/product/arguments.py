"""What a product is called with, checked before anything is rendered, compiled or launched."""

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...codegen.errors import ArgumentTypeError, DeviceMismatchError, LayoutError, ShapeError, check
from ...codegen.problem import INT_MAX, DType, Problem
from ..device.protocol import Operand


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments that passed every check; nothing was rendered, compiled or allocated for them."""

    place: str
    """Where the arrays are: `host` or `cuda:N`."""
    a: Operand
    """A as stored; its owner is the array."""
    b: Operand
    """B as stored."""
    c: Operand | None
    """None where the result is a new array."""
    alpha: float
    """Factor of the product."""
    beta: float
    """Factor of what C held."""


def asked(a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> tuple[Problem, Call]:
    """The product that two arrays ask for, which are used as they lie, transposed or not. Raises what `Gemm` does."""
    for name, array in (("a", a), ("b", b)):
        _place(name, array)
        check(array.ndim == 2, f"{name} must be two-dimensional, got shape {array.shape}", ShapeError)
    (m, depth), (rows, n) = a.shape, b.shape
    check(depth == rows, f"inner dimensions differ: a is {m}x{depth}, b is {rows}x{n}", ShapeError)
    dtype = _dtype("a", a)
    check(_dtype("b", b) is dtype, f"a is {a.dtype} and b is {b.dtype}: cast one of them first", ArgumentTypeError)
    stored_a, trans_a = _untransposed(a)
    stored_b, trans_b = _untransposed(b)
    problem = Problem(m, n, depth, dtype, trans_a, trans_b)
    return problem, checked(problem, stored_a, stored_b, out, alpha, beta)


def checked(problem: Problem, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Call:
    """The call that the arguments make; a and b as stored. Raises what `Gemm` does."""
    arrays = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    places = {name: _place(name, array) for name, array in arrays.items()}
    shapes = {"a": problem.stored_a, "b": problem.stored_b, "out": (problem.m, problem.n)}
    for name, array in arrays.items():
        if places[name] != places["a"]:
            raise DeviceMismatchError(f"a is on {places['a']}, {name} on {places[name]}")
        rows, cols = shapes[name]
        check(tuple(array.shape) == (rows, cols), f"{name} must be {rows}x{cols}, got shape {array.shape}", ShapeError)
        if _dtype(name, array) is not problem.dtype:
            wanted = problem.dtype.numpy_name
            raise ArgumentTypeError(f"{name} must be {wanted}, got {array.dtype}: it is never cast silently")
    alpha, beta = _number("alpha", alpha), _number("beta", beta)
    a_operand, b_operand = operand_of("a", a, problem.trans_a), operand_of("b", b, problem.trans_b)
    c_operand = None
    if out is None:
        check(beta == 0, f"beta is {beta!r}, so out must be given: it is C", ShapeError)
    else:
        # CuPy's arrays have no such flag: all can be written.
        check(getattr(out.flags, "writeable", True), "out is read-only", LayoutError)
        c_operand = operand_of("out", out, False)
        for name, operand in (("a", a_operand), ("b", b_operand)):
            apart = not _overlap(operand, c_operand, problem)
            check(apart, f"out overlaps {name}: give it memory of its own", LayoutError)
    return Call(places["a"], a_operand, b_operand, c_operand, alpha, beta)


def _place(name: str, array: Any) -> str:
    """Whose memory an array lies in: `host` or `cuda:N`. Raises ArgumentTypeError."""
    if isinstance(array, np.ndarray):
        return "host"
    index = getattr(getattr(array, "device", None), "id", None)  # CuPy's way; other libraries spell it otherwise
    if not hasattr(type(array), "__cuda_array_interface__") or not isinstance(index, int):
        raise ArgumentTypeError(f"{name} must be a NumPy or CuPy array, got {type(array).__name__}")
    return f"cuda:{index}"


def _dtype(name: str, array: Any) -> DType:
    for known in DType:
        # Equality of dtypes includes the byte order.
        if array.dtype == np.dtype(known.numpy_name):
            return known
    raise ArgumentTypeError(f"{name} must be float32 or float64 in native byte order, got {array.dtype.str}")


def _untransposed(array: Any) -> tuple[Any, bool]:
    """The array, or its transpose where that is what lies row by row in memory, and whether it was."""
    size = array.dtype.itemsize
    row, col = array.strides
    # One row whose elements lie apart is a column of a wider matrix, whatever its other stride.
    if array.shape[1] > 1 and col != size and (row == size or array.shape[0] == 1):
        return array.T, True
    return array, False


def _number(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise ArgumentTypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise ArgumentTypeError(f"{name} must be a number that a double can hold, got {value!r}") from error


def operand_of(name: str, array: Any, trans: bool) -> Operand:
    """How an array lies in memory. Raises LayoutError where it does not lie row by row."""
    rows, cols = array.shape
    if not rows or not cols:
        return Operand(0, rows, cols, max(1, cols), trans, array)  # nothing of it is read
    size = array.dtype.itemsize
    row, col = array.strides
    if cols > 1 and col != size:
        raise LayoutError(
            f"{name} must have its columns side by side: the stride along a row is {col} bytes, not {size}; "
            "make it contiguous first"
        )
    ld = cols
    if rows > 1:
        ld = row // size
        if row % size or not cols <= ld <= INT_MAX:
            raise LayoutError(f"{name} must have rows at least {cols} elements apart, got a stride of {row} bytes")
    interface = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    pointer = int(interface["data"][0])
    if pointer % size:
        raise LayoutError(f"{name} starts at address {pointer:#x}, which is not a multiple of {size}")
    return Operand(pointer, rows, cols, ld, trans, array)


def _overlap(one: Operand, other: Operand, problem: Problem) -> bool:
    """Whether two matrices share bytes; rows that only interleave do not."""
    if one.rows > other.rows:
        one, other = other, one
    size = problem.dtype.size_bytes
    if not one.rows * one.cols * other.rows * other.cols:
        return False
    (one_pitch, one_width), (other_pitch, other_width) = ((o.ld * size, o.cols * size) for o in (one, other))
    one_end = one.pointer + (one.rows - 1) * one_pitch + one_width
    other_end = other.pointer + (other.rows - 1) * other_pitch + other_width
    if one_end <= other.pointer or other_end <= one.pointer:
        return False
    # For each row of the one, the first row of the other that does not end before it.
    starts = one.pointer + one_pitch * np.arange(one.rows, dtype=np.int64)
    rows = np.maximum(0, (starts - other.pointer - other_width) // other_pitch + 1)
    begins = other.pointer + other_pitch * rows
    return bool(((rows < other.rows) & (begins < starts + one_width)).any())
