"""The first guesses: what the simple model of a GPU puts first."""

import pytest
from search_spaces import H200, found, on, settled
from slow import first_of
from stored import make
from tilewright.codegen.config import Config
from tilewright.codegen.families import families, parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.tuner.search.candidates import candidates
from tilewright.tuner.search.model import estimate_us
from tilewright.tuner.search.ranked import ranked, stored


def guesses(problem: Problem, count: int = 16) -> list[Config]:
    """The first guesses of all families, the first of each in canonical order left out."""
    configs = found(problem, "sm_90a", settled(*families())).configs
    return ranked(problem, H200, configs)[len({config.family for config in configs}) :][:count]


@pytest.mark.parametrize("shape", first_of(["4096", "2047", "1024x768x512", "64x4096x4096"], 2))
def test_double_is_guessed_on_the_tensor_cores(shape: str) -> None:
    assert {config.family for config in guesses(Problem.parse(shape, "double"), 8)} == {"dmma"}


def test_large_results_are_guessed_in_large_tiles_and_small_ones_in_enough_of_them() -> None:
    for shape, least, most in (("4096", 128 * 64, 256 * 128), ("512", 16 * 16, 64 * 128)):
        problem = Problem.parse(shape, "double")
        for config in guesses(problem, 4):
            tile_m, tile_n, _ = config.cta_tile
            assert least <= tile_m * tile_n <= most, str(config)
            assert config.ctas(problem, 132) >= 64


@pytest.mark.parametrize("shape", first_of(["16x4096x4096", "64x64x65536", "256"]))
def test_results_of_few_small_tiles_are_guessed_with_deep_ones_among_others(shape: str) -> None:
    guessed = [config for config in guesses(Problem.parse(shape)) if config.family == "simt"]
    assert sum(config.cta_tile[2] > 32 for config in guessed) >= 4
    assert len({config.cta_tile[:2] for config in guessed}) >= 3


def test_what_the_model_does_not_tell_apart_is_guessed_once() -> None:
    guessed = guesses(Problem.parse("2048", "double"), 32)
    assert {config.get("interleave") for config in guessed if config.family == "dmma"} >= {1, 2}
    # Half of them are the first of each way to share out the work, the others the first of each estimate.
    assert len({estimate_us(Problem.parse("2048", "double"), config, H200) for config in guessed}) >= 16


@pytest.mark.parametrize(("shape", "dtype"), [("8192", "double"), ("16x4096x4096", "float")])
def test_nothing_is_guessed_that_would_take_most_of_the_time(shape: str, dtype: str) -> None:
    problem = Problem.parse(shape, dtype)
    times = [estimate_us(problem, config, H200) for config in guesses(problem, 46)]
    assert max(times) <= 3 * min(times)
    assert min(times) > problem.flops / (H200.peak_gflops(problem.dtype) * 1e3)


def test_the_processor_takes_the_canonical_order() -> None:
    problem = Problem.parse("256")
    configs = candidates(problem, on("host"), settled("naive", "tiled", "simt")).configs
    first, *others = ranked(problem, on("host"), configs)
    assert set(configs) == {first, *others}
    assert [config.family for config in (first, *others[:2])] == ["naive", "tiled", "simt"]
    assert others[2:] == sorted(others[2:], key=lambda config: config.canonical)


def test_what_is_stored_for_a_finer_grade_meets_what_a_coarser_one_finds() -> None:
    grades = {grade: Problem.parse("512", accuracy=grade) for grade in Grade}
    simt, mma = parse("simt:64x64x16"), parse("mma:64x64x32,warp=32")
    records = [
        make(8.0, grades[Grade.IEEE], simt, H200.key),
        make(6.0, grades[Grade.NORMWISE], mma, H200.key),
        make(1.0, Problem.parse("513"), parse("tiled:16"), H200.key),
        make(1.0, grades[Grade.IEEE], parse("tiled:8"), "another device"),
    ]
    assert stored(grades[Grade.NORMWISE], H200, records) == [mma, simt]
    assert stored(grades[Grade.ELEMENTWISE], H200, records) == [simt]
    assert stored(grades[Grade.IEEE], H200, records) == [simt]
    assert stored(Problem.parse("512", "double"), H200, records) == []
