"""How measured times differ from those of the model: factors by the values of a few parameters.

They choose among variants of which many have nearly the same estimate. Which tiles are worth trying is left to the
model alone: with factors fewer of the recorded winners were among them.

Fitted by `benchmarks/fit_model.py` to what 37 tunings measured on H200s: 9,634 variants of `simt` in float for 19
shapes, 9,199 of `dmma` for 18 (2026-11-22, CUDA 13.0). They say what the model does not: deep tiles fill longer, few
stages cost less than it thinks, and so do warps of `dmma` with small parts of C. Those of copy_groups are from a fit to
these and 34 tunings more, later that day.
"""

from collections.abc import Mapping

from ...codegen.config import Config, Value

__all__ = ["FACTORS", "factor"]

FACTORS: Mapping[str, Mapping[tuple[str, ...], Mapping[tuple[Value, ...], float]]] = {
    "simt": {
        ("block_k",): {(8,): 0.950, (16,): 0.951, (32,): 1.001, (64,): 1.010, (128,): 1.095},
        ("stages", "cp_async"): {(2, 0): 1.061, (2, 1): 0.936, (3, 1): 0.983, (4, 1): 1.002, (6, 1): 1.022},
        ("slices", "apart"): {
            (1, 0): 1.026, (2, 0): 0.960, (4, 0): 0.982, (8, 0): 1.008, (16, 0): 1.038,
            (2, 1): 0.992, (4, 1): 0.979, (8, 1): 0.998, (16, 1): 1.021,
        },
        ("warm_l2",): {(0,): 1.014, (1,): 0.986},
        ("copy_groups",): {(1,): 1.012, (2,): 0.988},
    },
    "dmma": {
        ("warp_m", "warp_n"): {
            (16, 8): 0.975, (16, 16): 0.956, (16, 32): 0.983, (32, 16): 0.975,
            (32, 32): 1.004, (32, 64): 1.031, (48, 32): 1.049, (64, 32): 1.031,
        },
        ("block_k",): {(16,): 0.963, (32,): 1.004, (64,): 1.035},
        ("stages",): {(2,): 1.017, (3,): 0.992, (4,): 0.987, (5,): 1.003},
        ("prefetch",): {(1,): 1.021, (2,): 0.979},
        ("copy_groups",): {(1,): 1.009, (2,): 0.991, (4,): 0.999},
    },
}  # fmt: skip
"""By family and group of parameters: the factor for each values of the group."""


def factor(config: Config) -> float:
    """The measured time of such variants over that of the model, a plain ratio; 1 for values that were not measured."""
    found = 1.0
    for names, factors in FACTORS.get(config.family, {}).items():
        found *= factors.get(tuple(config[name] for name in names), 1.0)
    return found
