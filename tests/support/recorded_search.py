"""Searches of two recordings: how many evaluations each needs until it is within 5% and 1% of the recorded optimum.

    python tests/support/recorded_search.py [RECORDING...]

measures the figures again and writes them, for a change that is meant to move them. A recording that is named is
reduced and kept first. Both recordings are reduced from benchmarks/results/nvidia-h200/recordings, from
float-1024x768x512-apart and float-16x4096x4096: whole spaces, of which only the variants are left out that can no
longer be generated. One is square, and its first guesses hold the optimum; the other is narrow, has one family more,
and its first guesses end within 5%. Both are older than most configs that are predicted or recorded for their shapes,
so nearly all of the first guesses are the device model's.
"""

import contextlib
import json
import runpy
import sys
from collections.abc import Iterator
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, read_cache_file, write_cache_file
from tilewright.tuner.search.candidates import config_of, given
from tilewright.tuner.search.ranked import first_guesses
from tilewright.tuner.search.space import Point

FOLDER = Path(__file__).parents[1] / "data" / "search"
FIGURES = FOLDER / "figures.json"
DEVICE = KNOWN["nvidia-h200"]
"""The device of all recordings."""
BUDGET = 200
"""Evaluations of a run; a run that misses a target counts with all of them."""
SEEDS = 12
"""Runs of a method, each with another seed."""
FIRST_GUESSES = "gp first guesses"
"""The method that runs as `tune` does, and ends with the first guesses."""
AFTER_HALF = "gp after half of the first guesses"
"""The method that goes on after the first guesses. Each seed draws a half of them, because after the whole list all
runs are the same."""
METHODS = (FIRST_GUESSES, "gp", AFTER_HALF, "tpe", "random")
"""Methods that are measured; the first word is the sampler."""
VERSIONS = ("numpy", "optuna")
"""Packages whose versions decide the random numbers and TPE's suggestions."""


def names() -> list[str]:
    """The names of the recordings."""
    return sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


def figures(name: str, method: str) -> dict[str, dict[str, float]]:
    """Median and mean of the evaluations to each target, over the seeds."""
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


def reduced(recording: Recording) -> Recording:
    """The recording under today's names of parameters, with one time of five digits for each variant.

    Variants are in canonical order, as in a space that is searched for the first time: the order of a recording favours
    what its search found good.
    """
    assert recording.problem is not None
    entries: dict[Config, Entry] = {}
    for point, entry in recording.entries.items():
        with contextlib.suppress(ConfigError):  # its family lost a parameter since
            entries[config_of(recording.values(point), DEVICE.sm_count)] = entry
    found = given(sorted(entries, key=attrgetter("canonical")))
    times = {
        point: Entry(entries[config].status, entries[config].time_us and float(f"{entries[config].time_us:.5g}"))
        for point, config in zip(found.space.points, found.configs)
    }
    return Recording.of(recording.problem, recording.device_name, found.space.dimensions, times)


@cache
def _script() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "search.py"))


def _curves(name: str, method: str) -> Iterator[Any]:
    script, guesses = _script(), _guesses(name)
    run = partial(script["our_run"], method.partition(" ")[0], _case(name), enough=max(script["TARGETS"]))
    seeds = range(script["FIRST_SEED"], script["FIRST_SEED"] + SEEDS)
    if method == FIRST_GUESSES:
        yield run(len(guesses), seeds[0], first=guesses)
    elif method == AFTER_HALF:
        for seed in seeds:
            drawn = np.random.default_rng(seed).random(len(guesses)) < 0.5
            yield run(BUDGET, seed, first=[point for point, half in zip(guesses, drawn) if half])
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
    """The points that `tune` tries first. Records play no part: their configs are newer than the recordings."""
    recording = _case(name).recording
    points = {config_of(recording.values(point)): point for point in recording.entries}
    guesses = first_guesses(recording.problem, DEVICE, tuple(points), ())
    return tuple(points[config] for config in dict.fromkeys(guesses) if config in points)


def main() -> None:
    """Reduce the recordings that are named, and write the figures."""
    for path in map(Path, sys.argv[1:]):
        recording = reduced(read_cache_file(path))
        assert recording.problem is not None
        write_cache_file(FOLDER / f"{recording.problem.dtype.value}-{recording.problem.shape}.json.gz", recording)
    measured = {name: {method: figures(name, method) for method in METHODS} for name in names()}
    FIGURES.write_text(json.dumps({"versions": versions(), "figures": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
