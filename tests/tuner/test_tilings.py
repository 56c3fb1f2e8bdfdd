"""Which tiles and splits are worth combining with other parameters on a device."""

import itertools
from dataclasses import replace

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, family_of
from tilewright.codegen.family import Constraint
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.pruned import pays
from variants import settled

H200 = DeviceInfo("NVIDIA H200", "cuda", ARCHES["sm_90a"], 132, 1980.0, 141 * 10**9, 60 << 20, 4800.0, "13.0")
SLOW_DOUBLE = replace(H200, name="NVIDIA X", arch=ARCHES["sm_120"])
OLDER = replace(H200, name="NVIDIA Y", arch=ARCHES["sm_80"])
VALUES = {choices.family: dict(choices.parameters) for choices in read_spaces()}


def rules(problem: Problem, info: DeviceInfo, family: str) -> tuple[Constraint, ...]:
    return pays(problem, info, FAMILIES[family], VALUES[family])


def keep(problem: Problem, info: DeviceInfo, text: str) -> bool:
    config = complete(Config.parse(text))
    return all(rule.holds(problem, config, info.arch) for rule in rules(problem, info, config.family))


@pytest.mark.parametrize("family", ["naive", "tiled", "skinny"])
def test_families_without_tiles_and_splits_have_no_rule(family: str) -> None:
    assert rules(Problem.parse("1024"), H200, family) == ()


def test_the_processor_tries_powers_of_two_alone() -> None:
    host = replace(H200, arch=ARCHES["host"])
    problem = Problem.parse("1024")
    assert keep(problem, host, "simt:block_m=128,block_n=64")
    assert not keep(problem, host, "simt:block_m=96,block_n=64")
    assert not keep(problem, host, "simt:block_m=64,block_n=48")


def test_a_space_may_lack_the_plain_way_to_share_out_the_work() -> None:
    problem, family = Problem.parse("1024x768x512"), FAMILIES["simt"]
    found = pays(problem, H200, family, {**VALUES["simt"], "split_k": (2, 3)})
    shared = complete(Config.parse("simt:block_m=64,block_n=96,split_k=2"))
    alone = complete(Config.parse("simt:block_m=64,block_n=96,split_k=1"))
    assert all(rule.holds(problem, shared, H200.arch) for rule in found)
    assert not all(rule.holds(problem, alone, H200.arch) for rule in found)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_processor_tries_little_that_helps_threads_side_by_side(dtype: str) -> None:
    host = replace(H200, arch=ARCHES["host"])
    configs = candidates(Problem.parse("1024x768x512", dtype), host, read_spaces()).configs
    assert {config.family for config in configs} == {"naive", "tiled", "simt", *(["dmma"] * (dtype == "double"))}
    assert len(configs) < 2500
    for name in ("split_k", "slices", "prefetch"):
        assert len({config[name] for config in configs if config.family == "simt"}) == 1


def test_tiles_that_leave_multiprocessors_idle_do_not_pay() -> None:
    # 64 tiles occupy half of 132 multiprocessors, 128 of them nearly all.
    assert not keep(Problem.parse("1024"), H200, "simt:block_m=128,block_n=128")
    assert keep(Problem.parse("2048x1024x1024"), H200, "simt:block_m=128,block_n=128")


def test_uneven_tiles_are_tried_where_they_share_out_the_work_better() -> None:
    # 44 times 2 tiles with k split by three are two blocks for each of 132 multiprocessors.
    uneven = "simt:block_m=40,block_n=64,thread_m=10,thread_n=8,lanes_m=4,split_k=3"
    assert keep(Problem.parse("1760x128x1760"), H200, uneven)
    assert not keep(Problem.parse("1024x768x512"), H200, uneven)


@pytest.mark.parametrize("shape", ["1023x769x511", "33x2000x4000"])
def test_uneven_tiles_crowd_out_no_others(shape: str) -> None:
    problem, family = Problem.parse(shape), FAMILIES["simt"]
    sides = (16, 32, 48, 64, 96, 128, 160, 192, 256)
    powers = {"block_m": sides, "block_n": sides, "thread_m": (2, 4, 8, 16), "thread_n": (4, 8)}
    found = [pays(problem, H200, family, {**VALUES["simt"], **less}) for less in ({}, powers)]
    for block_m, block_n, split_k in itertools.product(sides, sides, (1, 2, 3, 8)):
        config = complete(Config.parse(f"simt:block_m={block_m},block_n={block_n},split_k={split_k}"))
        kept, alone = (all(rule.holds(problem, config, H200.arch) for rule in each) for each in found)
        assert kept == alone, config


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_clusters_are_tried_where_the_device_has_them(dtype: str) -> None:
    problem = Problem.parse("512", dtype)
    spaces = settled("simt", "dmma", block_m=(64,), block_n=(32, 64))
    for info, clusters in ((H200, {0, 1}), (OLDER, {0})):
        assert {config["cluster"] for config in candidates(problem, info, spaces).configs} == clusters


def test_narrow_results_may_have_long_tiles() -> None:
    for shape, allowed in (("4096x16x4096", True), ("4096x512x4096", False)):
        ratios = {
            config.number("block_m") / config.number("block_n")
            for config in candidates(Problem.parse(shape, "double"), H200, settled("dmma")).configs
        }
        assert (max(ratios) > 4) == allowed


@pytest.mark.parametrize(
    ("shape", "dtype", "info"),
    [
        ("1000x770x513", "float", H200),
        ("1000x770x513", "double", H200),
        ("1024", "double", SLOW_DOUBLE),
        ("64x4096x4096", "double", SLOW_DOUBLE),
    ],
    ids=lambda value: value.arch.name if isinstance(value, DeviceInfo) else value,
)
def test_tiles_are_left_that_the_family_advises(shape: str, dtype: str, info: DeviceInfo) -> None:
    """Where small tiles share out the work best, or as well as large ones, they must not crowd out all others."""
    configs = candidates(Problem.parse(shape, dtype), info, settled("simt", "dmma")).configs
    tiles = {family_of(config).tile(config)[:2] for config in configs}
    assert len(tiles) >= 5
