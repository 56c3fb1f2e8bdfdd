"""The dmma family: what its rules refuse, where its copies go, and what the compiler makes of it."""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvrtc import TARGETS, Row, assert_as_predicted
from search_spaces import tried
from targets import TYPICAL
from tilewright.codegen.legality import fitted, rejections, serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from variants import one_each, variant

SM_90 = TYPICAL["sm_90a"]
LARGEST = "128x128x16,warp=64x32"


def reasons(text: str, problem: str = "1024", dtype: str = "double", arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse(problem, dtype), variant(f"dmma:{text}"), TYPICAL[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        ("block_m=16,warp_m=32", "1024", "block_m 16 is a multiple of the rows of a warp, 32"),
        ("block_n=8,warp_n=16", "1024", "block_n 8 is a multiple of the columns of a warp, 16"),
        ("warp=64x64", "1024", "a thread holds at most 64 elements of C"),
        ("block_k=8,slices=2", "1024", "block_k 8 is whole steps of 8 for each of 2 slices"),
        ("block_k=8,fragments=double", "1024", "an even number of them with double-buffered fragments"),
        ("256x8x32,warp=64x8", "1024", "copies at most 32 elements"),
        ("interleave=2,fragments=single", "1024", "interleave 2 is for double-buffered fragments"),
        ("interleave=4,fragments=double,64x128x16,warp=16x16", "1024", "at most the copies of a thread"),
        ("persistent=3,slices=2", "1024", "no shared memory free for the accumulators of 2 slices"),
        ("persistent=16,block_n=8,warp_n=8", "2147483584x4096x8", "count fewer than 2^31"),
        ("128x192x16,warp=32x64,fragments=double", "1024", "registers of 1 CTAs fit on an SM"),
        ("256x256x32,warp_m=64,stages=5", "1024", "shared memory of a CTA stays within"),
    ],
)
def test_what_cannot_be_is_refused(text: str, problem: str, reason: str) -> None:
    given = reasons(text, problem)
    assert any(reason in each for each in given), given


EVENLY = "threads share out the rows of the tiles of A and B evenly, half of them at least where tiles fit a narrow C"


def test_rows_that_threads_cannot_share_out_evenly_are_refused() -> None:
    config = variant("dmma:block_m=96,warp_m=48")
    for trans, expected in (("nn", []), ("tn", [EVENLY])):
        assert list(rejections(Problem.parse("1024", "double", trans), config, SM_90)) == expected


def test_float_is_refused() -> None:
    assert "the tensor cores multiply double" in reasons("", dtype="float")


@pytest.mark.parametrize(("arch", "sizes"), [("sm_75", []), ("sm_80", [4]), ("sm_90a", [8, 4]), ("host", [8, 4])])
def test_each_device_has_its_instructions(arch: str, sizes: list[int]) -> None:
    assert [size for size in (8, 4) if not reasons(f"mma_k={size}", arch=arch)] == sizes


@pytest.mark.parametrize(("shape", "ctas"), [("512x192x64", 6), ("513x192x64", 7), ("64", 1)])
def test_a_persistent_cta_takes_tiles_a_grid_apart(shape: str, ctas: int) -> None:
    problem, config = Problem.parse(shape, "double"), variant("dmma:64x64x16,persistent=4,shared=1")
    assert config.launch_config(problem, 132).grid == (ctas, 1, 1)
    code = render(problem, config, SM_90).code
    assert "+= gridDim.x" in code
    assert "ceil(m / 64) * ceil(n / 64) / 4, rounded up" in code
    # Accumulators pass through memory of their own: the stages are filled meanwhile.
    plain = variant("dmma:64x64x16,persistent=4").smem_bytes(DType.DOUBLE)
    assert config.smem_bytes(DType.DOUBLE) > plain == 3 * 16 * (64 + 64) * 8


def test_alignment_workspace_and_large_shared_memory() -> None:
    problem, config = Problem.parse("256x127x512", "double"), variant(f"dmma:{LARGEST},stages=4,split_k=4")
    launch = config.launch_config(problem, 132)
    assert fitted(problem, config, SM_90).alignment == (2, 1, 1)
    assert config.workspace_bytes(problem, 132) == 2 * 4 * 128 * 128 * 8 + 2 * 4
    assert launch.grid == (8, 1, 1)
    assert launch.static_smem_bytes == 0
    assert launch.dynamic_smem_bytes == 4 * 16 * (128 + 128) * 8
    assert "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64" in render(problem, config, SM_90).code


# ---- What the compiler makes of it -----------------------------------------------------------------------------

BEST = (
    f"{LARGEST},stages=4,fragments=double",
    "128x64x16,warp=64x32,stages=3,fragments=double",
    "64x64x16,warp=32x32,stages=4,fragments=double",
    "64x32x32,warp=32x32,stages=4,slices=4",
    f"{LARGEST},stages=4,shared=1",
    "64x32x32,warp=32x32,stages=4,slices=4,split_k=4,shared=1",
    "64x64x32,warp=32x32,stages=4,slices=2,fragments=double,split_k=8",
)
"""Configs that large and middle sizes are expected to need: these must be compiled for each target besides a sample."""


def of(shape: str, target: str = "sm_90a", trans: str = "nn", **values: Any) -> list[Any]:
    """The configs that a search tries for a problem."""
    return tried(Problem.parse(shape, "double", trans), target, "dmma", **values)


def sample() -> list[Row]:
    """Instances and targets."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str, str]] = []
    for target in TARGETS:
        for trans, count in (("nn", 3), ("nt", 1), ("tn", 1), ("tt", 1)):
            configs = of("1024", target, trans)
            rows += [(str(config), "double", trans, target) for config in generator.sample(configs, count)]
    doubled = of("1024", fragments=("double",))  # where two sets of operands leave the fewest registers
    rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(doubled, 6)]
    clustered = [each for each in of("512x512x1024") if each.clustered]
    rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(clustered, 8)]
    for shape, trans in (("129x100x100000", "nn"), ("9733x67x1687", "nt"), ("69x29569x477", "tt")):
        fitted = [each for each in of(shape, trans=trans) if each.tile.fitted]
        rows += [(str(config), "double", trans, "sm_90a") for config in generator.sample(fitted, 6)]
    lasting = [each for each in of("8192x8192x16") if each.persistent_tiles > 1]
    for config, target in product(generator.sample(lasting, 6), TARGETS[1:]):
        if serves(config, Problem.parse("1024", "double"), TYPICAL[target]):
            rows.append((str(config), "double", "nn", target))
    for trans in ("nn", "tn"):
        stream = [each for each in of("2048", trans=trans) if each.stream_ctas_per_sm]
        rows += [(str(config), "double", trans, "sm_90a") for config in generator.sample(stream, 6)]
    rows += [(str(variant(f"dmma:{text}")), "double", "nn", "sm_90a") for text in BEST]
    return [(text, target) for text, target in one_each(rows)]


@pytest.mark.nvrtc
@pytest.mark.slow
def test_nothing_spills_and_resources_are_as_predicted() -> None:
    assert_as_predicted(sample())


# ---- Where copies go, as the template computes it from each thread's first ---------------------------------------


Numbers = NDArray[np.int64]


def misplaced(along: bool, depth: int, extent: int, vec: int, threads: int) -> int:
    """Copies of a tile that do not go to where their row and column of it are read."""
    spare = 4 if extent % 16 else 0
    width, height, pitch = (depth, extent, depth) if along else (extent, depth, extent + spare)
    per_row = width // vec

    def swizzle(row: Numbers) -> Numbers:
        if along:
            return row // 2 % 2 * 4 if depth == 8 else row % 4 * 4
        return 0 * row if spare else row % 4 * 4

    number = np.arange(height * per_row)  # of the copies, each thread's from its own number on
    thread = number % threads
    row, col = thread // per_row, thread % per_row * vec
    place = row * pitch + (col ^ swizzle(row))
    further, right = (number - thread) // per_row, (number - thread) % per_row * vec
    to = (place ^ swizzle(further)) + further * pitch + right
    own, at = number // per_row, number % per_row * vec
    return int(np.count_nonzero(to != own * pitch + (at ^ swizzle(own))))


def test_copies_go_where_they_are_read() -> None:
    """For every way of copying that searches try, with and without vectors, of whole and of odd shapes."""
    ways = set()
    shapes = ("1024", "1023x769x511", "64x64x65536", "16x4096x4096", "145x142x43141", "100x150x90000", "9733x67x1687")
    for shape, trans in product(shapes, ("nn", "tt")):
        problem = Problem.parse(shape, "double", trans)
        for config in of(shape, trans=trans):
            alignment = fitted(problem, config, SM_90).alignment
            for side, along, vec in zip("ab", (trans == "nn", trans == "tt"), alignment):
                extent = config.tile.block_m if side == "a" else config.tile.block_n
                ways |= {
                    (along, config.tile.block_k, extent, each, config.copiers(side, each, along)) for each in (1, vec)
                }
    assert len(ways) > 100
    assert {way: misplaced(*way) for way in ways if misplaced(*way)} == {}


def test_three_rows_at_a_time_are_refused() -> None:
    """96 threads and rows of 32: the chunks of later rows would not be swizzled as those of the first."""
    text = "48x96x32,warp=48x32"
    assert reasons(text, "1023x769x511") == [EVENLY]
    assert misplaced(True, 32, 48, 1, 96) > 0
    assert reasons(text.replace("48x96x32", "48x96x16"), "1023x769x511") == []
