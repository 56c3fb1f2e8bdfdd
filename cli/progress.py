"""Progress of runs on the screen: figures redrawn in place on a terminal, lines elsewhere."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

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
from .tables import WIDTH, counted, plain, say, shortened, wrapped
from .trials import TrialsFile

ON_PROCESSOR = "on the processor: these times say nothing about a GPU"
LINE_EVERY_S = 5.0
"""Seconds between two lines of figures where nothing is drawn."""
_MOST_RUNNING = 12
"""Most running problems that are drawn, a line each."""


class Shown:
    """Figures of a run, which Live draws several times a second and `line` prints elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun_s = time.monotonic()
        self.done = self.total = 0
        self._line_s = 0.0
        """Time of the last line, by time.monotonic()."""
        self._failures: Counter[str] = Counter()
        """Number of failures by cause."""

    def texts(self) -> list[str]:
        """The figures as lines of text."""
        raise NotImplementedError

    def begin(self, device: DeviceInfo, text: str) -> None:
        """Start the clock and print the opening lines."""
        self.begun_s = time.monotonic()
        if device.arch.is_host:
            say(self.console, ON_PROCESSOR)
        say(self.console, text, style="bold")

    def failures(self) -> str:
        """Failures by cause, as part of a sentence."""
        return ", ".join(f"{count} {cause}" for cause, count in self._failures.most_common())

    def line(self) -> None:
        """Print the figures where nothing is drawn."""
        if not self.console.is_interactive:
            say(self.console, "; ".join(self.texts()))

    def line_in_time(self) -> None:
        """Print the figures, where nothing is drawn, if the last line is some seconds old."""
        if time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.line()

    def drawn(self) -> AbstractContextManager[object]:
        """A context in which the figures are drawn in place on a terminal."""
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
        self._trials = trials or TrialsFile(None)
        self._best: Record | None = None
        self._budget = Budget(1, 1.0)

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        """Print the opening lines."""
        self._budget = budget
        self.done, self.total = resumed, budget.trials if variants is None else min(budget.trials, variants)
        parts = [f"{variants:,} variants"] if variants is not None else []
        parts += [f"{resumed} tried before"] if resumed else []
        parts.append(f"at most {budget.trials:,} trials and {budget.seconds:g} s")
        self.begin(device, f"{problem} on {device.name}: {'; '.join(parts)}")

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        """Add a row to the file of trials."""
        self._trials.entered(problem, device.key, config, entry, "tried by an earlier run")

    def tried(self, tried: Tried, best: Record | None) -> None:
        """Count a trial, and print a line every few seconds."""
        self._trials.tried(tried)
        self.done += 1
        self._best = best
        if tried.record.status is not Status.OK:
            self._failures[tried.record.status.value] += 1
        self.line_in_time()

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """Print the closing line."""
        say(self.console, f"timing the best {len(configs)} side by side with the vendor's library")

    def texts(self) -> list[str]:
        """Trials and seconds left, failures, and the best so far."""
        left_s = max(0.0, self._budget.seconds - (time.monotonic() - self.begun_s))
        failed = f"failed: {self.failures() or 'none'}"
        texts = [f"{self.done}/{self.total} trials, {left_s:.0f} s left", failed, "best: none yet"]
        if self._best is not None:
            texts[2] = f"best: {figure(self._best.median_us)} us, {figure(self._best.gflops)} GFLOP/s, "
            room = min(self.console.width, WIDTH) - len("; ".join(texts)) - 2
            variant = str(self._best.config)
            texts[2] += variant if self.console.is_interactive else shortened(variant, max(30, room))
        return texts


class BenchShown(Shown):
    """The BenchProgress of `bench`: a line for each shape, and after it the run so far as JSON in a file."""

    def __init__(self, console: Console, json_file: Path | None = None) -> None:
        super().__init__(console)
        self._json_file = json_file
        self._result: BenchResult | None = None
        self._now = ""

    def opened(self, result: BenchResult) -> None:
        """Print the opening lines."""
        self.total = result.wanted
        rivals = " and ".join(TITLES[key] for key in result.setting.rivals) or "nothing"
        self.begin(result.device, f"{counted(result.wanted, 'shape')} on {result.device.name}, ours against {rivals}")

    def begun(self, problem: Problem) -> None:
        """Name the shape in what is drawn."""
        self._now = problem.title

    def measured(self, result: BenchResult) -> None:
        """Write the file, and print the last row."""
        if self._json_file and not is_stream(self._json_file):
            with spared(self._json_file):
                save(self._json_file, bench_json(result))
        self._result, self.done = result, len(result.rows)
        self.line()

    def texts(self) -> list[str]:
        """The last row and, where it is drawn, the shape under way."""
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
        outcome = f"{figure(row.ours_us)} us{ratios}" if row.ok else f"{row.status.value}, {row.reason}"
        return [*texts, f"{self.done}/{self.total} {row.problem.title}: {outcome}"]


@dataclass(slots=True)
class _Running:
    """State of a running problem."""

    tried: int = 0
    """Number of variants tried so far."""
    trials: int = 0
    """Most variants that are tried."""
    best_us: float = math.inf
    variant: str = ""
    """Text of the best variant; empty before the first one that works."""


class WorkersShown(Shown, ClusterProgress):
    """Progress of all workers: a line for each problem that is done, and figures of the running ones."""

    def __init__(self, console: Console, trials: TrialsFile, results: ResultsFile, seconds: float) -> None:
        super().__init__(console)
        self._trials, self._results, self._seconds = trials, results, seconds
        self._running: dict[Problem, _Running] = {}
        self._seats, self._line_s = 0, time.monotonic()

    def opened(self, problems: Sequence[Problem], info: DeviceInfo) -> None:
        """Print the opening lines."""
        self.total = len(problems)
        self.begin(info, f"{len(problems)} shapes on {info.name}, at most {self._seconds:g} s each")

    def workers(self, seats: int) -> None:
        """Print the number of workers where it changes."""
        if seats != self._seats:
            say(self.console, counted(seats, "worker"))
        self._seats = seats

    def note(self, text: str) -> None:
        """Print a note on stderr: results are on stdout."""
        click.echo(f"note: {plain(text)}", err=True)

    def begun(self, problem: Problem, trials: int, resumed: int) -> None:
        """Add a problem to the running ones."""
        self._running[problem] = _Running(resumed, trials)
        if resumed:
            say(self.console, f"{problem}: goes on from {resumed} trials")

    def tried(self, problem: Problem, device_key: str, message: Tells) -> None:
        """Count a trial of a running problem."""
        self._trials.entered(problem, device_key, message.config, message.entry)
        running = self._running.setdefault(problem, _Running())
        running.tried += 1
        time_us = message.entry.time_us
        if time_us is not None and time_us < running.best_us:
            running.best_us, running.variant = time_us, message.variant
        self.line_in_time()

    def ended(self, result: Result) -> None:
        """Print a line, and write the results so far as JSON, so that none is lost."""
        self._remove(result.problem)
        self._results.add(result)
        best = result.best
        ratio = f", {figure(best.ratio_vendor)} x vendor" if best.ratio_vendor else ", too noisy for a ratio"
        count = f"{result.trials} trials in {result.seconds:.0f} s"
        text = f"{self.done}/{self.total} {result.problem}: {figure(best.median_us)} us{ratio}, {best.config}; {count}"
        say(self.console, text if result.kept else f"{text}; {not_kept(result)}")

    def failed(self, problem: Problem, reason: str) -> None:
        """Print why a problem failed; the others go on."""
        self._remove(problem)
        self._failures[reason.partition(":")[0]] += 1
        click.echo(f"tilewright: {plain(f'{problem}: {reason}' if str(problem) not in reason else reason)}", err=True)

    def _remove(self, problem: Problem) -> None:
        self._running.pop(problem, None)
        self.done += 1

    def texts(self) -> list[str]:
        """Shapes done, seconds left, failures, and the running problems."""
        spent_s, left = time.monotonic() - self.begun_s, self.total - self.done
        shape_s = spent_s * self._seats / self.done if self.done else self._seconds
        left_s = shape_s * left / max(1, self._seats)
        texts = [f"{self.done}/{self.total} shapes done on {self._seats} workers, about {left_s:.0f} s left"]
        texts += [f"failed: {self.failures()}"] if self._failures else []
        if self.console.is_interactive:
            for problem, running in list(self._running.items())[:_MOST_RUNNING]:
                best = f"{figure(running.best_us)} us, {running.variant}" if running.variant else "none yet"
                texts.append(f"{problem} {running.tried}/{running.trials}: {best}")
        else:
            texts.append(f"{len(self._running)} running, {sum(each.tried for each in self._running.values())} trials")
        return texts
