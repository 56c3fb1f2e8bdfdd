"""The dmma family: products on the host device, planted faults, rules, banks, and machine code."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import KernelConformance, Refusal
from numpy.typing import NDArray
from nvrtc import TARGETS, Row, assert_as_predicted
from planted import Fault
from products import places_read
from quick import TYPICAL
from search_spaces import tried
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import fitted, rejections, serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from variants import one_each, variant

# One for each path through the template and each size of instruction. Every config takes all transposes in turn.
CONFIGS = {
    "8 steps": "32x32x16,warp=32x16,stages=3",
    "one step a tile": "32x16x8,warp=16x16,stages=2,raster=4",
    "long warps": "64x8x32,warp=32x8,stages=3",
    "4 steps": "16x32x32,warp=16x32,mma_k=4,stages=4",
    "8 steps, fragments double": "32x32x16,warp=32x16,stages=3,fragments=double",
    "wide warps, fragments double, splits": "32x64x32,warp=16x32,stages=2,fragments=double,split_k=3",
    "three of 16 rows": "96x16x16,warp=48x16,stages=3,split_k=2",
    "slices, cooperative reduction": "16x32x32,warp=16x16,stages=2,slices=4,split_k=32",
    "slices, splits": "16x32x32,warp=16x16,stages=2,slices=4,split_k=4",
    "slices, splits, one step a tile": "64x16x16,warp=32x8,mma_k=4,stages=5,slices=2,split_k=2,raster=8",
    "large block_k, many slices": "16x32x64,warp=16x32,stages=3,slices=8",
    "cluster, fragments double": "32x32x16,warp=32x16,stages=3,fragments=double,split_k=2,reduce=cluster",
    "cluster, slices, unequal shares": "32x16x32,warp=32x16,stages=2,slices=2,split_k=5,reduce=cluster",
    "interleaved": "32x32x16,warp=32x16,stages=3,fragments=double,interleave=4,evict_first=1",
    "interleaved, 4 steps, slices":
        "32x16x32,warp=16x16,mma_k=4,stages=2,slices=2,split_k=3,fragments=double,"
        "interleave=2",
    "interleaved, unequal groups": "16x32x32,warp=16x32,stages=4,fragments=double,interleave=4,shared=1,evict_first=1",
    "persistent, grouped": "16x16x8,warp=16x8,stages=3,raster=4,persistent=3",
    "persistent, interleaved, shared":
        "32x32x16,warp=32x16,stages=3,fragments=double,interleave=4,shared=1,persistent=2",
    "persistent, one CTA": "16x32x16,warp=16x32,stages=5,persistent=16",
    "stream-K, grouped": "16x16x8,warp=16x8,stages=3,raster=4,stream_k=3",
    "stream-K, interleaved, shared": "32x32x16,warp=32x16,stages=3,fragments=double,interleave=4,shared=1,stream_k=2",
    "stream-K, slices, many CTAs": "16x32x32,warp=16x16,stages=2,slices=4,stream_k=4",
    "fitted columns, some threads copy": "32x40x16,warp=16x40,stages=3,fragments=double,interleave=2",
    "fitted columns, swizzled": "64x80x16,warp=16x80,stages=2,split_k=3",
    "fitted columns, cooperative reduction": "32x24x16,warp=16x24,stages=2,split_k=26",
    "fitted rows, slices, shared": "80x32x32,warp=80x16,stages=2,slices=2,shared=1",
    "shared": "32x32x16,warp=32x16,stages=2,split_k=2,shared=1",
    "shared, pieces, wide": "48x64x16,warp=48x32,stages=2,shared=1",
    "shared, unequal slices": "48x16x32,warp=48x16,stages=2,slices=4,split_k=3,shared=1",
}  # fmt: skip

SM_COUNTS = {"stream-K, slices, many CTAs": 10}

# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "16x16x16,warp=16x16,stages=3"
WARPS = "32x16x8,warp=16x8,stages=3"
SMALL = "16x16x16,warp=16x8,mma_k=4,stages=2"
WIDE = "16x32x16,warp=16x32,stages=3"
DOUBLE = "32x16x16,warp=32x16,stages=3,fragments=double"
INTERLEAVED = "32x16x16,warp=32x16,stages=2,fragments=double,interleave=4"
LARGE_K = "16x16x32,warp=16x8,stages=2,slices=2,split_k=2"
CLUSTER = "32x16x32,warp=16x16,stages=2,slices=2,split_k=3,reduce=cluster"
SHARED = "32x32x16,warp=32x16,stages=2,shared=1"
PERSISTENT = "16x16x16,warp=16x8,stages=3,fragments=double,shared=1,persistent=2"
FITTED = "32x40x16,warp=16x40,stages=3"
UNFAULTED = (FITTED, PLAIN, WARPS, SMALL, WIDE, DOUBLE, INTERLEAVED, LARGE_K, CLUSTER, SHARED, PERSISTENT)

FAULTS = (
    Fault("accumulators not set", "Elem acc[kAcc] = {};", "Elem acc[kAcc];", PLAIN),
    Fault("C read where beta is 0", "if (beta != Elem(0)) {", "if (true) {", PLAIN),
    Fault("alpha ignored", "out[e] *= alpha", "out[e] *= Elem(1)", PLAIN),
    Fault("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k", PLAIN),
    Fault("ld of A and B swapped", "matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
          "matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda", PLAIN),
    Fault("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)", PLAIN),
    Fault("guard of rows lost",
          "outer_inside |= unsigned((kAlongK ? row + row_of(i) : col + col_of(i)) < outer_left) << i;",
          "outer_inside |= 1u << i;", PLAIN),
    Fault("guard of columns lost", "if ((kAlongK ? row : col) >= outer_left) k = 1u << 31;", "", PLAIN),
    Fault("guard of stored rows off by one", "row >= rows || col >= cols", "row > rows || col >= cols", PLAIN),
    Fault("guard of stored columns off by one", "|| col >= cols) return", "|| col > cols) return", PLAIN),
    Fault("shared memory a row short", "/ sizeof(Elem)];", "/ sizeof(Elem) - kBlockN - 4];", PLAIN),
    Fault("last tile dropped", "each < tiles; ++each", "each < tiles - 1; ++each", PLAIN),
    Fault("endless loop", "each < tiles; ++each", "each < tiles; each += 0", PLAIN),
    Fault("tile index off by one", "Index(tile_m) * kBlockM", "Index(tile_m) * kBlockM + 1", PLAIN),
    Fault("rows swizzled as read only", "(col ^ swizzle(row))", "col", PLAIN),
    Fault("rows swizzled as written only", "^ swizzle(lane / 4))", "^ 0)", PLAIN, "tt"),
    Fault("swizzle of later copies forgotten", "(place ^ swizzle(row))", "place", PLAIN),
    Fault("fragment read a step late", "const int at = p + 4 * e;", "const int at = p + 4 * e + 1;", WARPS, "tn"),
    Fault("group read twice", "at * kPitch + i / kBases * kBases * 8]", "at * kPitch]", WIDE, "tn"),
    Fault("threads copy that have no part", "const bool copier = kCopiers == kThreads || threadIdx.x < kCopiers;",
          "const bool copier = true;", FITTED),
    Fault("fewer threads copy than lie apart", "return copier && (", "return threadIdx.x < kCopiers / 2 && (",
          FITTED),
    Fault("groups read a row early", "at / 16 * 16 + i * 8 * kPitch", "at / 16 * 16 + i * 7 * kPitch", PLAIN, "nt"),
    Fault("vectors stored scalar", "v < kVecC; ++v) value", "v < 1; ++v) value", PLAIN, wide=True),
    Fault("wait forgotten", "wait_copies<kStages - 2>();", "", WARPS),
    Fault("wait too short", "wait_copies<kStages - 2>();", "wait_copies<kStages - 1>();", WARPS),
    Fault("barrier missing", "wait_copies<kStages - 2>();\n    __syncthreads();", "wait_copies<kStages - 2>();",
          WARPS),
    Fault("group not committed", "commit_copies();  // an empty group counts too", "", PLAIN),
    Fault("stage filled too early", "int writing = (kStages - 1) * kStage;", "int writing = 0;", PLAIN),
    Fault("stages not advanced", "reading = reading == (kStages - 1) * kStage ? 0 : reading + kStage;", "", WARPS),
    Fault("copy reads outside", "cp_async<kBytes>(to, from, inside)", "cp_async<kBytes>(to, from, true)", PLAIN),
    Fault("rows of a fragment exchanged", "a_upper[0], a_lower[0],", "a_lower[0], a_upper[0],", PLAIN),
    Fault("small instruction takes other rows", "(c[0], c[1], a[i][p],", "(c[0], c[1], a[0][p],", SMALL),
    Fault("part of the result in the wrong rows", "along_m + 8 * i", "along_m + 7 * i",
          PLAIN),
    Fault("columns swizzled as written only", "^ swizzle(lane % 4);", "^ 0;", PLAIN),
    Fault("every other group swizzled alike", "(outer + 8 * b) ^", "outer ^", WIDE),
    Fault("wrong set of operands", "a_fragment[step % 2]", "a_fragment[0]", DOUBLE),
    Fault("wrong columns beside", "read, (step + 1) % 2);", "read, step % 2);", DOUBLE),
    Fault("rows beside from this step", "read_a((step + 1) % kSteps, read", "read_a(step, read", DOUBLE),
    Fault("last groups beside not read", "read < kReads;", "read < kReads - 1;", DOUBLE),
    Fault("group of copies left out", "i * kInterleave / kCopies != group", "i * kInterleave / kCopies + 1 != group",
          INTERLEAVED),
    Fault("groups of the last places left out", "if (place < kCopyPlaces)", "if (place < kCopyPlaces / 2)",
          INTERLEAVED),
    Fault("interleaved copies beyond the last tile", "_if<kBytes>(on,", "_if<kBytes>(true,", INTERLEAVED),
    Fault("interleaved copies of the same tile again",
          "        a.advance();\n        b.advance();\n", "", INTERLEAVED),
    Fault("interleaved copies committed too late", "        commit_tile(writing);\n        wait_tile();",
          "        wait_tile();\n        commit_tile(writing);", INTERLEAVED),
    Fault("slices overlap", "kSliceThreads * (kBlockK / kSlices)", "kSliceThreads * 0", LARGE_K, wide=True),
    Fault("accumulators read before they are there",
          "    arrive_cluster();\n    wait_cluster();", "", CLUSTER, wide=True),
    Fault("CTA ends while it is read", "    wait_cluster();\n}\n", "}\n", CLUSTER),
    Fault("own accumulators taken for all", "(split + other) % kSplitK", "split", CLUSTER),
    Fault("accumulators read before they are put down", "    __syncwarp();\n    #pragma", "    #pragma", SHARED),
    Fault("accumulators exchanged for another lane", "+ at % kWarpN;", "+ (at ^ 2) % kWarpN;", SHARED),
    Fault("accumulators put down in one row",
          "band_place(first + e, lane_m(lane))", "band_place(first + e, 0)", SHARED),
    Fault("accumulators of the previous tile not reset", "        Elem acc[kAcc] = {};",
          "        static thread_local Elem acc[kAcc];", PERSISTENT),
    Fault("operands of the first tile again", "tile_of(copied", "tile_of(blockIdx.x", PERSISTENT),
    Fault("k not begun anew", "k_left = work.depth;", "k_left = 1;", PERSISTENT),
    Fault("copies beyond the last tile of C", "if (copied < work.tiles) pipeline.fetch(shared + writing)",
          "pipeline.fetch(shared + writing)", PERSISTENT),
    Fault("first tile of C written again", "tile_of(each_tile", "tile_of(blockIdx.x", PERSISTENT),
    Fault("next tile of C left out", "each_tile += gridDim.x", "each_tile += 2 * gridDim.x", PERSISTENT),
    Fault("accumulators passed on where operands arrive",
          "shared + kStages * kStage, lane", "shared, lane", PERSISTENT),
    Fault("accumulators put down where others are read",
          "    __syncwarp();  // the last ones were read\n", "", PERSISTENT),
)  # fmt: skip


class TestDmma(KernelConformance):
    family = "dmma"
    configs = CONFIGS
    turns = (("double", "nn"), ("double", "tt")), (("double", "nt"), ("double", "tn"))
    sm_counts = SM_COUNTS
    refused = (
        Refusal("block_m=16,warp_m=32", "block_m 16 is a multiple of the rows of a warp, 32"),
        Refusal("block_n=8,warp_n=16", "block_n 8 is a multiple of the columns of a warp, 16"),
        Refusal("warp=64x64", "a thread holds at most 64 elements of C"),
        Refusal("block_k=8,slices=2", "block_k 8 is whole steps of 8 for each of 2 slices"),
        Refusal("block_k=8,fragments=double", "an even number of them with double-buffered fragments"),
        Refusal("256x8x32,warp=64x8", "copies at most 32 elements"),
        Refusal("interleave=2,fragments=single", "interleave 2 is for double-buffered fragments"),
        Refusal("interleave=4,fragments=double,64x128x16,warp=16x16", "at most the copies of a thread"),
        Refusal("persistent=3,slices=2", "no shared memory free for the accumulators of 2 slices"),
        Refusal("persistent=16,block_n=8,warp_n=8", "count fewer than 2^31", "2147483584x4096x8"),
        Refusal("128x192x16,warp=32x64,fragments=double", "registers of 1 CTAs fit on an SM"),
        Refusal("256x256x32,warp_m=64,stages=5", "shared memory of a CTA stays within"),
    )  # fmt: skip
    instruction = "dmma.m16n8"
    faults = FAULTS
    unfaulted = UNFAULTED

    def vector_sizes(self, edge: Edge, tile: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """Sizes at which kernels use vectors, which have two elements."""
        m, n, k = tile
        return [(2 * m, n, 3 * k)] if edge is Edge.EXACT else [(m + 4, n - 2, k + 4), (2, 4, 2)]


def test_no_two_lanes_of_a_read_meet_in_a_bank(tmp_path: Path) -> None:
    cases = [*product(("nn", "tn"), (8, 16, 32, 64), (16, 32, 64))]
    problems = [Problem.parse("64", "double", trans) for trans, _, _ in cases]
    configs = [variant(f"dmma:{block_m}x8x{block_k},warp=16x8,stages=2") for _, block_k, block_m in cases]
    for case, places in zip(cases, places_read(problems, configs, tmp_path), strict=True):
        # Half a warp reads elements of 8 bytes at a time, from 32 banks of 4 bytes.
        for half in (places[:16], places[16:]):
            assert all(len(set(read % 16)) == 16 for read in half.T), case


# ---- Rules and launches ------------------------------------------------------------------------------------------

SM_90 = TYPICAL["sm_90a"]
LARGEST = "128x128x16,warp=64x32"


def reasons(text: str, problem: str = "1024", dtype: str = "double", arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse(problem, dtype), variant(f"dmma:{text}"), TYPICAL[arch]))


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
    # Accumulators pass through shared memory of their own, because the stages are filled meanwhile.
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


# ---- Machine code ----------------------------------------------------------------------------------------------

BEST = (
    f"{LARGEST},stages=4,fragments=double",
    "128x64x16,warp=64x32,stages=3,fragments=double",
    "64x64x16,warp=32x32,stages=4,fragments=double",
    "64x32x32,warp=32x32,stages=4,slices=4",
    f"{LARGEST},stages=4,shared=1",
    "64x32x32,warp=32x32,stages=4,slices=4,split_k=4,shared=1",
    "64x64x32,warp=32x32,stages=4,slices=2,fragments=double,split_k=8",
)
"""Configs that large and middle sizes are expected to need. They are compiled besides a sample."""


def of(shape: str, target: str = "sm_90a", trans: str = "nn", **values: Any) -> list[Any]:
    """Configs that a search tries for a problem."""
    return tried(Problem.parse(shape, "double", trans), target, "dmma", **values)


def sample() -> list[Row]:
    """Instances of all mechanisms, and targets."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str, str]] = []
    for target in TARGETS:
        for trans, count in (("nn", 3), ("nt", 1), ("tn", 1), ("tt", 1)):
            configs = of("1024", target, trans)
            rows += [(str(config), "double", trans, target) for config in generator.sample(configs, count)]
    doubled = of("1024", fragments=("double",))  # two sets of operands leave the fewest registers
    rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(doubled, 6)]
    clustered = [each for each in of("512x512x1024") if each.clustered]
    rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(clustered, 8)]
    for shape, trans in (("129x100x100000", "nn"), ("9733x67x1687", "nt"), ("69x29569x477", "tt")):
        fitted = [each for each in of(shape, trans=trans) if each.tile.fitted]
        rows += [(str(config), "double", trans, "sm_90a") for config in generator.sample(fitted, 6)]
    persistent = [each for each in of("8192x8192x16") if each.persistent_tiles > 1]
    for config, target in product(generator.sample(persistent, 6), TARGETS[1:]):
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


# ---- Addresses of copies, which the template computes from the first copy of each thread -------------------------


Numbers = NDArray[np.int64]


def misplaced(along: bool, depth: int, extent: int, vec: int, threads: int) -> int:
    """Number of copies of a tile that do not go to the address from which their row and column are read."""
    spare = 4 if extent % 16 else 0
    width, height, pitch = (depth, extent, depth) if along else (extent, depth, extent + spare)
    per_row = width // vec

    def swizzle(row: Numbers) -> Numbers:
        if along:
            return row // 2 % 2 * 4 if depth == 8 else row % 4 * 4
        return 0 * row if spare else row % 4 * 4

    number = np.arange(height * per_row)  # numbers of the copies; a thread begins with its own number
    thread = number % threads
    row, col = thread // per_row, thread % per_row * vec
    place = row * pitch + (col ^ swizzle(row))
    further, right = (number - thread) // per_row, (number - thread) % per_row * vec
    to = (place ^ swizzle(further)) + further * pitch + right
    own, at = number // per_row, number % per_row * vec
    return int(np.count_nonzero(to != own * pitch + (at ^ swizzle(own))))


TILE = "block_m", "block_k", "slices"


def test_copies_go_where_they_are_read() -> None:
    """Every legal way of copying is checked, with and without vectors, for whole and odd tiles."""
    ways = set()
    choices = {leaf.name: leaf.choices for leaf in parse("dmma:").leaves()}
    for trans, block_m, block_k, slices in product(("nn", "tt"), *(choices[name] for name in TILE)):
        problem = Problem.parse("1024", "double", trans)
        for block_n, warp_m, warp_n in product(choices["block_n"], choices["warp_m"], (8, 16, 32, 40, 64)):
            if block_m % warp_m or block_n % warp_n:
                continue
            tile = f"{block_m}x{block_n}x{block_k},warp={warp_m}x{warp_n},slices={slices},stages=2"
            config = parse(f"dmma:{tile},fragments=single")
            if config.threads > 1024 or not serves(config, problem, SM_90):
                continue
            for side, along, extent in (("a", trans == "nn", block_m), ("b", trans == "tt", block_n)):
                ways |= {(along, block_k, extent, vec, config.copiers(side, vec, along)) for vec in (1, 2)}
    assert len(ways) > 200
    assert {way: misplaced(*way) for way in ways if misplaced(*way)} == {}


def test_three_rows_at_a_time_are_refused() -> None:
    """With 96 threads and rows of 32, chunks of later rows would not be swizzled as those of the first."""
    text = "48x96x32,warp=48x32"
    assert reasons(text, "1023x769x511") == [EVENLY]
    assert misplaced(True, 32, 48, 1, 96) > 0
    assert reasons(text.replace("48x96x32", "48x96x16"), "1023x769x511") == []
