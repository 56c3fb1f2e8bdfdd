"""Compare tilewright's searches with Optuna's TPE and Kernel Tuner's strategies on recorded spaces, without a GPU.

    python benchmarks/search.py RECORDING... --seeds 20 --budget 200 --output benchmarks/results/search

Each search gets the same recordings, the same seeds and the same number of unique valid evaluations. A share is
the recording's best time over the best time found so far. Needs `pip install kernel-tuner matplotlib`.
"""

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.leaf import Value
from tilewright.tuner.recording.files import Recording, read_cache_file, restrictions, write_cache_file
from tilewright.tuner.search.space import Point, Space
from tilewright.tuner.search.study import make_search

SAMPLERS = ("gp", "optuna:TPESampler", "random")
STRATEGIES = ("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm", "simulated_annealing", "random_sample")
TARGETS = (0.95, 0.99)
"""Shares that a run is to reach."""
MARKS = (50, 100, 200)
"""Evaluations after which the mean share is written."""
WINNERS = 5
"""Best points of each other recording that a search may try first."""
FIRST_SEED = 5000
"""Seed of the first run. The samplers were tuned with other seeds."""
MISSED = 10**6
"""Number of evaluations that stands for a run which missed a target."""

Curve = NDArray[np.float64]
"""Share of the optimum after each unique evaluation."""


@dataclass(frozen=True, slots=True)
class Case:
    """One recording, ready to be searched."""

    name: str
    """File name without endings."""
    recording: Recording
    """The recorded trials."""
    space: Space
    """The space of the recorded points."""
    unpacked: Path
    """Path of the recording as an unpacked file, which Kernel Tuner needs."""
    best_us: float
    """Best recorded time in microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One search on one recording."""

    recording: str
    """Name of the recording."""
    method: str
    """Name of the search."""
    curves: tuple[Curve, ...]
    """One curve for each seed."""
    seconds: float
    """Mean seconds of a run, which ends at the optimum or at the budget."""

    def summary(self) -> dict[str, Any]:
        """Quantiles, success rates and mean shares over the seeds."""
        summary: dict[str, Any] = {"recording": self.recording, "method": self.method, "runs": len(self.curves)}
        for target in TARGETS:
            reached = [int(np.argmax(c >= target)) + 1 if (c >= target).any() else MISSED for c in self.curves]
            quantiles = np.quantile(reached, (0.1, 0.5, 0.9))
            summary[f"to_{target:.0%}"] = {
                "q10_q50_q90": [float(q) if q < MISSED / 10 else None for q in quantiles],
                "success": sum(r < MISSED for r in reached) / len(reached),
                "per_seed": [r if r < MISSED else None for r in reached],
            }
        for mark in MARKS:
            if mark <= len(self.curves[0]):
                summary[f"mean_share_at_{mark}"] = round(float(np.mean([c[mark - 1] for c in self.curves])), 4)
        summary["seconds_per_run"] = round(self.seconds, 2)
        summary["median_curve"] = [round(float(v), 4) for v in np.median(np.stack(self.curves), axis=0)]
        return summary


def curve_of(times_us: Iterable[float | None], best_us: float, budget: int) -> Curve:
    """The curve of the times of unique evaluations in order, None for a failure. It stays level after the last one."""
    shares = [0.0 if t is None else best_us / t for t in times_us][:budget]
    shares += [0.0] * (budget - len(shares))
    return np.maximum.accumulate(np.array(shares))


def our_run(
    name: str, case: Case, budget: int, seed: int, first_points: Iterable[Point] = (), stop_share: float = 1.0
) -> Curve:
    """One run of a sampler of ours, which tries `first_points` first and ends early at the share `stop_share`."""
    search = make_search(name, case.space, seed)
    search.seed(first_points)
    times_us: list[float | None] = []
    while len(times_us) < budget and (point := search.ask()) is not None:
        time_us = case.recording.entries[point].time_us
        times_us.append(time_us)
        search.tell(point, time_us)
        if time_us is not None and case.best_us / time_us >= stop_share:
            break
    return curve_of(times_us, case.best_us, budget)


def kernel_tuner_run(strategy: str, case: Case, budget: int, seed: int) -> Curve:
    """One run of a strategy of Kernel Tuner in its simulation mode."""
    import kernel_tuner

    names = [d.name for d in case.space.dimensions]
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Kernel Tuner searches the points that worked, so failures cost it nothing.
        results, _ = kernel_tuner.tune_cache(
            str(case.unpacked),
            restrictions=restrictions(case.recording),
            strategy=strategy,
            strategy_options={"max_fevals": budget},
            verbose=False,
            quiet=True,
        )
    times_us: dict[Point, float | None] = {}
    for result in results:
        point = point_of(case.space, {name: result[name] for name in names})
        times_us.setdefault(point, case.recording.entries[point].time_us)
    return curve_of(times_us.values(), case.best_us, budget)


def point_of(space: Space, values: Mapping[str, Value]) -> Point:
    """The point with these values, valid or not. Raises ValueError for a value that is no choice of the space."""
    return tuple(dimension.choices.index(values.get(dimension.name)) for dimension in space.dimensions)


def winners(case: Case, others: Iterable[Case]) -> list[Point]:
    """The best points of other recordings whose values are choices of this space."""
    points = []
    for other in others:
        timed = [(e.time_us, p) for p, e in other.recording.entries.items() if e.time_us is not None]
        for _, point in sorted(timed)[:WINNERS]:
            with contextlib.suppress(ValueError):
                points.append(point_of(case.space, dict(other.space.values(point))))
    return points


def measure(case: Case, method: str, seeds: int, run: Callable[[int], Curve]) -> dict[str, Any]:
    """Run a search with all seeds, print its figures and return its summary."""
    begin = time.perf_counter()
    curves = tuple(run(FIRST_SEED + i) for i in range(seeds))
    row = Row(case.name, method, curves, (time.perf_counter() - begin) / seeds).summary()
    figures = (row[f"to_{target:.0%}"] for target in TARGETS)
    print(case.name, method, *((f["q10_q50_q90"], f["success"]) for f in figures), flush=True)
    return row


def searches(
    case: Case, samplers: str, strategies: str, budget: int, first_points: list[Point]
) -> Iterator[tuple[str, Callable[[int], Curve]]]:
    """Name of each search, and a function that runs it with a seed."""
    titles = {name: _title(name) for name in samplers.split(",") if name}
    for name, title in titles.items():
        yield title, partial(our_run, name, case, budget)
    for name in filter(None, strategies.split(",")):
        yield f"Kernel Tuner {name}", partial(kernel_tuner_run, name, case, budget)
    for name, title in titles.items():
        if first_points and name != "random":
            yield f"{title}, winners of others first", partial(our_run, name, case, budget, first_points=first_points)


def _title(sampler: str) -> str:
    name = sampler.removeprefix("optuna:")
    return f"tilewright {name}" if name == sampler else f"Optuna {name}, repaired"


def load(path: Path, folder: Path) -> Case:
    """Read a recording and put an unpacked copy into `folder`."""
    recording = read_cache_file(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    unpacked = folder / f"{name}.json"
    write_cache_file(unpacked, recording)
    return Case(name, recording, recording.space(), unpacked, recording.best_us)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the methods use."""
    installed = {"python": platform.python_version()}
    for package in ("tilewright", "optuna", "numpy", "scipy", "kernel_tuner"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def table(rows: list[dict[str, Any]], budget: int) -> str:
    """The rows as Markdown, one table for each recording."""
    lines = []
    for name in dict.fromkeys(row["recording"] for row in rows):
        marks = [mark for mark in MARKS if f"mean_share_at_{mark}" in rows[0]]
        lines += [f"## {name}", ""]
        lines.append(
            "| search | runs | to 95%: 10 / 50 / 90%, mean | reached | to 99% | reached | "
            + " | ".join(f"@{mark}" for mark in marks)
            + " | s a run |"
        )
        lines.append("| --- |" + " --- |" * (6 + len(marks)))
        for row in (row for row in rows if row["recording"] == name):
            cells = [row["method"], str(row["runs"])]
            for target in TARGETS:
                figures = row[f"to_{target:.0%}"]
                quantiles = " / ".join("-" if q is None else f"{q:.0f}" for q in figures["q10_q50_q90"])
                mean = np.mean([budget if r is None else r for r in figures["per_seed"]])
                cells.append(f"{quantiles}, {mean:.0f}")
                cells.append(f"{figures['success']:.0%}")
            cells += [f"{row[f'mean_share_at_{mark}']:.3f}" for mark in marks]
            cells.append(f"{row['seconds_per_run']:.1f}")
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Median share over evaluations, one panel for each recording."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tilewright"
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["recording"] for row in rows))
    figure, panels = pyplot.subplots(1, len(names), figsize=(6 * len(names), 4.2), sharey=True, squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for row in (row for row in rows if row["recording"] == name):
            ours = row["method"].startswith("tilewright")
            style = "--" if "winners" in row["method"] else "-" if ours else ":"
            curve = row["median_curve"]
            panel.plot(range(1, len(curve) + 1), curve, style, lw=2 if ours else 1.4, label=row["method"])
        panel.set(title=name, xlabel="unique valid evaluations", ylim=(0.5, 1.005))
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("median share of the optimum")
    panels[0][-1].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run the comparison and write search.json, search.md and search.svg."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path, help="Kernel Tuner cache files, gzipped or not")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200, help="unique valid evaluations a run")
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--samplers", default=",".join(SAMPLERS), help="ours, separated by commas")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="Kernel Tuner's; may be empty")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="keep the rows of the output folder, whatever number of runs they have",
    )
    options = parser.parse_args()
    # One thread: the matrices are small, and threads that wait for each other only cost time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    seeds, budget = options.seeds, options.budget
    old_rows: list[dict[str, Any]] = []
    if options.reuse and (options.output / "search.json").exists():
        earlier = json.loads((options.output / "search.json").read_text())
        if (earlier["first_seed"], earlier["budget"]) == (FIRST_SEED, budget):
            old_rows = earlier["rows"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cases = [load(path, Path(folder)) for path in options.recordings]
        for case in cases:
            first_points = winners(case, [other for other in cases if other is not case])
            for method, run in searches(case, options.samplers, options.strategies, budget, first_points):
                old_row = next((r for r in old_rows if (r["recording"], r["method"]) == (case.name, method)), None)
                rows.append(old_row or measure(case, method, seeds, run))
        recordings = [
            {"name": c.name, "device": c.recording.device_name, "points": len(c.space), "best_us": c.best_us}
            for c in cases
        ]
    document = {
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "seeds": seeds,
        "first_seed": FIRST_SEED,
        "budget": budget,
        "recordings": recordings,
        "rows": rows,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "search.json").write_text(json.dumps(document) + "\n")
    head = f"# Searches compared\n\n{document['date']}; {budget} unique valid evaluations a run; "
    head += ", ".join(f"{name} {version}" for name, version in versions().items()) + ".\n"
    head += "A share is the recording's best time over the best time found; `-` is more than the budget.\n"
    head += "A run that misses a share counts with the whole budget in the mean.\n"
    head += f'"winners of others first": the {WINNERS} best of each other recording are tried first.\n'
    head += "repaired: a suggestion that is invalid or was tried becomes the nearest point that may be tried.\n\n"
    (options.output / "search.md").write_text(head + table(rows, budget))
    plot(rows, options.output / "search.svg")


if __name__ == "__main__":
    main()
