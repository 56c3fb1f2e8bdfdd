"""The simt family on the host device: the edge grid, operands that lie askew, sanitizers and planted faults."""

import itertools
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
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
    prepared,
    sized,
)  # fmt: skip
from quick import compile_together
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import prepare
from variants import changed, cta_tile, field, variant

# One for each way through the template; together all transposes meet every one.
CONFIGS = {
    "registers": "32x32x8",
    "registers, fragments double, 16 rows": "128x64x8,thread=16x4,lanes_m=4,fragments=double,raster=4",
    "registers, slices, splits": "32x16x16,thread=4x4,slices=4,split_k=4",
    "cp.async": "32x64x8,thread=4x4,load=cp_async,stages=3",
    "cp.async, some threads copy less, cooperative reduction":
        "48x96x8,thread=4x4,lanes_m=4,load=cp_async,stages=3,split_k=12",
    "cp.async, k innermost": "32x32x16,load=cp_async,stages=8,k_inner_a=1,k_inner_b=1,fragments=double",
    "cp.async, all of it": "64x16x32,thread=8x2,lanes_m=4,load=cp_async,stages=2,"
    "fragments=double,slices=2,split_k=2,raster=8,k_inner_a=1",
    "cp.async, large block_k": "16x16x128,thread=2x4,lanes_m=8,load=cp_async,stages=2,slices=8,k_inner_a=1",
    "cp.async, large block_k, many slices": "16x32x64,thread=4x4,lanes_m=4,load=cp_async,"
    "stages=3,slices=16,split_k=2,k_inner_b=1",
    "cooperative reduction, slices, k innermost": "16x16x16,thread=2x4,slices=2,split_k=64,k_inner_a=1",
    "cluster, slices": "32x16x16,thread=4x4,fragments=double,slices=2,split_k=4,reduce=cluster",
    "cluster, unequal shares": "48x96x8,thread=4x4,lanes_m=4,load=cp_async,stages=3,split_k=6,reduce=cluster",
    "cluster, more parts than accumulators": "16x16x16,thread=2x4,slices=2,split_k=8,reduce=cluster,raster=4",
    "slice barriers, slices of a warp": "32x16x16,thread=4x4,slices=4,slice_barriers=1,split_k=2",
    "slice barriers, slices of two warps, k innermost": "64x16x32,thread=4x4,load=cp_async,"
    "stages=3,fragments=double,slices=2,slice_barriers=1,k_inner_a=1,k_inner_b=1",
    "slice barriers, some threads copy less, cluster": "32x48x16,thread=4x4,load=cp_async,"
    "stages=2,slices=2,slice_barriers=1,split_k=2,reduce=cluster,raster=4",
    "interleaved, fragments double":
        "32x64x16,thread=8x4,lanes_m=4,load=cp_async,stages=3,fragments=double,interleave=4,evict_first=1",
    "interleaved, some threads copy less":
        "48x96x16,thread=4x4,lanes_m=4,load=cp_async,stages=2,interleave=2,split_k=2",
    "interleaved, slice barriers, k innermost": "64x32x32,thread=8x8,lanes_m=8,load=cp_async,"
    "stages=3,slices=2,slice_barriers=1,k_inner_a=1,interleave=2,shared=1,evict_first=1",
    "stream-K, slices, grouped": "32x16x16,thread=4x4,slices=2,raster=4,stream_k=3",
    "stream-K, interleaved, slice barriers, shared": "64x32x32,thread=8x8,lanes_m=8,load=cp_async,"
    "stages=3,slices=2,slice_barriers=1,k_inner_a=1,interleave=2,shared=1,stream_k=1",
    "stream-K, more CTAs than tiles of k":
        "40x32x8,thread=5x8,lanes_m=8,load=cp_async,stages=3,fragments=double,stream_k=3",
    "odd rows": "40x32x8,thread=5x8,lanes_m=8,load=cp_async,stages=3,fragments=double",
    "odd columns, slices, splits": "64x40x16,thread=8x5,lanes_m=4,fragments=double,slices=2,split_k=3,order=rows",
    "odd rows and columns, interleaved": "40x80x16,thread=5x10,lanes_m=8,load=cp_async,"
    "stages=2,slices=2,slice_barriers=1,interleave=2",
    "odd rows, shared": "56x64x8,thread=14x4,lanes_m=4,split_k=2,shared=1",
    "odd columns, shared, slices, k innermost": "64x40x32,thread=8x5,lanes_m=4,"
    "load=cp_async,stages=3,k_inner_a=1,slices=4,shared=1",
    "fitted columns, slices, splits": "64x28x16,thread=8x7,load=cp_async,stages=3,fragments=double,"
    "slices=2,interleave=2,split_k=2,order=rows",
    "fitted rows, k innermost": "24x64x32,thread=6x8,lanes_m=4,load=cp_async,stages=2,fragments=double,"
    "slices=2,k_inner_a=1,k_inner_b=1",
    "shared, pieces": "128x64x8,thread=16x4,lanes_m=4,fragments=double,shared=1",
    "FMA by rows, long warps": "16x128x8,thread=4x8,lanes_m=2,fragments=double,order=rows",
    "shared, rows as wide as all banks": "32x64x8,thread=8x8,lanes_m=4,load=cp_async,stages=3,split_k=3,shared=1",
    "shared, two rows at a time, k innermost": "32x64x8,thread=8x4,lanes_m=2,k_inner_b=1,shared=1",
    "shared, slices with parts of a row": "16x32x32,thread=4x4,lanes_m=4,slices=8,split_k=2,shared=1",
    "shared, more shared memory than the tiles": "64x128x8,thread=2x8,lanes_m=8,load=cp_async,stages=2,shared=1",
}  # fmt: skip
SM_COUNTS = {"stream-K, interleaved, slice barriers, shared": 5, "stream-K, more CTAs than tiles of k": 33}


def config_for(text: str, trans: str) -> Config:
    """The config as far as the transposes allow."""
    config = variant(f"simt:{text}")
    k_inner_a = int(bool(field(config, "k_inner_a")) and trans[0] == "n")
    k_inner_b = int(bool(field(config, "k_inner_b")) and trans[1] == "t")
    return changed(config, k_inner_a=k_inner_a, k_inner_b=k_inner_b)


TURNS = (
    (("float", "nn"), ("float", "tt"), ("double", "nt"), ("double", "tn")),
    (("float", "nt"), ("float", "tn"), ("double", "nn"), ("double", "tt")),
)
"""Types and transposes that configs have in turn, the others where tests marked slow run too."""


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CONFIGS)
def test_edge_grid(name: str, turn: int) -> None:
    device, text = QuickDevice(sm_count=SM_COUNTS.get(name, 1)), CONFIGS[name]
    turns = TURNS[(list(CONFIGS).index(name) + turn) % 2]
    configs = {pair: config_for(text, pair[1]) for pair in turns}
    tile_m, tile_n, tile_k = tile = cta_tile(configs[turns[0]])
    whole = {
        pair: (Problem.parse("x".join(map(str, tile)), *pair), guarded(configs[pair], *pair)) for pair in turns
    }  # fmt: skip
    edges = product((Edge.BOUNDS, Edge.EXACT), turns) if turn else zip((Edge.BOUNDS, Edge.EXACT) * 2, turns)
    vectors = []
    for edge, pair in edges:
        shapes = {
            Edge.BOUNDS: ((tile_m + 4, tile_n - 4, tile_k + 4), (4, 4, 4)),
            Edge.EXACT: ((2 * tile_m, tile_n, 3 * tile_k),),
        }[edge]
        vectors += [(sized(whole[pair][0], *shape), configs[pair]) for shape in shapes]
    compile_together([*whole.values(), *vectors])

    # All sizes in either type, by two of the transposes: together they meet all.
    sizes = list(product(*((1, t - 1, t, t + 1, 2 * t + 3) for t in tile)))
    for dtype in ("float", "double"):
        kernels = [instance(device, *whole[pair]) for pair in turns if pair[0] == dtype]
        check_sizes(kernels, sizes)
        for kernel, k in product(kernels, (0, 2)):
            other = prepare(device, sized(kernel.problem, tile_m + 1, 3, k), kernel.config, aligned=False)
            assert other.source == prepared(kernel, other.problem).source
            for alpha, beta in SCALARS:
                check(other, alpha, beta, 7)
    for (problem, config), (alpha, beta) in product(vectors, SCALARS):
        kernel = prepare(device, problem, config)
        # Rows 8 elements apart stay aligned; others are served by the unaligned instance, by the same tiles.
        for extra in (0, 8, 1, 7) if kernel.fit.edge is Edge.BOUNDS else (0, 8):
            check(kernel, alpha, beta, extra)


def test_operands_that_start_askew_are_served_by_the_unaligned_instance() -> None:
    config = config_for(CONFIGS["registers"], "nn")
    check_askew(4, lambda device: prepare(device, Problem.parse("36x40x44"), config))


def test_split_k_gives_the_same_bits_again_and_leaves_its_counters_at_zero() -> None:
    config = config_for(CONFIGS["registers, slices, splits"], "nn")
    kernel = prepare(HostDevice(), Problem.parse("33x18x200"), config)
    assert len({bits(kernel) for _ in range(5)}) == 1
    assert kernel._scratch is not None
    (held,) = kernel._scratch._streams.values()
    partial_tiles, counters = held.buffers
    assert partial_tiles.nbytes + counters.nbytes == kernel.config.workspace_bytes(kernel.problem, 1)
    assert counters.nbytes == 4 * kernel.config.tiles(kernel.problem)
    assert not counters.array("uint8", (counters.nbytes,)).any()


def test_a_cluster_gives_the_same_bits_again_and_takes_no_workspace() -> None:
    config = config_for(CONFIGS["cluster, unequal shares"], "nn")
    kernel = prepare(HostDevice(), Problem.parse("33x18x200"), config)
    assert len({bits(kernel) for _ in range(5)}) == 1
    assert kernel.config.workspace_bytes(kernel.problem, 1) == 0
    assert kernel._scratch is None


@pytest.mark.parametrize("name", [name for name in CONFIGS if "shared" in name])
def test_accumulators_that_pass_through_shared_memory_keep_their_bits(name: str) -> None:
    pairs, config = [], config_for(CONFIGS[name], "tt")
    for dtype, shape in (("float", "67x71x43"), ("float", "67x70x43"), ("double", "67x71x43")):
        problem = Problem.parse(shape, dtype, "tt")
        pairs.append([(problem, changed(config, shared=shared)) for shared in (0, 1)])
    compile_together(itertools.chain(*pairs))
    device = QuickDevice()
    for pair in pairs:
        assert len({bits(prepare(device, *each), 0.7) for each in pair}) == 1


# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "16x16x8,thread=2x4"
ASYNC = f"{PLAIN},load=cp_async,stages=3"
WHOLE = "32x16x8,thread=2x4,fragments=double,slices=2,split_k=2"
CLUSTER = "32x16x8,thread=2x4,fragments=double,slices=2,split_k=3,reduce=cluster"
SHARED = "32x32x8,thread=4x8,fragments=double,shared=1"
PIECES = "64x64x8,thread=16x4,lanes_m=4,shared=1"
SHARED_SLICES = "32x16x8,thread=2x4,slices=4,shared=1"
BARRIERS = "32x16x16,thread=2x4,fragments=double,slices=2,slice_barriers=1,load=cp_async,stages=3"
INTERLEAVED = "32x16x8,thread=4x4,fragments=double,load=cp_async,stages=2,interleave=4"
ODD = "40x80x8,thread=10x5,lanes_m=4"
BARRIERS_WARP = "16x16x16,thread=2x4,slices=2,slice_barriers=1"
UNFAULTED = (
    PLAIN, ASYNC, WHOLE, CLUSTER, SHARED, PIECES, SHARED_SLICES, BARRIERS, BARRIERS_WARP, INTERLEAVED, ODD,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text that makes the kernel wrong."""

    name: str
    old: str = ""
    new: str = ""
    config: str = PLAIN
    trans: str = "nn"
    wide: bool = False
    """Whether it is planted in the instance for aligned operands."""
    only: str = ""
    """The type in which it makes a difference, where that is not so in both."""

    def plant(self, dtype: str) -> Planted:
        fit = guarded(config_for(self.config, self.trans), dtype, self.trans, self.wide)
        return Planted(self.name, fit, self.old, self.new, dtype, self.trans, SHAPES)


SHAPES = ((66, 35, 27), (64, 32, 96), (1, 1, 1))
"""Three by three CTAs with ragged edges and several tiles of k, whole tiles, and one vector."""

FAULTS = (
    Fault("accumulators not set", "Elem acc[kAcc] = {};", "Elem acc[kAcc];"),
    Fault("C read where beta is 0", "if (beta != Elem(0)) {", "if (true) {"),
    Fault("alpha ignored", "acc[e] *= alpha", "acc[e] *= Elem(1)"),
    Fault("alpha ignored by slices", "out[e] *= alpha", "out[e] *= Elem(1)", BARRIERS),
    Fault("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped", "matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
          "matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda"),
    Fault("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)"),
    Fault("guard of rows lost", "if ((kAlongK ? row : col) >= outer_left) k = 1u << 31;", ""),
    Fault("guard of many rows lost", "(kOneOuter || outer_inside >> i & 1) && ", "", "block_m=32,block_n=16,thread_m=4"
          ",thread_n=4,block_k=16"),
    Fault("guard of stored rows off by one", "row >= rows || col >= cols", "row > rows || col >= cols"),
    Fault("guard of stored columns off by one", "|| col >= cols) return", "|| col > cols) return"),
    Fault("last barrier missing", "put(shared + reading);\n        __syncthreads();", "put(shared + reading);",
          "32x16x8,thread=2x4"),
    Fault("first barrier missing", "put(shared); }\n    __syncthreads();", "put(shared); }",
          "32x16x8,thread=2x4"),
    Fault("stages not advanced", "reading = kStage - reading;", ""),
    Fault("shared memory a row short", "/ sizeof(Elem)];", "/ sizeof(Elem) - kBlockN - kWide];"),
    Fault("last tile dropped", "each < tiles; ++each", "each < tiles - 1; ++each"),
    Fault("endless loop", "each < tiles; ++each", "each < tiles; each += 0"),
    Fault("fragment read a step late", "kPitch + i * kLanes);", "kPitch + kPitch + i * kLanes);"),
    Fault("lanes mapped twice", "lane / (2 * kLanesM) * 2 + lane % 2", "lane / (2 * kLanesM) * 2"),
    Fault("tile index off by one", "Index(tile_m) * kBlockM", "Index(tile_m) * kBlockM + 1"),
    Fault("transposition lost", "kAlongK ? c * kPitch + r : ", "kAlongK ? r * kPitch + c : "),
    Fault("vectors stored scalar", "v < kVecC; ++v) value", "v < 1; ++v) value", wide=True),
    Fault("wait forgotten", "wait_copies<kStages - 2>();", "", ASYNC),
    Fault("wait too short", "wait_copies<kStages - 2>();", "wait_copies<kStages - 1>();", ASYNC),
    Fault("group not committed", "commit_copies();  // an empty group counts too", "", ASYNC),
    Fault("stage filled too early", "int writing = (kStages - 1) * kStage;", "int writing = 0;", ASYNC),
    Fault("copy reads outside", "cp_async<kBytes>(to, from, inside)", "cp_async<kBytes>(to, from, true)", ASYNC),
    Fault("slices overlap", "kSliceThreads * (kBlockK / kSlices)", "kSliceThreads * (kBlockK / kSlices / 2)", WHOLE),
    Fault("slice left out", "from < kSlices; ++from", "from < kSlices - 1; ++from", WHOLE),
    Fault("barrier of slices missing", "= acc[e];\n    __syncthreads();", "= acc[e];", WHOLE),
    Fault("counter not put back", "if (*last) *counter = 0;", "", WHOLE),
    Fault("first to come taken for the last", "== all - part;", "== 0;", WHOLE),
    Fault("split left out", "each < kSplitK; ++each", "each < kSplitK - 1; ++each", WHOLE),
    Fault("split written beside the workspace", "tiles[Index(split) * kTile", "tiles[Index(split + 1) * kTile", WHOLE),
    Fault("part of a slice taken twice", "slice * kOut + e", "e", WHOLE),
    Fault("accumulators read before they are there", "    arrive_cluster();\n    wait_cluster();", "", CLUSTER),
    Fault("not waited for the cluster", "arrive_cluster();\n    wait_cluster();", "arrive_cluster();", CLUSTER),
    Fault("CTA ends while it is read", "    wait_cluster();\n}\n", "}\n", CLUSTER),
    Fault("CTA of the cluster left out", "other < kSplitK; ++other", "other < kSplitK - 1; ++other", CLUSTER),
    Fault("own accumulators taken for all", "(split + other) % kSplitK", "split", CLUSTER),
    Fault("slice of the cluster left out", "part < kSlices; ++part", "part < kSlices - 1; ++part", CLUSTER),
    Fault("CTAs share out alike", "(split * kSlices + slice)", "slice", CLUSTER),
    Fault("share beyond the accumulators read", " && first + g >= kGroups", " && false", CLUSTER),
    Fault("barrier of a slice missing", "wait_copies<kStages - 2>();\n    sync_slice();",
          "wait_copies<kStages - 2>();", BARRIERS),
    Fault("barrier of a slice not for all", "    sync_slice();",
          "    if (threadIdx.x % 32 != 5) sync_slice();", BARRIERS),
    Fault("barrier of a slice opens early", "sync_named<kSliceThreads>", "sync_named<32>", BARRIERS),
    Fault("barrier before the accumulators missing",
          "/ kSliceThreads;\n    __syncthreads();", "/ kSliceThreads;", BARRIERS),
    Fault("slices in one place", "shared + threadIdx.x / kSliceThreads * (kStages * kStage)", "shared", BARRIERS),
    Fault("slices copy the same", "k_begin += slice_k();", "", BARRIERS),
    Fault("slice's place along k lost", "k = slice_k() + (", "k = (", BARRIERS),
    Fault("first barrier of a warp missing", "put(stages); }\n    sync_slice();", "put(stages); }", BARRIERS_WARP),
    Fault("last barrier of a warp missing", "put(stages + reading);\n        sync_slice();", "put(stages + reading);",
          BARRIERS_WARP),
    Fault("pair read where chunks are", "kWhole * kLanes - lane * (kChunk - 2)", "kWhole * kLanes", ODD, only="float"),
    Fault("pairs of all lanes in one place", "kWhole * kLanes + lane * 2 +", "kWhole * kLanes +", ODD, only="float"),
    Fault("single element read where chunks are", "kPaired * kLanes - lane * (kChunk - 1)", "kPaired * kLanes", ODD),
    Fault("single ones of all lanes in one place", "return kPaired * kLanes + lane;", "return kPaired * kLanes;", ODD),
    Fault("chunk left out", "i < kWhole; i += kChunk", "i < kWhole - kChunk; i += kChunk", ODD),
    Fault("group of copies left out", "kInterleave / kCopies != group", "kInterleave / kCopies + 1 != group",
          INTERLEAVED),
    Fault("group started with no step", "(place - 1) * kInterleave / kCopyPlaces == group) return;",
          "place * kInterleave / kCopyPlaces == group) return;", INTERLEAVED),
    Fault("interleaved copies beyond the last tile", "_if<kBytes>(on,", "_if<kBytes>(true,", INTERLEAVED),
    Fault("interleaved copies of the same tile again", "        a.advance();\n        b.advance();\n", "", INTERLEAVED),
    Fault("interleaved copies guarded by an earlier tile", "b.advance();\n        advance();", "b.advance();",
          INTERLEAVED),
    Fault("interleaved copies to the stage that is read",
          "shared + writing, more", "shared + reading, more", INTERLEAVED),
    Fault("interleaved copies not committed", "commit_copies();  // an empty group counts too", "", INTERLEAVED),
    Fault("accumulators put down over those of slices", "__syncthreads();  // no thread reads what", "// what",
          SHARED_SLICES),
    Fault("accumulators read before warps put them down", "    __syncwarp();\n    #pragma", "    #pragma", SHARED),
    Fault("accumulators read before slices put them down", "= group;\n    }\n    __syncthreads();", "= group;\n    }",
          SHARED_SLICES),
    Fault("next piece put down too early", "if (begin > 0) __syncwarp();", "", PIECES),
    Fault("exchanged accumulators written in other places", "lane) % kWarpN; };", "lane + 1) % kWarpN; };", SHARED),
    Fault("each thread has the place of a warp", "threadIdx.x % kThreads / 32 * kPassing", "threadIdx.x * kPassing",
          SHARED),
    Fault("bands overlap", "% kPassing * kBand + row", "% kPassing + row", SHARED),
)  # fmt: skip


@pytest.mark.parametrize("part", range(2 * PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    """In one of the types each, where it makes a difference in both."""
    planted = [fault.plant(fault.only or ("float", "double")[place % 2]) for place, fault in enumerate(FAULTS)]
    for config, trans, dtype in product(UNFAULTED, ("nn", "tt"), ("float", "double")):
        planted.append(Fault(f"unfaulted {config} {trans} {dtype}", "", "", config, trans, wide=True).plant(dtype))
    assert_caught(planted[part :: 2 * PARTS], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_in_the_other_type_too(part: int, tmp_path: Path) -> None:
    planted = [fault.plant(("double", "float")[place % 2]) for place, fault in enumerate(FAULTS) if not fault.only]
    assert_caught(planted[part::PARTS], tmp_path)
