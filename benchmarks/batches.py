"""Time batches of products beside cuBLAS and the rate of the memory, on NVIDIA GPUs.

    python benchmarks/batches.py
    python benchmarks/batches.py --share 1/4 --output rows.jsonl
    python benchmarks/batches.py --join rows.jsonl

Each problem is tuned in a store of its own. The winner, the kernel of a look-up without a record, cuBLAS's strided
batched product, and what a load takes with the record where cuBLAS is allowed, are then timed in rounds, in shuffled
orders, within replayed graphs, on random inputs that rotate where they would fit the L2 cache. For squares up to 64 the
triad c = a + b reads and writes as many bytes, and the triad's time over ours is their `triad_share`. The `floor_share`
of other problems has a floor in place of the triad: the largest of the time of the arithmetic, that of the bytes at the
triad's rate, and 1.5 us. Grouped products run the kernel of a look-up, beside a loop of torch.mm over the groups,
within a graph and launched one by one. Twenty more batches are drawn as those of the data set to which the ranker of
batches is fitted, but have none of its shapes. They show how much longer an untuned kernel takes than a tuned one.
`--share I/N` takes every Nth problem from the Ith on, for several GPUs; `--join` makes
benchmarks/results/<device>/batches.json of the lines that they wrote.
"""

import argparse
import datetime
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from typing import Any
from unittest.mock import patch

import numpy as np
import tilewright
from shapes import left_out
from tilewright.codegen.problem import Problem
from tilewright.runtime import settings
from tilewright.runtime.check.roofline import bounds_of
from tilewright.runtime.check.timing import Timer, TimingPlan
from tilewright.runtime.device.detect import choose, device_of
from tilewright.runtime.product.kernel import prepare
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.measure.child import kept_between_runs
from tilewright.tuner.tune import tune

SQUARES = 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128
MOST_PRODUCTS, MOST_BYTES = 10**6, 1.5e9
"""Largest number of products of a batch of squares, and of bytes of its operands."""
PROGRAMS = (
    "64x 128x128x128, 1000x 16x16x16, 16x 512x512x512, 8x 1024x1024x1024, 32x 2048x2048x64, 32x 2048x64x2048, "
    "256x 197x197x64, 128x 100x3x100, 2000x 100x100x10, 12x 333x777x555"
).split(", ")
"""Batches that are common in programs."""
RAGGED = (
    ((7, 33, 1, 159, 512, 288, 300, 512), 1024, 1024),
    (tuple(int(each) for each in np.random.default_rng(0).integers(1, 129, 64)), 512, 512),
)
"""Rows of each group, n and k of grouped products in float."""
KINDS = "square", "program", "left out"
"""Kinds of problems. Problems left out are drawn as those of the data set, but have none of its shapes."""
LARGEST_TRIAD = 64
"""Size of the largest square that is compared with the triad."""
LEAST_US = 1.5
"""Microseconds of the shortest launch."""
ROUNDS = 15
TRIAD = """
extern "C" __global__ void triad(const {vector}* a, const {vector}* b, {vector}* c, long long count)
{{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    {vector} x = a[i], y = b[i];
    {sum}
    c[i] = x;
}}
"""
"""The kernel of c = a + b, in vectors of 16 bytes."""
METHOD = (
    f"medians of {ROUNDS} rounds in one process, in shuffled orders, within replayed graphs, on random inputs which "
    "rotate until they fill 2.5 times the L2 cache. our_us is the winner's, auto_us that of a load that "
    "may take cuBLAS. triad_us: c = a + b over arrays of as many bytes, median of 30. "
    "Ragged rows: our_us is that of tilewright.grouped_matmul, cublas_us that of a loop of torch.mm within graphs, "
    "and eager_us that of the loop as Python launches it"
)


def problems() -> list[tuple[str, Problem]]:
    """All problems, each with its kind."""
    pairs = []
    for dtype in ("float", "double"):
        for n in SQUARES:
            product = Problem(n, n, n, dtype)
            pairs.append(("square", Problem(n, n, n, dtype, batch=min(MOST_PRODUCTS, int(MOST_BYTES / product.bytes)))))
        for text in PROGRAMS:
            batch, _, shape = text.partition("x ")
            pairs.append(("program", Problem.parse(shape, dtype, batch=int(batch))))
    return pairs + [("left out", problem) for problem in left_out()]


def triad_us(problem: Problem) -> float:
    """Microseconds of c = a + b over arrays that have together as many bytes as the problem's operands."""
    import cupy

    double, count = problem.dtype.value == "double", max(1, problem.bytes // 3 // 16)
    names = "xy" if double else "xyzw"
    fields = {"vector": "double2" if double else "float4", "sum": " ".join(f"x.{n} += y.{n};" for n in names)}
    kernel = cupy.RawKernel(TRIAD.format(**fields), "triad")
    a, b, c = (cupy.random.random(count * len(names), dtype=problem.dtype.numpy_name) for _ in range(3))
    times_us = []
    for _ in range(30):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel((-(-count // 256),), (256,), (a, b, c, count))
        end.record()
        end.synchronize()
        times_us.append(cupy.cuda.get_elapsed_time(start, end) * 1e3)
    return median(times_us)


def row_of(kind: str, problem: Problem, rate_tbs: float, trials: int | None) -> dict[str, Any]:
    """Tune, time and compare one problem. `rate_tbs` is the triad's rate in TB/s, and `trials` the largest number of
    trials of the search, None for no limit."""
    device = device_of("cuda")
    with tempfile.TemporaryDirectory() as folder:
        predicted = Store(Path(folder)).lookup(device.info, problem, look_up)
        result = tune(problem, store=folder, trials=trials)
        with patch.dict(os.environ, {settings.STORE_VARIABLE: folder}):
            loaded = tilewright.load(problem, vendor="auto")
        configs = {"our_us": result.best.config, "predicted_us": predicted.config}
    with device.entered():
        contenders = {name: prepare(device, problem, config).launch for name, config in configs.items()}
        contenders |= {"auto_us": loaded.launch, "cublas_us": device.vendor(problem)}
        samples, _ = Timer(device, problem, plan=TimingPlan.side_by_side(device)).rounds(contenders, ROUNDS)
    times_us = {name: median(values) for name, values in samples.items()}
    row: dict[str, Any] = {"kind": kind, "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
    row |= {"dtype": problem.dtype.value, "trans": problem.trans}
    row |= {name: round(us, 4) for name, us in times_us.items()}
    if kind == "square" and problem.n <= LARGEST_TRIAD:
        row["triad_us"] = round(triad_us(problem), 3)
        row["triad_share"] = round(row["triad_us"] / times_us["our_us"], 4)
    else:
        arithmetic_us = next(bound.us for bound in bounds_of(device.info, problem) if bound.by == "arithmetic")
        floor_us = max(arithmetic_us, problem.bytes / rate_tbs / 1e6, LEAST_US)
        row["floor_share"] = round(floor_us / times_us["our_us"], 4)
    row |= {"config": str(configs["our_us"]), "predicted": str(configs["predicted_us"]), "origin": "tuned"}
    return row | {"variants": result.trials, "seconds": round(result.seconds, 1)}


def ragged_row(rows: Sequence[int], n: int, k: int, rate_tbs: float) -> dict[str, Any]:
    """Time grouped products beside a loop over the groups. `rate_tbs` is the triad's rate in TB/s."""
    import torch

    device = device_of("cuda")
    problem = Problem(sum(rows), n, k, batch=len(rows), ragged="m")
    offsets = torch.tensor(np.cumsum(rows), dtype=torch.int32, device="cuda")
    ends = offsets.tolist()
    sets = max(2, -(-5 * device.info.l2_bytes // (2 * problem.bytes)))
    shapes = (problem.m, k), (len(rows), k, n), (problem.m, n)
    operands = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(sets)]

    def ours() -> None:
        for a, b, out in operands:
            tilewright.grouped_matmul(a, b, offsets, out=out)

    def loop() -> None:
        for a, b, out in operands:
            for matrix, begin, end in zip(b, [0, *ends], ends):
                torch.mm(a[begin:end], matrix, out=out[begin:end])

    def replayed(work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        work()
        with torch.cuda.graph(graph):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    contenders = {"our_us": replayed(ours), "cublas_us": replayed(loop), "eager_us": loop}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    rng = np.random.default_rng(1)
    for _ in range(ROUNDS + 2):
        for name in rng.permutation(list(contenders)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            contenders[name]()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1e3 / sets)
    times_us = {name: median(values[2:]) for name, values in samples.items()}
    arithmetic_us = next(bound.us for bound in bounds_of(device.info, problem) if bound.by == "arithmetic")
    floor_us = max(arithmetic_us, problem.bytes / rate_tbs / 1e6, LEAST_US)
    lookup = Store().lookup(device.info, problem, look_up)
    row: dict[str, Any] = {"kind": "ragged", "m": problem.m, "n": n, "k": k, "batch": len(rows), "dtype": "float"}
    row |= {name: round(us, 4) for name, us in times_us.items()}
    row["floor_share"] = round(floor_us / times_us["our_us"], 4)
    return row | {"config": str(lookup.config), "origin": lookup.origin}


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and least values by kind and type."""
    summary: dict[str, Any] = {}
    for kind, dtype in itertools.product(KINDS, ("float", "double")):
        if part := [row for row in rows if (row["kind"], row["dtype"]) == (kind, dtype)]:
            ratios = [row["cublas_us"] / row["our_us"] for row in part]
            autos = [round(row["cublas_us"] / row["auto_us"], 4) for row in part if "auto_us" in row]
            regrets = [row["predicted_us"] / row["our_us"] for row in part]
            summary[f"{kind} {dtype}"] = {
                "over cuBLAS, geometric mean": round(geometric_mean(ratios), 4),
                "over cuBLAS, least": round(min(ratios), 4),
                "over cuBLAS with the library allowed, least": min(autos, default=None),
                "predicted over tuned": round(geometric_mean(regrets), 4),
                "predicted over tuned, 90th percentile": round(quantiles(regrets, n=10, method="inclusive")[-1], 4),
                "predicted over tuned, worst": round(max(regrets), 4),
                "least triad share": min((row["triad_share"] for row in part if "triad_share" in row), default=None),
                "least floor share": min((row["floor_share"] for row in part if "floor_share" in row), default=None),
            }
    ragged = [row for row in rows if row["kind"] == "ragged"]
    summary["ragged float"] = {
        f"{row['batch']} groups over {rival}": round(row[name] / row["our_us"], 4)
        for row in ragged
        for rival, name in (("a loop in a graph", "cublas_us"), ("the loop", "eager_us"))
    }
    return summary


def main() -> None:
    """Time a share of the problems, or join what several processes wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", help="I/N: every Nth problem from the Ith on")
    parser.add_argument("--output", type=Path, default=Path("batches.jsonl"), help="file to which rows are added")
    every = (*KINDS, "ragged")
    parser.add_argument("--kind", action="append", choices=every, help="only problems of this kind; may be repeated")
    parser.add_argument("--trials", type=int, help="largest number of trials of a search, for a run on one GPU")
    parser.add_argument("--join", type=Path, help="file of rows to make batches.json of")
    options = parser.parse_args()
    info = choose("cuda")
    if options.join:
        rows = [json.loads(line) for line in options.join.read_text().splitlines()]
        order = {(kind, p.m, p.n, p.k, p.dtype.value): i for i, (kind, p) in enumerate(problems())}
        last = len(order)
        rows.sort(key=lambda row: order.get((row["kind"], row["m"], row["n"], row["k"], row["dtype"]), last))
        device = device_of("cuda")
        document = {"device": info.name, "driver": info.driver, "versions": dict(versions_of(info, device.compiler))}
        document |= {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "method": METHOD}
        document |= {"summary": summary_of(rows)}
        path = Path(__file__).parent / "results" / info.key / "batches.json"
        lines = ",\n".join(json.dumps(row) for row in rows)
        path.write_text(json.dumps(document)[:-1] + f', "rows": [\n{lines}\n]}}\n')
        return
    (index, count), kinds = map(int, options.share.split("/")), options.kind or every
    large = Problem(64, 64, 64, batch=30_000)
    rate_tbs = large.bytes / triad_us(large) / 1e6
    print(f"triad {rate_tbs:.3f} TB/s", flush=True)

    def write(row: dict[str, Any]) -> None:
        with options.output.open("a") as file:
            file.write(json.dumps(row) + "\n")

    for rows, n, k in RAGGED[index - 1 :: count] if "ragged" in kinds else ():
        row = ragged_row(rows, n, k, rate_tbs)
        write(row)
        print(row, flush=True)
    with kept_between_runs():
        selected = [(kind, problem) for kind, problem in problems() if kind in kinds]
        for kind, problem in selected[index - 1 :: count]:
            row = row_of(kind, problem, rate_tbs, options.trials)
            write(row)
            share = row.get("triad_share", row.get("floor_share"))
            times = f"{row['our_us']:9.2f} us, cuBLAS {row['cublas_us'] / row['our_us']:6.2f}, share {share:.3f}"
            print(f"{problem} {times}, predicted {row['predicted_us'] / row['our_us']:.3f} {row['config']}", flush=True)


if __name__ == "__main__":
    main()
