"""One tuned kernel as a callable for arrays of NumPy, CuPy and torch, and how a store gives it."""

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
    TilewrightError,
    check,
)
from ...codegen.families import default_config
from ...codegen.problem import Problem
from ...codegen.render import render
from ..check.verify import Verifier
from ..device.protocol import Device, DeviceInfo, Launch
from ..locks import Lock
from ..store.found import Found, Ranking
from ..store.record import Record
from ..store.store import Store
from ..store.versions import versions_of
from .arguments import called, check_graphs, laid_out, refuse
from .arrays import KINDS, A, Copy, Kind, View, kind_of
from .kernel import Kernel, prepare
from .plan import Kept, Plan, Plans, first_call
from .vendor import Handover, OwnKernel, VendorProduct, vendor_of


class Gemm:
    """A tuned kernel as a callable: C = alpha * op(A) * op(B) + beta * C for one shape. `tilewright.load` gives it."""

    def __init__(self, own: OwnKernel, handover: Handover | None, transposed: "Callable[[], Gemm]") -> None:
        """`handover` says that the vendor's library is faster; where it is missing our kernel serves all the same.
        `transposed` loads the kernel of the transposed problem, for an `out` that lies column by column."""
        product: Kernel | VendorProduct | None = None
        self.vendor = ""
        """What there is to say of the vendor's library: why it serves, or cannot where it should; else empty."""
        if handover is not None:
            try:
                product = VendorProduct(own, vendor_of(own.device))
                self.vendor = f"the vendor's library, by {handover.why}"
            except DeviceError as error:
                self.vendor = f"not the vendor's library, which is faster by {handover.why}: {error}"
                handover = None
        if product is None:
            product = own.kernel
        found, self._own = own.found, own
        self._kept = Kept(product, found.origin == "exact")
        self._transposed: Gemm | None = None
        self._load_transposed = transposed
        self._plans, self._lock = Plans(), Lock()
        self._plan_of = self._plans.find
        self.problem: Problem = own.problem
        """Shape, dtype and transposes it serves."""
        self.config: Config = found.config
        """The variant; where the vendor's library serves, the one that stands by."""
        self.origin = "vendor" if handover else found.origin
        """Whence the config: `exact`, `predicted` or `default`; `vendor` where the vendor's library serves."""
        self.expected_us = found.record.median_us if found.origin == "exact" and found.record else found.expected_us
        """Microseconds that a product is expected to take: measured for exactly this one, or predicted; else None."""
        self.regret = 1.0 if found.origin == "exact" else found.regret
        """How many times the tuned kernel's time it takes at most, for nine of ten shapes; None where nobody knows."""
        if handover:
            self.expected_us, self.regret = handover.expected_us, handover.regret
        self.device: DeviceInfo = own.device.info
        """Where it runs."""
        self.found = found
        """What the look-up gave."""
        self.launch: Launch = product.launch
        """Puts one product of operands that lie on the device on the current stream; nothing is checked."""

    @property
    def kernel(self) -> Kernel:
        """Our kernel, which stands by where the vendor's library serves. Raises CompileError or LaunchError."""
        return self._own.kernel

    @property
    def source(self) -> str:
        """The CUDA text of our kernel."""
        return render(self.problem, self.config, self.device).code

    def prepare(self, graphs: int = 1) -> None:
        """Have memory ready for so many CUDA graphs, so that capturing the kernel allocates nothing.

        Without it, each graph allocates what the kernel works in.

        Args:
            graphs: number of graphs, from 0 to 65,536.

        Raises:
            ArgumentTypeError: `graphs` is not such a number.
            LaunchError: there is too little memory.
        """
        check_graphs(graphs)
        with self._kept.kernel.device.entered():
            self._kept.kernel.prepare_graphs(graphs)

    def emit(self, name: str | None = None, main: bool = False) -> Emitted:
        """The kernel as files for a C or C++ project; `.write(folder)` of the result writes them. It is always one of
        ours.

        Args:
            name: of the functions and files, `<name>.cu` and `<name>.h`; None for one that tells the product.
            main: whether to add `<name>_main.cu`, a program that tests and times the kernel.

        Raises:
            ConfigError: the name cannot be used in C, or the kernel was chosen for the processor.
        """
        return emit(self.found.served(self.problem, self.device), name, Layout(main=main))

    def __repr__(self) -> str:
        told = "; ".join(filter(None, (self.found.told, self.vendor)))
        return f"<tilewright kernel for {self.problem} on {self.device.name}: {self.config} ({told})>"

    @called("the kernel of tilewright.load")
    def __call__(
        self, a: A, b: A, *more: Never, out: A | None = None, alpha: SupportsFloat = 1.0, beta: SupportsFloat = 0.0,
        copy: Copy = "never", **unknown: Never,
    ) -> A:  # fmt: skip
        """alpha * op(a) * op(b) + beta * out.

        Where arrays lie on a GPU the work is put on the current stream of their library, and the call returns at once;
        from the processor's memory they are copied to the kernel's GPU and the result out.

        Args:
            a: array of the problem's dtype as stored, m x k, or k x m if the kernel was loaded with trans_a; of NumPy,
                CuPy or torch, or anything with `__cuda_array_interface__` or `__dlpack__`. Rows may be padded.
            b: the same, k x n, or n x k with trans_b.
            out: m x n, written, row by row or column by column; with beta other than 0 it is C, and has to be given. In
                one by columns the kernel of C^T = op(B)^T op(A)^T writes, which is loaded when it is first needed.
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

    def _plan(self, kind: Kind, key: Hashable, a: View, b: View, out: View | None, like: Any) -> Plan:
        plan = self._plan_of(key)
        if plan is not None:  # of copies, or of arrays of another kind
            return plan
        _, _, lds, swapped = laid_out(self.problem, a, b, out)
        if a.place not in ("host", self.device.selector):
            raise DeviceMismatchError(f"a, b and out are on {a.place}, the kernel on {self.device.selector}")
        kept = self._kept_transposed(kind) if swapped else self._kept
        plan = Plan(kept, kind, a.place, lds, swapped=swapped)
        if key is not None:
            with self._lock.alone():
                self._plans.keep(key, kept, plan)
        return plan

    def _kept_transposed(self, kind: Kind) -> Kept:
        """The kernel of the transposed problem, loaded at its first use."""
        with self._lock.alone():
            if self._transposed is None:
                remedy = "call the kernel once with such an `out` before"
                refuse_capture(self._kept.kernel.device, kind, self.problem.transposed, remedy)
                self._transposed = self._load_transposed()
            return self._transposed._kept


def refuse_capture(device: Device, kind: Kind, problem: Problem, remedy: str) -> None:
    """Raise CaptureError, as a kernel has to be compiled, where the current stream of an array library is captured."""
    if device.info.arch.is_host:
        return
    with device.entered():
        capturing = device.capturing(kind.stream(int(device.info.selector.partition(":")[2])))
    text = f"{problem} is not ready, and nothing is compiled while a graph is captured"
    check(not capturing, f"{text}: {remedy}", CaptureError)


Sure = Callable[[Device, Problem, Store, Found], Found]
"""Measures a shape without a record, and returns the fastest kernel."""


def load_on(
    device: Device, problem: Problem, store: Store, ranking: Ranking, measure: Sure | None = None,
    faster: Callable[[OwnKernel], Handover | None] | None = None,
    loaded: Callable[[Kernel | VendorProduct], None] = lambda product: None,
) -> Gemm:  # fmt: skip
    """The kernel that `Library.load` gives, on a device that is open; without `faster` one of ours. `loaded` is called
    with each product that is loaded. Raises as `Library.load` does."""
    found = store.lookup(device.info, problem, ranking)
    if measure is not None and found.origin != "exact" and min(problem.m, problem.n, problem.k) > 0:
        found = measure(device, problem, store, found)
    own = OwnKernel(device, problem, found, partial(_checked, device, store))
    transposed = partial(load_on, device, problem.transposed, store, ranking, measure, faster, loaded)
    gemm = Gemm(own, faster and faster(own), transposed)
    loaded(gemm._kept.kernel)
    return gemm


def _current(device: Device, record: Record) -> bool:
    """Whether the record was made by today's versions: of the generator it is enough that it writes the same text."""
    today, then = (dict(versions) for versions in (versions_of(device.info, device.compiler), record.versions))
    if today == then:
        return True
    if not record.digest or {**then, "generator": today["generator"]} != today:
        return False
    try:
        return render(record.problem, record.config, device.info).digest == record.digest
    except TilewrightError:
        return False


def _checked(device: Device, store: Store, found: Found) -> Found:
    """A look-up whose record, if it has one, works with today's versions.

    A record of other versions is verified again and marked with today's; where it fails, the default config takes its
    place, with a warning.
    """
    record = found.record
    if record is None or _current(device, record):
        return found
    try:
        with device.entered():  # another GPU may be the current one
            kernel = prepare(device, record.problem, record.config)
            reason = Verifier(device, record.problem).check(kernel.launch).reason
    except TilewrightError as error:
        reason = str(error)
    if reason:
        text = f"the tuned kernel for {record.problem} no longer works here ({reason}); using the default"
        warnings.warn(text, stacklevel=6)
        return Found(default_config(record.problem, device.info), "default")
    fresh = replace(record, versions=versions_of(device.info, device.compiler), digest=kernel.source.digest)
    try:
        if store.best(record.device, record.problem) == record:  # nobody tuned it meanwhile
            store.keep(fresh, replace=True)
    except TilewrightError as error:
        warnings.warn(f"checked again, but not noted: {error}", stacklevel=6)
        return found
    return replace(found, record=fresh)
