"""Stacks of matrices as the operands of one launch.

A stack is an array of more than two dimensions, the last two of which are those of a matrix. Two of the dimensions
before them, the longest, belong to a launch, each with steps of its own for A, B and C: a step of 0 repeats an
operand. Dimensions that lie evenly in all operands count as one. Launches follow each other along the others.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest

from ...codegen.batch import Strides
from ...codegen.errors import LayoutError, ShapeError, check
from ...codegen.problem import INT_MAX, Ragged
from .arguments import CONTIGUOUS, Dim, check_written, is_transposed, swapped_dims, transpose_of
from .arrays import View

Run = Callable[..., None]
"""A launch, called with a stream, whether it is captured, addresses of A, B and C, alpha and beta, and the address of
the offsets where the batch is ragged."""


def repeated(run: Run, offsets: tuple[tuple[int, ...], ...]) -> Run:
    """A launch for each of these offsets in bytes from A, B and C."""

    def launch(stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float, *further: int) -> None:
        for at_a, at_b, at_c in offsets:
            run(stream, capturing, a + at_a, b + at_b, c + at_c, alpha, beta, *further)

    return launch


@dataclass(frozen=True, slots=True)
class Stack:
    """A product of stacks of matrices, as launches of one batch."""

    a: View
    """The first matrix of A."""
    b: View
    """The first matrix of B."""
    out: View | None
    """The first matrix of C, None where C is a new array, which lies row by row."""
    shape: tuple[int, ...]
    """Shape of the result."""
    dims: tuple[Dim, ...] = ()
    """Dimensions before those of the matrices, with those of a launch last."""
    ragged: Ragged = ""
    """The dimension along which the products are groups, if any."""

    @property
    def batch(self) -> int:
        """Products of a launch."""
        return max(1, math.prod(extent for extent, _ in self.dims[-2:]))

    @property
    def strides(self) -> Strides | None:
        """Distances between the matrices of a launch; None where it has one product of whole matrices."""
        if self.batch == 1 and not self.ragged:
            return None
        size, dims = self.a.dtype.size_bytes, [(1, (0, 0, 0)), *self.dims]
        (_, outer), (inner, step) = dims[-2:]
        return Strides(inner, *((outer[i] // size, step[i] // size) for i in range(3)))

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """Bytes from A, B and C to the first matrices of each launch."""
        if not all(extent for extent, _ in self.dims):
            return ()
        loops = self.dims[:-2]
        places = product(*(range(extent) for extent, _ in loops))
        return tuple(
            tuple(sum(index * step[i] for index, (_, step) in zip(place, loops)) for i in range(3)) for place in places
        )

    @property
    def transposed(self) -> "Stack":
        """The stack of the transposed products, whose A is B here and whose matrices are the transposes."""
        out = transpose_of(self.out) if self.out else None
        return replace(self, a=transpose_of(self.b), b=transpose_of(self.a), out=out, dims=swapped_dims(self.dims))


def stacked(a: View, b: View, out: View | None, folds: bool = True) -> Stack:
    """The product of two arrays as `numpy.matmul` has it, of vectors, matrices or stacks. With `folds` a stack of A by
    one matrix B is a product of more rows, and a stack without products a product of no rows.

    Raises ShapeError where shapes do not fit each other, LayoutError for stacks that no launch takes.
    """
    for name, view in (("a", a), ("b", b)):
        text = f"{name} must have a dimension at least, got an array of shape (): pass a number as alpha"
        check(bool(view.shape), text, ShapeError)
    _check_inner(a, b)
    a, b = _with_strides(a), _with_strides(b)
    row, col = len(a.shape) == 1, len(b.shape) == 1  # vectors, which are no dimension of the result
    a, b = (_inserted(a, 0) if row else a), (_inserted(b, 1) if col else b)
    pairs = [*zip_longest(a.shape[-3::-1], b.shape[-3::-1], fillvalue=1)][::-1]
    text = f"a is a stack of shape {a.shape[:-2]}, b of {b.shape[:-2]}, which do not broadcast"
    fits = all(x == y or 1 in (x, y) for x, y in pairs)
    check(fits, f"{text}: the dimensions before the last two must be equal, or 1", ShapeError)
    stack = [y if x == 1 else x for x, y in pairs]
    whole = *stack, a.shape[-2], b.shape[-1]
    shape = *stack, *([] if row else whole[-2:-1]), *([] if col else whole[-1:])
    if out is not None:
        check(out.shape == shape, f"out must be {_sizes(shape)}, got shape {out.shape}", ShapeError)
        if stack:  # a single matrix is checked with its layout
            check_written(out)
        out = _with_strides(out)
        out = _inserted(out, len(stack)) if row else out
        out = _inserted(out, len(stack) + 1) if col else out
    size = a.dtype.size_bytes
    c = out or View(0, whole, _dense(whole, size), a.dtype, a.place)
    steps = zip(*(_steps(view, len(stack)) for view in (a, b, c)))
    dims = _merged([(extent, step) for extent, step in zip(stack, steps) if extent != 1])
    a, b, c = map(matrix_of, (a, b, c))
    if folds and 0 in stack:  # a product of no rows
        dims, a, c = [], replace(a, shape=(0, a.shape[1])), replace(c, shape=(0, c.shape[1]))
    elif folds:
        dims, (a, b, c) = _folded(dims, [a, b, c])
    if len(dims) > 2:  # launches follow each other along the shortest dimensions
        dims.sort(key=lambda dim: dim[0])
    _check_dims(dims, size)
    if math.prod(extent for extent, _ in dims[-2:]) > INT_MAX:
        dims.append((1, (0, 0, 0)))  # launches follow each other along one dimension more
    return Stack(a, b, c if out else None, shape, tuple(dims))


def ragged_of(a: Sequence[int], b: Sequence[int]) -> Ragged:
    """The dimension of groups of operands of these shapes: of the rows of A where B is a stack, else along k. Raises
    ShapeError for others."""
    ranks: dict[tuple[int, int], Ragged] = {(2, 3): "m", (2, 2): "k"}
    text = "a and b must have 2 and 3 dimensions for groups of rows of a, or 2 and 2 for groups along k"
    check((len(a), len(b)) in ranks, f"{text}, got shapes {tuple(a)} and {tuple(b)}", ShapeError)
    return ranks[len(a), len(b)]


def grouped(a: View, b: View, out: View | None, groups: int) -> Stack:
    """The products of groups of rows of A by a matrix of B each, where B is a stack, or of groups along k of A and B.

    Raises ShapeError where shapes do not fit each other, LayoutError for arrays that no launch takes.
    """
    ragged = ragged_of(a.shape, b.shape)
    text = f"b must have a matrix for each of the {groups} offsets, got {b.shape[0]} matrices"
    check(ragged == "k" or b.shape[0] == groups, text, ShapeError)
    _check_inner(a, b)
    a, b = _with_strides(a), _with_strides(b)
    shape = (groups, a.shape[0], b.shape[1]) if ragged == "k" else (a.shape[0], b.shape[2])
    size = a.dtype.size_bytes
    if out is not None:
        check(out.shape == shape, f"out must be {_sizes(shape)}, got shape {out.shape}", ShapeError)
        check_written(out)
        out = _with_strides(out)
        text = "out must lie row by row, got one that lies column by column: pass another, or leave it away"
        check(not is_transposed(matrix_of(out)), text, LayoutError)
    c = out or View(0, shape, _dense(shape, size), a.dtype, a.place)
    dims: tuple[Dim, ...] = ((groups, (0, b.strides[0] * (ragged == "m"), c.strides[0] * (ragged == "k"))),)
    _check_dims(dims, size)
    return Stack(a, matrix_of(b), matrix_of(c) if out else None, shape, dims, ragged)


def _check_inner(a: View, b: View) -> None:
    """Raise ShapeError unless A has as many steps of k as B."""
    text = f"inner dimensions differ: a is {_sizes(a.shape)}, b is {_sizes(b.shape)}"
    check(a.shape[-1] == b.shape[-2:][0], text, ShapeError)


def _check_dims(dims: Iterable[Dim], size: int) -> None:
    """Raise LayoutError or ShapeError for dimensions of a stack that no launch takes, of elements of `size` bytes."""
    for extent, step in dims:
        for name, each in zip(("a", "b", "out"), step):
            text = f"{name} must have its matrices 0 or more whole elements apart, got a stride of {each} bytes"
            check(each >= 0 and each % size == 0, f"{text}; {CONTIGUOUS}", LayoutError)
        text = f"a stack has at most 2^31-1 products along a dimension, got {extent}: multiply parts of it"
        check(extent <= INT_MAX, text, ShapeError)


def _merged(dims: Iterable[Dim]) -> list[Dim]:
    """The dimensions, of which neighbours that lie evenly in all operands become one that a launch can have."""
    merged: list[Dim] = []
    for extent, step in dims:
        even = bool(merged) and merged[-1][1] == tuple(extent * each for each in step)
        before = merged.pop()[0] if even and merged[-1][0] * extent <= INT_MAX else 1
        merged.append((before * extent, step))
    return merged


def _folded(dims: list[Dim], matrices: list[View]) -> tuple[list[Dim], list[View]]:
    """Add the innermost dimension to the rows of A and C where B is the same along it, and the rows of A and C go on
    evenly: one product of more rows reads B once."""
    a, b, c = matrices
    if not dims:
        return dims, matrices
    extent, (at_a, at_b, at_c) = dims[-1]
    rows, size = a.shape[0], a.dtype.size_bytes
    side_by_side = all(view.shape[1] == 1 or view.strides[1] == size for view in (a, c))
    step_a, step_c = (view.strides[0] if rows > 1 else at for view, at in ((a, at_a), (c, at_c)))
    even = at_a == rows * step_a and at_c == rows * step_c and step_c >= c.shape[1] * size
    if at_b or not even or not side_by_side or rows * extent > INT_MAX or step_a < a.shape[1] * size:
        return dims, matrices
    tall = [
        replace(view, shape=(rows * extent, view.shape[1]), strides=(step, view.strides[1]))
        for view, step in ((a, step_a), (c, step_c))
    ]
    return dims[:-1], [tall[0], b, tall[1]]


def _sizes(shape: Sequence[int]) -> str:
    """A shape in a message, such as 2x3."""
    return "x".join(map(str, shape)) if len(shape) > 1 else str(tuple(shape))


def _with_strides(view: View) -> View:
    """The view; one without elements as an array without gaps, as its strides mean nothing."""
    return view if all(view.shape) else replace(view, strides=_dense(view.shape, view.dtype.size_bytes))


def _inserted(view: View, at: int) -> View:
    """The view with one more dimension, of extent 1."""
    shape, strides = list(view.shape), list(view.strides)
    shape.insert(at, 1)
    strides.insert(at, 0)
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def matrix_of(view: View) -> View:
    """The first matrix of a stack; a vector as a column, and a number as a matrix of one element."""
    while len(view.shape) < 2:
        view = _inserted(view, len(view.shape))
    return replace(view, shape=view.shape[-2:], strides=view.strides[-2:])


def _steps(view: View, rank: int) -> tuple[int, ...]:
    """Bytes of a step along each of `rank` dimensions of a stack, 0 along those that repeat the view."""
    own = [0 if extent == 1 else step for extent, step in zip(view.shape[:-2], view.strides[:-2])]
    return (0,) * (rank - len(own)) + tuple(own)


def _dense(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Strides in bytes of an array without gaps."""
    return tuple(math.prod(shape[i + 1 :]) * size for i in range(len(shape)))
