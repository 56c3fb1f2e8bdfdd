"""Configs as points of a space, and points as configs."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from ...codegen.config import Config
from ...codegen.families import families, family_named
from ...codegen.leaf import Mode, Value
from ..search.space import Dimension, Point, Space

ABSENT = "absent"
"""Value of a parameter that a config's family lacks."""
FAMILY = "family"
"""Name of the dimension that holds a config's family."""
_SPLITS = (Mode.SPLIT_K, Mode.STREAM_K, Mode.PERSISTENT)


def _plain(value: Any) -> Value:
    return str(value) if isinstance(value, str) else int(value)


def _readers(kind: Any) -> dict[str, Callable[[Config], Any]]:
    """The parameters of a family's configs in a search: names, and functions that give their values.

    The decomposition of the work is three numbers there instead of mode and parts: CTAs of a tile (split_k), CTAs of an
    SM (stream_k), tiles of a CTA (persistent).
    """
    found: dict[str, Callable[[Config], Any]] = {}
    for leaf in kind.leaves():
        if leaf.name == "mode":
            shares = map(attrgetter, ("split_ctas", "stream_ctas_per_sm", "persistent_tiles"))
            found |= dict(zip(map(str, _SPLITS), shares))
        elif leaf.name != "parts":
            found[leaf.name] = attrgetter(f"{leaf.group}.{leaf.name}".lstrip("."))
    return found


def config_of(values: Mapping[str, Value]) -> Config:
    """The config at a point, by the names and values that a space gives it. Raises ConfigError for one that this
    version does not have."""
    known = {name: value for name, value in values.items() if value != ABSENT}
    kind = family_named(str(known.pop(FAMILY, "")))
    for mode in _SPLITS:
        parts = known.pop(str(mode), 0)
        if parts not in (0, 1) or (parts and mode is Mode.STREAM_K):
            known |= {"mode": str(mode), "parts": parts}
    return kind.of(known)


def space_of(configs: Iterable[Config]) -> Space:
    """The space of configs, in their order: a dimension for each name with the values that occur, which rise.

    Families share dimensions whose parameters have one name; a parameter that a family lacks is `absent`.
    """
    configs = tuple(configs)
    kinds: list[Any] = list(dict.fromkeys(map(type, configs)))
    present: dict[str, set[Any]] = {name: set() for kind in kinds for name in _readers(kind)}
    blocks = [(kind, tuple(block)) for kind, block in itertools.groupby(configs, type)]
    for kind, block in blocks:
        for name, read in _readers(kind).items():
            present[name].update(map(read, block))
    named = [kind.family for kind in kinds]
    dimensions = [Dimension(FAMILY, tuple(family for family in families() if family in named))]
    for name, found in present.items():
        lacking = any(name not in _readers(kind) for kind in kinds)
        dimensions.append(Dimension(name, (*((ABSENT,) if lacking else ()), *sorted(map(_plain, found)))))
    points: list[Point] = []
    for kind, block in blocks:
        readers = _readers(kind) | {FAMILY: attrgetter(FAMILY)}
        columns: list[Iterable[int]] = []
        for dimension in dimensions:
            places = {value: place for place, value in enumerate(dimension.choices)}
            lacks = dimension.name not in readers
            values = itertools.repeat(ABSENT) if lacks else map(readers[dimension.name], block)
            columns.append(map(places.__getitem__, values))
        points += zip(*columns)
    return Space(tuple(dimensions), tuple(points))
