"""One tuning run: from a problem to the best variant, decided by a duel and kept in the store."""

import hashlib
import json
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import DeviceError, ShapeError, TuningError, check
from ..codegen.families import canonical, family_of, rejections
from ..codegen.problem import Problem
from ..runtime.device.detect import choose, compiler_for
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.record import Record, Status
from ..runtime.store.store import Store
from ..runtime.store.versions import versions_of
from .measure.decide import NAIVE, decided, judge
from .measure.evaluate import Evaluator, InProcess, Phases, Tried
from .measure.pipeline import Isolated
from .recording.replay import Recorder
from .result import EFFORTS, Budget, Progress, Result, Silent
from .search.candidates import Candidates, candidates, read_spaces, with_atomics
from .search.ranked import ranked, recorded
from .search.sampler import Sampler
from .search.samplers import make_sampler

__all__ = ["tune"]

GUESSES = 48
"""First guesses by the analytic model."""
DUEL_ROUNDS = 11
"""Rounds of the final duel at least."""
DUEL_SECONDS = 2.0
"""On a GPU they go on for so long where they take less."""
DUEL_SHARE = 0.2
HOST_DUEL_SHARE = 0.35
"""Share of the seconds kept for the duel; on the processor also for the variant under way when they begin."""
_STOP_OVER = 1.3
"""A variant that takes so many times the best after its first repetitions is not timed any longer."""


@dataclass(slots=True)
class _Tally:
    """What a run adds up."""

    recorder: Recorder
    statuses: Counter[str] = field(default_factory=Counter)
    compile_s: float = 0.0
    verify_s: float = 0.0
    time_s: float = 0.0
    sampler_s: float = 0.0
    best: Record | None = None
    times: dict[Config, float] = field(default_factory=dict)
    order: list[Config] = field(default_factory=list)

    def add(self, tried: Tried) -> None:
        self.recorder.add(tried)
        record = tried.record
        self.statuses[record.status.value] += 1
        self.compile_s += tried.phases.compile_s
        self.verify_s += tried.phases.verify_s
        self.time_s += tried.phases.time_s
        self.order.append(record.config)
        if record.status is Status.OK:
            self.times[record.config] = record.median_us
            if self.best is None or record.median_us < self.best.median_us:
                self.best = record


def tune(
    problem: Problem,
    *,
    device: str = "auto",
    effort: str = "normal",
    trials: int | None = None,
    seconds: float | None = None,
    store: Path | None = None,
    sampler: str = "auto",
    isolation: bool = True,
    spaces: Path | None = None,
    keep: int = 5,
    seed: int = 0,
    record: Path | None = None,
    nondeterministic: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Find the fastest right variant for a problem on a device, and keep it in the store.

    trials and seconds override those of the effort. `keep` contenders meet in the final duel. With `record`, every
    trial of this run is written there as a Kernel Tuner cache file, and beside it as T4 JSON. `nondeterministic` lets
    the search try variants whose results differ in their last bits from run to run. Raises ConfigError,
    ShapeError or DeviceError for bad input, TuningError if no variant works, StoreError if it cannot be kept.
    """
    started = time.monotonic()
    check(min(problem.m, problem.n, problem.k) > 0, f"nothing to tune in {problem}: a dimension is 0", ShapeError)
    budget = _budget(effort, trials, seconds)
    info = choose(device).info
    need = f"{problem} needs {problem.bytes / 1e9:.0f} GB, {info.name} has {info.memory_bytes / 1e9:.0f} GB"
    check(problem.bytes <= info.memory_bytes, need, DeviceError)
    shelf = Store(store)
    versions = versions_of(info, compiler_for(info))
    choices = read_spaces(spaces)
    shelf.make()
    stored = _stored(problem, info, shelf, nondeterministic)
    found = candidates(
        problem,
        info,
        with_atomics(choices) if nondeterministic else choices,
        stored if spaces is None else (),  # those who name a space want a winner out of it
    )
    search = _search(sampler, found, shelf, stored, problem, info, versions, budget, seed)
    progress = progress or Silent()
    resumed = len(search.history)
    progress.started(problem, info, found, budget, resumed)
    tally = _Tally(Recorder(found))
    for point, time_us in search.history:
        if time_us is not None:
            tally.times[found.config_at(point)] = time_us
    evaluator: Evaluator = Isolated(info, problem) if isolation else InProcess(info, problem)
    try:
        with _interrupts() as interrupted:
            deadline = started + budget.seconds * (1 - (HOST_DUEL_SHARE if info.arch.is_host else DUEL_SHARE))
            try:
                stopped = _explore(search, evaluator, found, budget, deadline, resumed, tally, progress, interrupted)
            finally:
                if record is not None:
                    tally.recorder.write(record, problem, info)
            if not tally.times:
                causes = ", ".join(f"{count} {status}" for status, count in tally.statuses.most_common())
                raise TuningError(f"no variant of {problem} works on {info.name}: {causes or 'none was tried'}")
            ranking = sorted(tally.times, key=lambda config: (tally.times[config], canonical(config)))[:keep]
            ranking += [config for config in stored if config in tally.times and config not in ranking]
            left = started + budget.seconds - time.monotonic()
            finalists, rounds = _duellists(tuple(ranking), tally.times, info, left)
            progress.duelling(finalists)
            duelled = time.monotonic()
            longer = 0.0 if info.arch.is_host else min(DUEL_SECONDS, left / 5)
            duel = evaluator.duel((*finalists, *(() if NAIVE in finalists else (NAIVE,))), rounds, longer)
        busy, idle_s = _use(evaluator, time.monotonic() - duelled)
        compilers = evaluator.processes if isinstance(evaluator, Isolated) else 0
    finally:
        evaluator.close()
        search.close()
    contenders = judge(duel, () if NAIVE in found.configs else (str(NAIVE),))
    best = decided(problem, info, contenders, versions)
    shelf.keep(best, replace=True)
    return Result(
        problem=problem,
        device=info,
        best=best,
        contenders=contenders,
        trials=resumed + len(tally.order),
        resumed=resumed,
        statuses=tuple(tally.statuses.most_common()),
        pruned=found.pruned,
        phases=Phases(tally.compile_s, tally.verify_s, tally.time_s),
        sampler_s=tally.sampler_s,
        seconds=time.monotonic() - started,
        busy_share=busy,
        idle_s=idle_s,
        compilers=compilers,
        guessed_us=min((tally.times.get(config, math.inf) for config in tally.order[:16]), default=math.inf),
        stopped=stopped,
    )


def _budget(effort: str, trials: int | None, seconds: float | None) -> Budget:
    check(effort in EFFORTS, f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    check(trials is None or trials > 0, f"trials must be positive, got {trials}")
    check(seconds is None or (seconds > 0 and math.isfinite(seconds)), f"seconds must be positive, got {seconds}")
    default = EFFORTS[effort]
    return Budget(trials or default.trials, seconds or default.seconds)


def _search(
    name: str,
    found: Candidates,
    shelf: Store,
    stored: list[Config],
    problem: Problem,
    info: DeviceInfo,
    versions: tuple[tuple[str, str], ...],
    budget: Budget,
    seed: int,
) -> Sampler:
    """The sampler, its history of earlier runs read and its first guesses queued.

    The study's name holds all that a time depends on, so that a run resumes only what is comparable.
    """
    facts = [info.key, str(problem), *map(list, versions), [[d.name, list(d.choices)] for d in found.space.dimensions]]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    study = f"{problem.shape}-{problem.dtype.value}-{problem.trans} {info.key} {digest}"
    journal = shelf.root / "trials" / f"{digest}.log"
    search = make_sampler(name, found.space, seed, journal, budget.trials, study)
    guesses = [*stored, *recorded(problem, info, shelf), *ranked(problem, info, found.configs)[:GUESSES]]
    search.seed(point for point in map(found.point_of, guesses) if point is not None)
    return search


def _explore(
    search: Sampler,
    evaluator: Evaluator,
    found: Candidates,
    budget: Budget,
    deadline: float,
    resumed: int,
    tally: _Tally,
    progress: Progress,
    interrupted: list[int],
) -> str:
    """Ask, try and tell until a limit; returns what ended it."""
    asked = resumed
    stopped = ""
    while True:
        while not stopped and evaluator.room() > 0 and (search.ready() or not evaluator.busy()):
            if asked >= budget.trials:
                stopped = "trials"
                break
            begin = time.perf_counter()
            point = search.ask()
            tally.sampler_s += time.perf_counter() - begin
            if point is None:
                stopped = "space"
                break
            evaluator.submit(found.config_at(point))
            asked += 1
        best_us = min(tally.times.values(), default=math.inf)
        waits_for_sampler = not stopped and evaluator.room() > 0
        for tried in evaluator.results(0.01 if waits_for_sampler else 0.2, _STOP_OVER * best_us):
            tally.add(tried)
            record = tried.record
            point = found.point_of(record.config)
            assert point is not None
            time_us = record.median_us if record.status is Status.OK else None
            begin = time.perf_counter()
            search.tell(point, time_us, status=record.status.value, reason=record.reason)
            tally.sampler_s += time.perf_counter() - begin
            progress.tried(tried, tally.best)
        if interrupted:
            return "interrupt"
        if evaluator.given_up():
            return f"crashes: {evaluator.given_up()}"
        if time.monotonic() > deadline:
            return "seconds"
        if stopped and not evaluator.busy():
            return stopped


def _stored(problem: Problem, info: DeviceInfo, shelf: Store, nondeterministic: bool) -> list[Config]:
    """What the store has for the problem: it meets its successor, however lucky the others were in the search, and
    though the model or the families' advice may leave it out by now."""
    configs = (record.config for record in shelf.records(info.key) if record.problem == problem)
    return [
        config
        for config in configs
        if next(rejections(problem, config, info.arch), None) is None
        and (nondeterministic or not family_of(config).atomic(config))
    ]


def _duellists(
    ranking: tuple[Config, ...], times: dict[Config, float], info: DeviceInfo, seconds: float
) -> tuple[tuple[Config, ...], int]:
    """Who meets in the duel, and for how many rounds: fewer where the processor would take longer than is left."""
    if not info.arch.is_host:
        return ranking, DUEL_ROUNDS
    # Each contender is checked twice, launched once to size its batch, then timed; the naive default and the
    # vendor's library come on top and are taken for as slow as the best.
    for count in range(len(ranking), 0, -1):
        round_s = max(5e-3, (sum(times[c] for c in ranking[:count]) + 2 * times[ranking[0]]) / 1e6)
        rounds = int(0.6 * seconds / round_s) - 4
        if rounds >= min(3, count) or count == 1:
            return ranking[:count], max(1, min(DUEL_ROUNDS, rounds))
    raise AssertionError


def _use(evaluator: Evaluator, duel_s: float) -> tuple[float | None, float | None]:
    """The share of the time after ten seconds in which the worker was busy, and the seconds in which it was idle."""
    if not isinstance(evaluator, Isolated):
        return None, None
    whole_s = time.monotonic() - evaluator.usage.started
    # The duel waits for the variants under way, which are counted already: hence the limits.
    idle_s = max(0.0, whole_s - evaluator.usage.busy_s - duel_s)
    late_s = whole_s - 10.0
    return min(1.0, (evaluator.usage.busy_late_s + duel_s) / late_s) if late_s > 1.0 else None, idle_s


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Signals that ask for the end: noted the first time, obeyed at once the second."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
