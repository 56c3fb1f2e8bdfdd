"""Searches of two recordings: evaluations that each needs until it is within 5% and 1% of the recorded optimum.

    python tests/support/recorded_search.py

measures the figures again and writes them, for a change that is meant to alter them. Both recordings are whole spaces,
from benchmarks/results/nvidia-h200/recordings. One is square, and its first guesses hold the optimum; the other is
narrow, has one family more, and its first guesses end within 5%. Both recordings are older than most configs that are
predicted or recorded for their shapes, so that nearly all of the first guesses come from the device model.
"""

import json
import runpy
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import varied
from tilewright.tuner.plan import GUESSES
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.search.space import Point

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOLDER = BENCHMARKS / "results" / "nvidia-h200" / "recordings"
NAMES = ("float-1024x768x512", "float-16x4096x4096")
"""The names of the recordings."""
FIGURES = Path(__file__).parents[1] / "data" / "search" / "figures.json"
DEVICE = KNOWN["nvidia-h200"]
"""The device of all recordings."""
BUDGET = 200
"""Number of evaluations of a run; a run that misses a target counts with all of them."""
SEEDS = 12
"""Number of runs of a method, each with another seed."""
FIRST_GUESSES = "gp first guesses"
"""The method that tries the first guesses of `tune` and ends with them."""
AFTER_HALF = "gp after half of the first guesses"
"""The method that searches after the first guesses. Each seed draws half of them, because after the whole list all runs
are equal."""
METHODS = (FIRST_GUESSES, "gp", AFTER_HALF, "tpe", "random")
"""Methods that are measured. The first word of each names the sampler."""
VERSIONS = ("numpy", "optuna")
"""Packages whose versions decide the random numbers and TPE's suggestions."""


def figures(name: str, method: str) -> dict[str, dict[str, float]]:
    """Median and mean over the seeds of the evaluations to each target."""
    script = _script()
    row = script["Row"](name, method, tuple(_curves(name, method)), 0.0).summary()
    measured = {}
    for target in (f"to_{each:.0%}" for each in script["TARGETS"]):
        evaluations = [BUDGET if each is None else each for each in row[target]["per_seed"]]
        measured[target] = {"median": float(np.median(evaluations)), "mean": round(float(np.mean(evaluations)), 1)}
    return measured


def versions() -> dict[str, str]:
    """The versions of the packages that the figures depend on."""
    return {package: _script()["versions"]()[package] for package in VERSIONS}


@cache
def _script() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "search.py"))


def _curves(name: str, method: str) -> Iterator[Any]:
    script, guesses = _script(), _guesses(name)
    run = partial(script["our_run"], method.partition(" ")[0], _case(name), stop_share=max(script["TARGETS"]))
    seeds = range(script["FIRST_SEED"], script["FIRST_SEED"] + SEEDS)
    if method == FIRST_GUESSES:
        yield run(len(guesses), seeds[0], first_points=guesses)
    elif method == AFTER_HALF:
        for seed in seeds:
            drawn = np.random.default_rng(seed).random(len(guesses)) < 0.5
            yield run(BUDGET, seed, first_points=[point for point, half in zip(guesses, drawn) if half])
    else:
        for seed in seeds:
            yield run(BUDGET, seed)


@cache
def _case(name: str) -> Any:
    path = FOLDER / f"{name}.json.gz"
    recording = read_cache_file(path)
    return _script()["Case"](name, recording, recording.space(), path, recording.best_us)


@cache
def _guesses(name: str) -> tuple[Point, ...]:
    """Points that `tune` tries first, without those of records, whose configs are newer than the recordings."""
    recording = _case(name).recording
    points = {config_of(recording.values(point)): point for point in recording.entries}
    ordered = Forecast(recording.problem, DEVICE).ordered(tuple(points))
    return tuple(points[config] for config in varied(ordered)[:GUESSES])


def main() -> None:
    """Measure the figures and write them to their file."""
    measured = {name: {method: figures(name, method) for method in METHODS} for name in NAMES}
    FIGURES.write_text(json.dumps({"versions": versions(), "figures": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
