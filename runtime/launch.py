"""Launches through CUDA's driver, with the attribute that CuPy's own launches lack: overlap with the kernel before."""

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..codegen.source import LaunchConfig

__all__ = ["OverlappingLaunch", "overlap_works"]

_LEAST_DRIVER = 12030
"""From CUDA 12.3 on such launches can be captured into a graph."""
_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_MOST_ARGUMENT_BYTES = 4096
"""What every device takes."""


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


def overlap_works(driver_version: int) -> bool:
    """Whether a driver of this version, 13000 for CUDA 13.0, takes such launches and captures them."""
    return driver_version >= _LEAST_DRIVER and hasattr(_driver(), "cuLaunchKernelEx")


class _Prepared(threading.local):
    """What the driver is given, for each thread its own: it reads all of it before a call returns."""

    def __init__(self) -> None:
        self.launch: LaunchConfig | None = None
        self.config = _Config()
        self.attribute = _Attribute(_OVERLAP, 0, 1)
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
        fields = _Config(launch.grid, launch.block, launch.dynamic_smem_bytes, None, attributes, 1)
        ctypes.pointer(self.config)[0] = fields


class OverlappingLaunch:
    """Launches of one kernel that waits by itself for those before it: its start may overlap their end."""

    def __init__(self, function: int) -> None:
        """`function` is a CUfunction of the current context."""
        self._function = ctypes.c_void_p(function)
        self._launch = _driver().cuLaunchKernelEx
        self._prepared = _Prepared()

    def __call__(self, launch: LaunchConfig, arguments: Sequence[np.generic], stream: int) -> int:
        """Put it on a stream. Returns a CUresult: 0 where it is queued."""
        prepared = self._prepared
        if prepared.launch is not launch:
            prepared.set(launch)
        prepared.config.stream = stream
        # The driver wants the arguments as C lays them out in a struct, which is how `struct` packs them.
        layout = "@" + "".join([argument.dtype.char for argument in arguments])
        struct.pack_into(layout, prepared.arguments, 0, *arguments)
        prepared.size.value = struct.calcsize(layout)
        status: int = self._launch(prepared.by_reference, self._function, None, prepared.extra)
        return status
