"""Neighbours of a config, from which a search goes on."""

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...codegen.config import Config
from ...codegen.leaf import Leaf
from ...codegen.legality import rules_of
from ...codegen.mechanisms.split import proposed_parts
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ..choose.forecast import Forecast

Values = Mapping[str, Sequence[Any]]
"""Typed values of a family's parameters that may be tried, by name."""


def neighbours(config: Config, forecast: Forecast, values: Values | None = None, far: bool = False) -> list[Config]:
    """The legal configs for the problem of a forecast that differ from `config` by a step up or down of one or two
    parameters, by a side of its tile that leaves less of it beyond C, or in the work decomposition.

    Where the rules keep another mechanism out of reach, such as TMA from a config whose slices have barriers, two more
    parameters change with it. `values` limits the values of parameters; None for all values of the family. With `far` a
    step goes to any other value.
    """
    kind: Any = type(config)
    problem, info = forecast.problem, forecast.info
    if values is None:
        values = {leaf.name: _values(leaf, info) for leaf in kind.leaves()}
    allowed = {leaf.name: values.get(leaf.name, (leaf.default,)) for leaf in kind.leaves()}
    steps = [(name, value) for name, choices in allowed.items() for value in _steps(choices, config.get(name), far)]
    pairs = itertools.combinations_with_replacement(steps, 2)
    changes = [dict((one, other)) for one, other in pairs if one == other or one[0] != other[0]]
    changes += _fitting_sides(config, problem, allowed)
    decompositions = forecast.decompositions(config)
    changes += [each for each in decompositions if all(value in allowed[name] for name, value in each.items())]
    rules = rules_of(kind)

    def legal(changes: Iterable[dict[str, Any]]) -> list[Config]:
        changed = dict.fromkeys(config.changed(**each) for each in changes)
        return [each for each in changed if each != config and all(rule.holds(problem, each, info) for rule in rules)]

    configs = legal(changes)
    for name, value in steps:
        if isinstance(value, enum.Enum) and all(each.get(name) != value for each in configs):
            others = itertools.combinations([step for step in steps if step[0] != name], 2)
            configs += legal({name: value, **dict(pair)} for pair in others if pair[0][0] != pair[1][0])
    return configs


def _fitting_sides(config: Config, problem: Problem, allowed: Values) -> Iterator[dict[str, Any]]:
    """Changes of one side of a config's tile, of a CTA and of a warp or a thread at once, after which less of the tiles
    lies beyond C, and the side is at least half as long. Steps do not lead to all of them, as few sides of a CTA fit
    those of a warp or a thread."""
    for place, (name, extent) in enumerate((("m", problem.m), ("n", problem.n))):
        sides = [side for side in (f"block_{name}", f"warp_{name}", f"thread_{name}") if side in allowed]
        length = config.cta_tile[place]
        for values in itertools.product(*(allowed[side] for side in sides)):
            change = dict(zip(sides, values))
            changed = config.changed(**change).cta_tile[place]
            if 2 * changed >= length and _tiled(extent, changed) < _tiled(extent, length):
                yield change


def _tiled(extent: int, side: int) -> int:
    """Rows or columns of the tiles that cover `extent` rows or columns of C."""
    return -(-extent // side) * side


def _values(leaf: Leaf, info: DeviceInfo) -> Sequence[Any]:
    """The values of a parameter that are tried on a device."""
    return proposed_parts(info.sm_count) if isinstance(leaf.choices, range) else leaf.choices


def _steps(values: Sequence[Any], value: Any, far: bool) -> list[Any]:
    """The values next to `value`: the next smaller and the next larger number, or every other value of an enumeration;
    with `far` every other value."""
    if far or isinstance(value, enum.Enum):
        return [each for each in values if each != value]
    return [*sorted(each for each in values if each < value)[-1:], *sorted(each for each in values if each > value)[:1]]
