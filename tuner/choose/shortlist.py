"""Shortlist: configs for a problem on a device, in order of the time that is expected of them.

Look-ups take the first entry, first use tries a dozen, a search begins with them and goes on to their neighbours,
`explain` prints them. In order come the records of just this product, then what a look-up takes where there is none,
then all others by expected time: what a ranker puts first, or the model of the processor, and winners of near shapes.
"""

import enum
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.legality import serves
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.found import Found
from ...runtime.store.record import Record
from .host import host_us
from .ranker import Ranker, ranker_of

NEAR = 0.25
"""Doublings of m, n and k, added up, within which a record whose rows are aligned as the problem's are is taken before
what was learned from others."""
WINNERS = 4
"""Winners of near shapes that are on a shortlist."""
_FINER = 1.1
"""Factor on the time that a ranker of a finer accuracy expects: the lower of two estimates is the bolder one."""

_Kind: TypeAlias = tuple[str, DType, bool, bool, Grade]
"""Device, type, transposes and accuracy."""
_Kinds: TypeAlias = dict[_Kind, tuple[list[Record], NDArray[np.float64]]]
"""Records, and the logarithms of their m, n and k, a row each."""
_sorted: tuple[Sequence[Record], _Kinds] = (), {}


class Source(enum.StrEnum):
    """Source of an entry of a shortlist."""

    RECORD = "record"
    """A record of just this product on the device, or of the same product in a finer accuracy."""
    NEAR = "near record"
    """A record of another shape, or of a device with the same SMs."""
    LEARNED = "learned"
    """A ranker that was fitted to measurements of the device, or of one with the same SMs."""
    TRANSFERRED = "learned elsewhere"
    """A ranker that was fitted to other devices."""
    MODEL = "model"
    """The model of the processor."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a shortlist."""

    config: Config
    """A config that serves the problem on the device."""
    source: Source
    expected_us: float | None = None
    """Microseconds: measured for a record of just this product, else expected; None where nothing says so."""
    regret: float | None = None
    """90th percentile of such a choice's time over the best one, for shapes that were left out of the fit; None on a
    device that was not measured."""
    record: Record | None = None
    """The record that the config comes from."""

    def found(self, info: DeviceInfo) -> Found:
        """The entry as the result of a look-up that has no record of just this product."""
        if self.record is None:
            return Found(self.config, "predicted", expected_us=self.expected_us, regret=self.regret)
        if self.record.device != info.key:
            return Found(self.config, "predicted", sibling=self.record)
        return Found(self.config, "predicted", self.record)


def look_up(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> Found | None:
    """What to run for a problem that was not tuned on a device; None where nothing helps. The ranking that
    `Store.lookup` takes."""
    choice = _first(problem, info, records, lambda: predictions(problem, info, 1))
    return None if choice is None else choice.found(info)


def shortlist(problem: Problem, info: DeviceInfo, records: Sequence[Record], count: int) -> tuple[Choice, ...]:
    """At most `count` entries for a problem on a device, the one to take first."""
    predicted = predictions(problem, info, count)
    first = _first(problem, info, records, lambda: predicted)
    near = [*([first] if first else []), *itertools.islice(_winners(problem, info, records), WINNERS)]
    times = _expected_us(problem, info, [choice.config for choice in near], predicted)
    near = [c if c.expected_us else replace(c, expected_us=us) for c, us in zip(near, times)]
    others = [*predicted, *(_defaults(problem, info) if info.arch.is_host else ()), *near]
    others.sort(key=lambda choice: choice.expected_us or math.inf)
    found: dict[Config, Choice] = {}
    for choice in (*exact(problem, info, records), *near[: 1 if first else 0], *others):
        found.setdefault(choice.config, choice)
    return tuple(itertools.islice(found.values(), count))


def exact(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> list[Choice]:
    """The records of just this problem on the device that serve it, and after them those of finer accuracies: asking
    for less accuracy must not make a product slower."""
    here = [record for record in records if record.device == info.key]
    grades = [problem.accuracy, *(grade for grade in Grade if grade.keeps(problem.accuracy))]
    same = [replace(problem, accuracy=grade) for grade in dict.fromkeys(grades)]
    found: dict[Config, Record] = {}
    for record in (record for each in same for record in here if record.problem == each):
        found.setdefault(record.config, record)
    return [
        Choice(config, Source.RECORD, record.median_us, record=record)
        for config, record in found.items()
        if serves(config, problem, info)
    ]


def predictions(problem: Problem, info: DeviceInfo, count: int) -> list[Choice]:
    """The configs that rankers put first for a problem on a GPU, at most so many; none for the processor, and for a
    product without work.

    The ranker of the problem's accuracy is asked, or of the next finer one where there is none, and all of finer ones:
    a caller who is content with less must not wait longer."""
    if info.arch.is_host or min(problem.m, problem.n, problem.k) == 0:
        return []
    rankers = _rankers(problem, info.arch)
    if not rankers:
        return []
    regret = rankers[0].regret_of(problem, info)
    source = Source.LEARNED if rankers[0].knows(info) else Source.TRANSFERRED
    weighted = zip(itertools.chain((1.0,), itertools.repeat(_FINER)), rankers)
    ranked = (zip(itertools.repeat(weight), ranker.ranked(problem, info)) for weight, ranker in weighted)
    found: dict[Config, Choice] = {}
    for _, each in heapq.merge(*ranked, key=lambda pair: pair[0] * pair[1].us):
        config = carried(each.config, problem, info)
        if config is not None:
            found.setdefault(config, Choice(config, source, each.us, regret))
            if len(found) == count:
                break
    return list(found.values())


def expected_us(problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> list[float | None]:
    """Microseconds that are expected of configs for a problem, by a ranker or the model of the processor; None for all
    where no ranker knows the type, or the product has no work."""
    return _expected_us(problem, info, configs, predictions(problem, info, 1))


def _expected_us(
    problem: Problem, info: DeviceInfo, configs: Sequence[Config], predicted: Sequence[Choice]
) -> list[float | None]:
    """The same, beside the first of the problem's predictions."""
    if info.arch.is_host:
        return [host_us(problem, config) for config in configs]
    if not (configs and predicted):
        return [None] * len(configs)
    first_us = predicted[0].expected_us or 0.0
    *logs, of_first = _rankers(problem, info.arch)[0].log_times(problem, info, [*configs, predicted[0].config])
    return [first_us * math.exp(log - of_first) for log in logs]


def varied(configs: Sequence[Config]) -> list[Config]:
    """The configs in their order and, in turn with it, the first of each family, tile of C and decomposition: a search
    that begins with nearly equal ones learns little."""
    firsts: dict[tuple[object, ...], Config] = {}
    for config in configs:
        divided = config.split_ctas, config.stream_ctas_per_sm > 0, config.packs
        firsts.setdefault((config.family, config.cta_tile[:2], *divided), config)
    turns = itertools.chain.from_iterable(itertools.zip_longest(firsts.values(), configs))
    return list(dict.fromkeys(filter(None, turns)))


def by_expected(problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> list[Config]:
    """The configs, those that are expected to be the fastest first."""
    if not info.arch.is_host and configs and (rankers := _rankers(problem, info.arch)):
        order = np.argsort(rankers[0].log_times(problem, info, configs), kind="stable")
        return [configs[place] for place in order]
    return sorted(configs, key=lambda config: (host_us(problem, config), config.canonical))


def decompositions(config: Config, problem: Problem, info: DeviceInfo) -> list[dict[str, Any]]:
    """The decompositions of a problem's work for a config, as values of its parameters, for which the model of a GPU
    holds; none for the processor."""
    rankers = [] if info.arch.is_host else _rankers(problem, info.arch)
    return rankers[0].decompositions(config, problem, info) if rankers else []


def _first(
    problem: Problem, info: DeviceInfo, records: Sequence[Record], predicted: Callable[[], Sequence[Choice]]
) -> Choice | None:
    """The entry for a problem without a record: a near record of the device or of one that differs in its memory alone,
    else the first of what is `predicted`, which is asked for where it is needed, else the nearest record however far. A
    near record of a finer accuracy gives way to a kernel that is less accurate than it could be and is expected to be
    faster."""
    near = next((record.problem.accuracy for far, record in _within(NEAR, problem, info, records) if not far), None)
    if near is not problem.accuracy:
        for choice in predicted()[:1]:
            if near is None or not choice.config.accuracy.keeps(near):
                return choice
    for _, record in _within(math.inf, problem, info, records):
        config = carried(record.config, problem, info)
        if config is not None:
            return Choice(config, Source.NEAR, record=record)
    return None


def _winners(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> Iterator[Choice]:
    """The winners of the nearest tuned shapes that serve the problem: of this device, then, on a GPU, of others."""
    same = (record for record in records if record.device == info.key or not info.arch.is_host)
    near = sorted(
        (record for record in same if record.problem.dtype is problem.dtype),
        key=lambda record: (record.device != info.key, distance(record.problem, problem)),
    )
    found = set[Config]()
    for record in near:
        config = carried(record.config, problem, info)
        if config is not None and config not in found:
            found.add(config)
            yield Choice(config, Source.NEAR, record=record)


def _defaults(problem: Problem, info: DeviceInfo) -> list[Choice]:
    """The defaults of each family that serve a problem, which is where the processor begins."""
    configs = (family() for family in families().values())
    return [
        Choice(config, Source.MODEL, host_us(problem, config)) for config in configs if serves(config, problem, info)
    ]


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
            of_kind, logs = kinds[kind]
            # Of near shapes, and of one shape's, the record that was free to be as coarse as this product may be.
            finer = grade is not problem.accuracy
            distances = np.abs(logs - sizes).sum(axis=1)
            places = (distances < doublings + 1e-9).nonzero()[0]
            for place, distant in zip(places, distances[places].round(9).tolist()):
                record = of_kind[place]
                far = distant > NEAR or _aligned(record.problem) != aligned
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
    """Records by their kind, from memory where they are the same as the last time."""
    global _sorted
    if _sorted[0] is not records:
        found: dict[_Kind, list[Record]] = {}
        for record in records:
            problem = record.problem
            kind = record.device, problem.dtype, problem.trans_a, problem.trans_b, problem.accuracy
            found.setdefault(kind, []).append(record)
        kinds = {kind: (each, np.array([_doublings(r.problem) for r in each])) for kind, each in found.items()}
        if not isinstance(records, tuple):
            return kinds  # a list may change
        _sorted = records, kinds
    return _sorted[1]


def _rankers(problem: Problem, arch: Arch) -> list[Ranker]:
    """The ranker of a problem's accuracy, if there is one, and those of finer ones."""
    grades = (grade for grade in reversed(Grade) if grade.keeps(problem.accuracy))
    return list(filter(None, (ranker_of(problem.dtype, grade, arch) for grade in grades)))


def _aligned(problem: Problem) -> tuple[int, ...]:
    """Bytes that a vector of A, B and C can have."""
    rows = problem.stored_a[1], problem.stored_b[1], problem.n
    return tuple(math.gcd(row * problem.dtype.size_bytes, 16) for row in rows)


def carried(config: Config, problem: Problem, target: Target) -> Config | None:
    """The config of another problem as it serves this one; None where it cannot."""
    config = config.suited(problem)
    return config if serves(config, problem, target) else None


def distance(tuned: Problem, problem: Problem) -> float:
    """Distance of two shapes: doublings of m, of n and of k, added up."""
    return sum([abs(one - other) for one, other in zip(_doublings(tuned), _doublings(problem))])


def _doublings(problem: Problem) -> tuple[float, float, float]:
    # A dimension of zero counts as one half: one doubling away from 1.
    return math.log2(problem.m or 0.5), math.log2(problem.n or 0.5), math.log2(problem.k or 0.5)
