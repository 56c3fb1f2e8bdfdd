"""Mechanisms that families share: tiles, clusters, packed operands, stream-K, and the cooperative reduction."""

import itertools
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planted import PARTS, Planted, assert_caught
from products import SCALARS, TRANS, QuickDevice, check, guarded, on_device, sized
from quick import TYPICAL, compile_together
from search_spaces import H200
from tilewright.codegen.fit import Fit
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.mechanisms.blocked import registers_for
from tilewright.codegen.mechanisms.operands import widest
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import PACKED_BYTES, packed_ld
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.copied import Packing
from tilewright.runtime.product.kernel import Kernel, prepare
from tilewright.tuner.choose.model import Table
from variants import variant

EACH_PART = [pytest.param(part, marks=pytest.mark.slow if part else ()) for part in range(PARTS)]
"""Numbers of the tests among which the faults of a mechanism are dealt out; all but the first are slow."""

# ---- Block tiles ------------------------------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize(
    ("threads", "ctas", "registers"),
    [(32, 1, 255), (128, 2, 255), (128, 3, 168), (96, 3, 168), (192, 2, 168), (256, 2, 128), (160, 1, 255)],
)
def test_registers_go_to_warps_of_four_schedulers(threads: int, ctas: int, registers: int) -> None:
    """NVRTC limits registers by the same rule: nine warps take as many as twelve."""
    assert registers_for(threads, ctas) == registers


@pytest.mark.fast
def test_ctas_of_three_warps_are_refused_where_they_would_spill() -> None:
    config = variant("simt:96x128x8,thread=16x8,lanes_m=2,min_ctas=3")
    reasons = list(rejections(Problem.parse("1024"), config, TYPICAL["sm_90a"]))
    assert reasons == ["registers of 3 CTAs fit on an SM"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("n", "dtype", "width"), [(64, "float", 4), (62, "float", 2), (63, "float", 1), (64, "double", 2)]
)
def test_the_widest_vector(n: int, dtype: str, width: int) -> None:
    assert widest(Problem.parse(f"64x{n}x64", dtype), "b") == width


# ---- Clusters of CTAs that add up a tile of C in shared memory --------------------------------------------------


CLUSTERED = (("simt:", "float"), ("dmma:mma_k=4,", "double"))


def reasons(text: str, dtype: str, arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse("1024", dtype), variant(text), TYPICAL[arch]))


@pytest.mark.fast
@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_impossible_clusters_are_refused(family: str, dtype: str) -> None:
    (reason,) = reasons(f"{family}reduce=cluster", dtype)
    assert reason == "CTAs add up in a cluster where they share out k by split_k"
    assert reasons(f"{family}split_k=12,reduce=cluster", dtype) == ["a cluster has at most 8 CTAs, not 12"]
    (reason,) = reasons(f"{family}split_k=4,reduce=cluster,shared=1", dtype)
    assert "not through shared memory that others still read" in reason
    assert reasons(f"{family}split_k=4,shared=1", dtype) == []


@pytest.mark.fast
@pytest.mark.parametrize(("arch", "allowed"), [("sm_80", False), ("sm_90a", True), ("sm_100", True), ("sm_120", True)])
@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_new_devices_have_clusters(family: str, dtype: str, arch: str, allowed: bool) -> None:
    refusals = reasons(f"{family}split_k=4,reduce=cluster", dtype, arch)
    assert refusals == ([] if allowed else ["the device has clusters"])


@pytest.mark.fast
@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_a_cluster_takes_no_workspace(family: str, dtype: str) -> None:
    config = variant(f"{family}block_m=64,block_n=64,block_k=16,split_k=3,slices=2,reduce=cluster")
    problem = Problem.parse("256x128x512", dtype)
    source = render(problem, config, TYPICAL["sm_90a"])
    launch = config.launch_config(problem, 132)
    assert config.workspace_bytes(problem, 132) == 0
    assert launch.grid == (4 * 2 * 3, 1, 1)
    assert launch.static_smem_bytes + launch.dynamic_smem_bytes == 2 * 64 * 64 * problem.dtype.size_bytes
    assert "__cluster_dims__(kSplitK, 1, 1)" in source.code
    assert "workspace" not in source.code


# ---- Packed operands: rules, vectors and texts -------------------------------------------------------------------


SIMT = "simt:load=cp_async,stages=3,pack_a=1,pack_b=1"


def reasons_of(text: str, shape: str = "65x67x35", dtype: str = "float", trans: str = "nn") -> list[str]:
    return list(rejections(Problem.parse(shape, dtype, trans), variant(text), TYPICAL["sm_90a"]))


@pytest.mark.fast
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_packed_operands_take_wide_vectors_whatever_their_rows(trans: str) -> None:
    problem = Problem.parse("65x67x35", trans=trans)
    for text, widths in ((SIMT, (4, 4, 1)), (SIMT.replace("pack_b=1", "pack_b=0"), (4, 1, 1))):
        fit = fitted(problem, variant(text), TYPICAL["sm_90a"])
        assert (fit.vec_a, fit.vec_b, fit.vec_c) == widths


@pytest.mark.fast
def test_k_is_not_innermost_in_tiles_of_a_packed_operand() -> None:
    (reason,) = reasons_of("simt:load=cp_async,pack_a=1,k_inner_a=1,block_k=16")
    assert reason == "k is innermost in the tiles of an operand only if its stored rows run along k"


@pytest.mark.fast
def test_packed_operands_need_no_alignment() -> None:
    problem = Problem.parse("65x66x35")
    assert fitted(problem, variant(SIMT), TYPICAL["sm_90a"]).alignment == (1, 1, 2)
    for text, widths in ((SIMT, (4, 4, 1)), ("simt:load=cp_async,stages=3,pack_a=1", (4, 1, 1))):
        unaligned = fitted(problem, variant(text), TYPICAL["sm_90a"], aligned=False)
        assert (unaligned.vec_a, unaligned.vec_b, unaligned.vec_c) == widths
        assert unaligned.alignment == (1, 1, 1)


@pytest.mark.fast
def test_the_kernel_reads_copies_as_they_are_packed() -> None:
    texts = set()
    for trans in ("nn", "tt"):
        source = render(Problem.parse("65x67x35", "float", trans), variant(SIMT), TYPICAL["sm_90a"])
        assert source.preparation is not None
        assert source.preparation.name == f"pack_ab_f32_{trans}"
        assert f"{source.preparation.name}(" in source.preparation.code
        assert source.preparation.name in source.code  # the banner names it
        texts |= set(re.findall(r"using Tile[AB] = .*", source.code))
    assert len(texts) == 2  # one for A and one for B, however they are stored
    plain = render(Problem.parse("64"), variant("simt:"), TYPICAL["sm_90a"])
    assert plain.preparation is None
    assert "pack" not in plain.code


@pytest.mark.fast
def test_rows_of_copies_begin_at_multiples_of_128_bytes() -> None:
    assert [packed_ld(extent, 4) for extent in (1, 32, 33, 2047)] == [32, 32, 64, 2048]
    assert [packed_ld(extent, 8) for extent in (1, 16, 17)] == [16, 16, 32]


# ---- Packed operands: products, strides, operands that are not read, and planted faults --------------------------


SLOW = pytest.mark.slow
CONFIGS = {
    "A and B": ("float", "simt:pack_a=1,pack_b=1,load=cp_async,stages=3,block_k=16"),
    "splits, slices": ("float", "simt:pack_a=1,pack_b=1,split_k=2,slices=2,block_k=16"),
    "A": ("double", "simt:pack_a=1,load=cp_async"),
    "B": ("float", "simt:pack_b=1"),
}


@pytest.mark.parametrize("name", [name if name == "A and B" else pytest.param(name, marks=SLOW) for name in CONFIGS])
def test_products_of_any_size_and_stride(name: str) -> None:
    dtype, text = CONFIGS[name]
    device, config = QuickDevice(), variant(text)
    whole = [Problem.parse("67x71x35", dtype, trans) for trans in TRANS]
    compile_together((problem, config) for problem in whole)
    for problem, size in product(whole, ((67, 71, 35), (1, 3, 5), (130, 64, 129), (5, 6, 0))):
        kernel = prepare(device, sized(problem, *size), config)
        for case, (alpha, beta) in enumerate(SCALARS[:3]):
            check(kernel, alpha, beta, (size[0] + case) % 3)


def test_memory_for_copies_is_allocated_once_for_each_stream() -> None:
    kernel = prepare(HostDevice(), Problem.parse("33x34x35"), variant(CONFIGS["splits, slices"][1]))
    for seed in range(3):
        check(kernel, 1, 0, 0, seed)
    assert kernel._scratch is not None
    (scratch,) = kernel._scratch._streams.values()
    partial_tiles, copies, counters = scratch.buffers
    assert copies.nbytes == 4 * 35 * (64 + 64) + 128
    own = partial_tiles.nbytes + copies.nbytes + counters.nbytes
    assert kernel.binary.preparation is not None
    assert kernel.nbytes == len(kernel.binary.image) + len(kernel.binary.preparation.image) + own


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_are_aligned_wherever_their_memory_begins(name: str) -> None:
    dtype, text = CONFIGS[name]
    problem, function = Problem.parse("33x34x35", dtype), SimpleNamespace(bound=lambda *args: None)
    packing, size = Packing(problem, variant(text), function), problem.dtype.size_bytes  # type: ignore[arg-type]
    for begin in range(4096, 4096 + PACKED_BYTES, size):
        places = packing.addresses(begin)
        ends = *places[1:], begin + packing.nbytes
        assert places[0] >= begin
        for place, end in zip(places, ends, strict=True):
            assert place % PACKED_BYTES == 0
            assert end - place >= problem.k * packed_ld(problem.n, size) * size


@pytest.mark.parametrize("shape", ["33x34x35", "33x34x0"])
def test_nothing_is_packed_where_a_and_b_are_not_read(shape: str) -> None:
    device = HostDevice()
    kernel = prepare(device, Problem.parse(shape), variant(CONFIGS["splits, slices"][1]))
    problem = kernel.problem
    c = device.allocate(4 * problem.m * problem.n)
    c.array("float32", (problem.m, problem.n))[...] = 2
    nothing = Operand(0, problem.m, problem.k, max(1, problem.k), False, c)
    other = Operand(0, problem.k, problem.n, problem.n, False, c)
    kernel.launch(nothing, other, Operand(c.pointer, problem.m, problem.n, problem.n, False, c), 0.0, 0.5)
    assert kernel._scratch is not None
    for scratch in kernel._scratch._streams.values():
        _, copies, _ = scratch.buffers
        assert np.isnan(copies.array("float32", (copies.nbytes // 4,))).all()  # as it was allocated
    assert (c.array("float32", (problem.m, problem.n)) == 1).all()


PACKING_FAULTS = (
    ("not transposed", "turned[lane + c * kLanes][row + r * kRows] : part", "part[r][c] : part", "nn"),
    ("barrier missing", "= part[r][c];\n        }\n        __syncthreads();", "= part[r][c];\n        }", "nn"),
    ("a row too many written", "if (i < k && j < copy_ld)", "if (i < k + 1 && j < copy_ld)", "nt"),
    ("columns beyond the row written", "if (i < k && j < copy_ld)", "if (i < k)", "tn"),
    ("last row not written", "if (i < k && j < copy_ld)", "if (i < k - 1 && j < copy_ld)", "nn"),
    ("A copied for B", "blockIdx.x >= tiles_a", "blockIdx.x > tiles_a", "nn"),
    ("sizes swapped", "packed_ldb, n, k, blockIdx.x", "packed_ldb, k, n, blockIdx.x", "nn"),
)


def test_every_fault_of_packing_is_caught_and_the_unfaulted_text_passes(tmp_path: Path) -> None:
    dtype, text = CONFIGS["A and B"]
    fits = {trans: guarded(variant(text), dtype, trans) for trans in TRANS}
    planted = [Planted(name, fits[trans], old, new, dtype, trans) for name, old, new, trans in PACKING_FAULTS]
    planted += [Planted(f"unfaulted {trans}", fits[trans], "", "", dtype, trans) for trans in TRANS]
    assert_caught(planted, tmp_path)


# ---- Stream-K for the remainder of the last wave ----------------------------------------------------------------


@pytest.mark.parametrize(("shape", "per_sm", "sm_count", "own"), [
    ("64x64x64", 1, 5, 0),  # all CTAs share one tile
    ("256x64x64", 1, 5, 0),
    ("320x64x64", 1, 5, 5),  # no tile is left over
    ("384x64x64", 1, 5, 5),
    ("1024x1024x64", 1, 5, 255),
    ("1024x1024x64", 3, 100, 0),
])  # fmt: skip
def test_each_tile_has_a_cta_but_those_left_over_by_waves(shape: str, per_sm: int, sm_count: int, own: int) -> None:
    config, problem, ctas = variant("simt:", stream_k=per_sm), Problem.parse(shape), per_sm * sm_count
    assert config.launch_config(problem, sm_count).grid == (ctas + own, 1, 1)
    assert config.workspace_bytes(problem, sm_count) == ctas * (2 * 64 * 64 * 4 + 4)


@pytest.mark.parametrize(("text", "reason"), [
    ("simt:stream_k=4,reduce=cluster", "share out k by split_k"),
    ("simt:stream_k=4,load=cp_async,stages=3,l2_prefetch=1", "the CTA has one tile of C"),
    ("simt:stream_k=4,load=tma,block_k=32,k_inner_a=1", "no cluster, stream-K"),
])  # fmt: skip
def test_impossible_configs_of_stream_k_are_refused(text: str, reason: str) -> None:
    assert any(reason in each for each in rejections(Problem.parse("256"), variant(text), TYPICAL["sm_90a"]))


def test_the_model_predicts_the_gain_of_stream_k() -> None:
    plain = "dmma:128x128x16,warp=32x64,stages=3,fragments=double"
    for shape, least, most in (("3000", 0.85, 0.97), ("4096", 0.95, 1.0), ("4096x4224x4096", 1.0, 1.05)):
        problem = Problem.parse(shape, "double")
        configs = [variant(plain, stream_k=ctas) for ctas in (0, 1)]
        alone, shared = Table(configs, problem.dtype, H200).modelled_us(problem)
        assert least <= shared / alone <= most


# ---- Planted faults --------------------------------------------------------------------------------------------

LOOP = "simt:16x16x8,thread=2x4,stream_k=4"
SLICES = "simt:16x32x16,thread=4x4,lanes_m=4,slices=2,load=cp_async,stages=3,stream_k=1"
TENSOR = "dmma:16x16x8,warp=16x8,stages=3,raster=4,stream_k=4"
CPU_LIMIT_S = 5.0
"""Seconds of the processor after which a kernel counts as endless, as one that waits for a CTA that never comes."""
BACKWARDS = (
    "    const StreamK stream(",
    "    const uint3 it = blockIdx, blockIdx = {it.x < stream_ctas ? stream_ctas - 1 - it.x : it.x, 0, 0};\n"
    "    const StreamK stream(",
)
"""A replacement by which CTAs take their parts from the last to the first. On the host, where CTAs run one after the
other, the CTA that begins a tile then comes after all others of the tile."""
SHARED = "dmma:32x32x16,warp=32x16,stages=3,shared=1,stream_k=1"
SM_COUNTS = {SLICES: 7, SHARED: 5}
SHAPES = ((66, 36, 44), (64, 32, 96), (4, 4, 4), (68, 36, 8))
"""Shapes with and without tiles left over, with fewer tiles than CTAs, of one vector, and of one tile along k."""
STREAM_K_FAULTS = (
    ("one tile too few shared", "tiles_of_c % ctas)", "tiles_of_c % ctas - 1)", LOOP),
    ("no tile shared", "tiles_of_c < ctas ? tiles_of_c : tiles_of_c % ctas", "0", LOOP),
    ("C not written where k is 0", " : 1)\n", " : 0)\n", LOOP),
    ("tiles with a CTA begin at the first one", "(cta - ctas + shared)", "(cta - ctas)", LOOP),
    ("second tile of a part left out", "at += part;", "at = end;", LOOP),
    ("part begins where the tile does", "k_begin = Index(first_tile) * kBlockK;", "k_begin = 0;", LOOP),
    ("part goes on to the tile's end", "min(end - at, stream.tiles - first_tile)", "stream.tiles - first_tile", LOOP),
    ("whole tile taken for a part", "if (!whole && !reduce", "if (!reduce", SLICES),
    ("part taken for a whole tile", "if (!whole && !reduce", "if (false && !reduce", TENSOR),
    ("first to come taken for the last", "== all - part;", "== 0;", LOOP),
    ("counter not put back", "if (*last) *counter = 0;", "", LOOP),
    ("CTAs counted instead of tiles of k", "last, part, stream.tiles)", "last, 1, stream.tiles)", TENSOR),
    ("counters where accumulators are", "= counters + tile;", "= reinterpret_cast<unsigned*>(workspace) + tile;", LOOP),
    ("accumulators kept before other parts are there", "load_acquire(counter) == stream.tiles - part", "true", TENSOR),
    ("end of a tile taken for its beginning", "at == begin && load_acquire(counter) ==", "load_acquire(counter) ==",
     LOOP),
    ("CTA that begins the tile added twice", "unsigned each = from + 1;", "unsigned each = from;", LOOP),
    ("CTA that ends the tile left out", "stream.begin(each) < end; ++each", "stream.begin(each + 1) < end; ++each",
     TENSOR),
    ("CTA that begins the tile not looked for", "while (stream.begin(from) > begin) --from;", "", LOOP),
    ("accumulators of a CTA taken for those of the tile before", "place(each, false)", "place(each, true)", SLICES),
    ("next tiles put down where others are read", "        __syncthreads();  // no thread reads what",
     "        // what", SHARED),
)  # fmt: skip
FAULTS_BACKWARDS = (
    (
        "counter not put back by the CTA that keeps its accumulators",
        "stream.tiles - part;\n        if (*last) *counter = 0;",
        "stream.tiles - part;",
        LOOP,
    ),
    ("kept accumulators read again", "if (!*last) {", "if (true) {", LOOP),
    ("own accumulators added to themselves", "unsigned from = cta;", "unsigned from = cta - 1;", LOOP),
)


def planted(
    name: str, text: str, old: str = "", new: str = "", dtype: str = "double", trans: str = "nn",
    before: tuple[str, str] = ("", ""),
) -> Planted:  # fmt: skip
    """A fault in an instance whose vectors of C are as wide as the workspace's: checks align memory for them."""
    fit = Fit(variant(text), vec_c=2 if dtype == "double" else 4)
    return Planted(name, fit, old, new, dtype, trans, SHAPES, before, SM_COUNTS.get(text, 1), cpu_limit_s=CPU_LIMIT_S)


@pytest.mark.parametrize("part", EACH_PART)
def test_every_fault_of_stream_k_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    kernels = [planted(name, text, old, new) for name, old, new, text in STREAM_K_FAULTS]
    kernels += [planted(name, text, old, new, before=BACKWARDS) for name, old, new, text in FAULTS_BACKWARDS]
    for text, dtype, before in itertools.product(
        (LOOP, SLICES, TENSOR, SHARED), ("double", "float"), (("", ""), BACKWARDS)
    ):
        if text.startswith("simt") or dtype == "double":
            name, trans = f"unfaulted {text} {dtype} {before}", "tt" if before[0] else "nn"
            kernels.append(planted(name, text, "", "", dtype, trans, before))
    assert_caught(kernels[part::PARTS], tmp_path)


# ---- The order of CTAs -----------------------------------------------------------------------------------------


def operands_on(device: Any, problem: Problem) -> tuple[Any, Any]:
    """Random matrices of a problem on a GPU."""
    rng, name = np.random.default_rng(5), problem.dtype.numpy_name
    a, b = (device.xp.asarray(rng.random(stored), dtype=name) for stored in (problem.stored_a, problem.stored_b))
    return a, b


def bits_on_two_streams(kernel: Kernel, a: Any, b: Any) -> set[bytes]:
    """The distinct results of forty launches on two streams, which run beside each other."""
    xp, problem = kernel.device.xp, kernel.problem
    streams = [xp.cuda.Stream(non_blocking=True, priority=priority) for priority in (0, -1)]
    outputs = [[xp.empty((problem.m, problem.n), a.dtype) for _ in range(20)] for _ in streams]
    xp.cuda.Device().synchronize()
    for each in range(20):
        for stream, results in zip(streams, outputs, strict=True):
            with stream:
                kernel.launch(*map(on_device, (a, b, results[each])))
    xp.cuda.Device().synchronize()
    return {xp.asnumpy(result).tobytes() for results in outputs for result in results}


def assert_one_right_result(distinct: set[bytes], a: Any, b: Any) -> None:
    """Fail unless all results have the same bits, and these are the product's."""
    (bits,) = distinct
    a, b = a.get(), b.get()
    expected = a.astype(float) @ b.astype(float)
    got = np.frombuffer(bits, a.dtype).reshape(expected.shape)
    assert np.abs(got - expected).max() < a.shape[1] * float(np.finfo(a.dtype).eps) * expected.max()


@pytest.mark.gpu
@pytest.mark.parametrize("text", [LOOP, SLICES, TENSOR, SHARED, LOOP.replace("stream_k=4", "stream_k=1")])
@pytest.mark.parametrize("shape", ["66x36x4100", "700x900x1000"])
def test_the_order_of_ctas_makes_no_difference(text: str, shape: str) -> None:
    device = open_device(choose("cuda"))
    config = variant(text)
    problem = Problem.parse(shape, "double" if config.family == "dmma" else "float")
    a, b = operands_on(device, problem)
    assert_one_right_result(bits_on_two_streams(prepare(device, problem, config), a, b), a, b)


# ---- The cooperative split-K reduction --------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "ctas"), [
    ("simt:", 1), ("simt:split_k=6", 1), ("simt:split_k=8", 8), ("simt:split_k=12", 8),
    ("simt:split_k=16", 16), ("dmma:split_k=128", 16),
    ("dmma:split_k=8,reduce=cluster", 1), ("simt:block_m=32,block_n=32,split_k=8", 1),
    ("simt:block_m=32,block_n=32,split_k=16", 16), ("dmma:split_k=64,shared=1", 1), ("skinny:split_k=64", 1),
])  # fmt: skip
def test_number_of_ctas_that_add_up_a_tile(text: str, ctas: int) -> None:
    config = variant(text)
    dtype = "double" if config.family == "dmma" else "float"
    assert config.cooperative_ctas == ctas
    code = render(Problem.parse("256", dtype), config, TYPICAL["sm_90a"]).code
    assert ("reduce_cooperative(" in code) == (ctas > 1)


# ---- Planted faults; on the host CTAs run one after the other, so that all but the last of a tile give up ---------

LINES = "simt:32x32x8,thread=4x4,lanes_m=8,split_k=16"
REDUCED_SLICES = "simt:32x32x16,thread=4x4,lanes_m=8,slices=2,split_k=16"
UNEQUAL = "simt:16x48x32,thread=2x4,slices=4,split_k=24"
PIECES = "dmma:96x16x16,warp=48x16,stages=3,split_k=12"
MANY = "simt:64x64x8,thread=8x8,lanes_m=4,split_k=8"
REDUCED_TENSOR = "dmma:32x32x16,warp=32x16,stages=3,slices=2,split_k=24"
REDUCED_SHAPES = ((66, 36, 130), (64, 32, 256), (4, 4, 4))
"""Several tiles with ragged edges, whole tiles with a tile along k for each CTA, and one vector."""
REDUCTION_FAULTS = (
    ("first to come taken for the last", "came(seen) == kSplitK - 1", "came(seen) == 0", LINES),
    ("parts that are left to the last forgotten", "parts |= left_to_last(seen);", "", LINES),
    ("another part left", "count(word, 256 * own)", "count(word, 512 * own)", LINES),
    ("part added up and left", "< kSplitK) parts = 0;", "< 0) parts = 0;", LINES),
    ("word not put back", "if (before / kGone == kSplitK - 1) *word = 0;", "", LINES),
    ("word put back by the first", "before / kGone == kSplitK - 1", "before / kGone == 0", LINES),
    ("word where accumulators are", "= counters + block", "= reinterpret_cast<unsigned*>(workspace) + block", LINES),
    ("accumulators of a CTA put down over another's", "tiles[split * kTile + g", "tiles[split / 2 * kTile + g", LINES),
    ("last part left out", "part < kReducers; ++part", "part < kReducers - 1; ++part", REDUCED_SLICES),
    ("last CTA of a thread left out", "? kTerms : 0", "? kTerms - 1 : 0", LINES),
    ("threads add up the same CTAs", "line * kTerms + term", "term", LINES),
    ("last line left out", "other < kAdders; ++other", "other < kAdders - 1; ++other", LINES),
    ("lines read before they are there", "= total[0];\n            __syncthreads();", "= total[0];", LINES),
    ("lines put down over those that are read", "if constexpr (kAdders > 1) {\n            __syncthreads();",
     "if constexpr (kAdders > 1) {", LINES),
    ("pieces of a thread read in one place", "part * kPart + first + i * kThreads];", "part * kPart + first];", PIECES),
    ("pieces written in one place", "at = part * kPart + first + i * kThreads;", "at = part * kPart + first;", PIECES),
    ("pieces beyond the part written", "if (kOwn * kThreads > kPart && first + i * kThreads >= kPart) break;", "",
     PIECES),
    ("piece written in the place of who adds it up", "at % kThreads, at", "int(threadIdx.x), at", LINES),
    ("accumulators taken for the first of a thread", "at / kThreads * kPiece);", "0);", PIECES),
    ("slice's accumulators taken for the first one's", "thread / kSliceThreads * kOut + e", "e", REDUCED_SLICES),
    ("warp's rows taken for the first one's", "warp / kWarpsN % kWarpsM * kWarpM, col", "0, col", PIECES),
    ("warp's columns taken for the first one's", "col0 + warp % kWarpsN * kWarpN", "col0", REDUCED_TENSOR),
    ("lane taken for another", "cols, thread % 32,", "cols, lane,", UNEQUAL),
    ("alpha ignored", "out[e] *= alpha", "out[e] *= Elem(1)", REDUCED_TENSOR),
)  # fmt: skip


def fit_for(text: str, dtype: str = "double") -> Fit:
    """The instance whose vectors of C are as wide as the workspace's: checks align memory for them."""
    return Fit(variant(text), vec_c=2 if dtype == "double" or text == UNEQUAL else 4)


@pytest.mark.parametrize("part", EACH_PART)
def test_every_fault_of_the_reduction_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [
        Planted(name, fit_for(text), old, new, shapes=REDUCED_SHAPES) for name, old, new, text in REDUCTION_FAULTS
    ]
    unfaulted = (LINES, REDUCED_SLICES, UNEQUAL, PIECES, MANY, REDUCED_TENSOR)
    for text, dtype, trans in product(unfaulted, ("double", "float"), ("nn", "tt")):
        if text.startswith("simt") or (dtype, trans) == ("double", "nn"):
            name = f"unfaulted {text} {dtype} {trans}"
            planted.append(Planted(name, fit_for(text, dtype), dtype=dtype, trans=trans, shapes=REDUCED_SHAPES))
    assert_caught(planted[part::PARTS], tmp_path)


# ---- CTAs that wait for each other ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text", [LINES, REDUCED_SLICES, PIECES, MANY, REDUCED_TENSOR, REDUCED_SLICES.replace("split_k=16", "split_k=128")]
)
@pytest.mark.parametrize("shape", ["66x36x4100", "700x900x2000"])  # all tiles run at a time, and a few of many
def test_ctas_that_wait_and_that_give_up_make_no_difference(text: str, shape: str) -> None:
    """CTAs wait, give up at once, or give up after a while. Bits are the same in all launches on two streams."""
    device = open_device(choose("cuda"))
    config = variant(text)
    problem = Problem.parse(shape, "double" if config.family == "dmma" else "float")
    a, b = operands_on(device, problem)
    fit = fitted(problem, config, device.info)
    source = render(problem, config, device.info, fit)
    patience = "kPatience = 1 << 18"
    assert patience in source.code

    distinct = set()
    for clocks in ("1 << 18", "0", "2000"):
        changed = replace(source, code=source.code.replace(patience, f"kPatience = {clocks}"))
        kernel = Kernel(device, problem, fit, changed, compile_cached(device.compiler, changed))
        distinct |= bits_on_two_streams(kernel, a, b)
    assert_one_right_result(distinct, a, b)
