"""The processor as a device: the emitted text itself, compiled by the system's C++ compiler."""

import ctypes
import itertools
import mmap
import os
import struct
import time
import weakref
from _ctypes import dlclose
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.batch import NO_STEPS, Strides
from ...codegen.errors import DeviceError, LaunchError, check
from ...codegen.problem import DType, Problem
from ...codegen.source import LaunchConfig, TensorBox
from ..locks import CachedProperty, Lock
from .host_compiler import HostCompiler, load_image
from .host_info import clock_now_mhz, host_info
from .parameters import ParameterBlock
from .protocol import Binary, Blas, Buffer, Device, DeviceInfo, Elements, Launch, Launcher

_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def _mapped(nbytes: int) -> tuple[mmap.mmap, int]:
    """Whole pages of zeros, and their address. Raises OSError, OverflowError."""
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


class HostBuffer:
    """Memory between two guard pages, filled with NaN. It ends where the second guard page begins."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        check(nbytes >= 0, f"nbytes must not be negative, got {nbytes}", LaunchError)
        self.nbytes = nbytes
        size = (max(1, -(-(nbytes + alignment - 1) // _PAGE)) + 2) * _PAGE
        try:
            pages, base = _mapped(size)
        except (OSError, OverflowError) as error:
            raise LaunchError(f"no memory for a buffer of {nbytes} bytes: {error}") from error
        whole = np.frombuffer(pages, np.uint8)  # it keeps the pages, and arrays over parts of it keep the array
        # The bytes beside the buffer, up to the guard pages, are poison too.
        whole[_PAGE:-_PAGE] = 0xFF
        for guard in (base, base + size - _PAGE):
            if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), 0):  # PROT_NONE
                raise LaunchError(f"no guard page for a buffer of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
        self.pointer: int = (base + size - _PAGE - nbytes) // alignment * alignment
        self._bytes = whole[self.pointer - base :][:nbytes]

    def array(self, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> NDArray[Any]:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._bytes[offset_bytes : offset_bytes + nbytes].view(dtype).reshape(shape)


_free: list[tuple[mmap.mmap, int]] = []
"""Stacks that no launch is using, with their addresses: as many as there were launches at a time."""
_launches = itertools.count(1)


def _stacks(nbytes: int) -> tuple[mmap.mmap, int]:
    """Memory for the stacks of a launch's threads, and its address. The system gives a page when it is touched. Raises
    LaunchError."""
    try:
        stacks = _free.pop()
        if len(stacks[0]) >= nbytes:
            return stacks
        del stacks  # before there is a larger one
    except IndexError:
        pass
    try:
        return _mapped(nbytes)
    except OSError as error:
        text = f"no address space for {nbytes} bytes of stacks ({error.strerror})"
        raise LaunchError(f"{text}: raise the limit (ulimit -v), or load fewer kernels") from error


class _Launch(ctypes.Structure):
    """`Launch` of fibers.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_bytes", ctypes.c_uint64),
        ("memory", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
    )


class HostFunction:
    """A kernel in a shared library that this object keeps loaded."""

    def __init__(self, binary: Binary, name: str) -> None:
        try:
            library = load_image(name, binary.image, ctypes.CDLL)
        except OSError as error:
            raise LaunchError(f"{name} cannot be loaded: {error}") from error
        # Not at exit: handlers and finalizers that come later may call the kernel, and a daemon thread may be in it.
        weakref.finalize(self, dlclose, library._handle).atexit = False
        try:
            self.entry = getattr(library, f"{name}_on_host")
            thread_bytes: int = ctypes.c_uint64.in_dll(library, f"{name}_thread_bytes").value
        except (AttributeError, ValueError) as error:
            raise LaunchError(f"{name} cannot be loaded: {error}") from error
        self.entry.restype = ctypes.c_char_p
        self.name, self.thread_bytes = name, thread_bytes
        self.lock = Lock()  # a library runs one block at a time, and ctypes lets other threads run

    def bound(self, launch: LaunchConfig, codes: str) -> "HostLaunch":
        self._check(launch)
        return HostLaunch(self, launch, codes)

    def _check(self, launch: LaunchConfig) -> None:
        for what, sizes, limits in (("grid", launch.grid, _MAX_GRID), ("block", launch.block, _MAX_BLOCK)):
            good = len(sizes) == 3 and all(1 <= size <= limit for size, limit in zip(sizes, limits, strict=True))
            check(good, f"{self.name}: {what} must lie within 1 and {limits}, got {sizes}", LaunchError)
        threads = launch.threads
        check(threads <= 1024, f"{self.name}: a block has at most 1024 threads, got {threads}", LaunchError)
        smem = launch.dynamic_smem_bytes
        check(0 <= smem <= 2**20, f"{self.name}: {smem} bytes of dynamic shared memory", LaunchError)


class HostLaunch:
    """A kernel on one grid."""

    def __init__(self, function: HostFunction, launch: LaunchConfig, codes: str) -> None:
        self._function = function
        self._launch = _Launch(launch.grid, launch.block, launch.dynamic_smem_bytes)
        self._at_launch = ctypes.byref(self._launch)
        self._block = ParameterBlock(codes)
        self._nbytes = launch.threads * function.thread_bytes

    def __call__(self, stream: int, *values: object) -> None:
        function, block, launch = self._function, self._block, self._launch
        count = ctypes.c_uint64(block.count)
        with function.lock.alone():
            try:
                block.pack(*values)
            except OverflowError:
                block.fill(*values)
            memory = _stacks(self._nbytes)
            launch.memory, launch.number = memory[1], next(_launches)
            failure = function.entry(self._at_launch, block.pointers, block.sizes, count)
            _free.append(memory)
            if failure is not None:
                raise LaunchError(f"{function.name}: {failure.decode(errors='replace')}")


class HostDevice(Device):
    """The processor: runs kernels on one core, block after block, in the caller's thread."""

    xp: Any = np

    def __init__(self, alignment: int = 16) -> None:
        """`alignment` is that of buffers, in bytes. A buffer ends at a guard page if its size is a multiple of that."""
        self.compiler = HostCompiler()
        self._alignment = alignment

    @CachedProperty
    def info(self) -> DeviceInfo:
        return host_info()  # measures the rate of memory

    def load(self, binary: Binary, name: str) -> HostFunction:
        return HostFunction(binary, name)

    def allocate(self, nbytes: int, stream: int | None = None) -> HostBuffer:
        """Memory between guard pages, filled with NaN."""
        return HostBuffer(nbytes, self._alignment)

    def zero(self, buffer: Buffer, nbytes: int, stream: int) -> None:
        ctypes.memset(buffer.pointer, 0, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.array(array)

    def tensor_map(self, pointer: int, rows: int, cols: int, ld: int, dtype: DType, box: TensorBox) -> bytes:
        """Encode a `TensorMap` of tma.h."""
        size, swizzled = dtype.size_bytes, int(box.swizzled)
        return struct.pack("=QQ6I88x", pointer, ld * size, rows, cols, box.rows, box.cols, size, swizzled)

    def elapsed_us(self, run: Callable[[], None]) -> float:
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / 1e3

    @property
    def vendor_name(self) -> str:
        return f"NumPy {np.__version__}"

    def blas(self) -> Blas:
        return NumpyBlas()

    def vendor(self, problem: Problem, elements: Elements = Elements.OWN) -> Launch:
        check(elements is not Elements.TF32, "NumPy has no TF32", DeviceError)
        return super().vendor(problem, elements)

    def clock_mhz(self) -> float | None:
        return clock_now_mhz()


_numpy_at_work = Lock()
"""Lock of NumPy's products and of forks: OpenBLAS waits in a fork for its threads, which may be at work for ever."""
os.register_at_fork(
    before=_numpy_at_work.acquire, after_in_parent=_numpy_at_work.release, after_in_child=_numpy_at_work.release
)


class NumpyBlas:
    """NumPy's BLAS as the vendor's library of the processor, on as many cores as it takes. Halves and bfloat16s become
    floats first."""

    workspace_bytes, complete = 0, True

    def gemm(
        self, problem: Problem, lda: int, ldb: int, ldc: int, elements: Elements = Elements.OWN,
        strides: Strides | None = None,
    ) -> Launcher:  # fmt: skip
        dtype, batch = np.dtype(problem.dtype.numpy_name), (1, 1)
        steps_a = steps_b = steps_c = NO_STEPS
        if strides:
            batch, (steps_a, steps_b, steps_c) = (problem.batch // strides.inner, strides.inner), strides.steps

        def launch(stream: int, *values: Any) -> None:
            a, b, c, alpha, beta, *_ = values
            out = _matrices(c, (*batch, problem.m, problem.n), (*steps_c, ldc), dtype)
            with _numpy_at_work.shared(), np.errstate(all="ignore"):
                if alpha == 0:  # A and B are not read
                    out[:] = dtype.type(beta) * out if beta else 0
                    return
                op_a = _widened(a, (*batch, *problem.stored_a), (*steps_a, lda), dtype, elements)
                op_b = _widened(b, (*batch, *problem.stored_b), (*steps_b, ldb), dtype, elements)
                op_a = op_a.swapaxes(-1, -2) if problem.trans_a else op_a
                op_b = op_b.swapaxes(-1, -2) if problem.trans_b else op_b
                product = np.matmul(op_a, op_b, out=None if beta else out)
                if alpha != 1:
                    product *= dtype.type(alpha)
                if beta != 0:
                    out *= dtype.type(beta)
                    out += product

        return launch


def _widened(
    pointer: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: np.dtype[Any], elements: Elements
) -> NDArray[Any]:
    """The stored matrices of an operand, converted to the type of C."""
    if elements is Elements.HALF:
        return _matrices(pointer, shape, steps, np.dtype(np.float16)).astype(dtype)
    if elements is Elements.BFLOAT16:  # the first half of a float
        return (_matrices(pointer, shape, steps, np.dtype(np.uint16)).astype(np.uint32) << 16).view(np.float32)
    return _matrices(pointer, shape, steps, dtype)


def _matrices(pointer: int, shape: tuple[int, ...], steps: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The stored matrices of a batch as an array over their memory; `steps` are the elements of a step along each
    dimension but the last."""
    steps = (*steps, 1)
    last = sum((extent - 1) * step for extent, step in zip(shape, steps))
    memory: Any = (ctypes.c_char * ((last + 1) * dtype.itemsize if all(shape) else 0)).from_address(pointer)
    return np.ndarray(shape, dtype, memory, strides=[step * dtype.itemsize for step in steps])
