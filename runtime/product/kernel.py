"""A compiled variant on a device, launched on matrices that lie in the device's memory."""

import threading
from collections.abc import Callable

from ...codegen.config import Config
from ...codegen.errors import CaptureError
from ...codegen.problem import DType, Problem
from ...codegen.render import render
from ...codegen.source import KernelSource
from ..device.cache import compile_cached
from ..device.protocol import Binary, Device, Operand
from .copied import Packing, Padding, Place
from .scratch import Scratch

_MOST_MAPS = 256
"""Tensor maps that a kernel keeps."""
_NO_MAP = bytes(128)

Run = Callable[[int, bool, int, int, int, float, float], None]
"""A launch by stream, whether it is captured, addresses of A, B and C, alpha and beta."""


class Kernel:
    """One variant, compiled and loaded, for one problem. Safe between threads."""

    def __init__(self, device: Device, problem: Problem, config: Config, source: KernelSource, binary: Binary) -> None:
        self.device = device
        self.problem = problem
        self.config = config
        self.source = source
        self.binary = binary
        self._lock = threading.Lock()  # the launches of a product go together
        self._twin: Kernel | None = None
        self._laid: dict[tuple[int, int, int], Run] = {}
        self._maps: tuple[dict[Place, bytes], ...] = ({}, {})
        self._empty = not (problem.m and problem.n)
        size, sm_count = problem.dtype.size_bytes, device.info.sm_count
        self._multiples = tuple(multiple * size for multiple in config.alignment)
        self._alignment, self._size = max(self._multiples), size
        if self._empty:
            return
        self._padding = Padding(device, problem, config, device.load(binary, source.frame)) if source.frame else None
        self._packing = Packing(problem, config, device.load(binary, source.pack)) if source.pack else None
        inner = self._padding.problem if self._padding else problem
        self._sizes = inner.m, inner.n, inner.k
        self._boxes = config.boxes(problem)
        self._no_maps = (_NO_MAP,) * len(self._boxes)
        shapes = problem.stored_a, problem.stored_b
        self._read = tuple(self._packing.shape(i, each) if self._packing else each for i, each in enumerate(shapes))
        workspace = config.workspace_bytes(problem, sm_count)
        stream_ctas = config.stream_ctas_per_sm * sm_count
        copies = self._padding.nbytes if self._padding else self._packing.nbytes if self._packing else 0
        sizes = tuple(size for size in (workspace, copies) if size)
        self._scratch = Scratch(device, sizes, workspace) if sizes else None
        self._workspace = bool(workspace)
        self._counters_at = workspace - 4 * config.counters(problem, sm_count)  # within the workspace
        self._stream_ctas = (stream_ctas,) if stream_ctas else ()
        self._plain = not sizes and not self._boxes
        launch = config.launch_config(problem, sm_count)
        scalars = "ff" if problem.dtype is DType.FLOAT else "dd"
        codes = "QiQiQiiii" + scalars + "QQ" * self._workspace + "I" * bool(stream_ctas) + "m" * len(self._boxes)
        self._main = device.load(binary, source.name).bound(
            launch.limited(device.info.arch, sm_count) if config.pdl else launch, codes
        )

    def launch(self, a: Operand, b: Operand, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Put C = alpha op(A) op(B) + beta C on the caller's current stream; everything it needs included.

        The operands are as the problem says; nothing is checked here. Raises LaunchError.
        """
        key = a.ld, b.ld, c.ld
        run = self._laid.get(key)
        if run is None:
            run = self._laid[key] = self.laid(*key)
        stream = self.device.stream()
        run(stream, self.device.capturing(stream), a.pointer, b.pointer, c.pointer, alpha, beta)

    def laid(self, lda: int, ldb: int, ldc: int) -> Run:
        """The product of matrices with these leading dimensions: called with a stream, whether that is captured into a
        graph, addresses of A, B and C, alpha and beta.

        The device must be the current one. Calling raises LaunchError, and CaptureError where a graph would need
        memory or a kernel that is not there.
        """
        if self._empty:
            return lambda *given: None
        main, plain = self._main, self._plain
        m, n, k = self._sizes
        copies = self._padding is not None  # of its own, which lie as they must
        mask = 0 if copies else self._alignment - 1
        askew = not copies and any(ld * self._size % multiple for ld, multiple in zip((lda, ldb, ldc), self._multiples))

        def run(stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float) -> None:
            if askew or ((a | b | c) & mask and not self._aligned(a, b, c)):
                self._scalar(capturing).laid(lda, ldb, ldc)(stream, capturing, a, b, c, alpha, beta)
            elif plain:
                main(stream, a, lda, b, ldb, c, ldc, m, n, k, alpha, beta)
            else:
                with self._lock:
                    self._run(stream, capturing, (a, lda), (b, ldb), (c, ldc), alpha, beta)

        return run

    def prepare_graphs(self, count: int) -> None:
        """Have memory ready for so many graphs that this kernel is captured in. Raises LaunchError."""
        if not self._empty and self._scratch:
            with self._lock:
                self._scratch.set_aside(count)

    def release(self) -> None:
        """Free the memory that launches work in; graphs that it was captured in must not run any more."""
        if not self._empty and self._scratch:
            with self._lock:
                self._scratch.release()
        if self._twin:
            self._twin.release()

    @property
    def nbytes(self) -> int:
        """Device memory held: the machine code and what launches work in."""
        twin = self._twin.nbytes if self._twin else 0
        scratch = self._scratch.nbytes if not self._empty and self._scratch else 0
        return len(self.binary.image) + scratch + twin

    def _aligned(self, *pointers: int) -> bool:
        """Whether the kernel's vectors lie as they must; the problem's rows are as long as they must be."""
        return not any(pointer % multiple for pointer, multiple in zip(pointers, self._multiples))

    def _scalar(self, capturing: bool) -> "Kernel":
        """The kernel for operands that do not lie aligned, compiled when first needed: most callers' do."""
        if self._twin is None:
            if capturing:
                text = f"operands of {self.problem} do not lie at multiples of {self._alignment} bytes, and the kernel"
                raise CaptureError(f"{text} for such is not compiled yet: call it once with them before capturing")
            self._twin = prepare(self.device, self.problem, self.config.scalar())
        return self._twin

    def _run(self, stream: int, capturing: bool, a: Place, b: Place, c: Place, alpha: float, beta: float) -> None:
        """A launch with what some kernels need: copies of operands, a workspace, tensor maps."""
        buffers = self._scratch.at(stream, capturing) if self._scratch else ()
        m, n, k = self._sizes
        reads, target = alpha != 0 and k > 0, c
        if self._padding:
            a, b, c = self._padding.copied(stream, (a, b, c), (reads, reads, beta != 0), buffers[-1].pointer)
            k = k if reads else 0
        elif self._packing and reads:
            a, b = self._packing.run(stream, a, b, buffers[-1].pointer)
        more: tuple[object, ...] = ()
        if self._workspace:
            at = buffers[0].pointer
            more = at, at + self._counters_at, *self._stream_ctas
        if self._boxes:
            more += (self._map(0, a), self._map(1, b))[: len(self._boxes)] if reads else self._no_maps
        self._main(stream, a[0], a[1], b[0], b[1], c[0], c[1], m, n, k, alpha, beta, *more)
        if self._padding:
            self._padding.take(stream, c, target)

    def _map(self, which: int, place: Place) -> bytes:
        """The argument that tells TMA where A or B is."""
        maps = self._maps[which]
        found = maps.get(place)
        if found is None:
            if len(maps) >= _MOST_MAPS:
                maps.clear()
            pointer, ld = place
            given = pointer, *self._read[which], ld, self.problem.dtype, self._boxes[which]
            found = maps[place] = self.device.tensor_map(*given)
        return found


def prepare(device: Device, problem: Problem, config: Config) -> Kernel:
    """Render, compile (or find in the cache) and load one variant.

    Raises ConfigError, CompileError, DeviceError or LaunchError.
    """
    source = render(problem, config, device.info.arch)
    return Kernel(device, problem, config, source, compile_cached(device.compiler, source))
