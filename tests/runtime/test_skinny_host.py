"""The skinny family on the host device: the edge grid, every form, operands that lie askew, and planted faults."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
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
    integers,
    prepared,
    run,
    sized,
)  # fmt: skip
from quick import compile_together
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import prepare
from variants import cta_tile, variant

# One for each way through the template; both short sides and all transposes meet every one.
CONFIGS = {
    "vector, warps share k": "block_short=1,thread_long=4,thread_k=8,lanes_k=4,warps_k=4,resident_k=128",
    "lanes share k": "block_short=2,thread_long=4,thread_k=4,lanes_k=32,warps_long=2,warps_k=1,resident_k=128",
    "splits, several rounds of the warps":
        "block_short=16,thread_long=4,thread_k=4,lanes_k=2,warps_long=2,warps_k=4,resident_k=128,split_k=3",
    "cp.async": "block_short=4,thread_long=4,thread_k=4,lanes_k=8,warps_k=2,load=cp_async,stages=2,resident_k=128",
    "cp.async, all of it":
        "block_short=8,thread_long=4,thread_k=4,lanes_k=4,warps_long=2,warps_k=2,"
        "load=cp_async,stages=4,resident_k=128,split_k=2,l2_prefetch=1",
}  # fmt: skip


def config_for(text: str, short: str) -> Config:
    return variant(f"skinny:{text}", short=short)


TURNS = (
    (("float", "nn"), ("double", "nt"), ("float", "tn"), ("double", "tt")),
    (("float", "tt"), ("double", "tn"), ("float", "nt"), ("double", "nn")),
)
"""Types and transposes that configs have in turn: two for the grid and three for vectors of each kind of edge."""


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("short", ["m", "n"])
@pytest.mark.parametrize("name", CONFIGS)
def test_edge_grid(name: str, short: str, turn: int) -> None:
    device, config = QuickDevice(), config_for(CONFIGS[name], short)
    turns = TURNS[(list(CONFIGS).index(name) + (short == "n") + turn) % 2]
    tile_m, tile_n, tile_k = tile = cta_tile(config)
    whole = [Problem.parse("x".join(map(str, tile)), *pair) for pair in turns]
    fits = [guarded(config, *pair) for pair in turns]
    shapes = (4 * (tile_m // 4) + 4, 4 * (tile_n // 4) + 4, tile_k + 4), (2 * tile_m, tile_n, 3 * tile_k)
    vectors = [
        (sized(problem, *shape), config)
        for shape, problem in (product(shapes, whole[2:]) if turn else zip(shapes, whole[2:]))
    ]
    compile_together([*zip(whole[:2], fits), *vectors])

    kernels = [instance(device, *each) for each in zip(whole[:2], fits)]
    check_sizes(kernels, product(*(sorted({1, t, t + 1, 2 * t + 3}) for t in tile)))
    # Nothing to add up, less than a vector, and more than waits of the small operand in shared memory.
    for kernel, k in product(kernels, (0, 2, 700)):
        other = prepare(device, sized(kernel.problem, tile_m + 1, 3, k), config, aligned=False)
        assert other.source == prepared(kernel, other.problem).source
        for alpha, beta in SCALARS:
            check(other, alpha, beta, 7)
    for (problem, chosen), (alpha, beta) in product(vectors, SCALARS):
        kernel = prepare(device, problem, chosen)
        # Rows 8 elements apart stay aligned; others are served by the unaligned instance, by the same tiles.
        for extra in (0, 8, 7) if kernel.fit.edge is Edge.BOUNDS else (0, 8):
            check(kernel, alpha, beta, extra)


@pytest.mark.parametrize("short", ["m", "n"])
def test_operands_that_start_askew_are_served_by_the_unaligned_instance(short: str) -> None:
    config = config_for(CONFIGS["cp.async"], short)
    check_askew(4, lambda device: prepare(device, Problem.parse("36x40x44"), config))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "trans", "short"), [
    ("float", "nn", "m"), ("float", "nn", "n"), ("double", "tt", "m"),
])  # fmt: skip
def test_accuracy(name: str, dtype: str, trans: str, short: str) -> None:
    """T1 by the verifier, and T2: an IEEE sum of k terms is this near, a shortened one is not."""
    problem = Problem.parse("6x150x600" if short == "m" else "150x6x600", dtype, trans)
    device = HostDevice()
    verdict = Verifier(device, problem).check(prepare(device, problem, config_for(CONFIGS[name], short)).launch)
    assert verdict.reason == ""
    assert verdict.accuracy.worst * (problem.k + 2) <= 4 * (problem.k + 2) ** 0.5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("short", ["m", "n"])
def test_nan_and_infinity_propagate(name: str, short: str) -> None:
    problem = Problem(20, 19, 21)
    a, b, c = integers(problem, 3)
    a[4, 7], b[20, 2] = np.nan, np.inf
    device = HostDevice()
    got = run(device, prepare(device, problem, config_for(CONFIGS[name], short)), a, b, c, 1.0, 0.0)
    assert np.isnan(got[4]).all()
    assert not np.isfinite(got[:, 2]).any()
    assert np.isfinite(np.delete(np.delete(got, 4, axis=0), 2, axis=1)).all()


@pytest.mark.parametrize("name", ["splits, several rounds of the warps", "cp.async, all of it"])
def test_splits_give_the_same_bits_again_and_leave_their_counters_at_zero(name: str) -> None:
    kernel = prepare(HostDevice(), Problem.parse("13x90x500"), config_for(CONFIGS[name], "m"))
    assert len({bits(kernel) for _ in range(5)}) == 1
    assert kernel._scratch is not None
    (held,) = kernel._scratch._streams.values()
    partial_tiles, counters = held.buffers
    assert partial_tiles.nbytes + counters.nbytes == kernel.config.workspace_bytes(kernel.problem, 1)
    assert counters.nbytes == 4 * kernel.config.tiles(kernel.problem)
    assert not counters.array("uint8", (counters.nbytes,)).any()


# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "block_short=4,thread_long=4,thread_k=2,lanes_k=8,warps_k=2,resident_k=128,short=m"
ASYNC = f"{PLAIN},load=cp_async,stages=4"
WHOLE = "block_short=16,thread_long=4,thread_k=4,lanes_k=2,warps_long=2,warps_k=4,resident_k=128,split_k=2,short=n"


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

    def plant(self, dtype: str) -> Planted:
        config = variant(f"skinny:{self.config}")
        m, n, k = cta_tile(config)
        # Ragged CTAs both ways and several rounds of k, whole tiles, and one element or vector.
        shapes = ((m + 3, n + 3, 3 * 128 + 5), (2 * m, n, 4 * k), (1, 1, 1))
        fit = guarded(config, dtype, self.trans, self.wide)
        return Planted(self.name, fit, self.old, self.new, dtype, self.trans, shapes)


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


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    """In one of the types each."""
    planted = [fault.plant(("float", "double")[place % 2]) for place, fault in enumerate(FAULTS)]
    for dtype, config, trans, wide in product(("float", "double"), (PLAIN, ASYNC, WHOLE), ("nn", "nt"), (False, True)):
        planted.append(Fault(f"unfaulted {dtype} {config} {trans} {wide}", "", "", config, trans, wide).plant(dtype))
    assert_caught(planted[part::PARTS], tmp_path)


@pytest.mark.slow
def test_every_fault_is_caught_in_the_other_type_too(tmp_path: Path) -> None:
    assert_caught([fault.plant(("double", "float")[place % 2]) for place, fault in enumerate(FAULTS)], tmp_path)
