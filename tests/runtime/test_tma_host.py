"""Tiles that come by TMA, on the host device: the edge grid, the unaligned kernel, sanitizers and planted faults."""

import itertools
from itertools import product
from pathlib import Path

import pytest
from planted import PARTS, Planted, assert_caught
from products import SCALARS, TRANS, QuickDevice, bits, check, check_sizes, guarded, instance, sized
from quick import compile_together
from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import prepare
from variants import changed, cta_tile, field, variant

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


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CONFIGS)
def test_edge_grid(name: str, turn: int) -> None:
    """Each transpose in one type, in the other one where tests marked slow run too."""
    device, first = QuickDevice(), list(CONFIGS).index(name) + turn
    pairs = [(("float", "double")[(first + place) % 2], trans) for place, trans in enumerate(TRANS)]
    configs = [config_for(CONFIGS[name], trans) for trans in TRANS]
    tile = cta_tile(configs[0])
    wanted = [
        (Problem.parse("x".join(map(str, tile)), *pair), guarded(config, *pair, wide=True))
        for pair, config in zip(pairs, configs, strict=True)
    ]
    compile_together(wanted)
    for problem, fit in wanted:
        kernel = instance(device, problem, fit)
        # Stored rows are whole vectors; sides that are no rows may have any length.
        free = (not problem.trans_a, problem.trans_b, problem.trans_a and not problem.trans_b)
        steps = [1 if each else 4 for each in free]
        sizes = product(*((s, t - s, t, t + s, 2 * t + s) for t, s in zip(tile, steps)))
        check_sizes([kernel], itertools.islice(sizes, wanted.index((problem, fit)), None, 4), (0, 4, 8))
        assert kernel._unaligned is None
        for alpha, beta in SCALARS:
            check(prepare(device, sized(problem, tile[0] + 4, 4, 0), fit.config), alpha, beta, 0)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_exact_edges(dtype: str) -> None:
    wanted = []
    for trans in TRANS:
        config = config_for(SLICES, trans)
        tile_m, tile_n, tile_k = cta_tile(config)
        wanted.append((Problem.parse(f"{2 * tile_m}x{tile_n}x{5 * tile_k}", dtype, trans), config))
    compile_together(wanted)
    for each, (alpha, beta) in product(wanted, SCALARS):
        check(prepare(HostDevice(), *each), alpha, beta, 4)


def test_rows_that_are_not_aligned_are_served_by_a_kernel_that_copies_by_cp_async() -> None:
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


# ---- Planted faults --------------------------------------------------------------------------------------------

SPLIT = "16x32x32,thread=4x4,lanes_m=4,stages=3,split_k=3"
SHAPES = ((68, 36, 140), (64, 32, 384), (4, 4, 4))
"""Several CTAs with ragged edges and tiles of k, whole tiles, and one vector."""
FAULTS = (
    ("first tile not waited for", "if (tiles > 0) full[0].wait(0);", "", SLICES),
    ("next tile not waited for", "if (more) full[stage].wait(parity);", "", SLICES),
    ("waited for a tile beyond the last", "if (more) full", "full", SLICES),
    ("stage not given back", "if (threadIdx.x % 32 == 0) empty[stage].arrive();", "", SLICES),
    ("stage given back by each lane", "if (threadIdx.x % 32 == 0) empty[stage].arrive();",
     "empty[stage].arrive();", SLICES),
    ("stage filled while it is read", "empty[stage].wait(parity);  // by all warps", "", SLICES),
    ("fewer bytes expected", "expect(kStage * sizeof(Elem))", "expect(TileA::kSize * sizeof(Elem))", SLICES),
    ("parity not flipped", "parity ^= 1;\n        }\n        reading", "}\n        reading", SLICES),
    ("producer's parity not flipped", "stage = 0;\n                parity ^= 1;", "stage = 0;", SLICES),
    ("producer begins with the other parity", "unsigned parity = 1;", "unsigned parity = 0;", SLICES),
    ("the same tile again", "int(k_begin) + each * kBlockK", "int(k_begin)", SLICES),
    ("operands exchanged", "map_b, int(col0)", "map_a, int(col0)", SLICES),
    ("swizzle not undone", "k % kPitch ^ (first + lane) % 8 * kWide", "k % kPitch", SLICES),
    ("row taken for swizzled as another", "(step ^ i * kLanes % 8 * kWide) ^ p", "step ^ p", SPLIT),
    ("only the first steps of rows", "row < kBlockK; row += kPitch", "row < kPitch; row += kPitch", SLICES),
    ("slices read the same", "const TileA a(shared, warp_m, lane_m(lane), slice_k())",
     "const TileA a(shared, warp_m, lane_m(lane), 0)", SLICES),
    ("split begins at 0", "int(k_begin) + each", "each", SPLIT),
    ("producer goes on to multiply", ", tiles);\n        return;", ", tiles);", SLICES),
    ("barriers lie in a stage", "shared + kStages * kStage)", "shared + kStages * kStage - 64)", SLICES),
    ("more arrivals awaited", "empty[stage].init(kThreads / 32)", "empty[stage].init(kThreads / 32 + 1)", SLICES),
    ("barriers not made before they are used", "fence_proxy_async();\n    }\n    __syncthreads();",
     "fence_proxy_async();\n    }", SLICES),
)  # fmt: skip


def planted_in(dtypes: tuple[str, str]) -> list[Planted]:
    """Each fault in one of the types, in turn."""
    return [
        Planted(name, guarded(config_for(text, "nn"), dtype, wide=True), old, new, dtype, "nn", SHAPES)
        for (name, old, new, text), dtype in zip(FAULTS, itertools.cycle(dtypes))
    ]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = planted_in(("float", "double"))
    for text, trans, dtype in product((SLICES, SPLIT), TRANS, ("float", "double")):
        fit = guarded(config_for(text, trans), dtype, trans, wide=True)
        planted.append(Planted(f"unfaulted {text} {trans} {dtype}", fit, "", "", dtype, trans, SHAPES))
    assert_caught(planted[part::PARTS], tmp_path)


@pytest.mark.slow
def test_every_fault_is_caught_in_the_other_type_too(tmp_path: Path) -> None:
    assert_caught(planted_in(("double", "float")), tmp_path)
