"""The cost of a product to the caller: the processor's time of a call, and many products end to end, on an NVIDIA GPU.

    python benchmarks/calls.py
    python benchmarks/calls.py --races --output calls.json

tilewright is timed beside CuPy and torch in one process. With --races, threads call it all at once and every result is
checked. Needs CuPy and torch for CUDA; --output is benchmarks/results/<device>/calls.json where it is not given.
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
"""A product that takes longer, back to back, is called fewer times in a batch: about 1,000 launches can wait."""
SHAPES = ("128", "512", "1000", "16x4096x4096", "333x500x700")
KINDS = ("pack", "split_k", "stream_k", "tma")
MIXED = "64 100 128 256 300 512 777 1024 64x1024x256 333x500x700 1024x768x512 96x640x1024".split()
PRODUCTS, RACE_CALLS = 1000, 10_000
TARGETS = {"load-cupy": ("cupy", 0.5), "load-torch": ("torch", 1.0), "matmul-cupy": ("cupy", 0.75)}
TARGETS |= {"matmul-torch": ("torch", 1.3), "op-torch": ("direct_new", 1.6)}
"""For each path what its time is divided by, and how much that may be."""
WHOLE_TARGETS = {"eager": 1.15, "captured": 1.3}
"""How many times as fast as a rival many products have to be."""
GIVEN, NEW = "call(a, b, out=c)", "call(a, b)"
METHOD = (
    f"Calls: the processor's time until a call returns, minimum of {ROUNDS} batches of {CALLS} ({FEWER_CALLS} where a "
    f"product takes over {SLOW_US:.0f} us back to back: the launch queue must not fill), `out` given but for op-torch, "
    "torch_new_us and direct_new_us; each batch begins with an idle GPU; batches of all paths and rivals of a shape "
    "alternate in random order in one process. End to end: wall time of float products of 12 shapes in shuffled order, "
    f"`out` given, waited for once, {ROUNDS} repetitions that alternate; captured: the same as one CUDA graph; where "
    "the rival is cuBLAS it is captured by its own interface with a workspace allocated once, as CuPy refuses. "
    "Operands are whole numbers: results are checked exactly before they are timed. No garbage collection, no TF32"
)
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Arrays:
    """One product in CuPy arrays and in torch tensors."""

    problem: Problem
    cupy: tuple[Any, Any, Any]
    torch: tuple[Any, Any, Any]
    """a, b and out."""
    expected: Any
    """The right result, exactly, as a NumPy array."""


def arrays_of(problem: Problem, rng: np.random.Generator) -> Arrays:
    """Operands whose products and sums are whole numbers without rounding."""
    m, n, k = problem.m, problem.n, problem.k
    a, b = (rng.integers(-3, 4, size).astype(problem.dtype.numpy_name) for size in ((m, k), (k, n)))
    c = np.zeros((m, n), a.dtype)
    on_torch = (torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.from_numpy(c).cuda())
    return Arrays(problem, (cupy.asarray(a), cupy.asarray(b), cupy.asarray(c)), on_torch, a @ b)


def wait() -> None:
    """Until the GPU is idle."""
    cupy.cuda.runtime.deviceSynchronize()


def prove(name: str, run: Run, outs: list[tuple[Any, Any]]) -> None:
    """Run once, and compare each array that it writes with what is right there."""
    for out, _ in outs:
        out[...] = math.nan
    wait()  # the run may be on another stream
    run()
    wait()
    for out, expected in outs:
        found = cupy.asnumpy(out) if isinstance(out, cupy.ndarray) else out.cpu().numpy()
        if not np.array_equal(found, expected):
            raise RuntimeError(f"{name}: wrong result")


def alternated(contenders: Mapping[Any, Callable[[], float]]) -> dict[Any, list[float]]:
    """Times of each, in rounds in which each has its turn, in random order."""
    times: dict[Any, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in random.sample(list(contenders), len(contenders)):
            times[name].append(contenders[name]())
    return times


def timed(code: str, repeats: int, names: dict[str, Any]) -> float:
    """Seconds of one repeat, begun with the GPU idle. Timer turns garbage collection off."""
    wait()
    return timeit.Timer(code, globals=names).timeit(repeats) / repeats


def kind_of(config: Config, problem: Problem) -> str:
    """Which of KINDS a config is of, joined by `+`; `plain` where it is of none."""
    found = kinds_of(config, problem)
    return "+".join(kind for kind in KINDS if kind in found) or "plain"


def smallest_of_kinds(device_key: str) -> list[Problem]:
    """The float product of each of KINDS with the least work among the records that ship for a device."""
    _, shipped = Store(Path("no-such-folder").absolute()).layers()
    plain = [each for each in shipped if each.device == device_key and each.problem.trans == "nn"]
    wanted = [each for each in plain if each.problem.dtype is DType.FLOAT]
    wanted.sort(key=lambda each: each.problem.flops)
    groups = ([each.problem for each in wanted if kind in kind_of(each.config, each.problem)] for kind in KINDS)
    return [group[0] for group in groups if group]


def call_rows(problem: Problem, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row for each path of one product."""
    arrays, gemm = arrays_of(problem, rng), tilewright.load(problem.m, problem.n, problem.k, dtype=problem.dtype.value)
    ours, on = {"load": gemm, "matmul": tilewright.matmul}, {"cupy": arrays.cupy, "torch": arrays.torch}
    paths: dict[str, Any] = {f"{how}-{lib}": (GIVEN, ours[how], on[lib]) for lib in on for how in ours}
    paths["op-torch"] = NEW, torch.ops.tilewright.matmul, arrays.torch
    paths |= {"cupy": (GIVEN, cupy.matmul, arrays.cupy), "torch": (GIVEN, torch.mm, arrays.torch)}
    paths |= {"torch_new": (NEW, torch.mm, arrays.torch), "direct_new": (NEW, tilewright.matmul, arrays.torch)}
    contenders, whole_us = {}, {}
    for name, (code, call, (a, b, c)) in paths.items():
        names = {"call": call, "a": a, "b": b, "c": c, "wait": wait}
        run = partial(eval, code if code == GIVEN else f"c.copy_({code})", names)
        prove(f"{problem} {name}", run, [(c, arrays.expected)])
        whole_us[name] = timed(f"for _ in range(50): {code}\nwait()", 2, names) / 50 * 1e6
        contenders[name] = partial(timed, code, names=names)
    slowest = max(whole_us["load-cupy"], whole_us["torch"])
    calls = FEWER_CALLS if slowest > SLOW_US else CALLS
    times = alternated({name: partial(each, calls) for name, each in contenders.items()})
    us = {name: round(min(each) * 1e6, 3) for name, each in times.items()}
    facts: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.value}
    facts |= {"kind": kind_of(gemm.config, problem), "origin": gemm.origin, "config": str(gemm.config)}
    facts |= {"calls": calls, "back_to_back_us": round(slowest, 2)}
    rows = []
    for path, (rival, _) in TARGETS.items():
        row = {**facts, "path": path, "our_us": us[path], "cupy_us": us["cupy"], "torch_us": us["torch"]}
        if path == "op-torch":
            row |= {"torch_new_us": us["torch_new"], "direct_new_us": us["direct_new"]}
        rows.append({**row, "ratio": round(us[path] / us[rival], 4)})
    print(f"{problem!s:<25}" + "".join(f"{us[name]:6.1f}" for name in paths), flush=True)
    return rows


def end_to_end(device: Device, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Many products in a row, eager and captured, of CuPy arrays and of torch tensors."""
    each = [arrays_of(Problem.parse(shape), rng) for shape in MIXED]
    order = random.sample((each * PRODUCTS)[:PRODUCTS], PRODUCTS)
    eager, captured = {}, {}
    for name, call in {"cupy": cupy.matmul, "torch": torch.mm}.items():
        work = [getattr(one, name) for one in order]
        eager[name, "our"], eager[name, "rival"] = (partial(_all, f, work) for f in (tilewright.matmul, call))
    names = {"cupy": "cupy.matmul", "torch": "torch.mm"}
    rows = _raced("eager", eager, each, names)
    for key, run in eager.items():
        tilewright.prepare(*(one.problem.shape for one in each), dtype="float")  # memory for a graph
        try:
            captured[key] = _captured(key[0], run)
        except NotImplementedError:
            if key != ("cupy", "rival"):
                raise
            names["cupy"] = "cuBLAS"
            captured[key] = _captured(key[0], _cublas(device, each, order))
    return rows + _raced("captured", captured, each, names)


def _all(call: Callable[..., Any], work: list[tuple[Any, Any, Any]]) -> None:
    for a, b, c in work:
        call(a, b, out=c)


def _raced(how: str, runs: Mapping[Any, Run], each: list[Arrays], names: Mapping[str, str]) -> list[dict[str, Any]]:
    for key, run in runs.items():
        prove(f"{how}, {key}", run, [(getattr(one, key[0])[2], one.expected) for one in each])
    given = {key: {"run": run, "wait": wait} for key, run in runs.items()}
    times = alternated({key: partial(timed, "run()\nwait()", 1, names) for key, names in given.items()})
    rows = []
    for name, rival in names.items():
        row: dict[str, Any] = {"how": how, "arrays": name, "rival": rival, "products": PRODUCTS}
        for measure, of in (("min", min), ("median", median)):
            ours, theirs = (of(times[name, whose]) * 1e3 for whose in ("our", "rival"))
            row |= {f"our_ms_{measure}": round(ours, 4), f"rival_ms_{measure}": round(theirs, 4)}
            row[f"ratio_{measure}"] = round(theirs / ours, 4)
        rows.append(row)
    return rows


def _captured(name: str, run: Run) -> Run:
    """The graph of a run that CuPy or torch replays."""
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


def _cublas(device: Device, each: list[Arrays], order: list[Arrays]) -> Run:
    launches = {}
    for one in each:
        a, b, c = (Operand(int(x.data.ptr), x.shape[0], x.shape[1], x.shape[1], False, x) for x in one.cupy)
        launches[one.problem] = partial(device.vendor(one.problem), a, b, c, 1.0, 0.0)
    calls = [launches[one.problem] for one in order]
    return lambda: [call() for call in calls]


def races(problems: list[Problem]) -> list[dict[str, Any]]:
    """Threads that call at once on one GPU, and on two where there are two; nothing is ready when they begin."""
    rows: list[dict[str, Any]] = []
    sys.setswitchinterval(1e-5)  # the 5 ms that Python begins with would hide much
    for places in ([0, 0, 0, 0], [0, 1])[: min(2, cupy.cuda.runtime.getDeviceCount())]:
        tilewright.clear()
        with ThreadPoolExecutor(len(places)) as pool:
            tasks = [pool.submit(_called, place, seed, problems) for seed, place in enumerate(places)]
        errors = [f"{type(error).__name__}: {error}" for task in tasks if (error := task.exception())]
        wrong = sum(task.result() for task in tasks if not task.exception())
        row = {"threads": len(places), "devices": len(set(places)), "calls_each": RACE_CALLS, "wrong": wrong}
        rows.append({**row, "errors": errors, "shapes": [problem.shape for problem in problems]})
        print(f"races, {row['threads']} threads, {row['devices']} devices: {wrong} wrong", *errors)
    return rows


def _called(place: int, seed: int, problems: list[Problem]) -> int:
    """Calls with a result that is not right in every element, of one thread on a stream of its own."""
    rng = np.random.default_rng(seed)
    with cupy.cuda.Device(place), cupy.cuda.Stream(non_blocking=True) as stream:
        sets = []
        for problem in problems:
            a, b = (cupy.asarray(rng.integers(-3, 4, s), "float32") for s in (problem.stored_a, problem.stored_b))
            sets.append((a, b, cupy.empty((problem.m, problem.n), "float32"), cupy.matmul(a, b)))
        wrong = cupy.zeros((), "int64")
        for pick in rng.integers(len(sets), size=RACE_CALLS).tolist():
            a, b, c, expected = sets[pick]
            c.fill(math.nan)
            tilewright.matmul(a, b, out=c)
            wrong += (c != expected).any()
        stream.synchronize()
        return int(wrong)


def summary(rows: list[dict[str, Any]], whole: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric mean and worst ratio of each path, median and worst end to end, each with its target."""
    found = []
    for path, (rival, most) in TARGETS.items():
        some = [row for row in rows if row["path"] == path]
        mean, worst = geometric_mean(row["ratio"] for row in some), max(some, key=lambda row: row["ratio"])
        line = {"what": path, "against": rival, "mean": round(mean, 4), "worst": worst["ratio"], "target": f"<= {most}"}
        line |= {"met": mean <= most, "worst_met": worst["ratio"] <= most}
        found.append({**line, "worst_at": f"{worst['m']}x{worst['n']}x{worst['k']} {worst['dtype']}"})
    for row in whole:
        least, mean, worst = WHOLE_TARGETS[row["how"]], row["ratio_median"], min(row["ratio_median"], row["ratio_min"])
        line = {"what": f"{row['how']}, {row['arrays']}", "against": row["rival"], "mean": mean, "worst": worst}
        line |= {"target": f">= {least}", "met": mean >= least, "worst_met": worst >= least}
        found.append({**line, "worst_at": "of medians, minima"})
    return found


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
        launcher._found = lambda: (None, "Python (asked for)")
    info, rng = choose("cuda"), np.random.default_rng(0)
    random.seed(0)
    kinds = smallest_of_kinds(info.key)
    floats = dict.fromkeys([*map(Problem.parse, SHAPES), *kinds])
    print(f"{'microseconds a call':<25}{'ours, CuPy':>12}{'ours, torch':>18}{'out given':>12}{'new':>12}")
    print(" " * 25 + "".join(f"{head:>6}" for head in "load matm load matm op CuPy torch torch matm".split()))
    problems = [*floats, *(Problem.parse(shape, "double") for shape in SHAPES)]
    rows = [row for problem in problems for row in call_rows(problem, rng)]
    lines = summary(rows, whole := end_to_end(open_device(info), rng))
    print(table(lines))
    document: dict[str, Any] = {"device": info.name, "driver": info.driver, "processor": host_info().name[5:]}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "cupy": cupy.__version__}
    versions |= {"torch": torch.__version__, "tilewright": tilewright.__version__}
    document["launcher"] = launcher.described()
    document["versions"] = versions | dict(versions_of(info, compiler_for(info)))
    document |= {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "method": METHOD}
    document |= {"summary": lines, "rows": rows, "end_to_end": {"shapes": MIXED, "rows": whole}}
    path = options.output or Path(__file__).parent / "results" / info.key / "calls.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    if options.races:
        document["races"] = races([*map(Problem.parse, MIXED), *kinds])
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
