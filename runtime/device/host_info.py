"""Facts about the processor, read from the system; the rate of memory is measured."""

import os
import platform
import time
from functools import cache
from pathlib import Path

import numpy as np

from ...codegen.arch import ARCHES
from .host_compiler import cpu_facts, system_text
from .protocol import DeviceInfo

_CPU = Path("/sys/devices/system/cpu/cpu0")
_UNKNOWN_CLOCK_MHZ = 2000.0
"""Clock in MHz of a processor whose system reports none: shares of a peak of zero would be infinite."""


def host_info() -> DeviceInfo:
    """Facts about the processor. The first call copies memory, for some milliseconds."""
    return DeviceInfo(
        name=f"host {cpu_facts()[0]}",
        selector="host",
        arch=ARCHES["host"],
        sm_count=len(os.sched_getaffinity(0)),
        clock_mhz=_highest_clock_mhz(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        l2_bytes=_last_cache_bytes(),
        bandwidth_gbs=_bandwidth_gbs(),
        driver=f"{platform.system()} {platform.release()}",
    )


def clock_now_mhz() -> float | None:
    """Clock of the fastest core now in MHz, None where the system reports none."""
    lines = system_text(Path("/proc/cpuinfo")).splitlines()
    return max((float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")), default=None)


@cache
def _highest_clock_mhz() -> float:
    khz = system_text(_CPU / "cpufreq/cpuinfo_max_freq")
    return float(khz) / 1e3 if khz else clock_now_mhz() or _UNKNOWN_CLOCK_MHZ


@cache
def _last_cache_bytes() -> int:
    sizes = [0]
    for path in (_CPU / "cache").glob("index*/size"):
        text = system_text(path)
        if text:
            sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return max(sizes)


@cache
def _bandwidth_gbs() -> float:
    # An array larger than most caches; the fastest of four copies, which take some 30 ms, counts.
    source = np.ones(1 << 25, np.uint8)
    target = np.zeros_like(source)
    times = [time.perf_counter()]
    for _ in range(4):
        np.copyto(target, source)
        times.append(time.perf_counter())
    return round(2 * source.nbytes / float(np.diff(times).min()) / 1e9, 1)
