"""What the policies of the simt and dmma families leave to try for a shape and a device."""

import math
import random
from functools import cache
from typing import Any

import pytest
from search_spaces import FEW_TILES, H200, advised, on, settled, tried
from slow import first_of
from targets import TYPICAL
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.families import families, family_named
from tilewright.codegen.legality import fitted, serves
from tilewright.codegen.problem import Problem
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.policies import policy_of
from tilewright.tuner.search.policies.policy import Policy


@cache
def simt(shape: str, arch: str = "sm_90a", **values: tuple[Any, ...]) -> list[Any]:
    return list(tried(Problem.parse(shape), arch, **values))


def is_deep(config: Any) -> bool:
    return bool(config.tile.block_k > 32)


def bytes_ahead(config: Any) -> int:
    stage = (config.tile.block_m + config.tile.block_n) * config.tile.block_k * 4
    return int((config.pipeline.stages - 1) * stage)


def test_policies_are_found_by_the_names_of_families() -> None:
    with_advice = [family for family in families() if policy_of(family).advice]
    assert with_advice == ["simt", "skinny", "dmma", "mma", "wgmma", "tf32x3"]
    assert type(policy_of("naive")) is Policy


@pytest.mark.parametrize("family", families())
def test_what_policies_name_exists(family: str) -> None:
    policy, known = policy_of(family), {leaf.name for leaf in families()[family].leaves()}
    assert {*policy.first, *policy.for_rows, *policy.tile_sides, *policy.side_by_side, *policy.orders_tiles} <= known
    typical = {**policy.typical(TYPICAL["sm_90a"]), **policy.modelled(TYPICAL["sm_90a"])}
    assert set(typical) <= known


@pytest.mark.parametrize(
    ("shape", "dtype", "arch"),
    first_of([("1024x768x512", "float", "sm_90a"), ("1024x768x512", "double", "sm_120")]),
)
def test_the_space_is_large_enough_to_search_and_small_enough_to_list(shape: str, dtype: str, arch: str) -> None:
    problem, (choices,) = Problem.parse(shape, dtype), (each for each in read_spaces() if each.family == "simt")
    found = candidates(problem, on(arch), (choices,))
    assert 1000 <= len(found.configs) <= 20000
    left_out = dict(found.pruned)
    assert sum(left_out.values()) + len(found.configs) > 10**8
    assert all(serves(config, problem, TYPICAL[arch]) for config in random.Random(1).sample(found.configs, 200))


def test_double_is_left_to_faster_tensor_cores() -> None:
    (choices,) = settled("simt", block_m=(64,), block_n=(64,), mode=("none",), parts=(1,))
    plain = {leaf.name: leaf.plain for leaf in family_named("simt").leaves()}
    values = {name: tuple(map(plain[name], given)) for name, given in choices.on(H200).items()}
    left = [arch for arch in ARCHES if not advised(Problem.parse("1024", "double"), arch, "simt", values)[0]]
    assert left == ["sm_80", "sm_90a"]


@pytest.mark.parametrize("shape", first_of(["1", "64x64x65536", "1x4096x4096", "100", "1023x769x511", "8192"], 3))
def test_every_shape_has_something_to_try(shape: str) -> None:
    assert len(simt(shape)) >= 10


@pytest.mark.parametrize("shape", ["4096", "8192x8192x16", "100"])
def test_large_and_shallow_results_try_no_deep_tiles(shape: str) -> None:
    configs = simt(shape, parts=(1, 2, 4))
    large = Problem.parse(shape).m * Problem.parse(shape).n >= 4_000_000
    assert len(configs) >= 10
    assert not any(is_deep(c) and not c.tile.slice_barriers for c in configs)
    many = [c for c in configs if c.pipeline.stages > 4]
    assert all(large and (c.tile.thread_m, c.tile.block_k, c.tile.slices) == (16, 8, 1) for c in many)


@pytest.mark.parametrize("shape", first_of(["16x4096x4096", "256", "35x700x2048"], 2))
def test_results_of_few_small_tiles_try_deep_ones_that_keep_much_on_its_way(shape: str) -> None:
    configs = simt(shape)
    deep = [c for c in configs if is_deep(c) and not c.tile.slice_barriers and c.pipeline.load != "tma"]
    assert len(deep) > 0.02 * len(configs)
    for config in deep:
        assert 24 << 10 <= bytes_ahead(config) < 104 << 10
        assert 256 <= config.threads <= 512
        assert config.ctas(Problem.parse(shape), 132) <= 320


def test_tma_feeds_narrow_results() -> None:
    by_tma = [config for config in simt("16x4096x4096") if config.pipeline.load == "tma"]
    assert by_tma
    assert all(60 << 10 <= bytes_ahead(c) < 200 << 10 and c.threads >= 160 and not c.clustered for c in by_tma)
    assert not any(config.pipeline.load == "tma" for config in simt("512"))


@pytest.mark.parametrize(("shape", "some"), [("512", True), ("1024x768x512", True), ("16x4096x4096", False)])
def test_slices_have_barriers_of_their_own_where_each_has_steps_enough(shape: str, some: bool) -> None:
    configs = simt(shape)
    own = [config for config in configs if config.tile.slice_barriers]
    assert bool(own) == some
    assert all(c.tile.block_k >= 8 * c.tile.slices and c.pipeline.load == "cp_async" for c in own)
    larger = [c for c in own if is_deep(c) and c.tile.block_m * c.tile.block_n > 32 * 64]
    assert bool(larger) == some
    assert all((c.tile.block_k, c.tile.slices) in ((64, 4), (64, 8)) for c in larger)
    # Where each has very many steps, no other way is tried.
    many = [c for c in configs if c.tile.slices > 1 and c.tile.block_k >= 16 * c.tile.slices]
    assert all(c.tile.slice_barriers == (c.pipeline.load == "cp_async") for c in many) or not some


def test_thread_tiles_of_16x8_have_no_slices() -> None:
    assert {c.tile.slices for c in simt("1024x768x512") if c.tile.thread_m * c.tile.thread_n == 128} <= {1}


def test_long_rows_of_a_result_that_is_mostly_written_are_tried() -> None:
    def long(shape: str) -> bool:
        return any(c.tile.lanes_m == 2 and c.tile.thread_m == c.tile.thread_n for c in simt(shape, **FEW_TILES))

    assert long("8192x8192x16")
    assert not long("4096x4096x64")


def test_long_thread_tiles_are_multiplied_row_after_row() -> None:
    tiles = {(c.tile.thread_m, c.tile.thread_n, c.tile.order, c.pipeline.fragments) for c in simt("4096")}
    assert {(16, 8, "rows", "single"), (16, 8, "rows", "double"), (8, 8, "columns", "single")} <= tiles
    assert (8, 8, "rows", "double") in tiles
    assert all((order == "rows") == (m > n) for m, n, order, _ in tiles if (m, n) != (8, 8))


@pytest.mark.parametrize(
    ("shape", "some"), first_of([("777", True), ("1024x768x512", False), ("1760x128x1760", True)], 2)
)
def test_thread_tiles_have_five_ten_or_fourteen_rows_or_columns_where_tiles_fit_better(shape: str, some: bool) -> None:
    configs = [config for config in simt(shape) if config.tile.non_power_of_two]
    assert bool(configs) == some
    for config in configs:
        tile, sums = config.tile, config.tile.thread_m * config.tile.thread_n
        assert 8 in (tile.thread_m, tile.thread_n) or (tile.thread_m, tile.thread_n) == (10, 10)
        assert (config.pipeline.load, config.pipeline.fragments) == ("cp_async", "double")
        assert not config.epilogue.shared or tile.slices == 1 or sums <= 32 * tile.slices
        # Vectors are as wide as C and what slices share of a thread's accumulators allow.
        fit = config.fit(Problem.parse(shape))
        assert fit.vec_c == (1 if shape == "777" else math.gcd(4, tile.thread_n, sums // tile.slices))


@pytest.mark.parametrize(("shape", "groups"), [("512", {1}), ("1024x768x512", {1, 2})])
def test_copies_of_long_products_are_interleaved_among_others(shape: str, groups: set[int]) -> None:
    configs = simt(shape)
    assert {config.pipeline.interleave for config in configs} == groups
    assert all(c.pipeline.load == "cp_async" for c in configs if c.pipeline.interleave == 2)


def test_every_config_has_an_instance_for_any_alignment() -> None:
    odd, configs = Problem.parse("1021x1019x1013"), simt("1024", **FEW_TILES)
    for config in random.Random(2).sample(configs, 200):
        fit = fitted(odd, config, TYPICAL["sm_90a"], aligned=False)
        assert fit.alignment == fit.multiples == (1, 1, 1)


@pytest.mark.parametrize(("arch", "cluster"), [("sm_120", True), ("sm_80", False)])
def test_two_ctas_that_share_a_tile_form_a_cluster_where_there_are_some(arch: str, cluster: bool) -> None:
    configs = simt("512", arch, block_m=(32, 64, 96), block_n=(32, 64, 128), parts=(1, 2, 3))
    assert {config.clustered for config in configs if config.split_ctas == 2} == {cluster}
    assert {config.clustered for config in configs if config.split_ctas != 2} == {False}


@pytest.mark.parametrize(
    ("shape", "shared", "evicted"),
    [
        ("1024x767x512", {False, True}, {False}),
        ("1024x766x512", {False, True}, {False}),
        ("1024x764x512", {False}, {False}),
        ("4096x4096x64", {False, True}, {False, True}),
        ("65536x64x64", {False}, {False, True}),
        ("4096x4096x256", {False}, {False}),
        ("512x512x8", {False}, {False, True}),
        ("512x512x9", {False}, {False}),
    ],
)
def test_how_c_is_written(shape: str, shared: set[bool], evicted: set[bool]) -> None:
    """Through shared memory where its rows allow no whole vectors; in long rows or by evict-first stores where k is
    short, by these where it is very short whatever the size."""
    configs = simt(shape, **FEW_TILES, load=("cp_async",), stages=(2, 3))
    assert {config.epilogue.shared for config in configs} == shared
    assert {config.epilogue.evict_first for config in configs} == evicted


def test_persistent_ctas_are_for_short_k() -> None:
    for shape, ways in (("4096x4096x64", {1, 2, 4}), ("4096x4096x256", {1})):
        configs = tried(Problem.parse(shape, "double"), family="dmma")
        assert {config.persistent_tiles for config in configs} == ways
