"""Matrix products of NumPy and CuPy arrays by tuned kernels."""

import threading
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...codegen.config import Config
from ...codegen.emit import Emitted, emit
from ...codegen.errors import DeviceMismatchError, TilewrightError
from ...codegen.families import default_config
from ...codegen.problem import DType, Problem
from ..check.verify import Launch, Verifier
from ..device.detect import choose, compiler_for, open_device
from ..device.protocol import Device, DeviceInfo
from ..store.store import Found, Ranking, Store
from ..store.versions import versions_of
from .arguments import Call, asked, checked, operand_of
from .kernel import Kernel, prepare

_MAX_KERNELS = 256
"""Kernels that `matmul` keeps ready; each holds a library or module open, so past this the oldest goes."""


class Gemm:
    """A tuned kernel as a callable: C = alpha * op(A) * op(B) + beta * C for one shape. See `Library.load`."""

    def __init__(self, kernel: Kernel, origin: str) -> None:
        self._kernel = kernel
        self.problem: Problem = kernel.problem
        """Shape, dtype and transposes it serves."""
        self.config: Config = kernel.config
        """The variant."""
        self.origin = origin
        """Where the config comes from: `exact`, `nearest MxNxK`, `estimated, from MxNxK` or `default`."""
        self.source = kernel.source.code
        """Its CUDA text."""
        self.device: DeviceInfo = kernel.device.info
        """Where it runs."""
        self.launch: Launch = kernel.launch
        """Puts one product of operands that lie on the device on the current stream; nothing is checked."""

    def emit(self, name: str = "gemm", main: bool = False) -> Emitted:
        """The kernel as a .cu and .h pair, with a self-test program if `main`; `.write(folder)` writes them.

        Raises ConfigError for a name that is no identifier.
        """
        return emit(self.problem, self.config, self.device.arch, name, main)

    def __repr__(self) -> str:
        return f"<tilewright kernel for {self.problem} on {self.device.name}: {self.config} ({self.origin})>"

    def __call__(self, a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """alpha * op(a) * op(b) + beta * out, in `out` if given, else in a new array of a's kind.

        a and b are NumPy or CuPy arrays of the problem's dtype, of the stored shapes: a is m x k, or k x m if
        the kernel was loaded with trans_a; b is k x n, or n x k with trans_b. Rows may be padded: any positive
        leading dimension is used as it is. CuPy arrays: the work is put on CuPy's current stream and the call
        returns at once. NumPy arrays on a GPU are copied in and the result out.

        Raises ArgumentTypeError (a TypeError), ShapeError (also where beta is not 0 and there is no out),
        LayoutError (also where out is read-only or overlaps an operand) and DeviceMismatchError, which are
        ValueErrors, and LaunchError.
        """
        return _run(self._kernel, checked(self.problem, a, b, out, alpha, beta))


def load_on(device: Device, problem: Problem, store: Store, ranking: Ranking) -> Gemm:
    """The kernel that `Library.load` gives, on a device that is open. Raises as that does."""
    found = store.lookup(device.info, problem, ranking)
    if found.record is not None and found.record.versions != versions_of(device.info, compiler_for(device.info)):
        found = _rechecked(device, found, store)
    return Gemm(prepare(device, problem, found.config), found.origin)


def _rechecked(device: Device, found: Found, store: Store) -> Found:
    """The record if it still verifies, marked with today's versions; else the default config, with a warning."""
    record = found.record
    assert record is not None
    try:
        with device.entered():  # another GPU may be the current one
            verdict = Verifier(device, record.problem).check(prepare(device, record.problem, record.config))
        reason = verdict.reason
    except TilewrightError as error:
        reason = str(error)
    if reason:
        text = f"the tuned kernel for {record.problem} no longer works here ({reason}); using the default"
        warnings.warn(text, stacklevel=4)
        return Found(default_config(record.problem, device.info.arch), "default")
    fresh = replace(record, versions=versions_of(device.info, compiler_for(device.info)))
    try:
        store.keep(fresh, replace=True)
    except TilewrightError as error:
        warnings.warn(f"checked again, but not noted: {error}", stacklevel=4)
    return found


class Library:
    """`load` and `matmul`, with what decides for shapes that were not tuned. Keeps the kernels of `matmul` ready."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._kernels: dict[tuple[Problem, str], Kernel] = {}
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
    ) -> Gemm:
        """The kernel that the store holds for a shape: exactly tuned, else tuned for the nearest shape, else estimated
        from what was tuned for other devices and transposes, else the default.

        m, n, k are rows of C, columns of C and inner dimension; dtype is float or double. `.origin` says which it was.
        A record made by another version of generator, driver or compiler is checked against the reference first.
        Raises ArgumentTypeError, ShapeError, ConfigError, DeviceError, CompileError, StoreError or LaunchError.
        """
        problem = Problem(m, n, k, DType.parse(dtype), trans_a, trans_b)
        opened = _open(device)
        return load_on(opened, problem, Store(Path(store) if store is not None else None), self._ranking)

    def matmul(
        self, a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0, device: str | None = None
    ) -> Any:
        """alpha * a @ b + beta * out by the tuned kernel for these shapes.

        a is m x k and b k x n, both NumPy or both CuPy, both float32 or both float64; views with padded rows and
        transposed views are used where they lie. The result is m x n, in `out` if given. device is auto, cuda, cuda:N
        or host for NumPy arrays; CuPy arrays run where they are. The kernel of a shape is looked up and compiled once.

        Raises as `Gemm` and `load` do.
        """
        problem, call = asked(a, b, out, alpha, beta)
        return _run(self._kernel(problem, _selector(call.place, device)), call)

    def _kernel(self, problem: Problem, selector: str) -> Kernel:
        found = self._kernels.get((problem, selector))
        if found is None:
            with self._lock:
                found = self._kernels.get((problem, selector))
                if found is None:
                    found = load_on(_open(selector), problem, Store(), self._ranking)._kernel
                    if len(self._kernels) >= _MAX_KERNELS:
                        del self._kernels[next(iter(self._kernels))]
                    self._kernels[problem, selector] = found
        return found


@cache
def _open(selector: str) -> Device:
    choice = choose(selector)
    if choice.notice:
        warnings.warn(choice.notice, stacklevel=4)
    return open_device(choice.info) if choice.info.selector == selector else _open(choice.info.selector)


def _selector(place: str, device: str | None) -> str:
    if place == "host":
        return "auto" if device is None else device
    if device not in (None, "auto", place) and not (device == "cuda" and place == "cuda:0"):
        raise DeviceMismatchError(f"the arrays are on {place}, device is {device!r}")
    return place


def _run(kernel: Kernel, call: Call) -> Any:
    device, problem = kernel.device, kernel.problem
    if call.place not in ("host", device.info.selector):
        raise DeviceMismatchError(f"a, b and out are on {call.place}, the kernel on {device.info.selector}")
    with device.entered():
        xp = np if call.place == "host" else device.xp
        result = call.c.owner if call.c else xp.empty((problem.m, problem.n), problem.dtype.numpy_name)
        c = call.c or operand_of("out", result, False)
        if problem.m and problem.n:
            if device.info.arch.is_host or call.place != "host":
                kernel.launch(call.a, call.b, c, call.alpha, call.beta)
            else:
                _through_device(kernel, call, result)
    return result


def _through_device(kernel: Kernel, call: Call, result: Any) -> None:
    """NumPy arrays on a GPU: copied in, launched, copied out."""
    xp = kernel.device.xp
    inside = []
    for operand in (call.a, call.b):
        copied = xp.asarray(operand.owner, order="C")
        inside.append(replace(operand, pointer=int(copied.data.ptr), ld=max(1, operand.cols), owner=copied))
    c = xp.asarray(result, order="C") if call.beta != 0 else xp.empty(result.shape, result.dtype)
    kernel.launch(inside[0], inside[1], operand_of("out", c, False), call.alpha, call.beta)
    result[...] = kernel.device.to_numpy(c)
