"""Shortlist: configs for a problem on a device, in order of the time that is expected of them.

Look-ups take the first entry, a search, that of first use too, begins with them and goes on to their neighbours,
`explain` prints them. In order come the records of just this product, then what a look-up takes where there is none,
then all others by expected time: what a ranker puts first, or the model of the processor, and winners of near shapes.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.legality import serves
from ...codegen.problem import DType, Grade, Problem
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.lookup import LookupResult
from ...runtime.store.record import Record
from .choice import Choice, Source
from .forecast import Forecast

NEAR = 0.25
"""Doublings of m, n and k, added up, within which a record whose rows are aligned as the problem's are is taken before
what was learned from others."""
ENTRIES = 240
"""Entries of the shortlist of a search."""
WINNERS = 4
"""Winners of near shapes that are on a shortlist."""
_Kind: TypeAlias = tuple[str, DType, bool, bool, Grade]
"""Device, type, transposes and accuracy."""
_Kinds: TypeAlias = dict[_Kind, tuple[list[Record], NDArray[np.float64]]]
"""Records, and the logarithms of their m, n and k, a row each."""
_sorted: tuple[Sequence[Record], _Kinds] = (), {}


def look_up(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> LookupResult | None:
    """What to run for a problem that was not tuned on a device; None where nothing helps. The ranking that
    `Store.lookup` takes."""
    choice = _first(problem, info, records, lambda: Forecast(problem, info).choices(1))
    return None if choice is None else choice.found(info)


def shortlist(problem: Problem, info: DeviceInfo, records: Sequence[Record], count: int) -> tuple[Choice, ...]:
    """At most `count` entries for a problem on a device, the one to take first."""
    forecast = Forecast(problem, info)
    predicted = forecast.choices(count)
    first = _first(problem, info, records, lambda: predicted)
    winners = _serving(_winners(problem, info, records), problem, info)
    near = [*([first] if first else []), *itertools.islice(winners, WINNERS)]
    times = forecast.us([choice.config for choice in near])
    near = [c if c.expected_us else replace(c, expected_us=us) for c, us in zip(near, times)]
    defaults = [family() for family in families().values()] if info.arch.is_host else []
    begun = (Choice(config, Source.MODEL, us) for config, us in zip(defaults, forecast.us(defaults)))
    others = [*predicted, *_serving(begun, problem, info), *near]
    others.sort(key=lambda choice: choice.expected_us or math.inf)
    found: dict[Config, Choice] = {}
    exact = _serving(_exact(problem, info, records), problem, info)
    for choice in (*exact, *near[: 1 if first else 0], *others):
        found.setdefault(choice.config, choice)
    return tuple(itertools.islice(found.values(), count))


def _serving(choices: Iterable[Choice], problem: Problem, info: DeviceInfo) -> Iterator[Choice]:
    """The entries whose configs serve the problem, each config once."""
    found = set[Config]()
    for choice in choices:
        if choice.config not in found and serves(choice.config, problem, info):
            found.add(choice.config)
            yield choice


def _exact(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> Iterator[Choice]:
    """The records of just this problem on the device, and after them those of finer accuracies: asking for less
    accuracy must not make a product slower."""
    here = [record for record in records if record.device == info.key]
    grades = [problem.accuracy, *(grade for grade in Grade if grade.keeps(problem.accuracy))]
    for same in (replace(problem, accuracy=grade) for grade in dict.fromkeys(grades)):
        yield from (Choice(r.config, Source.RECORD, r.median_us, record=r) for r in here if r.problem == same)


def varied(configs: Sequence[Config]) -> list[Config]:
    """The configs in their order and, in turn with it, the first of each family, tile of C and decomposition: a search
    that begins with nearly equal ones learns little."""
    firsts: dict[tuple[object, ...], Config] = {}
    for config in configs:
        divided = config.split_ctas, config.stream_ctas_per_sm > 0, config.packs
        firsts.setdefault((config.family, config.cta_tile[:2], *divided), config)
    turns = itertools.chain.from_iterable(itertools.zip_longest(firsts.values(), configs))
    return list(dict.fromkeys(filter(None, turns)))


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
    far = (record for _, record in _within(math.inf, problem, info, records))
    return next(_serving((_suited(record, problem) for record in far), problem, info), None)


def _winners(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> Iterator[Choice]:
    """The winners of the nearest tuned shapes: of this device, then, on a GPU, of others."""
    same = (record for record in records if record.device == info.key or not info.arch.is_host)
    near = sorted(
        (record for record in same if record.problem.dtype is problem.dtype),
        key=lambda record: (record.device != info.key, distance(record.problem, problem)),
    )
    return (_suited(record, problem) for record in near)


def _suited(record: Record, problem: Problem) -> Choice:
    """The config of a record of another problem as it may serve this one."""
    return Choice(record.config.suited(problem), Source.NEAR, record=record)


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


def _aligned(problem: Problem) -> tuple[int, ...]:
    """Bytes that a vector of A, B and C can have."""
    rows = problem.stored_a[1], problem.stored_b[1], problem.n
    return tuple(math.gcd(row * problem.dtype.size_bytes, 16) for row in rows)


def distance(tuned: Problem, problem: Problem) -> float:
    """Distance of two shapes: doublings of m, of n and of k, added up."""
    return sum([abs(one - other) for one, other in zip(_doublings(tuned), _doublings(problem))])


def _doublings(problem: Problem) -> tuple[float, float, float]:
    # A dimension of zero counts as one half: one doubling away from 1.
    return math.log2(problem.m or 0.5), math.log2(problem.n or 0.5), math.log2(problem.k or 0.5)
