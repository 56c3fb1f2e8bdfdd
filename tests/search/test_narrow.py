"""Searches for narrow or small results try tiles that fit them, and split counts that fill all SMs."""

from functools import cache
from typing import Any

import pytest
from search_spaces import H200, tried
from tilewright.codegen.families.dmma import FITTED_M, FITTED_N
from tilewright.codegen.leaf import Mode
from tilewright.codegen.mechanisms.split import USUAL_PARTS, filling_parts
from tilewright.codegen.problem import Problem

FILLING_H200 = filling_parts(H200.sm_count)
SIDES = (8, 16, 32, 64, 96, 128, 192, 256)


@cache
def double(shape: str, **values: tuple[int, ...]) -> list[Any]:
    return list(tried(Problem.parse(shape, "double"), family="dmma", **values))


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ("1024", set(), set()),
        ("64x4096x4096", set(), set()),
        ("9733x67x1687", set(), {40, 72, 80}),  # 67 columns: one tile, or two of 40
        ("69x29569x477", {80}, set()),
        ("20000x20x20000", set(), {24}),
        ("100x100x100000", {112}, {56, 104, 112}),
        ("129x100x100000", {80, 160}, {56, 104, 112}),
        ("200x48x75000", {112}, {24, 48}),
    ],
)
def test_tiles_between_the_usual_ones_are_for_a_side_of_c_that_they_fit(
    shape: str, rows: set[int], columns: set[int]
) -> None:
    configs = double(shape)
    assert {config.tile.block_m for config in configs} & set(FITTED_M) == rows
    assert {config.tile.block_n for config in configs} & set(FITTED_N) == columns
    for config in configs:
        assert (config.tile.warp_m in (80, 112)) <= (config.tile.block_m in FITTED_M)
        assert (config.tile.warp_n in FITTED_N) <= config.tile.fitted


def test_all_schedulers_of_an_sm_have_as_many_warps_of_them() -> None:
    fitted = [config for config in double("129x100x100000") if config.tile.fitted]
    assert {config.threads for config in fitted} == {128, 256}


@pytest.mark.parametrize("shape", ["100x100x100000", "145x142x43141"])
def test_they_crowd_out_no_others(shape: str) -> None:
    problem, usual = Problem.parse(shape, "double", "tn"), (1, *USUAL_PARTS[Mode.SPLIT_K])
    few = tried(problem, family="dmma", block_m=(48, *SIDES[1:]), block_n=SIDES, parts=usual)
    assert set(few) <= set(tried(problem, family="dmma", parts=(*usual, *FILLING_H200)))


@pytest.mark.parametrize(("dtype", "family", "powers"), [("double", "dmma", {1, 2, 4}), ("float", "simt", {1})])
def test_split_counts_that_are_not_usual_fill_all_sms(dtype: str, family: str, powers: set[int]) -> None:
    values = {"load": ("cp_async",), "stages": (3,), "fragments": ("double",)} if family == "simt" else {}
    assert {11, 13, 22, 26, 29, 33, 44, 52, 66, 88, 132} <= set(FILLING_H200)
    short = tried(Problem.parse("100x100x16383", dtype), family=family, **values)
    assert not {config.split_ctas for config in short} & set(FILLING_H200)
    problem = Problem.parse("100x100x100000", dtype)
    long = [c for c in tried(problem, family=family, **values) if c.split_ctas in FILLING_H200]
    assert long
    ctas = {config.tiles(problem) * config.split_ctas for config in long}
    assert all(127 <= count <= 132 or 254 <= count <= 264 for count in ctas)
    assert {count for config in long if (count := config.tiles(problem)).bit_count() == 1} <= powers


def test_the_smallest_tiles_are_deep_where_k_is_long() -> None:
    """16x16 elements of C, by one CTA of each SM: tiles of 32 steps of k would keep 32 KB on their way at most."""
    assert {config.tile.block_k for config in double("16x16x500000")} == {16, 32, 64}
