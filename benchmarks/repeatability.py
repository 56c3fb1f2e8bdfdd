"""Tune shapes three times, each time from an empty store, and tell how far what is found lies apart.

    python benchmarks/repeatability.py --seconds 540

Ten shapes, the first that `untuned.py` draws, with another seed of the sampler each time. Some 50 s a
tuning on an H200 with 16 processors: 30 of them are three runs of 9 minutes. A run goes on with the file that it finds,
and takes the first tuning of each shape over from `--first`, a file of `untuned.py`, where that is of the same effort
and ranker: then two runs are enough. The winners of a shape are timed side by side, in rounds; the spread is the
slowest's time over the fastest's, less 1. Winners that are the same config have none.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dataset import SHARE_HELP, share_of
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device
from tilewright.tuner.settings import EFFORTS
from untuned import CONTEST_SECONDS, COUNT, LARGEST, PARTS, RESULT, Results, Row, drawn, head_of, in_time, timed, tuned

SHAPES, TIMES = 10, 3
WITHIN = 1.0
"""Percent within which tunings are to end."""


def summary_of(rows: Sequence[Row]) -> Row:
    """How many shapes, how many of them within 1%, and the largest spread in percent."""
    spreads = [row["spread_percent"] for row in rows if "spread_percent" in row]
    within = sum(spread <= WITHIN for spread in spreads)
    return {"shapes": len(spreads), "within 1%": within, "largest spread, %": max(spreads, default=None)}


def steps_of(results: Results, device: Device, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """The tunings that are left; after the last one of a shape its winners are timed."""
    for problem, row in results.own.items():
        winners: list[str] = row.setdefault("winners", [])
        for seed in range(len(winners), options.times + 1):  # once more where only the timing is left
            if "spread_percent" in row:
                break

            def step(problem: Problem = problem, row: Row = row, seed: int = seed) -> None:
                if len(row["winners"]) < options.times:
                    found = tuned(device, problem, options.effort, options.tune_seconds, seed)
                    row["winners"].append(found["tuned"])
                    row.setdefault("trials", []).append(found["tune_trials"])
                    results.save()
                if len(row["winners"]) == options.times:
                    _, times = timed(device, problem, row["winners"], options.contest_seconds)
                    row["us"] = [times[config] for config in row["winners"]]
                    row["spread_percent"] = 100 * (max(row["us"]) / min(row["us"]) - 1)
                    results.save()

            yield f"{problem}, {seed + 1}", step


def taken_over(results: Results, first: Path, head: Row) -> None:
    """First tunings that `untuned.py` did."""
    document: dict[str, Any] = json.loads(first.read_text()) if first.exists() else {}
    if any(document.get(key) != head[key] for key in ("ranker", "device", "effort", "versions")):
        return
    configs = {results.problem_of(row): row["tuned"] for row in document["rows"] if "tuned" in row}
    for problem, row in results.own.items():
        found = configs.get(problem)
        if found and not row.get("winners"):
            row["winners"] = [found]


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune, time and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULT.with_name("repeatability.json"))
    parser.add_argument("--first", type=Path, default=RESULT, help="a file of untuned.py")
    parser.add_argument("--seconds", type=float, default=540.0, help="of a run; it ends before (540)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", type=int, default=SHAPES, help="shapes (10)")
    parser.add_argument("--times", type=int, default=TIMES, help="tunings of each (3)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="m, n and k at most (16384)")
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="normal")
    parser.add_argument("--tune-seconds", type=float, help="of a tuning, in place of the effort's")
    parser.add_argument("--contest-seconds", type=float, default=CONTEST_SECONDS)
    parser.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    options = parser.parse_args(arguments)
    device = open_device(choose(options.device))
    head = head_of(device, effort=options.effort)
    problems = drawn(COUNT, options.largest)[: options.shapes]
    results = Results(options.output, head, problems, summary_of, options.share)
    taken_over(results, options.first, head)
    in_time(steps_of(results, device, options), options.seconds, PARTS["tune"])
    print(json.dumps(results.save(), indent=1))


if __name__ == "__main__":
    main()
