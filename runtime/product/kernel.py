"""A compiled variant on a device, launched on matrices that lie in the device's memory."""

import threading

from ...codegen.config import Config
from ...codegen.errors import CaptureError
from ...codegen.problem import DType, Problem
from ...codegen.render import render
from ...codegen.source import KernelSource
from ..device.cache import compile_cached
from ..device.protocol import Binary, Device, Operand
from .copied import Matrix, Packing, Padding
from .scratch import Scratch

_MOST_MAPS = 256
"""Tensor maps that a kernel keeps."""
_NO_MAP = bytes(128)


class Kernel:
    """One variant, compiled and loaded, for one problem. Safe between threads."""

    def __init__(self, device: Device, problem: Problem, config: Config, source: KernelSource, binary: Binary) -> None:
        self.device = device
        self.problem = problem
        self.config = config
        self.source = source
        self.binary = binary
        self._lock = threading.Lock()  # the arguments have one place, and the launches of a product go together
        self._twin: Kernel | None = None
        self._maps: dict[tuple[int, int, int], bytes] = {}
        self._empty = not (problem.m and problem.n)
        size, sm_count = problem.dtype.size_bytes, device.info.sm_count
        self._multiples = tuple(multiple * size for multiple in config.alignment)
        self._alignment, self._size = max(self._multiples), size
        if self._empty:
            return
        self._padding = Padding(device, problem, config, device.load(binary, source.frame)) if source.frame else None
        self._packing = Packing(problem, config, device.load(binary, source.pack)) if source.pack else None
        self._inner = self._padding.problem if self._padding else problem
        self._boxes = config.boxes(problem)
        shapes = problem.stored_a, problem.stored_b
        self._read = tuple(self._packing.shape(i, each) if self._packing else each for i, each in enumerate(shapes))
        workspace = config.workspace_bytes(problem, sm_count)
        stream_ctas = config.stream_ctas_per_sm * sm_count
        copies = self._padding.nbytes if self._padding else self._packing.nbytes if self._packing else 0
        sizes = tuple(size for size in (workspace, copies) if size)
        self._scratch = Scratch(device, sizes, workspace) if sizes else None
        self._workspace = bool(workspace)
        self._stream_ctas = (stream_ctas,) if stream_ctas else ()
        self._plain = not sizes and not self._boxes
        launch = config.launch_config(problem, sm_count)
        scalars = "ff" if problem.dtype is DType.FLOAT else "dd"
        codes = "QiQiQiiii" + scalars + "Q" * self._workspace + "I" * bool(stream_ctas) + "m" * len(self._boxes)
        self._main = device.load(binary, source.name).bound(
            launch.limited(device.info.arch, sm_count) if config.pdl else launch, codes
        )

    def launch(self, a: Operand, b: Operand, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Put C = alpha op(A) op(B) + beta C on the caller's current stream; everything it needs included.

        The operands are as the problem says; nothing is checked here. Raises LaunchError.
        """
        stream = self.device.stream()
        self.run(stream, self.device.capturing(stream), a.pointer, a.ld, b.pointer, b.ld, c.pointer, c.ld, alpha, beta)

    def run(
        self, stream: int, capturing: bool, a: int, lda: int, b: int, ldb: int, c: int, ldc: int,
        alpha: float, beta: float,
    ) -> None:  # fmt: skip
        """What `launch` does, by addresses and leading dimensions. `capturing` says whether the stream is.

        The device must be the current one. Raises LaunchError, and CaptureError where a graph would need memory or a
        kernel that is not there.
        """
        if self._empty:
            return
        size = self._size
        if (a | b | c | lda * size | ldb * size | ldc * size) & (self._alignment - 1) and not self._aligned(
            (a | lda * size, b | ldb * size, c | ldc * size)
        ):
            self._scalar(capturing).run(stream, capturing, a, lda, b, ldb, c, ldc, alpha, beta)
            return
        problem = self._inner
        with self._lock:
            if self._plain:
                self._main(stream, a, lda, b, ldb, c, ldc, problem.m, problem.n, problem.k, alpha, beta)
            else:
                self._run(stream, capturing, Matrix(a, lda), Matrix(b, ldb), Matrix(c, ldc), alpha, beta)

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

    def _aligned(self, starts: tuple[int, ...]) -> bool:
        """Whether the kernel's vectors lie as they must; the problem's rows are as long as they must be."""
        return not any(start & (multiple - 1) for start, multiple in zip(starts, self._multiples))

    def _scalar(self, capturing: bool) -> "Kernel":
        """The kernel for operands that do not lie aligned, compiled when first needed: most callers' do."""
        if self._twin is None:
            if capturing:
                text = f"operands of {self.problem} do not lie at multiples of {self._alignment} bytes, and the kernel"
                raise CaptureError(f"{text} for such is not compiled yet: call it once with them before capturing")
            self._twin = prepare(self.device, self.problem, self.config.scalar())
        return self._twin

    def _run(self, stream: int, capturing: bool, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> None:
        """A launch with what some kernels need: copies of operands, a workspace, tensor maps."""
        buffers = self._scratch.at(stream, capturing) if self._scratch else ()
        problem, k, target = self._inner, self._inner.k, c
        reads = alpha != 0 and k > 0
        if self._padding:
            copies = self._padding.matrices(buffers[-1].pointer)
            for which, (matrix, needed) in enumerate(((a, reads), (b, reads), (c, beta != 0))):
                if needed:
                    self._padding.fill(stream, which, matrix, copies[which])
            (a, b, c), k = copies, k if reads else 0
        elif self._packing and reads:
            a, b = self._packing.run(stream, (a, b), buffers[-1].pointer)
        more: tuple[object, ...] = (buffers[0].pointer, *self._stream_ctas) if self._workspace else ()
        if self._boxes:
            mapped = zip(range(len(self._boxes)), (a, b))
            more += tuple(self._map(which, matrix) if reads else _NO_MAP for which, matrix in mapped)
        self._main(
            stream, a.pointer, a.ld, b.pointer, b.ld, c.pointer, c.ld, problem.m, problem.n, k, alpha, beta, *more
        )
        if self._padding:
            self._padding.take(stream, c, target)

    def _map(self, which: int, matrix: Matrix) -> bytes:
        """The argument that tells TMA where A or B is."""
        key = which, matrix.pointer, matrix.ld
        found = self._maps.get(key)
        if found is None:
            if len(self._maps) >= _MOST_MAPS:
                self._maps.clear()
            given = matrix.pointer, *self._read[which], matrix.ld
            found = self._maps[key] = self.device.tensor_map(*given, self.problem.dtype, self._boxes[which])
        return found


def prepare(device: Device, problem: Problem, config: Config) -> Kernel:
    """Render, compile (or find in the cache) and load one variant.

    Raises ConfigError, CompileError, DeviceError or LaunchError.
    """
    source = render(problem, config, device.info.arch)
    return Kernel(device, problem, config, source, compile_cached(device.compiler, source))
