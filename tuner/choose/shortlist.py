"""Shortlist: configs for a problem on a device, in the order of their expected times.

Look-ups take the first entry, searches begin with all of them and go on to their neighbours, and `explain` prints them.
The records of exactly this product come first, then the entry that a look-up takes without such a record. The others
follow by expected time: first choices of a ranker or of the model of the processor, and winners of near shapes.
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
from ...runtime.store.lookup import LookupResult, filling
from ...runtime.store.record import Record
from .choice import Choice, Source
from .forecast import Forecast

NEAR = 0.25
"""Largest `distance` at which a record whose rows are aligned like the problem's is preferred to a ranker's choice."""
ENTRIES = 240
"""Number of entries of a search's shortlist."""
WINNERS = 4
"""Number of winners of near shapes on a shortlist."""
_Kind: TypeAlias = tuple[str, DType, bool, bool, Grade, int]
"""Device key, type, transposes, accuracy, and 1 for a product, 2 for a batch or 3 for a ragged one."""
_Kinds: TypeAlias = dict[_Kind, tuple[list[Record], NDArray[np.float64]]]
"""Records of each kind, and rows of the logarithms of their m, n, k and batch."""
_last_sorted: tuple[Sequence[Record], _Kinds] = (), {}
"""Records that were last sorted by kind, and the result."""


def look_up(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> LookupResult | None:
    """Choose a config for a problem that was not tuned on a device; None where nothing helps. `Store.lookup` takes this
    function as its ranking."""
    choice = _first(problem, info, records, lambda: Forecast(problem, info).choices(1))
    return None if choice is None else choice.as_lookup(problem, info)


def shortlist(problem: Problem, info: DeviceInfo, records: Sequence[Record], count: int) -> tuple[Choice, ...]:
    """At most `count` entries for a problem on a device, the best first."""
    forecast = Forecast(problem, info)
    predicted = forecast.choices(count)
    first = _first(problem, info, records, lambda: predicted)
    winners = _serving(_winners(problem, info, records), problem, info)
    near = [*([first] if first else []), *itertools.islice(winners, WINNERS)]
    times = forecast.us([choice.config for choice in near])
    near = [c if c.expected_us else replace(c, expected_us=us) for c, us in zip(near, times)]
    defaults = [family() for family in families().values()] if info.arch.is_host else []
    modelled = [Choice(config, Source.MODEL, us) for config, us in zip(defaults, forecast.us(defaults))]
    others = sorted([*predicted, *modelled, *near], key=lambda choice: choice.expected_us or math.inf)
    entries = (*_exact(problem, info, records), *near[: 1 if first else 0], *others)
    return tuple(itertools.islice(_serving(entries, problem, info), count))


def _serving(choices: Iterable[Choice], problem: Problem, info: DeviceInfo) -> Iterator[Choice]:
    """The entries whose configs serve the problem, each config once."""
    served = set[Config]()
    for choice in choices:
        if choice.config not in served and serves(choice.config, problem, info):
            served.add(choice.config)
            yield choice


def _exact(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> Iterator[Choice]:
    """The records of exactly this problem on the device, then records of finer accuracies: a product that needs less
    accuracy must not be slower."""
    here = [record for record in records if record.device == info.key]
    grades = [problem.accuracy, *(grade for grade in Grade if grade.keeps(problem.accuracy))]
    for same in (replace(problem, accuracy=grade) for grade in dict.fromkeys(grades)):
        yield from (Choice(r.config, Source.RECORD, r.median_us, record=r) for r in here if r.problem == same)


def varied(configs: Sequence[Config]) -> list[Config]:
    """The configs in their order, alternating with the first one of each family, tile of C and work decomposition: a
    search learns little from a beginning of similar configs."""
    firsts: dict[tuple[object, ...], Config] = {}
    for config in configs:
        divided = config.split_ctas, config.stream_ctas_per_sm > 0, config.packs
        firsts.setdefault((config.family, config.cta_tile[:2], *divided), config)
    turns = itertools.chain.from_iterable(itertools.zip_longest(firsts.values(), configs))
    return list(dict.fromkeys(filter(None, turns)))


def _first(
    problem: Problem, info: DeviceInfo, records: Sequence[Record], predicted: Callable[[], Sequence[Choice]]
) -> Choice | None:
    """The entry for a problem without a record: a near record of the device or of one that differs only in its memory,
    else the first choice of `predicted`, which is called only where it is needed, else the nearest record of all. A
    near record of a finer accuracy gives way to a predicted kernel that is less accurate and so faster."""
    near = next((record.problem.accuracy for far, record in _within(NEAR, problem, info, records) if not far), None)
    if near is not problem.accuracy:
        for choice in predicted()[:1]:
            if near is None or not choice.config.accuracy.keeps(near):
                return choice
    far = (record for _, record in _within(math.inf, problem, info, records))
    return next(_serving((_suited(record, problem) for record in far), problem, info), None)


def _winners(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> Iterator[Choice]:
    """Entries of the winners of the nearest tuned shapes, on this device and then, for a GPU, on others."""
    same = (record for record in records if record.device == info.key or not info.arch.is_host)
    near = sorted(
        (r for r in same if (r.problem.dtype, _batched(r.problem)) == (problem.dtype, _batched(problem))),
        key=lambda record: (record.device != info.key, distance(record.problem, problem, info)),
    )
    return (_suited(record, problem) for record in near)


def _suited(record: Record, problem: Problem) -> Choice:
    """The entry of another problem's record, with its config adapted to this problem."""
    return Choice(record.config.suited(problem), Source.NEAR, record=record)


def _within(
    doublings: float, problem: Problem, info: DeviceInfo, records: Sequence[Record]
) -> list[tuple[bool, Record]]:
    """The records within a distance of a problem, the best first, and whether each is a far one."""
    kinds, sizes, aligned = _by_kind(records), np.array([_doublings(problem)]), _aligned(problem)
    grades = [grade for grade in Grade if grade.keeps(problem.accuracy)]
    away: list[tuple[bool, bool, bool, float, bool, float, Record]] = []
    for key, grade in itertools.product((info.key, *_siblings(info)), grades):
        kind, other = (key, problem.dtype, problem.trans_a, problem.trans_b, grade, _batched(problem)), key != info.key
        if kind in kinds:
            of_kind, logs = kinds[kind]
            # Among near shapes, and for one shape, a record of the product's own accuracy comes before finer ones.
            finer = grade is not problem.accuracy
            distances = _distances(logs, sizes, info)
            places = (distances < doublings + 1e-9).nonzero()[0]
            for place, distant in zip(places, distances[places].round(9).tolist()):
                record = of_kind[place]
                far = distant > NEAR or _aligned(record.problem) != aligned
                if not (far and other):
                    apart = abs(math.log2(record.problem.batch / problem.batch))
                    away.append((far, other, finer and not far, distant, finer, apart, record))
    away.sort(key=itemgetter(0, 1, 2, 3, 4, 5))
    return [(far, record) for far, *_, record in away]


@cache
def _siblings(info: DeviceInfo) -> tuple[str, ...]:
    """Keys of the other known devices with the same SMs and as many of them."""
    alike = (each for each in KNOWN.values() if (each.arch, each.sm_count) == (info.arch, info.sm_count))
    return tuple(each.key for each in alike if each.key != info.key)


def _by_kind(records: Sequence[Record]) -> _Kinds:
    """Records by their kind. The last result is returned again for the same tuple of records."""
    global _last_sorted
    if _last_sorted[0] is not records:
        groups: dict[_Kind, list[Record]] = {}
        for record in records:
            problem = record.problem
            kind = (
                record.device, problem.dtype, problem.trans_a, problem.trans_b, problem.accuracy, _batched(problem)
            )  # fmt: skip
            groups.setdefault(kind, []).append(record)
        kinds = {kind: (group, np.array([_doublings(r.problem) for r in group])) for kind, group in groups.items()}
        if not isinstance(records, tuple):
            return kinds  # a list may change
        _last_sorted = records, kinds
    return _last_sorted[1]


def _aligned(problem: Problem) -> tuple[int, ...]:
    """Widest vectors, in bytes, of the rows of A, B and C."""
    rows = problem.stored_a[1], problem.stored_b[1], problem.n
    return tuple(math.gcd(row * problem.dtype.size_bytes, 16) for row in rows)


def distance(tuned: Problem, problem: Problem, info: DeviceInfo | None = None) -> float:
    """Distance of two problems: the sum of the doublings between their m, their n, their k and their batches. Batches
    that fill the device count as one size, if `info` says which device it is."""
    return float(_distances(np.array([_doublings(tuned)]), np.array([_doublings(problem)]), info)[0])


def _distances(tuned: NDArray[np.float64], sizes: NDArray[np.float64], info: DeviceInfo | None) -> NDArray[np.float64]:
    """The distances of rows of `_doublings` to one row."""
    if sizes[0, 3] and info is not None:
        tuned, sizes = (np.column_stack([each[:, :3], _in_class(each, info)]) for each in (tuned, sizes))
    distances: NDArray[np.float64] = np.abs(tuned - sizes).sum(axis=1)
    return distances


def _in_class(logs: NDArray[np.float64], info: DeviceInfo) -> NDArray[np.float64]:
    """Logarithms of the batches of rows of `_doublings`, at most that of the least batch that fills the device."""
    least = np.log2([filling(round(elements), info) for elements in np.exp2(logs[:, 0] + logs[:, 1])])
    return np.minimum(logs[:, 3], least)


def _batched(problem: Problem) -> int:
    """The last part of a kind: 1 for a product, 2 for a batch, 3 for a ragged one."""
    return 3 if problem.ragged else 1 if problem.batch == 1 else 2


def _doublings(problem: Problem) -> tuple[float, float, float, float]:
    # A dimension of 0 counts as one half, at a distance of one doubling from 1.
    m, n, k = (math.log2(size or 0.5) for size in (problem.m, problem.n, problem.k))
    return m, n, k, math.log2(problem.batch)
