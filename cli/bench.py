"""`tilewright bench`: every shape of a suite, ours against the vendor's libraries."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..codegen.config import Config
from ..codegen.errors import ShapeError, TuningError
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import spared
from ..tuner.bench.plot import check_plot, plot
from ..tuner.bench.report import bench_closing, bench_columns, bench_json, bench_markdown, save
from ..tuner.bench.rows import BenchResult
from ..tuner.bench.run import SECONDS, bench
from ..tuner.measure.child import kept_between_runs
from ..tuner.tune import tune
from . import options
from .progress import BenchShown, TuneShown
from .tables import new_console, plain, say, table

_SECONDS = click.FloatRange(0, 600, min_open=True)
_TURNS_HELP = "Seconds a contender runs in its turn, at the clock it comes to; 0: batches alternate at one clock."


@click.command("bench")
@options.problems
@options.device
@options.variant
@click.option("--seconds", type=_SECONDS, default=SECONDS, help="Timed side by side for each shape, 7 rounds at least.")
@click.option("--turns", type=click.FloatRange(0, 10), default=0.0, help=_TURNS_HELP)
@click.option("--tune", "tune_first", is_flag=True, help="First tune the shapes that have no record of their own.")
@options.effort
@click.option("--json", "json_file", type=options.FILE, help="Write everything here, again after each shape.")
@click.option("--markdown", type=options.FILE, help="Write the tables here.")
@click.option("--plot", "plot_file", type=options.FILE, help="Draw speed and ratios here: .svg, .png or .pdf.")
@options.store
@options.debug
def bench_command(
    device: str,
    config: Config | None,
    seconds: float,
    turns: float,
    tune_first: bool,
    effort: str,
    json_file: Path | None,
    markdown: Path | None,
    plot_file: Path | None,
    store: Path | None,
    **asked: Any,
) -> int:
    """Time what the library runs for each shape beside cuBLAS and cuBLASLt.

    \b
    tilewright bench                              the public suite on the GPU
    tilewright bench --dtype double --json double.json --plot double.svg
    tilewright bench --shape 1000 --shape 64x4096x4096 --tune
    tilewright bench --m 256:4096:256 --n 1024 --k 512 --config tiled:32

    Without shapes it is the suite `public`, on the processor `small`. Ours is the kernel that the store holds for the
    shape, else that of a near one, else what is predicted; or the variant that --config names. Every
    result is checked before it is timed. A ratio above 1 is ours faster. Ctrl-C ends with the shapes that are done.
    """
    if plot_file:
        check_plot(plot_file)
    if config and tune_first:
        raise click.UsageError("--config and --tune exclude each other")
    problems = options.asked(**asked)
    options.distinct({"--json": json_file, "--markdown": markdown, "--plot": plot_file})
    info = options.chosen(device)
    if not problems:
        problems = options.asked(**asked | {"suite": "small" if info.arch.is_host else "public"})
    console = new_console()
    if tune_first and not _tune(console, problems, info, effort, store):
        return 130
    progress = BenchShown(console, json_file)
    with progress.drawn():
        limits = {"seconds": seconds, "turn_seconds": turns}
        result = bench(problems, progress, device=info.selector, store=store, config=config, **limits)
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
    """Print a row a shape, the geometric means, and what they leave open."""
    if result.rows:
        say(console, f"{result.dtypes} on {result.device.name}", style="bold")
        head, *rows, means = table(bench_columns(result), console.width)
        rule = Text(head.plain.splitlines()[1])
        means.stylize("bold")
        say(console, head, *rows, rule, means)
    for line in bench_closing(result):
        say(console, line)


def _tune(console: Console, problems: list[Problem], info: DeviceInfo, effort: str, store: Path | None) -> bool:
    """Tune the shapes that have no record of their own; False where Ctrl-C ended it. One that cannot be tuned is timed
    as it is."""
    with kept_between_runs():
        for problem in options.untuned(problems, info, store):
            progress = TuneShown(console)
            try:
                with progress.drawn():
                    found = tune(problem, device=info.selector, effort=effort, store=store, progress=progress)
            except (ShapeError, TuningError) as error:  # it costs this shape's tuning alone
                click.echo(f"note: not tuned: {plain(str(error))}", err=True)
                continue
            if found.stopped == "interrupt":
                return False
    return True
