"""Kernels compiled to machine code with NVRTC, which needs CuPy but no GPU.

Run as a program, this file is a child process that compiles: JSON rows in, JSON rows out. One process would compile one
kernel at a time, because NVRTC holds a lock.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from elftools.elf.elffile import ELFFile
from quick import TYPICAL
from search_spaces import tried
from tilewright.codegen.config import Config
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from variants import FEW, coarse, combinations, dtypes, instance_of, instances, most_spilled_bytes

TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")

Row = tuple[str, str]
"""An instance, as `variants.instance_text` writes it, and a target."""

_EXECUTED = (".text.", ".nv.constant2.")
"""Prefixes of sections of instructions, and of tables made for them by the compiler; kernels use no other constants."""


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The facts of a compiled kernel."""

    code: str
    """First 16 digits of the SHA-256 of all instructions in the binary, without the names of its kernels."""
    registers: int
    """Registers of a thread."""
    smem_bytes: int
    """Static shared memory of a CTA, in bytes."""
    local_bytes: int
    """Local memory of a thread, in bytes: spilled registers."""
    compiler: str = field(compare=False)
    """Version of NVRTC, such as `13.5.37`; empty where the binary does not hold it."""


def compiled(sources: Sequence[tuple[KernelSource, str]]) -> list[MachineCode]:
    """Machine code of kernels for their targets, compiled by a process for each processor.

    Raises RuntimeError with the last line of a process that fails.
    """
    rows = [(source.name, source.code, target) for source, target in sources]
    workers = min(8, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_child, (rows[i::workers] for i in range(workers))))
    return [parts[i % workers][i // workers] for i in range(len(rows))]


def _child(rows: Sequence[tuple[str, str, str]]) -> list[MachineCode]:
    if not rows:
        return []
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return [MachineCode(*facts) for facts in json.loads(done.stdout)]


def _compile(name: str, code: str, target: str) -> MachineCode:
    from tilewright.runtime.device.cuda import NvrtcCompiler

    with tempfile.TemporaryDirectory() as folder:
        binary = NvrtcCompiler(target).build(KernelSource(name, code), folder)
    elf = ELFFile(BytesIO(binary.image))
    sections = {each.name.replace(name, "kernel"): each.data() for each in elf.iter_sections()}
    digest = hashlib.sha256()
    for section in sorted(section for section in sections if section.startswith(_EXECUTED)):
        digest.update(f"{section} {len(sections[section])}\n".encode() + sections[section])
    version = re.search(rb"release [\d.]+, V([\d.]+)", sections.get(".note.nv.tkinfo", b""))
    compiler = version[1].decode() if version else ""
    return MachineCode(digest.hexdigest()[:16], binary.registers, binary.smem_bytes, binary.frame_bytes, compiler)


def assert_as_predicted(rows: Sequence[Row]) -> None:
    """Fail where an instance takes more registers or local memory than its config predicts, or other shared memory."""
    sources = []
    for text, target in rows:
        problem, fit = instance_of(text)
        sources.append((render(problem, fit.config, TYPICAL[target], fit), target))
    assert_facts_as_predicted(rows, compiled(sources))


def assert_facts_as_predicted(rows: Sequence[Row], facts: Sequence[MachineCode]) -> None:
    """Fail as `assert_as_predicted` does, for instances that are compiled already."""
    wrong = []
    for (text, target), machine in zip(rows, facts, strict=True):
        problem, fit = instance_of(text)
        config = fit.config
        version = tuple(map(int, machine.compiler.split(".")[:2]))  # 13.5 spills more than 13.0
        more = more_registers(config, target)
        predicted = (config.registers(fit, problem.dtype) + more, config.launch_config(problem, 132).static_smem_bytes)
        most_bytes = most_spilled_bytes(fit, target, problem.dtype, version)
        taken = machine.registers, machine.smem_bytes, machine.local_bytes
        if taken[0] > predicted[0] or taken[1] != predicted[1] or taken[2] > most_bytes:
            wrong.append((text, target, taken, (*predicted, most_bytes)))
    assert not wrong, "\n".join(map(str, wrong))


def more_registers(config: Any, target: str) -> int:
    """Registers of a thread that the compiler takes beyond the predicted ones. On targets without measurements it keeps
    in registers the values that CTAs which share a tile need at its end, and the third terms of a float."""
    if target not in ("sm_100", "sm_120"):
        return 0
    if config.family == "dmma":
        return 12 if config.split_ctas > 1 or config.stream_ctas_per_sm else 0
    if config.family == "mma":
        return 14 if config.terms > 2 else 0
    return 2 if (config.family, target) == ("tf32x3", "sm_120") else 0


def _listed(family: type[Config]) -> list[Config]:
    """A sample of the configs that a search tries, in double if the family computes in it: these fit float too."""
    dtype = dtypes(family)[-1].value
    problem = coarse(Problem.parse("16x1024x1024" if family.family == "skinny" else "1024", dtype))
    configs = tried(problem, targets_of(family)[-1], family.family)
    return random.Random(1).sample(configs, min(300, len(configs)))


def targets_of(family: type[Config]) -> list[str]:
    """The targets that have the family's instructions."""
    if family().accuracy is not Grade.IEEE:
        return [target for target in TARGETS if serves(family(), coarse(Problem.parse("1024")), TYPICAL[target])]
    return [target for target in TARGETS if target != "sm_80" or not family.tensor_cores]


def variants(family: type[Config]) -> Iterator[str]:
    """Texts of instances in each dtype and transposition, of every config that all targets of the family can run."""
    small = math.prod(len(leaf.choices) for leaf in family.leaves()) <= FEW
    targets = targets_of(family)
    for config in combinations(family) if small else _listed(family):
        for dtype, trans in itertools.product(DType, ("nn", "nt", "tn", "tt")):
            problem = coarse(Problem.parse("1024", dtype, trans))
            if all(serves(config, problem, TYPICAL[target]) for target in targets):
                yield from instances(config, dtype.value, trans)


if __name__ == "__main__":
    json.dump([dataclasses.astuple(_compile(*row)) for row in json.load(sys.stdin)], sys.stdout)
