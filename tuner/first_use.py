"""A shape that was not tuned, at its first use: a few likely kernels are compiled side by side, verified and timed,
and then, while time is left, what is next to the fastest of them."""

import itertools
import math
import os
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ..codegen.config import Config
from ..codegen.errors import CaptureError, TilewrightError, check
from ..codegen.legality import serves
from ..codegen.problem import Problem
from ..codegen.render import render
from ..codegen.source import KernelSource
from ..runtime.device.cache import compile_cached
from ..runtime.device.protocol import Device, DeviceInfo
from ..runtime.store.found import Found
from ..runtime.store.record import FIRST_USE, Record
from ..runtime.store.store import Store
from .choose.shortlist import Choice, Source, distance, shortlist
from .measure.evaluate import FAILURES, MEASURING, Bench
from .measure.ratios import median
from .search.neighbours import neighbours

MOST = 12
"""Kernels that are tried at a time."""
_WINNERS, _NEAR = 2, 3.0
"""Winners of other shapes that are tried on a GPU, and the doublings of m, n and k, added up, within which they are."""
_RANKED = 100
"""Entries of the shortlist of which the first of each family is tried: the configs of one family may all be taken for
slower than they are."""
_GAIN = 0.005
"""Where what is next to the fastest is not so much faster, the search ends."""
_WAITING = 4
"""So few are left to be tried when the next ones are begun to be compiled."""
_LEAST_SECONDS = 0.5
"""Nothing more is compiled where less is left."""
_STOP_OVER, _ROUNDS = 1.3, 7
_CONTENDERS, _NEARLY = 3, 1.03
"""The fastest are timed side by side at the end, at most so many, and those that were at most so much slower."""
_KEPT_TRIES = 9
"""For that, the vendor's library included, as much time is kept as so many tries take."""
_TRY_SECONDS = 0.03
"""What one try takes, until that is known. The first does not count: it loads what all of them need."""


def measured(device: Device, problem: Problem, store: Store, found: Found, seconds: float) -> Found:
    """The fastest right kernel of a few likely ones, of which what the look-up found is the first; it is kept in the
    store.

    Takes some `seconds`, on memory of its own; the processor waits. Where another thread kept a record meanwhile, that
    is it. Raises CaptureError while the current stream is captured, LaunchError where no memory is left.
    """
    info, begin = device.info, time.monotonic()
    with device.entered():
        capturing = device.capturing(device.stream())
    text = f"{problem} is not ready, and nothing is measured while a graph is captured"
    check(not capturing, f"{text}: call tilewright.prepare('{problem.shape}', measure=True) before", CaptureError)
    with MEASURING.alone():
        kept = store.best(info.key, problem)
        if kept is not None and serves(kept.config, problem, info):
            return Found(kept.config, "exact", kept)
        configs = likely(problem, info, tuple(store.records()), found.config)
        with ThreadPoolExecutor(1) as aside:  # on a bare machine both have much to compile
            building = aside.submit(_building, device, problem, configs)
            bench = Bench(device, problem)
        if not info.arch.is_host:
            with suppress(*FAILURES):
                bench.warm()  # compilers are under way, so this takes no time of its own
        tries = _searched(bench, building.result(), begin + seconds)
        if not tries.found:
            return found
        record = replace(_decided(bench, tries.found), effort=FIRST_USE)
        try:
            store.keep(record, replace=kept is not None)  # that one cannot serve, however fast
        except TilewrightError as error:
            warnings.warn(f"measured, but not kept: {error}", stacklevel=5)
        return Found(record.config, "exact", record)


def likely(problem: Problem, info: DeviceInfo, records: Sequence[Record], first: Config) -> list[Config]:
    """At most MOST configs: the first, then on a GPU the first of each family on the shortlist, and the shortlist in
    turn with winners of near shapes; on the processor these winners and the shortlist."""
    ranked = shortlist(problem, info, records, _RANKED)
    near = [choice.config for choice in ranked if _is_near(choice, problem)][: MOST if info.arch.is_host else _WINNERS]
    expected = [choice.config for choice in ranked if choice.source not in (Source.RECORD, Source.NEAR)]
    firsts = {config.family: config for config in reversed(expected)}
    turns = itertools.chain.from_iterable(itertools.zip_longest(near, expected))
    others = (*near, *expected) if info.arch.is_host else (*firsts.values(), *filter(None, turns))
    return list(dict.fromkeys([first, *others]))[:MOST]


def _is_near(choice: Choice, problem: Problem) -> bool:
    """Whether an entry of the shortlist is a winner of a near shape."""
    return choice.record is not None and distance(choice.record.problem, problem) <= _NEAR


def _building(device: Device, problem: Problem, configs: Sequence[Config]) -> dict[Future[None], Config]:
    """The configs, each with its compilation, which ends in the cache; all are under way. A failure is told by who asks
    for that one."""

    def build(source: KernelSource) -> None:
        with suppress(TilewrightError):
            compile_cached(device.compiler, source)

    # Rendered here: the first time templates are compiled, which threads would do side by side under one lock.
    sources = {config: render(problem, config, device.info) for config in configs}
    pool = ThreadPoolExecutor(min(len(configs), len(os.sched_getaffinity(0))))
    started = {pool.submit(build, source): config for config, source in sources.items()}
    pool.shutdown(wait=False)
    return started


@dataclass(slots=True)
class _Tries:
    """What was tried, and how long it took."""

    end: float
    """When the time is up, by the monotonic clock."""
    found: list[Record] = field(default_factory=list)
    """What works."""
    seconds: list[float] = field(default_factory=list)
    """Of each try."""

    @property
    def left(self) -> float:
        """Seconds until it has to be decided."""
        each = statistics.median(self.seconds[1:] or [_TRY_SECONDS])
        return self.end - _KEPT_TRIES * each - time.monotonic()

    @property
    def fastest(self) -> Record:
        """Of what works."""
        return min(self.found, key=attrgetter("median_us"))


def _decided(bench: Bench, found: Sequence[Record]) -> Record:
    """The fastest; on a GPU of those that were nearly as fast the one that is when they are timed side by side, with
    how the vendor's library does beside it where it can be had."""
    first, *others = sorted(found, key=attrgetter("median_us"))[:_CONTENDERS]
    if bench.device.info.arch.is_host:
        return first
    near = {r.config: r for r in (first, *(r for r in others if r.median_us <= _NEARLY * first.median_us))}
    try:
        rounds, behind_us = bench.beside_vendor(tuple(near), _ROUNDS, first.median_us)
    except FAILURES:
        return first
    best = min(near, key=lambda config: statistics.median(rounds.samples[config]))
    if rounds.is_noisy:
        return near[best]
    record = near[best]
    if behind_us is not None:
        return replace(record, vendor_us=behind_us, ratio_vendor=behind_us / statistics.median(rounds.samples[best]))
    vendor_us, (ratio, within) = median(rounds.samples.get(None, ())), rounds.ratio(None, best)
    return replace(record, vendor_us=vendor_us, ratio_vendor=ratio, ratio_interval=within)


def _searched(bench: Bench, building: dict[Future[None], Config], end: float) -> _Tries:
    """What is being compiled is tried and, on a GPU, what is next to the fastest, step by step until it has to be
    decided. A step begins while the last kernels of the one before wait, so that the device need not."""
    info, problem, asked = bench.device.info, bench.problem, set(building.values())
    tries, before, left, fault = _Tries(end), math.inf, 0 if info.arch.is_host else _WAITING, False
    while building and not fault:
        fault = _try(bench, building, tries, left)
        beside = list[Config]()
        fastest_us = min((record.median_us for record in tries.found), default=math.inf)
        if not (fault or info.arch.is_host) and tries.left > _LEAST_SECONDS and fastest_us < (1 - _GAIN) * before:
            beside = [config for config in _next_to(tries, problem, info) if config not in asked][:MOST]
            asked.update(beside)
            before = fastest_us
            building |= _building(bench.device, problem, beside)
        left = _WAITING if beside else 0
    for future in building:
        future.cancel()
    return tries


def _next_to(tries: _Tries, problem: Problem, info: DeviceInfo) -> Iterator[Config]:
    """What is next to the fastest, and in turn to the fastest of each other family that is not far behind."""
    of_family: dict[str, Record] = {}
    for record in sorted(tries.found, key=attrgetter("median_us")):
        of_family.setdefault(record.config.family, record)
    near = (record for record in of_family.values() if record.median_us <= _STOP_OVER * tries.fastest.median_us)
    best, *others = (neighbours(record.config, problem, info) for record in near)
    return filter(None, itertools.chain.from_iterable(itertools.zip_longest(best[::2], best[1::2], *others)))


def _try(bench: Bench, building: dict[Future[None], Config], tries: _Tries, left: int) -> bool:
    """Tries what is compiled in time until so many wait; what is late is taken out. It waits longer for the first of
    all alone. Whether the device is in error now."""
    if bench.device.info.arch.is_host:
        wait(building)  # compilers would take the processor from what is timed
    found = tries.found
    while building and not (found and len(building) <= left):
        done, _ = wait(building, max(0.0, tries.left) if found else None, FIRST_COMPLETED)
        if found and (not done or tries.left < 0):
            for future in building:
                future.cancel()
            building.clear()
            break
        config = building.pop(next(future for future in building if future in done))
        begin = time.monotonic()
        tried = bench.try_variant(config, _STOP_OVER * tries.fastest.median_us if found else math.inf)
        tries.seconds.append(time.monotonic() - begin)
        if tried.record.median_us < math.inf:
            found.append(tried.record)
        if tried.fault:  # the next call tells
            return True
    return False
