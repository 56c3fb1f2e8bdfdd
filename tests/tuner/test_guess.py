"""The first guesses: what the simple model of a GPU puts first."""

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.model import estimate_us
from tilewright.tuner.search.ranked import ranked

H200 = DeviceInfo(
    name="NVIDIA H200",
    selector="cuda",
    arch=ARCHES["sm_90a"],
    sm_count=132,
    clock_mhz=1980,
    memory_bytes=141 * 10**9,
    l2_bytes=60 << 20,
    bandwidth_gbs=4800,
    driver="13.0",
)


def guesses(problem: Problem, count: int = 16) -> list[Config]:
    """The first guesses of all families, the first of each in canonical order left out."""
    configs = candidates(problem, H200, read_spaces()).configs
    return ranked(problem, H200, configs)[len({config.family for config in configs}) :][:count]


@pytest.mark.parametrize("shape", ["2047", "4096", "1024x768x512", "64x4096x4096"])
def test_double_is_guessed_on_the_tensor_cores(shape: str) -> None:
    assert {config.family for config in guesses(Problem.parse(shape, "double"), 8)} == {"dmma"}


def test_large_results_are_guessed_in_large_parts_and_small_ones_in_enough_of_them() -> None:
    for shape, least, most in (("4096", 128 * 64, 256 * 128), ("512", 16 * 16, 64 * 128)):
        problem = Problem.parse(shape, "double")
        for config in guesses(problem, 4):
            area = config.number("block_m") * config.number("block_n")
            assert least <= area <= most, str(config)
            assert FAMILIES["dmma"].blocks(problem, config) >= 64


@pytest.mark.parametrize("shape", ["16x4096x4096", "4096x16x4096", "35x700x2048", "64x64x65536", "256"])
def test_results_of_few_small_tiles_are_guessed_with_deep_ones_among_others(shape: str) -> None:
    guessed = [config for config in guesses(Problem.parse(shape)) if config.family == "simt"]
    deep = [config for config in guessed if config.number("block_k") > 32]
    assert len(deep) >= 4
    assert len({FAMILIES["simt"].tile(config)[:2] for config in guessed}) >= 3


def test_what_the_model_does_not_tell_apart_is_guessed_once() -> None:
    problem = Problem.parse("2048", "double")
    guessed = guesses(problem, 32)
    assert {config["copy_groups"] for config in guessed if config.family == "dmma"} >= {1, 2}
    # Half of them are the first of each way to share out the work, the others the first of each estimate.
    assert len({estimate_us(problem, config, H200) for config in guessed}) >= 16


@pytest.mark.parametrize(("shape", "dtype"), [("8192", "double"), ("8192", "float"), ("16x4096x4096", "float")])
def test_nothing_is_guessed_that_would_take_most_of_the_time(shape: str, dtype: str) -> None:
    problem = Problem.parse(shape, dtype)
    times = [estimate_us(problem, config, H200) for config in guesses(problem, 46)]
    assert max(times) <= 3 * min(times)


def test_no_estimate_is_below_the_floor() -> None:
    problem = Problem.parse("2048", "double")
    floor_us = problem.flops / (H200.peak_gflops(problem.dtype) * 1e3)
    assert all(estimate_us(problem, config, H200) > floor_us for config in guesses(problem))
