"""Checks of a product's arguments, before anything is rendered, compiled or launched."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ...codegen.errors import (
    ArgumentTypeError,
    CaptureError,
    DeviceMismatchError,
    LayoutError,
    ShapeError,
    check,
    nearest_of,
)
from ...codegen.problem import INT_MAX, Grade, Problem, Ragged
from ..device.protocol import Operand
from .arrays import View, kind_of

_MOST_GRAPHS = 65536
"""Most graphs for which memory is set aside at once."""
_MOST_WORK: Any = 10**7
"""Most places that are looked at to tell whether two arrays with many dimensions share memory."""
Dim = tuple[int, tuple[int, int, int]]
"""A dimension of a stack of products: its extent, and the bytes of a step of A, B and C."""
_SHOWN = 60
"""Most characters of a value in a message."""
_F = TypeVar("_F", bound=Callable[..., Any])
_TRANSPOSE = "transpose the operand, as by a.T"
CONTIGUOUS = "make it contiguous first, or pass copy='if-needed'"
"""Remedy for an array in a layout that no kernel takes."""
_INSTEAD = {
    "axes": f"np.matmul's axes= is not taken: {_TRANSPOSE}",
    "axis": f"np.matmul's axis= is not taken: {_TRANSPOSE}",
    "casting": "nothing is cast: convert a and b before",
    "dtype": "nothing is cast: convert a and b before",
    "trans": _TRANSPOSE,
    "trans_a": _TRANSPOSE,
    "trans_b": _TRANSPOSE,
}
"""Hints for arguments that a product does not take, by name."""


def problem_of(a: View, b: View, accuracy: object, batch: int = 1, ragged: Ragged = "") -> Problem:
    """The problem of multiplying two matrices with the same k, or a batch of such, which are used as they lie,
    transposed or not.

    Raises ArgumentTypeError and ConfigError.
    """
    (m, k), (_, n) = a.shape, b.shape
    if a.dtype is not b.dtype:
        names = a.dtype.numpy_name, b.dtype.numpy_name
        raise ArgumentTypeError(f"a is {names[0]} and b is {names[1]}: cast one of them first")
    return Problem(
        m, n, k, a.dtype, is_transposed(a), is_transposed(b), Grade.parse(accuracy), batch=batch, ragged=ragged
    )


def check_offsets(offsets: Any, like: Any) -> None:
    """Raise an error unless `offsets` may be those of groups: an array of int32, an element for each group, of the kind
    and in the memory of the operand `like`.

    Raises ArgumentTypeError, ShapeError, LayoutError and DeviceMismatchError.
    """
    text = f"a is a {type(like).__name__} and offsets a {type(offsets).__name__}: convert one of them"
    kind = kind_of(like)
    check(kind_of(offsets) is kind, text, ArgumentTypeError)
    assert kind is not None
    kind.check_memory("offsets", offsets)
    name = str(offsets.dtype).removeprefix("torch.")
    check(name == "int32", f"offsets must be int32, got {name}: convert them before", ArgumentTypeError)
    text = f"offsets must have one dimension, with an element for each group, got shape {tuple(offsets.shape)}"
    check(len(offsets.shape) == 1, text, ShapeError)
    check(
        kind.is_dense(offsets),
        "offsets must lie without gaps, got a view with gaps: pass a contiguous copy",
        LayoutError,
    )
    check_place("a", kind.place(like), "offsets", kind.place(offsets))


def check_place(first: str, place: object, name: str, other: object) -> None:
    """Raise DeviceMismatchError unless the arguments `first` and `name` lie in one place."""
    text = f"{first} is on {place}, {name} on {other}: copy one of them to the other's device"
    check(place == other, text, DeviceMismatchError)


def check_non_decreasing(offsets: Sequence[int], most: int) -> None:
    """Raise ShapeError unless the ends of groups are non-decreasing, from 0 to `most`."""
    before = 0
    for end in offsets:
        text = f"offsets must not decrease, and lie from 0 to {most}, got {end} after {before}"
        check(before <= end <= most, text, ShapeError)
        before = end


def is_transposed(view: View) -> bool:
    """Whether the view is the transpose of an array that lies row by row."""
    size = view.dtype.size_bytes
    row, col = view.strides
    # A row with gaps between its elements is a column of a wider matrix, whatever its other stride.
    return view.shape[1] > 1 and col != size and (row == size or view.shape[0] == 1)


def transpose_of(view: View) -> View:
    """The view with its last two dimensions exchanged, the transposes of its matrices; a vector is its own."""
    shape, strides = view.shape, view.strides
    if len(shape) < 2:
        return view
    return replace(view, shape=(*shape[:-2], *shape[:-3:-1]), strides=(*strides[:-2], *strides[:-3:-1]))


def names_of(swapped: bool) -> tuple[str, str, str]:
    """The caller's names of A, B and C; `swapped` where the transpose of the caller's product is computed."""
    return ("b", "a", "out") if swapped else ("a", "b", "out")


def swapped_dims(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """The dimensions of a stack of the transposed products, in which A and B change places."""
    return tuple((extent, (b, a, c)) for extent, (a, b, c) in dims)


def laid_out(
    problem: Problem, a: View, b: View, out: View | None, dims: Sequence[Dim] = ()
) -> tuple[Problem, tuple[View, View], tuple[int, int, int], bool]:
    """Find the product that a kernel has to compute for a problem. `a` and `b` are the matrices as stored; with `dims`
    all are the first matrices of stacks with these dimensions.

    Returns its problem, its A and B, the leading dimensions of A, B and C in elements (for a new C its columns), and
    whether it is the transpose of the caller's product, as for an `out` that lies column by column. Raises ShapeError,
    ArgumentTypeError, DeviceMismatchError and LayoutError with the caller's names.
    """
    swapped = out is not None and out.shape == (problem.m, problem.n) and is_transposed(out)
    if swapped and out is not None:
        problem, a, b, out = problem.transposed, b, a, transpose_of(out)
        dims = swapped_dims(dims)
    names, views = names_of(swapped), (a, b) if out is None else (a, b, out)
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    lds = [1, 1, max(1, problem.n)]
    for i, (name, view, shape) in enumerate(zip(names, views, shapes)):
        check_place(names[0], a.place, name, view.place)
        check(view.shape == shape, f"{name} must be {shape[0]}x{shape[1]}, got shape {view.shape}", ShapeError)
        if view.dtype is not problem.dtype:
            own, other = problem.dtype.numpy_name, view.dtype.numpy_name
            raise ArgumentTypeError(f"{name} must be {own}, got {other}: it is never cast silently")
        if view is out:
            check_written(out)
        lds[i] = leading(name, view)
    checked = lds[0], lds[1], lds[2]
    if out is not None:
        check_apart(problem, (a.pointer, b.pointer, out.pointer), checked, names, dims)
    return problem, (a, b), checked, swapped


def check_written(out: View) -> None:
    """Raise LayoutError unless an array of any rank is writable and no two of its elements share memory."""
    check(out.writable, "out is read-only: pass an array that may be written", LayoutError)
    steps = [(abs(step), length) for step, length in zip(out.strides, out.shape) if length > 1]
    reach = out.dtype.size_bytes
    for step, length in sorted(steps) if all(out.shape) else ():
        text = f"out has elements that share memory: {length} of them lie {step} bytes apart"
        check(step >= reach, f"{text}; give it memory of its own", LayoutError)
        reach += step * (length - 1)


def leading(name: str, view: View) -> int:
    """The leading dimension of a matrix. Raises LayoutError where it does not lie row by row."""
    rows, cols = view.shape
    if not rows or not cols:
        return max(1, cols)  # no element is read
    size = view.dtype.size_bytes
    row, col = view.strides
    if cols > 1 and col != size:
        text = f"{name} must have its columns side by side: the stride along a row is {col} bytes, not {size}"
        raise LayoutError(f"{text}; {CONTIGUOUS}")
    ld = cols
    if rows > 1:
        ld = row // size
        if row % size or not cols <= ld <= INT_MAX:
            text = f"{name} must have rows {cols} to 2^31-1 whole elements apart, got a stride of {row} bytes"
            raise LayoutError(f"{text}; {CONTIGUOUS}")
    check_start(name, view.pointer, size)
    return ld


def check_start(name: str, pointer: int, size: int) -> None:
    """Raise LayoutError for a matrix that does not start at a multiple of an element's size in bytes."""
    text = f"{name} starts at address {pointer:#x}, which is not a multiple of {size}"
    check(pointer % size == 0, f"{text}; {CONTIGUOUS}", LayoutError)


def number(name: str, value: Any) -> float:
    """A factor as a float, from a number or an array without dimensions. Raises ArgumentTypeError and CaptureError."""
    element = value if isinstance(value, numbers.Real) else _element(name, value)
    if not isinstance(element, numbers.Real):
        text = f"{name} must be a real number, got {_short(value)}"
        raise ArgumentTypeError(f"{text}: pass a float, or an array without dimensions that holds one")
    try:
        return float(element)
    except OverflowError as error:
        raise ArgumentTypeError(f"{name} must be a number that a double can hold, got {_short(value)}") from error


def _element(name: str, value: Any) -> Any:
    """The element of an array without dimensions, copied from a GPU if need be; None for anything else.

    Raises ArgumentTypeError and CaptureError.
    """
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return None
    text = f"{name} requires a gradient, and products have none by their factors"
    remedy = f"pass {name}.detach(), or scale the result"
    check(not getattr(value, "requires_grad", False), f"{text}: {remedy}", ArgumentTypeError)
    kind = kind_of(value)
    text = f"{name} lies on a GPU, and cannot be copied to the processor while a graph is captured"
    check(kind is None or not kind.captures(value), f"{text}: pass float({name}), made before", CaptureError)
    try:
        return value.item()
    except Exception as error:  # other libraries raise errors of many types
        reason = str(error).partition("\n")[0]
        raise ArgumentTypeError(f"{name} must be a real number, and its element cannot be read: {reason}") from error


def _short(value: Any) -> str:
    """A value for a message: an array by its shape, and a long text cut."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {tuple(shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def called(name: str) -> Callable[[_F], _F]:
    """Return a decorator that gives a method the name that Python's TypeErrors show, such as `tilewright.matmul`."""

    def rename(function: _F) -> _F:
        function.__qualname__ = name
        return function

    return rename


def refuse(function: Any, more: Sequence[object], unknown: Mapping[str, object]) -> None:
    """Raise ArgumentTypeError for arguments that a function does not take, with a hint.

    Args:
        function: the function, whose arguments with a default have names.
        more: the arguments without a name beyond those that it takes.
        unknown: the arguments with a name that it does not take.
    """
    caller, names = function.__qualname__, [*function.__kwdefaults__]
    if more:
        text = f"{caller}() takes {names[0]} and what follows by name, got {_short(more[0])} without one"
        raise ArgumentTypeError(f"{text}: write {names[0]}=... or the name that is meant")
    name = next(iter(unknown))
    instead = _INSTEAD.get(name) or f"it takes {', '.join(names)}{nearest_of(name, names)}"
    raise ArgumentTypeError(f"{caller}() takes no argument {name}=, got {_short(unknown[name])}: {instead}")


def check_graphs(graphs: object) -> None:
    """Raise ArgumentTypeError unless `graphs` is a number of CUDA graphs to prepare for."""
    whole = isinstance(graphs, numbers.Integral) and not isinstance(graphs, bool) and 0 <= int(graphs) <= _MOST_GRAPHS
    check(whole, f"graphs must be a whole number from 0 to {_MOST_GRAPHS}, got {graphs!r}", ArgumentTypeError)


def operand_of(name: str, array: Any, trans: bool) -> Operand:
    """The operand of a NumPy or CuPy array. Raises LayoutError where the array does not lie row by row."""
    kind = kind_of(array)
    assert kind is not None
    view = kind.view(name, array)
    rows, cols = view.shape
    return Operand(view.pointer, rows, cols, leading(name, view), trans, array)


def check_apart(
    problem: Problem, pointers: tuple[int, int, int], lds: tuple[int, int, int],
    names: tuple[str, str, str] = names_of(False), dims: Sequence[Dim] = (),
) -> None:  # fmt: skip
    """Raise LayoutError where C shares bytes with A or B, by their addresses. Interleaved rows share none."""
    size, extents = problem.dtype.size_bytes, [extent for extent, _ in dims]

    def placed(pointer: int, shape: tuple[int, int], ld: int, steps: Sequence[int]) -> Any:
        # NumPy goes by addresses and reads nothing, so they may be a GPU's.
        rows, cols = shape
        interface = {"data": (pointer, False), "typestr": "|u1", "version": 3}
        interface |= {"shape": (*extents, rows, cols * size), "strides": (*steps, ld * size, 1)}
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    steps = [[step[i] for _, step in dims] for i in range(3)]
    a, b, c = map(placed, pointers, (problem.stored_a, problem.stored_b, (problem.m, problem.n)), lds, steps)
    for name, operand in zip(names, (a, b)):
        text = f"out overlaps {name}: give it memory of its own"
        try:
            check(not np.shares_memory(operand, c, _MOST_WORK), text, LayoutError)
        except np.exceptions.TooHardError:
            raise LayoutError(f"out may overlap {name}: give it memory of its own") from None
