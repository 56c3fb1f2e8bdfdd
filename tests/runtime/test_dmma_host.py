"""The dmma family on the host device: the edge grid, vectors, operands that lie askew, accuracy and planted faults."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from planted import BROKEN, PARTS, RIGHT, Planted, outcomes
from products import exact, integers, prepared, run
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.kernel import Kernel, prepare

TRANS = ("nn", "nt", "tn", "tt")
SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0), (1.5, 1.0))
"""alpha and beta."""

# One for each way through the template, and each size of instruction; together all transposes meet every one.
CONFIGS = {
    "8 steps": "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3",
    "8 steps, prefetched": "block_m=32,block_n=16,warp_m=16,warp_n=16,block_k=8,stages=2,prefetch=1,group_m=4",
    "16 steps, prefetched": "block_m=64,block_n=8,warp_m=32,warp_n=8,block_k=32,mma_k=16,stages=3,prefetch=1",
    "4 steps": "block_m=16,block_n=32,warp_m=16,warp_n=32,block_k=32,mma_k=4,stages=4",
    "8 steps, prefetched beside": "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2",
    "16 steps, prefetched beside":
        "block_m=32,block_n=64,warp_m=16,warp_n=32,block_k=32,mma_k=16,stages=2,prefetch=2,split_k=3",
    "three of 16 rows": "block_m=96,block_n=16,warp_m=48,warp_n=16,block_k=16,stages=3,prefetch=1,split_k=2",
    "splits of the last tiles": "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=16,split_k=5,tail=4,group_m=4",
    "slices, splits that share out":
        "block_m=16,block_n=32,warp_m=16,warp_n=16,block_k=32,stages=2,slices=4,split_k=32",
    "slices, splits": "block_m=16,block_n=32,warp_m=16,warp_n=16,block_k=32,stages=2,slices=4,split_k=4",
    "slices, splits, prefetched":
        "block_m=64,block_n=16,warp_m=32,warp_n=8,block_k=16,mma_k=4,stages=5,slices=2,split_k=2,prefetch=1,group_m=8",
    "deep tiles, many slices": "block_m=16,block_n=32,warp_m=16,warp_n=32,block_k=64,stages=3,slices=8",
    "cluster, prefetched beside":
        "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2,split_k=2,cluster=1",
    "cluster, slices, uneven shares":
        "block_m=32,block_n=16,warp_m=32,warp_n=16,block_k=32,stages=2,slices=2,split_k=5,prefetch=1,cluster=1",
    "spread": "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2,copy_groups=4,stream_c=1",
    "spread, 4 steps, slices":
        "block_m=32,block_n=16,warp_m=16,warp_n=16,block_k=32,mma_k=4,stages=2,slices=2,split_k=3,prefetch=2,"
        "copy_groups=2",
    "spread, 16 steps, uneven groups":
        "block_m=16,block_n=32,warp_m=16,warp_n=32,block_k=32,mma_k=16,stages=4,prefetch=2,copy_groups=4,staged_c=1,stream_c=1",
    "persistent, grouped":
        "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=8,stages=3,prefetch=1,group_m=4,persistent=3",
    "persistent, spread, staged":
        "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2,copy_groups=4,staged_c=1,persistent=2",
    "persistent, one block": "block_m=16,block_n=32,warp_m=16,warp_n=32,block_k=16,stages=5,persistent=16",
    "stream, grouped": "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=8,stages=3,prefetch=1,group_m=4,stream_k=3",
    "stream, spread, staged":
        "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2,copy_groups=4,staged_c=1,stream_k=2",
    "stream, slices, many blocks":
        "block_m=16,block_n=32,warp_m=16,warp_n=16,block_k=32,stages=2,slices=4,stream_k=40",
    "atomic": "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,slices=2,split_k=5,atomic=1",
    "staged": "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=2,split_k=2,staged_c=1",
    "staged, pieces, wide": "block_m=48,block_n=64,warp_m=48,warp_n=32,block_k=16,stages=2,prefetch=1,staged_c=1",
    "staged, uneven slices":
        "block_m=48,block_n=16,warp_m=48,warp_n=16,block_k=32,stages=2,slices=4,split_k=3,staged_c=1",
}  # fmt: skip


def config_for(text: str, vec: int = 1, edge: str = "bounds") -> Config:
    return complete(Config.parse(f"dmma:{text},vec_a={vec},vec_b={vec},vec_c={vec},edge={edge}"))


def check(kernel: Kernel, alpha: float, beta: float, extra: int) -> None:
    a, b, c = integers(kernel.problem, 1)
    got = run(kernel.device, kernel, a, b, c, alpha, beta, extra)
    assert np.array_equal(got, exact(kernel.problem, a, b, c, alpha, beta)), (kernel.problem, alpha, beta, extra)


NAMES = [(n, trans) for n, text in CONFIGS.items() for trans in TRANS if trans[0] == "n" or "warp_m=48" not in text]
"""Threads share out 48 stored rows evenly, but not rows of 48 elements."""


@pytest.mark.parametrize(("name", "trans"), NAMES)
def test_edge_grid(name: str, trans: str) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name])
    tile_m, tile_n, tile_k = FAMILIES["dmma"].tile(config)
    kernel = prepare(device, Problem.parse(f"{tile_m}x{tile_n}x{tile_k}", "double", trans), config)
    sizes = list(product(*((1, tile - 1, tile, tile + 1, 2 * tile + 3) for tile in (tile_m, tile_n, tile_k))))
    # Half for each of the transposes: together they meet all.
    for case, (m, n, k) in enumerate(sizes[trans[1] == "t" :: 2]):
        # Scalars and strides turn round and round: every one meets every size somewhere.
        check(prepared(kernel, Problem.parse(f"{m}x{n}x{k}", "double", trans)), *SCALARS[case % 4], (0, 1, 7)[case % 3])
    for k in (0, 2):
        other = prepare(device, Problem.parse(f"{tile_m + 1}x3x{k}", "double", trans), config)
        assert other.source == prepared(kernel, other.problem).source
        for alpha, beta in SCALARS:
            check(other, alpha, beta, 7)


@pytest.mark.parametrize(("name", "trans"), NAMES)
@pytest.mark.parametrize("edge", ["bounds", "exact", "pad"])
def test_vectors(name: str, trans: str, edge: str) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name], 2, edge)
    tile_m, tile_n, tile_k = FAMILIES["dmma"].tile(config)
    shapes = {
        "bounds": ((tile_m + 4, tile_n - 2, tile_k + 4), (2, 4, 2)),
        "exact": ((2 * tile_m, tile_n, 3 * tile_k),),
        "pad": ((tile_m + 1, tile_n - 1, tile_k + 3),),
    }[edge]
    for (m, n, k), (alpha, beta) in product(shapes, SCALARS):
        kernel = prepare(device, Problem.parse(f"{m}x{n}x{k}", "double", trans), config)
        # Rows 8 elements apart stay aligned; others are served by the scalar twin, by the same tiles.
        for extra in (0, 8, 1, 7) if edge == "bounds" or trans == "nn" else (0, 8):
            check(kernel, alpha, beta, extra)


def test_operands_that_start_askew_are_served_by_the_scalar_twin() -> None:
    device = HostDevice(alignment=8)
    problem = Problem.parse("36x40x44", "double")
    kernel = prepare(device, problem, config_for(CONFIGS["8 steps"], 2))
    a, b, c = integers(problem, 1)
    for askew in range(3):
        operands, arrays = [], []
        for place, array in enumerate((a, b, c)):
            memory = device.allocate(8 * (array.size + 3))
            skip = (-(memory.pointer // 8) % 2) + (1 if place == askew else 0)
            flat = memory.array("float64", (array.size + 3,))[skip : skip + array.size]
            flat[:] = array.ravel()
            arrays.append(flat.reshape(array.shape))
            operands.append(Operand(memory.pointer + 8 * skip, *array.shape, array.shape[1], False, memory))
        kernel.launch(*operands)
        assert np.array_equal(arrays[2], exact(problem, a, b, c, 1, 0))
    assert kernel._twin is not None


@pytest.mark.parametrize("name", CONFIGS)
def test_accuracy(name: str) -> None:
    """T1 by the verifier, and T2: an IEEE sum of k terms is this near, a shortened one is not."""
    problem = Problem.parse("65x70x300", "double", "nt")
    device = HostDevice()
    verdict = Verifier(device, problem).check(prepare(device, problem, config_for(CONFIGS[name])))
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
    device = HostDevice()
    problem = Problem.parse("33x18x200", "double")
    kernel = prepare(device, problem, config_for(CONFIGS["slices, splits"]))
    rng = np.random.default_rng(1)
    a, b = rng.random(problem.stored_a), rng.random(problem.stored_b)
    assert len({run(device, kernel, a, b, np.zeros((33, 18)), 1, 0).tobytes() for _ in range(5)}) == 1


@pytest.mark.parametrize("name", [name for name in CONFIGS if "staged" in name])
@pytest.mark.parametrize("vec", [1, 2])
def test_sums_that_pass_through_shared_memory_keep_their_bits(name: str, vec: int) -> None:
    device = HostDevice()
    problem = Problem.parse("67x70x43" if vec == 2 else "67x71x43", "double")
    rng = np.random.default_rng(1)
    a, b, c = (rng.random(shape) for shape in (problem.stored_a, problem.stored_b, (problem.m, problem.n)))
    results = set()
    for staged in (0, 1):
        text = CONFIGS[name].replace("staged_c=1", f"staged_c={staged},vec_c={vec}")
        kernel = prepare(device, problem, complete(Config.parse(f"dmma:{text}")))
        # Where beta counts, compilers may round alpha * sum or beta * C first.
        results.add(run(device, kernel, a, b, c, 0.7, 0.0).tobytes())
    assert len(results) == 1


def test_what_the_grid_runs_keeps_every_rule() -> None:
    for (name, trans), vec in product(NAMES, (1, 2)):
        problem = Problem.parse("64", "double", trans)
        assert list(rejections(problem, config_for(CONFIGS[name], vec), ARCHES["host"])) == []


PROBE = """
extern "C" __global__ void places(double* out)
{
    __shared__ double tile[STAGE];
    for (int i = threadIdx.x; i < STAGE; i += 32) tile[i] = i;
    __syncthreads();
    const double* from[TileA::BASES];
    TileA::find(from, tile, 0, 0, threadIdx.x);
    for (int p = 0; p < BLOCK_K; p += STEP) {
        double fragment[OWN_K];
        TileA::read(fragment, from, 0, p, 1);
        for (int e = 0; e < OWN_K; ++e) out[threadIdx.x * BLOCK_K / 4 + p / 4 + e] = fragment[e];
    }
}
"""


@pytest.mark.parametrize("trans", ["nn", "tn"])
@pytest.mark.parametrize("block_k", [8, 16, 32, 64])
@pytest.mark.parametrize("block_m", [16, 32, 64])
def test_no_two_lanes_of_a_read_meet_in_a_bank(tmp_path: Path, trans: str, block_k: int, block_m: int) -> None:
    """Shared memory that holds its own indices tells where each lane reads, in the text as it is emitted."""
    config = complete(Config.parse(f"dmma:block_m={block_m},block_n=8,warp_m=16,warp_n=8,block_k={block_k},stages=2"))
    source = render(Problem.parse("64", "double", trans), config, ARCHES["host"])
    device = HostDevice()
    probe = replace(source, name="places", code=source.code + PROBE)
    function = device.load(device.compiler.build(probe, str(tmp_path)), "places")
    reads = block_k // 4
    memory = device.allocate(32 * reads * 8)
    function.launch(LaunchConfig((1, 1, 1), (32, 1, 1)), [np.uint64(memory.pointer)])
    places = memory.array("float64", (32, reads)).astype(int)
    assert len(set(places.ravel())) == 32 * reads
    # Elements of 8 bytes: half a warp reads at a time, from 32 banks of 4 bytes.
    for half in (places[:16], places[16:]):
        assert all(len(set(half[:, read] % 16)) == 16 for read in range(reads))


# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "block_m=16,block_n=16,warp_m=16,warp_n=16,block_k=16,stages=3"
WARPS = "block_m=32,block_n=16,warp_m=16,warp_n=8,block_k=8,stages=3,prefetch=1"
SMALL = "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=16,mma_k=4,stages=2"
WIDE = "block_m=16,block_n=32,warp_m=16,warp_n=32,block_k=16,stages=3"
BESIDE = "block_m=32,block_n=16,warp_m=32,warp_n=16,block_k=16,stages=3,prefetch=2"
SPREAD = "block_m=32,block_n=16,warp_m=32,warp_n=16,block_k=16,stages=2,prefetch=2,copy_groups=4"
DEEP = "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=32,mma_k=16,stages=2,slices=2,split_k=2"
CLUSTER = "block_m=32,block_n=16,warp_m=16,warp_n=16,block_k=32,stages=2,slices=2,split_k=3,cluster=1"
STAGED = "block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=2,staged_c=1"
PERSISTENT = "block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=16,stages=3,prefetch=2,staged_c=1,persistent=2"
UNFAULTED = (PLAIN, WARPS, SMALL, WIDE, BESIDE, SPREAD, DEEP, CLUSTER, STAGED, PERSISTENT)

# Name, text, replacement, config, and transposes or vectors where they matter.
FAULTS: tuple[tuple[str, str, str, str, str, int], ...] = (
    ("sums not set", "T sum[SUMS] = {};", "T sum[SUMS];", PLAIN, "nn", 1),
    ("C read where beta is 0", "if (beta != T(0)) {", "if (true) {", PLAIN, "nn", 1),
    ("alpha ignored", "share[e] *= alpha", "share[e] *= T(1)", PLAIN, "nn", 1),
    ("A and B read where alpha is 0", "alpha == T(0) ? 0 : k", "k", PLAIN, "nn", 1),
    ("ld of A and B swapped", "A, int lda, const T* __restrict__ B, int ldb",
     "A, int ldb, const T* __restrict__ B, int lda", PLAIN, "nn", 1),
    ("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)", PLAIN, "nn", 1),
    ("guard of rows lost", "inside |= unsigned((ALONG_K ? row + row_of(i) : col + col_of(i)) < outer_left) << i;",
     "inside |= 1u << i;", PLAIN, "nn", 1),
    ("guard of columns lost", "if ((ALONG_K ? row : col) >= outer_left) k = 1u << 31;", "", PLAIN, "nn", 1),
    ("guard of stored rows off by one", "row >= rows || col >= cols", "row > rows || col >= cols", PLAIN, "nn", 1),
    ("guard of stored columns off by one", "|| col >= cols)) return", "|| col > cols)) return", PLAIN, "nn", 1),
    ("shared memory a row short", "/ sizeof(T)];", "/ sizeof(T) - BLOCK_N - 4];", PLAIN, "nn", 1),
    ("last tile dropped", "tile < tiles; ++tile", "tile < tiles - 1; ++tile", PLAIN, "nn", 1),
    ("endless loop", "tile < tiles; ++tile", "tile < tiles; tile += 0", PLAIN, "nn", 1),
    ("tile index off by one", "Index(tile_m) * BLOCK_M", "Index(tile_m) * BLOCK_M + 1", PLAIN, "nn", 1),
    ("rows swapped as read only", "(col ^ swap(row))", "col", PLAIN, "nn", 1),
    ("rows swapped as written only", "^ swap(lane / 4))", "^ 0)", PLAIN, "tt", 1),
    ("swaps of later copies forgotten", "(place ^ swap(row_of(i)))", "place", PLAIN, "nn", 1),
    ("fragment read a step late", "const int at = p + 4 * e;", "const int at = p + 4 * e + 1;", WARPS, "tn", 1),
    ("group read twice", "at * PITCH + i / BASES * BASES * 8]", "at * PITCH]", WIDE, "tn", 1),
    ("groups read a row early", "at / 16 * 16 + i * 8 * PITCH", "at / 16 * 16 + i * 7 * PITCH", PLAIN, "nt", 1),
    ("vectors stored scalar", "v < VEC_C; ++v) made", "v < 1; ++v) made", PLAIN, "nn", 2),
    ("wait forgotten", "wait_copies<STAGES - 2>();", "", WARPS, "nn", 1),
    ("wait too short", "wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();", WARPS, "nn", 1),
    ("barrier missing", "wait_copies<STAGES - 2>();\n        __syncthreads();", "wait_copies<STAGES - 2>();",
     WARPS, "nn", 1),
    ("group not committed", "commit_copies();  // an empty group counts too", "", PLAIN, "nn", 1),
    ("stage filled too early", "int writing = (STAGES - 1) * STAGE;", "int writing = 0;", PLAIN, "nn", 1),
    ("stages not turned", "reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;", "", WARPS, "nn", 1),
    ("next step read from this one", "read_a((step + 1) % STEPS", "read_a(step",
     WARPS.replace("block_k=8", "block_k=16"), "nn", 1),
    ("next columns not read", "if (PREFETCH && i == GROUPS_A - 1)", "if (false)", WARPS, "nn", 1),
    ("copy reads outside", "inside ? from : nullptr", "from", PLAIN, "nn", 1),
    ("halves of a fragment swapped", "sum[upper] += made.x[0];", "sum[upper] += made.x[2];", PLAIN, "nn", 1),
    ("small instruction takes the wrong lane", "of(8 * t + 4 + each).b", "of(8 * t + each).b", SMALL, "nn", 1),
    ("part of the result in the wrong rows", "along_m + 8 * i", "along_m + 7 * i",
     PLAIN, "nn", 1),
    ("columns swapped as written only", "^ swap(lane % 4);", "^ 0;", PLAIN, "nn", 1),
    ("every other group swapped alike", "(outer + 8 * b) ^", "outer ^", WIDE, "nn", 1),
    ("wrong set of operands", "a_part[step % 2]", "a_part[0]", BESIDE, "nn", 1),
    ("wrong columns beside", "each, (step + 1) % 2);", "each, step % 2);", BESIDE, "nn", 1),
    ("rows beside from this step", "read_a((step + 1) % STEPS, each", "read_a(step, each", BESIDE, "nn", 1),
    ("last groups beside not read", "each < READS;", "each < READS - 1;", BESIDE, "nn", 1),
    ("group of copies left out", "i * COPY_GROUPS / COPIES != group", "i * COPY_GROUPS / COPIES + 1 != group",
     SPREAD, "nn", 1),
    ("groups of the last places left out", "if (place < COPY_PLACES)", "if (place < COPY_PLACES / 2)", SPREAD, "nn", 1),
    ("spread copies beyond the last tile", "if (on) copy_async", "copy_async", SPREAD, "nn", 1),
    ("spread copies of the same tile again", "        a.advance();\n        b.advance();\n", "", SPREAD, "nn", 1),
    ("spread copies committed too late", "        end_fetch();\n        settle();",
     "        settle();\n        end_fetch();", SPREAD, "nn", 1),
    ("slices overlap", "SLICE_THREADS * (BLOCK_K / SLICES)", "SLICE_THREADS * 0", DEEP, "nn", 2),
    ("sums read before they are there", "    arrive_cluster();\n    wait_cluster();", "", CLUSTER, "nn", 2),
    ("block ends while it is read", "    wait_cluster();\n}\n", "}\n", CLUSTER, "nn", 1),
    ("own sums taken for all", "(split + other) % SPLIT_K", "split", CLUSTER, "nn", 1),
    ("sums read before they are put down", "    __syncwarp();\n    #pragma", "    #pragma", STAGED, "nn", 1),
    ("sums turned for another lane", "+ turn % WARP_N;", "+ (turn ^ 2) % WARP_N;", STAGED, "nn", 1),
    ("sums put down in one row", "band_place(first + e, lane_m(lane))", "band_place(first + e, 0)", STAGED, "nn", 1),
    ("sums of the tile before kept", "        T sum[SUMS] = {};", "        static thread_local T sum[SUMS];",
     PERSISTENT, "nn", 1),
    ("operands of the first tile again", "place_of(fetched);", "place_of(blockIdx.x);", PERSISTENT, "nn", 1),
    ("k not begun anew", "k_left = depth;", "k_left = 1;", PERSISTENT, "nn", 1),
    ("copies beyond the last tile of C", "if (fetched < parts) fetch(shared + writing)", "fetch(shared + writing)",
     PERSISTENT, "nn", 1),
    ("first tile of C written again", "place_of(block);", "place_of(blockIdx.x);", PERSISTENT, "nn", 1),
    ("next tile of C left out", "block += gridDim.x", "block += 2 * gridDim.x", PERSISTENT, "nn", 1),
    ("sums passed on where operands arrive", "shared + STAGES * STAGE, lane", "shared, lane", PERSISTENT, "nn", 1),
    ("sums put down where others are read", "    __syncwarp();  // the last piece was read\n", "", PERSISTENT, "nn", 1),
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [Planted(name, config_for(text, vec), old, new, trans=t) for name, old, new, text, t, vec in FAULTS]
    for text, trans, vec in product(UNFAULTED, ("nn", "tt"), (1, 2)):
        if (text, vec) != (DEEP, 1):  # there memory is aligned to one element, and a workspace to two
            planted.append(Planted(f"unfaulted {text} {trans} {vec}", config_for(text, vec), trans=trans))
    found = outcomes(planted[part::PARTS], tmp_path)
    right = {name for name, outcome in found.items() if outcome == RIGHT}
    assert right == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found
