"""Configs as points of a space, and points as configs."""

import itertools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from ...codegen.config import Config
from ...codegen.families import families, family_named
from ...codegen.leaf import Mode, Value
from ..search.space import Dimension, Space

ABSENT = "absent"
"""Value of a parameter that a config's family lacks."""
FAMILY = "family"
"""Name of the dimension that holds a config's family."""
_SPLITS = {
    Mode.SPLIT_K: attrgetter("split_ctas"),
    Mode.STREAM_K: attrgetter("stream_ctas_per_sm"),
    Mode.PERSISTENT: attrgetter("persistent_tiles"),
}
"""Work decompositions, each a dimension: CTAs of a tile, CTAs of an SM, and tiles of a CTA."""


def _values(config: Config) -> dict[str, Any]:
    """Names and values of a config's dimensions. The three numbers of _SPLITS stand for mode and parts."""
    values: dict[str, Any] = {FAMILY: config.family}
    for name, value in config.typed.items():
        if name == "mode":
            values |= {str(mode): read(config) for mode, read in _SPLITS.items()}
        elif name != "parts":
            values[name] = str(value) if isinstance(value, str) else int(value)
    return values


def config_of(values: Mapping[str, Value]) -> Config:
    """The config at a point, by the names and values that a space gives it. Raises ConfigError for one that this
    version does not have."""
    parameters = {name: value for name, value in values.items() if value != ABSENT}
    kind = family_named(str(parameters.pop(FAMILY, "")))
    for mode in _SPLITS:
        parts = parameters.pop(str(mode), 0)
        if parts not in (0, 1) or (parts and mode is Mode.STREAM_K):
            parameters |= {"mode": str(mode), "parts": parts}
    return kind.of(parameters)


def space_of(configs: Iterable[Config]) -> Space:
    """The space of configs, in their order: a dimension for each name with the values that occur, which rise.

    Families share dimensions whose parameters have one name; a parameter that a family lacks is `absent`.
    """
    rows = [_values(config) for config in configs]
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    columns = [[row.get(name, ABSENT) for row in rows] for name in names]
    dimensions = tuple(Dimension(name, _ordered(name, {*column})) for name, column in zip(names, columns))
    places = [{value: place for place, value in enumerate(dimension.choices)} for dimension in dimensions]
    positions = (map(place.__getitem__, column) for place, column in zip(places, columns))
    return Space(dimensions, tuple(zip(*positions)))


def _ordered(name: str, values: set[Value]) -> tuple[Value, ...]:
    """Values of a dimension in rising order, `absent` first; families in their own order."""
    if name == FAMILY:
        return tuple(family for family in families() if family in values)
    return (*sorted(values & {ABSENT}), *sorted(values - {ABSENT}))
