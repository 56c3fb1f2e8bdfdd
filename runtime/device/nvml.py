"""Facts from the NVIDIA driver without a CUDA context: the GPUs and their clocks now."""

import ctypes
from functools import cache
from typing import Any

_CLOCK_SM = 1
_HELD_BACK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Reasons for a lower clock: power cap, slowdown, thermal limits of software and hardware, power brake."""


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def gpu_count() -> int:
    """Number of NVIDIA GPUs that the driver sees; 0 without a driver."""
    library = _library()
    count = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0
    return count.value


def clock_mhz(pci_bus_id: str) -> float | None:
    """Clock of the SMs now in MHz, None where it cannot be read."""
    clock = ctypes.c_uint()
    read = _read(pci_bus_id, "nvmlDeviceGetClockInfo", _CLOCK_SM, ctypes.byref(clock))
    return float(clock.value) if read else None


def uuid(pci_bus_id: str) -> str:
    """UUID of a GPU, as CUDA_VISIBLE_DEVICES takes it; empty where it cannot be read."""
    text = ctypes.create_string_buffer(96)
    return text.value.decode() if _read(pci_bus_id, "nvmlDeviceGetUUID", text, len(text)) else ""


def held_back(pci_bus_id: str) -> bool:
    """Whether the driver holds the clocks down now for power or heat; False where that cannot be read."""
    reasons = ctypes.c_ulonglong()
    read = _read(pci_bus_id, "nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(reasons))
    return read and bool(reasons.value & _HELD_BACK)


def _read(pci_bus_id: str, function: str, *arguments: Any) -> bool:
    """Call a function of the driver for a GPU, which writes into an argument. Returns whether it succeeded."""
    library, handle = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)) != 0:
        return False
    return bool(getattr(library, function)(handle, *arguments) == 0)
