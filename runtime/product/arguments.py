"""What a product is called with, checked before anything is rendered, compiled or launched."""

import numbers
from collections.abc import Callable, Mapping, Sequence
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
from ...codegen.problem import INT_MAX, Grade, Problem
from ..device.protocol import Operand
from .arrays import View, kind_of

_MOST_GRAPHS = 65536
"""Graphs that memory is set aside for at once, at most."""
_SHOWN = 60
"""Characters of a value that a message shows at most."""
_F = TypeVar("_F", bound=Callable[..., Any])
_TRANSPOSE = "transpose the operand, as by a.T"
_INSTEAD = {
    "axes": f"np.matmul's axes= is not taken: {_TRANSPOSE}",
    "axis": f"np.matmul's axis= is not taken: {_TRANSPOSE}",
    "casting": "nothing is cast: convert a and b before",
    "dtype": "nothing is cast: convert a and b before",
    "trans": _TRANSPOSE,
    "trans_a": _TRANSPOSE,
    "trans_b": _TRANSPOSE,
}
"""Hints: what serves instead of an argument that a product does not take."""


def asked(a: View, b: View, accuracy: object) -> Problem:
    """The product that two arrays ask for, which are used as they lie, transposed or not.

    Raises ShapeError, ArgumentTypeError and ConfigError.
    """
    for name, view in (("a", a), ("b", b)):
        rank = len(view.shape)
        advice = f": use {name}[None, :] or {name}[:, None]" if rank == 1 else ""
        if rank > 2:
            advice = ": a stack of products is not served in one call; loop over its matrices"
        check(rank == 2, f"{name} must be two-dimensional, got shape {view.shape}{advice}", ShapeError)
    (m, k), (rows, n) = a.shape, b.shape
    check(k == rows, f"inner dimensions differ: a is {m}x{k}, b is {rows}x{n}", ShapeError)
    if a.dtype is not b.dtype:
        names = a.dtype.numpy_name, b.dtype.numpy_name
        raise ArgumentTypeError(f"a is {names[0]} and b is {names[1]}: cast one of them first")
    return Problem(m, n, k, a.dtype, transposed(a), transposed(b), Grade.parse(accuracy))


def transposed(view: View) -> bool:
    """Whether it is the transpose of an array that lies row by row."""
    size = view.dtype.size_bytes
    row, col = view.strides
    # One row whose elements lie apart is a column of a wider matrix, whatever its other stride.
    return view.shape[1] > 1 and col != size and (row == size or view.shape[0] == 1)


def turned(view: View) -> View:
    """The view's transpose."""
    return View(view.pointer, view.shape[::-1], view.strides[::-1], view.dtype, view.place, view.writable)


def by_columns(problem: Problem, out: View | None) -> bool:
    """Whether C of a problem lies column by column: its transpose is then computed, row by row."""
    return out is not None and out.shape == (problem.m, problem.n) and transposed(out)


def names_of(swapped: bool) -> tuple[str, str, str]:
    """The caller's names of A, B and C; `swapped` where the transpose of the caller's product is computed."""
    return ("b", "a", "out") if swapped else ("a", "b", "out")


def lds_of(problem: Problem, a: View, b: View, out: View | None, swapped: bool = False) -> tuple[int, int, int]:
    """Leading dimensions of A and B, as stored, and of C, in elements; for a new C its columns.

    With `swapped` the problem is the transpose of the caller's, whose names messages use. Raises ShapeError,
    ArgumentTypeError, DeviceMismatchError and LayoutError.
    """
    names, views = names_of(swapped), (a, b) if out is None else (a, b, out)
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    first = names[0], a
    lds = [
        leading(name, _checked(name, view, shape, first, problem)) for name, view, shape in zip(names, views, shapes)
    ]
    if out is None:
        return lds[0], lds[1], max(1, problem.n)
    check_written(out)
    checked = lds[0], lds[1], lds[2]
    check_apart(problem, (a.pointer, b.pointer, out.pointer), checked, names)
    return checked


def check_written(out: View) -> None:
    """Raise LayoutError unless every element of a matrix can be written, to memory of its own."""
    check(out.writable, "out is read-only", LayoutError)
    steps = [(abs(step), length) for step, length in zip(out.strides, out.shape) if length > 1]
    reach = out.dtype.size_bytes
    for step, length in sorted(steps) if all(out.shape) else ():
        text = f"out has elements that share memory: {length} of them lie {step} bytes apart"
        check(step >= reach, f"{text}; give it memory of its own", LayoutError)
        reach += step * (length - 1)


def _checked(name: str, view: View, shape: tuple[int, int], first: tuple[str, View], problem: Problem) -> View:
    if view.place != first[1].place:
        raise DeviceMismatchError(f"{first[0]} is on {first[1].place}, {name} on {view.place}")
    check(view.shape == shape, f"{name} must be {shape[0]}x{shape[1]}, got shape {view.shape}", ShapeError)
    if view.dtype is not problem.dtype:
        wanted, got = problem.dtype.numpy_name, view.dtype.numpy_name
        raise ArgumentTypeError(f"{name} must be {wanted}, got {got}: it is never cast silently")
    return view


def leading(name: str, view: View) -> int:
    """The leading dimension of a matrix. Raises LayoutError where it does not lie row by row."""
    rows, cols = view.shape
    if not rows or not cols:
        return max(1, cols)  # nothing of it is read
    size = view.dtype.size_bytes
    row, col = view.strides
    advice = "make it contiguous first, or pass copy='if-needed'"
    if cols > 1 and col != size:
        text = f"{name} must have its columns side by side: the stride along a row is {col} bytes, not {size}"
        raise LayoutError(f"{text}; {advice}")
    ld = cols
    if rows > 1:
        ld = row // size
        if row % size or not cols <= ld <= INT_MAX:
            text = f"{name} must have rows {cols} to 2^31-1 whole elements apart, got a stride of {row} bytes"
            raise LayoutError(f"{text}; {advice}")
    if view.pointer % size:
        raise LayoutError(f"{name} starts at address {view.pointer:#x}, which is not a multiple of {size}; {advice}")
    return ld


def number(name: str, value: Any) -> float:
    """A factor, a number or an array without dimensions, as a float. Raises ArgumentTypeError and CaptureError."""
    element = value if isinstance(value, numbers.Real) else _element(name, value)
    if not isinstance(element, numbers.Real):
        text = f"{name} must be a real number, got {_short(value)}"
        raise ArgumentTypeError(f"{text}: pass a float, or an array without dimensions that holds one")
    try:
        return float(element)
    except OverflowError as error:
        raise ArgumentTypeError(f"{name} must be a number that a double can hold, got {_short(value)}") from error


def _element(name: str, value: Any) -> Any:
    """The element of an array without dimensions, None for anything else. One on a GPU is copied to the processor.

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
    except Exception as error:  # whatever another library raises
        reason = str(error).partition("\n")[0]
        raise ArgumentTypeError(f"{name} must be a real number, and its element cannot be read: {reason}") from error


def _short(value: Any) -> str:
    """A value as a message shows it: an array by its shape, and a long text cut."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {tuple(shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def called(name: str) -> Callable[[_F], _F]:
    """Make Python's own TypeErrors for a call of a method name it as its users do, `tilewright.matmul`."""

    def rename(function: _F) -> _F:
        function.__qualname__ = name
        return function

    return rename


def refuse(function: Any, more: Sequence[object], unknown: Mapping[str, object]) -> None:
    """Raise ArgumentTypeError for arguments that a function does not take, with what serves instead.

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
    """Raise ArgumentTypeError unless it is a number of CUDA graphs to prepare for."""
    whole = isinstance(graphs, numbers.Integral) and not isinstance(graphs, bool) and 0 <= int(graphs) <= _MOST_GRAPHS
    check(whole, f"graphs must be a whole number from 0 to {_MOST_GRAPHS}, got {graphs!r}", ArgumentTypeError)


def operand_of(name: str, array: Any, trans: bool) -> Operand:
    """A NumPy or CuPy array as `Kernel.launch` takes it. Raises LayoutError where it does not lie row by row."""
    kind = kind_of(array)
    assert kind is not None
    view = kind.view(name, array)
    rows, cols = view.shape
    return Operand(view.pointer, rows, cols, leading(name, view), trans, array)


def check_apart(
    problem: Problem, pointers: tuple[int, int, int], lds: tuple[int, int, int],
    names: tuple[str, str, str] = names_of(False),
) -> None:  # fmt: skip
    """Raise LayoutError where C shares bytes with A or B, by their addresses; rows that only interleave do not."""
    size = problem.dtype.size_bytes

    def seen(pointer: int, shape: tuple[int, int], ld: int) -> Any:
        # NumPy goes by addresses and reads nothing, so they may be a GPU's.
        rows, cols = shape
        facts = {"data": (pointer, False), "shape": (rows, cols * size), "strides": (ld * size, 1), "typestr": "|u1"}
        return np.asarray(SimpleNamespace(__array_interface__={**facts, "version": 3}))

    a, b, c = map(seen, pointers, (problem.stored_a, problem.stored_b, (problem.m, problem.n)), lds)
    for name, operand in zip(names, (a, b)):
        check(not np.shares_memory(operand, c), f"out overlaps {name}: give it memory of its own", LayoutError)
