"""Tuned kernels as callables for arrays of NumPy, CuPy and torch, loaded by a look-up in a store."""

import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Never, SupportsFloat

from ...codegen.config import Config
from ...codegen.emit import Layout, emit
from ...codegen.emitted import Emitted
from ...codegen.errors import (
    ArgumentTypeError,
    CaptureError,
    DeviceError,
    DeviceMismatchError,
    ShapeError,
    TilewrightError,
    check,
)
from ...codegen.families import default_config
from ...codegen.problem import Problem
from ...codegen.render import render
from ..check.verify import Verifier
from ..device.protocol import Device, DeviceInfo, Launch
from ..locks import Lock
from ..store.lookup import LookupResult, Ranking
from ..store.record import Record
from ..store.store import Store
from ..store.versions import versions_of
from .arguments import called, check_graphs, laid_out, refuse, transpose_of
from .arrays import KINDS, A, Copy, Kind, View, kind_of
from .kernel import Kernel, prepare
from .plan import CallPlan, CallPlans, ReadyKernel, first_call
from .stack import Stack, stacked
from .vendor import OwnKernel, VendorFallback, VendorProduct, vendor_of


class Gemm:
    """A tuned kernel as a callable: C = alpha * op(A) * op(B) + beta * C for one shape. `tilewright.load` gives it."""

    def __init__(self, own: OwnKernel, fallback: VendorFallback | None, transposed: "Callable[[], Gemm]") -> None:
        """With a `fallback` the vendor's library serves, unless it is missing. `transposed` loads the kernel of the
        transposed problem, for an `out` that lies column by column."""
        product: Kernel | VendorProduct | None = None
        self.vendor = ""
        """Reason why the vendor's library serves, or why it cannot although it is faster; else empty."""
        if fallback is not None:
            try:
                product = VendorProduct(own, vendor_of(own.device))
                self.vendor = f"the vendor's library, by {fallback.why}"
            except DeviceError as error:
                self.vendor = f"not the vendor's library, which is faster by {fallback.why}: {error}"
                fallback = None
        if product is None:
            product = own.kernel
        looked_up, self._own = own.looked_up, own
        self._ready = ReadyKernel(product, looked_up.origin == "exact")
        self._transposed: Gemm | None = None
        self._load_transposed = transposed
        self._plans, self._lock = CallPlans(), Lock()
        self._plan_of = self._plans.find
        self.problem: Problem = own.problem
        """Shape, dtype and transposes it serves."""
        self.config: Config = looked_up.config
        """The variant; where the vendor's library serves, the one that stands by."""
        exact = looked_up.origin == "exact"
        self.origin = "vendor" if fallback else looked_up.origin
        """Origin of the config: `exact`, `predicted` or `default`; `vendor` where the vendor's library serves."""
        self.expected_us = looked_up.record.median_us if exact and looked_up.record else looked_up.expected_us
        """Expected microseconds of a product: measured for exactly this one, or predicted; else None."""
        self.regret = 1.0 if exact else looked_up.regret
        """Largest ratio of a product's time to the tuned kernel's, for nine of ten shapes; None where it is unknown."""
        if fallback:
            self.expected_us, self.regret = fallback.expected_us, fallback.regret
        self.device: DeviceInfo = own.device.info
        """The device that it runs on."""
        self.lookup = looked_up
        """Result of the look-up."""
        self.launch: Launch = product.launch
        """Puts one product of operands on the device on the current stream; nothing is checked."""

    @property
    def kernel(self) -> Kernel:
        """Our kernel, also where the vendor's library serves. Raises CompileError or LaunchError."""
        return self._own.kernel

    @property
    def source(self) -> str:
        """The CUDA text of our kernel."""
        return render(self.problem, self.config, self.device).code

    def prepare(self, graphs: int = 1) -> None:
        """Make memory ready for `graphs` CUDA graphs, so that capturing the kernel allocates nothing.

        Without this call, each graph allocates the kernel's working memory.

        Args:
            graphs: number of graphs, from 0 to 65,536.

        Raises:
            ArgumentTypeError: `graphs` is not such a number.
            LaunchError: there is too little memory.
        """
        check_graphs(graphs)
        with self._ready.kernel.device.entered():
            self._ready.kernel.prepare_graphs(graphs)

    def emit(self, name: str | None = None, main: bool = False) -> Emitted:
        """Our kernel as files for a C or C++ project; `.write(folder)` of the result writes them. A kernel of a batch
        comes with functions for batches.

        Args:
            name: name of the functions and files, `<name>.cu` and `<name>.h`; None for a name made of the product.
            main: whether to add `<name>_main.cu`, a program that tests and times the kernel.

        Raises:
            ConfigError: the name cannot be used in C, or the kernel was chosen for the processor.
        """
        layout = Layout(main=main, batched=self.problem.batch > 1)
        return emit(self.lookup.served(self.problem, self.device), name, layout)

    def __repr__(self) -> str:
        origin = "; ".join(filter(None, (self.lookup.summary, self.vendor)))
        return f"<tilewright kernel for {self.problem} on {self.device.name}: {self.config} ({origin})>"

    @called("the kernel of tilewright.load")
    def __call__(
        self, a: A, b: A, *more: Never, out: A | None = None, alpha: SupportsFloat = 1.0, beta: SupportsFloat = 0.0,
        copy: Copy = "never", **unknown: Never,
    ) -> A:  # fmt: skip
        """alpha * op(a) * op(b) + beta * out, or the products of a batch, of stacks of matrices.

        If the arrays lie on a GPU, the work is put on the current stream of their library, and the call returns at
        once. Arrays in the processor's memory are copied to the kernel's GPU, and the result is copied back.

        Args:
            a: array of the problem's dtype as stored, m x k, or k x m if the kernel was loaded with trans_a; of NumPy,
                CuPy or torch, or anything with `__cuda_array_interface__` or `__dlpack__`. Rows may be padded. For a
                batch, one or two dimensions come before these two; what is 1 or missing there is repeated.
            b: array of the same kind and dtype, k x n, or n x k with trans_b.
            out: m x n, written, row by row or column by column; with beta other than 0 it is C, and has to be given. An
                `out` by columns is written by the kernel of C^T = op(B)^T op(A)^T, which is loaded at its first use.
            alpha: factor of the product, a number or a 0-d array. With 0, a and b are not read. A 0-d array on a GPU is
                copied to the processor at each call, which waits for the GPU and cannot be captured.
            beta: factor of C, in the same way. With 0, what `out` held is not read.
            copy: `never`, or `if-needed`, which copies arrays with strides that no kernel takes.

        Returns:
            `out` if given, else a new array of a's kind, m x n, row by row.

        Raises:
            ArgumentTypeError: no arrays, another dtype, or tensors that autograd tracks or that have no memory, as
                within torch.func, for which there is `tilewright.matmul`.
            ShapeError: other shapes than the kernel's, or beta without `out`.
            LayoutError: strides that no kernel takes, or `out` read-only or overlapping an operand.
            DeviceMismatchError: arrays on another GPU than the kernel.
            CaptureError: a kernel would have to be compiled while a graph is captured.
            LaunchError: the launch failed.
        """
        if more or unknown:
            refuse(Gemm.__call__, more, unknown)
        kind = KINDS.get(type(a)) or kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        plan = self._plan_of(key)
        first = None if kind is None or key is None else kind.tracked
        tracks = first if plan is None else plan.tracks
        if tracks is not None and tracks(a, b, out):
            text = "autograd tracks a, b or out, or this is traced"
            raise ArgumentTypeError(f"{text}: use tilewright.matmul, or torch.no_grad()")
        result: A
        if plan is not None and copy == "never":
            result = plan(a, b, out, alpha, beta)
        else:
            result = first_call(a, b, out, alpha, beta, copy, plan, self._plan)
        return result

    def _plan(self, kind: Kind, key: Hashable, a: View, b: View, out: View | None, like: Any) -> CallPlan:
        plan = self._plan_of(key)
        if plan is not None:  # there is one for the copies, or for arrays of another kind
            return plan
        problem = self.problem
        stack, a, b = self._stack(a, b, out)
        _, _, lds, swapped = laid_out(problem, a, b, stack.out, stack.dims)
        if a.place not in ("host", self.device.selector):
            raise DeviceMismatchError(f"a, b and out are on {a.place}, the kernel on {self.device.selector}")
        ready = self._ready_transposed(kind) if swapped else self._ready
        plan = CallPlan(ready, kind, a.place, lds, stack, self._inside, swapped=swapped)
        if key is not None:
            with self._lock.alone():
                self._plans.keep(key, ready, plan)
        return plan

    def _stack(self, a: View, b: View, out: View | None) -> tuple[Stack, View, View]:
        """The product of the caller's arrays, and the first matrices of A and B as stored. Raises ShapeError."""
        problem, before = self.problem, {*a.shape[:-2], *b.shape[:-2]}
        if problem.batch == 1 and before != {1}:  # not a stack of one matrix
            return Stack(a, b, out, (problem.m, problem.n)), a, b
        matrices = ("a", a, problem.m, problem.stored_a), ("b", b, problem.n, problem.stored_b)
        for name, view, extent, (rows, cols) in matrices:
            is_vector = extent == 1 and view.shape == (problem.k,)
            text = f"{name} must have matrices of {rows}x{cols}, got shape {view.shape}"
            check(is_vector or view.shape[-2:] == (rows, cols), text, ShapeError)
        trans = problem.trans_a, problem.trans_b
        op_a, op_b = (transpose_of(x) if t else x for x, t in zip((a, b), trans))
        stack = stacked(op_a, op_b, out, folds=False)
        text = f"a, b and out must be stacks of {problem.batch} matrices along two dimensions at most"
        good = stack.batch == problem.batch and len(stack.dims) <= 2
        check(good, f"{text}, got shapes {a.shape} and {b.shape}", ShapeError)
        first_a, first_b = (transpose_of(x) if t else x for x, t in zip((stack.a, stack.b), trans))
        return stack, first_a, first_b

    def _inside(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        return self(a, b, out=c, alpha=alpha, beta=beta)

    def _ready_transposed(self, kind: Kind) -> ReadyKernel:
        """The kernel of the transposed problem, loaded at its first use."""
        with self._lock.alone():
            if self._transposed is None:
                remedy = "call the kernel once with such an `out` before"
                refuse_capture(self._ready.kernel.device, kind, self.problem.transposed, remedy)
                self._transposed = self._load_transposed()
            return self._transposed._ready


def refuse_capture(device: Device, kind: Kind, problem: Problem, remedy: str) -> None:
    """Raise CaptureError, as a kernel has to be compiled, where the current stream of an array library is captured."""
    if device.info.arch.is_host:
        return
    with device.entered():
        capturing = device.capturing(kind.stream(int(device.info.selector.partition(":")[2])))
    text = f"{problem} is not ready, and nothing is compiled while a graph is captured"
    check(not capturing, f"{text}: {remedy}", CaptureError)


MeasureShape = Callable[[Device, Problem, Store, LookupResult], LookupResult]
"""Measures a shape without a record, and returns the fastest kernel."""


def load_on(
    device: Device, problem: Problem, store: Store, ranking: Ranking, measure: MeasureShape | None = None,
    faster: Callable[[OwnKernel], VendorFallback | None] | None = None,
    loaded: Callable[[Kernel | VendorProduct], None] = lambda product: None,
) -> Gemm:  # fmt: skip
    """The kernel of `Library.load` on an open device; without `faster` it is one of ours. `loaded` is called with each
    product that is loaded. Raises as `Library.load` does."""
    looked_up = store.lookup(device.info, problem, ranking)
    tuned = looked_up.origin == "exact" or looked_up.of_class or problem.ragged
    if measure is not None and not tuned and min(problem.m, problem.n, problem.k) > 0:
        looked_up = measure(device, problem, store, looked_up)
    own = OwnKernel(device, problem, looked_up, partial(_checked, device, store))
    transposed = partial(load_on, device, problem.transposed, store, ranking, measure, faster, loaded)
    gemm = Gemm(own, faster and faster(own), transposed)
    loaded(gemm._ready.kernel)
    return gemm


def _current(device: Device, record: Record) -> bool:
    """Whether a record is of today's versions. Another version of the generator will do if it renders the same text."""
    today, then = (dict(versions) for versions in (versions_of(device.info, device.compiler), record.versions))
    if today == then:
        return True
    if not record.digest or {**then, "generator": today["generator"]} != today:
        return False
    try:
        return render(record.problem, record.config, device.info).digest == record.digest
    except TilewrightError:
        return False


def _checked(device: Device, store: Store, looked_up: LookupResult) -> LookupResult:
    """A look-up whose record, if it has one, works with today's versions.

    A record of other versions is verified again and marked with today's; where it fails, the default config takes its
    place, with a warning.
    """
    record = looked_up.record
    if record is None or _current(device, record):
        return looked_up
    try:
        with device.entered():  # another GPU may be the current one
            kernel = prepare(device, record.problem, record.config)
            reason = Verifier(device, record.problem).check(kernel.launch).reason
    except TilewrightError as error:
        reason = str(error)
    if reason:
        text = f"the tuned kernel for {record.problem} no longer works here ({reason}); using the default"
        warnings.warn(text, stacklevel=6)
        return LookupResult(default_config(record.problem, device.info), "default")
    fresh = replace(record, versions=versions_of(device.info, device.compiler), digest=kernel.source.digest)
    try:
        if store.best(record.device, record.problem) == record:  # nobody tuned it meanwhile
            store.keep(fresh, replace=True)
    except TilewrightError as error:
        warnings.warn(f"checked again, but not noted: {error}", stacklevel=6)
        return looked_up
    return replace(looked_up, record=fresh)
