"""Time kernels for shapes that nobody tuned, on a GPU: the predicted one, those of first use and tuning, and cuBLAS.

    python benchmarks/untuned.py --part predict                  some 2 s a shape: 2 minutes
    python benchmarks/untuned.py --part first-use                some 3 s a shape: 3 minutes
    python benchmarks/untuned.py --part tune --seconds 540       some 27 s a shape: 2 such runs
    python benchmarks/untuned.py --part none                     the summary alone
    python benchmarks/untuned.py --part first-use --found before.json --output new.json

SEED decides the 60 shapes, whose sizes are log-uniform; both types and nn, nt and tn take turns. No shape is near one
of the data set or one whose record ships: within 15% in every dimension, in any order of the sizes. The first 30 are
tuned. A run goes on with the file that it finds, and ends when the next shape would take it past `--seconds`. Each
shape is written when it is done; where a part fails, the row holds the reason under `failed`. With several GPUs, one
process for each takes its `--share` of the shapes, and all write the same file.

All kernels of a row are timed side by side, in rounds, on rotated inputs. Each part times all of them again, so that
the times of a row come from one contest. First use and tuning begin with an empty store, first use with an empty
compile cache as well. The file belongs to one ranker: begin a new file after a new fit. `--found` names an earlier
file, whose tuned kernels are timed with the others: this judges a new fit in a third of the time. The times above are
those of an H200 with 16 processors.
"""

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dataset import SHARE_HELP, share_of
from filelock import FileLock
from shapes import MOST_STEPS
from shapes import problems as training
from tilewright.codegen.families import parse
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device
from tilewright.runtime.files import write_whole
from tilewright.runtime.product.gemm import load_on
from tilewright.runtime.settings import CACHE_VARIABLE
from tilewright.runtime.store.record import Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.bench.contest import contest
from tilewright.tuner.bench.rivals import setting
from tilewright.tuner.choose.ranker import name_of, shipped
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.first_use import measured
from tilewright.tuner.measure.child import kept_between_runs
from tilewright.tuner.settings import EFFORTS
from tilewright.tuner.tune import tune

SEED = 20261130
COUNT, TUNED, LARGEST = 60, 30, 16384
"""Number of shapes, how many of them are tuned, and the largest m, n or k."""
NEAR = 1.15
"""Two sizes are near each other if their ratio is less than this."""
TRANS = "nn", "nt", "tn"
FIRST_USE_SECONDS = 2.0
CONTEST_SECONDS = 1.0
RESULT = Path(__file__).parent / "results" / "nvidia-h200" / "untuned.json"
PARTS = {"predict": 10.0, "first-use": 15.0, "tune": 25.0}
"""Seconds that a shape is expected to take in each part, until one takes longer."""

Row = dict[str, Any]


def drawn_problems(count: int = COUNT, largest: int = LARGEST) -> list[Problem]:
    """Problems whose sizes are drawn by SEED. Types and transposes take turns."""
    rng, tuned_sizes, problems = random.Random(SEED), list(_tuned_sizes()), list[Problem]()
    kinds = itertools.cycle(itertools.product(TRANS, ("float", "double")))
    while len(problems) < count:
        sizes = tuple(round(math.exp(rng.uniform(0, math.log(largest)))) for _ in range(3))
        if math.prod(sizes) <= MOST_STEPS and not any(near(sizes, other) for other in tuned_sizes):
            trans, dtype = next(kinds)
            problems.append(Problem.parse("x".join(map(str, sizes)), dtype, trans))
    return problems


def _tuned_sizes() -> Iterator[tuple[int, int, int]]:
    """Sizes m, n and k of the problems of the data set and of the records that ship."""
    _, shipped = Store(Path("no-such-folder").absolute()).layers()
    for problem in {*training(), *(record.problem for record in shipped)}:
        yield problem.m, problem.n, problem.k


def near(sizes: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are near each other in some order of their sizes. If any order is, the sorted one is too."""
    return all(max(a / b, b / a) < NEAR for a, b in zip(sorted(sizes), sorted(other)))


class Results:
    """A file of rows, which is written after each row. Other processes may write the rows outside `share` meanwhile."""

    def __init__(
        self,
        path: Path,
        head: Row,
        problems: Sequence[Problem],
        summary_of: Callable[[Sequence[Row]], Row],
        share: slice = slice(None),
    ) -> None:
        self.path, self.problems, self.summary_of = path, problems, summary_of
        path.parent.mkdir(parents=True, exist_ok=True)
        self.document: Row = json.loads(path.read_text()) if path.exists() else head | {"rows": []}
        for key in ("ranker", "seed", "device"):
            if self.document[key] != head[key]:
                raise SystemExit(f"{path} is of another {key}: begin a new file")
        self.rows = self._read()
        self.own_rows = {problem: self.rows[problem] for problem in problems[share]}

    def save(self) -> Row:
        """Write the rows that hold more than their problem, and a summary of all rows. Return the summary."""
        with FileLock(f"{self.path}.lock"):
            self.rows = self._read() | self.own_rows
            summary = self.summary_of(list(self.rows.values()))
            rows = [row for problem, row in self.rows.items() if row != _problem_fields(problem)]
            self.document |= {"summary": summary, "rows": rows}
            write_whole(self.path, (json.dumps(self.document, indent=1) + "\n").encode())
        return summary

    def take_tuned(self, path: Path) -> None:
        """Take the winners of tuning from an earlier file, to time them again, and note the file's ranker and date."""
        earlier: Row = json.loads(path.read_text())
        for key in ("seed", "device"):
            if earlier[key] != self.document[key]:
                raise SystemExit(f"{path} is of another {key}: what tuning found there says nothing here")
        self.document["tuned_by"] = {key: earlier[key] for key in ("ranker", "date")}
        for row in earlier["rows"]:
            tuning = {name: row[name] for name in ("tuned", "tune_s", "tune_trials") if name in row}
            own_row = self.own_rows.get(self.problem_of(row))
            if own_row is not None and "tuned" not in own_row:
                own_row |= tuning

    @staticmethod
    def problem_of(row: Row) -> Problem:
        """The problem of a row."""
        return Problem.parse(f"{row['m']}x{row['n']}x{row['k']}", row["dtype"], row["trans"])

    def _read(self) -> dict[Problem, Row]:
        document = json.loads(self.path.read_text()) if self.path.exists() else {"rows": []}
        rows = {self.problem_of(row): row for row in document["rows"]}
        return {problem: rows.get(problem, _problem_fields(problem)) for problem in self.problems}


def _problem_fields(problem: Problem) -> Row:
    sizes: Row = {"m": problem.m, "n": problem.n, "k": problem.k}
    return sizes | {"dtype": problem.dtype.value, "trans": problem.trans}


def ranker_digest() -> str:
    """16 hexadecimal digits of the SHA-256 of the rankers that ship for `ieee`."""
    names = (name_of(dtype, Grade.IEEE) for dtype in DType)
    data = (name.encode() + array.tobytes() for each in names for name, array in sorted(shipped(each).items()))
    return hashlib.sha256(b"".join(data)).hexdigest()[:16]


def head_of(device: Device, **more: Any) -> Row:
    """Fields of a file that say where, when and with what its rows are measured."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    head: Row = {"device": device.info.key, "date": date, "seed": SEED, "ranker": ranker_digest()}
    return head | {"versions": dict(setting(device).versions)} | more


def contest_times(
    device: Device, problem: Problem, configs: Iterable[str], seconds: float
) -> tuple[Row, dict[str, float]]:
    """Time in one contest the config that a look-up takes without own records, `configs`, and the vendor's library.

    Return the fields that describe the look-up, and microseconds by config, with the vendor's as `cublas`.
    """
    vendor = "numpy" if device.info.arch.is_host else "cublas"
    with tempfile.TemporaryDirectory() as empty:
        others = [parse(text) for text in dict.fromkeys(configs)]
        row = contest(device, problem, (vendor,), Path(empty), seconds, others=others)
    if row.status is not Status.OK or row.ours_us is None:
        raise RuntimeError(f"{row.status.value}: {row.reason}")
    times_us = {rival.key: rival.us for rival in row.rivals} | {row.config: row.ours_us}
    times_us["cublas"] = times_us.pop(vendor)
    fields: Row = {"predicted": row.config, "origin": row.origin, "taken_from": row.taken_from}
    return fields | {"handed_over": row.handed_over, "notes": list(row.notes)}, times_us


def measure_row(device: Device, problem: Problem, row: Row, seconds: float) -> None:
    """Time the kernels that a row names, and write their times into it."""
    lookup = Store(Path("no-such-folder").absolute()).lookup(device.info, problem, look_up)
    configs = [row[name] for name in ("first_use", "tuned") if name in row]
    fields, times_us = contest_times(device, problem, configs, seconds)
    row |= fields | {"expected_us": lookup.expected_us, "regret": lookup.regret}
    row |= {"predicted_us": times_us[fields["predicted"]], "cublas_us": times_us["cublas"]}
    row["vendor_auto_us"] = row["cublas_us"] if fields["handed_over"] else row["predicted_us"]
    for name in ("first_use", "tuned"):
        if name in row:
            row[f"{name}_us"] = times_us.get(row[name])  # None for a kernel that did not run


def first_use_row(device: Device, problem: Problem) -> Row:
    """The winner of first use, and the seconds until its kernel was ready."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a compiler may still write
        cache = os.environ.get(CACHE_VARIABLE)
        os.environ[CACHE_VARIABLE] = f"{folder}/cache"
        try:
            begin = time.monotonic()
            store = Store(Path(folder) / "store")
            with device.entered():
                gemm = load_on(device, problem, store, look_up, lambda *args: measured(*args, FIRST_USE_SECONDS))
            return {"first_use": str(gemm.config), "first_use_s": time.monotonic() - begin}
        finally:
            os.environ.pop(CACHE_VARIABLE)
            if cache is not None:
                os.environ[CACHE_VARIABLE] = cache


def tuning_row(device: Device, problem: Problem, effort: str, seconds: float | None, seed: int = 0) -> Row:
    """The winner of tuning from an empty store, with the seconds and the number of trials."""
    with tempfile.TemporaryDirectory() as empty:
        result = tune(problem, device=device.info.selector, effort=effort, seconds=seconds, store=empty, seed=seed)
    return {"tuned": str(result.best.config), "tune_s": result.seconds, "tune_trials": result.trials}


def run_steps(steps: Iterable[tuple[str, Callable[[], None]]], seconds: float, expected: float) -> int:
    """Run steps until the next is expected to take too long, print those that fail, and return how many ran."""
    start, count = time.monotonic(), 0
    with kept_between_runs():
        for name, step in steps:
            step_start = time.monotonic()
            if step_start - start + expected > seconds:
                print("the time is up: run again for the others", file=sys.stderr)
                break
            try:
                step()
                print(f"{name}: {time.monotonic() - step_start:.1f} s", file=sys.stderr, flush=True)
            except Exception as error:  # the other shapes are measured whatever fails here
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            expected, count = max(expected, time.monotonic() - step_start), count + 1
    return count


def spread_of(ratios: Iterable[float]) -> Row:
    """Geometric mean, 90th percentile and worst of ratios, of which less is better."""
    values = sorted(ratios)
    if not values:
        return {"shapes": 0}
    mean = math.exp(sum(map(math.log, values)) / len(values))
    p90 = values[min(len(values) - 1, math.ceil(0.9 * len(values)) - 1)]
    return {"shapes": len(values), "geometric_mean": mean, "p90": p90, "worst": values[-1]}


def summary_of(rows: Sequence[Row]) -> Row:
    """Figures that judge predictions. Ratios `cuBLAS over` are cuBLAS's time over ours, so the least is the worst."""

    def ratios(over: str, under: str, dtype: str = "") -> list[float]:
        selected = [row for row in rows if dtype in ("", row["dtype"]) and row.get(over) and row.get(under)]
        return [row[over] / row[under] for row in selected]

    def cublas_over(name: str, dtype: str) -> Row:
        inverse = spread_of(ratios(name, "cublas_us", dtype))
        if not inverse["shapes"]:
            return inverse
        return {
            "shapes": inverse["shapes"],
            "geometric_mean": 1 / inverse["geometric_mean"],
            "least": 1 / inverse["worst"],
        }

    summary: Row = {"predicted over tuned": spread_of(ratios("predicted_us", "tuned_us"))}
    for dtype in ("float", "double"):
        summary[f"predicted over tuned, {dtype}"] = spread_of(ratios("predicted_us", "tuned_us", dtype))
        summary[f"cuBLAS over predicted, {dtype}"] = cublas_over("predicted_us", dtype)
        summary[f"cuBLAS over vendor auto, {dtype}"] = cublas_over("vendor_auto_us", dtype)
    summary["first use over tuned"] = spread_of(ratios("first_use_us", "tuned_us"))
    seconds = [row["first_use_s"] for row in rows if "first_use_s" in row]
    summary["first use, most seconds"] = max(seconds, default=None)
    return summary


def steps_of(results: Results, device: Device, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and function of a step for each shape that the part has yet to measure."""
    problems_to_tune = results.problems[: options.tuned]
    done_key = {"predict": "predicted_us", "first-use": "first_use_us", "tune": "tuned_us"}[options.part]
    for problem, row in results.own_rows.items():
        if done_key in row or (options.part == "tune" and problem not in problems_to_tune):
            continue

        def step(problem: Problem = problem, row: Row = row) -> None:
            failures = {part: text for part, text in row.pop("failed", {}).items() if part != options.part}
            try:
                if options.part == "first-use" and "first_use" not in row:
                    row |= first_use_row(device, problem)
                if options.part == "tune" and "tuned" not in row:
                    row |= tuning_row(device, problem, options.effort, options.tune_seconds)
                measure_row(device, problem, row, options.contest_seconds)
            except Exception as error:
                failures[options.part] = f"{type(error).__name__}: {error}"
                raise
            finally:
                if failures:
                    row["failed"] = failures
                results.save()

        yield str(problem), step


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a part and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "none"), required=True, help="`none` writes the summary anew")
    parser.add_argument("--output", type=Path, default=RESULT, help="file to write, or to go on with")
    parser.add_argument("--seconds", type=float, default=540.0, help="a run ends before this time is up (540)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=COUNT, help="shapes (60)")
    parser.add_argument("--tuned", type=int, default=TUNED, help="how many of them are tuned (30)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="largest m, n or k (16384)")
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="normal", help="effort of tuning (normal)")
    parser.add_argument("--tune-seconds", type=float, help="seconds of tuning a shape, in place of the effort's")
    parser.add_argument("--contest-seconds", type=float, default=CONTEST_SECONDS, help="seconds of a contest (1)")
    parser.add_argument(
        "--found", type=Path, metavar="FILE", help="results of an earlier ranker, whose tuned kernels are timed anew"
    )
    parser.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    options = parser.parse_args(arguments)
    device = open_device(choose(options.device))
    head = head_of(device, effort=options.effort)
    results = Results(options.output, head, drawn_problems(options.count, options.largest), summary_of, options.share)
    if options.found:
        results.take_tuned(options.found)
    if options.part != "none":
        for problem in results.problems[:2]:  # loads each type's files before any shape is timed
            Store(Path("no-such-folder").absolute()).lookup(device.info, problem, look_up)
        run_steps(steps_of(results, device, options), options.seconds, PARTS[options.part])
    print(json.dumps(results.save(), indent=1))


if __name__ == "__main__":
    main()
