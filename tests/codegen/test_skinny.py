"""The skinny family: what its rules refuse, what its space holds, and what the compiler makes of it."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.tuner.search.candidates import read_spaces
from tilewright.tuner.search.legal import combine
from variants import most_spilled_bytes

SKINNY = FAMILIES["skinny"]
SM_90 = ARCHES["sm_90a"]
TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")
SAMPLE = 24
"""Variants that are compiled for each target."""


def space(problem: Problem, arch: str = "sm_90a") -> tuple[list[Config], Counter[str]]:
    """What the shipped space holds for a problem."""
    (choices,) = (choices for choices in read_spaces() if choices.family == "skinny")
    return combine(problem, ARCHES[arch], SKINNY, dict(choices.parameters))


def reasons(
    text: str, problem: str = "1024", dtype: str = "float", trans: str = "nn", arch: str = "sm_90a"
) -> list[str]:
    config = complete(Config.parse(f"skinny:{text}"))
    return list(rejections(Problem.parse(problem, dtype, trans), config, ARCHES[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "dtype", "trans", "reason"),
    [
        ("vec=4", "64x62x64", "float", "nn", "vec 4 is at most 16 bytes and divides the stored rows of the large"),
        ("vec=4,short_n=1", "64x64x62", "float", "nn", "vec 4 is at most 16 bytes and divides the stored rows of the"),
        ("vec=4", "1024", "double", "nn", "vec 4 is at most 16 bytes and divides the stored rows of the large"),
        ("vec=4,span=2", "1024", "float", "nn", "vec 4 divides span 2, or depth 4 where stored rows of the large"),
        ("vec=4,depth=2", "1024", "float", "nt", "vec 4 divides span 4, or depth 2 where stored rows of the large"),
        ("staged=128,depth=8,lanes_k=32", "1024", "float", "nn", "staged 128 is a multiple of the steps of k"),
        ("span=16,depth=16", "1024", "float", "nn", "a thread loads at most 64 elements at a time"),
        ("stages=2", "1024", "float", "nn", "cp.async has an even number of stages, registers have one: not 2"),
        ("cp_async=1", "1024", "float", "nn", "cp.async has an even number of stages, registers have one: not 1"),
        ("count=32,span=8", "1024", "float", "nn", "registers of 1 blocks fit on a multiprocessor"),
        ("min_blocks=8,staged=4096", "1024", "float", "nn", "threads and shared memory of 8 blocks fit"),
        ("edge=exact", "6x1024x1024", "float", "nn", "exact edges need m, n and k to be multiples of 4, 128, 16"),
        ("edge=exact,short_n=1", "1024x6x1024", "float", "nn", "exact edges need m, n and k to be multiples of 128, 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, problem: str, dtype: str, trans: str, reason: str) -> None:
    given = reasons(text, problem, dtype, trans)
    assert any(reason in each for each in given), given


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("cp_async=1,stages=2", arch="sm_75") == ["the device has cp.async"]


def test_padded_operands_are_aligned_whatever_the_problem() -> None:
    assert reasons("vec=4,edge=pad", "3x61x59") == []


SHAPES = (
    ("1x4096x4096", "nn"),
    ("4096x1x4096", "nn"),
    ("1x4096x4096", "nt"),
    ("16x4096x4096", "nn"),
    ("16x4096x4096", "tt"),
    ("4096x16x4096", "nn"),
    ("4096x16x4096", "tn"),
    ("32x8192x1024", "nn"),
    ("8x1000x1000", "nn"),
)


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(("shape", "trans"), SHAPES)
def test_the_space_is_large_enough_to_search_and_small_enough_to_list(shape: str, trans: str, dtype: str) -> None:
    problem = Problem.parse(shape, dtype, trans)
    configs, pruned = space(problem)
    assert 50 <= len(configs) <= 2500
    assert len(set(configs)) == len(configs)
    assert sum(pruned.values()) + len(configs) > 10**6
    generator = random.Random(1)
    for config in generator.sample(configs, 50):
        assert complete(config) == config
        assert list(rejections(problem, config, SM_90)) == []
        assert config["short_n"] == (problem.n < problem.m)


@pytest.mark.parametrize("shape", ["1x1x100000", "4096x8x3", "3x50x70", "4097x5x4099", "17x10001x999", "2x2x5000"])
def test_odd_shapes_have_something_to_try(shape: str) -> None:
    assert len(space(Problem.parse(shape))[0]) >= 10


@pytest.mark.parametrize("shape", ["33x1024x1024", "1024", "35x700x2048"])
def test_nothing_is_tried_where_no_side_is_short(shape: str) -> None:
    assert space(Problem.parse(shape))[0] == []


def test_every_config_has_a_scalar_twin_that_serves_any_alignment() -> None:
    for dtype, trans, shape in (("float", "nn", "16x4096x4096"), ("double", "nt", "1x4096x4096")):
        configs, _ = space(Problem.parse(shape, dtype, trans))
        odd = Problem.parse("5x1019x1013", dtype, trans)
        for config in random.Random(2).sample(configs, 60):
            twin = SKINNY.scalar(Config("skinny", tuple((n, "bounds" if n == "edge" else v) for n, v in config.values)))
            assert SKINNY.alignment(twin) == (1, 1, 1)
            assert list(rejections(odd, twin, SM_90)) == []
            assert SKINNY.launch(odd, twin) == SKINNY.launch(odd, config)


def test_source_tells_alignment_workspace_and_large_shared_memory() -> None:
    config = Config.parse(
        "skinny:short_n=1,count=16,span=4,depth=4,vec=4,lanes_k=8,warps_k=8,cp_async=1,stages=4,staged=512,split_k=8"
    )
    source = render(Problem.parse("256x16x4096"), config, SM_90)
    assert source.alignment == (4, 1, 1)
    assert source.launch.grid == (256 // 16 * 8, 1, 1)
    assert source.workspace_bytes == 128 * 16 * 16 * 4 + 16 * 4
    assert source.launch.static_smem_bytes == 0
    assert source.launch.dynamic_smem_bytes == (4 * 16 * 256 + 512 * 20) * 4
    assert "T* __restrict__ workspace" in source.code
    assert "extern __shared__" in source.code


# ---- What the compiler makes of it -----------------------------------------------------------------------------


def sample() -> list[tuple[str, str, str, str]]:
    """Config, dtype, transposes and target: the same variants for every target."""
    generator = random.Random(3)
    rows = []
    for shape, dtype, trans, count in (
        ("1x4096x4096", "float", "nn", 5), ("1x4096x4096", "double", "nn", 4), ("16x4096x4096", "float", "nn", 5),
        ("4096x16x4096", "float", "nn", 4), ("4096x1x4096", "float", "nn", 3), ("32x8192x1024", "double", "nn", 3),
    ):  # fmt: skip
        problem = Problem.parse(shape, dtype, trans)
        common = set.intersection(*(set(space(problem, target)[0]) for target in TARGETS))
        rows += [(str(c), dtype, trans) for c in generator.sample(sorted(common, key=str), count)]
    assert len(rows) == SAMPLE
    return [(*row, target) for row in rows for target in TARGETS]


def test_next_to_nothing_spills_and_resources_are_as_predicted() -> None:
    pytest.importorskip("cupy")
    rows = sample()
    workers = min(4, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_compiled, (rows[i::workers] for i in range(workers))))
    for part, start in zip(parts, range(workers)):
        for (text, dtype, trans, target), said in zip(rows[start::workers], part, strict=True):
            registers, smem_bytes, spilled = said
            config, problem = Config.parse(text), Problem.parse("1024", dtype, trans)
            assert spilled <= most_spilled_bytes(config, target, dtype), (text, target)
            assert registers <= SKINNY.registers(DType.parse(dtype), config), (text, target)
            assert smem_bytes == SKINNY.launch(problem, config).static_smem_bytes, (text, target)


def _compiled(rows: list[tuple[str, str, str, str]]) -> list[list[int]]:
    script = Path(__file__).with_name("compile_variants.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled: list[list[int]] = json.loads(done.stdout)
    return compiled
