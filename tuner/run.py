"""A run: a search chooses variants, an evaluator tries them until a limit, and the fastest meet in a duel."""

import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import TuningError
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.record import Record, Status
from .measure.evaluate import MUCH_SLOWER, Duel, InProcess, Phases, Tried
from .measure.pipeline import TRY_LIMIT_S, Isolated
from .plan import Plan
from .recording.entry import Entry
from .recording.files import Recording
from .recording.journal import Versions
from .result import Progress
from .settings import Budget

Evaluator = Isolated | InProcess


@dataclass(slots=True)
class Run:
    """State of a run: the outcomes so far, and the cost of the search."""

    plan: Plan
    budget: Budget
    progress: Progress
    sampler_s: float = 0.0
    best: Record | None = None
    best_us: float = math.inf
    """Least microseconds of the search, earlier runs included."""
    times: dict[Config, float] = field(default_factory=dict)
    entries: dict[Config, Entry] = field(default_factory=dict)
    awaited: set[Config] = field(default_factory=set)
    """Variants of the plan's `first` that are under way."""
    aside: set[Config] = field(default_factory=set)
    """Configs that are tried for the duel alone, and are no trials of the search."""

    def __post_init__(self) -> None:
        for config, entry in self.plan.earlier.items():
            if entry.time_us is not None:
                self.times[config] = entry.time_us
                self.best_us = min(self.best_us, entry.time_us)

    @property
    def resumed(self) -> int:
        """Number of variants that earlier runs tried."""
        return len(self.plan.earlier)

    def explore(self, evaluator: Evaluator, deadline: float, patience: float, interrupted: Sequence[int] = ()) -> str:
        """Try the search's configs until a limit, and return the cause of the end. The run waits for the plan's `first`
        variants at most `patience` seconds beyond the deadline; a number among `interrupted` asks for the end."""
        plan, begun = self.plan, set[Config]()
        for config in plan.first:
            as_trial = config not in plan.earlier and (plan.chooses(config) or not plan.sampler)
            as_trial = as_trial and self.resumed + len(begun) < self.budget.trials
            if config not in self.times and (as_trial or config in plan.stored):
                evaluator.submit(config)
                self.awaited.add(config)
                (begun if as_trial else self.aside).add(config)
        count = self.resumed + len(begun)
        stopped = ""
        while True:
            while not stopped and evaluator.room() > 0 and (plan.search.ready() or not evaluator.busy()):
                if count >= self.budget.trials:
                    stopped = "trials"
                    break
                begin = time.perf_counter()
                chosen = plan.search.ask()
                self.sampler_s += time.perf_counter() - begin
                if chosen is None:
                    stopped = "space"
                    break
                if chosen not in begun:
                    evaluator.submit(chosen)
                    count += 1
            waits_for_sampler = not stopped and evaluator.room() > 0
            limit_us = plan.stop_over * self.best_us
            for outcome in evaluator.results(0.01 if waits_for_sampler else 0.2, limit_us):
                self._add(outcome)
            if evaluator.given_up:
                return f"crashes: {evaluator.given_up}"
            late_s = time.monotonic() - deadline + plan.duel.tries * self._try_s()
            if interrupted:
                stopped = "interrupt"
                if late_s > 0 or self.awaited.isdisjoint(plan.stored):
                    return stopped
            if late_s > (patience if self.awaited else 0.0):
                return "seconds"
            gain = plan.search.expected_gain
            enough = self.resumed + len(self.entries) >= self.budget.least
            if enough and not self.awaited and gain is not None and gain < self.budget.gain:
                return "gain"
            if stopped and not evaluator.busy():
                return stopped

    def _try_s(self) -> float:
        """Seconds in which the median variant is checked and timed; 0 before the first one."""
        spent = [entry.verify_s + entry.bench_s for entry in self.entries.values()]
        return statistics.median(spent) if spent and self.plan.duel.tries else 0.0

    def _add(self, tried: Tried) -> None:
        record, config = tried.record, tried.record.config
        self.awaited.discard(config)
        ok = record.status is Status.OK
        if ok:
            self.times[config] = record.median_us
        if config in self.aside:
            return
        self.entries[config] = entry = Entry.of(tried)
        self.best_us = min(self.best_us, record.median_us)
        if ok and (self.best is None or record.median_us < self.best.median_us):
            self.best = record
        begin = time.perf_counter()
        self.plan.search.tell(config, entry)
        self.sampler_s += time.perf_counter() - begin
        self.progress.tried(tried, self.best)

    @property
    def outcomes(self) -> dict[Config, Entry]:
        """Outcome of each variant, earlier runs first."""
        return {**self.plan.earlier, **self.entries}

    def why_nothing(self, problem: Problem, info: DeviceInfo, stopped: str, trials: Path) -> str:
        """The reason that there is no winner: too little time, or the number of variants by status and the first
        reason. A remedy is added where earlier runs, whose journals lie in the folder `trials`, tried all variants."""
        statuses = dict(counted(self.outcomes))
        causes = ", ".join(f"{count} {status}" for status, count in statuses.items())
        are_late = statuses.keys() <= {Status.TIMEOUT.value}
        if are_late and stopped == "seconds":
            few = f"{self.budget.seconds:g} s were too few to measure one variant of {problem} on {info.name}"
            why = f"{few}{f' ({causes})' if causes else ''}: allow more (--seconds, --effort)"
        elif are_late and causes:
            why = f"every variant of {problem} takes too long on {info.name}: {causes}, limit {TRY_LIMIT_S:g} s"
        else:
            reasons = (f"; {entry.reason}" for entry in self.outcomes.values() if entry.reason)
            why = f"no variant of {problem} works on {info.name}: {causes or 'none was tried'}{next(reasons, '')}"
        if self.entries or not self.resumed:
            return why
        again = f"remove the journals in {trials} to try these again"
        return f"{why}; all of it in earlier runs: allow more (--trials), or {again}"

    def phases(self) -> Phases:
        """Seconds of the run's variants by phase."""
        costs = [(entry.compile_s, entry.verify_s, entry.bench_s) for entry in self.entries.values()]
        return Phases(*map(sum, zip(*costs)))

    def recording(self, problem: Problem, info: DeviceInfo, versions: Versions) -> Recording:
        """Recording of all trials, earlier runs first, dated now."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        recording = Recording.of(problem, info.name, self.outcomes)
        return replace(recording, environment=(("date", date), *versions))

    @property
    def worked(self) -> list[Config]:
        """Configs that work and may win, fastest first."""
        return sorted(filter(self.plan.chooses, self.times), key=lambda config: (self.times[config], config.canonical))

    def beaten(self, duel: Duel) -> set[Config]:
        """Configs whose records the winner of a duel replaces: the contenders, and the user's own record where it could
        not run."""
        own = {self.plan.own} - self.awaited
        return {config for config in (*own, *(side.config for side in duel)) if config is not None}

    def duel(self, evaluator: Evaluator, info: DeviceInfo, left_s: float) -> Duel:
        """Time the fastest side by side with stored configs, the simplest config and the vendor's library. Raises
        TuningError where no finalist is right on fresh data."""
        finalists, rounds = self._finalists(left_s if info.arch.is_host else math.inf)
        self.progress.duelling(tuple(finalists))
        longer_s = 0.0 if info.arch.is_host else min(self.plan.duel.seconds, left_s / 5)
        others = [config for config in self.plan.duel.compared if config not in finalists]
        duel = evaluator.duel((*finalists, *others), rounds, longer_s)
        right = {side.config for side in duel}
        wrong = ", ".join(str(config) for config in finalists if config not in right)
        if right.isdisjoint(finalists):
            raise TuningError(f"the final comparison failed: wrong on fresh data: {wrong}")
        if wrong:
            warnings.warn(f"left out of the final comparison, as wrong on fresh data: {wrong}", stacklevel=3)
        return duel

    def _finalists(self, left_s: float) -> tuple[list[Config], int]:
        """Contenders of a duel, and its rounds. Where the duel would take longer than `left_s` seconds, fewer searched
        configs take part, but at least the fastest. All of the plan's `first` take part in any case."""
        # Each contender is checked twice, launched once to size its batch, then timed. The naive default, the
        # vendor's library and one contender a second time are added, and assumed to be as slow as the best.
        worked, keep = self.worked, self.plan.keep
        best_us = self.times[worked[0]]
        near_us = best_us * (1 + self.plan.duel.near)
        near = [config for config in worked[keep : 2 * keep - 1] if self.times[config] <= near_us]
        ranked, always = [*worked[:keep], *near], [config for config in self.plan.first if config in self.times]
        for count in range(len(ranked), 0, -1):
            chosen = list(dict.fromkeys((*ranked[:count], *always)))
            round_s = max(5e-3, (sum(min(self.times[c], MUCH_SLOWER * best_us) for c in chosen) + 3 * best_us) / 1e6)
            rounds = min(self.plan.duel.rounds, 0.6 * left_s / round_s - 4)
            if rounds >= min(3, count) or count == 1:
                return chosen, max(1, int(rounds))
        raise AssertionError


def counted(outcomes: Mapping[Config, Entry]) -> list[tuple[str, int]]:
    """Number of outcomes of each status, the most frequent status first."""
    return Counter(entry.status for entry in outcomes.values()).most_common()
