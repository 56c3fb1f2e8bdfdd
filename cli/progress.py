"""What a user sees while a run goes on: figures redrawn in place on a terminal, lines elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from ..codegen.config import Config
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import is_stream, spared
from ..runtime.store.record import Record, Status
from ..tuner.bench.report import bench_json, figure, save
from ..tuner.bench.rows import TITLES, BenchResult
from ..tuner.cluster.messages import ClusterProgress, Tells
from ..tuner.measure.evaluate import Tried
from ..tuner.recording.entry import Entry
from ..tuner.result import Progress, Result
from ..tuner.settings import Budget
from .result import ResultsFile, not_kept
from .tables import WIDTH, plain, say, shortened, wrapped
from .trials import TrialsFile

ON_PROCESSOR = "on the processor: these times say nothing about a GPU"
LINE_EVERY_S = 5.0
_RUNNING_SHOWN = 12


class Shown:
    """How far a run is. Live draws it several times a second; elsewhere `line` prints it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun_s = time.monotonic()
        self.done = self.total = 0
        self._said_s = 0.0

    def texts(self) -> list[str]:
        """The figures in words, a line each."""
        raise NotImplementedError

    def line(self) -> None:
        """Print the figures where nothing is drawn."""
        if not self.console.is_interactive:
            say(self.console, "; ".join(self.texts()))

    def line_in_time(self) -> None:
        """The same every few seconds."""
        if time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._said_s = time.monotonic()
            self.line()

    def drawn(self) -> AbstractContextManager[object]:
        """On a terminal the figures are drawn in place as long as this context lasts."""
        live = Live(self, console=self.console, refresh_per_second=4, transient=True)
        return live if self.console.is_interactive else nullcontext()

    def __rich__(self) -> Group:
        if not self.total:
            return Group("getting ready")
        bar = ProgressBar(total=max(1, self.total), completed=self.done, width=40)
        lines = [line for text in self.texts() for line in wrapped(plain(text), self.console.width)]
        return Group(*map(Text, lines), bar)  # a bar does not end its line


class TuneShown(Shown, Progress):
    """The Progress of `tune`."""

    def __init__(self, console: Console, trials: TrialsFile | None = None) -> None:
        super().__init__(console)
        self._trials = trials
        self._causes: Counter[str] = Counter()
        self._best: Record | None = None
        self._budget = Budget(1, 1.0)

    def started(
        self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int
    ) -> None:
        """The opening line."""
        self._budget, self.begun_s = budget, time.monotonic()
        self.done, self.total = resumed, budget.trials if variants is None else min(budget.trials, variants)
        if device.arch.is_host:
            say(self.console, ON_PROCESSOR)
        parts = [f"{variants:,} variants"] if variants is not None else []
        parts += [f"{resumed} tried before"] if resumed else []
        parts.append(f"at most {budget.trials:,} trials and {budget.seconds:g} s")
        text = f"{problem} on {device.name}: {'; '.join(parts)}"
        say(self.console, text, style="bold")

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        """A row of the file of trials."""
        if self._trials:
            self._trials.told(problem, device.key, config, entry, "tried by an earlier run")

    def tried(self, tried: Tried, best: Record | None) -> None:
        """One more; a line every few seconds."""
        if self._trials:
            self._trials.tried(tried)
        self.done += 1
        self._best = best
        if tried.record.status is not Status.OK:
            self._causes[tried.record.status.value] += 1
        self.line_in_time()

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """The closing line."""
        say(self.console, f"timing the best {len(configs)} side by side with the vendor's library")

    def texts(self) -> list[str]:
        """How many, how long, what failed; and the best so far."""
        left_s = max(0.0, self._budget.seconds - (time.monotonic() - self.begun_s))
        failed = ", ".join(f"{count} {cause}" for cause, count in self._causes.most_common()) or "none"
        texts = [f"{self.done}/{self.total} trials, {left_s:.0f} s left", f"failed: {failed}", "best: none yet"]
        if self._best is not None:
            texts[2] = f"best: {figure(self._best.median_us)} us, {figure(self._best.gflops)} GFLOP/s, "
            room = min(self.console.width, WIDTH) - len("; ".join(texts)) - 2
            variant = str(self._best.config)
            texts[2] += variant if self.console.is_interactive else shortened(variant, max(30, room))
        return texts


class BenchShown(Shown):
    """The BenchProgress of `bench`: a line a shape, and after each the run so far as JSON in a file."""

    def __init__(self, console: Console, json_file: Path | None = None) -> None:
        super().__init__(console)
        self._json_file = json_file
        self._result: BenchResult | None = None
        self._now = ""

    def opened(self, result: BenchResult) -> None:
        """The opening line."""
        self.total, self.begun_s = result.wanted, time.monotonic()
        if result.device.arch.is_host:
            say(self.console, ON_PROCESSOR)
        rivals = " and ".join(TITLES[key] for key in result.setting.rivals) or "nothing"
        shapes = f"{result.wanted} shape{'s' * (result.wanted != 1)}"
        say(self.console, f"{shapes} on {result.device.name}, ours against {rivals}", style="bold")

    def begun(self, problem: Problem) -> None:
        """What is drawn names it."""
        self._now = problem.shape

    def measured(self, result: BenchResult) -> None:
        """One more."""
        if self._json_file and not is_stream(self._json_file):
            with spared(self._json_file):
                save(self._json_file, bench_json(result))
        self._result, self.done = result, len(result.rows)
        self.line()

    def texts(self) -> list[str]:
        """The last row; where it is drawn, also what is under way."""
        texts = []
        if self.console.is_interactive:
            spent_s = time.monotonic() - self.begun_s
            left = f", about {spent_s / self.done * (self.total - self.done):.0f} s left" if self.done else ""
            texts = [f"{self._now}, {spent_s:.0f} s so far{left}"]
        if self._result is None:
            return texts
        row = self._result.rows[-1]
        ratios = "".join(f", {figure(rival.ratio)} x {TITLES[rival.key]}" for rival in row.rivals if rival.ratio)
        ratios = ", too noisy for a ratio" if row.noisy else ratios
        what = f"{figure(row.ours_us)} us{ratios}" if row.ok else f"{row.status.value}, {row.reason}"
        return [*texts, f"{self.done}/{self.total} {row.problem.shape}: {what}"]


class WorkersShown(Shown, ClusterProgress):
    """What a user sees of all workers: a line for each problem that is done, and how far the others are."""

    def __init__(
        self, console: Console, trials: TrialsFile | None, results: ResultsFile | None, seconds: float
    ) -> None:
        super().__init__(console)
        self._trials, self._seconds = trials, seconds
        self._file = results
        self._running: dict[Problem, list[Any]] = {}
        self._causes: Counter[str] = Counter()
        self._seats, self._said_s = 0, time.monotonic()

    def opened(self, problems: Sequence[Problem], info: DeviceInfo) -> None:
        """The opening lines."""
        self.total, self.begun_s = len(problems), time.monotonic()
        if info.arch.is_host:
            say(self.console, ON_PROCESSOR)
        say(self.console, f"{len(problems)} shapes on {info.name}, at most {self._seconds:g} s each", style="bold")

    def workers(self, seats: int) -> None:
        """A line where it changes."""
        if seats != self._seats:
            say(self.console, f"{seats} worker{'s' * (seats != 1)}")
        self._seats = seats

    def note(self, text: str) -> None:
        """On stderr: what is found is on stdout."""
        click.echo(f"note: {plain(text)}", err=True)

    def begun(self, problem: Problem, trials: int, resumed: int) -> None:
        """Among those that run."""
        self._running[problem] = [resumed, trials, None, ""]
        if resumed:
            say(self.console, f"{problem}: goes on from {resumed} trials")

    def tried(self, problem: Problem, device_key: str, told: Tells) -> None:
        """One more of one that runs."""
        if self._trials:
            self._trials.told(problem, device_key, told.config, told.entry)
        running = self._running.setdefault(problem, [0, 0, None, ""])
        running[0] += 1
        time_us = told.entry.time_us
        if time_us is not None and (running[2] is None or time_us < running[2]):
            running[2:] = time_us, told.variant
        self.line_in_time()

    def ended(self, result: Result) -> None:
        """A line, and the results so far as JSON: whatever comes, they are not lost."""
        self._over(result.problem)
        if self._file:
            self._file.add(result)
        best = result.best
        ratio = f", {figure(best.ratio_vendor)} x vendor" if best.ratio_vendor else ", too noisy for a ratio"
        count = f"{result.trials} trials in {result.seconds:.0f} s"
        text = f"{self.done}/{self.total} {result.problem}: {figure(best.median_us)} us{ratio}, {best.config}; {count}"
        say(self.console, text if result.kept else f"{text}; {not_kept(result)}")

    def failed(self, problem: Problem, reason: str) -> None:
        """It costs this shape alone."""
        self._over(problem)
        self._causes[reason.partition(":")[0]] += 1
        click.echo(f"tilewright: {plain(f'{problem}: {reason}' if str(problem) not in reason else reason)}", err=True)

    def _over(self, problem: Problem) -> None:
        self._running.pop(problem, None)
        self.done += 1

    def texts(self) -> list[str]:
        """How many, for how long, what runs with its best, what failed."""
        spent_s, left = time.monotonic() - self.begun_s, self.total - self.done
        each_s = spent_s * self._seats / self.done if self.done else self._seconds
        left_s = each_s * left / max(1, self._seats)
        texts = [f"{self.done}/{self.total} shapes done on {self._seats} workers, about {left_s:.0f} s left"]
        failed = ", ".join(f"{count} {cause}" for cause, count in self._causes.most_common())
        texts += [f"failed: {failed}"] if failed else []
        if self.console.is_interactive:
            for problem, (tried, trials, best_us, variant) in list(self._running.items())[:_RUNNING_SHOWN]:
                best = "none yet" if best_us is None else f"{figure(best_us)} us, {variant}"
                texts.append(f"{problem} {tried}/{trials}: {best}")
        else:
            texts.append(f"{len(self._running)} running, {sum(each[0] for each in self._running.values())} trials")
        return texts
