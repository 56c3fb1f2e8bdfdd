"""A compiled variant on a device, launched on operands that lie in the device's memory."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from ...codegen.config import Config
from ...codegen.problem import Problem
from ...codegen.render import render
from ...codegen.source import PACK_THREADS, PACK_TILE, PACKED_BYTES, KernelSource, LaunchConfig, packed_ld
from ..device.cache import compile_cached
from ..device.protocol import Binary, Buffer, Device, Function, Operand

_FRAME_THREADS = 256
_NO_MAP = np.void(bytes(128))


_Padded = tuple[Problem, Operand, Operand, Operand]
"""The product as the exact kernel sees it, and operands in buffers of rounded-up sizes."""
Kept = TypeVar("Kept")


class Kernel:
    """One variant, compiled and loaded, for one problem."""

    def __init__(self, device: Device, problem: Problem, config: Config, source: KernelSource, binary: Binary) -> None:
        self.device = device
        self.problem = problem
        self.config = config
        self.source = source
        self.binary = binary
        self._function = device.load(binary, source.name)
        self._frame: Function | None = device.load(binary, source.frame) if source.frame else None
        sm_count = device.info.sm_count
        launch = config.launch_config(problem, sm_count)
        self._launch_config = launch.limited(device.info.arch, sm_count) if config.pdl else launch
        self._workspace_bytes = config.workspace_bytes(problem, sm_count)
        self._stream_ctas = config.stream_ctas_per_sm * sm_count
        self._scalar = np.dtype(problem.dtype.numpy_name).type
        self._pack: Function | None = device.load(binary, source.pack) if source.pack else None
        self._copies: dict[tuple[int, int], Buffer] = {}
        self._padded: dict[tuple[int, int], _Padded] = {}
        self._workspaces: dict[tuple[int, int], Buffer] = {}
        self._twin: Kernel | None = None

    def launch(self, a: Operand, b: Operand, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Put C = alpha op(A) op(B) + beta C on the caller's current stream; everything it needs included.

        The operands are as the problem says; nothing is checked here. Raises LaunchError.
        """
        if self.problem.m == 0 or self.problem.n == 0:
            return
        if self._frame is not None:
            self._launch_padded(self._frame, a, b, c, alpha, beta)
        elif self._aligned(a, b, c):
            if self._pack is not None and alpha != 0 and self.problem.k > 0:
                a, b = self._packed(self._pack, a, b)
            self._launch(self.problem, a, b, c, alpha, beta)
        else:
            if self._twin is None:  # compiled when first needed: most callers' operands are aligned
                self._twin = prepare(self.device, self.problem, self.config.scalar())
            self._twin.launch(a, b, c, alpha, beta)

    def _aligned(self, *operands: Operand) -> bool:
        """Whether the kernel's vectors lie as they must; the problem's rows are as long as they must be."""
        size = self.problem.dtype.size_bytes
        return all(
            operand.pointer % (multiple * size) == 0 and operand.ld % multiple == 0
            for operand, multiple in zip(operands, self.config.alignment, strict=True)
        )

    def _launch(self, problem: Problem, a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        arguments = (
            np.uint64(a.pointer), np.int32(a.ld), np.uint64(b.pointer), np.int32(b.ld),
            np.uint64(c.pointer), np.int32(c.ld),
            np.int32(problem.m), np.int32(problem.n), np.int32(problem.k),
            self._scalar(alpha), self._scalar(beta), *self._workspace(), *self._maps(problem, a, b, alpha),
        )  # fmt: skip
        self._function.launch(self._launch_config, arguments)

    def _workspace(self) -> tuple[np.generic, ...]:
        """The arguments for the kernel's own memory, and for how many CTAs share the remainder of stream-K; none where
        it takes none."""
        if not self._workspace_bytes:
            return ()
        pointer = np.uint64(self._own(self._workspaces, self._zeroed).pointer)
        return (pointer, np.uint32(self._stream_ctas)) if self._stream_ctas else (pointer,)

    def _zeroed(self) -> Buffer:
        buffer = self.device.allocate(self._workspace_bytes)
        buffer.array("uint8", (buffer.nbytes,))[...] = 0
        return buffer

    def _own(self, kept: dict[tuple[int, int], Kept], make: Callable[[], Kept]) -> Kept:
        # One a stream and thread: two products in flight must not share it.
        key = (self.device.stream(), threading.get_ident())
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def _maps(self, problem: Problem, a: Operand, b: Operand, alpha: float) -> tuple[np.void, ...]:
        """The arguments that tell tensor copies of A and B, none where there are none."""
        boxes = self.config.boxes(problem)
        if problem.k == 0 or alpha == 0:  # neither is read, nor has to exist
            return (_NO_MAP,) * len(boxes)
        return tuple(self.device.tensor_map(operand, problem.dtype, box) for operand, box in zip((a, b), boxes))

    def _packed(self, pack: Function, a: Operand, b: Operand) -> tuple[Operand, Operand]:
        """The operands as the kernel reads them, copied by `pack` where it reads copies."""
        problem, size = self.problem, self.problem.dtype.size_bytes
        lds = [packed_ld(extent, size) for extent in (problem.m, problem.n)]
        sizes = [problem.k * ld * size for ld, packs in zip(lds, self.config.packs) if packs]
        buffer, blocks = self._own(self._copies, lambda: self.device.allocate(sum(sizes) + PACKED_BYTES)), 0
        start = -buffer.pointer % PACKED_BYTES
        operands, arguments = [a, b], list[np.generic]()
        for place, (operand, ld, packs) in enumerate(zip((a, b), lds, self.config.packs, strict=True)):
            if packs:
                copy = Operand(buffer.pointer + start, problem.k, ld, ld, False, buffer)
                arguments += [np.uint64(operand.pointer), np.int32(operand.ld), np.uint64(copy.pointer), np.int32(ld)]
                blocks += -(-ld // PACK_TILE) * -(-problem.k // PACK_TILE)
                start += problem.k * ld * size
                operands[place] = copy
        arguments += [np.int32(problem.m), np.int32(problem.n), np.int32(problem.k)]
        pack.launch(LaunchConfig((blocks, 1, 1), (PACK_THREADS, 1, 1)), arguments)
        return operands[0], operands[1]

    def _launch_padded(self, frame: Function, a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        make = partial(_allocate_padded, self.device, self.problem, self.config.multiples)
        problem, inner_a, inner_b, inner_c = self._own(self._padded, make)
        read = alpha != 0 and self.problem.k > 0
        for given, padded, needed in ((a, inner_a, read), (b, inner_b, read), (c, inner_c, beta != 0)):
            if needed:
                self._copy(given, padded, given)
                self._zero_frame(frame, given, padded)
        self._launch(problem if read else replace(problem, k=0), inner_a, inner_b, inner_c, alpha, beta)
        self._copy(inner_c, c, c)

    def _copy(self, source: Operand, target: Operand, size: Operand) -> None:
        item = self.problem.dtype.size_bytes
        self.device.copy_2d(
            target.pointer, target.ld * item, source.pointer, source.ld * item, size.cols * item, size.rows
        )

    def _zero_frame(self, frame: Function, inner: Operand, outer: Operand) -> None:
        outside = outer.rows * outer.cols - inner.rows * inner.cols
        if outside:
            blocks = min(1024, -(-outside // _FRAME_THREADS))
            sizes = (outer.ld, inner.rows, inner.cols, outer.rows, outer.cols)
            arguments: list[np.generic] = [np.uint64(outer.pointer), *(np.int32(size) for size in sizes)]
            frame.launch(LaunchConfig((blocks, 1, 1), (_FRAME_THREADS, 1, 1)), arguments)


def _allocate_padded(device: Device, problem: Problem, multiples: tuple[int, int, int]) -> _Padded:
    m, n, k = (-(-size // multiple) * multiple for size, multiple in zip((problem.m, problem.n, problem.k), multiples))
    padded = replace(problem, m=m, n=n, k=k)
    shapes = padded.stored_a, padded.stored_b, (m, n)
    sizes = [-(-rows * cols * problem.dtype.size_bytes // 256) * 256 for rows, cols in shapes]
    buffer = device.allocate(sum(sizes))
    starts = (0, sizes[0], sizes[0] + sizes[1])
    a, b, c = (
        Operand(buffer.pointer + start, rows, cols, max(1, cols), trans, buffer)
        for start, (rows, cols), trans in zip(starts, shapes, (problem.trans_a, problem.trans_b, False))
    )
    return padded, a, b, c


def prepare(device: Device, problem: Problem, config: Config) -> Kernel:
    """Render, compile (or find in the cache) and load one variant.

    Raises ConfigError, CompileError, DeviceError or LaunchError.
    """
    source = render(problem, config, device.info.arch)
    return Kernel(device, problem, config, source, compile_cached(device.compiler, source))
