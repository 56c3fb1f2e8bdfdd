"""`tilewright tune`: a search for the fastest correct kernel of each shape."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from ..codegen.errors import ShapeError, TuningError, check, check_path
from ..codegen.problem import Problem
from ..runtime.device.detect import choose
from ..runtime.files import is_stream
from ..tuner.measure.child import kept_between_runs
from ..tuner.plan import check_tunable
from ..tuner.recording.files import read_cache_file, t4_path
from ..tuner.recording.replay import TRIALS, replay
from ..tuner.result import Result
from ..tuner.settings import EFFORTS, GP
from ..tuner.tune import tune
from . import options
from .commands import ON_WORKERS, PROBLEMS
from .on_workers import tuned_on_workers, uses_workers
from .progress import TuneShown
from .result import ResultsFile, show_replay, show_result
from .show import show_bests
from .tables import new_console, plain, say
from .trials import TrialsFile

_REPLAY_OPTIONS = ("device", "sampler", "trials", "seconds", "seed", "debug")
"""Options of a search in a recording."""


def tune_command(device: str, skip_tuned: bool, csv_file: Path | None, json_file: Path | None, **arguments: Any) -> int:
    """Tune each shape and return the exit status."""
    shapes, several = ({name: arguments.pop(name) for name in names} for names in (PROBLEMS, ON_WORKERS))
    if device.startswith("replay:"):
        _check_replay(device)
        _replay(device.removeprefix("replay:"), *(arguments[name] for name in ("sampler", "trials", "seconds", "seed")))
        return 0
    problems = options.problems_of(**shapes)
    check(bool(problems), "tune needs a shape; name it by --shape, by --suite, or by --m, --n and --k")
    record = arguments["record"]
    if record:
        check(len(problems) == 1, f"--record takes one shape, got {len(problems)}; name one by --shape")
        check(not is_stream(record), f"--record writes two files, got {record}; name a file, such as run.json.gz")
    files = {"--json": json_file, "--csv": csv_file, "--record": record}
    options.distinct(files | {"--record, for T4,": record and t4_path(record)})
    compatible = not (arguments["configs"] and (arguments["trials"] or arguments["spaces"]))
    check(compatible, "--config tries these variants alone; leave out --trials and --spaces, or --config")
    if uses_workers(several, device, problems):
        return tuned_on_workers(problems, device, skip_tuned, csv_file, json_file, arguments, several)
    info = choose(device)
    for problem in problems:
        check_tunable(problem, info, arguments["configs"])
    console = new_console()
    if skip_tuned:
        problems = options.remaining(console, problems, info, arguments["store"])
    if len(problems) > 1:
        seconds = arguments["seconds"] or EFFORTS[arguments["effort"]].seconds
        say(console, f"{len(problems)} shapes, at most {seconds:g} s each")
    with ResultsFile(json_file) as file:
        results = _one_by_one(console, problems, device, TrialsFile(csv_file), file, arguments)
    if len(problems) > 1:
        show_bests(console, results, len(problems))
    if results and results[-1].stopped == "interrupt":
        return 130
    return 0 if len(results) == len(problems) else 1


def _one_by_one(
    console: Console,
    problems: Sequence[Problem],
    device: str,
    trials: TrialsFile,
    file: ResultsFile,
    arguments: dict[str, Any],
) -> list[Result]:
    """Tune on one device until Ctrl-C. A failure costs its shape alone; it is raised where there is only one shape."""
    results: list[Result] = []
    with kept_between_runs():
        for number, problem in enumerate(problems, start=1):
            if len(problems) > 1:
                say(console, *([""] if number > 1 else []), f"shape {number} of {len(problems)}")
            progress = TuneShown(console, trials)
            try:
                with progress.drawn():
                    result = tune(problem, device=device, progress=progress, **arguments)
                    results.append(result)
                    file.add(result)  # the file comes first, as nobody may see the screen any longer
            except (ShapeError, TuningError) as error:
                if len(problems) == 1:
                    raise
                click.echo(f"tilewright: {plain(str(error))}", err=True)
                continue
            show_result(console, result, arguments["store"])
            if result.stopped == "interrupt":
                break
    return results


def _check_replay(device: str) -> None:
    """Raise ConfigError for options that a search in a recording would ignore."""
    context = click.get_current_context()
    refused = [
        option.opts[0]
        for option in context.command.params
        if option.name not in _REPLAY_OPTIONS
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    allowed = ", ".join(f"--{name}" for name in _REPLAY_OPTIONS if name != "device")
    check(not refused, f"--device {device} excludes {', '.join(refused)}; leave these out: it takes {allowed}")


def _replay(name: str, sampler: str | None, trials: int | None, seconds: float | None, seed: int) -> None:
    file = check_path("replay:", name)
    assert file is not None
    recording = read_cache_file(file)
    replayed = replay(recording, sampler=sampler or GP, trials=trials or TRIALS, seconds=seconds or math.inf, seed=seed)
    show_replay(new_console(), replayed)
