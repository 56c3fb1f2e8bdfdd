"""What the NVIDIA driver tells without a CUDA context: which GPUs there are, and their clocks now."""

import ctypes
from functools import cache

__all__ = ["clock_mhz", "gpu_count", "held_back"]

_CLOCK_SM = 1
_HELD_BACK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Reasons for a lower clock: the power cap, a slowdown, heat as software or hardware sees it, the power brake."""


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def gpu_count() -> int:
    """NVIDIA GPUs that the driver sees; 0 where there is no driver."""
    library = _library()
    count = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0
    return count.value


def clock_mhz(pci_bus_id: str) -> float | None:
    """Clock of the multiprocessors now in MHz, None where it cannot be read."""
    library, handle, clock = _library(), _handle(pci_bus_id), ctypes.c_uint()
    if library is None or handle is None:
        return None
    if library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, ctypes.byref(clock)) != 0:
        return None
    return float(clock.value)


def held_back(pci_bus_id: str) -> bool:
    """Whether the driver holds the clocks down now for power or heat; False where that cannot be read."""
    library, handle, reasons = _library(), _handle(pci_bus_id), ctypes.c_ulonglong()
    if library is None or handle is None:
        return False
    if library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons)) != 0:
        return False
    return bool(reasons.value & _HELD_BACK)


def _handle(pci_bus_id: str) -> ctypes.c_void_p | None:
    library, handle = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)) != 0:
        return None
    return handle
