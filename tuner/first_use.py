"""A shape that was not tuned, at its first use: a few likely kernels are compiled side by side, verified and timed."""

import itertools
import math
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace

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
from .measure.decide import median, paired_if_timed
from .measure.evaluate import FAILURES, MEASURING, Bench
from .search.nearest import predictions
from .search.ranked import recorded

MOST = 12
"""Kernels that are tried."""
_STOP_OVER, _ROUNDS = 1.3, 7
_BESIDE_SECONDS = 0.2
"""Of the time that is given, for timing the winner beside the vendor's library."""


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
    with MEASURING:
        kept = store.best(info.key, problem)
        if kept is not None and serves(kept.config, problem, info.arch):
            return Found(kept.config, "exact", kept)
        configs = likely(problem, info, tuple(store.records()), found.config)
        building = _building(device, problem, configs)
        bench = Bench(device, problem)
        with suppress(*FAILURES):
            bench.load_vendor()  # compilers are under way, so this takes no time of its own
        best = _fastest(bench, building, begin + seconds - _BESIDE_SECONDS)
        if best is None:
            return found
        record = _beside_vendor(bench, replace(best, effort=FIRST_USE))
        try:
            store.keep(record, replace=kept is not None)  # that one cannot serve, however fast
        except TilewrightError as error:
            warnings.warn(f"measured, but not kept: {error}", stacklevel=5)
        return Found(record.config, "exact", record)


def likely(problem: Problem, info: DeviceInfo, records: Sequence[Record], first: Config) -> list[Config]:
    """At most MOST configs: the first, then in turn winners of near shapes and, on a GPU, what is predicted to be
    fast."""
    near = recorded(problem, info, records, MOST)
    expected = [each.config for each in predictions(problem, info, MOST)]
    turns = itertools.chain.from_iterable(itertools.zip_longest(near, expected))
    return list(dict.fromkeys([first, *(config for config in turns if config is not None)]))[:MOST]


def _building(device: Device, problem: Problem, configs: Sequence[Config]) -> dict[Future[None], Config]:
    """The configs, each with its compilation, which ends in the cache; all are under way. A failure is told by who asks
    for that one."""

    def build(source: KernelSource) -> None:
        with suppress(TilewrightError):
            compile_cached(device.compiler, source)

    # Rendered here: the first time templates are compiled, which threads would do side by side under one lock.
    sources = {config: render(problem, config, device.info.arch) for config in configs}
    pool = ThreadPoolExecutor(min(len(configs), len(os.sched_getaffinity(0))))
    started = {pool.submit(build, source): config for config, source in sources.items()}
    pool.shutdown(wait=False)
    return started


def _beside_vendor(bench: Bench, record: Record) -> Record:
    """The record with how the vendor's library does beside it, on a GPU where it can be had."""
    if bench.device.info.arch.is_host:
        return record
    try:
        theirs, ours = bench.beside_vendor(record.config, _ROUNDS)
    except FAILURES:
        return record
    ratio, within = paired_if_timed(theirs, ours)
    return replace(record, vendor_us=median(theirs), ratio_vendor=ratio, ratio_interval=within)


def _fastest(bench: Bench, building: dict[Future[None], Config], deadline: float) -> Record | None:
    """The fastest of those that are compiled by the deadline; it waits longer for the first that works alone."""
    if bench.device.info.arch.is_host:
        wait(building)  # compilers would take the processor from what is timed
    best: Record | None = None
    while building:
        left = None if best is None else max(0.0, deadline - time.monotonic())
        done, _ = wait(building, left, FIRST_COMPLETED)
        for config in [building.pop(future) for future in tuple(building) if future in done]:
            if best is not None and time.monotonic() > deadline:
                break
            tried = bench.try_variant(config, _STOP_OVER * best.median_us if best else math.inf)
            if tried.record.median_us < (best.median_us if best else math.inf):
                best = tried.record
            if tried.fault:
                return best  # the device is in error: the next call tells
        if best is not None and time.monotonic() > deadline:
            break
    for future in building:
        future.cancel()
    return best
