"""The simt family: products on the host device, planted faults, rules, and machine code."""

import itertools
import random
from typing import Any

import pytest
from conformance import KernelConformance, Refusal
from nvrtc import TARGETS, Row, assert_as_predicted
from planted import Fault, Shape
from quick import TYPICAL
from search_spaces import tried
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.legality import fitted, rejections, serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from variants import changed, field, instance_of, one_each, variant

# One for each path through the template. Every config takes all transposes in turn.
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


class TestSimt(KernelConformance):
    family = "simt"
    configs = CONFIGS
    turns = (
        (("float", "nn"), ("float", "tt"), ("double", "nt"), ("double", "tn")),
        (("float", "nt"), ("float", "tn"), ("double", "nn"), ("double", "tt")),
    )
    sm_counts = SM_COUNTS
    refused = (
        Refusal("block_m=16,thread_m=4,lanes_m=8", "block_m 16 is a multiple of the rows of a warp"),
        Refusal("block_n=16,thread_n=8,lanes_m=8", "block_n 16 is a multiple of the columns of a"),
        Refusal("stages=3", "tiles that pass through registers use two stages, not 3"),
        Refusal("k_inner_a=1", "k is innermost in the tiles of an operand only if its stored rows run", "1024", "tn"),
        Refusal("k_inner_b=1", "k is innermost in the tiles of an operand only if its stored rows run"),
        Refusal("fragments=double,slices=4,block_k=8,k_inner_a=1", "block_k 8 is whole steps for"),
        Refusal("128x16x32,lanes_m=16,thread=8x8", "copies"),
        Refusal("256x128x32,thread=16x8", "at most 2560"),
        Refusal("thread=8x8,block_m=128,block_n=128,min_ctas=3", "registers of 3"),
        Refusal("block_m=40,thread_m=5,lanes_m=2", "the rows of a warp, 10, and its columns, 64, are"),
        Refusal("block_n=40,thread_n=5,lanes_m=16", "its columns, 10, are whole vectors of 16 bytes"),
        Refusal("thread_m=2,block_k=64,slices=16", "the accumulators of a thread, 8, are as many"),
        Refusal("thread=8x8,block_k=128,slices=2", "a thread copies at most 32 elements"),
        Refusal("min_ctas=8,block_m=128,block_n=128", "threads and shared memory of 8 CTAs fit"),
        Refusal("interleave=2", "interleave 2 is for cp.async"),
        Refusal("interleave=4,load=cp_async,fragments=double,block_k=8,slices=2", "interleave 4 is"),
        Refusal("interleave=4,32x32x16,thread=4x4,load=cp_async,stages=3,slices=4", "at most the copies", "64", "tn"),
        Refusal("slice_barriers=1", "barriers of their own are for several slices"),
        Refusal("32x32x64,slices=16,slice_barriers=1", "at most 15 or of one warp each"),
        Refusal("l2_prefetch=1,stream_k=1", "and the CTA has one tile of C"),
    )  # fmt: skip
    instruction = "cp.async"
    faults = FAULTS
    unfaulted = UNFAULTED
    unfaulted_widths = (True,)
    fault_parts = 4

    def config(self, text: str, trans: str = "nn") -> Config:
        """The config of a text, with k innermost in tiles only where the transposes allow it."""
        config = variant(f"simt:{text}")
        k_inner_a = int(bool(field(config, "k_inner_a")) and trans[0] == "n")
        k_inner_b = int(bool(field(config, "k_inner_b")) and trans[1] == "t")
        return changed(config, k_inner_a=k_inner_a, k_inner_b=k_inner_b)

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        """Three by three CTAs with ragged edges and several tiles of k, whole tiles, and one vector."""
        return (66, 35, 27), (64, 32, 96), (1, 1, 1)


SM_90 = TYPICAL["sm_90a"]


def reasons(text: str, arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse("1024"), variant(f"simt:{text}"), TYPICAL[arch]))


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("load=cp_async", arch="sm_75") == ["the device has cp.async, which load cp_async needs"]


def test_slices_of_a_warp_have_barriers_without_numbers() -> None:
    sixteen = "16x32x64,thread=4x4,lanes_m=4,load=cp_async,stages=3,slices=16,slice_barriers=1"
    assert reasons(sixteen) == []
    code = render(Problem.parse("1024"), variant(f"simt:{sixteen}"), SM_90).code
    assert "__syncwarp();" in code
    assert "bar.sync" not in code


@pytest.mark.parametrize("k_inner", [0, 1])
def test_slices_with_barriers_of_their_own_have_rows_of_their_own_in_shared_memory(k_inner: int) -> None:
    problem = Problem.parse("256x128x512", trans="nt")
    shared = variant(f"simt:64x32x32,slices=2,stages=3,load=cp_async,k_inner_b={k_inner}")
    own = changed(shared, slice_barriers=1)
    tile_b = 32 * (32 + 4) if not k_inner else 2 * 32 * (16 + 4)
    assert own.smem_bytes(problem.dtype) == 4 * 3 * (32 * (64 + 4) + tile_b)
    assert shared.smem_bytes(problem.dtype) == 4 * 3 * (32 * (64 + 4) + 32 * (32 + 4))
    assert own.block == shared.block


def test_alignment_workspace_and_large_shared_memory() -> None:
    problem = Problem.parse("256x126x512")
    config = variant("simt:128x128x16,thread=8x8,load=cp_async,k_inner_a=1,stages=4,split_k=4")
    launch, code = config.launch_config(problem, 132), render(problem, config, SM_90).code
    assert fitted(problem, config, SM_90).alignment == (4, 2, 2)
    assert config.workspace_bytes(problem, 132) == 2 * 4 * 128 * 128 * 4 + 2 * 4
    assert launch.grid == (8, 1, 1)
    assert launch.static_smem_bytes == 0
    assert launch.dynamic_smem_bytes == 4 * (128 * (16 + 4) + 16 * (128 + 4)) * 4
    assert "Elem* __restrict__ workspace" in code
    assert "extern __shared__" in code


def test_a_shared_memory_epilogue_needs_room_for_a_row_of_each_thread() -> None:
    plain = variant("simt:64x128x8,thread=2x8")
    bytes_of = [changed(plain, shared=shared).smem_bytes(DType.FLOAT) for shared in (0, 1)]
    # 4 x 4 warps of 8 rows, which have 32 columns, and 8 to spare so that four rows of a write meet in no bank.
    assert bytes_of == [2 * 8 * (64 + 4 + 128 + 4) * 4, 16 * 8 * (32 + 8) * 4]


# ---- Machine code ----------------------------------------------------------------------------------------------


ENDINGS = (
    ("128x256x16,thread=16x8,lanes_m=4,stages=3,load=cp_async,fragments=double,shared=1", "float"),
    ("64x64x16,thread=8x8,lanes_m=4,fragments=double,shared=1", "float"),
    ("64x32x16,thread=4x4,slices=4,split_k=4,shared=1", "double"),
    ("32x64x32,thread=8x8,lanes_m=4,fragments=double,slices=4,split_k=16", "float"),
)
"""Configs with epilogues of several kinds, and types. They are compiled besides a sample."""


def of(shape: str, dtype: str = "float", trans: str = "nn", target: str = "sm_90a") -> list[Any]:
    """Configs that a search tries for a problem."""
    return tried(Problem.parse(shape, dtype, trans), target)


def sample() -> list[Row]:
    """Instances of all mechanisms, each for all targets that can run it."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str]] = []

    def add(count: int, configs: list[Any], dtype: str = "float", trans: str = "nn") -> None:
        drawn = generator.sample(configs, min(count, len(configs)))
        rows.extend((str(config), dtype, trans) for config in drawn)

    for trans, count in (("nn", 10), ("nt", 5), ("tn", 3)):
        problem = Problem.parse("1024", "float", trans)
        listed = of("1024", trans=trans, target="sm_120")
        add(count, [each for each in listed if serves(each, problem, TYPICAL["sm_80"])], trans=trans)
    add(6, of("1024", "double", target="sm_120"), "double")
    deep = [each for each in of("16x4096x4096") if each.tile.block_k > 32]
    for tma in (False, True):
        add(4, [each for each in deep if bool(each.producer_threads) == tma])
    add(4, [each for each in of("1024") if each.clustered])
    add(6, [each for each in of("512") if each.tile.slice_barriers])
    for shape in ("777", "33x2000x4000"):
        add(4, [each for each in of(shape) if each.tile.non_power_of_two])
    copied = [parse(text) for text, dtype, trans in rows if (dtype, trans) == ("float", "nn")]
    copied = [each for each in copied if each.pipeline.load == "cp_async"]
    rows += [(str(changed(each, interleave=groups)), "float", "nn") for groups, each in zip((2, 4) * 3, copied)]
    rows += [(str(variant(f"simt:{text}")), dtype, "nn") for text, dtype in ENDINGS]
    rows = [row for row in rows if serves(parse(row[0]), Problem.parse("1024", *row[1:]), SM_90)]
    pairs = list(itertools.product((instance for (instance,) in one_each(rows)), TARGETS))
    return [(text, target) for text, target in pairs if is_served(text, target)]


def is_served(text: str, target: str) -> bool:
    """Whether the target can run the instance."""
    problem, fit = instance_of(text)
    return serves(fit.config, problem, TYPICAL[target])


@pytest.mark.nvrtc
@pytest.mark.slow
def test_nothing_spills_and_resources_are_as_predicted() -> None:
    rows = sample()
    assert len(rows) > 150
    assert_as_predicted(rows)
