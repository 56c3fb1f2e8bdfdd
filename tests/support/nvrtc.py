"""Variants compiled to machine code with NVRTC: no GPU is needed for that, only CuPy.

Run as a program, this file is the child process that compiles, as NVRTC holds a lock: JSON rows in, JSON rows out.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import coarse, most_spilled_bytes

TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")

Row = tuple[str, str, str, str]
"""Config, dtype, transposes and target."""


def assert_as_predicted(rows: Sequence[Row]) -> None:
    """Fail where a variant takes more registers or local memory, or other shared memory, than its config predicts."""
    version: tuple[int, ...] = pytest.importorskip("cupy").cuda.nvrtc.getVersion()  # 13.5 spills more than 13.0
    workers = min(8, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_compiled, (rows[i::workers] for i in range(workers))))
    wrong = []
    for start, part in enumerate(parts):
        for (text, dtype, trans, target), (registers, smem_bytes, local_bytes) in zip(rows[start::workers], part):
            config, problem = parse(text), coarse(Problem.parse("1024", dtype, trans))
            more = 2 if (config.family, target) == ("tf32x3", "sm_120") else 0
            predicted = (config.registers(problem.dtype) + more, config.launch_config(problem, 132).static_smem_bytes)
            most_bytes = most_spilled_bytes(config, target, dtype, version)
            if registers > predicted[0] or smem_bytes != predicted[1] or local_bytes > most_bytes:
                wrong.append((text, target, (registers, smem_bytes, local_bytes), (*predicted, most_bytes)))
    assert not wrong, "\n".join(map(str, wrong))


def _compiled(rows: Sequence[Row]) -> list[list[int]]:
    pytest.importorskip("cupy")
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled: list[list[int]] = json.loads(done.stdout)
    assert len(compiled) == len(rows)
    return compiled


def _compile(text: str, dtype: str, trans: str, target: str) -> tuple[int | None, ...]:
    """Registers of a thread, static shared bytes of a CTA and bytes of local memory, as the binary says."""
    from tilewright.runtime.device.cuda import NvrtcCompiler

    source = render(coarse(Problem.parse("1024", dtype, trans)), parse(text), ARCHES[target])
    with tempfile.TemporaryDirectory() as folder:
        binary = NvrtcCompiler(target).build(source, folder)
    return binary.registers, binary.smem_bytes, binary.frame_bytes


if __name__ == "__main__":
    json.dump([_compile(*row) for row in json.load(sys.stdin)], sys.stdout)
