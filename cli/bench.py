"""`tilewright bench`: every shape of a suite, ours against the vendor's libraries."""

from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import spared
from ..runtime.store.store import Store
from ..tuner.bench.plot import check_plot, plot
from ..tuner.bench.report import bench_closing, bench_columns, bench_json, bench_markdown, save
from ..tuner.bench.rows import BenchResult
from ..tuner.bench.run import SECONDS, bench
from ..tuner.bench.suites import suite_shapes
from ..tuner.search.nearest import nearest
from ..tuner.tune import tune
from . import options
from .progress import BenchShown, TuneShown
from .tables import new_console, say, table

_SECONDS = click.FloatRange(0, 600, min_open=True)
_TURNS_HELP = "Seconds a contender runs in its turn, at the clock it comes to; 0: batches alternate at one clock."


@click.command("bench")
@click.option("--suite", help="Shapes by name or file; --shape adds to them [default: public; small on the processor].")
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
@options.dtype
@options.trans
@options.device
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
) -> int:
    """Time what the library runs for each shape beside cuBLAS and cuBLASLt.

    \b
    tilewright bench                               the public suite on the GPU
    tilewright bench --dtype double --json double.json --markdown double.md --plot double.svg
    tilewright bench --shape 1000 --shape 64x4096x4096 --tune

    Ours is the kernel that the store holds for the shape, else that of the nearest one, else the default. Every
    result is checked before it is timed. A ratio above 1 is ours faster. Ctrl-C ends with the shapes that are done.
    """
    if plot_file:
        check_plot(plot_file)
    options.distinct({"--json": json_file, "--markdown": markdown, "--plot": plot_file})
    names = () if suite is None else suite_shapes(suite)
    problems = [Problem.parse(shape, dtype, trans) for shape in (*names, *shapes)]
    info = options.chosen(device)
    if not problems:
        names = suite_shapes("small" if info.arch.is_host else "public")
        problems = [Problem.parse(shape, dtype, trans) for shape in names]
    problems = list(dict.fromkeys(problems))
    console = new_console()
    if tune_first and not _tune(console, problems, info, effort, store):
        return 130
    progress = BenchShown(console, json_file)
    with progress.drawn():
        result = bench(problems, progress, device=info.selector, store=store, seconds=seconds, turn_seconds=turns)
    writers = [(json_file, save, bench_json(result)), (markdown, save, bench_markdown(result))]
    for file, write, text in writers:
        if file:
            with spared(file):
                write(file, text)
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
        say(console, f"{result.rows[0].problem.dtype.value} on {result.device.name}", style="bold")
        head, *rows, means = table(bench_columns(result), console.width)
        rule = Text(head.plain.splitlines()[1])
        means.stylize("bold")
        say(console, head, *rows, rule, means)
    for line in bench_closing(result):
        say(console, line)


def _tune(console: Console, problems: list[Problem], info: DeviceInfo, effort: str, store: Path | None) -> bool:
    """Tune the shapes that have no record of their own; False where Ctrl-C ended it."""
    shelf = Store(store)
    for problem in problems:
        if shelf.lookup(info, problem, nearest).origin == "exact":
            continue
        progress = TuneShown(console)
        with progress.drawn():
            found = tune(problem, device=info.selector, effort=effort, store=store, progress=progress)
        if found.stopped == "interrupt":
            return False
    return True
