"""Time the functions of emitted kernels, on an NVIDIA GPU, beside the same kernels of the library.

    python benchmarks/emitted.py
    python benchmarks/emitted.py --batched
    python benchmarks/emitted.py --output emitted.json --arch sm_90a

A bundle of tuned kernels of all kinds is emitted, and nvcc builds a shared library and a program of it. Each function
of the shared library is timed beside the same kernel of `tilewright.load`, in rounds, on the same inputs: only launch
and compiler differ. The program is the bundle's self-test, which checks each kernel and times it by itself: from a
graph, in eager calls that follow each other, from event to event of a single call, and by the processor's time of a
call. `--batched` measures functions for batches instead, by strides and by arrays of addresses, with the kernels that a
look-up gives for the batches. A file keeps the results of both. Without `--output` it is
benchmarks/results/<device>/emitted.json. Needs CuPy and nvcc.
"""

import argparse
import ctypes
import datetime
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np
from tilewright.codegen.batch import Strides
from tilewright.codegen.bundle import Served
from tilewright.codegen.config import Config
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import Edge, Mode
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.timing import Timer, TimingPlan
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device, DeviceInfo, Launch, Operand
from tilewright.runtime.product.kernel import prepare
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.choose.shortlist import look_up

SHAPES = (
    "100 256 512 1000 1024x768x512 1023x769x511 2047 16x4096x4096 4096x16x4096 64x64x65536 65536x64x64 35x700x2048 "
    "3072x1500x1024 4096x4096x64"
).split()
PADDED = ("300x200x100", "tiled:32,edge=pad")
"""Shape and config of a kernel that pads, which no tuned kernel does."""
BATCHES = (
    "1000000x 3x3x3, 300000x 8x8x8, 100000x 17x17x17, 50000x 32x32x32, 10000x 33x33x33, 2000x 64x64x64, "
    "2000x 100x100x10, 256x 197x197x64, 64x 128x128x128, 16x 512x512x512"
).split(", ")
"""Batches, each as the number and the shape of its products."""
RUNS, ROUNDS = 3, 9
"""Runs of the self-test, and rounds of the functions beside the library's kernels."""
TIMES = "self_test_us", "eager_us", "single_us", "host_us"
AT_MOST = {"run over library": 1.03, "batched over library": 1.03, "eager over kernel, us": 4.0, "host_us": 3.0}
"""Targets, which are printed beside the figures."""
LINE = re.compile(
    r"^(?P<function>\w+) +(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+) +(?P<right>ok|WRONG|-) +(?P<self_test_us>[\d.]+) "
    r"+(?P<eager_us>[\d.]+) +(?P<single_us>[\d.]+) +(?P<host_us>[\d.]+) "
    r"+(?:[\d.]+|-) +(?:[\d.]+|-)(?: SLOWER)? +(?P<config>\S+)$",
    re.MULTILINE,
)
"""Line of the self-test for a kernel."""
EMPTY = re.compile(r"a call of an empty kernel: single ([\d.]+), host ([\d.]+)$", re.MULTILINE)
"""Line of the self-test for an empty kernel."""
METHOD = (
    f"run_us and library_us: medians of {ROUNDS} rounds in one process, in shuffled orders, over the same rotated "
    "inputs, 2.5 times the L2 cache: a product within a replayed graph of them, or by itself from 500 us on; the "
    f"device begins when all is queued. The others: medians of {RUNS} runs of the self-test in a process of its own. "
    "self_test_us: as run_us. eager_us: one of 200 calls that follow each other, over the same inputs. single_us: from "
    "event to event of one call on an idle device, median. host_us: the processor's time until a call returns, minimum "
    "of 5 batches of 200. empty: the last two of a kernel that does nothing. The first run checks all results"
)

BATCHED_METHOD = (
    f"library_us, batched_us, pointers_us: medians of {ROUNDS} rounds in one process, in shuffled orders, over the "
    "same rotated inputs without gaps, as run_us; the kernel of library_us is that of batched_us. Arrays of addresses, "
    "which the kernel for any alignment reads, are made before. The self-test has checked all results"
)


def kinds_of(config: Config, problem: Problem) -> list[str]:
    """Names of the mechanisms that a config has beyond its tiles."""
    uses = {"split_k": config.split.mode is Mode.SPLIT_K, "stream_k": config.split.mode is Mode.STREAM_K}
    uses |= {"cluster": config.clustered, "persistent": config.split.mode is Mode.PERSISTENT}
    uses |= {"pack": any(config.packs), "tma": bool(config.boxes(problem)), "pad": config.edge_of(problem) is Edge.PAD}
    uses["l2_prefetch"] = ("l2_prefetch", 1) in config.values
    return [name for name, used in uses.items() if used]


def batches(info: DeviceInfo) -> list[tuple[Problem, Served]]:
    """The batches in both types, and the kernels that look-ups give for them."""
    store, rows = Store(Path("no-such-folder").absolute()), []
    for dtype in ("float", "double"):
        for text in BATCHES:
            count, shape = text.split("x ")
            problem = Problem.parse(shape, dtype, batch=int(count))
            rows.append((problem, store.lookup(info, problem, look_up).served(replace(problem, batch=1), info)))
    return rows


def kernels(info: DeviceInfo) -> list[Served]:
    """The tuned kernels of the shapes in both types, and the kernel that pads."""
    store, served = Store(Path("no-such-folder").absolute()), []
    for dtype in ("float", "double"):
        for shape in SHAPES:
            problem = Problem.parse(shape, dtype)
            served.append(store.lookup(info, problem, look_up).served(problem, info))
        shape, config = PADDED
        served.append(Served(Problem.parse(shape, dtype), parse(config), info))
    return served


def parse_rows(text: str) -> list[dict[str, Any]]:
    """The results of the self-test, a row for each kernel. Raises ValueError for a wrong one."""
    rows = []
    for match in LINE.finditer(text):
        if match["right"] == "WRONG":
            raise ValueError(match[0])
        fields = match.groupdict().items()
        rows.append({key: float(value) if key.endswith("_us") else value for key, value in fields})
    return rows


class Built:
    """A bundle that nvcc built, as a shared library and as the program of the self-test."""

    def __init__(self, served: Sequence[Served], folder: str, arch: str, batched: bool = False) -> None:
        files = emit(served, "gemm", Layout(main=True, batched=batched)).write(Path(folder))
        sources = [str(path) for path in files if path.suffix == ".cu"]
        self.program, shared = f"{folder}/gemm_main", f"{folder}/libgemm.so"
        command = ["nvcc", "-O3", "-std=c++17", f"-arch={arch}"]
        start = datetime.datetime.now()
        subprocess.run([*command, *sources, "-o", self.program], check=True)
        self.seconds = (datetime.datetime.now() - start).total_seconds()
        sources = [path for path in sources if not path.endswith("_main.cu")]
        subprocess.run([*command, "-shared", "-Xcompiler", "-fPIC", *sources, "-o", shared], check=True)
        self._library = ctypes.CDLL(shared)

    def run(self, *options: str) -> str:
        """The output of the self-test. Raises SystemExit where it fails."""
        command = [self.program, *options]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if process.returncode:
            raise SystemExit(f"the self-test ends with {process.returncode}:\n{process.stdout}")
        return process.stdout

    def launch(self, function: str, device: Device, problem: Problem) -> Launch:
        """A function of the library, with a workspace, on the current stream."""
        real, pointer, sizes = _real(problem), ctypes.c_void_p, _sizes(problem)
        workspace, workspace_arguments = self._workspace(f"{function}_workspace_size", device, sizes)
        call = getattr(self._library, f"{function}_run")

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            operands = [x for each in (a, b, c) for x in (pointer(each.pointer), ctypes.c_int64(each.ld))]
            status = call(*operands, *sizes, real(alpha), real(beta), *workspace_arguments, pointer(device.stream()))
            require(status, f"{function}_run of a workspace at {workspace.pointer:#x}")

        return launch

    def launch_batched(
        self, function: str, device: Device, problem: Problem, strides: Sequence[int] | None = None
    ) -> Launch:
        """The function for a batch, with a workspace, on the current stream. Matrices lie `strides` elements apart, for
        None without gaps."""
        long, sizes, real = ctypes.c_int64, _sizes(problem), _real(problem)
        steps = strides or [step for _, step in Strides.dense(problem).steps]
        batch = long(problem.batch)
        workspace, workspace_arguments = self._workspace(f"{function}_workspace_size_batched", device, (*sizes, batch))
        call = getattr(self._library, f"{function}_run_batched")

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            values = [(ctypes.c_void_p(x.pointer), long(x.ld), long(step)) for x, step in zip((a, b, c), steps)]
            operands = [value for each in values for value in each]
            stream = ctypes.c_void_p(device.stream())
            status = call(*operands, *sizes, batch, real(alpha), real(beta), *workspace_arguments, stream)
            require(status, f"{function}_run_batched of a workspace at {workspace.pointer:#x}")

        return launch

    def launch_pointers(self, function: str, device: Device, problem: Problem, strides: Sequence[int]) -> Launch:
        """The function for arrays of addresses, of matrices that lie `strides` elements apart. The first launch with
        operands makes their arrays."""
        long, sizes, real = ctypes.c_int64, _sizes(problem), _real(problem)
        batch, size = long(problem.batch), problem.dtype.size_bytes
        workspace, workspace_arguments = self._workspace(f"{function}_workspace_size_batched", device, (*sizes, batch))
        call, arrays = getattr(self._library, f"{function}_run_pointers"), dict[tuple[int, int], Any]()

        def addresses(x: Operand, step: int) -> ctypes.c_void_p:
            key = x.pointer, step
            if key not in arrays:
                matrices = x.pointer + step * size * np.arange(problem.batch, dtype=np.int64)
                arrays[key] = device.xp.asarray(matrices)
            return ctypes.c_void_p(arrays[key].data.ptr)

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            values = [(addresses(x, step), long(x.ld)) for x, step in zip((a, b, c), strides)]
            operands = [value for each in values for value in each]
            stream = ctypes.c_void_p(device.stream())
            status = call(*operands, *sizes, batch, real(alpha), real(beta), *workspace_arguments, stream)
            require(status, f"{function}_run_pointers of a workspace at {workspace.pointer:#x}")

        return launch

    def _workspace(self, name: str, device: Device, sizes: Sequence[Any]) -> tuple[Any, tuple[Any, Any]]:
        """A workspace of the size that the function `name` returns, and the arguments that pass it to a call."""
        size_of = getattr(self._library, name)
        size_of.restype = ctypes.c_size_t
        count = size_of(*sizes)
        workspace = device.allocate(max(1, count))
        arguments = ctypes.c_void_p(workspace.pointer), ctypes.c_size_t(count)
        require(self._library.gemm_workspace_init(*arguments, None), "gemm_workspace_init")
        device.synchronize()
        return workspace, arguments


def _real(problem: Problem) -> Any:
    """The type of alpha and beta."""
    return getattr(ctypes, f"c_{problem.dtype.value}")


def _sizes(problem: Problem) -> list[ctypes.c_int64]:
    """m, n and k."""
    return [ctypes.c_int64(size) for size in (problem.m, problem.n, problem.k)]


def require(status: int, what: str) -> None:
    """End the program if a status is not success."""
    if status:
        raise SystemExit(f"{what} returned {status}")


def compare_batches(info: DeviceInfo, device: Device, folder: str, arch: str) -> dict[str, Any]:
    """Time functions for batches beside the library's kernels, print a table and return it."""
    served = batches(info)
    built = Built([kernel for _, kernel in served], folder, arch, batched=True)
    built.run("--no-times")
    rows = []
    for problem, kernel in served:
        function, strides = f"gemm_{problem.dtype.code}", [step for _, step in Strides.dense(problem).steps]
        timer = Timer(device, problem, plan=TimingPlan.side_by_side(device))
        contenders = {
            "library_us": prepare(device, problem, kernel.config).launch,
            "batched_us": built.launch_batched(function, device, problem),
            "pointers_us": built.launch_pointers(function, device, problem, strides),
        }
        timer.warm(contenders["pointers_us"])  # no graph can make the arrays of addresses
        samples, _ = timer.rounds(contenders, ROUNDS)
        row: dict[str, Any] = {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k}
        row |= {"dtype": problem.dtype.value, "config": str(kernel.config)}
        rows.append(row | {name: median(times_us) for name, times_us in samples.items()})
        shape = f"{problem.batch}x {problem.shape}"
        cells = " ".join(f"{rows[-1][name]:10.2f}" for name in contenders)
        print(f"{shape:<24}{problem.dtype.value:<7}{cells}  {kernel.config}", flush=True)
    summary = {}
    for name in ("batched", "pointers"):
        ratios = [row[f"{name}_us"] / row["library_us"] for row in rows]
        summary[f"{name} over library"] = {"mean": geometric_mean(ratios), "worst": max(ratios)}
    print_summary(summary)
    return {"nvcc_s": round(built.seconds, 1), "summary": summary, "rows": rows}


def print_summary(summary: Mapping[str, Mapping[str, float]]) -> None:
    """Print means and worst values."""
    for name, figures in summary.items():
        print(f"{name}: mean {figures['mean']:.3f}, worst {figures['worst']:.3f}, at most {AT_MOST.get(name, '-')}")


def main() -> None:
    """Build, run, time, print the table and write emitted.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the JSON file")
    parser.add_argument("--arch", default="native", help="what nvcc compiles for")
    parser.add_argument("--batched", action="store_true", help="compare functions for batches instead")
    options = parser.parse_args()
    info = choose("cuda")
    device = open_device(info)
    path = options.output or Path(__file__).parent / "results" / info.key / "emitted.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    facts: dict[str, Any] = {
        "device": info.name,
        "driver": info.driver,
        "versions": dict(versions_of(info, device.compiler)),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if options.batched:
        with tempfile.TemporaryDirectory() as folder:
            results = compare_batches(info, device, folder, options.arch)
        document["batched"] = {**facts, "method": BATCHED_METHOD, **results}
    else:
        batched = {key: value for key, value in document.items() if key == "batched"}
        document = {**facts, "method": METHOD, **compare(info, device, options.arch), **batched}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def compare(info: DeviceInfo, device: Device, arch: str) -> dict[str, Any]:
    """Time functions for single products beside the library's kernels, print a table and return it."""
    served = kernels(info)
    with tempfile.TemporaryDirectory() as folder:
        built = Built(served, folder, arch)
        runs, empties = [], []
        for number in range(RUNS):
            output = built.run(*(["--no-checks"] if number else []))
            runs.append(parse_rows(output))
            empties.append([float(us) for us in EMPTY.findall(output)[0]])
        rows = []
        for i, kernel in enumerate(served):
            problem = kernel.problem
            timer = Timer(device, problem, plan=TimingPlan.side_by_side(device))
            ours = prepare(device, problem, kernel.config).launch
            contenders = {"library_us": ours, "run_us": built.launch(runs[0][i]["function"], device, problem)}
            samples, _ = timer.rounds(contenders, ROUNDS)
            row: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.value}
            row |= {"config": str(kernel.config), "kinds": kinds_of(kernel.config, problem)}
            row |= {name: median(times_us) for name, times_us in samples.items()}
            rows.append(row | {name: median(run[i][name] for run in runs) for name in TIMES})
    ratios = [row["run_us"] / row["library_us"] for row in rows]
    empty = dict(zip(("single_us", "host_us"), map(median, zip(*empties))))
    singles = [row["single_us"] - row["self_test_us"] - empty["single_us"] for row in rows]
    eager_over, hosts = [row["eager_us"] - row["self_test_us"] for row in rows], [row["host_us"] for row in rows]
    self_test_ratios = [row["self_test_us"] / row["library_us"] for row in rows]
    summary = {
        "run over library": {"mean": geometric_mean(ratios), "worst": max(ratios)},
        "self-test over library": {"mean": geometric_mean(self_test_ratios), "worst": max(self_test_ratios)},
        "eager over kernel, us": {"mean": fmean(eager_over), "worst": max(eager_over)},
        "single over kernel and an empty call, us": {"mean": fmean(singles), "worst": max(singles)},
        "host_us": {"mean": fmean(hosts), "worst": max(hosts)},
    }
    for row, ratio in zip(rows, ratios):
        shape = f"{row['m']}x{row['n']}x{row['k']}"
        cells = " ".join(f"{row[name]:10.2f}" for name in ("library_us", "run_us", *TIMES))
        print(f"{shape:<18}{row['dtype']:<7}{cells} {ratio:6.3f}  {'+'.join(row['kinds'])}")
    print_summary(summary)
    return {"empty": empty, "nvcc_s": round(built.seconds, 1), "summary": summary, "rows": rows}


if __name__ == "__main__":
    main()
