"""Neighbours of a config: what differs from it by a step of a parameter or two, or in how the work is divided."""

import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...codegen.config import Config
from ...codegen.leaf import Leaf
from ...codegen.legality import rules_of
from ...codegen.mechanisms.split import proposed_parts
from ...runtime.device.protocol import DeviceInfo
from ..choose.forecast import Forecast

Values = Mapping[str, Sequence[Any]]
"""Typed values of a family's parameters that may be tried, by name."""


def neighbours(config: Config, forecast: Forecast, values: Values | None = None, far: bool = False) -> list[Config]:
    """The legal configs for the problem of a forecast that differ from one in a parameter or in two, a step up or down,
    or in how the work is divided. Where rules let no other mechanism be reached so, such as TMA from a config whose
    slices have barriers, it comes with a step of two more parameters. `values` limits what parameters may be; None for
    all that the family has. With `far` a step goes to any other value."""
    kind: Any = type(config)
    problem, info = forecast.problem, forecast.info
    if values is None:
        values = {leaf.name: _values(leaf, info) for leaf in kind.leaves()}
    allowed = {leaf.name: values.get(leaf.name, (leaf.default,)) for leaf in kind.leaves()}
    steps = [(name, value) for name, choices in allowed.items() for value in _steps(choices, config.get(name), far)]
    pairs = itertools.combinations_with_replacement(steps, 2)
    changes = [dict((one, other)) for one, other in pairs if one == other or one[0] != other[0]]
    divided = forecast.decompositions(config)
    changes += [each for each in divided if all(value in allowed[name] for name, value in each.items())]
    rules = rules_of(kind)

    def legal(changes: Iterable[dict[str, Any]]) -> list[Config]:
        every = dict.fromkeys(config.changed(**each) for each in changes)
        return [each for each in every if each != config and all(rule.holds(problem, each, info) for rule in rules)]

    found = legal(changes)
    for name, value in steps:
        if isinstance(value, enum.Enum) and all(each.get(name) != value for each in found):
            others = itertools.combinations([step for step in steps if step[0] != name], 2)
            found += legal({name: value, **dict(pair)} for pair in others if pair[0][0] != pair[1][0])
    return found


def _values(leaf: Leaf, info: DeviceInfo) -> Sequence[Any]:
    """The values of a parameter that are tried on a device."""
    return proposed_parts(info.sm_count) if isinstance(leaf.choices, range) else leaf.choices


def _steps(values: Sequence[Any], value: Any, far: bool) -> list[Any]:
    """The values of a parameter next to one: a step up and down of a number, every other value of an enumeration."""
    if far or isinstance(value, enum.Enum):
        return [each for each in values if each != value]
    return [*sorted(each for each in values if each < value)[-1:], *sorted(each for each in values if each > value)[:1]]
