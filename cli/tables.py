"""Results as tables, JSON and CSV."""

import csv
import io
import json
import math
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..codegen.config import Config
from ..codegen.families import family_of
from ..codegen.problem import DType, Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.codec import encode
from ..runtime.store.record import Record
from ..tuner.measure.decide import NAIVE, Contender
from ..tuner.recording.replay import Replayed
from ..tuner.result import Result
from ..tuner.search.candidates import ABSENT

__all__ = [
    "bound_gflops",
    "device_table",
    "record_table",
    "records_csv",
    "records_json",
    "result_json",
    "show_replay",
    "show_result",
]


def bound_gflops(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """The roofline of a config: memory bandwidth times the operations that its tile makes of each byte it loads,
    or the arithmetic peak, whichever is lower; in 10^9 operations a second.

    Caches are left out of the estimate, so a small tile can pass its bound on a device whose cache serves the
    re-reading.
    """
    traffic = family_of(config).traffic_bytes(problem, config)
    return min(info.peak_gflops(problem.dtype), info.bandwidth_gbs * problem.flops / traffic)


def show_result(console: Console, result: Result, store: Path | None) -> None:
    """Print the table of contenders, what the run did, and the two commands that use the result."""
    problem, info = result.problem, result.device
    table = Table(title=Text(f"{problem} on {info.name}", style="table.title"), title_justify="left")
    for heading in ("us", "spread", "GFLOP/s", "of bound", "err/bound", "x naive", "x vendor"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("variant", overflow="fold", min_width=20)
    naive = next((c for c in result.contenders if c.name == str(NAIVE)), None)
    for place, contender in enumerate(result.contenders):
        table.add_row(*_row(problem, info, contender, naive), style="bold" if place == 0 else None)
    console.print(table)
    for line in summary(result):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    where = f" --store {shlex.quote(str(store))}" if store else ""
    options = f"--shape {problem.shape} --dtype {problem.dtype.value}"
    options += f" --trans {problem.trans}" if problem.trans != "nn" else ""
    device = f" --device {info.selector}{where}"
    flags = f", trans_a={problem.trans_a}, trans_b={problem.trans_b}" if problem.trans != "nn" else ""
    flags += f', device="{info.selector}"' + (f", store={json.dumps(str(store))}" if store else "")
    arguments = f'{problem.m}, {problem.n}, {problem.k}, dtype="{problem.dtype.value}"{flags}'
    code = f"import tilewright; print(tilewright.load({arguments}))"
    console.print("use it:", highlight=False)
    for command in (
        f"  tilewright emit {options}{device} -o out",
        f"  python -c {shlex.quote(code)}",
    ):
        console.print(command, highlight=False, soft_wrap=True, markup=False)


def _row(problem: Problem, info: DeviceInfo, contender: Contender, naive: Contender | None) -> list[str]:
    median_us = contender.measurement.median_us
    gflops = problem.flops / median_us / 1e3
    bound = info.peak_gflops(problem.dtype)
    name = "NumPy's BLAS" if info.arch.is_host else "cuBLAS"
    if not contender.is_vendor:
        name = contender.name
        bound = bound_gflops(problem, Config.parse(contender.name), info)
    low, high = contender.interval
    return [
        f"{median_us:,.2f}" if median_us < 1e4 else f"{median_us:,.0f}",
        f"{contender.measurement.spread_us / median_us:.1%}",
        f"{gflops:,.1f}",
        f"{gflops / bound:.1%}",
        f"{contender.accuracy.worst:.2g}",
        f"{naive.measurement.median_us / median_us:.2f}" if naive else "",
        "1" if contender.is_vendor else f"{contender.ratio_vendor:.3g} ({low:.3g}..{high:.3g})",
        name,
    ]


def summary(result: Result) -> list[str]:
    """What the run did, in a few lines."""
    new = result.trials - result.resumed
    counts = ", ".join(f"{count} {status}" for status, count in result.statuses) or "none"
    phases = result.phases
    busy = "" if result.busy_share is None else f", measuring {result.busy_share:.0%} of the time after 10 s"
    idle = "" if result.idle_s is None else f", idle {result.idle_s:.1f}"
    lines = [
        f"tried {new} variants in {result.seconds:.1f} s ({new / result.seconds:.1f} a second, "
        f"{result.compilers} compile processes{busy}): {counts}; ended by {result.stopped}",
        f"seconds: compile {phases.compile_s:.1f}, verify {phases.verify_s:.1f}, time {phases.time_s:.1f}, "
        f"sampler {result.sampler_s:.1f}{idle}",
    ]
    if math.isfinite(result.guessed_us):
        lines.append(f"the best of the first 16 guesses took {result.guessed_us:,.2f} us")
    end_to_end = result.best.measurement.end_to_end_us if result.best.measurement else None
    if end_to_end is not None and not result.device.arch.is_host:
        lines.append(f"with the operands copied to the device and the result back: {end_to_end:,.1f} us")
    return lines


def show_replay(console: Console, found: Replayed) -> None:
    """Print what a search of a recording found."""
    recording = found.recording
    size = "x".join(map(str, recording.problem_size))
    table = Table(title=f"{recording.kernel_name} {size}, recorded on {recording.device_name}", title_justify="left")
    for heading in ("trial", "us", "of the optimum"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("variant", overflow="fold", min_width=20)
    optimum_us = recording.best()[1]
    space = recording.space()
    varied = {dimension.name for dimension in space.dimensions if len(dimension.choices) > 1}
    best_us = math.inf
    for trial, (point, time_us) in enumerate(found.trials, start=1):
        if time_us is not None and time_us < best_us:
            best_us = time_us
            named = ",".join(
                f"{name}={value}" for name, value in space.values(point) if name in varied and value != ABSENT
            )
            table.add_row(str(trial), f"{time_us:,.2f}", f"{optimum_us / time_us:.1%}", named)
    console.print(table)
    text = (
        f"tried {len(found.trials)} of {len(space)} recorded variants, which took {found.charged_s:,.0f} s to record; "
        f"the best is {found.share:.1%} of the optimum; ended by {found.stopped}"
    )
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def result_json(result: Result) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "problem": encode(result.problem),
        "device": result.device.name,
        "best": encode(result.best),
        "contenders": [encode(contender) for contender in result.contenders],
        "trials": result.trials,
        "resumed": result.resumed,
        "statuses": dict(result.statuses),
        "pruned": dict(result.pruned),
        "seconds": result.seconds,
        "compile_s": result.phases.compile_s,
        "verify_s": result.phases.verify_s,
        "time_s": result.phases.time_s,
        "sampler_s": result.sampler_s,
        "busy_share": result.busy_share,
        "idle_s": result.idle_s,
        "compile_processes": result.compilers,
        "variants_per_second": (result.trials - result.resumed) / result.seconds,
        "best_of_first_16_us": result.guessed_us if math.isfinite(result.guessed_us) else None,
        "stopped": result.stopped,
    }


_FIELDS = ("device", "shape", "dtype", "trans", "us", "gflops", "error_over_bound", "ratio_vendor", "config")


def _fields(record: Record) -> tuple[object, ...]:
    problem = record.problem
    error = record.accuracy.worst if record.accuracy else None
    return (
        record.device, problem.shape, problem.dtype.value, problem.trans,
        record.median_us, record.gflops, error, record.ratio_vendor, str(record.config),
    )  # fmt: skip


def record_table(records: tuple[Record, ...]) -> Table:
    """Stored records as a table."""
    table = Table()
    for heading, justify in zip(
        ("device", "M x N x K", "dtype", "trans", "us", "GFLOP/s", "err/bound", "x vendor", "variant"), "llllrrrrl"
    ):
        table.add_column(heading, justify="right" if justify == "r" else "left", overflow="fold")
    for record in records:
        device, shape, dtype, trans, us, gflops, error, ratio, config = _fields(record)
        numbers = (f"{us:,.2f}", f"{gflops:,.1f}", f"{error:.2g}", "" if ratio is None else f"{ratio:.3g}")
        table.add_row(str(device), str(shape), str(dtype), str(trans), *numbers, str(config))
    return table


def records_json(records: tuple[Record, ...]) -> str:
    """Stored records as a JSON list, every field included."""
    return json.dumps([encode(record) for record in records], indent=1)


def records_csv(records: tuple[Record, ...]) -> str:
    """Stored records as comma-separated values with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    writer.writerows(_fields(record) for record in records)
    return out.getvalue()


def device_table(infos: tuple[DeviceInfo, ...]) -> Table:
    """Devices and their limits."""
    table = Table()
    for heading in (
        "device", "name", "arch", "SMs", "MHz", "memory GB", "GB/s", "L2 MB", "shared KB a block", "float GFLOP/s",
        "double GFLOP/s",
    ):  # fmt: skip
        table.add_column(heading, overflow="fold")
    for info in infos:
        peaks = [f"{info.peak_gflops(dtype):,.0f}" for dtype in DType]
        table.add_row(
            info.selector, info.name, info.arch.name, str(info.sm_count), f"{info.clock_mhz:.0f}",
            f"{info.memory_bytes / 1e9:.1f}", f"{info.bandwidth_gbs:,.0f}", f"{info.l2_bytes / 2**20:.0f}",
            f"{info.arch.smem_per_block_bytes / 1024:.0f}", *peaks,
        )  # fmt: skip
    return table
