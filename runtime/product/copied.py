"""Operands that a kernel reads from copies: packed to aligned rows of k, or padded to whole tiles."""

from dataclasses import replace

from ...codegen.config import Config
from ...codegen.problem import Problem
from ...codegen.source import PACK_THREADS, PACK_TILE, PACKED_BYTES, LaunchConfig, packed_ld
from ..device.protocol import Device, Function

_FRAME_THREADS = 256
_MOST_FRAME_CTAS = 1024


Place = tuple[int, int]
"""Address and leading dimension, in elements, of a matrix."""


class Packing:
    """The launch that copies A, B or both before the kernel reads them."""

    def __init__(self, problem: Problem, config: Config, function: Function) -> None:
        size, extents = problem.dtype.size_bytes, (problem.m, problem.n)
        self._k, self._packs = problem.k, config.packs
        self._sizes: tuple[int, ...] = problem.m, problem.n, problem.k
        self._lds = [packed_ld(extent, size) for extent in extents]
        self._bytes = [problem.k * ld * size for ld in self._lds]
        self.nbytes = sum(count for count, packs in zip(self._bytes, self._packs) if packs) + PACKED_BYTES
        """Bytes of the copies."""
        ctas = sum(
            -(-ld // PACK_TILE) * -(-problem.k // PACK_TILE) for ld, packs in zip(self._lds, self._packs) if packs
        )
        launch = LaunchConfig((max(1, ctas), 1, 1), (PACK_THREADS, 1, 1))
        self._launch = function.bound(launch, "QiQi" * sum(self._packs) + "iii")

    def shape(self, which: int, stored: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of what the kernel reads of A or of B."""
        return (self._k, self._lds[which]) if self._packs[which] else stored

    def run(self, stream: int, a: Place, b: Place, memory: int) -> tuple[Place, Place]:
        """Copy what is copied to `memory`, and give what the kernel reads. Raises LaunchError."""
        at, (packs_a, packs_b), values = memory + -memory % PACKED_BYTES, self._packs, self._sizes
        if packs_b:
            copy_b = at + (self._bytes[0] if packs_a else 0), self._lds[1]
            values = (*b, *copy_b, *values)
            b = copy_b
        if packs_a:
            copy_a = at, self._lds[0]
            values = (*a, *copy_a, *values)
            a = copy_a
        self._launch(stream, *values)
        return a, b


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
        self._bytes = [-(-rows * cols * self._size // 256) * 256 for rows, cols in self._padded]
        self.nbytes = sum(self._bytes)
        """Bytes of the copies."""
        self._frames = []
        for given, padded in zip(self._given, self._padded):
            outside = padded[0] * padded[1] - given[0] * given[1]
            ctas = min(_MOST_FRAME_CTAS, -(-outside // _FRAME_THREADS))
            launch = LaunchConfig((max(1, ctas), 1, 1), (_FRAME_THREADS, 1, 1))
            self._frames.append(frame.bound(launch, "Qiiiii") if outside else None)

    def copied(
        self, stream: int, matrices: tuple[Place, Place, Place], needed: tuple[bool, bool, bool], memory: int
    ) -> tuple[Place, Place, Place]:
        """Where the copies of A, B and C lie in `memory`: those that are needed are filled, with zeros around them.

        Raises LaunchError.
        """
        starts = memory, memory + self._bytes[0], memory + self._bytes[0] + self._bytes[1]
        a, b, c = copies = tuple((start, max(1, cols)) for start, (_, cols) in zip(starts, self._padded))
        for which, copy in enumerate(copies):
            if needed[which]:
                self._copy(stream, matrices[which], copy, *self._given[which])
                if (frame := self._frames[which]) is not None:
                    frame(stream, *copy, *self._given[which], *self._padded[which])
        return a, b, c

    def take(self, stream: int, copy: Place, matrix: Place) -> None:
        """Copy what was asked for out of the padded C."""
        self._copy(stream, copy, matrix, *self._given[2])

    def _copy(self, stream: int, source: Place, target: Place, rows: int, cols: int) -> None:
        pitches = target[0], target[1] * self._size, source[0], source[1] * self._size
        self._device.copy_2d(stream, *pitches, cols * self._size, rows)
