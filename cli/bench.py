"""`tilewright bench`: the shapes of a suite, ours beside the vendor's libraries."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..codegen.config import Config
from ..codegen.errors import ShapeError, TuningError, check
from ..codegen.problem import Problem
from ..runtime.device.detect import choose
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import spared
from ..tuner.bench.plot import check_plot, plot
from ..tuner.bench.report import bench_closing, bench_columns, bench_json, bench_markdown, save
from ..tuner.bench.rows import BenchResult
from ..tuner.bench.run import bench
from ..tuner.measure.child import kept_between_runs
from ..tuner.settings import Effort
from ..tuner.tune import tune
from . import options
from .progress import BenchShown, TuneShown
from .tables import new_console, plain, say, table


def bench_command(
    device: str,
    configs: tuple[Config, ...],
    seconds: float,
    turns: float,
    tune_first: bool,
    effort: Effort,
    json_file: Path | None,
    markdown: Path | None,
    plot_file: Path | None,
    store: Path | None,
    **shapes: Any,
) -> int:
    """Time the shapes, print, save and draw the results, and return the exit status."""
    if plot_file:
        check_plot(plot_file)
    check(not (configs and tune_first), "--config and --tune exclude each other; leave out one")
    problems = options.problems_of(**shapes)
    options.distinct({"--json": json_file, "--markdown": markdown, "--plot": plot_file})
    info = choose(device)
    if not problems:
        problems = options.problems_of(**shapes | {"suite": "small" if info.arch.is_host else "public"})
    console = new_console()
    if tune_first and not _tune(console, problems, info, effort, store):
        return 130
    progress = BenchShown(console, json_file)
    with progress.drawn():
        limits = {"seconds": seconds, "turn_seconds": turns}
        result = bench(problems, progress, device=info.selector, store=store, configs=configs, **limits)
    for file, text in ((json_file, bench_json(result)), (markdown, bench_markdown(result))):
        if file:
            with spared(file):
                save(file, text)
    show_bench(console, result)
    if plot_file and any(row.ok for row in result.rows):
        with spared(plot_file):
            plot(result, plot_file)
    if result.stopped == "interrupt":
        return 130
    return 0 if not result.stopped and any(row.ok for row in result.rows) else 1


def show_bench(console: Console, result: BenchResult) -> None:
    """Print a row for each shape, the geometric means, and the closing lines."""
    if result.rows:
        say(console, f"{result.dtypes} on {result.device.name}", style="bold")
        head, *rows, means = table(bench_columns(result), console.width)
        rule = Text(head.plain.splitlines()[1])
        means.stylize("bold")
        say(console, head, *rows, rule, means)
    for line in bench_closing(result):
        say(console, line)


def _tune(console: Console, problems: list[Problem], info: DeviceInfo, effort: Effort, store: Path | None) -> bool:
    """Tune the shapes that have no record of their own; False where Ctrl-C ended that. A shape that cannot be tuned is
    timed as it is."""
    with kept_between_runs():
        for problem in options.untuned(problems, info, store):
            progress = TuneShown(console)
            try:
                with progress.drawn():
                    tuned = tune(problem, device=info.selector, effort=effort, store=store, progress=progress)
            except (ShapeError, TuningError) as error:  # only this shape stays untuned
                click.echo(f"note: not tuned: {plain(str(error))}", err=True)
                continue
            if tuned.stopped == "interrupt":
                return False
    return True
