"""What a user sees while a run goes on: a live display on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ..codegen.config import Config
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.record import Record, Status
from ..tuner.bench.rows import TITLES, BenchResult
from ..tuner.measure.evaluate import Tried
from ..tuner.result import Budget
from ..tuner.search.candidates import Candidates

__all__ = ["bench_display", "display"]

_PLAIN_EVERY_S = 5.0


class _Watched:
    """Keeps the figures that both displays show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.causes: Counter[str] = Counter()
        self.best: Record | None = None
        self.total = self.done = self.resumed = 0
        self.begun = time.monotonic()
        self.budget = Budget(1, 1.0)

    def started(self, problem: Problem, device: DeviceInfo, found: Candidates, budget: Budget, resumed: int) -> None:
        """The opening line."""
        self.budget, self.begun, self.resumed = budget, time.monotonic(), resumed
        self.done, self.total = resumed, min(budget.trials, len(found.configs))
        pruned = sum(count for _, count in found.pruned)
        again = f", {resumed} of them tried before" if resumed else ""
        self.console.print(
            f"[bold]{problem}[/] on {escape(device.name)}: {len(found.configs)} variants{again}, {pruned} pruned; "
            f"at most {budget.trials} trials and {budget.seconds:g} s",
            highlight=False,
            soft_wrap=True,
        )
        self.refresh()

    def tried(self, tried: Tried, best: Record | None) -> None:
        """One more."""
        self.done += 1
        self.best = best
        if tried.record.status is not Status.OK:
            self.causes[tried.record.status.value] += 1
        self.refresh()

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """The closing line."""
        self.refresh()
        self.console.print(
            f"timing the best {len(configs)} side by side with the vendor's library", highlight=False, soft_wrap=True
        )

    def line(self) -> str:
        """The figures in words."""
        left = max(0.0, self.budget.seconds - (time.monotonic() - self.begun))
        failed = ", ".join(f"{count} {cause}" for cause, count in self.causes.most_common())
        best = "none yet"
        if self.best is not None:
            best = f"{self.best.median_us:,.1f} us, {self.best.gflops:,.0f} GFLOP/s, {self.best.config}"
        return f"failed: {failed or 'none'}; best: {best}; {left:.0f} s left"

    def refresh(self) -> None:
        """Show the figures."""


class _Lines(_Watched):
    """One line every few seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = 0.0

    def refresh(self) -> None:
        """Print when it is time."""
        now = time.monotonic()
        if now - self._last >= _PLAIN_EVERY_S and self.done > self.resumed:
            self._last = now
            text = f"{self.done}/{self.total} trials; {self.line()}"
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)


class _Live(_Watched):
    """A bar and the figures under it, redrawn in place."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self._live = live
        self._bar = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn())
        self._task = self._bar.add_task("trials", total=None)

    def refresh(self) -> None:
        """Redraw."""
        self._bar.update(self._task, completed=self.done, total=self.total or None)
        self._live.update(Group(self._bar, Text(self.line())))


@contextmanager
def display(console: Console) -> Iterator[_Watched]:
    """The Progress that suits the console."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield _Live(console, live)


class _BenchWatched:
    """Shows the shapes of `bench` as they are done: a line each."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def opened(self, result: BenchResult) -> None:
        """The opening line."""
        rivals = " and ".join(TITLES[key] for key in result.setting.rivals) or "nothing"
        text = f"{result.wanted} shapes on {result.device.name}, ours against {rivals}"
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begun(self, problem: Problem) -> None:
        """Nothing."""

    def measured(self, result: BenchResult) -> None:
        """One more."""
        text = f"{len(result.rows)}/{result.wanted} {self.line(result)}"
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    @staticmethod
    def line(result: BenchResult) -> str:
        """The last row in words."""
        row = result.rows[-1]
        if not row.ok:
            return f"{row.problem.shape}: {row.status.value}, {row.reason}"
        ratios = "".join(f", {rival.ratio:.2f} x {TITLES[rival.key]}" for rival in row.rivals)
        return f"{row.problem.shape}: {row.ours_us:,.2f} us{ratios}"


class _BenchBar(_BenchWatched):
    """A bar, redrawn in place."""

    def __init__(self, console: Console, bar: Progress) -> None:
        super().__init__(console)
        self._bar = bar
        self._task = bar.add_task("", total=None, last="")

    def begun(self, problem: Problem) -> None:
        """The shape under way."""
        self._bar.update(self._task, description=problem.shape)

    def opened(self, result: BenchResult) -> None:
        """The opening line, and how far it is."""
        super().opened(result)
        self._bar.update(self._task, total=result.wanted)

    def measured(self, result: BenchResult) -> None:
        """Redraw."""
        self._bar.update(self._task, completed=len(result.rows), last=self.line(result))


@contextmanager
def bench_display(console: Console) -> Iterator[_BenchWatched]:
    """The BenchProgress that suits the console."""
    if not console.is_terminal:
        yield _BenchWatched(console)
        return
    shown = (
        TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[last]}"),
    )  # fmt: skip
    with Progress(*shown, console=console, transient=True) as bar:
        yield _BenchBar(console, bar)
