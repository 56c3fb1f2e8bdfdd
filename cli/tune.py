"""`tilewright tune`: the fastest right kernel for each shape."""

import json
import math
from pathlib import Path
from typing import Any

import click

from ..codegen.errors import check_path
from ..codegen.problem import Problem
from ..runtime.files import spared, write_output
from ..tuner.recording.files import read_cache_file, t4_path
from ..tuner.recording.replay import replay
from ..tuner.tune import tune
from . import options
from .progress import TuneShown
from .result import result_json, show_replay, show_result
from .tables import new_console

_SAMPLER_HELP = "gp (a Gaussian process), tpe (Optuna's), random, exhaustive or optuna:CLASS."
REPLAY_TRIALS = 200
"""Trials of a search in a recording where --trials does not say."""


@click.command("tune", context_settings=options.CONTEXT)
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
@options.dtype
@options.trans
@click.option("--device", default="auto", help="auto, cuda, cuda:N, host, or replay:FILE for a recorded run.")
@options.effort
@click.option("--trials", type=click.IntRange(1), help="Most variants tried; overrides --effort.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Most seconds a shape; overrides --effort.")
@click.option("--sampler", default="gp", show_default=True, help=_SAMPLER_HELP)
@click.option("--spaces", type=options.FOLDER_THERE, help="Folder of space files [default: those of the package].")
@click.option("--keep", type=click.IntRange(1, 64), default=5, help="Contenders in the final duel.")
@click.option("--isolation/--no-isolation", default=True, help="Try variants in processes of their own.")
@click.option(
    "--record", type=options.FILE, help="Write every trial here: .json or .json.gz of Kernel Tuner, and T4 JSON."
)
@click.option("--json", "json_file", type=options.FILE, help="Also write the results here.")
@options.store
@options.debug
def tune_command(
    shapes: tuple[str, ...], dtype: str, trans: str, device: str, json_file: Path | None, **given: Any
) -> int:
    """Find the fastest right kernel for each shape and keep it.

    \b
    tune --shape 1024x768x512                  the GPU if there is one, else the processor
    tune --shape 1024x768x512 --shape 1000     several shapes; the order is M x N x K
    tune --shape 1000 --dtype double --trials 60 --seconds 120

    Ctrl-C ends the search early: what was found meets in the final duel and the winner is kept.
    """
    if device.startswith("replay:"):
        _replay(device.removeprefix("replay:"), given["sampler"], given["trials"], given["seconds"])
        return 0
    if not shapes:
        raise click.UsageError("Missing option '--shape'.")
    if given["record"] and len(shapes) > 1:
        raise click.UsageError(f"--record takes one --shape, got {len(shapes)}")
    record = given["record"]
    options.distinct({"--json": json_file, "--record": record, "--record, for T4,": record and t4_path(record)})
    problems = [Problem.parse(shape, dtype, trans) for shape in shapes]
    options.chosen(device)
    console = new_console()
    results = []
    for problem in problems:
        progress = TuneShown(console)
        with progress.drawn():
            result = tune(problem, device=device, progress=progress, **given)
            results.append(result)
            if json_file:  # again after each, so that a failure of the next one loses nothing
                text = json.dumps([result_json(each) for each in results], indent=1) + "\n"
                with spared(json_file):
                    write_output(json_file, text.encode())
        show_result(console, result, given["store"])
        if result.stopped == "interrupt":
            return 130
    return 0


def _replay(name: str, sampler: str, trials: int | None, seconds: float | None) -> None:
    file = check_path("replay:", name)
    assert file is not None
    recording = read_cache_file(file)
    found = replay(recording, sampler=sampler, trials=trials or REPLAY_TRIALS, seconds=seconds or math.inf)
    show_replay(new_console(), found)
