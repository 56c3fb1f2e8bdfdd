"""Tiles that come by bulk tensor copies, on the host device: the edge grid, its twin, sanitizers and planted faults."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from planted import BROKEN, PARTS, RIGHT, Planted, outcomes
from products import exact, integers, prepared, run
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import Kernel, prepare

TRANS = ("nn", "nt", "tn", "tt")
SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0), (1.5, 1.0))
"""alpha and beta."""
SLICES = "block_m=32,block_n=16,thread_m=4,thread_n=4,lanes_m=8,block_k=64,stages=2,slices=2,prefetch=1"
CONFIGS = {
    "slices, prefetched": SLICES,
    "in time, three stages, splits":
        "block_m=32,block_n=16,thread_m=4,thread_n=4,lanes_m=8,block_k=32,stages=3,split_k=3",
    "two lanes along m":
        "block_m=16,block_n=64,thread_m=4,thread_n=4,lanes_m=2,block_k=64,stages=2,slices=4,split_k=2",
    "four lanes along m, staged":
        "block_m=64,block_n=64,thread_m=8,thread_n=8,lanes_m=4,block_k=32,stages=2,staged_c=1",
    "sixteen lanes along m, splits that share out":
        "block_m=32,block_n=16,thread_m=2,thread_n=4,lanes_m=16,block_k=32,stages=2,split_k=32",
    "last tiles shared":
        "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=32,stages=2,split_k=3,tail=2,group_m=4",
    "packed": "block_m=32,block_n=32,thread_m=4,thread_n=4,lanes_m=8,block_k=32,stages=2,pack_a=1,pack_b=1",
    "warmed": "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=64,stages=2,slices=4,warm_l2=1",
}  # fmt: skip


def config_for(text: str, dtype: str, trans: str, edge: str = "bounds") -> Config:
    values = dict(complete(Config.parse(f"simt:{text}")).values)
    wide = 4 if dtype == "float" else 2
    values |= {"bulk": 1, "cp_async": 1, "vec_a": wide, "vec_b": wide, "edge": edge}
    values["a_k_inner"] = int(trans[0] == "n" and not values["pack_a"])
    values["b_k_inner"] = int(trans[1] == "t" and not values["pack_b"])
    sums = int(values["thread_m"]) * int(values["thread_n"]) // int(values["slices"])
    values["vec_c"] = 1 if values["b_k_inner"] else min(wide, sums, int(values["thread_n"]))
    return Config("simt", tuple(values.items()))


def check(kernel: Kernel, alpha: float, beta: float, extra: int) -> None:
    a, b, c = integers(kernel.problem, 1)
    wanted = exact(kernel.problem, a, b, c, alpha, beta)
    got = run(kernel.device, kernel, a, b, c, alpha, beta, extra)
    assert np.array_equal(got, wanted), (kernel.problem, alpha, beta, extra)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("trans", TRANS)
def test_edge_grid(name: str, dtype: str, trans: str) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name], dtype, trans)
    tile_m, tile_n, tile_k = FAMILIES["simt"].tile(config)
    kernel = prepare(device, Problem.parse(f"{tile_m}x{tile_n}x{tile_k}", dtype, trans), config)
    # Stored rows are whole vectors; sides that are no rows may have any length.
    sizes = []
    for tile, free in ((tile_m, trans[0] == "n"), (tile_n, trans[1] == "t"), (tile_k, trans == "tn")):
        step = 1 if free else 4
        sizes.append((step, tile - step, tile, tile + step, 2 * tile + step))
    for case, (m, n, k) in enumerate(list(product(*sizes))[TRANS.index(trans) :: 4]):
        check(prepared(kernel, Problem.parse(f"{m}x{n}x{k}", dtype, trans)), *SCALARS[case % 4], (0, 4, 8)[case % 3])
    assert kernel._twin is None
    for alpha, beta in SCALARS:
        check(prepare(device, Problem.parse(f"{tile_m + 4}x4x0", dtype, trans), config), alpha, beta, 0)


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_exact_edges(dtype: str, trans: str) -> None:
    config = config_for(SLICES, dtype, trans, edge="exact")
    tile_m, tile_n, tile_k = FAMILIES["simt"].tile(config)
    kernel = prepare(HostDevice(), Problem.parse(f"{2 * tile_m}x{tile_n}x{5 * tile_k}", dtype, trans), config)
    for alpha, beta in SCALARS:
        check(kernel, alpha, beta, 4)


def test_rows_that_are_not_aligned_are_served_by_the_scalar_twin() -> None:
    device = HostDevice()
    kernel = prepare(device, Problem.parse("36x16x200"), config_for(SLICES, "float", "nn"))
    check(kernel, -0.5, 2.0, 3)
    assert kernel._twin is not None
    assert kernel._twin.source.boxes == ()
    check(kernel, -0.5, 2.0, 4)


def test_every_run_gives_the_same_bits() -> None:
    device = HostDevice()
    problem = Problem.parse("36x16x400")
    rng = np.random.default_rng(1)
    a, b = rng.random(problem.stored_a, np.float32), rng.random(problem.stored_b, np.float32)
    c = np.zeros((problem.m, problem.n), np.float32)
    by_bulk = prepare(device, problem, config_for(SLICES, "float", "nn"))
    values = dict(by_bulk.config.values) | {"bulk": 0}
    by_thread = prepare(device, problem, Config("simt", tuple(values.items())))
    assert len({run(device, kernel, a, b, c, 0.7, 0.0).tobytes() for kernel in (by_bulk, by_bulk, by_thread)}) == 1


# ---- Planted faults --------------------------------------------------------------------------------------------

SPLIT = "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=32,stages=3,split_k=3"
SHAPES = ((68, 36, 140), (64, 32, 384), (4, 4, 4))
"""Several blocks with ragged edges and tiles of k, whole tiles, and one vector."""
FAULTS = (
    ("first tile not waited for", "if (tiles > 0) filled[0].wait(0);", "", SLICES),
    ("next tile not waited for", "if (more) filled[stage].wait(parity);", "", SLICES),
    ("waited for a tile beyond the last", "if (more) filled", "filled", SLICES),
    ("stage not given back", "if (lane == 0) emptied[stage].arrive();", "", SLICES),
    ("stage given back by each lane", "if (lane == 0) emptied[stage].arrive();", "emptied[stage].arrive();", SLICES),
    ("stage filled while it is read", "emptied[stage].wait(parity);  // by all warps", "", SLICES),
    ("fewer bytes expected", "expect(STAGE * sizeof(T))", "expect(TileA::SIZE * sizeof(T))", SLICES),
    ("parity not turned", "parity ^= 1;\n        }\n        reading", "}\n        reading", SLICES),
    ("loader's parity not turned", "stage = 0;\n                    parity ^= 1;", "stage = 0;", SLICES),
    ("loader begins with the other parity", "unsigned parity = 1;", "unsigned parity = 0;", SLICES),
    ("the same tile again", "int(k_begin) + tile * BLOCK_K", "int(k_begin)", SLICES),
    ("operands exchanged", "map_b, int(col0)", "map_a, int(col0)", SLICES),
    ("pieces not swapped back", "k % PITCH ^ (first + lane) % 8 * WIDE", "k % PITCH", SLICES),
    ("row's pieces swapped as in another", "(step ^ i * LANES % 8 * WIDE) ^ p", "step ^ p", SPLIT),
    ("only the first steps of rows", "row < BLOCK_K; row += PITCH", "row < PITCH; row += PITCH", SLICES),
    ("slices read the same", "const TileA a(shared, warp_m, lane_m(lane), slice_begin())",
     "const TileA a(shared, warp_m, lane_m(lane), 0)", SLICES),
    ("split begins at 0", "int(k_begin) + tile", "tile", SPLIT),
    ("loader stays for the block's barriers", "tilewright_host::leave_barriers();", "", SLICES),
    ("barriers lie in a stage", "shared + STAGES * STAGE)", "shared + STAGES * STAGE - 64)", SLICES),
    ("more arrivals awaited", "emptied[stage].init(THREADS / 32)", "emptied[stage].init(THREADS / 32 + 1)", SLICES),
    ("barriers not made before they are used", "        publish_barriers();\n    }\n    __syncthreads();",
     "        publish_barriers();\n    }", SLICES),
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_every_fault_is_caught_and_the_unfaulted_text_passes(dtype: str, part: int, tmp_path: Path) -> None:
    planted = [Planted(name, config_for(text, dtype, "nn"), old, new, dtype, "nn", SHAPES)
               for name, old, new, text in FAULTS]  # fmt: skip
    for number, (text, trans) in enumerate(product((SLICES, SPLIT), TRANS)):
        config = config_for(text, dtype, trans)
        planted.append(Planted(f"unfaulted {number}", config, dtype=dtype, trans=trans, shapes=SHAPES))
    found = outcomes(planted[part::PARTS], tmp_path)
    passed = {name for name, outcome in found.items() if outcome == RIGHT}
    assert passed == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found
