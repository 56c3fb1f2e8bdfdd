"""Hardware counters of a variant by Nsight Compute, on a machine with `ncu` and the GPU."""

import csv
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ...codegen.config import Config
from ...codegen.errors import DeviceError, check
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...runtime.check.timing import Timer
from ...runtime.device.detect import available, choose, open_device
from ...runtime.device.protocol import DeviceInfo
from ...runtime.product.kernel import prepare
from ..bench.report import figure

Counters = dict[str, list[tuple[str, str, str]]]
"""Name, value and unit of each counter, by section of Nsight Compute."""
_SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats", "MemoryWorkloadAnalysis", "WarpStateStats", "SchedulerStats")
_SECONDS = 300
"""Most seconds of a run of Nsight Compute."""
_SCALED = {
    "byte": "B", "byte/s": "B/s", "byte/second": "B/s", "byte/block": "B per CTA", "hz": "Hz", "cycle/s": "Hz",
    "cycle/second": "Hz",
}  # fmt: skip
"""Units of Nsight Compute whose values are large, and the unit that is shown after K, M, G or T."""
_MICROSECONDS = {"s": 1e6, "second": 1e6, "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0}
"""Microseconds of a unit of Nsight Compute."""


def counters(problem: Problem, config: Config, gpu: DeviceInfo | None) -> Counters:
    """The counters of one launch. Raises DeviceError, in one line, where they cannot be read."""
    here = next((info for info in available()[0] if gpu and info.key == gpu.key and not info.arch.is_host), None)
    ncu = shutil.which("ncu")
    check(
        ncu is not None, "--ncu needs Nsight Compute, and PATH has no ncu; install it, or leave out --ncu", DeviceError
    )
    if here is None:
        needed = f"the {gpu.name} of the tuning" if gpu else "a tuning on a GPU"
        raise DeviceError(f"--ncu needs {needed}, on this machine; leave it out")
    sections = [word for section in _SECTIONS for word in ("--section", section)]
    name = ["--kernel-name", "regex:^gemm_", "--launch-skip", "1", "--launch-count", "1"]
    program = [sys.executable, "-m", __name__, here.selector, str(config)]
    program += [problem.shape, problem.dtype.value, problem.trans, problem.accuracy]
    command = [str(ncu), "--csv", "--page", "details", *sections, *name, *program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"--ncu: Nsight Compute did not end in {_SECONDS} s; leave it out, or try again") from error
    by_section = _read(done.stdout.splitlines())
    if not by_section:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reasons = [line for line in lines if "==ERROR==" in line] or lines[-1:] or ["it wrote nothing"]
        raise DeviceError(f"--ncu: Nsight Compute gave no counters: {reasons[0].strip()}")
    return by_section


def _read(lines: Sequence[str]) -> Counters:
    """The rows of the CSV, after lines of Nsight Compute itself (`==PROF==`) and of the program."""
    begin = next((place for place, line in enumerate(lines) if '"Metric Name"' in line), len(lines))
    by_section: Counters = {}
    for row in csv.DictReader(lines[begin:]):
        name, value = row.get("Metric Name"), row.get("Metric Value")
        section = by_section.setdefault(row.get("Section Name") or "Other counters", [])
        if name and value and name not in [each for each, _, _ in section]:
            section.append((name, *readable(value, row.get("Metric Unit") or "")))
    return {section: rows for section, rows in by_section.items() if rows}


def readable(value: str, unit: str) -> tuple[str, str]:
    """A value and its unit as a person reads them: bytes and hertz by powers of a thousand, times in microseconds."""
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return value, unit
    if unit in _MICROSECONDS:
        return figure(number * _MICROSECONDS[unit]), "us"
    if unit in _SCALED and number >= 1:
        power = min(4, int(math.log10(number) / 3))
        return figure(number / 1000**power), f"{'KMGT'[power - 1] if power else ''}{_SCALED[unit]}"
    return value, unit


def _launch(selector: str, config: str, *product: str) -> None:
    """Launch a variant again and again for some moments, in the process that Nsight Compute watches."""
    device, problem = open_device(choose(selector)), Problem.parse(*product)
    with device.entered():
        kernel = prepare(device, problem, parse(config))
        Timer(device, problem).warm(kernel.launch)


if __name__ == "__main__":
    _launch(*sys.argv[1:])
