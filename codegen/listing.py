"""All legal configs within given values of a family's parameters, found without a walk through the illegal ones."""

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
"""Most combinations of values in which legal configs are looked for."""


class _Assignment:
    """The values of the parameters chosen so far, and the names of those that a rule read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values, self.read = values, set[str]()


def _field(name: str) -> property:
    def read(traced: Any) -> Any:
        assignment: _Assignment = traced.assignment
        assignment.read.add(name)
        return assignment.values[name]  # a KeyError names an open parameter

    return property(read)


@cache
def _traced_class(kind: Any, names: tuple[str, ...]) -> Any:
    """A subclass of a config or a group that reads its fields from an assignment; inherited methods work unchanged."""
    return type(f"Traced{kind.__name__}", (kind,), {"__slots__": ("assignment",), **{n: _field(n) for n in names}})


def _traced(kind: type[Config], assignment: _Assignment) -> Any:
    """A config that reads an assignment. Its properties raise KeyError with the name of a parameter that is open."""

    def made(cls: Any, names: tuple[str, ...]) -> Any:
        traced = object.__new__(_traced_class(cls, names))
        object.__setattr__(traced, "assignment", assignment)
        return traced

    any_kind: Any = kind
    own, groups = _grouped(any_kind)
    config = made(kind, own)
    for group, group_kind, names in groups:
        object.__setattr__(config, group, made(group_kind, names))
    return config


@cache
def _grouped(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Any, tuple[str, ...]], ...]]:
    """The parameters of a config outside groups; then the name, the class and the parameters of each group."""
    groups: dict[str, list[str]] = {}
    for leaf in kind.leaves():
        groups.setdefault(leaf.group, []).append(leaf.name)
    own = tuple(groups.pop("", ()))
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    return own, tuple((group, types[group], tuple(names)) for group, names in groups.items())


def _verdict(rule: Rule[Any], problem: Problem, config: Any, target: Target) -> bool | str:
    """Whether the rule holds, or the name of the first open parameter that it reads."""
    try:
        return bool(rule.holds(problem, config, target))
    except KeyError as missing:
        return str(missing.args[0])


class _Memory:
    """Verdicts of a rule by the values of the parameters that it read, while later parameters are open.

    A space has millions of partial assignments, but few combinations of the values that one rule reads.
    """

    def __init__(self, rule: Rule[Any]) -> None:
        self.rule, self.title = rule, rule.title
        self.names: tuple[str, ...] = ()
        self.key: Callable[[Mapping[str, Any]], object] = lambda values: ()
        self.verdicts: dict[object, bool | str] = {}

    def ask(self, problem: Problem, target: Target, config: Any, assignment: _Assignment) -> bool | str:
        """The rule's verdict, which is remembered: whether it holds, or the name of an open parameter."""
        assignment.read.clear()
        verdict = _verdict(self.rule, problem, config, target)
        if isinstance(verdict, str):
            assignment.read.discard(verdict)
        if not assignment.read <= set(self.names):
            self.names = (*self.names, *sorted(assignment.read - set(self.names)))
            self.key = itemgetter(*self.names)
            self.verdicts = {}  # the old ones have keys of fewer values
        self.verdicts[self.key(assignment.values)] = verdict
        return verdict


def legal_changes(
    rules: Sequence[Rule[Any]], problem: Problem, config: Config, target: Target, changes: Sequence[dict[str, Any]]
) -> Sequence[dict[str, Any]]:
    """The changes of a config with which the rules hold; all changes are of the same parameters. A rule is asked once
    for all changes that have the same values of the parameters that it reads."""
    kind: Any = type(config)
    changing, values = set(changes[0]), config.typed
    assignment = _Assignment(values)
    traced = _traced(kind, assignment)
    for group, _, names in _grouped(kind)[1]:
        if changing.isdisjoint(names):  # the config's own group is read faster
            object.__setattr__(traced, group, getattr(config, group))
    for rule in rules:
        memory, legal = _Memory(rule), list[dict[str, Any]]()
        for change in changes:
            values.update(change)
            verdict = memory.verdicts.get(memory.key(values))
            if verdict is None:
                verdict = memory.ask(problem, target, traced, assignment)
                if changing.isdisjoint(memory.names):  # the verdict is the same for all changes
                    legal += changes if verdict else ()
                    break
            if verdict:
                legal.append(change)
        changes = legal
    return changes


def open_rules(
    rules: Sequence[Rule[Any]], problem: Problem, kind: type[Config], target: Target, changes: Sequence[dict[str, Any]]
) -> tuple[Sequence[dict[str, Any]], Sequence[Rule[Any]]]:
    """The values of a few parameters of a family that no rule excludes while all other parameters are open, and the
    rules that read other parameters."""
    assignment = _Assignment({})
    config, undecided = _traced(kind, assignment), list[Rule[Any]]()
    for rule in rules:
        verdicts = list[bool | str]()
        for change in changes:
            assignment.values = change
            verdicts.append(_verdict(rule, problem, config, target))
        changes = [change for change, verdict in zip(changes, verdicts) if verdict is not False]
        if any(isinstance(verdict, str) for verdict in verdicts):
            undecided.append(rule)
    return changes, undecided


def possible_values(
    problem: Problem, target: Target, kind: type[Config], rules: Sequence[Rule[Any]],
    values: Mapping[str, Sequence[Any]], pruned: Counter[str],
) -> dict[str, list[Any]]:  # fmt: skip
    """The typed values of each parameter that no rule excludes by itself. Where a rule breaks whatever the values are,
    a parameter has none. `pruned` counts the excluded combinations. A parameter that `values` lacks takes its
    default."""
    axes = {leaf.name: list(values.get(leaf.name, (leaf.default,))) for leaf in kind.leaves()}
    fixed = {name: axis[0] for name, axis in axes.items() if len(axis) == 1}
    chosen = dict(fixed)
    config = _traced(kind, _Assignment(chosen))
    for rule in rules:
        verdict = _verdict(rule, problem, config, target)
        if verdict is True:
            continue
        parameter = verdict if isinstance(verdict, str) else next(iter(axes))
        choices = []
        for value in axes[parameter] if verdict else ():
            chosen[parameter] = value
            if _verdict(rule, problem, config, target) is not False:
                choices.append(value)
        if parameter not in fixed:
            chosen.pop(parameter, None)
        if len(choices) < len(axes[parameter]):
            others = math.prod(len(axis) for name, axis in axes.items() if name != parameter)
            pruned[rule.title] += (len(axes[parameter]) - len(choices)) * others
        axes[parameter] = choices
    return axes


def legal_configs(
    problem: Problem, target: Target, kind: type[Config], values: Mapping[str, Sequence[Any]], most: int
) -> tuple[list[Config], Counter[str]] | None:
    """The configs that break none of the family's rules, and the number of combinations that each rule excluded. None
    where there are more than `most` configs, or more than MOST_COMBINATIONS to look through.

    `values` has the typed values to combine, which are chosen in the order of the fields. A parameter that it lacks
    takes its default.
    """
    pruned: Counter[str] = Counter()
    rules = rules_of(kind)
    axes = possible_values(problem, target, kind, rules, values, pruned)
    if not all(axes.values()):
        return [], pruned
    if math.prod(map(len, axes.values())) > MOST_COMBINATIONS:
        return None

    # Parameters with one value are chosen at once, so that no rule waits for them.
    free = [name for name in axes if len(axes[name]) != 1] or [*axes][-1:]
    values_now = {name: axes[name][0] for name in axes if name not in free}
    below = [math.prod(len(axes[later]) for later in free[place + 1 :]) for place in range(len(free))]
    assignment = _Assignment(values_now)
    config = _traced(kind, assignment)

    # A rule waits for the first open parameter that it reads. It has a memory for each parameter that it waits for.
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
            moved = []  # open parameters for which rules wait next that waited for this one
            for memories in waiting[name]:
                memory = memories[name]
                verdict = memory.verdicts.get(memory.key(values_now))
                if verdict is None:
                    verdict = memory.ask(problem, target, config, assignment)
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
