"""Every config that some values of a family's parameters allow, without walking through those they do not."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from .arch import Arch
from .config import Config, Value
from .families import COMMON, complete
from .family import Constraint, Family
from .problem import Problem

__all__ = ["combine", "may_hold"]


class _Chosen(dict[str, Any]):
    """The values chosen so far: rules read it as they read a Config, and get a KeyError for what is still open."""

    def __init__(self, family: str) -> None:
        self.family = family

    def number(self, name: str) -> int:
        """The value of a parameter that is a number."""
        value: int = self[name]  # no cast: it is called millions of times
        return value

    def word(self, name: str) -> str:
        """The value of a parameter that is a word."""
        return str(self[name])


@cache
def _told(reason: str) -> list[str]:
    """The parameters whose values a reason tells."""
    return re.findall(r"{(\w+)}", reason)


def may_hold(
    problem: Problem, arch: Arch, family: Family, rules: Sequence[Constraint], values: Mapping[str, Value]
) -> bool:
    """Whether a few values of a family's parameters break none of the rules, whatever the others are."""
    chosen = _Chosen(family.name)
    chosen.update(values)
    for rule in rules:
        try:
            if not rule.holds(problem, cast(Config, chosen), arch):
                return False
        except KeyError:  # it asks for more
            continue
    return True


def combine(
    problem: Problem,
    arch: Arch,
    family: Family,
    values: Mapping[str, Sequence[Value]],
    advice: Sequence[Constraint] = (),
) -> tuple[list[Config], Counter[str]]:
    """The configs worth trying, and how many combinations were left out for which reason.

    `values` are those to combine; a parameter that it lacks takes its default. What is left out breaks a constraint
    or a piece of advice, the family's or what is given here, or has a value that is hopeless for the problem.
    """
    names = [parameter.name for parameter in family.parameters]
    given = [list(values.get(parameter.name, (parameter.default,))) for parameter in family.parameters]
    axes = [
        [value for value in choices if parameter.worth(problem, value)]
        for parameter, choices in zip(family.parameters, given)
    ]
    below = [math.prod(map(len, axes[place + 1 :])) for place in range(len(axes))]
    pruned: Counter[str] = Counter()
    hopeless = math.prod(map(len, given)) - math.prod(map(len, axes))
    if hopeless:
        pruned["a value is hopeless for the problem"] = hopeless

    # Rules wait at the place of the first value that they ask for and do not find.
    waiting: list[list[Constraint]] = [[] for _ in names]
    waiting[0] += [*family.constraints, *COMMON, *family.advice, *advice]
    chosen = _Chosen(family.name)
    found: list[Config] = []
    sentences: dict[tuple[str, tuple[Value, ...]], str] = {}

    def sentence(rule: Constraint) -> str:
        told = tuple(chosen.get(name, "") for name in _told(rule.reason))
        if (rule.reason, told) not in sentences:
            sentences[rule.reason, told] = rule.sentence(complete(Config(family.name, tuple(chosen.items()))))
        return sentences[rule.reason, told]

    def grow(place: int) -> None:
        if place == len(axes):
            found.append(Config.known(family.name, tuple(chosen.items())))
            return
        for value in axes[place]:
            chosen[names[place]] = value
            moved = []  # where rules wait now that did wait here
            for rule in waiting[place]:
                try:
                    if not rule.holds(problem, cast(Config, chosen), arch):
                        pruned[sentence(rule)] += below[place]
                        break
                except KeyError as missing:
                    moved.append(names.index(missing.args[0]))
                    waiting[moved[-1]].append(rule)
            else:
                grow(place + 1)
            for later in moved:
                waiting[later].pop()
            del chosen[names[place]]

    grow(0)
    return found, pruned
