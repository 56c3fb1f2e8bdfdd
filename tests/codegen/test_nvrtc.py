"""A sample of all variants, compiled to machine code for four generations: no GPU is needed for that."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, Family, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.tuner.search.legal import may_hold
from variants import FEW, combinations, most_spilled_bytes, worth_trying

TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")
VARIANTS = 50
"""Variants that are compiled for each target."""

Row = tuple[str, str, str, str]
"""Config, dtype, transposes and target."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler said of a variant."""

    row: Row
    registers: int
    smem_bytes: int
    spilled_bytes: int

    @property
    def family(self) -> Family:
        return FAMILIES[Config.parse(self.row[0]).family]

    @property
    def predicted(self) -> tuple[int, int]:
        """Registers and static shared bytes that the family expects."""
        config, dtype = Config.parse(self.row[0]), DType.parse(self.row[1])
        launch = self.family.launch(Problem.parse("1024", dtype), config)
        return self.family.registers(dtype, config), launch.static_smem_bytes

    @property
    def predicted_spill_bytes(self) -> int:
        """Bytes of local memory that the variant may take."""
        return most_spilled_bytes(Config.parse(self.row[0]), self.row[3], self.row[1])


def variants(family: Family) -> Iterator[tuple[str, str, str]]:
    """Every config that all targets can hold that have the instructions, with each dtype and transposition."""
    small = math.prod(len(parameter.choices) for parameter in family.parameters) <= FEW
    for config in combinations(family) if small else worth_trying(family, "sm_120"):
        for dtype, trans in itertools.product(DType, ("nn", "nt", "tn", "tt")):
            problem = Problem.parse("1024", dtype, trans)
            if all(serves(config, problem, target) for target in TARGETS if target != "sm_80" or family.name != "dmma"):
                yield str(config), dtype.value, trans


def serves(config: Config, problem: Problem, target: str) -> bool:
    return not list(rejections(problem, config, ARCHES[target]))


def sample() -> list[Row]:
    """The same variants each time, as many of each family and the same for every target that has the instructions."""
    generator = random.Random(1)
    chosen = []
    for i, family in enumerate(FAMILIES.values()):
        count = VARIANTS // len(FAMILIES) + (i < VARIANTS % len(FAMILIES))
        chosen += generator.sample(list(variants(family)), count)
    rows = [(*variant, target) for variant in chosen for target in TARGETS]
    return [row for row in rows if is_offered(*row)]


def is_offered(text: str, dtype: str, trans: str, target: str) -> bool:
    """Whether the target can hold the variant, and its family is for this type there."""
    config, problem = Config.parse(text), Problem.parse("1024", dtype, trans)
    family = FAMILIES[config.family]
    return serves(config, problem, target) and may_hold(problem, ARCHES[target], family, family.advice, {})


def compile_rows(rows: list[Row]) -> list[Compiled]:
    """The rows compiled in a process of its own."""
    script = Path(__file__).with_name("compile_variants.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Compiled(row, *said) for row, said in zip(rows, json.loads(done.stdout), strict=True)]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    pytest.importorskip("cupy")
    workers = min(8, len(os.sched_getaffinity(0)))
    rows = sample()
    with ThreadPoolExecutor(workers) as pool:
        return [each for part in pool.map(compile_rows, (rows[i::workers] for i in range(workers))) for each in part]


# One test, so that tests spread over processes do not compile the sample more than once.
def test_compiled_variants_are_what_was_predicted(compiled: list[Compiled]) -> None:
    assert len(compiled) > VARIANTS * (len(TARGETS) - 1)
    assert {each.family.name for each in compiled} == set(FAMILIES)
    assert [each for each in compiled if each.smem_bytes != each.predicted[1]] == []
    assert [each for each in compiled if each.registers > each.predicted[0]] == []
    assert [each for each in compiled if each.spilled_bytes > each.predicted_spill_bytes] == []
