"""Every config that some values of a family's parameters allow, without walking through those they do not."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import cast

from ...codegen.arch import Arch
from ...codegen.config import Config, Value
from ...codegen.families import COMMON, complete
from ...codegen.family import Constraint, Family
from ...codegen.problem import Problem

__all__ = ["combine", "may_hold"]


class _Chosen:
    """The values chosen so far: a rule reads them as it reads a Config, and gets a KeyError for what is still open.
    What it asked for is noted."""

    def __init__(self, family: str, values: Mapping[str, Value]) -> None:
        self.family, self.values, self.asked = family, values, set[str]()

    def __getitem__(self, name: str) -> Value:
        self.asked.add(name)
        return self.values[name]

    def number(self, name: str) -> int:
        """The value of a parameter that is a number."""
        self.asked.add(name)
        return cast(int, self.values[name])

    def word(self, name: str) -> str:
        """The value of a parameter that is a word."""
        return str(self[name])


_HOLDS, _BROKEN = -1, -2
"""What a rule says; where a value is open that it asks for, it is the place of that value instead."""


class _Memory:
    """What a rule says where the values of the first parameters are chosen, by those of them that it asks for.

    A space has millions of prefixes, and few combinations of the values that one rule looks at.
    """

    def __init__(self, rule: Constraint) -> None:
        self.rule = rule
        self.names: tuple[str, ...] = ()
        self.key: Callable[[Mapping[str, Value]], object] = lambda chosen: ()
        self.said: dict[object, int] = {}

    def ask(
        self, problem: Problem, arch: Arch, family: str, chosen: Mapping[str, Value], places: Mapping[str, int]
    ) -> int:
        """What the rule says, which is remembered."""
        config = _Chosen(family, chosen)
        try:
            verdict = _HOLDS if self.rule.holds(problem, cast(Config, config), arch) else _BROKEN
        except KeyError as missing:
            verdict = places[missing.args[0]]
            config.asked.discard(missing.args[0])
        if not config.asked <= set(self.names):
            self.names = (*self.names, *sorted(config.asked - set(self.names)))
            self.key = itemgetter(*self.names)
            self.said = {}  # by fewer values
        self.said[self.key(chosen)] = verdict
        return verdict


@cache
def _told(reason: str) -> list[str]:
    """The parameters whose values a reason tells."""
    return re.findall(r"{(\w+)}", reason)


def may_hold(
    problem: Problem, arch: Arch, family: Family, rules: Sequence[Constraint], values: Mapping[str, Value]
) -> bool:
    """Whether a few values of a family's parameters break none of the rules, whatever the others are."""
    config = cast(Config, _Chosen(family.name, values))
    for rule in rules:
        try:
            if not rule.holds(problem, config, arch):
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
    axes = {
        parameter.name: [value for value in choices if parameter.worth(problem, value)]
        for parameter, choices in zip(family.parameters, given)
    }
    pruned: Counter[str] = Counter()
    hopeless = math.prod(map(len, given)) - math.prod(map(len, axes.values()))
    if hopeless:
        pruned["a value is hopeless for the problem"] = hopeless

    # Where there is no choice it is made at once, so that rules need not wait for it.
    free = [name for name in names if len(axes[name]) != 1] or names[-1:]
    chosen = {name: axes[name][0] for name in names if name not in free}
    below = [math.prod(len(axes[later]) for later in free[place + 1 :]) for place in range(len(free))]

    # Rules wait at the place of the first value that they ask for and do not find. A rule has a memory for each place.
    places = {name: place for place, name in enumerate(free)}
    rules = [*family.constraints, *COMMON, *family.advice, *advice]
    memories = [[_Memory(rule) for _ in free] for rule in rules]
    waiting: list[list[int]] = [[] for _ in free]
    waiting[0] += range(len(rules))
    found: list[Config] = []
    sentences: dict[tuple[str, tuple[Value, ...]], str] = {}

    def sentence(rule: Constraint) -> str:
        told = tuple(chosen.get(name, "") for name in _told(rule.reason))
        if (rule.reason, told) not in sentences:
            sentences[rule.reason, told] = rule.sentence(complete(Config(family.name, tuple(chosen.items()))))
        return sentences[rule.reason, told]

    def grow(place: int) -> None:
        if place == len(free):
            found.append(Config.known(family.name, tuple([(name, chosen[name]) for name in names])))
            return
        name = free[place]
        for value in axes[name]:
            chosen[name] = value
            moved = []  # where rules wait now that did wait here
            for number in waiting[place]:
                memory = memories[number][place]
                verdict = memory.said.get(memory.key(chosen))
                if verdict is None:
                    verdict = memory.ask(problem, arch, family.name, chosen, places)
                if verdict == _HOLDS:
                    continue
                if verdict == _BROKEN:
                    pruned[sentence(memory.rule)] += below[place]
                    break
                moved.append(verdict)
                waiting[verdict].append(number)
            else:
                grow(place + 1)
            for later in moved:
                waiting[later].pop()
            del chosen[name]

    grow(0)
    return found, pruned
