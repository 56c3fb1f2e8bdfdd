"""`tilewright bench`: every shape of a suite, ours against the vendor's libraries."""

from pathlib import Path

import click
from rich.console import Console

from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from ..tuner.bench.plot import check_plot, plot
from ..tuner.bench.report import JsonKept, bench_closing, bench_json, bench_markdown, bench_table, save
from ..tuner.bench.run import SECONDS, bench
from ..tuner.bench.suites import suite_named
from ..tuner.result import EFFORTS
from ..tuner.tune import tune
from .options import (
    EFFORT_HELP,
    HELP,
    chosen,
    debug_option,
    device_option,
    dtype_option,
    new_console,
    quiet_optuna,
    store_option,
    trans_option,
)
from .progress import bench_display, display

__all__ = ["bench_command"]

_file = click.Path(path_type=Path, dir_okay=False)


@click.command("bench", context_settings=HELP)
@click.option(
    "--suite",
    help="Shapes to time, by name; --shape adds to them [default: public, or small on the processor].",
)
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
@dtype_option
@trans_option
@device_option
@click.option(
    "--seconds",
    type=click.FloatRange(0, 600, min_open=True),
    default=SECONDS,
    show_default=True,
    help="Timed side by side for each shape, 7 rounds at least.",
)
@click.option(
    "--turns",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    help="Seconds that a contender runs in its turn, at the clock that it comes to; 0: batches alternate at one clock.",
)
@click.option("--tune", "tune_first", is_flag=True, help="First tune the shapes that have no record of their own.")
@click.option(
    "--effort", type=click.Choice(list(EFFORTS)), default="normal", show_default=True, help=f"Of --tune. {EFFORT_HELP}."
)
@click.option("--json", "json_file", type=_file, help="Write everything here, again after each shape.")
@click.option("--markdown", type=_file, help="Write the tables here.")
@click.option("--plot", "plot_file", type=_file, help="Draw speed and ratios here: .svg, .png or .pdf.")
@store_option
@debug_option
def bench_command(
    suite: str | None,
    shapes: tuple[str, ...],
    dtype: str,
    trans: str,
    device: str,
    seconds: float,
    turns: float,
    tune_first: bool,
    effort: str,
    json_file: Path | None,
    markdown: Path | None,
    plot_file: Path | None,
    store: Path | None,
    debug: bool,
) -> int:
    """Time what the library runs for each shape beside cuBLAS and cuBLASLt.

    \b
    tilewright bench                               the public suite on the GPU
    tilewright bench --dtype double --json double.json --markdown double.md --plot double.svg
    tilewright bench --shape 1000 --shape 64x4096x4096 --tune

    Ours is the kernel that the store holds for the shape, else that of the nearest one, else the default. Every
    result is checked before it is timed. A ratio above 1 is ours faster. Ctrl-C ends with the shapes that are done.
    """
    for file in (json_file, markdown, plot_file):
        if file and not file.absolute().parent.is_dir():
            raise click.UsageError(f"no such folder: {file.absolute().parent}")
    if plot_file:
        check_plot(plot_file)
    names = () if suite is None else suite_named(suite).shapes
    problems = [Problem.parse(shape, dtype, trans) for shape in (*names, *shapes)]
    info = chosen(device)
    if not problems:
        names = suite_named("small" if info.arch.is_host else "public").shapes
        problems = [Problem.parse(shape, dtype, trans) for shape in names]
    problems = list(dict.fromkeys(problems))
    console = new_console()
    if tune_first and not _tune(console, problems, info, effort, store):
        return 130
    with bench_display(console) as shown:
        kept = JsonKept(shown, json_file)
        result = bench(problems, kept, device=info.selector, store=store, seconds=seconds, turn_seconds=turns)
    if result.rows:
        console.print(bench_table(result, console.width))
    for line in bench_closing(result):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if json_file:
        save(json_file, bench_json(result))
    if markdown:
        save(markdown, bench_markdown(result))
    if plot_file and any(row.ok for row in result.rows):
        plot(result, plot_file)
    if result.stopped == "interrupt":
        return 130
    return 0 if not result.stopped and any(row.ok for row in result.rows) else 1


def _tune(console: Console, problems: list[Problem], info: DeviceInfo, effort: str, store: Path | None) -> bool:
    """Tune the shapes that have no record of their own; False where Ctrl-C ended it."""
    quiet_optuna()
    shelf = Store(store)
    for problem in problems:
        if shelf.lookup(info, problem).origin == "exact":
            continue
        with display(console) as progress:
            found = tune(problem, device=info.selector, effort=effort, store=store, progress=progress)
        if found.stopped == "interrupt":
            return False
    return True
