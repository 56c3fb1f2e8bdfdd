"""The device that a kernel is for: the facts on which a design depends."""

from dataclasses import dataclass

from .arch import Arch


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Facts of a device that say which kernels it can run and how fast they are.

    Source: the driver's properties of the device, or NVIDIA's data sheets for a device that is not present.
    """

    arch: Arch
    """Limits and instructions of its generation."""
    sm_count: int
    """SMs; cores in use, for the processor."""
    clock_mhz: float
    """Highest clock, 10^6 cycles a second."""
    memory_bytes: int
    """Device memory."""
    l2_bytes: int
    """Last-level cache."""
    bandwidth_gbs: float
    """Peak rate of device memory, 10^9 bytes a second."""
