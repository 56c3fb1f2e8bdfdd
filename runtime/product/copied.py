"""Operands that a kernel reads from copies: packed to aligned rows of k, padded to whole tiles, or split into terms."""

from dataclasses import dataclass, replace

from ...codegen.batch import NO_STEPS, Steps, Strides
from ...codegen.config import Config
from ...codegen.mechanisms.split_terms import term_bytes, term_ctas, term_sizes
from ...codegen.problem import Problem
from ...codegen.source import (
    MOST_PAD_CTAS,
    PACK_THREADS,
    PACK_TILE,
    PACKED_BYTES,
    PAD_THREADS,
    TERM_THREADS,
    LaunchConfig,
    packed_ld,
)
from ..device.protocol import Function, Launcher, aligned_bytes
from .program import Step, Value

_NO_MATRIX = (0,) * 8
"""Arguments of a padding launch in place of a second matrix."""
_COPIES = "copy_a", "copy_b"
"""Names of the addresses of packed copies of A and B."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of a launch, or the first one of a batch."""

    name: str
    """Name of its address in a Program."""
    ld: int
    """Leading dimension in elements."""
    steps: Steps
    """Elements to the matrices of the next products of a batch."""

    @property
    def values(self) -> tuple[Value, Value]:
        """The matrix as arguments of a kernel."""
        return self.name, self.ld


def _batch(strides: Strides | None, batch: int, *steps: Steps) -> list[Value]:
    """The last argument of a launch for a batch; none where there is one product."""
    return [strides.argument(batch, *steps)] if strides else []


class Packing:
    """Copies of A, B or both that are packed before the kernel reads them."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        size, extents = problem.dtype.size_bytes, (problem.m, problem.n)
        self._sizes = problem.m, problem.n, problem.k
        self._lds = {
            name: packed_ld(extent, size) for name, extent, packs in zip(_COPIES, extents, config.packs) if packs
        }
        """Leading dimension of each copy in elements, by its name."""
        self.names = tuple(self._lds)
        """Names of the addresses."""
        self._bytes = [problem.k * ld * size for ld in self._lds.values()]
        self._batch, self._elements = problem.batch, sum(self._bytes) // size
        self.nbytes = sum(self._bytes) + PACKED_BYTES
        """Bytes of the copies of a product."""
        ctas = sum(-(-ld // PACK_TILE) * -(-problem.k // PACK_TILE) for ld in self._lds.values())
        launch = LaunchConfig((max(1, ctas), 1, 1), (PACK_THREADS, 1, 1)).batched(problem.batch)
        self._launch = function.bound(launch, "QiQi" * len(self.names) + "iii" + "m" * (problem.batch > 1))

    def shapes(self, *stored: tuple[int, int]) -> list[tuple[int, int]]:
        """Rows and columns of A and B as the kernel reads them, from those of the stored matrices."""
        k = self._sizes[2]
        return [(k, self._lds[name]) if name in self._lds else shape for name, shape in zip(_COPIES, stored)]

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Addresses of the copies in their memory."""
        first = memory + -memory % PACKED_BYTES
        return (first, first + self._bytes[0])[: len(self.names)]

    def step(self, a: Matrix, b: Matrix, strides: Strides | None) -> tuple[Step, list[Matrix]]:
        """The launch that packs A, B or both, and the matrices that the kernel reads in their place."""
        own = strides.following(self._elements) if strides else NO_STEPS
        copies = {name: Matrix(name, ld, own) for name, ld in self._lds.items()}
        values, steps = list[Value](), list[Steps]()
        for name, operand in zip(_COPIES, (a, b)):
            if name in copies:
                values += [*operand.values, *copies[name].values]
                steps += [operand.steps, own]
        read = [copies.get(name, operand) for name, operand in zip(_COPIES, (a, b))]
        return (self._launch, [*values, *self._sizes, *_batch(strides, self._batch, *steps)]), read


class Splitting:
    """Split terms of A and B, made before the kernel reads them."""

    names: tuple[str, ...] = ("terms",)
    """Names of the addresses."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        self.nbytes = aligned_bytes(term_bytes(config, problem))
        """Bytes of the terms of a product."""
        self._batch = problem.batch
        self._sizes = problem.m, problem.n, problem.k, *term_sizes(config, problem)
        launch = LaunchConfig((term_ctas(config, problem), 1, 1), (TERM_THREADS, 1, 1)).batched(problem.batch)
        self._launch = function.bound(launch, "QiQiQiiiIII" + "m" * (problem.batch > 1))

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Address of the terms in their memory."""
        return (memory,)

    def step(self, a: Matrix, b: Matrix, strides: Strides | None) -> Step:
        """The launch that splits A and B."""
        last = _batch(strides, self._batch, a.steps, b.steps, strides.following(self.nbytes) if strides else NO_STEPS)
        return self._launch, [*a.values, *b.values, *self.names, *self._sizes, *last]


class Padding:
    """Copies of A, B and C in sizes that the tiles divide, filled with zeros."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        sizes = (problem.m, problem.n, problem.k)
        m, n, k = (-(-size // each) * each for size, each in zip(sizes, config.multiples))
        self.problem = replace(problem, m=m, n=n, k=k)
        """The kernel's problem, in these sizes."""
        self._stored = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        self._padded = self.problem.stored_a, self.problem.stored_b, (m, n)
        size = problem.dtype.size_bytes
        self._bytes = [aligned_bytes(rows * cols * size) for rows, cols in self._padded]
        self.nbytes = sum(self._bytes)
        """Bytes of the copies of a product."""
        self._batch, self._elements = problem.batch, self.nbytes // size

        def launch(rows: int, matrices: int) -> Launcher:
            ctas = matrices * min(MOST_PAD_CTAS, max(1, -(-rows // (PAD_THREADS // 32))))
            copying = LaunchConfig((ctas, 1, 1), (PAD_THREADS, 1, 1)).batched(problem.batch)
            return function.bound(copying, "QiiiQiii" * 2 + "m" * (problem.batch > 1))

        (rows_a, _), (rows_b, _), (rows_c, _) = self._padded
        self._in, self._add, self._out = launch(max(rows_a, rows_b), 2), launch(rows_c, 1), launch(problem.m, 1)

    names: tuple[str, ...] = "copy_a", "copy_b", "copy_c"
    """Names of the addresses."""

    def copies(self, strides: Strides | None) -> tuple[Matrix, Matrix, Matrix]:
        """The matrices that the kernel reads and writes."""
        own = strides.following(self._elements) if strides else NO_STEPS
        a, b, c = (Matrix(name, max(1, shape[1]), own) for name, shape in zip(self.names, self._padded))
        return a, b, c

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Addresses of the copies in their memory."""
        return memory, memory + self._bytes[0], memory + self._bytes[0] + self._bytes[1]

    def before(
        self, matrices: tuple[Matrix, Matrix, Matrix], strides: Strides | None, reads: bool, adds: bool
    ) -> list[Step]:  # fmt: skip
        """The launches that copy A and B if the kernel `reads` them, and C if it `adds` to it."""
        copies = self.copies(strides)
        of_matrices = zip(matrices, self._stored, copies, self._padded)
        a, b, c = (
            list[Value]((*matrix.values, *shape, *copy.values, *padded)) for matrix, shape, copy, padded in of_matrices
        )
        moved = [each.steps for matrix, copy in zip(matrices, copies) for each in (matrix, copy)]
        steps: list[Step] = [(self._in, [*a, *b, *_batch(strides, self._batch, *moved[:4])])] if reads else []
        return [*steps, (self._add, [*c, *_NO_MATRIX, *_batch(strides, self._batch, *moved[4:])])] if adds else steps

    def after(self, copy: Matrix, matrix: Matrix, strides: Strides | None) -> Step:
        """The launch that copies the caller's C out of the padded one."""
        shape, last = self._stored[2], _batch(strides, self._batch, copy.steps, matrix.steps)
        return self._out, [*copy.values, *shape, *matrix.values, *shape, *_NO_MATRIX, *last]
