"""The tf32x3 family: what its rules refuse, what is advised, where its copies go, and what the compiler makes of it."""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from nvrtc import Row, assert_as_predicted
from search_spaces import tried
from targets import TYPICAL
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import rejections, serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import one_each, variant

SM_90 = TYPICAL["sm_90a"]


def reasons(text: str, problem: str = "1024", accuracy: str = "elementwise", arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse(problem, accuracy=accuracy), variant(f"tf32x3:{text}"), TYPICAL[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        ("", "1024x1024x191", "where each element is promised, k is at least 192"),
        ("promote=16", "1024x1024x95", "where each element is promised, k is at least 96"),
        ("block_m=16,warp_m=32", "1024", "block_m 16 is a multiple of the rows of a warp, 32"),
        ("warp=64x64", "1024", "a thread holds at most 64 elements of C"),
        ("block_k=8,slices=2,fragments=single", "1024", "block_k 8 is whole steps of 8 for each of 2 slices"),
        ("block_k=8,fragments=double", "1024", "an even number of them with double-buffered fragments"),
        ("interleave=2,fragments=single", "1024", "interleave 2 is for double-buffered fragments"),
        ("persistent=3,slices=2", "1024", "no shared memory free for the accumulators of 2 slices"),
        ("128x128x32,warp=16x16", "1024", "registers of 1 CTAs fit on an SM"),
        ("256x256x64,warp_m=64,stages=5", "1024", "shared memory of a CTA stays within"),
    ],
)
def test_what_cannot_be_is_refused(text: str, problem: str, reason: str) -> None:
    given = reasons(text, problem)
    assert any(reason in each for each in given), given


def test_it_serves_what_need_not_be_ieee_in_float() -> None:
    assert reasons("", accuracy="ieee") == ["accuracy is no finer than the config's, elementwise"]
    assert reasons("", accuracy="normwise") == reasons("") == []
    assert reasons("", "64x64x1", "normwise") == []
    double = Problem.parse("1024", "double")
    assert "floats are split into terms" in list(rejections(double, parse("tf32x3:"), SM_90))


@pytest.mark.parametrize(("arch", "has"), [("sm_75", False), ("sm_80", True), ("sm_90a", True), ("host", True)])
def test_devices_that_multiply_tf32(arch: str, has: bool) -> None:
    assert ("the device multiplies TF32 by mma.m16n8k8" not in reasons("", arch=arch)) == has


def test_resources_and_text() -> None:
    problem, config = (
        Problem.parse("256x128x512", accuracy="normwise"),
        variant("tf32x3:128x16x16,warp=32x16,split_k=4"),
    )
    launch = config.launch_config(problem, 132)
    assert launch.grid == (2 * 8 * 4, 1, 1)
    assert launch.static_smem_bytes == 3 * 16 * (128 + 16 + 4) * 4
    assert config.workspace_bytes(problem, 132) == 16 * (4 * 128 * 16 * 4 + 4)
    code = render(problem, config, SM_90).code
    assert code.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") == 1
    assert "//   accuracy   elementwise\n" in code
    assert "--accuracy elementwise" in code
    assert "terms comes first" not in code


# ---- What searches try ------------------------------------------------------------------------------------------


def of(
    shape: str, target: str = "sm_90a", trans: str = "nn", accuracy: str = "elementwise", **values: Any
) -> list[Any]:
    """The configs that a search tries for a problem."""
    return tried(Problem.parse(shape, "float", trans, accuracy), target, "tf32x3", **values)


@pytest.mark.parametrize(("shape", "accuracy"), [("256x256x90", "elementwise"), ("1024", "ieee")])
def test_it_is_not_tried_where_it_would_break_the_promise(shape: str, accuracy: str) -> None:
    assert all(config.least_k <= 90 for config in of(shape, accuracy=accuracy))
    assert accuracy == "elementwise" or not of(shape, accuracy=accuracy)


@pytest.mark.parametrize("shape", ["64x4096x4096", "256x256x16384", "35x700x2048", "512"])
def test_small_and_narrow_products_are_tried_with_shared_k(shape: str) -> None:
    configs = of(shape)
    assert len(configs) > 50
    assert any(config.split_ctas > 1 or config.tile.slices > 1 for config in configs)


# ---- What the compiler makes of it --------------------------------------------------------------------------------

BEST = (
    "128x64x16,warp=64x32,promote=16,stages=4,raster=8",
    "128x128x16,warp=64x32,promote=16,stages=4,fragments=single",
    "64x64x32,split_k=8",
    "32x64x64,slices=4,promote=16,stages=5",
    "32x64x64,slices=4,promote=16,stages=5,split_k=4",
)
"""Configs that are expected to be fast: these are compiled besides a sample."""


def sample() -> list[Row]:
    """Instances and targets."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str, str]] = []
    for target, (trans, count) in product(("sm_80", "sm_90a"), (("nn", 3), ("nt", 2), ("tn", 2), ("tt", 1))):
        rows += [(str(each), "float", trans, target) for each in generator.sample(of("1024", target, trans), count)]
    split = [each for each in of("512x512x2048") if each.split_ctas > 1]
    rows += [(str(each), "float", "nn", "sm_90a") for each in generator.sample(split, 4)]
    rows += [(str(variant(f"tf32x3:{text}")), "float", "nn", "sm_90a") for text in BEST]
    return [(text, target) for text, target in one_each(rows)]


@pytest.mark.nvrtc
def test_nothing_spills_and_resources_are_as_predicted() -> None:
    assert_as_predicted(sample())


# ---- Where copies go, as the template computes it from each thread's first -----------------------------------------


def misplaced(along: bool, depth: int, extent: int, vec: int, threads: int) -> int:
    """Copies of a tile that do not go to where their row and column of it are read."""
    spare = 4 if extent % 32 else 0
    width, height, pitch = (depth, extent, depth) if along else (extent, depth, extent + spare)
    per_row = width // vec

    def swap(row: Any) -> Any:
        if along:
            return 0 * row if depth == 8 else row // 2 % 2 * 8 if depth == 16 else row % 4 * 8
        return 0 * row if spare else row // 2 % 4 * 8

    number = np.arange(height * per_row)  # of the copies, each thread's from its own number on
    thread = number % threads
    row, col = thread // per_row, thread % per_row * vec
    place = row * pitch + (col ^ swap(row))
    further, right = (number - thread) // per_row, (number - thread) % per_row * vec
    to = (place ^ swap(further)) + further * pitch + right
    own, at = number // per_row, number % per_row * vec
    return int(np.count_nonzero(to != own * pitch + (at ^ swap(own))))


def test_copies_go_where_they_are_read() -> None:
    """For every legal way of copying, with and without vectors, of whole and of odd tiles."""
    ways = set()
    choices = {leaf.name: leaf.choices for leaf in parse("tf32x3:").leaves()}
    for trans, block_m, block_k, slices in product(
        ("nn", "tt"), choices["block_m"], choices["block_k"], choices["slices"]
    ):
        problem = Problem.parse("1024", "float", trans, "normwise")
        for block_n, warp_m, warp_n in product(choices["block_n"], (16, 32, 64), (8, 16, 32)):
            tile = f"{block_m}x{block_n}x{block_k},warp={warp_m}x{warp_n},slices={slices},stages=2"
            config = parse(f"tf32x3:{tile},fragments=single")
            fit = Fit(config, Edge.BOUNDS, 4, 4, 1)
            rules = all(rule.holds(problem, config, fit) for rule in config.fit_rules)
            if rules and config.threads <= 1024 and serves(config, problem, SM_90):
                for along, extent in ((trans == "nn", block_m), (trans == "tt", block_n)):
                    ways |= {(along, block_k, extent, vec, config.threads) for vec in (1, 4)}
    assert len(ways) > 200
    assert {way: misplaced(*way) for way in ways if misplaced(*way)} == {}
