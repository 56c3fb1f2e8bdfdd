"""Measure what a product costs its caller, on an NVIDIA GPU: processor time of a call, and many products end to end.

    python benchmarks/calls.py
    python benchmarks/calls.py --races --output calls.json

tilewright is timed beside CuPy and torch in one process. With `--races`, threads call it at once, and every result is
checked. Without `--output` the file is benchmarks/results/<device>/calls.json. Needs CuPy and torch for CUDA.
"""

import argparse
import datetime
import json
import math
import platform
import random
import sys
import timeit
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import cupy
import numpy as np
import tilewright
import tilewright.torch
import torch
from emitted import kinds_of
from tilewright.codegen.config import Config
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device import launcher
from tilewright.runtime.device.detect import choose, compiler_for, open_device
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.device.protocol import Device, Operand
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of

ROUNDS, CALLS, FEWER_CALLS, SLOW_US = 7, 400, 100, 20.0
"""Batches, and calls of a batch: FEWER_CALLS for products over SLOW_US, because the GPU queues some 1,000 launches."""
SHAPES = ("128", "512", "1000", "16x4096x4096", "333x500x700")
KINDS = ("pack", "split_k", "stream_k", "tma")
MIXED = "64 100 128 256 300 512 777 1024 64x1024x256 333x500x700 1024x768x512 96x640x1024".split()
PRODUCTS, RACE_CALLS = 1000, 10_000
TARGETS = {"load-cupy": ("cupy", 0.5), "load-torch": ("torch", 1.0), "matmul-cupy": ("cupy", 0.75)}
TARGETS |= {"matmul-torch": ("torch", 1.3), "op-torch": ("direct_new", 1.6), "stack-cupy": ("matmul-cupy", 1.2)}
"""By path: the contender whose time divides that of the path, and the largest ratio that is allowed."""
WHOLE_TARGETS = {"eager": 1.15, "captured": 1.3}
"""Least ratio of a rival's time to ours for many products end to end."""
WITH_OUT, NEW_OUT = "call(a, b, out=c)", "call(a, b)"
METHOD = (
    f"Calls: the processor's time until a call returns, minimum of {ROUNDS} batches of {CALLS} ({FEWER_CALLS} where a "
    f"product takes over {SLOW_US:.0f} us back to back: the launch queue must not fill), `out` given but for op-torch, "
    "torch_new_us and direct_new_us; stack-cupy is a stack of two products, and its ratio is over matmul-cupy; each "
    "batch begins with an idle GPU; batches of all paths and rivals of a shape alternate in random order in one "
    "process. End to end: wall time of float products of 12 shapes in shuffled order, `out` given, waited for once, "
    f"{ROUNDS} repetitions that alternate; captured: the same as one CUDA graph; where the rival is cuBLAS it is "
    "captured by its own interface with a workspace allocated once, as CuPy refuses. "
    "Operands are whole numbers: results are checked exactly before they are timed. No garbage collection, no TF32"
)
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Arrays:
    """One product: a, b and out as CuPy arrays, and as torch tensors."""

    problem: Problem
    cupy: tuple[Any, Any, Any]
    torch: tuple[Any, Any, Any]
    expected: Any
    """The exact result as a NumPy array."""


def arrays_of(problem: Problem, rng: np.random.Generator) -> Arrays:
    """Operands of whole numbers, whose products and sums need no rounding."""
    m, n, k = problem.m, problem.n, problem.k
    a, b = (rng.integers(-3, 4, size).astype(problem.dtype.numpy_name) for size in ((m, k), (k, n)))
    c = np.zeros((m, n), a.dtype)
    on_torch = (torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.from_numpy(c).cuda())
    return Arrays(problem, (cupy.asarray(a), cupy.asarray(b), cupy.asarray(c)), on_torch, a @ b)


def wait() -> None:
    """Wait until the GPU is idle."""
    cupy.cuda.runtime.deviceSynchronize()


def check(name: str, run: Run, outs: list[tuple[Any, Any]]) -> None:
    """Run once, and compare each array of `outs` with the exact result beside it."""
    for out, _ in outs:
        out[...] = math.nan
    wait()  # the run may be on another stream
    run()
    wait()
    for out, expected in outs:
        result = cupy.asnumpy(out) if isinstance(out, cupy.ndarray) else out.cpu().numpy()
        if not np.array_equal(result, expected):
            raise RuntimeError(f"{name}: wrong result")


def alternate(contenders: Mapping[Any, Callable[[], float]]) -> dict[Any, list[float]]:
    """Times of each contender, from rounds in which all take turns in random order."""
    times_s: dict[Any, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in random.sample(list(contenders), len(contenders)):
            times_s[name].append(contenders[name]())
    return times_s


def seconds_of(code: str, repeats: int, names: dict[str, Any]) -> float:
    """Seconds of one repeat of the code. The GPU is idle when it begins, and Timer turns garbage collection off."""
    wait()
    return timeit.Timer(code, globals=names).timeit(repeats) / repeats


def kind_of(config: Config, problem: Problem) -> str:
    """The KINDS of a config, joined by `+`, or `plain` if it has none."""
    kinds = kinds_of(config, problem)
    return "+".join(kind for kind in KINDS if kind in kinds) or "plain"


def smallest_of_kinds(device_key: str) -> list[Problem]:
    """For each of KINDS, the float product with the least work among the records that ship for a device."""
    _, shipped = Store(Path("no-such-folder").absolute()).layers()
    records = [each for each in shipped if each.device == device_key and each.problem.trans == "nn"]
    records = [each for each in records if each.problem.dtype is DType.FLOAT]
    records.sort(key=lambda each: each.problem.flops)
    by_kind = ([each.problem for each in records if kind in kind_of(each.config, each.problem)] for kind in KINDS)
    return [problems[0] for problems in by_kind if problems]


def call_rows(problem: Problem, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row for each path of one product."""
    arrays, load = arrays_of(problem, rng), partial(tilewright.load, dtype=problem.dtype.value)
    gemm, stack = (load(problem.m, problem.n, problem.k, batch=batch) for batch in (1, 2))
    ours, operands = {"load": gemm, "matmul": tilewright.matmul}, {"cupy": arrays.cupy, "torch": arrays.torch}
    paths: dict[str, Any] = {f"{how}-{lib}": (WITH_OUT, ours[how], operands[lib]) for lib in operands for how in ours}
    paths["op-torch"] = NEW_OUT, torch.ops.tilewright.matmul, arrays.torch
    paths["stack-cupy"] = WITH_OUT, tilewright.matmul, tuple(cupy.stack([each, each]) for each in arrays.cupy)
    paths |= {"cupy": (WITH_OUT, cupy.matmul, arrays.cupy), "torch": (WITH_OUT, torch.mm, arrays.torch)}
    paths |= {"torch_new": (NEW_OUT, torch.mm, arrays.torch), "direct_new": (NEW_OUT, tilewright.matmul, arrays.torch)}
    contenders, back_to_back_us = {}, {}
    for name, (code, call, (a, b, c)) in paths.items():
        names = {"call": call, "a": a, "b": b, "c": c, "wait": wait}
        run = partial(eval, code if code == WITH_OUT else f"c.copy_({code})", names)
        check(f"{problem} {name}", run, [(c, np.broadcast_to(arrays.expected, c.shape))])
        back_to_back_us[name] = seconds_of(f"for _ in range(50): {code}\nwait()", 2, names) / 50 * 1e6
        contenders[name] = partial(seconds_of, code, names=names)
    slowest = max(back_to_back_us["load-cupy"], back_to_back_us["torch"])
    calls = FEWER_CALLS if slowest > SLOW_US else CALLS
    times_s = alternate({name: partial(each, calls) for name, each in contenders.items()})
    us = {name: round(min(each) * 1e6, 3) for name, each in times_s.items()}
    facts: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.value}
    facts |= {"calls": calls, "back_to_back_us": round(slowest, 2)}
    rows = []
    for path, (rival, _) in TARGETS.items():
        row = {**facts, "path": path, "our_us": us[path], "cupy_us": us["cupy"], "torch_us": us["torch"]}
        used = stack if path == "stack-cupy" else gemm
        row |= {"kind": kind_of(used.config, used.problem), "origin": used.origin, "config": str(used.config)}
        if path == "op-torch":
            row |= {"torch_new_us": us["torch_new"], "direct_new_us": us["direct_new"]}
        rows.append({**row, "ratio": round(us[path] / us[rival], 4)})
    print(f"{problem!s:<25}" + "".join(f"{us[name]:6.1f}" for name in paths), flush=True)
    return rows


def end_to_end(device: Device, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Many products in a row, eager and captured, of CuPy arrays and of torch tensors."""
    products = [arrays_of(Problem.parse(shape), rng) for shape in MIXED]
    order = random.sample((products * PRODUCTS)[:PRODUCTS], PRODUCTS)
    eager, captured = {}, {}
    for name, call in {"cupy": cupy.matmul, "torch": torch.mm}.items():
        operands = [getattr(product, name) for product in order]
        eager[name, "our"], eager[name, "rival"] = (partial(_call_all, f, operands) for f in (tilewright.matmul, call))
    names = {"cupy": "cupy.matmul", "torch": "torch.mm"}
    rows = _race("eager", eager, products, names)
    for key, run in eager.items():
        tilewright.prepare(*(product.problem.shape for product in products), dtype="float")  # memory for a graph
        try:
            captured[key] = _capture(key[0], run)
        except NotImplementedError:
            if key != ("cupy", "rival"):
                raise
            names["cupy"] = "cuBLAS"
            captured[key] = _capture(key[0], _cublas(device, products, order))
    return rows + _race("captured", captured, products, names)


def _call_all(call: Callable[..., Any], operands: list[tuple[Any, Any, Any]]) -> None:
    for a, b, c in operands:
        call(a, b, out=c)


def _race(mode: str, runs: Mapping[Any, Run], products: list[Arrays], names: Mapping[str, str]) -> list[dict[str, Any]]:
    for key, run in runs.items():
        check(f"{mode}, {key}", run, [(getattr(product, key[0])[2], product.expected) for product in products])
    namespaces = {key: {"run": run, "wait": wait} for key, run in runs.items()}
    times_s = alternate({key: partial(seconds_of, "run()\nwait()", 1, names) for key, names in namespaces.items()})
    rows = []
    for name, rival in names.items():
        row: dict[str, Any] = {"how": mode, "arrays": name, "rival": rival, "products": PRODUCTS}
        for measure, statistic in (("min", min), ("median", median)):
            ours, theirs = (statistic(times_s[name, side]) * 1e3 for side in ("our", "rival"))
            row |= {f"our_ms_{measure}": round(ours, 4), f"rival_ms_{measure}": round(theirs, 4)}
            row[f"ratio_{measure}"] = round(theirs / ours, 4)
        rows.append(row)
    return rows


def _capture(name: str, run: Run) -> Run:
    """A function that replays the graph of a run, captured by CuPy or torch."""
    if name == "torch":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return partial(graph.replay)
    with (stream := cupy.cuda.Stream(non_blocking=True)):
        run()
        stream.synchronize()
        stream.begin_capture()
        try:
            run()
        finally:
            graph = stream.end_capture()
    return partial(graph.launch, stream)


def _cublas(device: Device, products: list[Arrays], order: list[Arrays]) -> Run:
    launches = {}
    for product in products:
        a, b, c = (Operand(int(x.data.ptr), x.shape[0], x.shape[1], x.shape[1], False, x) for x in product.cupy)
        launches[product.problem] = partial(device.vendor(product.problem), a, b, c, 1.0, 0.0)
    calls = [launches[product.problem] for product in order]
    return lambda: [call() for call in calls]


def races(problems: list[Problem]) -> list[dict[str, Any]]:
    """Call from several threads at once, on one GPU and, if there are two, on two. No kernel is loaded beforehand."""
    rows: list[dict[str, Any]] = []
    sys.setswitchinterval(1e-5)  # Python's default of 5 ms would hide races
    for gpus in ([0, 0, 0, 0], [0, 1])[: min(2, cupy.cuda.runtime.getDeviceCount())]:
        tilewright.clear()
        with ThreadPoolExecutor(len(gpus)) as pool:
            tasks = [pool.submit(_count_wrong, gpu, seed, problems) for seed, gpu in enumerate(gpus)]
        errors = [f"{type(error).__name__}: {error}" for task in tasks if (error := task.exception())]
        wrong = sum(task.result() for task in tasks if not task.exception())
        row = {"threads": len(gpus), "devices": len(set(gpus)), "calls_each": RACE_CALLS, "wrong": wrong}
        rows.append({**row, "errors": errors, "shapes": [problem.shape for problem in problems]})
        print(f"races, {row['threads']} threads, {row['devices']} devices: {wrong} wrong", *errors)
    return rows


def _count_wrong(gpu: int, seed: int, problems: list[Problem]) -> int:
    """Call from one thread on a stream of its own, and count the calls whose result has a wrong element."""
    rng = np.random.default_rng(seed)
    with cupy.cuda.Device(gpu), cupy.cuda.Stream(non_blocking=True) as stream:
        products = []
        for problem in problems:
            a, b = (cupy.asarray(rng.integers(-3, 4, s), "float32") for s in (problem.stored_a, problem.stored_b))
            products.append((a, b, cupy.empty((problem.m, problem.n), "float32"), cupy.matmul(a, b)))
        wrong = cupy.zeros((), "int64")
        for number in rng.integers(len(products), size=RACE_CALLS).tolist():
            a, b, c, expected = products[number]
            c.fill(math.nan)
            tilewright.matmul(a, b, out=c)
            wrong += (c != expected).any()
        stream.synchronize()
        return int(wrong)


def summary(rows: list[dict[str, Any]], whole_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines with a target each: mean and worst ratio of a path, median and worst ratio end to end."""
    lines = []
    for path, (rival, limit) in TARGETS.items():
        path_rows = [row for row in rows if row["path"] == path]
        mean, worst = geometric_mean(row["ratio"] for row in path_rows), max(path_rows, key=lambda row: row["ratio"])
        line = {
            "what": path,
            "against": rival,
            "mean": round(mean, 4),
            "worst": worst["ratio"],
            "target": f"<= {limit}",
        }
        line |= {"met": mean <= limit, "worst_met": worst["ratio"] <= limit}
        lines.append({**line, "worst_at": f"{worst['m']}x{worst['n']}x{worst['k']} {worst['dtype']}"})
    for row in whole_rows:
        least, mean, worst = WHOLE_TARGETS[row["how"]], row["ratio_median"], min(row["ratio_median"], row["ratio_min"])
        line = {"what": f"{row['how']}, {row['arrays']}", "against": row["rival"], "mean": mean, "worst": worst}
        line |= {"target": f">= {least}", "met": mean >= least, "worst_met": worst >= least}
        lines.append({**line, "worst_at": "of medians, minima"})
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """The summary in at most 80 columns."""
    text = f"{'':<15} {'against':<11} {'mean':>6} {'worst':>6} {'target':>7} {'met':>5}  worst at"
    for line in lines:
        met = "yes" if line["met"] and line["worst_met"] else "mean" if line["met"] else "no"
        text += f"\n{line['what']:<15} {line['against']:<11} {line['mean']:6.3f} {line['worst']:6.3f}"
        text += f" {line['target']:>7} {met:>5}  {line['worst_at']}"
    return text


def main() -> None:
    """Measure, print the summary and write calls.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the JSON file")
    parser.add_argument("--races", action="store_true", help="also let threads call at once, and check every result")
    parser.add_argument("--python", action="store_true", help="launch from Python, without the extension in C")
    options = parser.parse_args()
    if options.python:
        launcher._extension = lambda: (None, "Python (asked for)")
    info, rng = choose("cuda"), np.random.default_rng(0)
    random.seed(0)
    kinds = smallest_of_kinds(info.key)
    floats = dict.fromkeys([*map(Problem.parse, SHAPES), *kinds])
    print(f"{'microseconds a call':<25}{'ours, CuPy':>12}{'ours, torch':>18}{'ours':>6}{'out given':>12}{'new':>12}")
    print(" " * 25 + "".join(f"{head:>6}" for head in "load matm load matm op stack CuPy torch torch matm".split()))
    problems = [*floats, *(Problem.parse(shape, "double") for shape in SHAPES)]
    rows = [row for problem in problems for row in call_rows(problem, rng)]
    lines = summary(rows, whole_rows := end_to_end(open_device(info), rng))
    print(table(lines))
    document: dict[str, Any] = {"device": info.name, "driver": info.driver, "processor": host_info().name[5:]}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "cupy": cupy.__version__}
    versions |= {"torch": torch.__version__, "tilewright": tilewright.__version__}
    document["launcher"] = launcher.described()
    document["versions"] = versions | dict(versions_of(info, compiler_for(info)))
    document |= {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "method": METHOD}
    document |= {"summary": lines, "rows": rows, "end_to_end": {"shapes": MIXED, "rows": whole_rows}}
    path = options.output or Path(__file__).parent / "results" / info.key / "calls.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    if options.races:
        document["races"] = races([*map(Problem.parse, MIXED), *kinds])
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
