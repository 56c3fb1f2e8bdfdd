"""Launches through CUDA's driver, with PDL and tensor maps, which CuPy's own launches lack."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ...codegen.errors import LaunchError, check
from ...codegen.problem import DType
from ...codegen.source import LaunchConfig, TensorBox
from ..locks import Lock
from . import launcher
from .parameters import MAP_BYTES, ParameterBlock
from .protocol import Launcher

_LEAST_DRIVER = 12030
"""Driver version from which launches with PDL can be captured into a graph: CUDA 12.3."""
_PDL = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_LEGACY = 1  # CU_STREAM_LEGACY, which 0 stands for
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MAP_ALIGNMENT = 64
"""Bytes to whose multiples a CUtensorMap is aligned."""
_MAP_TYPES = {DType.FLOAT: 7, DType.DOUBLE: 8}  # CU_TENSOR_MAP_DATA_TYPE_*
_NO_SWIZZLE, _SWIZZLE_128B = 0, 3  # CU_TENSOR_MAP_SWIZZLE_*
_PROMOTED_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
_MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE
_SEMAPHORE_BYTES = 64
"""Bytes that hold a sem_t of any C library for Linux."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: the value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises LaunchError."""
    status = getattr(_driver(), name)(*arguments)
    check(status == 0, f"{name} returned {status}", LaunchError)


def driver_launches() -> bool:
    """Whether the driver has cuLaunchKernelEx, as from CUDA 11.8 on."""
    return hasattr(_driver(), "cuLaunchKernelEx")


def pdl_works(driver_version: int) -> bool:
    """Whether a driver of this version, 13000 for CUDA 13.0, takes launches with PDL and captures them."""
    return driver_version >= _LEAST_DRIVER and driver_launches()


def encoded_map(pointer: int, rows: int, cols: int, ld: int, dtype: DType, box: TensorBox) -> bytes:
    """The CUtensorMap of a stored matrix: `rows` rows of `cols` elements, `ld` elements apart. A TMA copy brings a
    `box` of it. Raises LaunchError where the driver refuses it."""
    raw = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
    start = -ctypes.addressof(raw) % _MAP_ALIGNMENT
    status: int = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(raw, start), _MAP_TYPES[dtype], ctypes.c_uint32(2), ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 2)(cols, rows), (ctypes.c_uint64 * 1)(ld * dtype.size_bytes),
        (ctypes.c_uint32 * 2)(box.cols, box.rows), (ctypes.c_uint32 * 2)(1, 1),
        0, _SWIZZLE_128B if box.swizzled else _NO_SWIZZLE, _PROMOTED_128B, 0,
    )  # fmt: skip
    check(status == 0, f"cuTensorMapEncodeTiled returned {status} for {rows} rows of {cols}, {ld} apart", LaunchError)
    return raw.raw[start : start + MAP_BYTES]


MakeError = Callable[[int], LaunchError]
"""Makes the error for a CUresult that is not 0."""


def driver_launch(
    function: int, launch: LaunchConfig, codes: str, pdl: bool, enter: Callable[[], None], make_error: MakeError
) -> Launcher:
    """Return the launcher of one kernel on one grid.

    `function` is a CUfunction, `codes` are those of ParameterBlock; `enter` makes its context the thread's. With `pdl`
    the kernel starts before the kernels before it end, and waits for them itself.
    """
    extension = launcher.module()
    if extension is None:
        return DriverLaunch(function, launch, codes, pdl, enter, make_error)
    address = ctypes.cast(_driver().cuLaunchKernelEx, ctypes.c_void_p).value
    grid = launch.grid, launch.block, launch.dynamic_smem_bytes
    bound: Launcher = extension.Launch(address, function, *grid, codes, pdl, enter, make_error)
    return bound


class DriverLaunch:
    """A Launcher in Python, which does what `Launch` of the extension does in C."""

    def __init__(
        self, function: int, launch: LaunchConfig, codes: str, pdl: bool, enter: Callable[[], None], error: MakeError
    ) -> None:
        self._block = ParameterBlock(codes)
        self._attribute = _Attribute(_PDL, 0, 1)
        attributes = ctypes.pointer(self._attribute)
        self._config = _Config(launch.grid, launch.block, launch.dynamic_smem_bytes, None, attributes, int(pdl))
        self._arguments = ctypes.byref(self._config), ctypes.c_void_p(function), self._block.pointers, None
        self._pack, self._stream, self._enter, self._make_error = self._block.pack, 0, enter, error
        self._lock = Lock()  # all calls write their arguments to the same memory
        self._launch = _driver().cuLaunchKernelEx

    def __call__(self, stream: int, *values: object) -> None:
        """Put the launch on a stream. Raises LaunchError."""
        with self._lock.alone():
            try:
                self._pack(*values)
            except OverflowError:
                self._block.fill(*values)
            if stream != self._stream:
                self._config.stream = self._stream = stream
            status = self._launch(*self._arguments)
            if status == _NO_CONTEXT:  # the first call of a thread
                self._enter()
                status = self._launch(*self._arguments)
        if status:
            raise self._make_error(status)


def load_now(function: int) -> None:
    """Load a CUfunction before its first launch: it could not be loaded while a stream is captured."""
    if hasattr(_driver(), "cuFuncLoad"):  # from CUDA 12.4 on; older drivers have loaded it by then
        _driver().cuFuncLoad(ctypes.c_void_p(function))


def stream_identity(stream: int) -> int:
    """A number for a stream that, unlike its handle, no later stream has. Raises LaunchError."""
    if stream <= _LEGACY:
        return -1  # the default stream, which is never destroyed
    identity = ctypes.c_uint64()
    _call("cuStreamGetId", ctypes.c_void_p(stream), ctypes.byref(identity))
    return identity.value


def capture_of(stream: int) -> tuple[int, int]:
    """The number of the capture that a stream takes part in, and the handle of its graph. Raises LaunchError."""
    capturing, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    results = ctypes.byref(capturing), ctypes.byref(number), ctypes.byref(graph)
    _call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *results, None, None)
    return number.value, graph.value or 0


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """A context in which this thread may allocate, clear and free memory while a stream is captured."""
    mode = ctypes.c_int(_RELAXED)
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def end_of_graph(stream: int) -> Callable[[], bool]:
    """Return a test for whether the graph that a stream is captured into has ended, with its clones and instances.

    The graph holds a user object, whose destructor posts a semaphore: the driver may call it on any thread at any time,
    so it is a function of the C library and none of Python. Raises LaunchError.
    """
    libc = _libc()
    semaphore = ctypes.c_void_p(libc.malloc(_SEMAPHORE_BYTES))
    libc.sem_init(semaphore, 0, 0)
    post, user_object = ctypes.cast(libc.sem_post, ctypes.c_void_p), ctypes.c_void_p()
    _, graph = capture_of(stream)
    _call("cuUserObjectCreate", ctypes.byref(user_object), semaphore, post, 1, _NO_DESTRUCTOR_SYNC)
    _call("cuGraphRetainUserObject", ctypes.c_void_p(graph), user_object, 1, _MOVE)
    value = ctypes.c_int()

    def ended() -> bool:
        # The semaphore is never freed: the driver may post it after everything of Python is gone.
        libc.sem_getvalue(semaphore, ctypes.byref(value))
        return value.value > 0

    return ended


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    return library
