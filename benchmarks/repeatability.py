"""Tune shapes three times, each time from an empty store, and measure how far the winners' times lie apart.

    python benchmarks/repeatability.py --seconds 540

The shapes are the first ten that `untuned.py` draws; each tuning of a shape has another seed. A tuning takes some 50 s
on an H200 with 16 processors, and all 30 take three runs of 9 minutes. A run goes on with the file that it finds. It
takes the first tuning of each shape from `--first`, a file of `untuned.py`, if ranker, device, effort and versions are
the same: then two runs are enough. The winners of a shape are timed side by side, in rounds. The spread is the slowest
winner's time over the fastest's, less 1. It is 0 where all winners are the same config.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import untuned
from dataset import SHARE_HELP, share_of
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device
from tilewright.tuner.settings import EFFORTS
from untuned import RESULT, Results, Row, drawn_problems

SHAPES, TUNINGS = 10, 3
"""Number of shapes, and of tunings of each."""
LARGEST_SPREAD = 1.0
"""Largest spread, in percent, of a shape whose tunings count as alike."""


def summary_of(rows: Sequence[Row]) -> Row:
    """Number of shapes, number of those with a spread within 1%, and the largest spread in percent."""
    spreads = [row["spread_percent"] for row in rows if "spread_percent" in row]
    within = sum(spread <= LARGEST_SPREAD for spread in spreads)
    return {"shapes": len(spreads), "within 1%": within, "largest spread, %": max(spreads, default=None)}


def steps_of(results: Results, device: Device, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and function of a step for each tuning yet to run. The last step of a shape times its winners too."""
    for problem, row in results.own_rows.items():
        winners: list[str] = row.setdefault("winners", [])
        for seed in range(len(winners), options.times + 1):  # one step more, for winners that are not timed yet
            if "spread_percent" in row:
                break

            def step(problem: Problem = problem, row: Row = row, seed: int = seed) -> None:
                if len(row["winners"]) < options.times:
                    tuning = untuned.tuning_row(device, problem, options.effort, options.tune_seconds, seed)
                    row["winners"].append(tuning["tuned"])
                    row.setdefault("trials", []).append(tuning["tune_trials"])
                    results.save()
                if len(row["winners"]) == options.times:
                    _, times_us = untuned.contest_times(device, problem, row["winners"], options.contest_seconds)
                    row["us"] = [times_us[config] for config in row["winners"]]
                    row["spread_percent"] = 100 * (max(row["us"]) / min(row["us"]) - 1)
                    results.save()

            yield f"{problem}, {seed + 1}", step


def take_first_tunings(results: Results, first: Path, head: Row) -> None:
    """Take first tunings from the file `first` of `untuned.py`, if it was measured as `head` says."""
    document: dict[str, Any] = json.loads(first.read_text()) if first.exists() else {}
    if any(document.get(key) != head[key] for key in ("ranker", "device", "effort", "versions")):
        return
    configs = {results.problem_of(row): row["tuned"] for row in document["rows"] if "tuned" in row}
    for problem, row in results.own_rows.items():
        config = configs.get(problem)
        if config and not row.get("winners"):
            row["winners"] = [config]


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune the shapes, time the winners and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULT.with_name("repeatability.json"))
    parser.add_argument("--first", type=Path, default=RESULT, help="a file of untuned.py")
    parser.add_argument("--seconds", type=float, default=540.0, help="a run ends before this time is up (540)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", type=int, default=SHAPES, help="shapes (10)")
    parser.add_argument("--times", type=int, default=TUNINGS, help="tunings of each (3)")
    parser.add_argument("--largest", type=int, default=untuned.LARGEST, help="largest m, n or k (16384)")
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="normal")
    parser.add_argument("--tune-seconds", type=float, help="seconds of a tuning, in place of the effort's")
    parser.add_argument("--contest-seconds", type=float, default=untuned.CONTEST_SECONDS)
    parser.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    options = parser.parse_args(arguments)
    device = open_device(choose(options.device))
    head = untuned.head_of(device, effort=options.effort)
    problems = drawn_problems(untuned.COUNT, options.largest)[: options.shapes]
    results = Results(options.output, head, problems, summary_of, options.share)
    take_first_tunings(results, options.first, head)
    untuned.run_steps(steps_of(results, device, options), options.seconds, untuned.PARTS["tune"])
    print(json.dumps(results.save(), indent=1))


if __name__ == "__main__":
    main()
