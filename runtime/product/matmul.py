"""Matrix products of NumPy, CuPy and torch arrays by tuned kernels."""

import threading
import warnings
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...codegen.config import Config
from ...codegen.emit import Layout, emit
from ...codegen.emitted import Emitted
from ...codegen.errors import (
    ArgumentTypeError,
    CaptureError,
    DeviceMismatchError,
    TilewrightError,
    check,
    check_path,
    check_type,
)
from ...codegen.families import default_config
from ...codegen.problem import DType, Problem
from .. import settings
from ..check.verify import Launch, Verifier
from ..device.detect import choose, open_device
from ..device.protocol import Device, DeviceInfo
from ..store.store import Found, Ranking, Store
from ..store.versions import versions_of
from .arguments import asked, lds_of, turned
from .arrays import KINDS, Kind, View, kind_of
from .kernel import Kernel, prepare
from .plan import Kept, Plan, Plans, first_call

_SECONDS = 2.0
"""Spent on measuring a shape at its first use."""
_MAX_KERNELS = 256
"""Kernels that `matmul` keeps ready; each holds a library or module open, so past this the least used goes."""


class Gemm:
    """A tuned kernel as a callable: C = alpha * op(A) * op(B) + beta * C for one shape. See `Library.load`."""

    def __init__(self, kernel: Kernel, found: Found) -> None:
        self._kept = Kept(kernel)
        self._plans, self._lock = Plans(), threading.Lock()
        self._found = self._plans.find
        self.problem: Problem = kernel.problem
        """Shape, dtype and transposes it serves."""
        self.config: Config = kernel.config
        """The variant."""
        self.origin = found.origin
        """Where the config comes from: `exact`, `nearest MxNxK`, `estimated, from MxNxK` or `default`."""
        self.source = kernel.source.code
        """Its CUDA text."""
        self.device: DeviceInfo = kernel.device.info
        """Where it runs."""
        self._served = found.served
        self.launch: Launch = kernel.launch
        """Puts one product of operands that lie on the device on the current stream; nothing is checked."""

    def emit(self, name: str = "gemm", main: bool = False) -> Emitted:
        """The kernel as a .cu and .h pair, with a self-test program if `main`; `.write(folder)` writes them.

        Raises ConfigError for a name that is no identifier, and where the kernel was chosen for the processor.
        """
        return emit(self._served(self.problem, self.device), name, Layout(main=main))

    def __repr__(self) -> str:
        return f"<tilewright kernel for {self.problem} on {self.device.name}: {self.config} ({self.origin})>"

    def __call__(
        self, a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0, copy: str = "never"
    ) -> Any:
        """alpha * op(a) * op(b) + beta * out, in `out` if given, else in a new array of a's kind.

        a and b are arrays of the problem's dtype, of the stored shapes: a is m x k, or k x m if the kernel was loaded
        with trans_a; b is k x n, or n x k with trans_b. They are NumPy's, CuPy's or torch's, or anything with
        `__cuda_array_interface__` or `__dlpack__`. Rows may be padded: any positive leading dimension is used as it
        is. Where arrays lie on a GPU the work is put on the current stream of their library, and the call returns at
        once; from the processor's memory they are copied to the kernel's GPU and the result out. copy="if-needed"
        copies arrays with strides that no kernel takes. What autograd tracks is refused: use `tilewright.matmul`.

        Raises ArgumentTypeError (a TypeError), ShapeError (also where beta is not 0 and there is no out),
        LayoutError (also where out is read-only or overlaps an operand) and DeviceMismatchError, which are
        ValueErrors, LaunchError, and CaptureError where a graph being captured would need memory or a kernel.
        """
        kind = KINDS.get(type(a)) or kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        plan = self._found(key)
        if plan is None:
            return first_call(a, b, out, alpha, beta, copy, self._plan, _cupy)
        if plan.tracks is not None and plan.tracks(a, b, out):
            raise ArgumentTypeError("autograd tracks a, b or out: use tilewright.matmul, or torch.no_grad()")
        return plan(a, b, out, alpha, beta)

    def _plan(self, kind: Kind, key: Hashable, a: View, b: View, out: View | None) -> Plan:
        device = self._kept.kernel.device
        lds = lds_of(self.problem, a, b, out)
        if a.place not in ("host", device.info.selector):
            raise DeviceMismatchError(f"a, b and out are on {a.place}, the kernel on {device.info.selector}")
        plan = Plan(self._kept, kind, a.place, lds)
        if key is not None:
            with self._lock:
                self._plans.keep(key, self._kept, plan)
        return plan


Measure = Callable[[Device, Problem, Store, Found, float], Found]
"""What makes sure of a look-up that found no record of just this shape, by measuring for so many seconds."""
Sure = Callable[[Device, Problem, Store, Found], Found]
"""The same for a number of seconds that was chosen."""


def load_on(device: Device, problem: Problem, store: Store, ranking: Ranking, measure: Sure | None = None) -> Gemm:
    """The kernel that `Library.load` gives, on a device that is open. Raises as that does."""
    found = store.lookup(device.info, problem, ranking)
    if measure is not None and found.origin != "exact" and min(problem.m, problem.n, problem.k) > 0:
        found = measure(device, problem, store, found)
    if found.record is not None and found.record.versions != versions_of(device.info, device.compiler):
        found = _rechecked(device, found, store)
    return Gemm(prepare(device, problem, found.config), found)


def _rechecked(device: Device, found: Found, store: Store) -> Found:
    """The record if it still verifies, marked with today's versions; else the default config, with a warning."""
    record = found.record
    assert record is not None
    try:
        with device.entered():  # another GPU may be the current one
            verdict = Verifier(device, record.problem).check(prepare(device, record.problem, record.config).launch)
        reason = verdict.reason
    except TilewrightError as error:
        reason = str(error)
    if reason:
        text = f"the tuned kernel for {record.problem} no longer works here ({reason}); using the default"
        warnings.warn(text, stacklevel=4)
        return Found(default_config(record.problem, device.info.arch), "default")
    fresh = replace(record, versions=versions_of(device.info, device.compiler))
    try:
        store.keep(fresh, replace=True)
    except TilewrightError as error:
        warnings.warn(f"checked again, but not noted: {error}", stacklevel=4)
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """What the library holds on the devices."""

    kernels: int
    """Kernels that are loaded, those of `load` that are in use among them."""
    bytes: int
    """Their machine code and the memory that their launches work in."""


class Library:
    """`load` and `matmul`, with what decides for shapes that were not tuned. Keeps the kernels of `matmul` ready."""

    def __init__(self, ranking: Ranking, measure: Measure, differentiable: Callable[[Any, Any, float], Any]) -> None:
        """`differentiable` multiplies tensors that torch's autograd tracks."""
        self._ranking, self._measure, self._differentiable = ranking, measure, differentiable
        self._kernels: dict[tuple[Problem, str], Kept] = {}
        self._plans = Plans()
        self._loaded: weakref.WeakSet[Kernel] = weakref.WeakSet()
        self._lock = threading.Lock()

    def load(
        self,
        m: int,
        n: int,
        k: int,
        *,
        dtype: object = "float",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str = "auto",
        store: Path | str | None = None,
        first_use: str | None = None,
        seconds: float = _SECONDS,
    ) -> Gemm:
        """The kernel that the store holds for a shape: exactly tuned, else tuned for the nearest shape, else estimated
        from what was tuned for other devices and transposes, else the default.

        With first_use="measure" a shape that was not tuned is measured: some likely kernels are compiled, verified and
        timed for about so many `seconds`, and the fastest is kept in the store; the caller waits. The default is
        "predict", or what TILEWRIGHT_FIRST_USE says.

        m, n, k are rows of C, columns of C and inner dimension; dtype is float or double, or a type of that name of
        NumPy, CuPy or torch. `.origin` says which it was. A record made by another version of generator, driver or
        compiler is checked against the reference first. A graph in which the kernel was captured needs it: keep it.
        Raises ArgumentTypeError, ShapeError, ConfigError, DeviceError, CompileError, StoreError, LaunchError, and
        CaptureError where it would have to measure while a graph is captured.
        """
        problem = Problem(m, n, k, DType.parse(dtype), trans_a, trans_b)
        opened, measure = _open(device), self._first_use(first_use, seconds)
        gemm = load_on(opened, problem, Store(check_path("store", store)), self._ranking, measure)
        with self._lock:
            self._loaded.add(gemm._kept.kernel)
        return gemm

    def matmul(
        self, a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0, device: str | None = None,
        copy: str = "never",
    ) -> Any:  # fmt: skip
        """alpha * a @ b + beta * out by the tuned kernel for these shapes.

        a is m x k and b k x n, both float32 or both float64, both NumPy's, CuPy's or torch's, or anything with
        `__cuda_array_interface__` or `__dlpack__`; views with padded rows and transposed views are used where they
        lie. The result is m x n, in `out` if given, else a new array of a's kind. Arrays on a GPU are worked on there,
        on the current stream of their library. device is auto, cuda, cuda:N or host for those in the processor's
        memory. The kernel of a shape is looked up and compiled once. copy="if-needed" copies arrays with strides that
        no kernel takes (reversed, stepped, broadcast). torch's autograd sees a product of tensors that it tracks.

        Raises as `Gemm` and `load` do.
        """
        kind = KINDS.get(type(a)) or kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        plan = self._plans.find((device, key))
        if plan is None:
            return self.product(a, b, out, alpha, beta, device, copy, track=True)
        if plan.tracks is not None and plan.tracks(a, b, out):
            return self._tracked(a, b, out, alpha, beta)
        return plan(a, b, out, alpha, beta)

    def product(
        self, a: Any, b: Any, out: Any, alpha: float, beta: float, device: str | None, copy: str, track: bool = False
    ) -> Any:
        """What `matmul` does; without `track` autograd does not see it."""
        kind = kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        if track and kind is not None and key is not None and kind.tracked(a, b, out):
            return self._tracked(a, b, out, alpha, beta)
        plan = None if key is None else self._plans.find((device, key))
        if plan is not None:
            return plan(a, b, out, alpha, beta)

        def planned(kind: Kind, key: Hashable, a: View, b: View, out: View | None) -> Plan:
            problem = asked(a, b)
            stored_a = turned(a) if problem.trans_a else a
            stored_b = turned(b) if problem.trans_b else b
            lds = lds_of(problem, stored_a, stored_b, out)
            selector = _selector(a.place, device)
            kept = self._kept(problem, selector, kind)
            plan = Plan(kept, kind, a.place, lds, (problem.trans_a, problem.trans_b))
            with self._lock:
                if key is not None and self._kernels.get((problem, selector)) is kept:  # not gone by now
                    self._plans.keep((device, key), kept, plan)
            return plan

        return first_call(a, b, out, alpha, beta, copy, planned, _cupy, transposes=True)

    def prepare(
        self,
        *shapes: str | tuple[int, int, int] | Problem,
        dtype: object = "float",
        trans: str = "nn",
        device: str = "auto",
        graphs: int = 1,
        measure: bool = False,
        seconds: float = _SECONDS,
    ) -> None:
        """Make all ready for `matmul` of these shapes, so that a CUDA graph may be captured. With `measure` those that
        were not tuned are measured, as `load` does, for about so many `seconds` each.

        A shape is `"1024x768x512"`, (m, n, k) or a Problem, which has a dtype and transposes of its own; `trans` is nn,
        nt, tn or tt. While a graph is captured nothing is compiled or allocated. `graphs` of them can then be captured
        with each shape: kernels that need memory to work in get some of their own in each graph, held until `clear`.
        Raises as `load` does.
        """
        check(
            isinstance(graphs, int) and graphs >= 0, f"graphs must be a whole number, got {graphs!r}", ArgumentTypeError
        )
        opened = _open(device)
        for shape in shapes:
            if isinstance(shape, str):
                problem = Problem.parse(shape, dtype, trans)
            elif isinstance(shape, Problem):
                problem = shape
            else:
                check(
                    isinstance(shape, tuple) and len(shape) == 3,
                    f"a shape must be 'MxNxK', (m, n, k) or a Problem, got {shape!r}", ArgumentTypeError,
                )  # fmt: skip
                one = Problem.parse("1", dtype, trans)
                problem = replace(one, m=shape[0], n=shape[1], k=shape[2])
            first_use = self._first_use("measure" if measure else None, seconds)
            with opened.entered():
                self._kept(problem, opened.info.selector, None, first_use).kernel.prepare_graphs(graphs)

    def _tracked(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        """A product that torch's autograd knows of."""
        text = "autograd tracks a, b or out: leave out and beta away, or use torch.no_grad()"
        check(out is None and beta == 0, text, ArgumentTypeError)
        return self._differentiable(a, b, alpha)

    def memory(self) -> Memory:
        """What the kernels of `matmul`, `prepare` and `load` hold on their devices."""
        with self._lock:
            kernels = list(self._loaded)
        return Memory(len(kernels), sum(kernel.nbytes for kernel in kernels))

    def clear(self) -> None:
        """Let the kernels of `matmul` go, and free the memory that those of `load` work in.

        Graphs in which they were captured must not be launched any more.
        """
        with self._lock:
            self._kernels.clear()
            self._plans = Plans()
            loaded = list(self._loaded)
        for kernel in loaded:
            kernel.release()

    def _first_use(self, asked: str | None, seconds: float) -> Sure | None:
        """What measures a shape that was not tuned, None where that is not asked for."""
        chosen = settings.first_use() if asked is None else asked
        known = " or ".join(map(repr, settings.FIRST_USES))
        check(chosen in settings.FIRST_USES, f"first_use must be {known}, got {chosen!r}")
        check_type("seconds", seconds, (int, float), "a number")

        def measure(device: Device, problem: Problem, store: Store, found: Found) -> Found:
            return self._measure(device, problem, store, found, seconds)

        return measure if chosen == "measure" else None

    def _kept(self, problem: Problem, selector: str, kind: Kind | None, measure: Sure | None = None) -> Kept:
        found = self._kernels.get((problem, selector))
        if found is None:
            with self._lock:
                found = self._kernels.get((problem, selector))
                if found is None:
                    found = self._kernels[problem, selector] = self._new(problem, selector, kind, measure)
        return found

    def _new(self, problem: Problem, selector: str, kind: Kind | None, measure: Sure | None) -> Kept:
        device = _open(selector)
        if kind is not None and not device.info.arch.is_host:
            with device.entered():
                capturing = device.capturing(kind.stream(int(device.info.selector.partition(":")[2])))
            text = f"{problem} is not ready, and nothing is compiled while a graph is captured"
            check(not capturing, f"{text}: call tilewright.prepare('{problem.shape}', ...) before", CaptureError)
        measure = measure or self._first_use(None, _SECONDS)
        kept = load_on(device, problem, Store(), self._ranking, measure)._kept
        self._loaded.add(kept.kernel)
        free = [key for key, each in self._kernels.items() if not each.captured]
        if len(self._kernels) >= _MAX_KERNELS and free:
            self._plans.drop(self._kernels.pop(min(free, key=lambda key: self._kernels[key].used)))
        return kept


@cache
def _open(selector: str) -> Device:
    choice = choose(selector)
    if choice.notice:
        warnings.warn(choice.notice, stacklevel=4)
    return open_device(choice.info) if choice.info.selector == selector else _open(choice.info.selector)


def _cupy() -> Any:
    return _open("cuda").xp


def _selector(place: str, device: str | None) -> str:
    if place == "host":
        return "auto" if device is None else device
    if device not in (None, "auto", place) and not (device == "cuda" and place == "cuda:0"):
        raise DeviceMismatchError(f"the arrays are on {place}, device is {device!r}")
    return place
