"""Configs of the simt family that load tiles by TMA: products on the host device, planted faults, rules, and emitted
files."""

import itertools
from itertools import product

import pytest
from conformance import KernelConformance, Refusal
from planted import Fault, Shape
from products import SCALARS, TRANS, bits, check, check_sizes, sized
from quick import TYPICAL, compile_together
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.bundle import Served
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import TensorBox
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import prepare
from variants import changed, field, variant

SLICES = "32x16x64,thread=4x4,lanes_m=8,stages=2,slices=2,fragments=double"
CONFIGS = {
    "slices, fragments double": SLICES,
    "three stages, splits": "32x16x32,thread=4x4,lanes_m=8,stages=3,split_k=3",
    "two lanes along m": "16x64x64,thread=4x4,lanes_m=2,stages=2,slices=4,split_k=2",
    "four lanes along m, shared": "64x64x32,thread=8x8,lanes_m=4,stages=2,shared=1",
    "sixteen lanes along m, cooperative reduction": "32x16x32,thread=2x4,lanes_m=16,stages=2,split_k=32",
    "packed": "32x32x32,thread=4x4,lanes_m=8,stages=2,pack_a=1,pack_b=1",
    "L2 prefetch": "16x32x64,thread=4x4,lanes_m=4,stages=2,slices=4,l2_prefetch=1",
}  # fmt: skip


def config_for(text: str, trans: str) -> Config:
    config = variant(f"simt:{text}", load="tma")
    k_inner_a = int(trans[0] == "n" and not field(config, "pack_a"))
    k_inner_b = int(trans[1] == "t" and not field(config, "pack_b"))
    return changed(config, k_inner_a=k_inner_a, k_inner_b=k_inner_b)


# ---- Planted faults --------------------------------------------------------------------------------------------

SPLIT = "16x32x32,thread=4x4,lanes_m=4,stages=3,split_k=3"
FAULTS = (
    Fault("first tile not waited for", "if (tiles > 0) while (!mbarrier_try_wait(&full[0], 0)) {}", "", SLICES),
    Fault("next tile not waited for", "if (more) while (!mbarrier_try_wait(&full[stage], parity)) {}", "", SLICES),
    Fault("waited for a tile beyond the last", "if (more) while", "while", SLICES),
    Fault("stage not given back", "if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);", "", SLICES),
    Fault("stage given back by each lane", "if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);",
          "mbarrier_arrive(&empty[stage]);", SLICES),
    Fault("stage filled while it is read", "while (!mbarrier_try_wait(&empty[stage], parity)) {}", "", SLICES),
    Fault("fewer bytes expected", "stage], kStage * sizeof(Elem))", "stage], TileA::kSize * sizeof(Elem))", SLICES),
    Fault("parity not flipped", "parity ^= 1;\n        }\n        reading", "}\n        reading", SLICES),
    Fault("producer's parity not flipped", "stage = 0;\n                parity ^= 1;", "stage = 0;", SLICES),
    Fault("producer begins with the other parity", "unsigned parity = 1;", "unsigned parity = 0;", SLICES),
    Fault("the same tile again", "int(k_begin) + each * kBlockK", "int(k_begin)", SLICES),
    Fault("operands exchanged", "map_b, int(col0)", "map_a, int(col0)", SLICES),
    Fault("swizzle not undone", "k % kPitch ^ (first + lane) % 8 * kWide", "k % kPitch", SLICES),
    Fault("row taken for swizzled as another", "(step ^ i * kLanes % 8 * kWide) ^ p", "step ^ p", SPLIT),
    Fault("only the first steps of rows", "row < kBlockK; row += kPitch", "row < kPitch; row += kPitch", SLICES),
    Fault("slices read the same", "const TileA a(shared, warp_m, lane_m(lane), slice_k())",
          "const TileA a(shared, warp_m, lane_m(lane), 0)", SLICES),
    Fault("split begins at 0", "int(k_begin) + each", "each", SPLIT),
    Fault("producer goes on to multiply", ", tiles);\n        return;", ", tiles);", SLICES),
    Fault("barriers lie in a stage", "shared + kStages * kStage)", "shared + kStages * kStage - 64)", SLICES),
    Fault("more arrivals awaited", "(&empty[stage], kThreads / 32)", "(&empty[stage], kThreads / 32 + 1)", SLICES),
    Fault("barriers not made before they are used", "fence_proxy_async();\n    }\n    __syncthreads();",
          "fence_proxy_async();\n    }", SLICES),
)  # fmt: skip
TYPES = ("float", "double"), ("double", "float")
"""Types of the four transposes in each turn: each transpose takes one type, in slow tests the other too."""

SM_90 = TYPICAL["sm_90a"]
NARROW = "4096x16x4096"
PROBLEM = Problem.parse(NARROW)
TEXT = "32x16x128,load=tma,stages=4,k_inner_a=1,fragments=double,slices=4"
TMA = variant(f"simt:{TEXT}")
SHAPE = "the device has TMA, the CTA has no cluster, stream-K or slice barriers"
ROWS = "TMA copies rows that are aligned to 16 bytes"
BOX = "a TMA box has at most 256 by 256 elements"


class TestTma(KernelConformance):
    family = "simt"
    configs = CONFIGS
    turns = tuple(tuple((types[place % 2], trans) for place, trans in enumerate(TRANS)) for types in TYPES)
    refused = (
        Refusal(f"{TEXT.replace(',k_inner_a=1', '')}", BOX, NARROW),
        Refusal("32x16x16,load=tma,stages=4,k_inner_a=1,fragments=double", BOX, NARROW),
        Refusal(f"{TEXT},slice_barriers=1", SHAPE, NARROW),
        Refusal(f"{TEXT},interleave=2", "interleave 2 is for cp.async", NARROW),
        Refusal(f"{TEXT},split_k=2,reduce=cluster", SHAPE, NARROW),
        Refusal(f"{TEXT},stream_k=1", SHAPE, NARROW),
        Refusal(f"{TEXT.replace('32x16', '40x16')},thread_m=5", SHAPE, NARROW),
        Refusal(
            "32x16x256,load=cp_async,stages=2,k_inner_a=1,fragments=double,slices=8",
            "tiles of 256 steps of k are for",
            NARROW,
        ),
    )
    instruction = "cp.async"
    faults = FAULTS
    unfaulted = SLICES, SPLIT
    unfaulted_trans = TRANS
    unfaulted_widths = (True,)
    step = 4
    wide = True

    def config(self, text: str, trans: str = "nn") -> Config:
        return config_for(text, trans)

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        """Several CTAs with ragged edges and tiles of k, whole tiles, and one vector."""
        return (68, 36, 140), (64, 32, 384), (4, 4, 4)

    def test_edge_grid(self, name: str, turn: int) -> None:
        for kernel in self.kernels(name, turn):
            problem, tile = kernel.problem, kernel.config.cta_tile
            # Stored rows are whole vectors; other sides may have any length.
            free = (not problem.trans_a, problem.trans_b, problem.trans_a and not problem.trans_b)
            steps = [1 if each else 4 for each in free]
            sizes = product(*((s, t - s, t, t + s, 2 * t + s) for t, s in zip(tile, steps)))
            check_sizes([kernel], itertools.islice(sizes, TRANS.index(problem.trans), None, 4), (0, 4, 8))
            assert kernel._unaligned is None
            for alpha, beta in SCALARS:
                check(prepare(kernel.device, sized(problem, tile[0] + 4, 4, 0), kernel.config), alpha, beta, 0)


def test_unaligned_rows_are_served_by_a_kernel_that_copies_by_cp_async() -> None:
    kernel = prepare(HostDevice(), Problem.parse("36x16x200"), config_for(SLICES, "nn"))
    assert len(kernel.config.boxes(kernel.problem)) == 2
    check(kernel, -0.5, 2.0, 3)
    assert kernel._unaligned is not None
    assert kernel._unaligned.config == kernel.config.unaligned
    assert field(kernel._unaligned.config, "load") == "cp_async"
    assert kernel._unaligned.fit.alignment == (1, 1, 1)
    assert kernel._unaligned.config.boxes(kernel.problem) == ()
    check(kernel, -0.5, 2.0, 4)


def test_every_run_gives_the_same_bits() -> None:
    problem, by_tma = Problem.parse("36x16x400"), config_for(SLICES, "nn")
    by_thread = changed(by_tma, load="cp_async")
    compile_together([(problem, by_tma), (problem, by_thread)])
    kernels = [prepare(HostDevice(), problem, config) for config in (by_tma, by_thread)]
    assert len({bits(kernel, 0.7) for kernel in (*kernels, kernels[0])}) == 1


# ---- Rules and emitted text --------------------------------------------------------------------------------------


def reasons(config: Config, problem: Problem = PROBLEM, arch: str = "sm_90a") -> list[str]:
    return list(rejections(problem, config, TYPICAL[arch]))


def test_rows_have_to_be_aligned() -> None:
    for shape in ("4096x16x4095", "4096x16x4094", "4096x15x4096", "4096x18x4096"):
        assert ROWS in reasons(TMA, Problem.parse(shape))
    assert reasons(TMA, Problem.parse("4095x20x4092")) == []


@pytest.mark.parametrize("arch", list(ARCHES))
def test_devices_that_have_tma(arch: str) -> None:
    refusals = reasons(changed(TMA, stages=2), arch=arch)
    assert any(SHAPE in each for each in refusals) == (arch not in ("host", "sm_90a", "sm_100", "sm_120"))


@pytest.mark.parametrize(
    ("trans", "dtype", "values", "boxes"),
    [
        ("nn", "float", {}, (TensorBox(32, 32, True), TensorBox(128, 16, False))),
        ("nt", "float", {"k_inner_b": 1}, (TensorBox(32, 32, True), TensorBox(16, 32, True))),
        ("tn", "float", {"k_inner_a": 0}, (TensorBox(128, 32, False), TensorBox(128, 16, False))),
        ("tt", "double", {"k_inner_a": 0, "k_inner_b": 1, "block_k": 64},
         (TensorBox(64, 32, False), TensorBox(16, 16, True))),
        ("nn", "float", {"load": "cp_async"}, ()),
    ],
)  # fmt: skip
def test_boxes_of_copies(trans: str, dtype: str, values: dict[str, int | str], boxes: tuple[TensorBox, ...]) -> None:
    problem, config = Problem.parse("4096x16x4096", dtype, trans), changed(TMA, **values)
    assert config.boxes(problem) == boxes
    assert config.launch_config(problem, 132).threads == config.threads == (160 if boxes else 128)
    code = render(problem, config, SM_90).code
    assert ("const __grid_constant__ TensorMap map_b" in code) == bool(boxes)


def test_the_unaligned_instance_copies_by_cp_async_with_the_same_tiles_of_c() -> None:
    deep = changed(TMA, block_k=256, stages=3, slices=8)
    unaligned = fitted(PROBLEM, deep, SM_90, aligned=False)
    assert reasons(deep) == reasons(unaligned.config) == []
    assert unaligned.alignment == (1, 1, 1)
    assert [unaligned.config.get(name) for name in ("load", "block_k")] == ["cp_async", 128]
    assert unaligned.config.cta_tile[:2] == deep.cta_tile[:2]


def test_emitted_files_describe_both_operands_and_serve_unaligned_rows() -> None:
    files = dict(emit(Served(PROBLEM, TMA, SM_90), "narrow").files)
    text = files["narrow.cu"]
    assert "{{32, 32}, {128, 16}}, {3, 0},  // sums, padding, packing, split terms, TMA" in text
    assert "{{0, 0}, {0, 0}}, {0, 0},  // sums, padding, packing, split terms, TMA" in text  # the general kernel
    other = dict(emit(Served(PROBLEM, changed(TMA, load="cp_async"), SM_90), "narrow").files)
    assert "tma_step" not in other["narrow.cu"]
