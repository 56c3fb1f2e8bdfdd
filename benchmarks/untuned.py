"""Measure shapes that nobody tuned, on a GPU: what is predicted, what first use finds, what tuning finds, cuBLAS.

    python benchmarks/untuned.py --part predict                  some 2 s a shape: 2 minutes
    python benchmarks/untuned.py --part first-use                some 3 s a shape: 3 minutes
    python benchmarks/untuned.py --part tune --seconds 540       some 27 s a shape: 2 such runs
    python benchmarks/untuned.py --part none                     the summary alone
    python benchmarks/untuned.py --part first-use --found before.json --output new.json

60 shapes are drawn by SEED, log-uniform, both types and nn, nt and tn in turn, none within 15% in every dimension of a
shape of the data set or of one with a record that ships, whatever the order of its sizes; the first 30 are tuned. A run
goes on with the file that it finds and ends when the next shape would take it past `--seconds`; each shape is written
when it is done, and where a part fails, as `failed`, why. With several GPUs, a process for each takes its `--share` of
the shapes and writes the same file. All kernels that are known of a shape are timed side by side, in rounds, on rotated
inputs: each part times it anew, all that was found before included, so that the times of a row are of one contest.
First use and tuning begin with an empty store, first use with an empty compile cache as well. The file belongs to one
ranker: it has to be begun again after another one was fitted. With `--found` what tuning found in an earlier file is
timed anew with the rest, which tells in a third of the time how good another fit is. Times above are those of an H200
with 16 processors.
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
NEAR = 1.15
TRANS = "nn", "nt", "tn"
FIRST_USE_SECONDS = 2.0
CONTEST_SECONDS = 1.0
RESULT = Path(__file__).parent / "results" / "nvidia-h200" / "untuned.json"
PARTS = {"predict": 10.0, "first-use": 15.0, "tune": 25.0}
"""Seconds that a shape is expected to take at most, until one took longer."""

Row = dict[str, Any]


def drawn(count: int = COUNT, largest: int = LARGEST) -> list[Problem]:
    """The shapes, types and transposes in turn."""
    rng, known, found = random.Random(SEED), list(_known()), list[Problem]()
    kinds = itertools.cycle(itertools.product(TRANS, ("float", "double")))
    while len(found) < count:
        sizes = tuple(round(math.exp(rng.uniform(0, math.log(largest)))) for _ in range(3))
        if math.prod(sizes) <= MOST_STEPS and not any(near(sizes, other) for other in known):
            trans, dtype = next(kinds)
            found.append(Problem.parse("x".join(map(str, sizes)), dtype, trans))
    return found


def _known() -> Iterator[tuple[int, int, int]]:
    """Sizes of all shapes of the data set and of the records that ship."""
    _, shipped = Store(Path("no-such-folder").absolute()).layers()
    for problem in {*training(), *(record.problem for record in shipped)}:
        yield problem.m, problem.n, problem.k


def near(sizes: Sequence[int], other: Sequence[int]) -> bool:
    """Whether all sizes are within 15% of the other's, in whatever order. Sorted ones are if any order's are."""
    return all(max(a / b, b / a) < NEAR for a, b in zip(sorted(sizes), sorted(other)))


class Results:
    """A file of rows, written anew after each. Other processes may write the rows outside `share` meanwhile."""

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
        self.own = {problem: self.rows[problem] for problem in problems[share]}

    def save(self) -> Row:
        """Write all rows that have something to tell, and their summary, which is returned."""
        with FileLock(f"{self.path}.lock"):
            self.rows = self._read() | self.own
            found = self.summary_of(list(self.rows.values()))
            rows = [row for problem, row in self.rows.items() if row != _sizes(problem)]
            self.document |= {"summary": found, "rows": rows}
            write_whole(self.path, (json.dumps(self.document, indent=1) + "\n").encode())
        return found

    def take_tuned(self, path: Path) -> None:
        """The winner of tuning by another file, to be timed anew, and the note that it is from there."""
        other: Row = json.loads(path.read_text())
        for key in ("seed", "device"):
            if other[key] != self.document[key]:
                raise SystemExit(f"{path} is of another {key}: what tuning found there says nothing here")
        self.document["tuned_by"] = {key: other[key] for key in ("ranker", "date")}
        for row in other["rows"]:
            found = {name: row[name] for name in ("tuned", "tune_s", "tune_trials") if name in row}
            own = self.own.get(self.problem_of(row))
            if own is not None and "tuned" not in own:
                own |= found

    @staticmethod
    def problem_of(row: Row) -> Problem:
        """The shape of a row."""
        return Problem.parse(f"{row['m']}x{row['n']}x{row['k']}", row["dtype"], row["trans"])

    def _read(self) -> dict[Problem, Row]:
        document = json.loads(self.path.read_text()) if self.path.exists() else {"rows": []}
        rows = {self.problem_of(row): row for row in document["rows"]}
        return {problem: rows.get(problem, _sizes(problem)) for problem in self.problems}


def _sizes(problem: Problem) -> Row:
    names: Row = {"m": problem.m, "n": problem.n, "k": problem.k}
    return names | {"dtype": problem.dtype.value, "trans": problem.trans}


def ranker_digest() -> str:
    """16 hexadecimal digits of the SHA-256 of the rankers that ship for `ieee`."""
    names = (name_of(dtype, Grade.IEEE) for dtype in DType)
    data = (name.encode() + array.tobytes() for each in names for name, array in sorted(shipped(each).items()))
    return hashlib.sha256(b"".join(data)).hexdigest()[:16]


def head_of(device: Device, **more: Any) -> Row:
    """The place and time of measurement, as a file says them."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    told: Row = {"device": device.info.key, "date": date, "seed": SEED, "ranker": ranker_digest()}
    return told | {"versions": dict(setting(device).versions)} | more


def timed(device: Device, problem: Problem, configs: Iterable[str], seconds: float) -> tuple[Row, dict[str, float]]:
    """Microseconds of what a look-up finds without own records, of configs and of the vendor's library, in one contest;
    what there is to say of the look-up, and the times by config, the vendor's as `cublas`."""
    vendor = "numpy" if device.info.arch.is_host else "cublas"
    with tempfile.TemporaryDirectory() as empty:
        others = [parse(text) for text in dict.fromkeys(configs)]
        row = contest(device, problem, (vendor,), Path(empty), seconds, others=others)
    if row.status is not Status.OK or row.ours_us is None:
        raise RuntimeError(f"{row.status.value}: {row.reason}")
    times = {rival.key: rival.us for rival in row.rivals} | {row.config: row.ours_us}
    times["cublas"] = times.pop(vendor)
    told: Row = {"predicted": row.config, "origin": row.origin, "taken_from": row.taken_from}
    return told | {"handed_over": row.handed_over, "notes": list(row.notes)}, times


def measure_row(device: Device, problem: Problem, row: Row, seconds: float) -> None:
    """Time all that is known of a row."""
    found = Store(Path("no-such-folder").absolute()).lookup(device.info, problem, look_up)
    told, times = timed(device, problem, (row[name] for name in ("first_use", "tuned") if name in row), seconds)
    row |= told | {"expected_us": found.expected_us, "regret": found.regret}
    row |= {"predicted_us": times[told["predicted"]], "cublas_us": times["cublas"]}
    row["vendor_auto_us"] = row["cublas_us"] if told["handed_over"] else row["predicted_us"]
    for name in ("first_use", "tuned"):
        if name in row:
            row[f"{name}_us"] = times.get(row[name])  # None where it did not run beside the others


def first_used(device: Device, problem: Problem) -> Row:
    """The winner of first use, and the seconds until the kernel is ready."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:  # a late compiler may still write there
        before = os.environ.get(CACHE_VARIABLE)
        os.environ[CACHE_VARIABLE] = f"{empty}/cache"
        try:
            begin = time.monotonic()
            store = Store(Path(empty) / "store")
            with device.entered():
                gemm = load_on(device, problem, store, look_up, lambda *given: measured(*given, FIRST_USE_SECONDS))
            return {"first_use": str(gemm.config), "first_use_s": time.monotonic() - begin}
        finally:
            os.environ.pop(CACHE_VARIABLE)
            if before is not None:
                os.environ[CACHE_VARIABLE] = before


def tuned(device: Device, problem: Problem, effort: str, seconds: float | None, seed: int = 0) -> Row:
    """The winner of tuning, from an empty store."""
    with tempfile.TemporaryDirectory() as empty:
        found = tune(problem, device=device.info.selector, effort=effort, seconds=seconds, store=empty, seed=seed)
    return {"tuned": str(found.best.config), "tune_s": found.seconds, "tune_trials": found.trials}


def in_time(steps: Iterable[tuple[str, Callable[[], None]]], seconds: float, expected: float) -> int:
    """Take steps until the next would take longer than is left; how many were taken. A step that fails is told."""
    begin, done = time.monotonic(), 0
    with kept_between_runs():
        for name, step in steps:
            begun = time.monotonic()
            if begun - begin + expected > seconds:
                print("the time is up: run again for the others", file=sys.stderr)
                break
            try:
                step()
                print(f"{name}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
            except Exception as error:  # whatever it is, the other shapes are measured
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            expected, done = max(expected, time.monotonic() - begun), done + 1
    return done


def spread_of(ratios: Iterable[float]) -> Row:
    """Geometric mean, 90th percentile and worst of ratios where less is better."""
    values = sorted(ratios)
    if not values:
        return {"shapes": 0}
    mean = math.exp(sum(map(math.log, values)) / len(values))
    p90 = values[min(len(values) - 1, math.ceil(0.9 * len(values)) - 1)]
    return {"shapes": len(values), "geometric_mean": mean, "p90": p90, "worst": values[-1]}


def summary_of(rows: Sequence[Row]) -> Row:
    """The figures that judge predictions; ratios over cuBLAS are its time over ours, so that the least is the worst."""

    def ratios(over: str, under: str, dtype: str = "") -> list[float]:
        of = [row for row in rows if dtype in ("", row["dtype"]) and row.get(over) and row.get(under)]
        return [row[over] / row[under] for row in of]

    def beside(name: str, dtype: str) -> Row:
        inverse = spread_of(ratios(name, "cublas_us", dtype))
        if not inverse["shapes"]:
            return inverse
        return {
            "shapes": inverse["shapes"],
            "geometric_mean": 1 / inverse["geometric_mean"],
            "least": 1 / inverse["worst"],
        }

    found: Row = {"predicted over tuned": spread_of(ratios("predicted_us", "tuned_us"))}
    for dtype in ("float", "double"):
        found[f"predicted over tuned, {dtype}"] = spread_of(ratios("predicted_us", "tuned_us", dtype))
        found[f"cuBLAS over predicted, {dtype}"] = beside("predicted_us", dtype)
        found[f"cuBLAS over vendor auto, {dtype}"] = beside("vendor_auto_us", dtype)
    found["first use over tuned"] = spread_of(ratios("first_use_us", "tuned_us"))
    seconds = [row["first_use_s"] for row in rows if "first_use_s" in row]
    found["first use, most seconds"] = max(seconds, default=None)
    return found


def steps_of(results: Results, device: Device, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """The shapes of a part that are left to do."""
    some = results.problems[: options.tuned]
    done_by = {"predict": "predicted_us", "first-use": "first_use_us", "tune": "tuned_us"}[options.part]
    for problem, row in results.own.items():
        if done_by in row or (options.part == "tune" and problem not in some):
            continue

        def step(problem: Problem = problem, row: Row = row) -> None:
            failed = {part: text for part, text in row.pop("failed", {}).items() if part != options.part}
            try:
                if options.part == "first-use" and "first_use" not in row:
                    row |= first_used(device, problem)
                if options.part == "tune" and "tuned" not in row:
                    row |= tuned(device, problem, options.effort, options.tune_seconds)
                measure_row(device, problem, row, options.contest_seconds)
            except Exception as error:
                failed[options.part] = f"{type(error).__name__}: {error}"
                raise
            finally:
                if failed:
                    row["failed"] = failed
                results.save()

        yield str(problem), step


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a part, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "none"), required=True, help="`none` writes the summary anew")
    parser.add_argument("--output", type=Path, default=RESULT, help="file to write, or to go on with")
    parser.add_argument("--seconds", type=float, default=540.0, help="of a run; it ends before (540)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=COUNT, help="shapes (60)")
    parser.add_argument("--tuned", type=int, default=TUNED, help="of these are tuned (30)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="m, n and k at most (16384)")
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="normal", help="of tuning")
    parser.add_argument("--tune-seconds", type=float, help="of tuning a shape, in place of the effort's")
    parser.add_argument("--contest-seconds", type=float, default=CONTEST_SECONDS, help="of timing side by side (1)")
    parser.add_argument(
        "--found", type=Path, metavar="FILE", help="results of an earlier ranker, whose tuned kernels are timed anew"
    )
    parser.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    options = parser.parse_args(arguments)
    device = open_device(choose(options.device))
    head = head_of(device, effort=options.effort)
    results = Results(options.output, head, drawn(options.count, options.largest), summary_of, options.share)
    if options.found:
        results.take_tuned(options.found)
    if options.part != "none":
        for problem in results.problems[:2]:  # what is read once for each type is not the first shape's
            Store(Path("no-such-folder").absolute()).lookup(device.info, problem, look_up)
        in_time(steps_of(results, device, options), options.seconds, PARTS[options.part])
    print(json.dumps(results.save(), indent=1))


if __name__ == "__main__":
    main()
