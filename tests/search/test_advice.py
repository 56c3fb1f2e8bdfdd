"""Single rules of the policies: where packing, L2 prefetch and rasterisation are worth trying."""

from typing import Any

import pytest
from targets import TYPICAL
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.families.simt import FITTED_M, FITTED_N
from tilewright.codegen.problem import Problem
from tilewright.tuner.search.legal import may_hold
from tilewright.tuner.search.policies import policy_of
from tilewright.tuner.search.policies.blocked import L2_PREFETCH_PAYS, RASTER_PAYS

pytestmark = pytest.mark.fast


def tried(problem: Problem, family: str, **values: Any) -> bool:
    """Whether advice has nothing against some values, whatever the others are."""
    return may_hold(problem, TYPICAL["sm_90a"], family_named(family), policy_of(family).advice, values)


@pytest.mark.parametrize(
    ("shape", "dtype", "trans", "packs"),
    [
        ("2047", "float", "nn", {(0, 0), (1, 1)}),  # rows that are not aligned, used often
        ("4096", "float", "nn", {(0, 0), (1, 0)}),  # A has to be transposed
        ("4096", "float", "tn", {(0, 0)}),
        ("1023x769x511", "float", "nn", {(0, 0)}),
        ("1024x768x512", "float", "nn", {(0, 0)}),
    ],
)
def test_operands_are_packed_that_are_not_aligned_or_must_be_transposed_and_are_used_often(
    shape: str, dtype: str, trans: str, packs: set[tuple[int, int]]
) -> None:
    problem, ways = Problem.parse(shape, dtype, trans), ((a, b) for a in (0, 1) for b in (0, 1))
    assert {(a, b) for a, b in ways if tried(problem, "simt", pack_a=bool(a), pack_b=bool(b))} == packs


@pytest.mark.parametrize(
    ("shape", "arch", "some"), [("512", "sm_90a", True), ("2048", "sm_90a", False), ("512", "sm_80", False)]
)
def test_short_products_whose_ctas_all_run_at_once_prefetch_to_l2(shape: str, arch: str, some: bool) -> None:
    config = parse("simt:64x64x16,l2_prefetch")
    assert all(rule.holds(Problem.parse(shape), config, TYPICAL[arch]) for rule in L2_PREFETCH_PAYS) == some


@pytest.mark.parametrize(
    ("config", "shape", "arch", "some"),
    [
        ("skinny:2x4x4", "20000x2x100", "sm_90a", True),  # however many CTAs there are
        ("skinny:2x4x4", "1000x2x512", "sm_90a", True),
        ("skinny:2x4x4", "1000x2x513", "sm_90a", False),
        ("skinny:2x4x4", "1000x2x100", "sm_80", False),
        ("skinny:2x4x4,load=cp_async,stages=4", "1000x2x5000", "sm_90a", True),
        ("skinny:2x4x4,load=cp_async,stages=4", "900000x2x100", "sm_90a", False),  # not all CTAs run at once
    ],
)
def test_what_is_streamed_is_prefetched_to_l2(config: str, shape: str, arch: str, some: bool) -> None:
    prefetched = parse(f"{config.replace(':', ':short=n,')},l2_prefetch")
    rules = [rule for rule in policy_of("skinny").advice if "L2 prefetch" in rule.title]
    assert all(rule.holds(Problem.parse(shape), prefetched, TYPICAL[arch]) for rule in rules) == some
    assert all(rule.holds(Problem.parse(shape), prefetched.changed(l2_prefetch=False), TYPICAL[arch]) for rule in rules)


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [
        ("1024x1024x64", "double", {1}),  # 256 tiles, and caches hold all of A and B
        ("190x2000x64", "double", {1, 4}),  # 96 tiles in 3 rows
        ("190x2000x64", "float", {1}),
        ("200x2000x64", "double", {1}),  # in 4 rows
        ("128x12288x4096", "double", {1, 4}),  # 384 tiles: two that share 2 MB of B would else run far apart
        ("8192x64x4096", "double", {1}),  # one column of tiles
        ("256x32768x4096", "float", {4}),  # 2048 tiles in 4 rows
        ("8192x8192x64", "float", {4, 8, 16}),
    ],
)
def test_tiles_are_rasterised_in_groups_where_it_can_make_a_difference(
    shape: str, dtype: str, groups: set[int]
) -> None:
    problem, target = Problem.parse(shape, dtype), TYPICAL["sm_90a"]
    configs = {group: parse(f"dmma:64x64x16,raster={group}") for group in (1, 4, 8, 16)}
    assert {group for group, config in configs.items() if RASTER_PAYS.holds(problem, config, target)} == groups


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ("20000x20x500", set(), {20}),
        ("20000x22x500", set(), {24}),
        ("20000x33x500", set(), set()),  # 40 fits as well as two of 20
        ("20000x50x500", set(), {28, 56}),
        ("20x9000x500", {20}, set()),
        ("27x26x90000", {28}, {28}),
        ("64x1000x500", set(), set()),
    ],
)
def test_block_tiles_that_fit_are_tried_for_a_narrow_c(shape: str, rows: set[int], columns: set[int]) -> None:
    problem = Problem.parse(shape)
    assert {m for m in FITTED_M if tried(problem, "simt", block_m=m)} == rows
    assert {n for n in FITTED_N if tried(problem, "simt", block_n=n)} == columns


def test_thread_tiles_of_6_and_7_are_for_block_tiles_that_fit() -> None:
    problem = Problem.parse("20000x24x500")
    assert tried(problem, "simt", thread_n=6, block_n=24)
    assert not tried(problem, "simt", thread_n=6, block_n=48)
    assert not tried(problem, "simt", block_m=64, thread_m=8, thread_n=4, block_n=24)
