"""The model of a device: how its times depend on what they should."""

import math
import random
from dataclasses import replace
from functools import cache

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.model import estimate_us

H200 = DeviceInfo("NVIDIA H200", "cuda", ARCHES["sm_90a"], 132, 1980.0, 141 * 10**9, 60 << 20, 4800.0, "13.0")

SIMT = "simt:block_m=128,block_n=128,block_k=16,thread_m=8,thread_n=8,lanes_m=4,cp_async=1,stages=3,prefetch=1"
DMMA = "dmma:block_m=128,block_n=64,block_k=16,warp_m=64,warp_n=32,stages=4,prefetch=1"
SKINNY = "skinny:count=1,span=4,depth=8,lanes_k=4,warps_k=8,staged=4096"


@cache
def sample(shape: str, dtype: str) -> list[Config]:
    """Some configs of each family of the shipped spaces."""
    configs = candidates(Problem.parse(shape, dtype), H200, read_spaces()).configs
    generator = random.Random(1)
    chosen = []
    for name in FAMILIES:
        own = [config for config in configs if config.family == name]
        chosen += generator.sample(own, min(200, len(own)))
    return chosen


@pytest.mark.parametrize(
    ("shape", "dtype", "families"),
    [
        ("100", "float", {"naive", "tiled", "simt"}),
        ("1000", "float", {"naive", "tiled", "simt"}),
        ("1000", "double", {"naive", "tiled", "dmma"}),
        ("16x4096x4096", "float", set(FAMILIES) - {"dmma"}),
        ("4096x1x4096", "double", {"naive", "tiled", "skinny", "dmma"}),
    ],
)
def test_every_family_has_a_time(shape: str, dtype: str, families: set[str]) -> None:
    problem = Problem.parse(shape, dtype)
    assert {config.family for config in sample(shape, dtype)} == families
    for config in sample(shape, dtype):
        us = estimate_us(problem, config, H200)
        assert math.isfinite(us), str(config)
        assert us > 1, str(config)  # a launch alone takes longer


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (SIMT, "1024x2048x4096", "float"),
        (DMMA, "1024x2048x4096", "double"),
        (SKINNY, "1x8192x4096", "float"),
        ("tiled:", "1024x2048x4096", "float"),
    ],
)
def test_more_work_and_slower_devices_take_longer(text: str, shape: str, dtype: str) -> None:
    config, problem = complete(Config.parse(text)), Problem.parse(shape, dtype)
    us = estimate_us(problem, config, H200)
    m, n, k = problem.m, problem.n, problem.k
    for larger in (replace(problem, m=4 * m), replace(problem, n=4 * n), replace(problem, k=2 * k)):
        assert estimate_us(larger, config, H200) > us
    assert estimate_us(problem, config, replace(H200, clock_mhz=990.0)) > us
    assert estimate_us(problem, config, replace(H200, sm_count=66)) > us
    assert estimate_us(problem, config, replace(H200, bandwidth_gbs=48.0)) > us


def changed(text: str, **values: int | str) -> Config:
    return complete(Config.parse(",".join((text, *(f"{name}={value}" for name, value in values.items())))))


@pytest.mark.parametrize(("text", "dtype"), [(SIMT, "float"), (DMMA, "double")])
def test_what_a_split_of_k_gains_and_costs(text: str, dtype: str) -> None:
    # One tile, or two; and as many for each of the multiprocessors.
    deep, wide = Problem.parse("128x128x16384", dtype), Problem.parse("16896x512x4096", dtype)
    assert estimate_us(deep, changed(text, split_k=16), H200) < estimate_us(deep, changed(text), H200) / 4
    assert estimate_us(wide, changed(text, split_k=16), H200) > estimate_us(wide, changed(text), H200)


def test_blocks_of_little_work_wait_for_their_tiles() -> None:
    # A tile of 16 x 32 is multiplied long before the next one has come from memory.
    problem = Problem.parse("16x4096x4096")
    small = "simt:block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,cp_async=1,vec_b=4,edge=exact"
    times = [
        estimate_us(problem, changed(small, block_k=block_k, stages=stages, slices=4), H200)
        for block_k, stages in ((16, 2), (16, 3), (32, 3), (32, 4), (64, 4), (128, 4))
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]
    # One of 128 x 128 is not.
    large = Problem.parse("4096")
    plain = SIMT.replace(",stages=3", "")
    few, many = (estimate_us(large, changed(plain, stages=stages), H200) for stages in (3, 5))
    assert few < 1.02 * many


@pytest.mark.parametrize(("text", "dtype"), [(SIMT, "float"), (DMMA, "double")])
def test_a_cluster_adds_up_faster_than_blocks_that_meet_in_memory(text: str, dtype: str) -> None:
    problem = Problem.parse("128x128x16384", dtype)
    memory, cluster = (estimate_us(problem, changed(text, split_k=8, cluster=each), H200) for each in (0, 1))
    assert 0.5 < memory - cluster < 15


def test_slices_that_go_apart_wait_less_where_each_has_steps_enough() -> None:
    problem = Problem.parse("1024")
    sliced = "simt:block_m=64,thread_m=8,thread_n=8,lanes_m=4,cp_async=1,stages=3,prefetch=1,slices=4"
    for block_k, gains in ((64, True), (32, True), (16, False)):
        together, apart = (estimate_us(problem, changed(sliced, block_k=block_k, apart=each), H200) for each in (0, 1))
        assert (0.95 if gains else 1) * together <= apart <= (0.98 if gains else 1) * together


def test_padding_costs_copies() -> None:
    problem = Problem.parse("1000")
    assert estimate_us(problem, changed(SIMT, edge="pad"), H200) > estimate_us(problem, changed(SIMT), H200)
