"""What a device cannot pass: the least time of a product."""

import itertools
from dataclasses import dataclass, replace
from functools import cache

from ...codegen.problem import DType, Grade, Problem
from ..device.protocol import DeviceInfo

LAUNCH_US = 1.5
"""What a launch takes from a CUDA graph, whatever it does."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The highest rates of a device."""

    float_gflops: float
    """10^9 operations a second in float, IEEE arithmetic."""
    double_gflops: float
    """The same in double, tensor cores included."""
    bandwidth_gbs: float
    """10^9 bytes a second read from device memory."""
    source: str
    """Where the figures are from."""

    def gflops(self, dtype: DType) -> float:
        """The rate of a type."""
        return self.float_gflops if dtype is DType.FLOAT else self.double_gflops


# Measured ones by key of the device; add a row with what a loop of the instruction alone, and of reads alone, reached.
_MEASURED = {
    "nvidia-h200": Rates(
        66_900, 65_800, 4_430, "FFMA by clock and cores; DMMA m16n8k8 and memory reads measured on one H200, CUDA 13.0"
    ),
}


_PRODUCTS = {Grade.ELEMENTWISE: 6, Grade.NORMWISE: 3}
"""Products of halves for one of float, by the cheapest scheme of a grade."""
_WGMMA_PER_CYCLE = 2048
"""Multiply-adds of halves of an SM in one clock by instructions of a warpgroup."""


@cache
def rates_of(info: DeviceInfo, accuracy: Grade = Grade.IEEE) -> Rates | None:
    """The rates of a GPU, measured where they are known, else by clock and cores; None for the processor. That of float
    is of products that keep `accuracy`."""
    if info.arch.is_host:
        return None
    rates = _MEASURED.get(info.key) or Rates(
        info.peak_gflops(DType.FLOAT),
        info.peak_gflops(DType.DOUBLE),
        info.bandwidth_gbs,
        "by clock, cores and width of the memory bus",
    )
    if accuracy is Grade.IEEE or not info.arch.mma_per_cycle:
        return rates
    halves = _WGMMA_PER_CYCLE if "wgmma.mma_async" in info.arch.instructions else info.arch.mma_per_cycle
    split = 2 * halves * info.sm_count * info.clock_mhz / 1e3 / _PRODUCTS[accuracy]
    text = f"float by {_PRODUCTS[accuracy]} products of halves, tensor cores by clock; else {rates.source}"
    return replace(rates, float_gflops=max(split, rates.float_gflops), source=text)


@dataclass(frozen=True, slots=True)
class Bound:
    """One of the reasons for which a product cannot be faster."""

    by: str
    """`arithmetic`, `memory` or `launch`."""
    us: float


def bounds_of(info: DeviceInfo, problem: Problem) -> tuple[Bound, ...]:
    """What bounds a product on a GPU, the longest first; nothing for the processor."""
    rates = rates_of(info, problem.accuracy)
    if rates is None:
        return ()
    bounds = itertools.starmap(Bound, _bounds(rates, problem).items())
    return tuple(sorted(bounds, key=lambda bound: -bound.us))


def _bounds(rates: Rates, problem: Problem) -> dict[str, float]:
    arithmetic_us = problem.flops / rates.gflops(problem.dtype) / 1e3
    return {"arithmetic": arithmetic_us, "memory": problem.bytes / rates.bandwidth_gbs / 1e3, "launch": LAUNCH_US}


def floor_us(info: DeviceInfo, problem: Problem) -> float | None:
    """The least microseconds of a product: arithmetic, memory traffic or a launch alone; None for the processor."""
    rates = rates_of(info, problem.accuracy)
    return max(_bounds(rates, problem).values()) if rates else None
