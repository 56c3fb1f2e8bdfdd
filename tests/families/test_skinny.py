"""The skinny family: products on the host device, planted faults, rules, and machine code."""

import random
from itertools import product

import pytest
from conformance import KernelConformance, Refusal
from nvrtc import TARGETS, Row, assert_as_predicted
from planted import Fault, Shape
from quick import TYPICAL
from search_spaces import tried
from tilewright.codegen.config import Config
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import one_each, variant

# One for each path through the template. Each is tried with both short sides and all transposes.
WAYS = {
    "vector, warps share k": "block_short=1,thread_long=4,thread_k=8,lanes_k=4,warps_k=4,resident_k=128",
    "lanes share k": "block_short=2,thread_long=4,thread_k=4,lanes_k=32,warps_long=2,warps_k=1,resident_k=128",
    "splits, several rounds of the warps":
        "block_short=16,thread_long=4,thread_k=4,lanes_k=2,warps_long=2,warps_k=4,resident_k=128,split_k=3",
    "cp.async": "block_short=4,thread_long=4,thread_k=4,lanes_k=8,warps_k=2,load=cp_async,stages=2,resident_k=128",
    "cp.async, all of it":
        "block_short=8,thread_long=4,thread_k=4,lanes_k=4,warps_long=2,warps_k=2,"
        "load=cp_async,stages=4,resident_k=128,split_k=2,l2_prefetch=1",
}  # fmt: skip

CONFIGS = {f"{name}, {short} is short": f"{text},short={short}" for name, text in WAYS.items() for short in "mn"}

# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "block_short=4,thread_long=4,thread_k=2,lanes_k=8,warps_k=2,resident_k=128,short=m"
ASYNC = f"{PLAIN},load=cp_async,stages=4"
WHOLE = "block_short=16,thread_long=4,thread_k=4,lanes_k=2,warps_long=2,warps_k=4,resident_k=128,split_k=2,short=n"

FAULTS = (
    Fault("accumulators not set", "Elem acc[kBlockS][kThreadL] = {};", "Elem acc[kBlockS][kThreadL];"),
    Fault("C read where beta is 0", "beta == Elem(0) ? alpha * product : ", ""),
    Fault("alpha ignored", "? alpha * product : alpha * product", "? alpha * product : product"),
    Fault("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped", "matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
          "matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda"),
    Fault("guard of the large operand along k off by one", "(row_of(i) < k_left)", "(row_of(i) <= k_left)"),
    Fault("guard of the other form along k off by one", "(step_of(i) < k_left)", "(step_of(i) <= k_left)",
          trans="nt"),
    Fault("guard of columns lost", "(col_of(j * kVec) < l_left)", "true"),
    Fault("guard of rows lost", "row_of(j) < l_left", "true", trans="nt"),
    Fault("guard of the small operand along k lost", "& (k < k_left)", ""),
    Fault("guard of the short side lost", "(s < s_left)", "true",
          PLAIN.replace("block_short=4", "block_short=8")),
    Fault("guard of stored short side off by one", "at.s >= s_left", "at.s > s_left"),
    Fault("guard of stored long side off by one", "at.l >= l_left", "at.l > l_left"),
    Fault("short side stored along the rows", "Index(at.s) * ldc + at.l;", "Index(at.l) * ldc + at.s;"),
    Fault("small operand transposed", "matrix_y + Index(s) * ld + k;", "matrix_y + Index(k) * ld + s;"),
    Fault("barrier before the main loop missing", "    stage_small(0);\n    __syncthreads();", "    stage_small(0);"),
    Fault("barrier after a later round missing", "            __syncthreads();\n        }\n\n", "        }\n\n"),
    Fault("barrier before a later round missing", "__syncthreads();  // no thread reads what was resident before", ""),
    Fault("later rounds not loaded", "            stage_small(begin);", "            stage_small(0);"),
    Fault("shared memory short", "/ sizeof(Elem)];", "/ sizeof(Elem) - 80];"),
    Fault("last part dropped", "tile < end; ++tile", "tile + 1 < end; ++tile"),
    Fault("endless loop", "tile < end; ++tile", "tile < end; tile += 0"),
    Fault("part not advanced", "next += Index(kTileK) * ld;", ""),
    Fault("factor read a step late", "row_of(i) * kSmallPitch", "row_of(i + 1) * kSmallPitch"),
    Fault("lanes mapped twice", "threadIdx.x % 32 / kLanesL", "threadIdx.x % 16 / kLanesL"),
    Fault("lanes that are not added up", "distance < kLanesK; distance", "distance < kLanesK / 2; distance"),
    Fault("warps left out", "warp < kWarpsK; ++warp", "warp < kWarpsK - 1; ++warp"),
    Fault("barrier between the warps missing", "        __syncthreads();\n        #pragma unroll\n        for (int e",
          "        #pragma unroll\n        for (int e"),
    Fault("barrier before the accumulators missing",
          "__syncthreads();  // shared memory holds nothing that is still read", "",
          WHOLE),
    Fault("tile index off by one", "Index(tile % tiles_l) * kTileL", "Index(tile % tiles_l) * kTileL + 1"),
    Fault("next short rows forgotten", "Index(tile / tiles_l) * kBlockS", "0"),
    Fault("wait forgotten", "wait_copies<kStages - 1>();", "", ASYNC),
    Fault("wait too short", "wait_copies<kStages - 1>();", "wait_copies<kStages>();", ASYNC),
    Fault("wait for the small operand forgotten", "wait_copies<kStages>();", "", ASYNC),
    Fault("wait in a later round forgotten", "            wait_copies<0>();\n            __sync",
          "            __sync", ASYNC),
    Fault("group not committed", "large.start(slot);\n                commit_copies();", "large.start(slot);", ASYNC),
    Fault("stages not advanced", "kStage ? 0 : oldest + 2 * kStage", "kStage ? 0 : oldest", ASYNC),
    Fault("copy reads outside", "cp_async<kBytes>(to, from, inside)", "cp_async<kBytes>(to, from, true)", ASYNC),
    Fault("splits overlap", "* (split + 1) / kSplitK) - first_tile", "* (split + 2) / kSplitK) - first_tile", WHOLE),
    Fault("short rows of a later round misplaced", "s(e / kPart * kRows +", "s(", WHOLE),
    Fault("counter not put back", "if (*last) *counter = 0;", "", WHOLE),
    Fault("first to come taken for the last", "== all - part;", "== 0;", WHOLE),
    Fault("split left out", "each < kSplitK; ++each", "each < kSplitK - 1; ++each", WHOLE),
    Fault("split written beside the workspace", "Index(blockIdx.x) * kMade;", "Index(blockIdx.x + 1) * kMade;", WHOLE),
)  # fmt: skip


class TestSkinny(KernelConformance):
    family = "skinny"
    configs = CONFIGS
    turns = (
        (("float", "nn"), ("double", "nt")),
        (("float", "tt"), ("double", "tn")),
        (("float", "tn"), ("double", "tt")),
        (("float", "nt"), ("double", "nn")),
    )
    refused = (
        Refusal("resident_k=128,thread_k=8,lanes_k=32", "resident_k 128 is a multiple of the steps"),
        Refusal("thread_long=16,thread_k=16", "a thread loads at most 64 elements at a time"),
        Refusal("stages=2", "cp.async has an even number of stages, registers have one: not 2"),
        Refusal("load=cp_async", "cp.async has an even number of stages, registers have one: not 1"),
        Refusal("block_short=32,thread_long=8", "registers of 1 CTAs fit on an SM"),
    )  # fmt: skip
    faults = FAULTS
    unfaulted = PLAIN, ASYNC, WHOLE
    unfaulted_trans = "nn", "nt"

    def sizes(self, tile: Shape, turn: int) -> list[Shape]:
        """Sizes around a tile, and a k of which shared memory holds only a part of the small operand."""
        m, n, _ = tile
        around = product(*(sorted({1, t, t + 1, 2 * t + 3}) for t in tile))
        return [*around, *product((1, m + 1), (3, n), (700,))]

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        """Ragged tiles with several rounds of k, whole tiles, and one element or vector."""
        m, n, k = config.cta_tile
        return (m + 3, n + 3, 3 * 128 + 5), (2 * m, n, 4 * k), (1, 1, 1)


SM_90 = TYPICAL["sm_90a"]


def test_old_devices_have_no_cp_async() -> None:
    config = variant("skinny:load=cp_async,stages=2")
    assert list(rejections(Problem.parse("1024"), config, TYPICAL["sm_75"])) == [
        "the device has cp.async, which load cp_async needs"
    ]


def test_alignment_workspace_and_large_shared_memory() -> None:
    config = variant("skinny:16x4x4,short=n,lanes_k=8,warps=1x8,load=cp_async,stages=4,resident_k=512,split_k=8")
    problem = Problem.parse("256x16x4096")
    launch, code = config.launch_config(problem, 132), render(problem, config, SM_90).code
    assert fitted(problem, config, SM_90).alignment == (4, 1, 1)
    assert launch.grid == (256 // 16 * 8, 1, 1)
    assert config.workspace_bytes(problem, 132) == 128 * 16 * 16 * 4 + 16 * 4
    assert launch.static_smem_bytes == 0
    assert launch.dynamic_smem_bytes == (4 * 16 * 256 + 512 * 20) * 4
    assert "Elem* __restrict__ workspace" in code
    assert "extern __shared__" in code


# ---- Machine code ----------------------------------------------------------------------------------------------


def sample() -> list[Row]:
    """Instances, each for all targets."""
    generator = random.Random(3)
    rows = []
    for shape, dtype, count in (
        ("1x4096x4096", "float", 5), ("1x4096x4096", "double", 4), ("16x4096x4096", "float", 5),
        ("4096x16x4096", "float", 4), ("4096x1x4096", "float", 3), ("32x8192x1024", "double", 3),
    ):  # fmt: skip
        listed = (set(tried(Problem.parse(shape, dtype), target, "skinny")) for target in TARGETS)
        common = sorted(set.intersection(*listed), key=str)
        rows += [(str(config), dtype, "nn") for config in generator.sample(common, count)]
    return [(text, target) for (text,) in one_each(rows) for target in TARGETS]


@pytest.mark.nvrtc
def test_next_to_nothing_spills_and_resources_are_as_predicted() -> None:
    assert_as_predicted(sample())
