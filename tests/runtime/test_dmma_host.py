"""The dmma family on the host device: the edge grid, vectors, operands that lie askew, accuracy and planted faults."""

import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from launches import launch
from planted import PARTS, Planted, assert_caught
from products import (
    SCALARS,
    QuickDevice,
    bits,
    check,
    check_askew,
    check_sizes,
    guarded,
    instance,
    integers,
    prepared,
    run,
    sized,
)  # fmt: skip
from quick import QuickCompiler, compile_together, rendered, together
from tilewright.codegen.config import Config
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Problem
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import prepare
from variants import changed, cta_tile, field, variant

# One for each way through the template, and each size of instruction; together all transposes meet every one.
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


def config_for(text: str) -> Config:
    return variant(f"dmma:{text}")


TURNS = (("nn", "tt"), ("nt", "tn"))
"""Transposes that configs have in turn, the others where tests marked slow run too."""


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CONFIGS)
def test_edge_grid(name: str, turn: int) -> None:
    device, config = QuickDevice(sm_count=SM_COUNTS.get(name, 1)), config_for(CONFIGS[name])
    turns = TURNS[(list(CONFIGS).index(name) + turn) % 2]
    if field(config, "warp_m") == 48:  # threads share out 48 stored rows evenly, but not rows of 48 elements
        turns = (("nn",), ("nt",))[turn]
    tile_m, tile_n, tile_k = tile = cta_tile(config)
    whole = [Problem.parse("x".join(map(str, tile)), "double", trans) for trans in turns]
    fits, edges = [guarded(config, "double", trans) for trans in turns], (Edge.BOUNDS, Edge.EXACT)
    vectors = []
    for edge, problem in product(edges, whole) if turn else zip(edges, itertools.cycle(whole)):
        shapes = {
            Edge.BOUNDS: ((tile_m + 4, tile_n - 2, tile_k + 4), (2, 4, 2)),
            Edge.EXACT: ((2 * tile_m, tile_n, 3 * tile_k),),
        }[edge]
        vectors += [(sized(problem, *shape), config) for shape in shapes]
    compile_together([*zip(whole, fits), *vectors])

    kernels = [instance(device, *each) for each in zip(whole, fits)]
    check_sizes(kernels, product(*((1, t - 1, t, t + 1, 2 * t + 3) for t in tile)))
    for kernel, k in product(kernels, (0, 2)):
        other = prepare(device, sized(kernel.problem, tile_m + 1, 3, k), config, aligned=False)
        assert other.source == prepared(kernel, other.problem).source
        for alpha, beta in SCALARS:
            check(other, alpha, beta, 7)
    for (problem, chosen), (alpha, beta) in product(vectors, SCALARS):
        kernel = prepare(device, problem, chosen)
        # Rows 8 elements apart stay aligned; others are served by the unaligned instance, by the same tiles.
        for extra in (0, 8, 1, 7) if kernel.fit.edge is Edge.BOUNDS else (0, 8):
            check(kernel, alpha, beta, extra)


def test_operands_that_start_askew_are_served_by_the_unaligned_instance() -> None:
    config = config_for(CONFIGS["8 steps"])
    check_askew(8, lambda device: prepare(device, Problem.parse("36x40x44", "double"), config))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_accuracy(name: str) -> None:
    """T1 by the verifier, and T2: an IEEE sum of k terms is this near, a shortened one is not."""
    problem = Problem.parse("65x70x300", "double", "nt")
    device = HostDevice()
    verdict = Verifier(device, problem).check(prepare(device, problem, config_for(CONFIGS[name])).launch)
    assert verdict.reason == ""
    assert 0 < verdict.accuracy.worst <= 1
    assert verdict.accuracy.worst * (problem.k + 2) <= 4 * (problem.k + 2) ** 0.5


def test_nan_and_infinity_propagate() -> None:
    device = HostDevice()
    problem = Problem.parse("20x19x21", "double")
    a, b, c = integers(problem, 3)
    a[4, 7], b[20, 2] = np.nan, np.inf
    got = run(device, prepare(device, problem, config_for(CONFIGS["8 steps"])), a, b, c, 1.0, 0.0)
    assert np.isnan(got[4]).all()
    assert not np.isfinite(got[:, 2]).any()
    assert np.isfinite(np.delete(np.delete(got, 4, axis=0), 2, axis=1)).all()


def test_split_k_gives_the_same_bits_again() -> None:
    kernel = prepare(HostDevice(), Problem.parse("33x18x200", "double"), config_for(CONFIGS["slices, splits"]))
    assert len({bits(kernel) for _ in range(5)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if "shared" in name])
def test_accumulators_that_pass_through_shared_memory_keep_their_bits(name: str) -> None:
    pairs, config = [], config_for(CONFIGS[name])
    for problem in (Problem.parse("67x71x43", "double"), Problem.parse("67x70x43", "double")):
        pairs.append([(problem, changed(config, shared=shared)) for shared in (0, 1)])
    compile_together(itertools.chain(*pairs))
    for pair in pairs:
        assert len({bits(prepare(HostDevice(), *each), 0.7) for each in pair}) == 1


PROBE = """
extern "C" __global__ void places(double* out)
{
    __shared__ double tile[kStage];
    for (int i = threadIdx.x; i < kStage; i += 32) tile[i] = i;
    __syncthreads();
    const double* from[TileA::kBases];
    TileA::find(from, tile, 0, 0, threadIdx.x);
    for (int p = 0; p < kBlockK; p += kStep) {
        double fragment[kLaneK];
        TileA::read(fragment, from, 0, p, 1);
        for (int e = 0; e < kLaneK; ++e) out[threadIdx.x * kBlockK / 4 + p / 4 + e] = fragment[e];
    }
}
"""


def test_no_two_lanes_of_a_read_meet_in_a_bank(tmp_path: Path) -> None:
    """Shared memory that holds its own indices tells where each lane reads, in the text as it is emitted."""
    device, probes = HostDevice(), []
    for trans, block_k, block_m in product(("nn", "tn"), (8, 16, 32, 64), (16, 32, 64)):
        config = variant(f"dmma:{block_m}x8x{block_k},warp=16x8,stages=2")
        source = rendered(Problem.parse("64", "double", trans), guarded(config, "double", trans))
        probes.append(replace(source, name=f"places_{len(probes)}", code=source.code + PROBE))
    code = [replace(probe, code=probe.code.replace("places(", f"{probe.name}(")) for probe in probes]
    binary = QuickCompiler().build(together(code), str(tmp_path))
    for probe, (_, block_k, _) in zip(probes, product(("nn", "tn"), (8, 16, 32, 64), (16, 32, 64)), strict=True):
        reads = block_k // 4
        memory = device.allocate(32 * reads * 8)
        how = LaunchConfig((1, 1, 1), (32, 1, 1))
        launch(device.load(binary, probe.name), how, [np.uint64(memory.pointer)])
        places = memory.array("float64", (32, reads)).astype(int)
        assert len(set(places.ravel())) == 32 * reads
        # Elements of 8 bytes: half a warp reads at a time, from 32 banks of 4 bytes.
        for half in (places[:16], places[16:]):
            assert all(len(set(half[:, read] % 16)) == 16 for read in range(reads)), probe.name


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

# Name, text, replacement, config, and transposes or vectors where they matter.
FAULTS: tuple[tuple[str, str, str, str, str, int], ...] = (
    ("accumulators not set", "Elem acc[kAcc] = {};", "Elem acc[kAcc];", PLAIN, "nn", 1),
    ("C read where beta is 0", "if (beta != Elem(0)) {", "if (true) {", PLAIN, "nn", 1),
    ("alpha ignored", "out[e] *= alpha", "out[e] *= Elem(1)", PLAIN, "nn", 1),
    ("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k", PLAIN, "nn", 1),
    ("ld of A and B swapped", "matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
     "matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda", PLAIN, "nn", 1),
    ("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)", PLAIN, "nn", 1),
    ("guard of rows lost", "outer_inside |= unsigned((kAlongK ? row + row_of(i) : col + col_of(i)) < outer_left) << i;",
     "outer_inside |= 1u << i;", PLAIN, "nn", 1),
    ("guard of columns lost", "if ((kAlongK ? row : col) >= outer_left) k = 1u << 31;", "", PLAIN, "nn", 1),
    ("guard of stored rows off by one", "row >= rows || col >= cols", "row > rows || col >= cols", PLAIN, "nn", 1),
    ("guard of stored columns off by one", "|| col >= cols) return", "|| col > cols) return", PLAIN, "nn", 1),
    ("shared memory a row short", "/ sizeof(Elem)];", "/ sizeof(Elem) - kBlockN - 4];", PLAIN, "nn", 1),
    ("last tile dropped", "each < tiles; ++each", "each < tiles - 1; ++each", PLAIN, "nn", 1),
    ("endless loop", "each < tiles; ++each", "each < tiles; each += 0", PLAIN, "nn", 1),
    ("tile index off by one", "Index(tile_m) * kBlockM", "Index(tile_m) * kBlockM + 1", PLAIN, "nn", 1),
    ("rows swizzled as read only", "(col ^ swizzle(row))", "col", PLAIN, "nn", 1),
    ("rows swizzled as written only", "^ swizzle(lane / 4))", "^ 0)", PLAIN, "tt", 1),
    ("swizzle of later copies forgotten", "(place ^ swizzle(row))", "place", PLAIN, "nn", 1),
    ("fragment read a step late", "const int at = p + 4 * e;", "const int at = p + 4 * e + 1;", WARPS, "tn", 1),
    ("group read twice", "at * kPitch + i / kBases * kBases * 8]", "at * kPitch]", WIDE, "tn", 1),
    ("threads copy that have no part", "const bool copier = kCopiers == kThreads || threadIdx.x < kCopiers;",
     "const bool copier = true;", FITTED, "nn", 1),
    ("fewer threads copy than lie apart", "return copier && (", "return threadIdx.x < kCopiers / 2 && (",
     FITTED, "nn", 1),
    ("groups read a row early", "at / 16 * 16 + i * 8 * kPitch", "at / 16 * 16 + i * 7 * kPitch", PLAIN, "nt", 1),
    ("vectors stored scalar", "v < kVecC; ++v) value", "v < 1; ++v) value", PLAIN, "nn", 2),
    ("wait forgotten", "wait_copies<kStages - 2>();", "", WARPS, "nn", 1),
    ("wait too short", "wait_copies<kStages - 2>();", "wait_copies<kStages - 1>();", WARPS, "nn", 1),
    ("barrier missing", "wait_copies<kStages - 2>();\n    __syncthreads();", "wait_copies<kStages - 2>();",
     WARPS, "nn", 1),
    ("group not committed", "commit_copies();  // an empty group counts too", "", PLAIN, "nn", 1),
    ("stage filled too early", "int writing = (kStages - 1) * kStage;", "int writing = 0;", PLAIN, "nn", 1),
    ("stages not advanced", "reading = reading == (kStages - 1) * kStage ? 0 : reading + kStage;", "", WARPS, "nn", 1),
    ("copy reads outside", "cp_async<kBytes>(to, from, inside)", "cp_async<kBytes>(to, from, true)", PLAIN, "nn", 1),
    ("rows of a fragment exchanged", "a_upper[0], a_lower[0],", "a_lower[0], a_upper[0],", PLAIN, "nn", 1),
    ("small instruction takes other rows", "(c[0], c[1], a[i][p],", "(c[0], c[1], a[0][p],", SMALL, "nn", 1),
    ("part of the result in the wrong rows", "along_m + 8 * i", "along_m + 7 * i",
     PLAIN, "nn", 1),
    ("columns swizzled as written only", "^ swizzle(lane % 4);", "^ 0;", PLAIN, "nn", 1),
    ("every other group swizzled alike", "(outer + 8 * b) ^", "outer ^", WIDE, "nn", 1),
    ("wrong set of operands", "a_fragment[step % 2]", "a_fragment[0]", DOUBLE, "nn", 1),
    ("wrong columns beside", "read, (step + 1) % 2);", "read, step % 2);", DOUBLE, "nn", 1),
    ("rows beside from this step", "read_a((step + 1) % kSteps, read", "read_a(step, read", DOUBLE, "nn", 1),
    ("last groups beside not read", "read < kReads;", "read < kReads - 1;", DOUBLE, "nn", 1),
    ("group of copies left out", "i * kInterleave / kCopies != group", "i * kInterleave / kCopies + 1 != group",
     INTERLEAVED, "nn", 1),
    ("groups of the last places left out", "if (place < kCopyPlaces)", "if (place < kCopyPlaces / 2)",
     INTERLEAVED, "nn", 1),
    ("interleaved copies beyond the last tile", "_if<kBytes>(on,", "_if<kBytes>(true,", INTERLEAVED, "nn", 1),
    ("interleaved copies of the same tile again",
     "        a.advance();\n        b.advance();\n", "", INTERLEAVED, "nn", 1),
    ("interleaved copies committed too late", "        commit_tile(writing);\n        wait_tile();",
     "        wait_tile();\n        commit_tile(writing);", INTERLEAVED, "nn", 1),
    ("slices overlap", "kSliceThreads * (kBlockK / kSlices)", "kSliceThreads * 0", LARGE_K, "nn", 2),
    ("accumulators read before they are there", "    arrive_cluster();\n    wait_cluster();", "", CLUSTER, "nn", 2),
    ("CTA ends while it is read", "    wait_cluster();\n}\n", "}\n", CLUSTER, "nn", 1),
    ("own accumulators taken for all", "(split + other) % kSplitK", "split", CLUSTER, "nn", 1),
    ("accumulators read before they are put down", "    __syncwarp();\n    #pragma", "    #pragma", SHARED, "nn", 1),
    ("accumulators exchanged for another lane", "+ at % kWarpN;", "+ (at ^ 2) % kWarpN;", SHARED, "nn", 1),
    ("accumulators put down in one row",
     "band_place(first + e, lane_m(lane))", "band_place(first + e, 0)", SHARED, "nn", 1),
    ("accumulators of the tile before kept", "        Elem acc[kAcc] = {};",
     "        static thread_local Elem acc[kAcc];", PERSISTENT, "nn", 1),
    ("operands of the first tile again", "tile_of(copied", "tile_of(blockIdx.x", PERSISTENT, "nn", 1),
    ("k not begun anew", "k_left = work.depth;", "k_left = 1;", PERSISTENT, "nn", 1),
    ("copies beyond the last tile of C", "if (copied < work.tiles) pipeline.fetch(shared + writing)",
     "pipeline.fetch(shared + writing)", PERSISTENT, "nn", 1),
    ("first tile of C written again", "tile_of(each_tile", "tile_of(blockIdx.x", PERSISTENT, "nn", 1),
    ("next tile of C left out", "each_tile += gridDim.x", "each_tile += 2 * gridDim.x", PERSISTENT, "nn", 1),
    ("accumulators passed on where operands arrive",
     "shared + kStages * kStage, lane", "shared, lane", PERSISTENT, "nn", 1),
    ("accumulators put down where others are read",
     "    __syncwarp();  // the last ones were read\n", "", PERSISTENT, "nn", 1),
)  # fmt: skip


def fit_for(text: str, trans: str, vec: int) -> Fit:
    """The guarded instance with vectors of one element or of two."""
    return guarded(config_for(text), "double", trans, wide=vec == 2)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [Planted(name, fit_for(text, t, vec), old, new, trans=t) for name, old, new, text, t, vec in FAULTS]
    for text, trans, vec in product(UNFAULTED, ("nn", "tt"), (1, 2)):
        if (text, vec) != (LARGE_K, 1):  # there memory is aligned to one element, and a workspace to two
            planted.append(Planted(f"unfaulted {text} {trans} {vec}", fit_for(text, trans, vec), trans=trans))
    assert_caught(planted[part::PARTS], tmp_path)
