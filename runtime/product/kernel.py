"""A compiled variant on a device, launched on operands that lie in the device's memory."""

import threading
from dataclasses import dataclass, replace

import numpy as np

from ...codegen.config import Config
from ...codegen.families import family_of
from ...codegen.problem import Problem
from ...codegen.render import render
from ...codegen.source import PACK_THREADS, PACK_TILE, PACKED_BYTES, KernelSource, LaunchConfig
from ..device.cache import compile_cached
from ..device.protocol import Binary, Buffer, Device, Function, Operand

__all__ = ["Kernel", "prepare"]

_FRAME_THREADS = 256
_NO_MAP = np.void(bytes(128))


@dataclass(frozen=True, slots=True)
class _Padded:
    """Buffers of rounded-up sizes for one stream."""

    problem: Problem
    """The product as the exact kernel sees it."""
    buffer: Buffer
    """Memory of all three."""
    a: Operand
    b: Operand
    c: Operand


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
        spread = source.launch.spread(device.info.arch, device.info.sm_count)
        self._launch_config = spread if source.early else source.launch
        self._scalar = np.dtype(problem.dtype.numpy_name).type
        self._pack: Function | None = device.load(binary, source.pack) if source.pack else None
        self._copies: dict[tuple[int, int], Buffer] = {}
        self._padded: dict[tuple[int, int], _Padded] = {}
        self._workspaces: dict[tuple[int, int], Buffer] = {}
        self._twin: Kernel | None = None

    @property
    def name(self) -> str:
        """Name of the kernel in its source."""
        return self.source.name

    @property
    def registers(self) -> int | None:
        """Registers of a thread, where the compiler tells."""
        return self.binary.registers

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of local memory of a thread, where the compiler tells."""
        return self.binary.frame_bytes

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, static and dynamic."""
        return self.source.launch.static_smem_bytes + self.source.launch.dynamic_smem_bytes

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
            self._scalar_twin().launch(a, b, c, alpha, beta)

    def _aligned(self, *operands: Operand) -> bool:
        """Whether the kernel's vectors lie as they must; the problem's rows are as long as they must be."""
        size = self.problem.dtype.size_bytes
        return all(
            operand.pointer % (multiple * size) == 0 and operand.ld % multiple == 0
            for operand, multiple in zip(operands, self.source.alignment, strict=True)
        )

    def _scalar_twin(self) -> "Kernel":
        # Compiled when first needed: most callers' operands are aligned.
        if self._twin is None:
            self._twin = prepare(self.device, self.problem, family_of(self.config).scalar(self.config))
        return self._twin

    def _launch(self, problem: Problem, a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        arguments = (
            np.uint64(a.pointer), np.int32(a.ld), np.uint64(b.pointer), np.int32(b.ld),
            np.uint64(c.pointer), np.int32(c.ld),
            np.int32(problem.m), np.int32(problem.n), np.int32(problem.k),
            self._scalar(alpha), self._scalar(beta), *self._workspace(), *self._maps(problem, a, b, alpha),
        )  # fmt: skip
        self._function.launch(self._launch_config, arguments)

    def _workspace(self) -> tuple[np.uint64, ...]:
        """The argument for the kernel's own memory, none where it takes none."""
        if not self.source.workspace_bytes:
            return ()
        key = (self.device.stream(), threading.get_ident())
        if key not in self._workspaces:
            buffer = self.device.allocate(self.source.workspace_bytes)
            buffer.array("uint8", (buffer.nbytes,))[...] = 0
            self._workspaces[key] = buffer
        return (np.uint64(self._workspaces[key].pointer),)

    def _maps(self, problem: Problem, a: Operand, b: Operand, alpha: float) -> tuple[np.void, ...]:
        """The arguments that tell tensor copies of A and B, none where there are none."""
        boxes = self.source.boxes
        if problem.k == 0 or alpha == 0:  # neither is read, nor has to exist
            return (_NO_MAP,) * len(boxes)
        return tuple(self.device.tensor_map(operand, problem.dtype, box) for operand, box in zip((a, b), boxes))

    def _packed(self, pack: Function, a: Operand, b: Operand) -> tuple[Operand, Operand]:
        """The operands as the kernel reads them, copied by `pack` where it reads copies."""
        problem, size = self.problem, self.problem.dtype.size_bytes
        lds = [self.source.packed_ld(extent, size) for extent in (problem.m, problem.n)]
        # One buffer a stream and thread: two products in flight must not share them.
        key = (self.device.stream(), threading.get_ident())
        if key not in self._copies:
            sizes = (problem.k * ld * size for ld, packs in zip(lds, self.source.packs) if packs)
            self._copies[key] = self.device.allocate(sum(sizes) + PACKED_BYTES)
        buffer, blocks = self._copies[key], 0
        start = -buffer.pointer % PACKED_BYTES
        operands, arguments = [a, b], list[np.generic]()
        for place, (operand, ld, packs) in enumerate(zip((a, b), lds, self.source.packs, strict=True)):
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
        padded = self._padded_operands()
        read = alpha != 0 and self.problem.k > 0
        if read:
            for inner, outer in ((a, padded.a), (b, padded.b)):
                self._copy(inner, outer, inner)
                self._zero_frame(frame, inner, outer)
        if beta != 0:
            self._copy(c, padded.c, c)
            self._zero_frame(frame, c, padded.c)
        depth = padded.problem.k if read else 0
        self._launch(replace(padded.problem, k=depth), padded.a, padded.b, padded.c, alpha, beta)
        self._copy(padded.c, c, c)

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

    def _padded_operands(self) -> _Padded:
        # One set of buffers a stream and thread: two products in flight must not share them.
        key = (self.device.stream(), threading.get_ident())
        if key not in self._padded:
            self._padded[key] = _allocate_padded(self.device, self.problem, self.source.multiples)
        return self._padded[key]


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
    return _Padded(padded, buffer, a, b, c)


def prepare(device: Device, problem: Problem, config: Config) -> Kernel:
    """Render, compile (or find in the cache) and load one variant.

    Raises ConfigError, CompileError, DeviceError or LaunchError.
    """
    source = render(problem, config, device.info.arch)
    return Kernel(device, problem, config, source, compile_cached(device.compiler, source))
