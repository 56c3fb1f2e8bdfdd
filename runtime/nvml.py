"""What the NVIDIA driver tells without a CUDA context: which GPUs there are, and their clocks now."""

import ctypes
from functools import cache

__all__ = ["clock_mhz", "gpu_count"]

_CLOCK_SM = 1


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
    library = _library()
    if library is None:
        return None
    handle, clock = ctypes.c_void_p(), ctypes.c_uint()
    if library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)) != 0:
        return None
    if library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, ctypes.byref(clock)) != 0:
        return None
    return float(clock.value)
