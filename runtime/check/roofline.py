"""Lower bounds of a product's time on a device: arithmetic, memory traffic and a launch."""

from dataclasses import dataclass, replace
from functools import cache

from ...codegen.problem import DType, Grade, Problem
from ..device.protocol import DeviceInfo

LAUNCH_US = 1.5
"""Microseconds that a launch takes from a CUDA graph, whatever the kernel does."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device."""

    float_gflops: float
    """Operations in float with IEEE arithmetic, in 10^9 a second."""
    double_gflops: float
    """Operations in double, on the tensor cores where they are faster, in 10^9 a second."""
    bandwidth_gbs: float
    """Bytes read from device memory, in 10^9 a second."""
    source: str
    """Source of the figures."""

    def gflops(self, dtype: DType) -> float:
        """The rate of a type."""
        return self.float_gflops if dtype is DType.FLOAT else self.double_gflops


# Measured rates by key of the device. For a new row, time a loop of the instruction alone, and reads of memory alone.
_MEASURED = {
    "nvidia-h200": Rates(
        66_900, 65_800, 4_430, "FFMA by clock and cores; DMMA m16n8k8 and memory reads measured on one H200, CUDA 13.0"
    ),
}


_PRODUCTS = {Grade.ELEMENTWISE: 6, Grade.NORMWISE: 3}
"""Number of products of halves that replace one product of floats, in the cheapest scheme of a grade."""
_WGMMA_PER_CYCLE = 2048
"""Multiply-adds of halves by wgmma instructions, in one clock of one SM."""


@cache
def rates_of(info: DeviceInfo, accuracy: Grade = Grade.IEEE) -> Rates | None:
    """Peak rates of a GPU: measured ones if there are any, else by its clock and cores; None for the processor. The
    rate of float is that of products that keep `accuracy`."""
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
    """Lower bound of a product's time for one reason."""

    by: str
    """`arithmetic`, `memory` or `launch`."""
    us: float
    """Microseconds."""


def bounds_of(info: DeviceInfo, problem: Problem) -> tuple[Bound, ...]:
    """Bounds of a product on a GPU, the longest first; none for the processor."""
    rates = rates_of(info, problem.accuracy)
    if rates is None:
        return ()
    arithmetic = Bound("arithmetic", problem.flops / rates.gflops(problem.dtype) / 1e3)
    memory = Bound("memory", problem.bytes / rates.bandwidth_gbs / 1e3)
    return tuple(sorted((arithmetic, memory, Bound("launch", LAUNCH_US)), key=lambda bound: -bound.us))


def floor_us(info: DeviceInfo, problem: Problem) -> float | None:
    """Lower bound of a product in microseconds, the largest of `bounds_of`; None for the processor."""
    return next((bound.us for bound in bounds_of(info, problem)), None)
