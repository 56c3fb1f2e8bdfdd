"""The tf32x3 family on the host device: edges, vectors, special values, errors, banks and planted faults."""

import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from launches import launch
from numpy.typing import NDArray
from planted import Planted, assert_caught
from products import (
    SCALARS,
    TRANS,
    QuickDevice,
    bits,
    check,
    check_askew,
    check_sizes,
    guarded,
    in_the_norm,
    instance,
    integers,
    prepared,
    run,
    sized,
)  # fmt: skip
from quick import QuickCompiler, compile_together, together
from split_terms import scaled_integers, with_infinity
from targets import TYPICAL
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.check.kinds import KINDS, Exact
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.kernel import Kernel, prepare
from variants import variant

# One for each way through the template; with fewer than 96 steps of k all of them multiply in float.
CONFIGS = {
    "double": "32x32x32,warp=16x16,promote=16",
    "cluster, interleaved": "32x32x32,warp=32x16,promote=16,split_k=2,reduce=cluster,interleave=2,stages=2",
    "stream-K, single, shared": "32x64x16,warp=32x32,promote=16,fragments=single,stream_k=3,shared=1",
    "persistent, deep": "16x32x64,warp=16x16,promote=16,stages=2,persistent=2,raster=4,shared=1",
    "slices, splits": "16x16x32,warp=16x16,promote=16,slices=2,split_k=3,stages=2",
    "8 steps, wide": "32x64x8,warp=16x32,promote=16,fragments=single,stages=4",
    "narrow, cooperative": "32x8x16,warp=16x8,promote=16,fragments=single,slices=2,split_k=16",
    "large warps, many slices": "64x32x64,warp=64x32,promote=16,fragments=single,slices=8,stages=2,evict_first=1",
    "three warps": "96x8x16,warp=32x8,promote=16,stages=2,split_k=2",
    "interleaved, stream-K": "32x64x32,warp=32x32,promote=16,stages=3,interleave=4,stream_k=1",
}  # fmt: skip
SOME = ("double", "cluster, interleaved", "stream-K, single, shared", "persistent, deep", "slices, splits")
LEAST_K = 96
SLOW = pytest.mark.slow
NAMES = [name if name in SOME else pytest.param(name, marks=SLOW) for name in CONFIGS]


def config_for(text: str) -> Config:
    return variant(f"tf32x3:{text}")


def problem_for(shape: str, trans: str = "nn", accuracy: str = "normwise") -> Problem:
    return Problem.parse(shape, "float", trans, accuracy)


def kernel_for(text: str, shape: str, trans: str = "nn") -> Kernel:
    """The instance that serves any size and alignment, for some shape."""
    return instance(QuickDevice(), problem_for(shape, trans), guarded(config_for(text), "float", trans))


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("name", NAMES)
def test_edge_grid(name: str, turn: int) -> None:
    device, config = QuickDevice(sm_count=2), config_for(CONFIGS[name])
    turns = (("nn", "tt"), ("nt", "tn"))[(list(CONFIGS).index(name) + turn) % 2]
    tile_m, tile_n, tile_k = tile = config.cta_tile
    whole = [problem_for("x".join(map(str, tile)), trans) for trans in turns]
    fits = [guarded(config, "float", trans) for trans in turns]
    deep = -(-LEAST_K // tile_k) * tile_k
    vectors = [
        (sized(problem, *shape), config)
        for problem, shape in (
            (whole[0], (tile_m + 4, tile_n - 4, deep + 4)),
            (whole[1], (tile_m + 2, tile_n + 6, deep + 10)),
            (whole[1], (2 * tile_m, tile_n, deep + tile_k)),
        )
    ]
    compile_together([*zip(whole, fits), *vectors])

    kernels = [instance(device, *each) for each in zip(whole, fits)]
    depths = (1, LEAST_K, LEAST_K + 1, LEAST_K + tile_k + 3, 2 * LEAST_K + 5)
    sizes = list(product((1, tile_m - 1, tile_m, 2 * tile_m + 3), (1, tile_n - 1, tile_n + 1), depths))
    check_sizes(kernels, sizes if turn else sizes[::2])
    for kernel, which in product(kernels, range(3)):  # whole numbers of which both terms count
        wide = prepared(kernel, sized(kernel.problem, tile_m + 5, tile_n + 7, (99, 96 + tile_k, 117)[which]))
        a, b, c, wanted = scaled_integers(wide.problem, which)
        assert np.array_equal(run(device, wide, a, b, c, 1.0, 0.0, which), wanted.astype(np.float32))
        assert np.array_equal(run(device, wide, a, b, c, 0.5, -1.0, 7), (0.5 * wanted - c).astype(np.float32))
    for (problem, chosen), (alpha, beta) in product(vectors, SCALARS):
        kernel = prepare(device, problem, chosen)
        # Rows 8 elements apart stay aligned; others are served by the unaligned instance, by the same tiles.
        for extra in (0, 8, 1) if kernel.fit.edge is Edge.BOUNDS else (0, 8):
            check(kernel, alpha, beta, extra)


def test_operands_that_start_askew_are_served_by_the_unaligned_instance() -> None:
    config = config_for(CONFIGS["double"])
    check_askew(4, lambda device: prepare(device, problem_for("36x40x100"), config))


# ---- What two terms cannot hold --------------------------------------------------------------------------------


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("name", SOME)
def test_special_values_come_out_where_ieee_arithmetic_puts_them(name: str, trans: str) -> None:
    kernel = kernel_for(CONFIGS[name], "75x70x150", trans)
    a, b, wanted = with_infinity(kernel.problem)
    got = run(kernel.device, kernel, a, b, np.zeros((75, 70), np.float32), 1.0, 0.0, 3)
    assert np.array_equal(got, wanted.astype(np.float32), equal_nan=True)
    assert np.isfinite(got).any(axis=1).sum() == 74  # what has none of them is exact


NOT_NUMBERS = (0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0xFF800001, 0x7FC00000, 0x7F800000, 0xFF800000)
"""NaN of which a rounded term is none, and infinities: the bits."""


@pytest.mark.parametrize("word", NOT_NUMBERS)
def test_every_nan_and_infinity_is_seen(word: int) -> None:
    kernel = kernel_for(CONFIGS["double"], "33x20x100")
    a, b, c = integers(kernel.problem, 1)
    a[3, 50] = np.array([word], np.uint32).view(np.float32)[0]
    b[50, 4] = 0
    got = run(kernel.device, kernel, a, b, c, 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(got, wanted.astype(np.float32), equal_nan=True)
    assert np.isnan(got[3, 4])
    assert np.isfinite(np.delete(got, 3, axis=0)).all()


@pytest.mark.parametrize("name", SOME)
def test_the_smallest_and_largest_numbers(name: str) -> None:
    kernel = kernel_for(CONFIGS[name], "33x20x130")
    for one, other in (
        (2.0**-149, 2.0**20), (2.0**-149, 2.0**-20), (-(2.0**-140), 2.0**127), (3.0e38, 2.0**-60), (3.4028235e38, 1.0),
        (2.0**-126, 2.0**-10), (3.0e38, 3.0e38), (2.0**-126, 2.0**-23), (2.0**-100, 2.0**-100), (0.0, 3.4028235e38),
        (3.4028235e38, 0.0), (-0.0, 1.0), (2.0**-102 * (2 - 2.0**-23), 2.0**127), (2.0**-104 * 1.0000001, 2.0**100),
    ):  # fmt: skip
        a, b = np.zeros((33, 130), np.float32), np.zeros((130, 20), np.float32)
        a[:, 5], b[5], b[6] = one, other, other
        a[7] = 0
        got = run(kernel.device, kernel, a, b, np.zeros((33, 20), np.float32), 1.0, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            wanted = np.float64(np.float32(one)) * np.float64(np.float32(other))
            rounded = np.float32(wanted)
        assert (got[7] == 0).all(), (one, other)
        others = np.delete(got, 7, axis=0)
        if np.isfinite(rounded) and abs(wanted) >= 2.0**-126:
            assert (abs(others - wanted) <= 2.0**-21 * abs(wanted)).all(), (one, other)  # terms cut off
        else:
            assert (others == rounded).all(), (one, other)


def altered(kernel: Kernel, old: str, new: str, folder: Path) -> Kernel:
    """The kernel with something else in its text, compiled by itself."""
    assert old in kernel.source.code
    folder.mkdir()
    source = replace(kernel.source, code=kernel.source.code.replace(old, new, 1))
    binary = kernel.device.compiler.build(source, str(folder))
    return Kernel(QuickDevice(), kernel.problem, kernel.fit, source, binary)


def test_products_are_in_float_where_magnitudes_are_tiny_and_not_elsewhere(tmp_path: Path) -> None:
    made, condition = kernel_for(CONFIGS["double"], "33x20x300"), "special = depth < kLeastK"
    kernel = altered(made, condition, condition, tmp_path / "kernel")
    plain = altered(made, condition, "special = true", tmp_path / "plain")
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((33, 300)).astype(np.float32), rng.standard_normal((300, 20)).astype(np.float32)

    def equal() -> NDArray[np.bool_]:
        ours, other = (
            run(each.device, each, a, b, np.zeros((33, 20), np.float32), 1.0, 0.0) for each in (kernel, plain)
        )
        return ours == other  # type: ignore[no-any-return]

    a[5, 7], b[9, 9], a[:, 8], b[10] = 0, -0.0, 2.0**-103, -(2.0**-103)
    assert not equal().all(axis=1).any()
    a[20, 8] = -(2.0**-103) * (1 - 2.0**-24)
    assert np.array_equal(equal().all(axis=1), np.arange(33) // 16 == 1)  # a warp's rows
    a[20, 8], b[10, 3] = 1, 2.0**-149
    assert np.array_equal(equal().all(axis=0), np.arange(20) < 16)


@pytest.mark.parametrize("name", SOME)
def test_operands_are_not_read_where_alpha_or_k_is_zero(name: str) -> None:
    kernel = kernel_for(CONFIGS[name], "40x30x130")
    for sizes, alpha in (((40, 30, 130), 0.0), ((40, 30, 0), 1.0)):
        kernel = prepared(kernel, sized(kernel.problem, *sizes))
        a, b, c = integers(kernel.problem, 5)
        a[...], b[...] = np.nan, np.nan
        assert np.array_equal(run(kernel.device, kernel, a, b, c, alpha, 1.5), 1.5 * c)
        assert np.array_equal(run(kernel.device, kernel, a, b, c, alpha, 0.0), 0 * c)


# ---- Accuracy --------------------------------------------------------------------------------------------------


def test_results_repeat_bit_by_bit() -> None:
    for name in ("slices, splits", "stream-K, single, shared"):
        assert len({bits(kernel_for(CONFIGS[name], "70x66x150")) for _ in range(3)}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_each_meets_the_bound_of_its_grade(name: str) -> None:
    problem = problem_for("65x70x300", "tn", "elementwise")
    verdict = Verifier(HostDevice(), problem).check(prepare(HostDevice(), problem, config_for(CONFIGS[name])).launch)
    assert verdict.reason == ""
    assert 0 < verdict.accuracy.worst < 0.1


@pytest.mark.parametrize(
    ("k", "promote"), [(512, 32), *(pytest.param(*row, marks=SLOW) for row in ((512, 16), (4096, 32), (4096, 64)))]
)
def test_the_error_is_at_most_that_of_ieee_arithmetic(k: int, promote: int) -> None:
    plain = prepare(QuickDevice(), Problem.parse(f"32x32x{k}"), parse("tiled:16"))
    ours = kernel_for(f"32x32x32,warp=16x16,promote={promote}", f"32x32x{k}")
    nothing = np.zeros((32, 32), np.float32)
    for kind, make in KINDS.items():
        a, b = make(np.random.default_rng(1), 32, 32, k)
        exact = Exact(a, b)
        theirs, found = (exact.errors(run(each.device, each, a, b, nothing, 1.0, 0.0)) for each in (plain, ours))
        assert found[0] <= k + 2, kind
        assert found[0] <= theirs[0], kind


def test_without_promotion_the_error_is_several_times_as_large(tmp_path: Path) -> None:
    kernel = kernel_for("32x32x32,warp=16x16", "32x32x1024")
    a, b = KINDS["uniform"](np.random.default_rng(1), 32, 32, 1024)
    exact = Exact(a, b).product

    def error(one: Kernel) -> float:
        return in_the_norm(exact, run(one.device, one, a, b, np.zeros((32, 32), np.float32), 1.0, 0.0))

    assert error(altered(kernel, "kPromote   = 32;", "kPromote   = 1024;", tmp_path / "rare")) > 5 * error(kernel)


PROBE = """
extern "C" __global__ void places(float* out)
{
    __shared__ __align__(16) float tile[kStage];
    for (int i = threadIdx.x; i < kStage; i += 32) tile[i] = i;
    __syncthreads();
    const float* from[TileA::kBases];
    TileA::find(from, tile, 0, 0, threadIdx.x);
    for (int p = 0; p < kBlockK; p += kStep) {
        float fragment[kLaneK];
        TileA::read(fragment, from, 0, p, 1);
        for (int e = 0; e < kLaneK; ++e) out[threadIdx.x * kBlockK / 4 + p / 4 + e] = fragment[e];
    }
}
"""


def test_no_two_lanes_of_a_read_meet_in_a_bank(tmp_path: Path) -> None:
    """Shared memory that holds its own indices tells where each lane reads, in the text as it is emitted."""
    device, probes = HostDevice(), []
    shapes = tuple(product(("nn", "tn"), (8, 16, 32, 64), (16, 32, 64)))
    for trans, block_k, block_m in shapes:
        config = variant(f"tf32x3:{block_m}x8x{block_k},warp=16x8,stages=2,fragments=single")
        source = render(problem_for("64", trans), config, TYPICAL["host"])
        probes.append(replace(source, name=f"places_{len(probes)}", code=source.code + PROBE))
    code = [replace(probe, code=probe.code.replace("places(", f"{probe.name}(")) for probe in probes]
    binary = QuickCompiler().build(together(code), str(tmp_path))
    for probe, (trans, block_k, _) in zip(probes, shapes, strict=True):
        reads = block_k // 4
        memory = device.allocate(32 * reads * 4)
        how = LaunchConfig((1, 1, 1), (32, 1, 1))
        launch(device.load(binary, probe.name), how, [np.uint64(memory.pointer)])
        places = memory.array("float32", (32, reads)).astype(int)
        assert len(set(places.ravel())) == 32 * reads
        if trans == "tn":  # single elements, of all lanes at a time
            assert all(len(set(places[:, read] % 32)) == 32 for read in range(reads)), probe.name
            continue
        # Pairs of elements: half a warp reads at a time, from 32 banks of 4 bytes.
        for half, pair in product((places[:16], places[16:]), range(0, reads, 2)):
            assert (half[:, pair] % 2 == 0).all()
            assert (half[:, pair + 1] == half[:, pair] + 1).all()
            assert len(set((half[:, pair] // 2) % 16)) == 16, probe.name


# ---- Planted faults --------------------------------------------------------------------------------------------

DOUBLE = "32x32x32,warp=16x16,promote=16,stages=2"
SINGLE = "32x32x8,warp=16x16,promote=16,fragments=single,stages=3"
SPLIT = "32x16x32,warp=16x16,promote=16,slices=2,split_k=2,stages=2"
PERSISTENT = "16x32x16,warp=16x16,promote=16,stages=3,persistent=2"
UNFAULTED = (DOUBLE, SINGLE, SPLIT, PERSISTENT)

# Name, text, replacement, config and transposes.
FAULTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("promotion lost", "acc[e] += partial[e];", "", DOUBLE, "nn"),
    ("sums promoted twice", "partial[e] = 0;", "", DOUBLE, "nn"),
    ("last promotion lost", "    promote();\n\n    // Once more", "\n    // Once more", SINGLE, "nn"),
    ("low terms of A lost", "mma(upper, upper + kThreadN, a.low[2 * i], a.low[2 * i + 1], b.high[j]);", "",
     DOUBLE, "tn"),
    ("low terms of B lost", "mma(upper, upper + kThreadN, a.high[2 * i], a.high[2 * i + 1], b.low[j]);", "",
     DOUBLE, "nt"),
    ("terms cut off, not rounded, and taken for rounded", "(bits + 0x1000u) & 0xffffe000u", "bits + 0x1000u",
     DOUBLE, "nn"),
    ("high term too long", "0xffffe000u", "0xffffff00u", DOUBLE, "nn"),
    ("fragments of A mixed up", "a[1], a_below[1],", "a_below[1], a[1],", DOUBLE, "nn"),
    ("rows of other groups", "a.high[2 * i + 1], b.high", "a.high[2 * i], b.high", DOUBLE, "nn"),
    ("rows swizzled as read only", "(col ^ swizzle(row))", "col", DOUBLE, "nn"),
    ("columns swizzled as written only", "^ swizzle(k);", "^ 0;", DOUBLE, "nn"),
    ("pair read a step late", "lane % 4 * 2;\n            const int across",
     "lane % 4 * 2 + 2;\n            const int across", DOUBLE, "nn"),
    ("second of a pair read twice", "stage + (p + e) * kPitch", "stage + p * kPitch", DOUBLE, "tn"),
    ("places of steps mixed up", "places[p / 8 % kBases]", "places[0]", DOUBLE, "nn"),
    ("wrong set of operands", "split_fragment(b_fragment[step % 2]", "split_fragment(b_fragment[0]", DOUBLE, "nn"),
    ("rows beside from this step", "read_a((step + 1) % kSteps, read", "read_a(step, read", DOUBLE, "nn"),
    ("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)", DOUBLE, "nn"),
    ("guard of stored rows off by one", "row >= rows || col", "row > rows || col", DOUBLE, "nn"),
    ("infinities not seen", "special |= !(fabsf(acc[e]) < 1.7014118e38f);", "", DOUBLE, "nn"),
    ("sums kept where terms cannot hold the operands", "for (int e = 0; e < kAcc; ++e) acc[e] = 0;", "", DOUBLE, "nn"),
    ("all of k for each slice", "p += kBlockK) {\n            multiply_plainly",
     "p += kBlockK / 2) {\n            multiply_plainly", SPLIT, "nn"),
    ("part of k begun too early", "matrix_a + (k_begin + p)", "matrix_a + Index(p)", SPLIT, "nn"),
    ("part of k begun too early in columns", "matrix_b + (k_begin + p)", "matrix_b + Index(p)", SPLIT, "tt"),
    ("end of k not seen", "min(depth - int(k_begin) - p, kBlockK / kSlices)", "kBlockK / kSlices", SPLIT, "nn"),
    ("beyond A where terms cannot hold it", "Index(m - 1)", "Index(m + 60)", DOUBLE, "nn"),
    ("slices overlap", "kSliceThreads * (kBlockK / kSlices)", "kSliceThreads * 0", SPLIT, "nn"),
    ("accumulators of the tile before kept", "        Elem acc[kAcc] = {};",
     "        static thread_local Elem acc[kAcc];", PERSISTENT, "nn"),
    ("next tile of C left out", "each_tile += gridDim.x", "each_tile += 2 * gridDim.x", PERSISTENT, "nn"),
)  # fmt: skip
SHAPES = ((34, 35, 107), (64, 32, 128), (1, 1, 97))

# The host device makes copies NaN until they have come: their tiles would be multiplied once more in float, and right.
NEVER_AGAIN = ("if (__any_sync(~0u, special)) {", "if (depth < kLeastK) {")
FAULTS_OF_COPIES = (
    ("barrier lost", "wait_copies<kStages - 2>();\n    __syncthreads();", "wait_copies<kStages - 2>();"),
    ("copies not waited for", "wait_copies<kStages - 2>", "wait_copies<kStages - 1>"),
    ("stage filled while it is read", "int writing = (kStages - 1) * kStage;", "int writing = 0;"),
    ("unfaulted but for special values", "", ""),
)


def test_few_steps_of_k_are_multiplied_in_float() -> None:
    """A step of k whose terms would leave out 2^-22 of the product is multiplied in float."""
    kernel = kernel_for(CONFIGS["double"], "4x4x1")
    a, b = np.full((4, 1), 1 + 2.0**-12 + 2.0**-23, np.float32), np.full((1, 4), 1 + 3 * 2.0**-12, np.float32)
    assert (run(kernel.device, kernel, a, b, np.zeros((4, 4), np.float32), 1.0, 0.0) == a[0, 0] * b[0, 0]).all()


def planted_fit(text: str, trans: str) -> Fit:
    """The guarded instance without vectors, but for one with a workspace, for which memory must be aligned."""
    return guarded(config_for(text), "float", trans, wide=text == SPLIT)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [
        Planted(name, planted_fit(text, trans), old, new, "float", trans, SHAPES)
        for name, old, new, text, trans in FAULTS
    ]
    planted += [
        Planted(f"unfaulted {text} {trans}", planted_fit(text, trans), "", "", "float", trans, SHAPES)
        for text, trans in itertools.product(UNFAULTED, TRANS)
    ]
    planted += [
        Planted(name, planted_fit(SINGLE, "tt"), old, new, "float", "tt", SHAPES, NEVER_AGAIN, special=False)
        for name, old, new in FAULTS_OF_COPIES
    ]
    assert_caught(planted[part::2], tmp_path)


def test_its_grade_is_elementwise() -> None:
    assert config_for(CONFIGS["double"]).accuracy is Grade.ELEMENTWISE
