"""The skinny family: what its rules refuse, and what the compiler makes of it."""

import random

import pytest
from nvrtc import TARGETS, Row, assert_as_predicted
from search_spaces import tried
from targets import TYPICAL
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import one_each, variant

SM_90 = TYPICAL["sm_90a"]


def reasons(
    text: str, problem: str = "1024", dtype: str = "float", trans: str = "nn", arch: str = "sm_90a"
) -> list[str]:
    return list(rejections(Problem.parse(problem, dtype, trans), variant(f"skinny:{text}"), TYPICAL[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "dtype", "trans", "reason"),
    [
        ("resident_k=128,thread_k=8,lanes_k=32", "1024", "float", "nn", "resident_k 128 is a multiple of the steps"),
        ("thread_long=16,thread_k=16", "1024", "float", "nn", "a thread loads at most 64 elements at a time"),
        ("stages=2", "1024", "float", "nn", "cp.async has an even number of stages, registers have one: not 2"),
        ("load=cp_async", "1024", "float", "nn", "cp.async has an even number of stages, registers have one: not 1"),
        ("block_short=32,thread_long=8", "1024", "float", "nn", "registers of 1 CTAs fit on an SM"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, problem: str, dtype: str, trans: str, reason: str) -> None:
    given = reasons(text, problem, dtype, trans)
    assert any(reason in each for each in given), given


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("load=cp_async,stages=2", arch="sm_75") == ["the device has cp.async, which load cp_async needs"]


def test_alignment_workspace_and_large_shared_memory() -> None:
    config = variant("skinny:16x4x4,short=n,lanes_k=8,warps=1x8,load=cp_async,stages=4,resident_k=512,split_k=8")
    problem = Problem.parse("256x16x4096")
    launch, code = config.launch_config(problem, 132), render(problem, config, SM_90).code
    assert fitted(problem, config, SM_90).alignment == (4, 1, 1)
    assert launch.grid == (256 // 16 * 8, 1, 1)
    assert config.workspace_bytes(problem, 132) == 128 * 16 * 16 * 4 + 16 * 4
    assert launch.static_smem_bytes == 0
    assert launch.dynamic_smem_bytes == (4 * 16 * 256 + 512 * 20) * 4
    assert "Elem* __restrict__ workspace" in code
    assert "extern __shared__" in code


# ---- What the compiler makes of it -----------------------------------------------------------------------------


def sample() -> list[Row]:
    """The same instances for every target."""
    generator = random.Random(3)
    rows = []
    for shape, dtype, count in (
        ("1x4096x4096", "float", 5), ("1x4096x4096", "double", 4), ("16x4096x4096", "float", 5),
        ("4096x16x4096", "float", 4), ("4096x1x4096", "float", 3), ("32x8192x1024", "double", 3),
    ):  # fmt: skip
        listed = (set(tried(Problem.parse(shape, dtype), target, "skinny")) for target in TARGETS)
        common = sorted(set.intersection(*listed), key=str)
        rows += [(str(config), dtype, "nn") for config in generator.sample(common, count)]
    return [(text, target) for (text,) in one_each(rows) for target in TARGETS]


@pytest.mark.nvrtc
def test_next_to_nothing_spills_and_resources_are_as_predicted() -> None:
    assert_as_predicted(sample())
