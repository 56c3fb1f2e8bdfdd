"""Launches through CUDA's driver, with the attribute that CuPy's own launches lack: overlap with the kernel before."""

import ctypes
import os
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..codegen.source import LaunchConfig

__all__ = ["launch_overlapping", "overlap_works"]

_LEAST_DRIVER = 12030
"""From CUDA 12.3 on such launches can be captured into a graph."""
_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_CODES = {"uint64": "Q", "int32": "i", "float32": "f", "float64": "d"}


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


@cache
def _overlap() -> Any:
    return ctypes.pointer(_Attribute(_OVERLAP, 0, 1))


def overlap_works(driver_version: int) -> bool:
    """Whether a driver of this version, 13000 for CUDA 13.0, takes such launches and captures them."""
    return driver_version >= _LEAST_DRIVER and hasattr(_driver(), "cuLaunchKernelEx")


def launch_overlapping(function: int, launch: LaunchConfig, arguments: Sequence[np.generic], stream: int) -> int:
    """Put a kernel that waits for those before it by itself on a stream; its start may overlap their end.

    `function` is a CUfunction of the current context. Returns a CUresult: 0 where it is queued.
    """
    # The driver wants the arguments as C lays them out in a struct, which is how `struct` packs them.
    packed = struct.pack("@" + "".join(_CODES[argument.dtype.name] for argument in arguments), *arguments)
    buffer, size = ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))
    extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, ctypes.addressof(size), _END)
    config = _Config(launch.grid, launch.block, launch.dynamic_smem_bytes, stream, _overlap(), 1)
    status: int = _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), None, extra)
    return status
