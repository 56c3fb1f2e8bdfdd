"""`tilewright tune`: the fastest right kernel for each shape."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from ..codegen.errors import ShapeError, TuningError, check_path
from ..codegen.problem import Problem
from ..tuner.measure.child import kept_between_runs
from ..tuner.plan import check_tunable
from ..tuner.recording.files import read_cache_file, t4_path
from ..tuner.recording.replay import TRIALS, replay
from ..tuner.result import EFFORTS, Result
from ..tuner.tune import tune
from . import options
from .on_workers import ON_WORKERS, on_workers, tuned_on_workers, wanted
from .progress import TuneShown
from .result import ResultsFile, show_replay, show_result
from .show import show_records
from .tables import new_console, plain, say
from .trials import TrialsFile

_SAMPLER_HELP = "gp (a Gaussian process), tpe (Optuna's), random, exhaustive or optuna:CLASS."
_OF_REPLAY = ("device", "sampler", "trials", "seconds", "seed", "debug")


@click.command("tune")
@options.problems
@click.option("--skip-tuned", is_flag=True, help="Leave out what has a record of this device: goes on with a suite.")
@click.option("--device", default="auto", help="auto, cuda, cuda:N, host, or replay:FILE for a recorded run.")
@options.variants
@options.effort
@click.option("--trials", type=click.IntRange(1), help="Most variants tried; overrides --effort.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Most seconds a shape; overrides --effort.")
@click.option("--sampler", default="gp", help=_SAMPLER_HELP)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Of the sampler's random numbers.")
@options.spaces
@click.option("--keep", type=click.IntRange(1, 64), default=5, help="Contenders in the final duel.")
@click.option("--replace", is_flag=True, help="Keep the winner even where what is stored is faster.")
@click.option("--isolation/--no-isolation", default=True, help="Try variants in processes of their own.")
@click.option(
    "--record", type=options.FILE, help="Write every trial here: .json or .json.gz of Kernel Tuner, and T4 JSON."
)
@click.option("--csv", "csv_file", type=options.FILE, help="Write every trial here as it ends: parameters as columns.")
@click.option("--json", "json_file", type=options.FILE, help="Also write the results here.")
@options.store
@on_workers
@options.debug
def tune_command(device: str, skip_tuned: bool, csv_file: Path | None, json_file: Path | None, **given: Any) -> int:
    """Find the fastest right kernel for each shape and keep it.

    \b
    tune --shape 1024x768x512               the GPU if there is one, else the host
    tune --shape 1024x768x512 --shape 1000  several shapes; the order is M x N x K
    tune --shape 1000 --dtype double --trials 60 --seconds 120
    tune --suite shapes.csv --skip-tuned    goes on with a list of shapes
    tune --suite shapes.csv --workers auto  on every GPU of this machine
    tune --m 256:4096:256 --n 1024 --k 64:512:64
    tune --shape 1000 --config tiled:32 --config tiled:16,edge=pad

    Ctrl-C ends the search early: what was found meets in the final duel and the winner is kept. With --config there
    is no search: these variants alone are checked, timed and compared with what the library runs now. What is stored
    for a shape gives way only to what is faster in the duel, or with --replace.
    """
    asked, several = ({name: given.pop(name) for name in names} for names in (options.ASKED, ON_WORKERS))
    if device.startswith("replay:"):
        _check_replay(device)
        _replay(device.removeprefix("replay:"), given["sampler"], given["trials"], given["seconds"], given["seed"])
        return 0
    problems = options.asked(**asked)
    if not problems:
        raise click.UsageError("tune needs --shape, --suite, or --m, --n and --k")
    if given["record"] and len(problems) > 1:
        raise click.UsageError(f"--record takes one --shape, got {len(problems)}")
    record = given["record"]
    files = {"--json": json_file, "--csv": csv_file, "--record": record}
    options.distinct(files | {"--record, for T4,": record and t4_path(record)})
    if given["configs"] and (given["trials"] or given["spaces"]):
        raise click.UsageError("--config tries just these variants: leave out --trials and --spaces")
    if wanted(several, device, problems):
        return tuned_on_workers(problems, device, skip_tuned, csv_file, json_file, given, several)
    info = options.chosen(device)
    for problem in problems:
        check_tunable(problem, info, given["configs"])
    console = new_console()
    if skip_tuned:
        problems = options.left_of(console, problems, info, given["store"])
    if len(problems) > 1:
        seconds = given["seconds"] or EFFORTS[given["effort"]].seconds
        say(console, f"{len(problems)} shapes, at most {seconds:g} s each")
    trials = TrialsFile(csv_file) if csv_file else None
    results = _one_by_one(console, problems, device, trials, json_file, given)
    if len(problems) > 1 and results:
        say(console, "")
        show_records(console, [result.best for result in results], f"{len(results)} of {len(problems)} shapes")
    if results and results[-1].stopped == "interrupt":
        return 130
    return 0 if len(results) == len(problems) else 1


def _one_by_one(
    console: Console,
    problems: Sequence[Problem],
    device: str,
    trials: TrialsFile | None,
    json_file: Path | None,
    given: dict[str, Any],
) -> list[Result]:
    """Tune on one device, until Ctrl-C. What fails costs its shape alone, or is raised where there is but one."""
    results: list[Result] = []
    file = ResultsFile(json_file) if json_file else None
    with kept_between_runs():
        for number, problem in enumerate(problems, start=1):
            if len(problems) > 1:
                say(console, *([""] if number > 1 else []), f"shape {number} of {len(problems)}")
            progress = TuneShown(console, trials)
            try:
                with progress.drawn():
                    result = tune(problem, device=device, progress=progress, **given)
                    results.append(result)
                    if file:  # before the screen, which may be gone: nothing is lost
                        file.add(result)
            except (ShapeError, TuningError) as error:
                if len(problems) == 1:
                    raise
                click.echo(f"tilewright: {plain(str(error))}", err=True)  # it costs this shape alone
                continue
            show_result(console, result, given["store"])
            if result.stopped == "interrupt":
                break
    return results


def _check_replay(device: str) -> None:
    """Raise UsageError for options that a search in a recording would pass over in silence."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name not in _OF_REPLAY
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        taken = ", ".join(f"--{name}" for name in _OF_REPLAY if name != "device")
        raise click.UsageError(f"--device {device} goes without {', '.join(given)}: it takes {taken}")


def _replay(name: str, sampler: str, trials: int | None, seconds: float | None, seed: int) -> None:
    file = check_path("replay:", name)
    assert file is not None
    recording = read_cache_file(file)
    found = replay(recording, sampler=sampler, trials=trials or TRIALS, seconds=seconds or math.inf, seed=seed)
    show_replay(new_console(), found)
