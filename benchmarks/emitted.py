"""The cost of an emitted kernel where it is used: its functions timed from C++ beside the library's, on an NVIDIA GPU.

    python benchmarks/emitted.py
    python benchmarks/emitted.py --output emitted.json --arch sm_90a

A bundle of tuned kernels of every kind is emitted and built by nvcc, as a library and as a program. Each function of
the library is timed beside the same kernel of `tilewright.load`, in rounds, on the same inputs: only launch and
compiler differ. The program is the bundle's self-test, which checks each kernel and times it by itself: from a graph,
in eager calls that follow each other, from event to event of a single call, and by the processor's time a call.
--output is benchmarks/results/<device>/emitted.json where it is not given. Needs CuPy and nvcc.
"""

import argparse
import ctypes
import datetime
import json
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

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
"""No tuned kernel pads: one that does, and its shape."""
RUNS, ROUNDS = 3, 9
"""Runs of the self-test, and of a function beside the library's kernel."""
TIMES = "self_test_us", "eager_us", "single_us", "host_us"
AT_MOST = {"run over library": 1.03, "eager over kernel, us": 4.0, "host_us": 3.0}
LINE = re.compile(
    r"^(?P<function>\w+) +(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+) +(?P<right>ok|WRONG|-) +(?P<self_test_us>[\d.]+) "
    r"+(?P<eager_us>[\d.]+) +(?P<single_us>[\d.]+) +(?P<host_us>[\d.]+) "
    r"+(?:[\d.]+|-) +(?:[\d.]+|-)(?: SLOWER)? +(?P<config>\S+)$",
    re.MULTILINE,
)
"""A kernel's line of the self-test."""
EMPTY = re.compile(r"a call of an empty kernel: single ([\d.]+), host ([\d.]+)$", re.MULTILINE)
METHOD = (
    f"run_us and library_us: medians of {ROUNDS} rounds in one process, in shuffled orders, over the same rotated "
    "inputs, 2.5 times the L2 cache: a product within a replayed graph of them, or by itself from 500 us on; the "
    f"device begins when all is queued. The others: medians of {RUNS} runs of the self-test in a process of its own. "
    "self_test_us: as run_us. eager_us: one of 200 calls that follow each other, over the same inputs. single_us: from "
    "event to event of one call on an idle device, median. host_us: the processor's time until a call returns, minimum "
    "of 5 batches of 200. empty: the last two of a kernel that does nothing. The first run checks all results"
)


def kinds_of(config: Config, problem: Problem) -> list[str]:
    """Parameters of a kernel beside its tiles."""
    found = {"split_k": config.split.mode is Mode.SPLIT_K, "stream_k": config.split.mode is Mode.STREAM_K}
    found |= {"cluster": config.clustered, "persistent": config.split.mode is Mode.PERSISTENT}
    found |= {"pack": any(config.packs), "tma": bool(config.boxes(problem)), "pad": config.edge_of(problem) is Edge.PAD}
    found["l2_prefetch"] = ("l2_prefetch", 1) in config.values
    return [kind for kind, has in found.items() if has]


def kernels(info: DeviceInfo) -> list[Served]:
    """The tuned kernels of the shapes in both types, and padded ones."""
    store, served = Store(Path("no-such-folder").absolute()), []
    for dtype in ("float", "double"):
        for shape in SHAPES:
            problem = Problem.parse(shape, dtype)
            served.append(store.lookup(info, problem, look_up).served(problem, info))
        shape, config = PADDED
        served.append(Served(Problem.parse(shape, dtype), parse(config), info))
    return served


def parsed(text: str) -> list[dict[str, Any]]:
    """The results of the self-test, a row a kernel. Raises ValueError where one is wrong."""
    rows = []
    for match in LINE.finditer(text):
        if match["right"] == "WRONG":
            raise ValueError(match[0])
        found = match.groupdict().items()
        rows.append({key: float(value) if key.endswith("_us") else value for key, value in found})
    return rows


class Built:
    """A bundle built by nvcc: a shared library and the self-test."""

    def __init__(self, served: list[Served], folder: str, arch: str) -> None:
        files = emit(served, "gemm", Layout(main=True)).write(Path(folder))
        sources = [str(path) for path in files if path.suffix == ".cu"]
        self.program, shared = f"{folder}/gemm_main", f"{folder}/libgemm.so"
        command = ["nvcc", "-O3", "-std=c++17", f"-arch={arch}"]
        start = datetime.datetime.now()
        subprocess.run([*command, *sources, "-o", self.program], check=True)
        self.seconds = (datetime.datetime.now() - start).total_seconds()
        sources = [path for path in sources if not path.endswith("_main.cu")]
        subprocess.run([*command, "-shared", "-Xcompiler", "-fPIC", *sources, "-o", shared], check=True)
        self._library = ctypes.CDLL(shared)

    def run(self, checks: bool) -> str:
        """The output of the self-test. Raises SystemExit where it fails."""
        command = [self.program, *(() if checks else ("--no-checks",))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the self-test ends with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def launch(self, function: str, device: Device, problem: Problem) -> Launch:
        """A function of the library, with a workspace, on the current stream."""
        real, long, pointer = getattr(ctypes, f"c_{problem.dtype.value}"), ctypes.c_int64, ctypes.c_void_p
        sizes = [long(size) for size in (problem.m, problem.n, problem.k)]
        needed = getattr(self._library, f"{function}_workspace_size")
        needed.restype = ctypes.c_size_t
        count = needed(*sizes)
        workspace = device.allocate(max(1, count))
        given = pointer(workspace.pointer), ctypes.c_size_t(count)
        require(self._library.gemm_workspace_init(*given, None), "gemm_workspace_init")
        device.synchronize()
        call = getattr(self._library, f"{function}_run")

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            operands = [x for each in (a, b, c) for x in (pointer(each.pointer), long(each.ld))]
            status = call(*operands, *sizes, real(alpha), real(beta), *given, pointer(device.stream()))
            require(status, f"{function}_run of a workspace at {workspace.pointer:#x}")

        return launch


def require(status: int, what: str) -> None:
    """End the program for a status that is not success."""
    if status:
        raise SystemExit(f"{what} returned {status}")


def main() -> None:
    """Build, run, time, print the table and write emitted.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the JSON file")
    parser.add_argument("--arch", default="native", help="what nvcc compiles for")
    options = parser.parse_args()
    info = choose("cuda")
    device, served = open_device(info), kernels(info)
    with tempfile.TemporaryDirectory() as folder:
        built = Built(served, folder, options.arch)
        runs, empties = [], []
        for number in range(RUNS):
            told = built.run(checks=number == 0)
            runs.append(parsed(told))
            empties.append([float(us) for us in EMPTY.findall(told)[0]])
        rows = []
        for i, each in enumerate(served):
            problem = each.problem
            timer = Timer(device, problem, plan=TimingPlan.side_by_side(device))
            ours = prepare(device, problem, each.config).launch
            contenders = {"library_us": ours, "run_us": built.launch(runs[0][i]["function"], device, problem)}
            samples, _ = timer.rounds(contenders, ROUNDS)
            row: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.value}
            row |= {"config": str(each.config), "kinds": kinds_of(each.config, problem)}
            row |= {name: median(found) for name, found in samples.items()}
            rows.append(row | {name: median(run[i][name] for run in runs) for name in TIMES})
    ratios = [row["run_us"] / row["library_us"] for row in rows]
    empty = dict(zip(("single_us", "host_us"), map(median, zip(*empties))))
    singles = [row["single_us"] - row["self_test_us"] - empty["single_us"] for row in rows]
    over, hosts = [row["eager_us"] - row["self_test_us"] for row in rows], [row["host_us"] for row in rows]
    alone = [row["self_test_us"] / row["library_us"] for row in rows]
    summary = {
        "run over library": {"mean": geometric_mean(ratios), "worst": max(ratios)},
        "self-test over library": {"mean": geometric_mean(alone), "worst": max(alone)},
        "eager over kernel, us": {"mean": fmean(over), "worst": max(over)},
        "single over kernel and an empty call, us": {"mean": fmean(singles), "worst": max(singles)},
        "host_us": {"mean": fmean(hosts), "worst": max(hosts)},
    }
    for row, ratio in zip(rows, ratios):
        shape = f"{row['m']}x{row['n']}x{row['k']}"
        times_us = " ".join(f"{row[name]:10.2f}" for name in ("library_us", "run_us", *TIMES))
        print(f"{shape:<18}{row['dtype']:<7}{times_us} {ratio:6.3f}  {'+'.join(row['kinds'])}")
    for name, found in summary.items():
        print(f"{name}: mean {found['mean']:.3f}, worst {found['worst']:.3f}, at most {AT_MOST.get(name, '-')}")
    document: dict[str, Any] = {
        "device": info.name,
        "driver": info.driver,
        "versions": dict(versions_of(info, device.compiler)),
    }
    document |= {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "method": METHOD}
    document |= {"empty": empty, "nvcc_s": round(built.seconds, 1), "summary": summary, "rows": rows}
    path = options.output or Path(__file__).parent / "results" / info.key / "emitted.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
