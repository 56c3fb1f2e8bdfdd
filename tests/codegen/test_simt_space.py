"""What searches try of the simt family for a shape and a device."""

import math
import random

import pytest
from simt_space import FEW_TILES, SIMT, is_deep, some, space, tried, usual
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.tuner.search.legal import combine
from variants import settled

SM_90 = ARCHES["sm_90a"]


@pytest.mark.parametrize(("dtype", "trans"), [("float", "nn"), ("double", "nn"), ("float", "tt")])
def test_the_space_is_large_enough_to_search_and_small_enough_to_list(dtype: str, trans: str) -> None:
    problem = Problem.parse("1024x768x512", dtype, trans)
    configs, pruned = space(problem, usual(dtype))
    assert 1000 <= len(configs) <= 20000
    assert len(set(configs)) == len(configs)
    assert sum(pruned.values()) + len(configs) > 10**8
    generator = random.Random(1)
    for config in generator.sample(configs, 200):
        assert complete(config) == config
        assert list(rejections(problem, config, SM_90)) == []


def test_double_is_left_to_faster_tensor_cores() -> None:
    cube = Problem.parse("1024", "double")
    few = {"block_m": (64,), "block_n": (64,), "split_k": (1,)}
    (choices,) = settled("simt", **few)
    left = [arch for arch in ARCHES if not combine(cube, ARCHES[arch], SIMT, dict(choices.parameters))[0]]
    assert left == ["sm_80", "sm_90a"]
    assert not any(some(cube, arch) for arch in left)


@pytest.mark.parametrize("shape", ["1", "100", "1023x769x511", "16x4096x4096", "64x64x65536", "8192", "1x4096x4096"])
def test_every_shape_has_something_to_try(shape: str) -> None:
    assert len(tried(Problem.parse(shape))) >= 10


def is_larger(config: Config) -> bool:
    """Whether a tile may be deep only because its slices go apart."""
    deep_bytes = (config.number("block_m") + config.number("block_n")) * config.number("block_k") * 4
    small = config.number("block_m") * config.number("block_n") <= 32 * 64 and SIMT.threads(config) >= 256
    return config["apart"] == 1 and not (small and 24 << 10 <= (config.number("stages") - 1) * deep_bytes < 104 << 10)


@pytest.mark.parametrize("shape", ["1024x768x512", "2048", "4096", "5124x700x2048", "8192x8192x16", "100"])
def test_large_and_shallow_results_try_no_deep_tiles(shape: str) -> None:
    configs = tried(Problem.parse(shape), split_k=(1, 2, 4))
    assert len(configs) >= 10
    assert not any(c.number("slices") > 8 for c in configs)
    large = Problem.parse(shape).m * Problem.parse(shape).n >= 4_000_000
    assert all(large and c["thread_m"] == 16 and c["block_k"] == 8 for c in configs if c.number("stages") > 4)
    assert not any(is_deep(c) and c["apart"] == 0 for c in configs)


@pytest.mark.parametrize("shape", ["16x4096x4096", "4096x16x4096", "35x700x2048", "64x64x65536", "256", "512"])
def test_results_of_few_small_tiles_try_deep_ones_that_keep_much_on_its_way(shape: str) -> None:
    problem = Problem.parse(shape)
    configs = tried(problem)
    deep = [config for config in configs if is_deep(config) and not is_larger(config) and not config["bulk"]]
    assert 0.05 * len(configs) < len(deep) < 0.5 * len(configs)
    assert {config["slices"] for config in deep} >= {4, 8, 16}
    for config in deep:
        stage = (config.number("block_m") + config.number("block_n")) * config.number("block_k") * 4
        assert 24 << 10 <= (config.number("stages") - 1) * stage < 104 << 10
        assert 256 <= SIMT.threads(config) <= 512
        assert SIMT.blocks(problem, config) <= 320


@pytest.mark.parametrize("shape", ["512", "1024x768x512", "1024", "64x4096x4096", "16x4096x4096", "4096"])
def test_slices_go_apart_where_each_has_steps_enough(shape: str) -> None:
    problem = Problem.parse(shape)
    configs = tried(problem)
    apart = [config for config in configs if config["apart"] == 1]
    assert bool(apart) == (shape not in ("16x4096x4096", "4096"))
    assert all(config.number("block_k") >= 8 * config.number("slices") and config["cp_async"] == 1 for config in apart)
    larger = [config for config in apart if is_deep(config) and is_larger(config)]
    assert bool(larger) == bool(apart)
    assert all(config["block_k"] == 64 and config["slices"] in (4, 8) for config in larger)
    assert all(config.number("block_m") * config.number("block_n") <= 64 * 128 for config in larger)
    # Where each has very many, that they go apart is not asked.
    many = [c for c in configs if c.number("slices") > 1 and c.number("block_k") >= 16 * c.number("slices")]
    assert all(c["apart"] == c["cp_async"] for c in many) or not apart


def test_long_rows_of_a_result_that_is_mostly_written_are_tried() -> None:
    def long(shape: str) -> bool:
        configs = space(Problem.parse(shape))[0]
        return any(config["lanes_m"] == 2 and config["thread_m"] == config["thread_n"] for config in configs)

    assert long("8192x8192x16")
    assert not long("4096x4096x64")


def test_large_parts_of_c_are_multiplied_row_after_row() -> None:
    """That leaves half as many multiply-adds with three operands to read, in the compiler's code for 16 x 8 sums."""
    tried = {
        (config["thread_m"], config["thread_n"], config["rows_first"], config["prefetch"])
        for config in space(Problem.parse("4096"))[0]
    }
    assert {(16, 8, 1, 0), (16, 8, 1, 1), (8, 8, 0, 0), (8, 8, 0, 1), (8, 8, 1, 1)} <= tried
    assert all(rows == (m > n) for m, n, rows, _ in tried if (m, n) != (8, 8))


@pytest.mark.parametrize(("shape", "some"), [("777", True), ("1760x128x1760", True), ("1024x768x512", False)])
def test_threads_have_five_ten_or_fourteen_rows_or_columns_where_tiles_fit_better_then(shape: str, some: bool) -> None:
    configs = [config for config in tried(Problem.parse(shape)) if SIMT.uneven(config)]
    assert bool(configs) == some
    for config in configs:
        sums = config.number("thread_m") * config.number("thread_n")
        assert 8 in (config["thread_m"], config["thread_n"]) or (config["thread_m"], config["thread_n"]) == (10, 10)
        assert (config["cp_async"], config["prefetch"], config["a_k_inner"], config["bulk"]) == (1, 1, 0, 0)
        assert config["staged_c"] == 0 or config["slices"] == 1 or sums <= 32 * config.number("slices")
        # Vectors as wide as C and what slices share of a thread's sums allow.
        assert config["vec_c"] == (
            1 if shape == "777" else math.gcd(4, config.number("thread_n"), sums // config.number("slices"))
        )


def test_threads_with_long_parts_of_a_large_result_have_long_warps_and_six_stages_among_others() -> None:
    for shape, expected in (("2047", True), ("1024", False)):
        long = [
            config
            for config in tried(Problem.parse(shape), block_m=(64, 128), block_n=(128, 256))
            if (config["thread_m"], config["thread_n"]) == (16, 8) and config["block_k"] == 8
        ]
        assert ({4, 8} <= {config["lanes_m"] for config in long}) == expected
        assert (6 in {config["stages"] for config in long}) == expected
        assert {config["slices"] for config in long if config.number("stages") > 4} <= {1}


@pytest.mark.parametrize(("shape", "groups"), [("512", {1}), ("1024x768x512", {1, 2}), ("4096x16x4096", {1, 2})])
def test_copies_of_long_products_are_spread_among_others(shape: str, groups: set[int]) -> None:
    configs = tried(Problem.parse(shape), cp_async=(0, 1))
    assert {config["copy_groups"] for config in configs} == groups
    spread = [config for config in configs if config["copy_groups"] == 2]
    assert all(config["cp_async"] == 1 for config in spread)
    assert len(spread) < 0.45 * len(configs)


def test_every_config_has_a_scalar_twin_that_serves_any_alignment() -> None:
    for dtype, trans in (("float", "nn"), ("double", "nt"), ("float", "tn")):
        configs = tried(Problem.parse("1024", dtype, trans), usual(dtype), **FEW_TILES)
        odd = Problem.parse("1021x1019x1013", dtype, trans)
        for config in random.Random(2).sample(configs, 300):
            twin = SIMT.scalar(Config("simt", tuple((n, "bounds" if n == "edge" else v) for n, v in config.values)))
            assert SIMT.alignment(twin) == (1, 1, 1)
            assert list(rejections(odd, twin, SM_90)) == []
            assert SIMT.launch(odd, twin).block == SIMT.launch(odd, config).block


@pytest.mark.parametrize(("arch", "cluster"), [("sm_120", 1), ("sm_80", 0)])
def test_two_blocks_that_share_a_tile_form_a_cluster_where_there_are_some(arch: str, cluster: int) -> None:
    few = {"block_m": (32, 64, 96), "block_n": (32, 64, 128), "split_k": (1, 2, 3)}
    configs = tried(Problem.parse("512", "float"), arch, **few)
    of_two = [config for config in configs if (config["split_k"], config["tail"]) == (2, 1)]
    assert {config["cluster"] for config in of_two} == {cluster}
    assert {config["cluster"] for config in configs if config["split_k"] != 2} == {0}


def test_sums_pass_through_shared_memory_only_where_rows_of_the_result_allow_no_vectors() -> None:
    staged = {
        shape: {c["staged_c"] for c in tried(Problem.parse(shape), **FEW_TILES)}
        for shape in ("1024x767x512", "1024x766x512")
    }
    assert staged == {"1024x767x512": {0, 1}, "1024x766x512": {0}}


@pytest.mark.parametrize(
    ("shape", "staged", "streamed"),
    [("4096x4096x64", {0, 1}, {0, 1}), ("65536x64x64", {0}, {0, 1}), ("4096x4096x256", {0}, {0})],
)
def test_where_k_is_short_large_results_are_written_in_long_rows_or_past_the_caches_among_others(
    shape: str, staged: set[int], streamed: set[int]
) -> None:
    configs = tried(Problem.parse(shape), **FEW_TILES, cp_async=(1,), stages=(2,))
    assert {config["staged_c"] for config in configs} == staged
    assert {config["stream_c"] for config in configs} == streamed
