"""Configs as records of schema 1 held them, read as those of schema 2: parameters had other names there, and exclusive
choices were switches of their own."""

from collections.abc import Iterable, Mapping

from .errors import ConfigError, check
from .families import family_named
from .leaf import Mode, Value

_SAME = (
    "block_m block_n block_k thread_m thread_n lanes_m warp_m warp_n mma_k slices stages vec_a vec_b vec_c pack_a "
    "pack_b tile_width skew unroll edge lanes_k warps_k"
).split()
_RENAMED = {
    "a_k_inner": "k_inner_a",
    "b_k_inner": "k_inner_b",
    "apart": "slice_barriers",
    "copy_groups": "interleave",
    "group_m": "raster",
    "min_blocks": "min_ctas",
    "staged_c": "shared",
    "stream_c": "evict_first",
    "warm_l2": "l2_prefetch",
    "count": "block_short",
    "span": "thread_long",
    "depth": "thread_k",
    "vec": "vec_large",
    "staged": "resident_k",
    "warps_l": "warps_long",
}
_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "rows_first": ("order", ("columns", "rows")),
    "short_n": ("short", ("m", "n")),
    "cluster": ("reduce", ("workspace", "cluster")),
}
_REMOVED = {"tail": 1, "atomic": 0}
"""Parameters that are gone, and the value at which they did nothing."""


def from_schema_1(family: str, values: Iterable[tuple[str, Value]], sm_count: int | None = None) -> dict[str, Value]:
    """What a record of schema 1 meant by a family and its values, in the words of schema 2.

    Stream-K counted CTAs of the device there, and counts those of an SM today: as many as the registers had to allow,
    for searches tried no others, unless the device is known to have `sm_count` SMs. Raises ConfigError for what no
    version wrote, and for a config with a parameter that was removed since.
    """
    known = dict(values)
    for name, nothing in _REMOVED.items():
        check(known.pop(name, nothing) == nothing, f"{name} was removed: tune the problem again")
    found = _split(known, sm_count)
    if "bulk" in known or "cp_async" in known:
        copies = known.pop("cp_async", 0)
        found["load"] = "tma" if known.pop("bulk", 0) else "cp_async" if copies else "registers"
    kind = family_named(family)
    if "prefetch" in known:
        ahead = "ahead" if family == "dmma" else "double"
        found["fragments"] = _word("prefetch", ("single", ahead, "double"), known.pop("prefetch"))
    for name in ("pack_a", "pack_b"):
        if name in known and all(leaf.name != name for leaf in kind.leaves()):
            check(known.pop(name) == 0, f"{name} was removed from {family}: tune the problem again")
    for name, value in known.items():
        if name in _WORDS:
            new, words = _WORDS[name]
            found[new] = _word(name, words, value)
        else:
            new = _RENAMED.get(name, name)
            check(name in _RENAMED or name in _SAME, f"{family} has no parameter {name!r}")
            found[new] = value
    return found


def _split(known: dict[str, Value], sm_count: int | None) -> dict[str, Value]:
    """How work was shared out: takes the switches out of the values."""
    ways = {Mode.SPLIT_K: known.pop("split_k", 1), Mode.STREAM_K: known.pop("stream_k", 0)}
    ways[Mode.PERSISTENT] = known.pop("persistent", 1)
    found: dict[str, Value] = {}
    for mode, value in ways.items():
        if not isinstance(value, int):
            raise ConfigError(f"{mode} must be a number, got {value!r}")
        if value == 0 or (value <= 1 and mode is not Mode.STREAM_K):
            continue
        check(not found, f"{mode} and {found.get('mode')} exclude each other")
        parts: Value = value
        if mode is Mode.STREAM_K:
            parts = value // sm_count if sm_count else known.get("min_blocks", 1)
        found = {"mode": str(mode), "parts": parts}
    return found


def _word(name: str, words: tuple[str, ...], value: Value) -> str:
    check(isinstance(value, int) and 0 <= value < len(words), f"{name} must be 0 to {len(words) - 1}, got {value!r}")
    assert isinstance(value, int)
    return words[value]
