"""What to run where nothing was tuned: the config of a near shape, or the one that was learned to be the fastest."""

import enum
import heapq
import itertools
import math
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.leaf import Leaf
from ...codegen.legality import rules_of, serves
from ...codegen.mechanisms.split import proposed_parts
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.found import Found
from ...runtime.store.record import Record
from .policies import policy_of
from .ranker import Predicted, Ranker, ranker_of

_NEAR = 0.25
"""A record up to so many doublings of m, n and k away, with rows aligned as they are here, is taken before what was
learned from others."""

_FINER = 1.1
"""What a ranker of a finer accuracy expects counts as so many times that: the lower of two hopes is the bolder one."""

_Kind: TypeAlias = tuple[str, DType, bool, bool, Grade]
"""Device, type, transposes and accuracy."""
_Kinds: TypeAlias = dict[_Kind, tuple[list[Record], NDArray[np.float64]]]
"""Records, and the logarithms of their m, n and k, a row each."""
_sorted: tuple[Sequence[Record], _Kinds] = (), {}


def nearest(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> Found | None:
    """How to run a problem that was not tuned on a device: as for a near shape of the device, or of one that differs in
    its memory alone, else, on a GPU, as the ranker predicts, else as for the nearest shape however far. None where no
    record helps. A near record of a finer accuracy gives way to a kernel that is less accurate than it could be and
    predicted to be faster. This is the ranking that `Store.lookup` takes."""
    near = next((record.problem.accuracy for far, record in _within(_NEAR, problem, info, records) if not far), None)
    if near is not problem.accuracy:
        for each in predictions(problem, info, 1):
            if near is None or not each.config.accuracy.keeps(near):
                return Found(each.config, "predicted", expected_us=each.us, regret=each.regret)
    for _, record in _within(math.inf, problem, info, records):
        config = carried(record.config, problem, info)
        if config is not None and record.device != info.key:
            return Found(config, "predicted", sibling=record)
        if config is not None:
            return Found(config, "predicted", record)
    return None


def _within(
    doublings: float, problem: Problem, info: DeviceInfo, records: Sequence[Record]
) -> list[tuple[bool, Record]]:
    """The records that may help a problem, up to so many doublings away, the first to be asked first; and whether each
    is a far one."""
    kinds, sizes, aligned = _by_kind(records), np.array(_doublings(problem)), _aligned(problem)
    grades = [grade for grade in Grade if grade.keeps(problem.accuracy)]
    away: list[tuple[bool, bool, bool, float, bool, Record]] = []
    for key, grade in itertools.product((info.key, *_siblings(info)), grades):
        kind, other = (key, problem.dtype, problem.trans_a, problem.trans_b, grade), key != info.key
        if kind in kinds:
            those, logs = kinds[kind]
            # Of near shapes, and of one shape's, the record that was free to be as coarse as this product may be.
            finer = grade is not problem.accuracy
            distances = np.abs(logs - sizes).sum(axis=1)
            places = (distances < doublings + 1e-9).nonzero()[0]
            for place, distant in zip(places, distances[places].round(9).tolist()):
                record = those[place]
                far = distant > _NEAR or _aligned(record.problem) != aligned
                if not (far and other):
                    away.append((far, other, finer and not far, distant, finer, record))
    away.sort(key=itemgetter(0, 1, 2, 3, 4))
    return [(far, record) for far, *_, record in away]


@cache
def _siblings(info: DeviceInfo) -> tuple[str, ...]:
    """Keys of the known devices with the same SMs, and as many."""
    alike = (each for each in KNOWN.values() if (each.arch, each.sm_count) == (info.arch, info.sm_count))
    return tuple(each.key for each in alike if each.key != info.key)


def _by_kind(records: Sequence[Record]) -> _Kinds:
    """From memory where the records are the same as the last time."""
    global _sorted
    if _sorted[0] is not records:
        found: dict[_Kind, list[Record]] = {}
        for record in records:
            problem = record.problem
            kind = record.device, problem.dtype, problem.trans_a, problem.trans_b, problem.accuracy
            found.setdefault(kind, []).append(record)
        kinds = {kind: (those, np.array([_doublings(r.problem) for r in those])) for kind, those in found.items()}
        if not isinstance(records, tuple):
            return kinds  # a list may change
        _sorted = records, kinds
    return _sorted[1]


def predictions(problem: Problem, info: DeviceInfo, count: int) -> list[Predicted]:
    """The configs that the rankers expect most of, as they serve a problem on a GPU, at most so many, best first; none
    where they know nothing: for the processor, a product without work, or a type that none was fitted to.

    The ranker of the problem's accuracy is asked, or of the next finer one where there is none, and all of finer ones:
    who is content with less must not wait longer."""
    if info.arch.is_host or min(problem.m, problem.n, problem.k) == 0:
        return []
    rankers = _rankers(problem, info.arch)
    regret = rankers[0].regret_of(problem, info) if rankers else None
    weighted = zip(itertools.chain((1.0,), itertools.repeat(_FINER)), rankers)
    ranked = (zip(itertools.repeat(weight), ranker.ranked(problem, info)) for weight, ranker in weighted)
    found: dict[Config, Predicted] = {}
    for _, each in heapq.merge(*ranked, key=lambda pair: pair[0] * pair[1].us):
        config = carried(each.config, problem, info)
        if config is not None:
            found.setdefault(config, Predicted(config, each.us, regret))
            if len(found) == count:
                break
    return list(found.values())


def around(config: Config, problem: Problem, info: DeviceInfo) -> list[Config]:
    """The configs for a problem on a GPU that differ from one in a parameter or in two, a step up or down, or in how
    the work is shared out; those that are expected to be the fastest come first. What is hopeless is left out. None
    where no ranker knows the type."""
    kind: Any = type(config)
    rankers = _rankers(problem, info.arch)
    if not rankers:
        return []
    # What the ranker chooses may break some advice.
    advice = [rule for rule in policy_of(kind.family).advice if rule.holds(problem, config, info)]
    rules = *rules_of(kind), *advice
    steps = [
        (leaf.name, value)
        for leaf in kind.leaves()
        for value in _beside(_values(leaf, info), config.get(leaf.name))
    ]
    pairs = itertools.combinations_with_replacement(steps, 2)
    changes = [dict((one, other)) for one, other in pairs if one == other or one[0] != other[0]]
    changes += rankers[0].ways(config, problem, info)
    every = dict.fromkeys(config.changed(**values) for values in changes)
    found = [each for each in every if each != config and all(rule.holds(problem, each, info) for rule in rules)]
    if not found:
        return []
    order = np.argsort(rankers[0].behind(problem, info, found), kind="stable")
    return [found[i] for i in order]


def _values(leaf: Leaf, info: DeviceInfo) -> Sequence[Any]:
    """The values of a parameter that are tried on a device."""
    return proposed_parts(info.sm_count) if isinstance(leaf.choices, range) else leaf.choices


def _beside(values: Sequence[Any], value: Any) -> list[Any]:
    """The values of a parameter next to one: a step up and down of a number, every other value of an enumeration."""
    if isinstance(value, enum.Enum):
        return [each for each in values if each != value]
    return [*sorted(each for each in values if each < value)[-1:], *sorted(each for each in values if each > value)[:1]]


def _rankers(problem: Problem, arch: Arch) -> list[Ranker]:
    """Of a problem's accuracy, as far as there is one, and of finer ones."""
    grades = (grade for grade in reversed(Grade) if grade.keeps(problem.accuracy))
    return list(filter(None, (ranker_of(problem.dtype, grade, arch) for grade in grades)))


def _aligned(problem: Problem) -> tuple[int, ...]:
    """Bytes that a vector of A, B and C can have."""
    rows = problem.stored_a[1], problem.stored_b[1], problem.n
    return tuple(math.gcd(row * problem.dtype.size_bytes, 16) for row in rows)


def distance(tuned: Problem, problem: Problem) -> float:
    """How far apart two shapes are: doublings of m, of n and of k, added up."""
    return sum([abs(one - other) for one, other in zip(_doublings(tuned), _doublings(problem))])


def _doublings(problem: Problem) -> tuple[float, float, float]:
    # A dimension of zero counts as one half: one doubling away from 1.
    return math.log2(problem.m or 0.5), math.log2(problem.n or 0.5), math.log2(problem.k or 0.5)


def carried(config: Config, problem: Problem, target: Target) -> Config | None:
    """The config of another problem as it serves this one; None where it cannot.

    The tiles stay. What it has for rows that are not aligned is reset where that is hopeless for the problem."""
    kind: Any = type(config)
    advice = policy_of(kind.family).for_rows
    hopeless = [name for name, rule in advice.items() if not rule.holds(problem, config, target)]
    config = config.changed(**{name: kind.leaf(name).default for name in hopeless}) if hopeless else config
    return config if serves(config, problem, target) else None
