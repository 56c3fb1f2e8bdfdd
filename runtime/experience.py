"""How measured times differ from those of the model: factors by the values of a few parameters.

They order variants, of which many have nearly the same estimate. Which tiles are worth trying is left to the model
alone: with factors fewer of the recorded winners were among them.

Fitted by `benchmarks/fit_model.py` to what 37 tunings measured on H200s: 9,634 variants of `simt` in float for 19
shapes, 9,199 of `dmma` for 18 (2026-11-22, CUDA 13.0). They say what the model does not: deep tiles fill longer, few
stages cost less than it thinks, and so do warps of `dmma` with small parts of C.
"""

from collections.abc import Mapping

from ..codegen.config import Config, Value
from ..codegen.problem import Problem
from .device import DeviceInfo
from .estimate import estimate_us

__all__ = ["JUDGED", "expected_us", "factor"]

JUDGED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "simt": (("block_k",), ("stages", "cp_async"), ("slices", "apart"), ("warm_l2",)),
    "dmma": (("warp_m", "warp_n"), ("block_k",), ("stages",), ("prefetch",)),
}
"""By which parameters of a family variants are told apart: a factor for each values of each group."""


_MEASURED: Mapping[str, tuple[Mapping[tuple[Value, ...], float], ...]] = {
    "simt": (
        {(8,): 0.950, (16,): 0.951, (32,): 1.001, (64,): 1.010, (128,): 1.095},
        {(2, 0): 1.061, (2, 1): 0.936, (3, 1): 0.983, (4, 1): 1.002, (6, 1): 1.022},
        {
            (1, 0): 1.026, (2, 0): 0.960, (4, 0): 0.982, (8, 0): 1.008, (16, 0): 1.038,
            (2, 1): 0.992, (4, 1): 0.979, (8, 1): 0.998, (16, 1): 1.021,
        },
        {(0,): 1.014, (1,): 0.986},
    ),
    "dmma": (
        {
            (16, 8): 0.975, (16, 16): 0.956, (16, 32): 0.983, (32, 16): 0.975,
            (32, 32): 1.004, (32, 64): 1.031, (48, 32): 1.049, (64, 32): 1.031,
        },
        {(16,): 0.963, (32,): 1.004, (64,): 1.035},
        {(2,): 1.017, (3,): 0.992, (4,): 0.987, (5,): 1.003},
        {(1,): 1.021, (2,): 0.979},
    ),
}  # fmt: skip


def factor(config: Config) -> float:
    """The measured time of such variants over that of the model; 1 for values that were not measured."""
    found = 1.0
    for names, factors in zip(JUDGED.get(config.family, ()), _MEASURED.get(config.family, ()), strict=True):
        found *= factors.get(tuple(config[name] for name in names), 1.0)
    return found


def expected_us(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """The model's estimate in microseconds, times the factor."""
    return estimate_us(problem, config, info) * factor(config)
