"""Which tiles and splits are worth combining with other parameters on a device."""

import itertools
from typing import Any

import pytest
from search_spaces import H200, on, settled
from slow import first_of
from tilewright.codegen.config import Config
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.legality import Rule
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.pruned import pays

VALUES = {choices.family: choices.on(H200) for choices in read_spaces()}


def rules(problem: Problem, info: DeviceInfo, family: str, **less: Any) -> tuple[Rule[Any], ...]:
    return pays(problem, info, family_named(family), {**VALUES[family], **less})


def kept(problem: Problem, info: DeviceInfo, config: Config, found: tuple[Rule[Any], ...]) -> bool:
    return all(rule.holds(problem, config, info) for rule in found)


def keep(problem: Problem, info: DeviceInfo, text: str) -> bool:
    config = parse(text)
    return kept(problem, info, config, rules(problem, info, config.family))


@pytest.mark.parametrize("family", ["naive", "tiled", "skinny"])
def test_families_without_tiles_and_splits_have_no_rule(family: str) -> None:
    assert rules(Problem.parse("1024"), H200, family) == ()


def test_the_processor_tries_powers_of_two_alone() -> None:
    problem, rest = Problem.parse("1024"), ",stages=2,fragments=single"
    assert keep(problem, on("host"), "simt:128x64x16" + rest)
    assert not keep(problem, on("host"), "simt:96x64x16" + rest)
    assert not keep(problem, on("host"), "simt:64x48x16" + rest)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_processor_tries_little_that_helps_threads_side_by_side(dtype: str) -> None:
    configs = candidates(Problem.parse("1024x768x512", dtype), on("host"), read_spaces()).configs
    assert {config.family for config in configs} == {"naive", "tiled", "simt", *(["dmma"] * (dtype == "double"))}
    assert len(configs) < 2500
    for name in ("mode", "slices", "fragments"):
        assert len({config.get(name) for config in configs if config.family == "simt"}) == 1


def test_a_space_may_lack_the_plain_way_to_share_out_the_work() -> None:
    problem, modes = Problem.parse("1024x768x512"), family_named("simt").leaf("mode")
    found = rules(problem, H200, "simt", mode=(modes.typed("split_k"),), parts=(2, 3))
    assert kept(problem, H200, parse("simt:64x96x16,split_k=2"), found)
    assert not kept(problem, H200, parse("simt:64x96x16"), found)


def test_tiles_that_leave_sms_idle_do_not_pay() -> None:
    # 64 tiles occupy half of 132 SMs, 128 of them nearly all.
    assert not keep(Problem.parse("1024"), H200, "simt:128x128x16")
    assert keep(Problem.parse("2048x1024x1024"), H200, "simt:128x128x16")


def test_thread_tiles_of_ten_are_tried_where_they_share_out_the_work_better() -> None:
    # 44 times 2 tiles with k split by three are two CTAs for each of 132 SMs.
    ten = "simt:40x64x16,thread=10x8,lanes_m=4,split_k=3"
    assert keep(Problem.parse("1760x128x1760"), H200, ten)
    assert not keep(Problem.parse("1024x768x512"), H200, ten)


@pytest.mark.parametrize("shape", ["1023x769x511", "33x2000x4000"])
def test_they_crowd_out_no_others(shape: str) -> None:
    problem, sides = Problem.parse(shape), (16, 32, 48, 64, 96, 128, 160, 192, 256)
    powers = {"block_m": sides, "block_n": sides, "thread_m": (2, 4, 8, 16), "thread_n": (4, 8)}
    all_kept, few_kept = (rules(problem, H200, "simt", **less) for less in ({}, powers))
    for block_m, block_n, split in itertools.product(sides, sides, ("", ",split_k=2", ",split_k=3", ",split_k=8")):
        config = parse(f"simt:{block_m}x{block_n}x16{split}")
        assert kept(problem, H200, config, all_kept) == kept(problem, H200, config, few_kept), config


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_clusters_are_tried_where_the_device_has_them(dtype: str) -> None:
    problem, spaces = Problem.parse("512", dtype), settled("simt", "dmma", block_m=(64,), block_n=(32, 64))
    for arch, clusters in (("sm_90a", {False, True}), ("sm_80", {False})):
        assert {config.clustered for config in candidates(problem, on(arch), spaces).configs} == clusters


def test_narrow_results_may_have_long_tiles() -> None:
    for shape, allowed in (("4096x16x4096", True), ("4096x512x4096", False)):
        tiles = {c.cta_tile for c in candidates(Problem.parse(shape, "double"), H200, settled("dmma")).configs}
        assert (max(m / n for m, n, _ in tiles) > 4) == allowed


@pytest.mark.parametrize(
    ("shape", "dtype", "arch"),
    first_of(
        [
            ("1000x770x513", "double", "sm_90a"),
            ("1000x770x513", "float", "sm_90a"),
            ("64x4096x4096", "double", "sm_120"),
        ]
    ),
)
def test_small_tiles_do_not_crowd_out_all_others(shape: str, dtype: str, arch: str) -> None:
    configs = candidates(Problem.parse(shape, dtype), on(arch), settled("simt", "dmma")).configs
    assert len({config.cta_tile[:2] for config in configs}) >= 5


def test_stream_k_has_one_to_three_ctas_per_sm_that_run_at_a_time() -> None:
    configs = candidates(Problem.parse("3000"), H200, settled("simt", min_ctas=(1, 2, 3), stages=(3,))).configs
    streams = {(c.stream_ctas_per_sm, c.get("min_ctas")) for c in configs if c.stream_ctas_per_sm}
    assert {1, 2, 3} == {parts for parts, _ in streams}
    arch = H200.arch
    assert all(c.stream_ctas_per_sm * c.smem_bytes(DType.FLOAT) <= arch.smem_per_sm_bytes for c in configs)
