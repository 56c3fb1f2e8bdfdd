"""The skinny family on the host device: the edge grid, every form, operands that lie askew, and planted faults."""

from dataclasses import dataclass
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
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.kernel import Kernel, prepare

TRANS = ("nn", "nt", "tn", "tt")
SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0), (1.5, 1.0))
"""alpha and beta."""

# One for each way through the template; both short sides and all transposes meet every one.
CONFIGS = {
    "vector, warps share k": "count=1,span=4,depth=8,lanes_k=4,warps_k=4,staged=128",
    "lanes share k": "count=2,span=4,depth=4,lanes_k=32,warps_l=2,warps_k=1,staged=128",
    "splits, several rounds of the warps": "count=16,span=4,depth=4,lanes_k=2,warps_l=2,warps_k=4,staged=128,split_k=3",
    "cp.async": "count=4,span=4,depth=4,lanes_k=8,warps_k=2,cp_async=1,stages=2,staged=128",
    "cp.async, all of it":
        "count=8,span=4,depth=4,lanes_k=4,warps_l=2,warps_k=2,cp_async=1,stages=4,staged=128,split_k=2,warm_l2=1",
}  # fmt: skip


def config_for(text: str, short_n: int, vec: int = 1, edge: str = "bounds") -> Config:
    return complete(Config.parse(f"skinny:{text},short_n={short_n},vec={vec},edge={edge}"))


def widest(dtype: str) -> int:
    return 4 if dtype == "float" else 2


def check(kernel: Kernel, alpha: float, beta: float, extra: int, seed: int = 1) -> None:
    a, b, c = integers(kernel.problem, seed)
    got = run(kernel.device, kernel, a, b, c, alpha, beta, extra)
    wanted = exact(kernel.problem, a, b, c, alpha, beta)
    assert np.array_equal(got, wanted), (kernel.problem, alpha, beta, extra)


@pytest.mark.parametrize("short_n", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "trans"), [("float", "nn"), ("float", "tt"), ("double", "nt"), ("double", "tn")])
def test_edge_grid(name: str, dtype: str, trans: str, short_n: int) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name], short_n)
    tile_m, tile_n, tile_k = FAMILIES["skinny"].tile(config)
    kernel = prepare(device, Problem.parse(f"{tile_m}x{tile_n}x{tile_k}", dtype, trans), config)
    sizes = list(product(*(sorted({1, tile, tile + 1, 2 * tile + 3}) for tile in (tile_m, tile_n, tile_k))))
    # A third for each of the transposes: together they meet all.
    for case, (m, n, k) in enumerate(sizes[TRANS.index(trans) % 3 :: 3]):
        # Scalars and strides turn round and round: every one meets every size somewhere.
        check(prepared(kernel, Problem.parse(f"{m}x{n}x{k}", dtype, trans)), *SCALARS[case % 4], (0, 1, 7)[case % 3])
    # Nothing to add up, less than a vector, and more than what is staged of the small operand at a time.
    for k in (0, 2, 700):
        other = prepare(device, Problem.parse(f"{tile_m + 1}x3x{k}", dtype, trans), config)
        assert other.source == prepared(kernel, other.problem).source
        for alpha, beta in SCALARS:
            check(other, alpha, beta, 7)


@pytest.mark.parametrize("short_n", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "trans"), [("float", "tn"), ("float", "nt"), ("double", "nn"), ("double", "tt")])
def test_vectors(name: str, dtype: str, trans: str, short_n: int) -> None:
    device = HostDevice()
    for edge in ("bounds", "exact", "pad"):
        config = config_for(CONFIGS[name], short_n, widest(dtype), edge)
        tile_m, tile_n, tile_k = FAMILIES["skinny"].tile(config)
        m, n, k = {
            "bounds": (4 * (tile_m // 4) + 4, 4 * (tile_n // 4) + 4, tile_k + 4),
            "exact": (2 * tile_m, tile_n, 3 * tile_k),
            "pad": (tile_m + 1, max(1, tile_n - 1), tile_k + 3),
        }[edge]
        kernel = prepare(device, Problem.parse(f"{m}x{n}x{k}", dtype, trans), config)
        # Rows 8 elements apart stay aligned; others are served by the scalar twin, by the same tiles.
        for (alpha, beta), extra in product(SCALARS, (0, 8, 7) if edge == "bounds" or trans == "nn" else (0, 8)):
            check(kernel, alpha, beta, extra)


@pytest.mark.parametrize("short_n", [0, 1])
def test_operands_that_start_askew_are_served_by_the_scalar_twin(short_n: int) -> None:
    device = HostDevice(alignment=4)
    problem = Problem.parse("36x40x44")
    kernel = prepare(device, problem, config_for(CONFIGS["cp.async"], short_n, 4))
    a, b, c = integers(problem, 1)
    wanted = exact(problem, a, b, c, 1, 0)
    for askew in range(3):
        operands = []
        arrays = []
        for place, array in enumerate((a, b, c)):
            memory = device.allocate(4 * (array.size + 5))
            skip = (-(memory.pointer // 4) % 4) + (1 if place == askew else 0)
            flat = memory.array("float32", (array.size + 5,))[skip : skip + array.size]
            flat[:] = array.ravel()
            arrays.append(flat.reshape(array.shape))
            operands.append(Operand(memory.pointer + 4 * skip, *array.shape, array.shape[1], False, memory))
        kernel.launch(*operands)
        assert np.array_equal(arrays[2], wanted)
    assert kernel._twin is not None


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "trans", "short_n"), [("float", "nn", 0), ("float", "nn", 1), ("double", "tt", 0)])
def test_accuracy(name: str, dtype: str, trans: str, short_n: int) -> None:
    """T1 by the verifier, and T2: an IEEE sum of k terms is this near, a shortened one is not."""
    problem = Problem.parse("6x150x600" if not short_n else "150x6x600", dtype, trans)
    device = HostDevice()
    verdict = Verifier(device, problem).check(prepare(device, problem, config_for(CONFIGS[name], short_n)))
    assert verdict.reason == ""
    assert verdict.accuracy.worst * (problem.k + 2) <= 4 * (problem.k + 2) ** 0.5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("short_n", [0, 1])
def test_nan_and_infinity_propagate(name: str, short_n: int) -> None:
    problem = Problem(20, 19, 21)
    a, b, c = integers(problem, 3)
    a[4, 7], b[20, 2] = np.nan, np.inf
    device = HostDevice()
    got = run(device, prepare(device, problem, config_for(CONFIGS[name], short_n)), a, b, c, 1.0, 0.0)
    assert np.isnan(got[4]).all()
    assert not np.isfinite(got[:, 2]).any()
    assert np.isfinite(np.delete(np.delete(got, 4, axis=0), 2, axis=1)).all()


@pytest.mark.parametrize("name", ["splits, several rounds of the warps", "cp.async, all of it"])
def test_splits_give_the_same_bits_again_and_leave_their_counters_at_zero(name: str) -> None:
    device = HostDevice()
    problem = Problem.parse("13x90x500")
    kernel = prepare(device, problem, config_for(CONFIGS[name], 0))
    rng = np.random.default_rng(1)
    a, b = rng.random(problem.stored_a, np.float32), rng.random(problem.stored_b, np.float32)
    c = np.zeros((problem.m, problem.n), np.float32)
    assert len({run(device, kernel, a, b, c, 1, 0).tobytes() for _ in range(5)}) == 1
    (workspace,) = kernel._workspaces.values()
    assert workspace.nbytes == kernel.source.workspace_bytes
    tiles = kernel.source.launch.grid[0] // FAMILIES["skinny"].splits(kernel.config)
    assert not workspace.array("uint8", (workspace.nbytes,))[-4 * tiles :].any()


def test_what_the_grid_runs_keeps_every_rule() -> None:
    for text, dtype, trans, short_n, wide in product(CONFIGS.values(), ("float", "double"), TRANS, (0, 1), (0, 1)):
        config = config_for(text, short_n, widest(dtype) if wide else 1)
        assert list(rejections(Problem.parse("64", dtype, trans), config, ARCHES["host"])) == []


# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "count=4,span=4,depth=2,lanes_k=8,warps_k=2,staged=128,short_n=0"
ASYNC = f"{PLAIN},cp_async=1,stages=4"
WHOLE = "count=16,span=4,depth=4,lanes_k=2,warps_l=2,warps_k=4,staged=128,split_k=2,short_n=1"


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text that makes the kernel wrong."""

    name: str
    old: str = ""
    new: str = ""
    config: str = PLAIN
    trans: str = "nn"
    vec: int = 1

    def plant(self, dtype: str) -> Planted:
        config = complete(Config.parse(f"skinny:{self.config},vec={min(self.vec, widest(dtype))}"))
        m, n, k = FAMILIES["skinny"].tile(config)
        # Ragged blocks both ways and several rounds of k, whole tiles, and one element or vector.
        shapes = ((m + 3, n + 3, 3 * 128 + 5), (2 * m, n, 4 * k), (1, 1, 1))
        return Planted(self.name, config, self.old, self.new, dtype, self.trans, shapes)


FAULTS = (
    Fault("sums not set", "T sum[COUNT][SPAN] = {};", "T sum[COUNT][SPAN];"),
    Fault("C read where beta is 0", "beta == T(0) ? alpha * product : ", ""),
    Fault("alpha ignored", "? alpha * product : alpha * product", "? alpha * product : product"),
    Fault("A and B read where alpha is 0", "alpha == T(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped", "A, int lda, const T* __restrict__ B, int ldb",
          "A, int ldb, const T* __restrict__ B, int lda"),
    Fault("guard of the large operand along k off by one", "row_of(i) : 0) < k_left", "row_of(i) : 0) <= k_left"),
    Fault("guard of the other form along k off by one", "step_of(i) : 0) < k_left", "step_of(i) : 0) <= k_left",
          trans="nt"),
    Fault("guard of columns lost", "col_of(v * VEC) < l_left", "true"),
    Fault("guard of rows lost", "row_of(j) < l_left", "true", trans="nt"),
    Fault("guard of the small operand along k lost", "& (k < k_left)", ""),
    Fault("guard of the short side lost", "!GUARD || s < s_left", "true", PLAIN.replace("count=4", "count=8")),
    Fault("guard of stored short side off by one", "at.s >= s_left", "at.s > s_left"),
    Fault("guard of stored long side off by one", "at.l >= l_left", "at.l > l_left"),
    Fault("short side stored along the rows", "SHORT_N ? Index(at.l) * ldc + at.s :", "!SHORT_N ? 0 :"),
    Fault("small operand turned", "K_INNER = SHORT_N ? TRANS_B : !TRANS_A", "K_INNER = SHORT_N ? !TRANS_B : TRANS_A"),
    Fault("barrier before the main loop missing", "    stage_small(0);\n    __syncthreads();", "    stage_small(0);"),
    Fault("barrier after a later round missing", "            __syncthreads();\n        }\n\n", "        }\n\n"),
    Fault("barrier before a later round missing", "__syncthreads();  // no thread reads what was staged before", ""),
    Fault("later rounds not staged", "            stage_small(begin);", "            stage_small(0);"),
    Fault("shared memory short", "/ sizeof(T)];", "/ sizeof(T) - 80];"),
    Fault("last part dropped", "tile < end; ++tile", "tile + 1 < end; ++tile"),
    Fault("endless loop", "tile < end; ++tile", "tile < end; tile += 0"),
    Fault("part not advanced", "next += Index(TILE_K) * ld;", ""),
    Fault("factor read a step late", "Large::row_of(i) * SMALL_PITCH", "Large::row_of(i + 1) * SMALL_PITCH"),
    Fault("lanes mapped twice", "threadIdx.x % 32 / LANES_L", "threadIdx.x % 16 / LANES_L"),
    Fault("lanes that are not added up", "apart < LANES_K; apart", "apart < LANES_K / 2; apart"),
    Fault("warps left out", "warp < WARPS_K; ++warp", "warp < WARPS_K - 1; ++warp"),
    Fault("barrier between the warps missing", "        __syncthreads();\n        #pragma unroll\n        for (int e",
          "        #pragma unroll\n        for (int e"),
    Fault("barrier before the sums missing", "__syncthreads();  // shared memory holds nothing that is still read", "",
          WHOLE),
    Fault("tile index off by one", "Index(block % blocks_l) * TILE_L", "Index(block % blocks_l) * TILE_L + 1"),
    Fault("next short rows forgotten", "Index(block / blocks_l) * COUNT", "0"),
    Fault("wait forgotten", "wait_copies<STAGES - 1>();", "", ASYNC),
    Fault("wait too short", "wait_copies<STAGES - 1>();", "wait_copies<STAGES>();", ASYNC),
    Fault("wait for the small operand forgotten", "wait_copies<STAGES>();", "", ASYNC),
    Fault("wait in a later round forgotten", "            wait_copies<0>();\n            __sync",
          "            __sync", ASYNC),
    Fault("group not committed", "large.start(slot);\n                commit_copies();", "large.start(slot);", ASYNC),
    Fault("stages not turned", "STAGE ? 0 : oldest + 2 * STAGE", "STAGE ? 0 : oldest", ASYNC),
    Fault("copy reads outside", "inside ? from : nullptr", "from", ASYNC),
    Fault("splits overlap", "* (split + 1) / SPLIT_K) - first_tile", "* (split + 2) / SPLIT_K) - first_tile", WHOLE),
    Fault("short rows of a later round misplaced", "s(e / PART * ROWS +", "s(", WHOLE),
    Fault("counter not put back", "if (*last) *counter = 0;", "", WHOLE),
    Fault("first to come taken for the last", "== all - part;", "== 0;", WHOLE),
    Fault("split left out", "each < SPLIT_K; ++each", "each < SPLIT_K - 1; ++each", WHOLE),
    Fault("split written beside the workspace", "Index(blockIdx.x) * MADE;", "Index(blockIdx.x + 1) * MADE;", WHOLE),
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_every_fault_is_caught_and_the_unfaulted_text_passes(dtype: str, part: int, tmp_path: Path) -> None:
    faults = [*FAULTS]
    for number, (config, trans, vec) in enumerate(product((PLAIN, ASYNC, WHOLE), ("nn", "nt"), (1, 2))):
        faults.append(Fault(f"unfaulted {number}", "", "", config, trans, vec))
    found = outcomes([fault.plant(dtype) for fault in faults[part::PARTS]], tmp_path)
    right = {name for name, outcome in found.items() if outcome == RIGHT}
    assert right == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found
