"""Cost of a variant: the figures of its inner loop that a model of the device needs beside tiles and resources."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Figures of one variant. A family computes them beside its parameters; `tuner/choose/model.py` reads them."""

    smem_loads: float = 0.0
    """Elements that pass through shared memory for one multiply-add of one thread, broadcasts counted as loads."""
    overhead: float = 1.0
    """Instructions of a warp for each of its multiply-adds, beside the multiply-add: loads, addresses, loops."""
    slices_cycles: float = 0.0
    """Clocks in which the slices of a CTA add up after its main loop."""
    in_flight: int = 0
    """Elements that a thread has on their way from memory, for a family that memory limits; else 0."""
    ahead: int = 0
    """Tiles that a CTA has on their way while it works on one, for a family whose CTAs wait for them; else 0."""
    rate: float = 1.0
    """Measured share of the tensor cores' rate, for a family that stays below the rate that its limits allow."""
    neighbours: int = 0
    """Elements side by side in a row of C that a thread writes from its registers, one vector after another; 0 where
    accumulators pass through shared memory first."""
    beside: int = 0
    """Elements side by side in a row of C that all threads of a warp write at a time."""
