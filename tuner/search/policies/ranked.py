"""What the ranker has to know of configs by the names of their parameters."""

from collections.abc import Mapping
from typing import Any

from ....codegen.config import Config
from ....codegen.mechanisms.operands import Load

RANKED = (
    "shared", "evict_first", "raster", "l2_prefetch", "interleave", "fragments", "slices", "slice_barriers",
    "k_inner_a", "k_inner_b", "stages", "order", "lanes_m", "thread_m", "thread_n", "warp_m", "warp_n", "load",
    "pack_a", "pack_b", "min_ctas", "lanes_k", "warps_k", "thread_k",
)  # fmt: skip
"""Parameters that are features as they are; -1 for a family without one."""
TERMS = "promote", "ordered"
"""The same for families of products of terms."""


def k_innermost(values: Mapping[str, Any]) -> tuple[int, int]:
    """For A and B whose stored rows run along k, by the typed values of a config: 1 where k stays innermost in shared
    memory, 0 where cp.async has to transpose, -1 where it makes no difference."""
    if "k_inner_a" not in values:
        return -1, -1
    absent = 0 if values["load"] is Load.CP_ASYNC else -1
    return (1 if values["k_inner_a"] else absent, 1 if values["k_inner_b"] else absent)


def slices_of(values: Mapping[str, Any]) -> int:
    """By the same, groups of warps that share out the k of each tile."""
    found: int = values.get("slices", 1)
    return found


def streamed(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """By the same, lanes of a warp that share out k of an operand that is read straight from memory, where it is A and
    where it is B, else 0: they read side by side where k is innermost, as the other lanes do where it is not. And steps
    of k of the other operand that are held at a time."""
    if "lanes_k" not in values:
        return 0, 0, 0
    lanes, short_n = values["lanes_k"], values["short"] == "n"
    return lanes * short_n, lanes * (not short_n), values["resident_k"]


def both_sides(config: Config) -> tuple[Config, ...]:
    """A kernel for a C that is short on one side, and the same for the other side; any other kernel by itself."""
    if "short" not in {leaf.name for leaf in config.leaves()}:
        return (config,)
    return tuple(config.changed(short=side) for side in type(config.get("short")))
