"""One tuning run: from a problem to the best variant, decided by a duel and kept in the store."""

import math
import time
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType

from ..codegen.config import Config
from ..codegen.errors import StoreError, TuningError, check, check_path, check_type, nearest_of
from ..codegen.problem import DTypeLike, GradeLike, Problem, Shape, Trans
from ..runtime.device.detect import choose, compiler_for
from ..runtime.device.protocol import DeviceInfo, DeviceName
from ..runtime.files import check_output
from ..runtime.store.record import Record, Status
from ..runtime.store.store import Store
from ..runtime.store.versions import versions_of
from .ending import Watched, check_time, noting_signals, why_nothing
from .measure.decide import NAIVE, aa_spread, decided, judge
from .measure.evaluate import FAR_BEHIND, Duel, InProcess, Phases, Tried
from .measure.pipeline import TRY_LIMIT_S, Isolated
from .plan import Plan, check_tunable, named, searched
from .recording.entry import Entry
from .recording.files import Recording, t4_path, write_both
from .result import Progress, Result
from .search.space import Point
from .settings import EFFORTS, Budget, Effort, SamplerName

Evaluator = Isolated | InProcess

DUEL_ROUNDS = 11
"""Rounds of the final duel at least."""
DUEL_SECONDS = 2.0
"""On a GPU they go on for so long where they take less."""
DUEL_SHARE = 0.2
HOST_DUEL_SHARE = 0.35
"""Share of the seconds kept for the duel; on the processor also for the variant under way when they begin."""


def tune(
    problem: Shape,
    *,
    dtype: DTypeLike | None = None,
    trans: Trans | None = None,
    trans_a: bool | None = None,
    trans_b: bool | None = None,
    accuracy: GradeLike | None = None,
    device: DeviceName = "auto",
    effort: Effort = "normal",
    trials: int | None = None,
    seconds: float | None = None,
    store: Path | str | None = None,
    sampler: SamplerName = "gp",
    isolation: bool = True,
    spaces: Path | str | None = None,
    keep: int = 5,
    seed: int = 0,
    configs: Sequence[Config] = (),
    record: Path | str | None = None,
    progress: Progress | None = None,
    replace: bool = False,
) -> Result:
    """Find the fastest right variant for a shape on a device, and keep it in the store: `tune("1024x768x512")`.

    What the store has for the problem, of the user's own and of what ships, is timed beside the fastest in a final
    duel, whatever is searched: it gives way only to what is faster there, or with `replace`. A run goes on from the
    trials of earlier ones of the same problem, device, versions and space. In the main thread SIGINT and SIGTERM end
    the search and leave the duel and the store to finish.

    Args:
        problem: "1024x768x512" (M x N x K), "1024" for a cube, (m, n, k), or a Problem, which has dtype, transposes and
            accuracy of its own; no dimension may be 0.
        dtype: float or double, or a type of that name of NumPy, CuPy or torch; None for float.
        trans: nn, nt, tn or tt: which of A and B are stored transposed; None for nn.
        trans_a: whether A is stored k x m, in place of `trans`.
        trans_b: whether B is stored n x k, in place of `trans`.
        accuracy: ieee, or for float elementwise or normwise; None for ieee.
        device: auto (the first GPU, else the processor), cuda, cuda:N or host.
        effort: quick (32 trials, 20 s), normal (600 trials, 45 s) or full (100,000 trials, 900 s).
        trials: variants tried at most, in place of the effort's.
        seconds: wall time at most, the duel included, in place of the effort's. What the library would run now is
            waited for as long again, where it was not tried by then.
        store: folder of records; None for that of the user.
        sampler: gp, tpe, random, exhaustive, or optuna:NAME for a class of `optuna.samplers`.
        isolation: whether variants run in a process of their own, so that a crash costs only that.
        spaces: folder of *.toml files with the values to combine; None for those of the package.
        keep: how many contenders meet in the final duel.
        seed: of the sampler: the same one gives it the same random numbers; what it suggests depends on times too.
        configs: just these are tried, and meet what the library would run now; the winner is kept if it is one of them.
        record: file for every trial, those of earlier runs that this one resumes among them, as a Kernel Tuner cache
            file; beside it the same as T4 JSON. Where that fails in the end, it costs an OutputWarning.
        progress: told what happens meanwhile.
        replace: keep the fastest of what is searched or of `configs` even where what is stored is faster.

    Raises:
        ArgumentTypeError, ShapeError, ConfigError: bad input.
        DeviceError: no such device, or one with too little memory.
        TuningError: no variant works.
        StoreError: the winner cannot be kept.
        KeyboardInterrupt: it was interrupted before anything worked.
    """
    from .search.study import check_sampler

    started = time.monotonic()
    problem = Problem.parse(problem, dtype, trans, accuracy, trans_a=trans_a, trans_b=trans_b)
    budget = _budget(effort, trials, seconds)
    _check_options(keep, seed, progress, replace)
    check_sampler(sampler)
    info = choose(device).info
    configs = tuple(dict.fromkeys(configs))
    check_tunable(problem, info, configs)
    check_time(problem, info, budget, TRY_LIMIT_S if isolation else math.inf)
    shelf, folder, file = Store(check_path("store", store)), check_path("spaces", spaces), _writable(record)
    versions = versions_of(info, compiler_for(info))
    shelf.make()
    interrupted: list[int] = []
    with ExitStack() as starting:
        # Its processes start, and the device with them, while this one lists what may be tried.
        evaluator: Evaluator = Isolated(info, problem) if isolation else InProcess(info, problem)
        starting.callback(evaluator.close)
        if configs:
            plan = named(problem, info, shelf, configs)
            budget = Budget(len(plan.found.configs), budget.seconds)
        else:
            plan = searched(problem, info, shelf, versions, folder, sampler, seed, keep)
        processes = starting.pop_all()
    found, run = plan.found, _Run(plan, budget, Watched(progress or Progress(), interrupted))
    with ExitStack() as ending:
        ending.callback(plan.search.close)
        if file is not None:
            ending.callback(lambda: write_both(file, run.recording(problem, info)))
        ending.push(processes)  # which end first
        run.progress.started(problem, info, found, budget, run.resumed)
        for point, entry in plan.earlier.items():
            run.progress.resumed(problem, info, found.config_at(point), entry)
        with noting_signals(interrupted):
            deadline = started + budget.seconds * (1 - (HOST_DUEL_SHARE if info.arch.is_host else DUEL_SHARE))
            stopped = run.explore(evaluator, deadline, interrupted)
            if not run.worked:
                if stopped == "interrupt":
                    raise KeyboardInterrupt
                raise TuningError(run.why_nothing(problem, info, stopped, shelf.root / "trials"))
            duelled = time.monotonic()
            duel = run.duel(evaluator, info, started + budget.seconds - duelled)
        busy_share, idle_s = evaluator.use(time.monotonic() - duelled)
        others = [side.config for side in duel if side.config is not None and not plan.chooses(side.config)]
        compared = tuple(config for config in others if replace or config not in plan.first)
        contenders = judge(duel, compared, plan.stored)
        best = decided(problem, info, contenders, versions, _told(effort, budget))
        keeps = not configs or best.config in configs
        outdone = keeps and not _keep(shelf, best, run.beaten(duel), replace)
    return Result(
        problem=problem,
        device=info,
        best=best,
        contenders=contenders,
        trials=run.resumed + len(run.entries),
        resumed=run.resumed,
        statuses=tuple(_counted(run.entries)),
        pruned=found.pruned,
        phases=run.phases(),
        sampler_s=run.sampler_s,
        seconds=time.monotonic() - started,
        busy_share=busy_share,
        idle_s=idle_s,
        compilers=len(evaluator.compilers),
        guessed_us=min((each.time_us for each in [*run.outcomes.values()][:16] if each.time_us), default=None),
        stopped=stopped,
        sampler="" if configs else sampler,
        seed=seed,
        named=configs,
        outdone=outdone,
        aa_spread=aa_spread(duel),
    )


def _keep(shelf: Store, best: Record, beaten: Collection[Config], replace: bool) -> bool:
    """Whether the winner is in the store now: a record that was not in the duel gives way only to a lower time."""
    try:
        return shelf.keep(best, beaten=beaten, replace=replace)
    except StoreError as error:  # the text is all that is left of the winner
        raise StoreError(f"{error}; the winner, which is not kept: {best.config}, {best.median_us:.4g} us") from error


def _check_options(keep: int, seed: int, progress: Progress | None, replace: bool) -> None:
    check_type("keep", keep, int, "a whole number")
    check(keep > 0, f"keep must be positive, got {keep}")
    check_type("seed", seed, int, "a whole number")
    check_type("progress", progress, (Progress, NoneType), "a Progress")
    check_type("replace", replace, bool, "True or False")


def _writable(record: Path | str | None) -> Path | None:
    """Where a recording goes, tried before anything is tuned for it."""
    file = check_path("record", record)
    for each in (file, t4_path(file)) if file else ():
        check_output("record", each)
    return file


def _budget(effort: Effort, trials: int | None, seconds: float | None) -> Budget:
    check_type("trials", trials, (int, NoneType), "a whole number")
    check_type("seconds", seconds, (int, float, NoneType), "a number")
    check_type("effort", effort, str, "a name")
    text = f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}{nearest_of(effort, [*EFFORTS])}"
    check(effort in EFFORTS, text)
    check(trials is None or trials > 0, f"trials must be positive, got {trials}")
    check(seconds is None or 0 < seconds < 1e9, f"seconds must be positive and below 10^9, got {seconds}")
    default = EFFORTS[effort]
    return Budget(trials or default.trials, seconds or default.seconds)


def _told(effort: Effort, budget: Budget) -> str:
    return effort if budget == EFFORTS[effort] else f"{budget.trials} trials or {budget.seconds:g} s"


@dataclass(slots=True)
class _Run:
    """A run on its way: what was tried, and what it adds up."""

    plan: Plan
    budget: Budget
    progress: Progress
    sampler_s: float = 0.0
    best: Record | None = None
    best_us: float = math.inf
    """The least time of the search, earlier runs of it included."""
    times: dict[Config, float] = field(default_factory=dict)
    entries: dict[Point, Entry] = field(default_factory=dict)
    awaited: set[Config] = field(default_factory=set)
    """The first variants of the plan that are under way."""
    aside: set[Config] = field(default_factory=set)
    """Stored configs that are no trials of this search: they are tried for the duel alone."""

    def __post_init__(self) -> None:
        for point, entry in self.plan.earlier.items():
            if entry.time_us is not None:
                self.times[self.plan.found.config_at(point)] = entry.time_us
                self.best_us = min(self.best_us, entry.time_us)

    @property
    def resumed(self) -> int:
        """Variants that earlier runs tried."""
        return len(self.plan.earlier)

    def explore(self, evaluator: Evaluator, deadline: float, interrupted: list[int]) -> str:
        """Ask, try and tell until a limit; returns what ended it."""
        begun: set[Point] = set()
        for config in self.plan.first:
            point = self.plan.found.point_of(config)
            as_trial = point is not None and point not in self.plan.earlier
            as_trial = as_trial and self.resumed + len(begun) < self.budget.trials
            if config not in self.times and (as_trial or config in self.plan.stored):
                evaluator.submit(config)
                self.awaited.add(config)
                if point is not None and as_trial:
                    begun.add(point)
                else:
                    self.aside.add(config)
        asked = self.resumed + len(begun)
        stopped = ""
        while True:
            while not stopped and evaluator.room() > 0 and (self.plan.search.ready() or not evaluator.busy()):
                if asked >= self.budget.trials:
                    stopped = "trials"
                    break
                begin = time.perf_counter()
                point = self.plan.search.ask()
                self.sampler_s += time.perf_counter() - begin
                if point is None:
                    stopped = "space"
                    break
                if point not in begun:
                    evaluator.submit(self.plan.found.config_at(point))
                    asked += 1
            waits_for_sampler = not stopped and evaluator.room() > 0
            limit_us = self.plan.stop_over * self.best_us
            for outcome in evaluator.results(0.01 if waits_for_sampler else 0.2, limit_us):
                self._tell(outcome)
            if evaluator.given_up:
                return f"crashes: {evaluator.given_up}"
            late_s = time.monotonic() - deadline
            if interrupted:
                stopped = "interrupt"
                if late_s > 0 or self.awaited.isdisjoint(self.plan.stored):
                    return stopped
            if late_s > (self.budget.seconds if self.awaited else 0.0):
                return "seconds"
            if stopped and not evaluator.busy():
                return stopped

    def _tell(self, tried: Tried) -> None:
        record, point = tried.record, self.plan.found.point_of(tried.record.config)
        self.awaited.discard(record.config)
        ok = record.status is Status.OK
        if ok:
            self.times[record.config] = record.median_us
        if point is None or record.config in self.aside:
            return
        self.entries[point] = entry = Entry.of(tried)
        self.best_us = min(self.best_us, record.median_us)
        if ok and (self.best is None or record.median_us < self.best.median_us):
            self.best = record
        begin = time.perf_counter()
        self.plan.search.tell(point, entry)
        self.sampler_s += time.perf_counter() - begin
        self.progress.tried(tried, self.best)

    @property
    def outcomes(self) -> dict[Point, Entry]:
        """Those of earlier runs first."""
        return {**self.plan.earlier, **self.entries}

    def why_nothing(self, problem: Problem, info: DeviceInfo, stopped: str, trials: Path) -> str:
        """Why there is no winner, and what to do where earlier runs have tried all; `trials` has their journals."""
        reason = next((entry.reason for entry in self.outcomes.values() if entry.reason), "")
        why = why_nothing(problem, info, self.budget, _counted(self.outcomes), stopped, reason)
        if self.entries or not self.resumed:
            return why
        again = f"remove the journals in {trials} to try these again"
        return f"{why}; all of it in earlier runs: allow more (--trials), or {again}"

    def phases(self) -> Phases:
        """Where the time of all of them went."""
        costs = [(entry.compile_s, entry.verify_s, entry.bench_s) for entry in self.entries.values()]
        return Phases(*map(sum, zip(*costs)))

    def recording(self, problem: Problem, info: DeviceInfo) -> Recording:
        """All trials, those of earlier runs first."""
        return Recording.of(problem, info.name, self.plan.found.space.dimensions, self.outcomes)

    @property
    def worked(self) -> list[Config]:
        """Configs that work and may win, the fastest first."""
        return sorted(filter(self.plan.chooses, self.times), key=lambda config: (self.times[config], config.canonical))

    def beaten(self, duel: Duel) -> set[Config]:
        """Configs that give way to the winner of a duel: the contenders, and the user's own record where it could not
        run."""
        own = {self.plan.own} - self.awaited
        return {config for config in (*own, *(side.config for side in duel)) if config is not None}

    def duel(self, evaluator: Evaluator, info: DeviceInfo, left_s: float) -> Duel:
        """The best side by side, with what is stored, the simplest config and the vendor's library."""
        finalists, rounds = self._finalists(left_s if info.arch.is_host else math.inf)
        self.progress.duelling(tuple(finalists))
        longer_s = 0.0 if info.arch.is_host else min(DUEL_SECONDS, left_s / 5)
        duel = evaluator.duel((*finalists, *(() if NAIVE in finalists else (NAIVE,))), rounds, longer_s)
        right = {side.config for side in duel}
        wrong = ", ".join(str(config) for config in finalists if config not in right)
        if right.isdisjoint(finalists):
            raise TuningError(f"the final comparison failed: wrong on fresh data: {wrong}")
        if wrong:
            warnings.warn(f"left out of the final comparison, as wrong on fresh data: {wrong}", stacklevel=3)
        return duel

    def _finalists(self, left_s: float) -> tuple[list[Config], int]:
        """Contenders of a duel, and for how many rounds: of what was searched fewer where it would take longer than is
        left, but at least the fastest, and all of the plan's first in any case."""
        # Each contender is checked twice, launched once to size its batch, then timed; the naive default, the
        # vendor's library and a contender once more come on top and are taken for as slow as the best.
        ranked, always = self.worked[: self.plan.keep], [config for config in self.plan.first if config in self.times]
        best_us = self.times[ranked[0]]
        for count in range(len(ranked), 0, -1):
            chosen = list(dict.fromkeys((*ranked[:count], *always)))
            round_s = max(5e-3, (sum(min(self.times[c], FAR_BEHIND * best_us) for c in chosen) + 3 * best_us) / 1e6)
            rounds = min(DUEL_ROUNDS, 0.6 * left_s / round_s - 4)
            if rounds >= min(3, count) or count == 1:
                return chosen, max(1, int(rounds))
        raise AssertionError


def _counted(outcomes: Mapping[Point, Entry]) -> list[tuple[str, int]]:
    """How many ended in which status, most first."""
    return Counter(entry.status for entry in outcomes.values()).most_common()
