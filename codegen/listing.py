"""Every config that some values of a family's parameters allow, without walking through those they do not."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from .config import Config
from .legality import Rule, rules_of
from .problem import Problem
from .target import Target

MOST_COMBINATIONS = 10_000_000
"""Combinations of values that are looked through for those that are legal."""


class _Chosen:
    """The values chosen so far, and which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values, self.read = values, set[str]()


def _field(name: str) -> property:
    def read(traced: Any) -> Any:
        chosen: _Chosen = traced.chosen
        chosen.read.add(name)
        return chosen.values[name]  # a KeyError names what is open

    return property(read)


@cache
def _traced_class(kind: Any, names: tuple[str, ...]) -> Any:
    """A subclass of a config or a group whose fields are what was chosen: its own methods work on that unchanged."""
    return type(f"Traced{kind.__name__}", (kind,), {"__slots__": ("chosen",), **{n: _field(n) for n in names}})


def _traced(kind: type[Config], chosen: _Chosen) -> Any:
    """A config of what was chosen. Its properties raise KeyError with the name of a parameter that is still open."""

    def made(cls: Any, names: tuple[str, ...]) -> Any:
        traced = object.__new__(_traced_class(cls, names))
        object.__setattr__(traced, "chosen", chosen)
        return traced

    of: Any = kind
    own, groups = _grouped(of)
    config = made(kind, own)
    for group, group_kind, names in groups:
        object.__setattr__(config, group, made(group_kind, names))
    return config


@cache
def _grouped(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Any, tuple[str, ...]], ...]]:
    """The parameters of a config itself; of each of its groups the name, the class and the parameters."""
    groups: dict[str, list[str]] = {}
    for leaf in kind.leaves():
        groups.setdefault(leaf.group, []).append(leaf.name)
    own = tuple(groups.pop("", ()))
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    return own, tuple((group, types[group], tuple(names)) for group, names in groups.items())


def _says(rule: Rule[Any], problem: Problem, config: Any, target: Target) -> bool | str:
    """Whether the rule holds; the name of an open parameter where it asks for one."""
    try:
        return bool(rule.holds(problem, config, target))
    except KeyError as missing:
        return str(missing.args[0])


class _Memory:
    """Verdicts of a rule by the values of those parameters that it asks for, where the first parameters are chosen.

    A space has millions of prefixes, and few combinations of the values that one rule looks at.
    """

    def __init__(self, rule: Rule[Any]) -> None:
        self.rule, self.title = rule, rule.title
        self.names: tuple[str, ...] = ()
        self.key: Callable[[Mapping[str, Any]], object] = lambda chosen: ()
        self.said: dict[object, bool | str] = {}

    def ask(self, problem: Problem, target: Target, config: Any, chosen: _Chosen) -> bool | str:
        """The rule's verdict, which is remembered: whether it holds, or the name of an open parameter."""
        chosen.read.clear()
        verdict = _says(self.rule, problem, config, target)
        if isinstance(verdict, str):
            chosen.read.discard(verdict)
        if not chosen.read <= set(self.names):
            self.names = (*self.names, *sorted(chosen.read - set(self.names)))
            self.key = itemgetter(*self.names)
            self.said = {}  # by fewer values
        self.said[self.key(chosen.values)] = verdict
        return verdict


def keeping(
    rules: Sequence[Rule[Any]], problem: Problem, config: Config, target: Target, changes: Sequence[dict[str, Any]]
) -> Sequence[dict[str, Any]]:
    """The changes, all of the same parameters of a config, with which the rules hold. A rule is asked once for all
    changes that are alike in the values that it asks for."""
    kind: Any = type(config)
    changing, values = set(changes[0]), config.typed
    chosen = _Chosen(values)
    traced = _traced(kind, chosen)
    for group, _, names in _grouped(kind)[1]:
        if changing.isdisjoint(names):  # to read it as it is takes less long
            object.__setattr__(traced, group, getattr(config, group))
    for rule in rules:
        memory, legal = _Memory(rule), list[dict[str, Any]]()
        for change in changes:
            values.update(change)
            verdict = memory.said.get(memory.key(values))
            if verdict is None:
                verdict = memory.ask(problem, target, traced, chosen)
                if changing.isdisjoint(memory.names):  # all are alike
                    legal += changes if verdict else ()
                    break
            if verdict:
                legal.append(change)
        changes = legal
    return changes


def open_rules(
    rules: Sequence[Rule[Any]], problem: Problem, kind: type[Config], target: Target, changes: Sequence[dict[str, Any]]
) -> tuple[Sequence[dict[str, Any]], Sequence[Rule[Any]]]:
    """The values of a few parameters of a family with which rules may hold whatever the other parameters are, and the
    rules that ask for other parameters."""
    chosen = _Chosen({})
    config, left = _traced(kind, chosen), list[Rule[Any]]()
    for rule in rules:
        said = list[bool | str]()
        for change in changes:
            chosen.values = change
            said.append(_says(rule, problem, config, target))
        changes = [change for change, holds in zip(changes, said) if holds is not False]
        if any(isinstance(each, str) for each in said):
            left.append(rule)
    return changes, left


def worth(
    problem: Problem, target: Target, kind: type[Config], rules: Sequence[Rule[Any]],
    values: Mapping[str, Sequence[Any]], pruned: Counter[str],
) -> dict[str, list[Any]]:  # fmt: skip
    """The typed values of each parameter of which no rule alone says that they cannot be; none at all where a rule
    breaks without any. Combinations that are left out so are counted in `pruned`. A parameter that `values` lacks takes
    its default."""
    axes = {leaf.name: list(values.get(leaf.name, (leaf.default,))) for leaf in kind.leaves()}
    fixed = {name: axis[0] for name, axis in axes.items() if len(axis) == 1}
    chosen = dict(fixed)
    config = _traced(kind, _Chosen(chosen))
    for rule in rules:
        said = _says(rule, problem, config, target)
        if said is True:
            continue
        asks = said if isinstance(said, str) else next(iter(axes))
        choices = []
        for value in axes[asks] if said else ():
            chosen[asks] = value
            if _says(rule, problem, config, target) is not False:
                choices.append(value)
        if asks not in fixed:
            chosen.pop(asks, None)
        if len(choices) < len(axes[asks]):
            rest = math.prod(len(axis) for name, axis in axes.items() if name != asks)
            pruned[rule.title] += (len(axes[asks]) - len(choices)) * rest
        axes[asks] = choices
    return axes


def legal_configs(
    problem: Problem, target: Target, kind: type[Config], values: Mapping[str, Sequence[Any]], most: int
) -> tuple[list[Config], Counter[str]] | None:
    """The configs that break none of the family's rules, and how many combinations were left out for which reason; None
    where there are more than `most` of them, or more than MOST_COMBINATIONS to look through.

    `values` are the typed ones to combine; a parameter that it lacks takes its default. They are chosen in the order of
    the fields.
    """
    pruned: Counter[str] = Counter()
    rules = rules_of(kind)
    axes = worth(problem, target, kind, rules, values, pruned)
    if not all(axes.values()):
        return [], pruned
    if math.prod(map(len, axes.values())) > MOST_COMBINATIONS:
        return None

    # Where there is no choice it is made at once, so that rules need not wait for it.
    free = [name for name in axes if len(axes[name]) != 1] or [*axes][-1:]
    values_now = {name: axes[name][0] for name in axes if name not in free}
    below = [math.prod(len(axes[later]) for later in free[place + 1 :]) for place in range(len(free))]
    chosen = _Chosen(values_now)
    config = _traced(kind, chosen)

    # A rule waits for the first value that it asks for and does not find. It has a memory for each such value.
    waiting: dict[str, list[dict[str, _Memory]]] = {name: [] for name in free}
    waiting[free[0]] = [{name: _Memory(rule) for name in free} for rule in rules]
    legal: list[Config] = []

    def grow(place: int) -> None:
        if len(legal) > most:
            return
        if place == len(free):
            legal.append(kind.build(values_now))
            return
        name = free[place]
        for value in axes[name]:
            values_now[name] = value
            moved = []  # values that rules wait for now that did wait for this one
            for memories in waiting[name]:
                memory = memories[name]
                verdict = memory.said.get(memory.key(values_now))
                if verdict is None:
                    verdict = memory.ask(problem, target, config, chosen)
                if verdict is False:
                    pruned[memory.title] += below[place]
                    break
                if isinstance(verdict, str):
                    moved.append(verdict)
                    waiting[verdict].append(memories)
            else:
                grow(place + 1)
            for later in moved:
                waiting[later].pop()
            del values_now[name]

    grow(0)
    return (legal, pruned) if len(legal) <= most else None
