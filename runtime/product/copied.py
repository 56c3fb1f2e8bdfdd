"""Operands that a kernel reads from copies: packed to aligned rows of k, padded to whole tiles, or split into limbs."""

from dataclasses import replace

from ...codegen.config import Config
from ...codegen.mechanisms.limbs import limb_bytes, limb_ctas
from ...codegen.problem import Problem
from ...codegen.source import LIMB_THREADS, PACK_THREADS, PACK_TILE, PACKED_BYTES, LaunchConfig, packed_ld
from ..device.protocol import Device, Function
from .program import Step, Value

_FRAME_THREADS = 256
_MOST_FRAME_CTAS = 1024


Place = tuple[int, int]
"""Address and leading dimension, in elements, of a matrix."""
Named = tuple[str, int]
"""The same with the address by its name in a Program."""


class Packing:
    """The launch that copies A, B or both before the kernel reads them."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        size, extents = problem.dtype.size_bytes, (problem.m, problem.n)
        self._k, self._packs = problem.k, config.packs
        self._sizes = problem.m, problem.n, problem.k
        self._lds = [packed_ld(extent, size) for extent in extents]
        self._bytes = [problem.k * ld * size for ld in self._lds]
        self.nbytes = sum(count for count, packs in zip(self._bytes, self._packs) if packs) + PACKED_BYTES
        """Bytes of the copies."""
        ctas = sum(
            -(-ld // PACK_TILE) * -(-problem.k // PACK_TILE) for ld, packs in zip(self._lds, self._packs) if packs
        )
        launch = LaunchConfig((max(1, ctas), 1, 1), (PACK_THREADS, 1, 1))
        self._launch = function.bound(launch, "QiQi" * sum(self._packs) + "iii")

    def shapes(self, *stored: tuple[int, int]) -> list[tuple[int, int]]:
        """Rows and columns of what the kernel reads of A and B."""
        return [(self._k, ld) if packs else given for given, ld, packs in zip(stored, self._lds, self._packs)]

    @property
    def names(self) -> tuple[str, ...]:
        """Of what `addresses` gives."""
        return tuple(name for name, packs in zip(("copy_a", "copy_b"), self._packs) if packs)

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Where the copies lie."""
        first = memory + -memory % PACKED_BYTES
        starts = first, first + (self._bytes[0] if self._packs[0] else 0)
        return tuple(start for start, packs in zip(starts, self._packs) if packs)

    def step(self, *operands: Named) -> tuple[Step, list[Named]]:
        """The launch that copies A, B or both, and what the kernel reads then."""
        values, read = list[Value](), list[Named]()
        for operand, name, ld, packs in zip(operands, ("copy_a", "copy_b"), self._lds, self._packs):
            read.append((name, ld) if packs else operand)
            values += [*operand, name, ld] if packs else []
        return (self._launch, [*values, *self._sizes]), read


class Splitting:
    """The launch that splits A and B into limbs before the kernel reads those."""

    names: tuple[str, ...] = ("limbs",)
    """Of what `addresses` gives."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        self.nbytes = limb_bytes(config, problem)
        """Bytes of the limbs."""
        self._sizes = problem.m, problem.n, problem.k
        launch = LaunchConfig((limb_ctas(config, problem), 1, 1), (LIMB_THREADS, 1, 1))
        self._launch = function.bound(launch, "QiQiQiii")

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Where the limbs lie."""
        return (memory,)

    def step(self, *operands: Named) -> Step:
        """The launch that splits A and B."""
        (a, lda), (b, ldb) = operands
        return self._launch, [a, lda, b, ldb, *self.names, *self._sizes]


class Padding:
    """Copies of A, B and C in sizes that the tiles divide, zero past what was copied."""

    def __init__(self, device: Device, problem: Problem, config: Config, frame: Function) -> None:
        sizes = (problem.m, problem.n, problem.k)
        m, n, k = (-(-size // each) * each for size, each in zip(sizes, config.multiples))
        self.problem = replace(problem, m=m, n=n, k=k)
        """The product as the kernel sees it."""
        self._device, self._size = device, problem.dtype.size_bytes
        self._given = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        self._padded = self.problem.stored_a, self.problem.stored_b, (m, n)
        self.lds = max(1, self._padded[0][1]), max(1, self._padded[1][1]), n
        """Leading dimensions of the copies of A, B and C."""
        self._bytes = [-(-rows * cols * self._size // 256) * 256 for rows, cols in self._padded]
        self.nbytes = sum(self._bytes)
        """Bytes of the copies."""
        self._frames = []
        for given, padded in zip(self._given, self._padded):
            outside = padded[0] * padded[1] - given[0] * given[1]
            ctas = min(_MOST_FRAME_CTAS, -(-outside // _FRAME_THREADS))
            launch = LaunchConfig((max(1, ctas), 1, 1), (_FRAME_THREADS, 1, 1))
            self._frames.append(frame.bound(launch, "Qiiiii") if outside else None)

    names: tuple[str, ...] = ("copies",)
    """Of what `addresses` gives."""

    def addresses(self, memory: int) -> tuple[int, ...]:
        """Where the copies begin."""
        return (memory,)

    def matrices(self, memory: int) -> tuple[Place, Place, Place]:
        """Where the copies of A, B and C lie in `memory`."""
        starts = memory, memory + self._bytes[0], memory + self._bytes[0] + self._bytes[1]
        a, b, c = zip(starts, self.lds)
        return a, b, c

    def fill(self, stream: int, which: int, matrix: Place, copy: Place) -> None:
        """Copy A, B or C (0, 1 or 2) and zero the rest. Raises LaunchError."""
        rows, cols = self._given[which]
        self._copy(stream, matrix, copy, rows, cols)
        frame = self._frames[which]
        if frame is not None:
            frame(stream, *copy, rows, cols, *self._padded[which])

    def take(self, stream: int, copy: Place, matrix: Place) -> None:
        """Copy what was asked for out of the padded C."""
        self._copy(stream, copy, matrix, *self._given[2])

    def _copy(self, stream: int, source: Place, target: Place, rows: int, cols: int) -> None:
        pitches = target[0], target[1] * self._size, source[0], source[1] * self._size
        self._device.copy_2d(stream, *pitches, cols * self._size, rows)
