"""The simt family on the host device: the edge grid, operands that lie askew, sanitizers and planted faults."""

import math
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
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.kernel import Kernel, prepare

TRANS = ("nn", "nt", "tn", "tt")
SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0), (1.5, 1.0))
"""alpha and beta."""

# One for each way through the template; together all transposes meet every one.
CONFIGS = {
    "registers": "block_m=32,block_n=32,block_k=8",
    "registers, prefetched, 16 rows":
        "block_m=128,block_n=64,thread_m=16,thread_n=4,lanes_m=4,block_k=8,prefetch=1,group_m=4",
    "registers, slices, splits": "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=16,slices=4,split_k=4",
    "cp.async": "block_m=32,block_n=64,thread_m=4,thread_n=4,block_k=8,cp_async=1,stages=3",
    "cp.async, some threads copy less, splits that share out":
        "block_m=48,block_n=96,thread_m=4,thread_n=4,lanes_m=4,block_k=8,cp_async=1,stages=3,split_k=12",
    "splits of the last half":
        "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=16,slices=2,split_k=3,tail=2,group_m=4",
    "cp.async, many splits of the last tiles":
        "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=8,cp_async=1,stages=2,split_k=12,tail=8",
    "cp.async, k innermost": "block_m=32,block_n=32,block_k=16,cp_async=1,stages=8,a_k_inner=1,b_k_inner=1,prefetch=1",
    "cp.async, all of it": "block_m=64,block_n=16,thread_m=8,thread_n=2,lanes_m=4,block_k=32,cp_async=1,stages=2,"
    "prefetch=1,slices=2,split_k=2,group_m=8,a_k_inner=1",
    "cp.async, deep tiles": "block_m=16,block_n=16,thread_m=2,thread_n=4,lanes_m=8,block_k=128,cp_async=1,stages=2,"
    "slices=8,a_k_inner=1",
    "cp.async, deep tiles, many slices": "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=64,cp_async=1,"
    "stages=3,slices=16,split_k=2,b_k_inner=1",
    "splits that share out, slices, k innermost": "block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=16,slices=2,"
    "split_k=64,a_k_inner=1",
    "cluster, slices": "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=16,prefetch=1,slices=2,split_k=4,cluster=1",
    "cluster, uneven shares":
        "block_m=48,block_n=96,thread_m=4,thread_n=4,lanes_m=4,block_k=8,cp_async=1,stages=3,split_k=6,cluster=1",
    "cluster, more shares than sums":
        "block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=16,slices=2,split_k=8,cluster=1,group_m=4",
    "apart, slices of a warp":
        "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=16,slices=4,apart=1,split_k=2",
    "apart, slices of two warps, k innermost": "block_m=64,block_n=16,thread_m=4,thread_n=4,block_k=32,cp_async=1,"
    "stages=3,prefetch=1,slices=2,apart=1,a_k_inner=1,b_k_inner=1",
    "apart, some threads copy less, cluster": "block_m=32,block_n=48,thread_m=4,thread_n=4,block_k=16,cp_async=1,"
    "stages=2,slices=2,apart=1,split_k=2,cluster=1,group_m=4",
    "spread, prefetched":
        "block_m=32,block_n=64,thread_m=8,thread_n=4,lanes_m=4,block_k=16,cp_async=1,stages=3,prefetch=1,copy_groups=4,stream_c=1",
    "spread, some threads copy less":
        "block_m=48,block_n=96,thread_m=4,thread_n=4,lanes_m=4,block_k=16,cp_async=1,stages=2,copy_groups=2,split_k=2",
    "spread, apart, k innermost": "block_m=64,block_n=32,thread_m=8,thread_n=8,lanes_m=8,block_k=32,cp_async=1,"
    "stages=3,slices=2,apart=1,a_k_inner=1,copy_groups=2,staged_c=1,stream_c=1",
    "stream, slices, grouped":
        "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=16,slices=2,group_m=4,stream_k=3",
    "stream, spread, apart, staged": "block_m=64,block_n=32,thread_m=8,thread_n=8,lanes_m=8,block_k=32,cp_async=1,"
    "stages=3,slices=2,apart=1,a_k_inner=1,copy_groups=2,staged_c=1,stream_k=5",
    "stream, more blocks than tiles of k":
        "block_m=40,block_n=32,thread_m=5,thread_n=8,lanes_m=8,block_k=8,cp_async=1,stages=3,prefetch=1,stream_k=99",
    "atomic": "block_m=32,block_n=32,thread_m=4,thread_n=4,block_k=8,split_k=12,atomic=1",
    "atomic, slices, staged": "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=32,cp_async=1,stages=3,"
    "slices=8,split_k=3,staged_c=1,atomic=1,group_m=4",
    "uneven rows": "block_m=40,block_n=32,thread_m=5,thread_n=8,lanes_m=8,block_k=8,cp_async=1,stages=3,prefetch=1",
    "uneven columns, slices, splits":
        "block_m=64,block_n=40,thread_m=8,thread_n=5,lanes_m=4,block_k=16,prefetch=1,slices=2,split_k=3,rows_first=1",
    "uneven rows and columns, spread": "block_m=40,block_n=80,thread_m=5,thread_n=10,lanes_m=8,block_k=16,cp_async=1,"
    "stages=2,slices=2,apart=1,copy_groups=2",
    "uneven rows, staged": "block_m=56,block_n=64,thread_m=14,thread_n=4,lanes_m=4,block_k=8,split_k=2,staged_c=1",
    "uneven columns, staged, slices, k innermost": "block_m=64,block_n=40,thread_m=8,thread_n=5,lanes_m=4,block_k=32,"
    "cp_async=1,stages=3,a_k_inner=1,slices=4,staged_c=1",
    "staged, pieces": "block_m=128,block_n=64,thread_m=16,thread_n=4,lanes_m=4,block_k=8,prefetch=1,staged_c=1",
    "rows first, long warps":
        "block_m=16,block_n=128,thread_m=4,thread_n=8,lanes_m=2,block_k=8,prefetch=1,rows_first=1",
    "staged, rows as wide as all banks":
        "block_m=32,block_n=64,thread_m=8,thread_n=8,lanes_m=4,block_k=8,cp_async=1,stages=3,split_k=3,staged_c=1",
    "staged, two rows at a time, k innermost":
        "block_m=32,block_n=64,thread_m=8,thread_n=4,lanes_m=2,block_k=8,b_k_inner=1,staged_c=1",
    "staged, slices with parts of a row":
        "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=32,slices=8,split_k=2,staged_c=1",
    "staged, more shared memory than the tiles":
        "block_m=64,block_n=128,thread_m=2,thread_n=8,lanes_m=8,block_k=8,cp_async=1,stages=2,staged_c=1",
}  # fmt: skip


def config_for(text: str, dtype: str, trans: str, vec: int = 1) -> Config:
    """The config as far as the transposes and the type allow, with vectors of up to `vec` elements."""
    config = complete(Config.parse(f"simt:{text}"))
    values = dict(config.values)
    values["a_k_inner"] = int(bool(values["a_k_inner"]) and trans[0] == "n")
    values["b_k_inner"] = int(bool(values["b_k_inner"]) and trans[1] == "t")
    wide = min(vec, 4 if dtype == "float" else 2)
    turned_a = trans[0] == "n" and values["cp_async"] and not values["a_k_inner"]
    turned_b = trans[1] == "t" and values["cp_async"] and not values["b_k_inner"]
    values["vec_a"], values["vec_b"] = 1 if turned_a else wide, 1 if turned_b else wide
    sums = int(values["thread_m"]) * int(values["thread_n"]) // int(values["slices"])
    values["vec_c"] = 1 if values["b_k_inner"] else math.gcd(wide, int(values["thread_n"]), sums)
    return Config("simt", tuple(values.items()))


def check(kernel: Kernel, alpha: float, beta: float, extra: int, seed: int = 1) -> None:
    a, b, c = integers(kernel.problem, seed)
    got = run(kernel.device, kernel, a, b, c, alpha, beta, extra)
    wanted = exact(kernel.problem, a, b, c, alpha, beta)
    assert np.array_equal(got, wanted), (kernel.problem, alpha, beta, extra)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("trans", TRANS)
def test_edge_grid(name: str, dtype: str, trans: str) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name], dtype, trans)
    tile_m, tile_n, tile_k = FAMILIES["simt"].tile(config)
    kernel = prepare(device, Problem.parse(f"{tile_m}x{tile_n}x{tile_k}", dtype, trans), config)
    sizes = list(product(*((1, tile - 1, tile, tile + 1, 2 * tile + 3) for tile in (tile_m, tile_n, tile_k))))
    # A quarter for each of the transposes: together they meet all, in either type.
    for case, (m, n, k) in enumerate(sizes[TRANS.index(trans) :: 4]):
        # Scalars and strides turn round and round: every one meets every size somewhere.
        check(prepared(kernel, Problem.parse(f"{m}x{n}x{k}", dtype, trans)), *SCALARS[case % 4], (0, 1, 7)[case % 3])
    for k in (0, 2):
        other = prepare(device, Problem.parse(f"{tile_m + 1}x3x{k}", dtype, trans), config)
        assert other.source == prepared(kernel, other.problem).source
        for alpha, beta in SCALARS:
            check(other, alpha, beta, 7)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "trans"), [("float", "nn"), ("float", "tt"), ("double", "nt"), ("double", "tn")])
@pytest.mark.parametrize("edge", ["bounds", "exact", "pad"])
def test_vectors(name: str, dtype: str, trans: str, edge: str) -> None:
    device = HostDevice()
    config = config_for(CONFIGS[name], dtype, trans, vec=4)
    config = Config("simt", tuple((n, edge if n == "edge" else v) for n, v in config.values))
    tile_m, tile_n, tile_k = FAMILIES["simt"].tile(config)
    shapes = {
        "bounds": ((tile_m + 4, tile_n - 4, tile_k + 4), (4, 4, 4)),
        "exact": ((2 * tile_m, tile_n, 3 * tile_k),),
        "pad": ((tile_m + 1, tile_n - 1, tile_k + 3),),
    }[edge]
    for (m, n, k), (alpha, beta) in product(shapes, SCALARS):
        kernel = prepare(device, Problem.parse(f"{m}x{n}x{k}", dtype, trans), config)
        # Rows 8 elements apart stay aligned; others are served by the scalar twin, by the same tiles.
        for extra in (0, 8, 1, 7) if edge == "bounds" or trans == "nn" else (0, 8):
            check(kernel, alpha, beta, extra)


def test_operands_that_start_askew_are_served_by_the_scalar_twin() -> None:
    device = HostDevice(alignment=4)
    problem = Problem.parse("36x40x44")
    kernel = prepare(device, problem, config_for(CONFIGS["registers"], "float", "nn", vec=4))
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


def test_split_k_gives_the_same_bits_again_and_leaves_its_counters_at_zero() -> None:
    device = HostDevice()
    problem = Problem.parse("33x18x200")
    kernel = prepare(device, problem, config_for(CONFIGS["registers, slices, splits"], "float", "nn"))
    rng = np.random.default_rng(1)
    a, b = rng.random(problem.stored_a, np.float32), rng.random(problem.stored_b, np.float32)
    c = np.zeros((problem.m, problem.n), np.float32)
    results = {run(device, kernel, a, b, c, 1, 0).tobytes() for _ in range(5)}
    assert len(results) == 1
    (workspace,) = kernel._workspaces.values()
    assert workspace.nbytes == kernel.source.workspace_bytes
    assert not workspace.array("uint8", (workspace.nbytes,))[-4 * 6 :].any()


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_atomics_leave_the_workspace_zero(dtype: str) -> None:
    device = HostDevice()
    problem = Problem.parse("33x70x200", dtype)
    config = config_for(CONFIGS["atomic"], dtype, "nn")
    kernel = prepare(device, problem, config)
    for _ in range(2):
        check(kernel, 1.5, 2.0, 0)
        (workspace,) = kernel._workspaces.values()
        assert not workspace.array("uint8", (workspace.nbytes,)).any()
    assert workspace.nbytes == 2 * 3 * (32 * 32 * problem.dtype.size_bytes + 4)


def test_a_cluster_gives_the_same_bits_again_and_takes_no_workspace() -> None:
    device = HostDevice()
    problem = Problem.parse("33x18x200")
    kernel = prepare(device, problem, config_for(CONFIGS["cluster, uneven shares"], "float", "nn"))
    rng = np.random.default_rng(1)
    a, b = rng.random(problem.stored_a, np.float32), rng.random(problem.stored_b, np.float32)
    c = np.zeros((problem.m, problem.n), np.float32)
    assert len({run(device, kernel, a, b, c, 1, 0).tobytes() for _ in range(5)}) == 1
    assert kernel.source.workspace_bytes == 0
    assert not kernel._workspaces


@pytest.mark.parametrize("name", [name for name in CONFIGS if "staged" in name])
@pytest.mark.parametrize(("dtype", "vec"), [("float", 1), ("float", 2), ("double", 1)])
def test_sums_that_pass_through_shared_memory_keep_their_bits(name: str, dtype: str, vec: int) -> None:
    device = HostDevice()
    problem = Problem.parse("67x70x43" if vec == 2 else "67x71x43", dtype, "tt")
    rng = np.random.default_rng(1)
    a, b, c = (rng.random(s).astype(dtype) for s in (problem.stored_a, problem.stored_b, (problem.m, problem.n)))
    values = dict(config_for(CONFIGS[name], dtype, "tt", vec).values) | {"vec_a": 1, "vec_b": 1}
    results = set()
    for staged in (0, 1):
        kernel = prepare(device, problem, Config("simt", tuple((values | {"staged_c": staged}).items())))
        # Where beta counts, compilers may round alpha * sum or beta * C first.
        results.add(run(device, kernel, a, b, c, 0.7, 0.0).tobytes())
    assert len(results) == 1


def test_what_the_grid_runs_keeps_every_rule() -> None:
    for text, dtype, trans, vec in product(CONFIGS.values(), ("float", "double"), TRANS, (1, 4)):
        config = config_for(text, dtype, trans, vec)
        assert list(rejections(Problem.parse("64", dtype, trans), config, ARCHES["host"])) == []


# ---- Planted faults --------------------------------------------------------------------------------------------

PLAIN = "block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=8"
ASYNC = f"{PLAIN},cp_async=1,stages=3"
WHOLE = "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8,prefetch=1,slices=2,split_k=2"
TAIL = "block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=8,split_k=3,tail=4"
CLUSTER = "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8,prefetch=1,slices=2,split_k=3,cluster=1"
STAGED = "block_m=32,block_n=32,thread_m=4,thread_n=8,block_k=8,prefetch=1,staged_c=1"
PIECES = "block_m=64,block_n=64,thread_m=16,thread_n=4,lanes_m=4,block_k=8,staged_c=1"
STAGED_SLICES = "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8,slices=4,staged_c=1"
ATOMIC = "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8,split_k=3,atomic=1"
APART = "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=16,prefetch=1,slices=2,apart=1,cp_async=1,stages=3"
SPREAD = "block_m=32,block_n=16,thread_m=4,thread_n=4,block_k=8,prefetch=1,cp_async=1,stages=2,copy_groups=4"
UNEVEN = "block_m=40,block_n=80,thread_m=10,thread_n=5,lanes_m=4,block_k=8"
APART_WARPS = "block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=16,slices=2,apart=1"
UNFAULTED = (
    PLAIN, ASYNC, WHOLE, TAIL, CLUSTER, ATOMIC, STAGED, PIECES, STAGED_SLICES, APART, APART_WARPS, SPREAD, UNEVEN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text that makes the kernel wrong."""

    name: str
    old: str = ""
    new: str = ""
    config: str = PLAIN
    trans: str = "nn"
    vec: int = 1
    only: str = ""
    """The type in which it makes a difference, where that is not so in both."""

    def plant(self, dtype: str) -> Planted:
        config = config_for(self.config, dtype, self.trans, self.vec)
        return Planted(self.name, config, self.old, self.new, dtype, self.trans, SHAPES)


SHAPES = ((66, 35, 27), (64, 32, 96), (1, 1, 1))
"""Three by three blocks with ragged edges and several tiles of k, whole tiles, and one vector."""

FAULTS = (
    Fault("sums not set", "T sum[SUMS] = {};", "T sum[SUMS];"),
    Fault("C read where beta is 0", "if (beta != T(0)) {", "if (true) {"),
    Fault("alpha ignored", "sum[e] *= alpha", "sum[e] *= T(1)"),
    Fault("alpha ignored by slices", "share[e] *= alpha", "share[e] *= T(1)", APART),
    Fault("A and B read where alpha is 0", "alpha == T(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped", "A, int lda, const T* __restrict__ B, int ldb",
          "A, int ldb, const T* __restrict__ B, int lda"),
    Fault("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)"),
    Fault("guard of rows lost", "if ((ALONG_K ? row : col) >= outer_left) k = 1u << 31;", ""),
    Fault("guard of many rows lost", "(ONE_OUTER || inside >> i & 1) && ", "", "block_m=32,block_n=16,thread_m=4"
          ",thread_n=4,block_k=16"),
    Fault("guard of stored rows off by one", "row >= rows || col >= cols", "row > rows || col >= cols"),
    Fault("guard of stored columns off by one", "|| col >= cols)) return", "|| col > cols)) return"),
    Fault("last barrier missing", "if (more) put(shared + reading);\n        __syncthreads();",
          "if (more) put(shared + reading);", "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8"),
    Fault("first barrier missing", "        put(shared);\n    }\n    __syncthreads();", "        put(shared);\n    }",
          "block_m=32,block_n=16,thread_m=2,thread_n=4,block_k=8"),
    Fault("stages not turned", "reading = STAGE - reading;", ""),
    Fault("shared memory a row short", "/ sizeof(T)];", "/ sizeof(T) - BLOCK_N - WIDE];"),
    Fault("last tile dropped", "tile < tiles; ++tile", "tile < tiles - 1; ++tile"),
    Fault("endless loop", "tile < tiles; ++tile", "tile < tiles; tile += 0"),
    Fault("fragment read a step late", "PITCH + i * LANES;", "PITCH + PITCH + i * LANES;"),
    Fault("lanes mapped twice", "lane / (2 * LANES_M) * 2 + lane % 2", "lane / (2 * LANES_M) * 2"),
    Fault("tile index off by one", "Index(tile_m) * BLOCK_M", "Index(tile_m) * BLOCK_M + 1"),
    Fault("transposition lost", "TURNED ? col * PITCH + row : ", "TURNED ? row * PITCH + col : "),
    Fault("vectors stored scalar", "v < VEC_C; ++v) made", "v < 1; ++v) made", vec=4),
    Fault("wait forgotten", "wait_copies<STAGES - 2>();", "", ASYNC),
    Fault("wait too short", "wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();", ASYNC),
    Fault("group not committed", "commit_copies();  // an empty group counts too", "", ASYNC),
    Fault("stage filled too early", "int writing = (STAGES - 1) * STAGE;", "int writing = 0;", ASYNC),
    Fault("copy reads outside", "inside ? from : nullptr", "from", ASYNC),
    Fault("slices overlap", "SLICE_THREADS * (BLOCK_K / SLICES)", "SLICE_THREADS * (BLOCK_K / SLICES / 2)", WHOLE),
    Fault("slice left out", "from < SLICES; ++from", "from < SLICES - 1; ++from", WHOLE),
    Fault("barrier of slices missing", "= sum[e];\n    __syncthreads();", "= sum[e];", WHOLE),
    Fault("counter not put back", "if (*last) *counter = 0;", "", WHOLE),
    Fault("first to come taken for the last", "== all - part;", "== 0;", WHOLE),
    Fault("split left out", "each < SPLIT_K; ++each", "each < SPLIT_K - 1; ++each", WHOLE),
    Fault("split written beside the workspace", "tiles[Index(split) * TILE", "tiles[Index(split + 1) * TILE", WHOLE),
    Fault("share of a slice taken twice", "slice * SHARE + e", "e", WHOLE),
    Fault("tiles split that have a block of their own", "const bool alone = blockIdx.x < whole;",
          "const bool alone = false;", TAIL),
    Fault("last tiles not split", "if (!alone && !add_splits", "if (!alone && add_splits", TAIL),
    Fault("tail begins a tile late", "(parts - 1) / TAIL + 1", "(parts - 1) / TAIL", TAIL),
    Fault("counters where sums are", "Index(places) * THREADS * SHARE", "Index(0) * THREADS * SHARE", TAIL),
    Fault("sums read before they are there", "    arrive_cluster();\n    wait_cluster();", "", CLUSTER),
    Fault("not waited for the cluster", "arrive_cluster();\n    wait_cluster();", "arrive_cluster();", CLUSTER),
    Fault("block ends while it is read", "    wait_cluster();\n}\n", "}\n", CLUSTER),
    Fault("block of the cluster left out", "other < SPLIT_K; ++other", "other < SPLIT_K - 1; ++other", CLUSTER),
    Fault("own sums taken for all", "(split + other) % SPLIT_K", "split", CLUSTER),
    Fault("slice of the cluster left out", "part < SLICES; ++part", "part < SLICES - 1; ++part", CLUSTER),
    Fault("blocks share out alike", "(split * SLICES + slice)", "slice", CLUSTER),
    Fault("share beyond the sums read", " && first + g >= GROUPS", " && false", CLUSTER),
    Fault("barrier of a slice missing", "wait_copies<STAGES - 2>();\n        sync_slice();",
          "wait_copies<STAGES - 2>();", APART),
    Fault("barrier of a slice not for all", "        sync_slice();", "        if (lane != 5) sync_slice();", APART),
    Fault("barrier of a slice opens early", "sync_named(barrier, SLICE_THREADS)", "sync_named(barrier, 32)", APART),
    Fault("barrier before the sums missing", "/ SLICE_THREADS;\n    __syncthreads();", "/ SLICE_THREADS;", APART),
    Fault("slices in one place", "shared + threadIdx.x / SLICE_THREADS * (STAGES * STAGE)", "shared", APART),
    Fault("slices copy the same", "k_begin += slice_begin();", "", APART),
    Fault("slice's place along k lost", "k = slice_begin() + (", "k = (", APART),
    Fault("first barrier of a warp missing", "    }\n    sync_slice();", "    }", APART_WARPS),
    Fault("last barrier of a warp missing", "put(own + reading);\n        sync_slice();", "put(own + reading);",
          APART_WARPS),
    Fault("pair read where chunks are", "WHOLE * LANES - lane * (CHUNK - 2)", "WHOLE * LANES", UNEVEN, only="float"),
    Fault("pairs of all lanes in one place", "WHOLE * LANES + lane * 2 +", "WHOLE * LANES +", UNEVEN, only="float"),
    Fault("single element read where chunks are", "PAIRED * LANES - lane * (CHUNK - 1)", "PAIRED * LANES", UNEVEN),
    Fault("single ones of all lanes in one place", "return PAIRED * LANES + lane;", "return PAIRED * LANES;", UNEVEN),
    Fault("chunk left out", "i < WHOLE; i += CHUNK", "i < WHOLE - CHUNK; i += CHUNK", UNEVEN),
    Fault("group of copies left out", "COPY_GROUPS / COPIES != group", "COPY_GROUPS / COPIES + 1 != group", SPREAD),
    Fault("group started with no step", "(place - 1) * COPY_GROUPS / COPY_PLACES == group) return;",
          "place * COPY_GROUPS / COPY_PLACES == group) return;", SPREAD),
    Fault("spread copies beyond the last tile", "if (on) copy_async", "copy_async", SPREAD),
    Fault("spread copies of the same tile again", "        a.advance();\n        b.advance();\n", "", SPREAD),
    Fault("spread copies guarded by an earlier tile", "b.advance();\n        k_left -= BLOCK_K;", "b.advance();",
          SPREAD),
    Fault("spread copies to the stage that is read", "shared + writing, more", "shared + reading, more", SPREAD),
    Fault("spread copies not committed", "commit_copies();  // an empty group counts too", "", SPREAD),
    Fault("sums left in the workspace", "sums[g * THREADS] = {};", "", ATOMIC, vec=4),
    Fault("counter of a tile not put back", "if (*last) *counter = 0;", "", ATOMIC, vec=4),
    Fault("sums added to the next tile", "+ tile * THREADS * GROUPS", "+ (tile + 1) * THREADS * GROUPS", ATOMIC, vec=4),
    Fault("first block to add taken for the last", "== all - part;", "== 0;", ATOMIC, vec=4),
    Fault("sums put down over those of slices", "__syncthreads();  // no thread reads what", "// what",
          STAGED_SLICES),
    Fault("sums read before warps put them down", "    __syncwarp();\n    #pragma", "    #pragma", STAGED),
    Fault("sums read before slices put them down", "= group;\n    }\n    __syncthreads();", "= group;\n    }",
          STAGED_SLICES),
    Fault("next piece put down too early", "if (begin > 0) __syncwarp();", "", PIECES),
    Fault("turned sums written in other places", "lane) % WARP_N; };", "lane + 1) % WARP_N; };", STAGED),
    Fault("each thread has the place of a warp", "threadIdx.x % SLICE_THREADS / 32 * PASSING", "threadIdx.x * PASSING",
          STAGED),
    Fault("bands overlap", "% PASSING * BAND + row", "% PASSING + row", STAGED),
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_every_fault_is_caught_and_the_unfaulted_text_passes(dtype: str, part: int, tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS if fault.only in ("", dtype)]
    for number, (config, trans) in enumerate(product(UNFAULTED, ("nn", "tt"))):
        faults.append(Fault(f"unfaulted {number}", "", "", config, trans, vec=4))
    found = outcomes([fault.plant(dtype) for fault in faults[part::PARTS]], tmp_path)
    passed = {name for name, outcome in found.items() if outcome == RIGHT}
    assert passed == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found
