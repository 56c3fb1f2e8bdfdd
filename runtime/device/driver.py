"""Launches through CUDA's driver, with what CuPy's own launches lack: PDL and tensor maps."""

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ...codegen.errors import LaunchError, check
from ...codegen.problem import DType
from ...codegen.source import LaunchConfig, TensorBox

_LEAST_DRIVER = 12030
"""From CUDA 12.3 on such launches can be captured into a graph."""
_PDL = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_MOST_ARGUMENT_BYTES = 4096
"""What every device takes."""
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
_MAP_TYPES = {DType.FLOAT: 7, DType.DOUBLE: 8}  # CU_TENSOR_MAP_DATA_TYPE_*
_NO_SWIZZLE, _SWIZZLE_128B = 0, 3  # CU_TENSOR_MAP_SWIZZLE_*
_PROMOTED_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


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
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def driver_launches() -> bool:
    """Whether the driver has what DriverLaunch calls, as from CUDA 11.8 on."""
    return hasattr(_driver(), "cuLaunchKernelEx")


def pdl_works(driver_version: int) -> bool:
    """Whether a driver of this version, 13000 for CUDA 13.0, takes launches with PDL and captures them."""
    return driver_version >= _LEAST_DRIVER and driver_launches()


@lru_cache(maxsize=1024)
def encoded_map(pointer: int, rows: int, cols: int, ld: int, dtype: DType, box: TensorBox) -> np.void:
    """The CUtensorMap of a stored matrix: `rows` rows of `cols` elements, `ld` elements apart, of which a copy brings
    a box. Raises LaunchError where the driver refuses it."""
    raw = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    start = -ctypes.addressof(raw) % _MAP_ALIGNMENT
    status: int = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(raw, start), _MAP_TYPES[dtype], ctypes.c_uint32(2), ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 2)(cols, rows), (ctypes.c_uint64 * 1)(ld * dtype.size_bytes),
        (ctypes.c_uint32 * 2)(box.cols, box.rows), (ctypes.c_uint32 * 2)(1, 1),
        0, _SWIZZLE_128B if box.swizzled else _NO_SWIZZLE, _PROMOTED_128B, 0,
    )  # fmt: skip
    check(status == 0, f"cuTensorMapEncodeTiled returned {status} for {rows} rows of {cols}, {ld} apart", LaunchError)
    return np.void(raw.raw[start : start + _MAP_BYTES])


def _listed(arguments: Sequence[np.generic], to: Any) -> Any:
    """Copies the arguments to a buffer, and lists where they are: where tensor maps come to lie among a kernel's
    arguments is for the driver to know."""
    starts = range(0, len(arguments) * _MAP_BYTES, _MAP_BYTES)
    for start, argument in zip(starts, arguments):
        to[start : start + argument.nbytes] = argument.tobytes()
    first = ctypes.addressof(to)
    return (ctypes.c_void_p * len(arguments))(*[first + start for start in starts])


class _Prepared(threading.local):
    """What the driver is given, for each thread its own: it reads all of it before a call returns."""

    def __init__(self, pdl: bool) -> None:
        self.launch: LaunchConfig | None = None
        self.attributes = int(pdl)
        self.config = _Config()
        self.attribute = _Attribute(_PDL, 0, 1)
        self.arguments = ctypes.create_string_buffer(_MOST_ARGUMENT_BYTES)
        self.size = ctypes.c_size_t()
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self.arguments), _BUFFER_SIZE, ctypes.addressof(self.size), _END
        )
        self.by_reference = ctypes.byref(self.config)

    def set(self, launch: LaunchConfig) -> None:
        """Take another grid and block."""
        self.launch = launch
        attributes = ctypes.pointer(self.attribute)
        fields = _Config(launch.grid, launch.block, launch.dynamic_smem_bytes, None, attributes, self.attributes)
        ctypes.pointer(self.config)[0] = fields


class DriverLaunch:
    """Launches of one kernel. Where it waits by itself for those before it, it starts before they end (PDL)."""

    def __init__(self, function: int, pdl: bool) -> None:
        """`function` is a CUfunction of the current context."""
        self._function = ctypes.c_void_p(function)
        self._launch = _driver().cuLaunchKernelEx
        self._prepared = _Prepared(pdl)

    def __call__(self, launch: LaunchConfig, arguments: Sequence[np.generic], stream: int) -> int:
        """Put it on a stream. Returns a CUresult: 0 where it is queued."""
        prepared = self._prepared
        if prepared.launch is not launch:
            prepared.set(launch)
        prepared.config.stream = stream
        given: tuple[Any, Any]
        if arguments and arguments[-1].dtype.char == "V":  # a tensor map
            given = _listed(arguments, prepared.arguments), None
        else:
            layout = "@" + "".join([argument.dtype.char for argument in arguments])  # as C lays out a struct
            struct.pack_into(layout, prepared.arguments, 0, *arguments)
            prepared.size.value = struct.calcsize(layout)
            given = None, prepared.extra
        status: int = self._launch(prepared.by_reference, self._function, *given)
        return status
