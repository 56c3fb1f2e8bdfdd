"""Compiled variants on a device, launched on matrices in the device's memory."""

from functools import partial

from ...codegen.batch import NO_STEPS, Batching, Strides
from ...codegen.config import Config
from ...codegen.errors import CaptureError
from ...codegen.fit import Fit
from ...codegen.leaf import Edge
from ...codegen.legality import fitted
from ...codegen.problem import DType, Problem
from ...codegen.render import render
from ...codegen.source import KernelSource
from ..device.cache import compile_cached
from ..device.protocol import Binary, Device, Operand
from ..locks import Lock
from .copied import Matrix, Packing, Padding, Splitting
from .program import OFFSETS, Maps, Program, Step, Value
from .scratch import Scratch
from .stack import Run

_NO_MAP = bytes(128)


class Product:
    """A way to compute the product of one problem on a device. Safe between threads."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device, self.problem = device, problem
        self._laid: dict[tuple[int, int, int], Run] = {}
        self.dense = Strides.dense(problem) if Batching.of(problem) else None
        """The distances of matrices without gaps that follow each other; None for one product."""

    def launch(self, a: Operand, b: Operand, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Put C = alpha op(A) op(B) + beta C on the caller's current stream, with the launches that prepare it.

        The operands have the problem's shapes and transposes, which is not checked; those of a batch follow each other
        without gaps. Raises LaunchError.
        """
        key = a.ld, b.ld, c.ld
        run = self._laid.get(key)
        if run is None:
            run = self._laid[key] = self.laid(*key)
        stream = self.device.stream()
        run(stream, self.device.capturing(stream), a.pointer, b.pointer, c.pointer, alpha, beta)

    def laid(self, lda: int, ldb: int, ldc: int, strides: Strides | None = None) -> Run:
        """Return the launch for matrices with these leading dimensions, in elements, and with the distances of a batch,
        None for `dense`.

        The device must be the current one in a launch. It raises LaunchError, and CaptureError where a graph would
        need memory or a kernel that is not ready.
        """
        raise NotImplementedError


class Kernel(Product):
    """One variant, compiled and loaded."""

    def __init__(self, device: Device, problem: Problem, fit: Fit, source: KernelSource, binary: Binary) -> None:
        super().__init__(device, problem)
        config = fit.config
        self.fit, self.config = fit, config
        self.source = source
        self.binary = binary
        # Launches of a product follow each other; a forked child frees the memory of an interrupted product.
        self._lock = Lock(self.release if device.info.arch.is_host else None)
        self._unaligned: Kernel | None = None
        self._scratch: Scratch | None = None
        self._empty = not (problem.m and problem.n)
        sm_count = device.info.sm_count
        self._multiples = tuple(multiple * problem.dtype.size_bytes for multiple in fit.alignment)
        if self._empty:
            return
        self._padding = self._packing = self._splitting = None
        if source.preparation is not None:
            first = device.load(binary.preparation or binary, source.preparation.name)
            if fit.edge is Edge.PAD:
                self._padding = Padding(problem, config, first)
            elif config.terms:
                self._splitting = Splitting(problem, config, first)
            else:
                self._packing = Packing(problem, config, first)
        inner = self._padding.problem if self._padding else problem
        self._sizes = inner.m, inner.n, inner.k
        self._boxes = config.boxes(problem)
        batch, workspace = problem.planes, config.workspace_bytes(problem, sm_count)
        stream_ctas = config.stream_ctas_per_sm * sm_count
        copies = self._padding or self._packing or self._splitting
        counter_bytes = 4 * config.counters(problem, sm_count)
        sums_bytes = workspace - counter_bytes
        self._own = [sums_bytes // problem.dtype.size_bytes, counter_bytes // 4] if workspace else []
        """Elements of the workspace, and counters, of each product of a batch."""
        sizes = (*([batch * sums_bytes] if workspace else []), *([batch * copies.nbytes] if copies else []))

        def addresses(at: tuple[int, ...]) -> tuple[int, ...]:
            own = (at[0], at[-1]) if workspace else ()
            return own + (copies.addresses(at[len(sizes) - 1]) if copies else ())

        if sizes:
            self._scratch = Scratch(device, sizes, batch * counter_bytes, addresses)
        own = ("workspace", "counters") if workspace else ()
        self._names = (*own, *(copies.names if copies else ()))
        self._more: tuple[Value, ...] = (*own, stream_ctas) if stream_ctas else own
        launch = config.launch_config(problem, sm_count)
        working = config.working_ctas(problem, sm_count)
        scalars = "ff" if problem.dtype is DType.FLOAT else "dd"
        more = "QQ" * bool(workspace) + "I" * bool(stream_ctas) + "m" * len(self._boxes) + "Q" * bool(self._splitting)
        more += "m" * bool(Batching.of(problem)) + "Q" * bool(problem.ragged)
        self._main = device.load(binary, source.name).bound(
            launch.limited(device.info, working) if config.pdl else launch, "QiQiQiiii" + scalars + more
        )

    def laid(self, lda: int, ldb: int, ldc: int, strides: Strides | None = None) -> Run:
        if self._empty:
            return lambda *_: None
        layout = (lda, ldb, ldc), strides or self.dense
        return self._padded(*layout) if self._padding else Laid(self, *layout)

    def prepare_graphs(self, count: int) -> None:
        """Make memory ready for `count` graphs, so that capturing this kernel allocates nothing. Raises LaunchError."""
        if self._scratch:
            with self._lock.alone():
                self._scratch.set_aside(count)

    def release(self) -> None:
        """Free the working memory; graphs that hold the kernel must not run any more."""
        if self._scratch:
            with self._lock.alone():
                self._scratch.release()
        if self._unaligned:
            self._unaligned.release()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held: machine code and working memory."""
        unaligned = self._unaligned.nbytes if self._unaligned else 0
        scratch = self._scratch.nbytes if self._scratch else 0
        first = len(self.binary.preparation.image) if self.binary.preparation else 0
        return len(self.binary.image) + first + scratch + unaligned

    def unaligned(self, capturing: bool) -> "Kernel":
        """The instance for operands that are not aligned, compiled at its first use. Raises CaptureError."""
        if self._unaligned is None:
            if capturing:
                gaps = "have gaps or " if self.fit.dense else ""
                lie = f"{gaps}do not lie at multiples of {max(self._multiples)} bytes"
                text = f"operands of {self.problem} {lie}, and the kernel for such is not compiled yet"
                raise CaptureError(f"{text}: call it once with them before capturing")
            self._unaligned = prepare(self.device, self.problem, self.config, aligned=False)
        return self._unaligned

    def masks(self, lds: tuple[int, int, int], strides: Strides | None) -> tuple[int, ...]:
        """Bits that must be 0 in the addresses of A, B and C, so that the kernel's vectors are aligned."""
        multiples = self._multiples if self._sizes[2] else (1, 1, self._multiples[2])  # A and B are not read with k = 0
        if self.fit.dense:
            shapes = self.problem.stored_a, self.problem.stored_b, (self.problem.m, self.problem.n)
            packed = lds == tuple(cols for _, cols in shapes) and strides and strides.is_dense(self.problem)
            return tuple(multiple - 1 for multiple in multiples) if packed else (-1, -1, -1)
        steps = strides.steps if strides else (NO_STEPS,) * 3
        size = self.problem.dtype.size_bytes
        distances = zip(multiples, lds, steps)
        unaligned = any(each * size % multiple for multiple, ld, step in distances for each in (ld, *step))
        return (-1, -1, -1) if unaligned else tuple(multiple - 1 for multiple in multiples)

    def program(
        self, lds: tuple[int, int, int], strides: Strides | None, reads: bool, adds: bool = True
    ) -> Program:  # fmt: skip
        """The launches of a product with these leading dimensions and distances. `reads` says whether A and B are read,
        as alpha is not 0; `adds` says whether C is, as beta is not 0, which matters only where C is copied."""
        (m, n, k), batch = self._sizes, self.problem.batch
        distances = strides.steps if strides else (NO_STEPS,) * 3
        a, b, c = (Matrix(name, ld, steps) for name, ld, steps in zip("abc", lds, distances))
        steps, maps, no_maps = list[Step](), dict[str, Maps](), [_NO_MAP] * len(self._boxes)
        stored, dtype = [self.problem.stored_a, self.problem.stored_b], self.problem.dtype
        reads, matrices = reads and k > 0, (a, b, c)
        if self._padding:
            a, b, c = self._padding.copies(strides)
            steps += self._padding.before(matrices, strides, reads, adds)
        if self._packing and reads:
            stored = self._packing.shapes(*stored)
            step, (a, b) = self._packing.step(a, b, strides)
            steps.append(step)
        if self._splitting and reads:
            steps.append(self._splitting.step(a, b, strides))
        for matrix, shape, box in zip((a, b), stored, self._boxes if reads else ()):
            rows, cols = shape
            make = partial(self.device.tensor_map, rows=rows, cols=cols, ld=matrix.ld, dtype=dtype, box=box)
            maps[f"map of {matrix.name}"] = Maps(matrix.name, make)
        k = k if reads or not self._padding else 0  # copies that were not filled are not read
        values = [*a.values, *b.values, *c.values, m, n, k, "alpha", "beta", *self._more, *(maps or no_maps)]
        values += self._splitting.names if self._splitting else ()
        if strides:
            own = [*self._own, *([self._splitting.nbytes] if self._splitting else [])]
            values.append(strides.argument(batch, a.steps, b.steps, c.steps, *map(strides.following, own)))
        further = [OFFSETS] * bool(self.problem.ragged)
        values += further
        steps.append((self._main, values))
        if self._padding:
            steps.append(self._padding.after(c, matrices[2], strides))
        memory = self._scratch.at if self._scratch else None
        return Program.of(self._lock, memory, self._names, maps, steps, further)

    def _padded(self, lds: tuple[int, int, int], strides: Strides | None) -> Run:
        """The launch for operands that are copied to sizes that the tiles divide."""
        either = True, False
        programs = {(reads, adds): self.program(lds, strides, reads, adds) for reads in either for adds in either}

        def run(stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float) -> None:
            programs[alpha != 0, beta != 0](stream, capturing, a, b, c, alpha, beta)

        return run


class Laid:
    """A kernel for matrices with certain leading dimensions and distances: a Run."""

    __slots__ = ("_idle", "_kernel", "_layout", "_unaligned", "masks", "program")

    def __init__(self, kernel: Kernel, lds: tuple[int, int, int], strides: Strides | None) -> None:
        self._kernel, self._layout = kernel, (*lds, strides)
        self._unaligned: Run | None = None
        self.masks = kernel.masks(lds, strides)
        """Bits of the addresses of A, B and C that must be 0; else the unaligned instance serves."""
        self.program = kernel.program(lds, strides, True)
        """Launches for aligned operands and every alpha but 0."""
        self._idle = kernel.program(lds, strides, False)

    def __call__(
        self, stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float, *further: int
    ) -> None:
        mask_a, mask_b, mask_c = self.masks
        if a & mask_a or b & mask_b or c & mask_c:
            if self._unaligned is None:
                self._unaligned = self._kernel.unaligned(capturing).laid(*self._layout)
            self._unaligned(stream, capturing, a, b, c, alpha, beta, *further)
        else:
            (self.program if alpha != 0 else self._idle)(stream, capturing, a, b, c, alpha, beta, *further)


def prepare(device: Device, problem: Problem, config: Config, aligned: bool = True) -> Kernel:
    """Render, compile (or find in the cache) and load one variant: its instance for operands that are `aligned` as far
    as the problem's rows allow, or for any operands.

    Raises ConfigError, CompileError, DeviceError or LaunchError.
    """
    fit = fitted(problem, config, device.info, aligned)
    source = render(problem, config, device.info, fit)
    return Kernel(device, problem, fit, source, compile_cached(device.compiler, source))
