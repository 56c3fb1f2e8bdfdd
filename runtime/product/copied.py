"""Operands that a kernel reads from copies: packed to aligned rows of k, padded to whole tiles, or split into terms."""

from dataclasses import replace

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
from ..device.protocol import Function, Launcher
from .program import Step, Value

_NO_MATRIX = (0,) * 8
"""Arguments of a padding launch in place of a second matrix."""
_COPIES = "copy_a", "copy_b"
"""Names of the addresses of packed copies of A and B."""

Matrix = tuple[str, int]
"""A matrix: its address by its name in a Program, and its leading dimension in elements."""


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
        self.nbytes = sum(self._bytes) + PACKED_BYTES
        """Bytes of the copies."""
        ctas = sum(-(-ld // PACK_TILE) * -(-problem.k // PACK_TILE) for ld in self._lds.values())
        launch = LaunchConfig((max(1, ctas), 1, 1), (PACK_THREADS, 1, 1))
        self._launch = function.bound(launch, "QiQi" * len(self.names) + "iii")

    def shapes(self, *stored: tuple[int, int]) -> list[tuple[int, int]]:
        """Rows and columns of A and B as the kernel reads them, from those of the stored matrices."""
        k = self._sizes[2]
        return [(k, self._lds[name]) if name in self._lds else shape for name, shape in zip(_COPIES, stored)]

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Addresses of the copies in their memory."""
        first = memory + -memory % PACKED_BYTES
        return (first, first + self._bytes[0])[: len(self.names)]

    def step(self, *operands: Matrix) -> tuple[Step, list[Matrix]]:
        """The launch that packs A, B or both, and the matrices that the kernel reads in their place."""
        values = list[Value]()
        for name, operand in zip(_COPIES, operands):
            values += [*operand, name, self._lds[name]] if name in self._lds else []
        read = [(name, self._lds[name]) if name in self._lds else operand for name, operand in zip(_COPIES, operands)]
        return (self._launch, [*values, *self._sizes]), read


class Splitting:
    """Split terms of A and B, made before the kernel reads them."""

    names: tuple[str, ...] = ("terms",)
    """Names of the addresses."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        self.nbytes = term_bytes(config, problem)
        """Bytes of the terms."""
        self._sizes = problem.m, problem.n, problem.k, *term_sizes(config, problem)
        launch = LaunchConfig((term_ctas(config, problem), 1, 1), (TERM_THREADS, 1, 1))
        self._launch = function.bound(launch, "QiQiQiiiIII")

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Address of the terms in their memory."""
        return (memory,)

    def step(self, *operands: Matrix) -> Step:
        """The launch that splits A and B."""
        (a, lda), (b, ldb) = operands
        return self._launch, [a, lda, b, ldb, *self.names, *self._sizes]


class Padding:
    """Copies of A, B and C in sizes that the tiles divide, filled with zeros."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        sizes = (problem.m, problem.n, problem.k)
        m, n, k = (-(-size // each) * each for size, each in zip(sizes, config.multiples))
        self.problem = replace(problem, m=m, n=n, k=k)
        """The kernel's problem, in these sizes."""
        self._stored = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        self._padded = self.problem.stored_a, self.problem.stored_b, (m, n)
        self._bytes = [-(-rows * cols * problem.dtype.size_bytes // 256) * 256 for rows, cols in self._padded]
        self.nbytes = sum(self._bytes)
        """Bytes of the copies."""
        a, b, c = ((name, max(1, shape[1])) for name, shape in zip(self.names, self._padded))
        self.copies = a, b, c
        """Matrices that the kernel reads and writes."""

        def launch(rows: int, matrices: int) -> Launcher:
            ctas = matrices * min(MOST_PAD_CTAS, max(1, -(-rows // (PAD_THREADS // 32))))
            return function.bound(LaunchConfig((ctas, 1, 1), (PAD_THREADS, 1, 1)), "QiiiQiii" * 2)

        (rows_a, _), (rows_b, _), (rows_c, _) = self._padded
        self._in, self._add, self._out = launch(max(rows_a, rows_b), 2), launch(rows_c, 1), launch(problem.m, 1)

    names: tuple[str, ...] = "copy_a", "copy_b", "copy_c"
    """Names of the addresses."""

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Addresses of the copies in their memory."""
        return memory, memory + self._bytes[0], memory + self._bytes[0] + self._bytes[1]

    def before(self, matrices: tuple[Matrix, Matrix, Matrix], reads: bool, adds: bool) -> list[Step]:
        """The launches that copy A and B if the kernel `reads` them, and C if it `adds` to it."""
        of_matrices = zip(matrices, self._stored, self.copies, self._padded)
        a, b, c = (list[Value]((*matrix, *shape, *copy, *padded)) for matrix, shape, copy, padded in of_matrices)
        steps: list[Step] = [(self._in, [*a, *b])] if reads else []
        return [*steps, (self._add, [*c, *_NO_MATRIX])] if adds else steps

    def after(self, copy: Matrix, matrix: Matrix) -> Step:
        """The launch that copies the caller's C out of the padded one."""
        return self._out, [*copy, *self._stored[2], *matrix, *self._stored[2], *_NO_MATRIX]
