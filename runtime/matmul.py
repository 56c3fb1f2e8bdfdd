"""Matrix products of NumPy and CuPy arrays by tuned kernels."""

import threading
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.config import Config
from ..codegen.emit import Emitted, emit
from ..codegen.errors import (
    ArgumentTypeError,
    DeviceMismatchError,
    LayoutError,
    ShapeError,
    TilewrightError,
    check,
)
from ..codegen.families import default_config
from ..codegen.problem import INT_MAX, DType, Problem
from .detect import choose, compiler_for, open_device
from .device import Device, DeviceInfo, Operand
from .kernel import Kernel, prepare
from .store import Found, Store
from .verify import Verifier
from .versions import versions_of

__all__ = ["Gemm", "load", "matmul"]


class Gemm:
    """A tuned kernel as a callable: C = alpha * op(A) * op(B) + beta * C for one shape. See `load`."""

    def __init__(self, kernel: Kernel, origin: str) -> None:
        self._kernel = kernel
        self.origin = origin
        """Where the config comes from: `exact`, `nearest MxNxK` or `default`."""

    @property
    def problem(self) -> Problem:
        """Shape, dtype and transposes it serves."""
        return self._kernel.problem

    @property
    def config(self) -> Config:
        """The variant."""
        return self._kernel.config

    @property
    def source(self) -> str:
        """Its CUDA text."""
        return self._kernel.source.code

    @property
    def device(self) -> DeviceInfo:
        """Where it runs."""
        return self._kernel.device.info

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

        Raises ShapeError, LayoutError, ArgumentTypeError, DeviceMismatchError, ValueError (out overlaps an
        operand, or beta is not 0 and there is no out) or LaunchError.
        """
        problem = self.problem
        _check_array("a", a, problem.dtype, problem.stored_a)
        _check_array("b", b, problem.dtype, problem.stored_b)
        if out is None:
            if beta != 0:
                raise ShapeError(f"beta is {beta!r}, so out must be given: it is C")
        else:
            _check_array("out", out, problem.dtype, (problem.m, problem.n))
        return _run(self._kernel, (a, problem.trans_a), (b, problem.trans_b), out, alpha, beta)


def load(
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
    """The kernel that the store holds for a shape: exactly tuned, else tuned for the nearest shape, else the default.

    m, n, k are rows of C, columns of C and inner dimension; dtype is float or double. `.origin` says which it was.
    A record made by another version of generator, driver or compiler is checked against the reference first.
    Raises ArgumentTypeError, ShapeError, ConfigError, DeviceError, CompileError, StoreError or LaunchError.
    """
    problem = Problem(m, n, k, DType.parse(dtype), trans_a, trans_b)
    opened = _open(device)
    return _load(opened, problem, Store(Path(store) if store is not None else None))


def _load(device: Device, problem: Problem, store: Store) -> Gemm:
    found = store.lookup(device.info, problem)
    if found.record is not None and found.record.versions != versions_of(device.info, compiler_for(device.info)):
        found = _rechecked(device, found, store)
    return Gemm(prepare(device, problem, found.config), found.origin)


def _rechecked(device: Device, found: Found, store: Store) -> Found:
    """The record if it still verifies, marked with today's versions; else the default config, with a warning."""
    record = found.record
    assert record is not None
    try:
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


def matmul(
    a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0, device: str | None = None
) -> Any:
    """alpha * a @ b + beta * out by the tuned kernel for these shapes.

    a is m x k and b k x n, both NumPy or both CuPy, both float32 or both float64; views with padded rows and
    transposed views are used where they lie. The result is m x n, in `out` if given. device is auto, cuda, cuda:N
    or host for NumPy arrays; CuPy arrays run where they are. The kernel of a shape is looked up and compiled once.

    Raises as `Gemm` and `load` do.
    """
    for name, array in (("a", a), ("b", b)):
        if getattr(array, "ndim", None) != 2:
            raise ShapeError(f"{name} must be two-dimensional, got {_describe(array)}")
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"inner dimensions differ: a is {a.shape[0]}x{a.shape[1]}, b is {b.shape[0]}x{b.shape[1]}")
    dtype = _dtype("a", a)
    check(_dtype("b", b) is dtype, f"a is {a.dtype} and b is {b.dtype}: cast one of them first", ArgumentTypeError)
    stored_a, trans_a = _untransposed(a)
    stored_b, trans_b = _untransposed(b)
    problem = Problem(a.shape[0], b.shape[1], a.shape[1], dtype, trans_a, trans_b)
    kernel = _cached(problem, _selector(a, device))
    return kernel(stored_a, stored_b, out=out, alpha=alpha, beta=beta)


_kernels: dict[tuple[Problem, str], Gemm] = {}
_lock = threading.Lock()


def _cached(problem: Problem, selector: str) -> Gemm:
    found = _kernels.get((problem, selector))
    if found is None:
        with _lock:
            found = _kernels.get((problem, selector)) or _load(_open(selector), problem, Store())
            _kernels[problem, selector] = found
    return found


@cache
def _open(selector: str) -> Device:
    choice = choose(selector)
    if choice.notice:
        warnings.warn(choice.notice, stacklevel=4)
    return open_device(choice.info) if choice.info.selector == selector else _open(choice.info.selector)


def _selector(array: Any, device: str | None) -> str:
    if _on_gpu(array):
        return f"cuda:{array.device.id}"
    return device or "auto"


def _on_gpu(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def _describe(array: Any) -> str:
    shape = getattr(array, "shape", None)
    return type(array).__name__ if shape is None else f"shape {shape}"


def _dtype(name: str, array: Any) -> DType:
    dtype = getattr(array, "dtype", None)
    for known in DType:
        # Equality of dtypes includes the byte order.
        if dtype == np.dtype(known.numpy_name):
            return known
    raise ArgumentTypeError(f"{name} must be float32 or float64 in native byte order, got {dtype or type(array).__name__}")


def _check_array(name: str, array: Any, dtype: DType, shape: tuple[int, int]) -> None:
    if getattr(array, "ndim", None) != 2 or tuple(array.shape) != shape:
        raise ShapeError(f"{name} must be {shape[0]}x{shape[1]}, got {_describe(array)}")
    if _dtype(name, array) is not dtype:
        raise ArgumentTypeError(f"{name} must be {dtype.numpy_name}, got {array.dtype}: it is never cast silently")


def _untransposed(array: Any) -> tuple[Any, bool]:
    """The array, or its transpose where that is what lies row by row in memory, and whether it was."""
    size = array.dtype.itemsize
    row, col = array.strides
    if col != size and row == size and array.shape[0] > 1:
        return array.T, True
    return array, False


def _operand(name: str, array: Any, trans: bool) -> Operand:
    """How an array lies in memory. Raises LayoutError where it does not lie row by row."""
    rows, cols = array.shape
    if not rows or not cols:
        return Operand(0, rows, cols, max(1, cols), trans, array)  # nothing of it is read
    size = array.dtype.itemsize
    row, col = array.strides
    if cols > 1 and col != size:
        raise LayoutError(
            f"{name} must have its columns side by side: the stride along a row is {col} bytes, not {size}; "
            "make it contiguous first"
        )
    ld = cols
    if rows > 1:
        ld = row // size
        if row % size or not cols <= ld <= INT_MAX:
            raise LayoutError(f"{name} must have rows at least {cols} elements apart, got a stride of {row} bytes")
    interface = array.__cuda_array_interface__ if _on_gpu(array) else array.__array_interface__
    pointer = int(interface["data"][0])
    if pointer % size:
        raise LayoutError(f"{name} starts at address {pointer:#x}, which is not a multiple of {size}")
    return Operand(pointer, rows, cols, ld, trans, array)


def _run(
    kernel: Kernel, a: tuple[Any, bool], b: tuple[Any, bool], out: Any, alpha: float, beta: float
) -> Any:
    device, problem = kernel.device, kernel.problem
    arrays = [("a", a[0]), ("b", b[0]), *([("out", out)] if out is not None else [])]
    on_gpu = [_on_gpu(array) for _, array in arrays]
    if len(set(on_gpu)) > 1:
        raise ArgumentTypeError("a, b and out must be all NumPy or all CuPy arrays")
    if on_gpu[0]:
        for name, array in arrays:
            if device.info.selector != f"cuda:{array.device.id}":
                where = f"{name} is on cuda:{array.device.id}, the kernel on {device.info.selector}"
                raise DeviceMismatchError(where)
    a_operand, b_operand = _operand("a", *a), _operand("b", *b)
    xp = device.xp if on_gpu[0] else np
    if out is None:
        result = xp.empty((problem.m, problem.n), problem.dtype.numpy_name)
    else:
        result = out
        if not getattr(out, "flags", None) or (hasattr(out.flags, "writeable") and not out.flags.writeable):
            raise LayoutError("out is read-only")
    c_operand = _operand("out", result, False)
    if out is not None:
        for name, operand in (("a", a_operand), ("b", b_operand)):
            if _overlap(operand, c_operand, problem):
                raise LayoutError(f"out overlaps {name}: give it memory of its own")
    if problem.m == 0 or problem.n == 0:
        return result
    if on_gpu[0] or device.info.arch.is_host:
        kernel.launch(a_operand, b_operand, c_operand, alpha, beta)
        return result
    return _through_device(kernel, (a_operand, a[0]), (b_operand, b[0]), result, alpha, beta)


def _through_device(
    kernel: Kernel, a: tuple[Operand, Any], b: tuple[Operand, Any], result: Any, alpha: float, beta: float
) -> Any:
    """NumPy arrays on a GPU: copied in, launched, copied out."""
    xp = kernel.device.xp
    inside = []
    for operand, array in (a, b):
        copied = xp.asarray(array, order="C")
        inside.append(replace(operand, pointer=int(copied.data.ptr), ld=max(1, operand.cols), owner=copied))
    c = xp.asarray(result, order="C") if beta != 0 else xp.empty(result.shape, result.dtype)
    c_operand = Operand(int(c.data.ptr), *result.shape, max(1, result.shape[1]), False, c)
    kernel.launch(inside[0], inside[1], c_operand, alpha, beta)
    result[...] = kernel.device.to_numpy(c)
    return result


def _overlap(one: Operand, other: Operand, problem: Problem) -> bool:
    """Whether two matrices share bytes; rows that only interleave do not."""
    size = problem.dtype.size_bytes
    spans = []
    for operand in (one, other):
        elements = (operand.rows - 1) * operand.ld + operand.cols if operand.rows and operand.cols else 0
        spans.append((operand.pointer, operand.pointer + elements * size))
    (a0, a1), (b0, b1) = spans
    if a1 <= b0 or b1 <= a0:
        return False
    if one.ld == other.ld:
        # Two column ranges of one array: compare where their rows begin, modulo the distance of rows.
        pitch = one.ld * size
        offset = (other.pointer - one.pointer) % pitch
        return not (offset >= one.cols * size and offset + other.cols * size <= pitch)
    return True


