"""What the ranker has to know of configs by the names of their parameters."""

from ....codegen.config import Config
from ....codegen.mechanisms.operands import Load

RANKED = (
    "shared", "evict_first", "raster", "l2_prefetch", "interleave", "fragments", "slices", "slice_barriers",
    "k_inner_a", "k_inner_b", "stages", "order", "lanes_m", "thread_m", "thread_n", "warp_m", "warp_n", "load",
    "pack_a", "pack_b", "min_ctas", "lanes_k", "warps_k", "thread_k",
)  # fmt: skip
"""Parameters that are features as they are; -1 for a family without one."""
LIMBS = "promote", "ordered"
"""The same for families of products of limbs."""


def k_innermost(config: Config) -> tuple[int, int]:
    """For A and B whose stored rows run along k: 1 where k stays innermost in shared memory, 0 where cp.async has to
    transpose, -1 where it makes no difference."""
    known = {leaf.name for leaf in config.leaves()}
    if "k_inner_a" not in known:
        return -1, -1
    kept = config.get("k_inner_a"), config.get("k_inner_b")
    absent = 0 if config.get("load") is Load.CP_ASYNC else -1
    return (1 if kept[0] else absent, 1 if kept[1] else absent)


def sliced(config: Config) -> int:
    """Groups of warps that share out the k of a tile."""
    return int(config.get("slices")) if "slices" in {leaf.name for leaf in config.leaves()} else 1


def streamed(config: Config) -> tuple[int, int, int]:
    """Lanes of a warp that share out k of an operand that is read straight from memory, where it is A and where it is
    B, else 0: they read side by side where k is innermost, as the other lanes do where it is not. And steps of k of the
    other operand that are held at a time."""
    if "lanes_k" not in {leaf.name for leaf in config.leaves()}:
        return 0, 0, 0
    lanes, short_n = int(config.get("lanes_k")), config.get("short") == "n"
    return lanes * short_n, lanes * (not short_n), int(config.get("resident_k"))


def both_sides(config: Config) -> tuple[Config, ...]:
    """A kernel for a C that is short on one side, and the same for the other side; any other kernel by itself."""
    if "short" not in {leaf.name for leaf in config.leaves()}:
        return (config,)
    return tuple(config.changed(short=side) for side in type(config.get("short")))
