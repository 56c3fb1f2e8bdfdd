"""The tf32x3 family: products on the host device, special values, errors, banks, planted faults, rules, and machine
code."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import Refusal, TermConformance
from numpy.typing import NDArray
from nvrtc import Row, assert_as_predicted
from planted import Fault, Shape
from products import TRANS, QuickDevice, guarded, in_the_norm, instance, integers, places_read, run
from quick import TYPICAL
from search_spaces import tried
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import rejections, serves
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.kinds import KINDS, Exact
from tilewright.runtime.product.kernel import Kernel, prepare
from variants import one_each, variant

# One for each path through the template. With fewer than 96 steps of k all multiply in float.
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

# ---- Planted faults --------------------------------------------------------------------------------------------

DOUBLE = "32x32x32,warp=16x16,promote=16,stages=2"
SINGLE = "32x32x8,warp=16x16,promote=16,fragments=single,stages=3"
SPLIT = "32x16x32,warp=16x16,promote=16,slices=2,split_k=2,stages=2"
PERSISTENT = "16x32x16,warp=16x16,promote=16,stages=3,persistent=2"
UNFAULTED = (DOUBLE, SINGLE, SPLIT, PERSISTENT)

FAULTS = (
    Fault("promotion lost", "acc[e] += partial[e];", "", DOUBLE),
    Fault("sums promoted twice", "partial[e] = 0;", "", DOUBLE),
    Fault("last promotion lost", "    promote();\n\n    // Once more", "\n    // Once more", SINGLE),
    Fault("low terms of A lost", "mma(upper, upper + kThreadN, a.low[2 * i], a.low[2 * i + 1], b.high[j]);", "",
          DOUBLE, "tn"),
    Fault("low terms of B lost", "mma(upper, upper + kThreadN, a.high[2 * i], a.high[2 * i + 1], b.low[j]);", "",
          DOUBLE, "nt"),
    Fault("terms cut off, not rounded, and taken for rounded", "(bits + 0x1000u) & 0xffffe000u", "bits + 0x1000u",
          DOUBLE),
    Fault("high term too long", "0xffffe000u", "0xffffff00u", DOUBLE),
    Fault("fragments of A mixed up", "a[1], a_below[1],", "a_below[1], a[1],", DOUBLE),
    Fault("rows of other groups", "a.high[2 * i + 1], b.high", "a.high[2 * i], b.high", DOUBLE),
    Fault("rows swizzled as read only", "(col ^ swizzle(row))", "col", DOUBLE),
    Fault("columns swizzled as written only", "^ swizzle(k);", "^ 0;", DOUBLE),
    Fault("pair read a step late", "lane % 4 * 2;\n            const int across",
          "lane % 4 * 2 + 2;\n            const int across", DOUBLE),
    Fault("second of a pair read twice", "stage + (p + e) * kPitch", "stage + p * kPitch", DOUBLE, "tn"),
    Fault("places of steps mixed up", "places[p / 8 % kBases]", "places[0]", DOUBLE),
    Fault("wrong set of operands", "split_fragment(b_fragment[step % 2]", "split_fragment(b_fragment[0]", DOUBLE),
    Fault("rows beside from this step", "read_a((step + 1) % kSteps, read", "read_a(step, read", DOUBLE),
    Fault("guard along k off by one", "< unsigned(k_left)", "<= unsigned(k_left)", DOUBLE),
    Fault("guard of stored rows off by one", "row >= rows || col", "row > rows || col", DOUBLE),
    Fault("infinities not seen", "special |= !(fabsf(acc[e]) < 1.7014118e38f);", "", DOUBLE),
    Fault("sums kept where terms cannot hold the operands", "for (int e = 0; e < kAcc; ++e) acc[e] = 0;", "", DOUBLE),
    Fault("all of k for each slice", "p += kBlockK) {\n            multiply_plainly",
          "p += kBlockK / 2) {\n            multiply_plainly", SPLIT, wide=True),
    Fault("part of k begun too early", "matrix_a + (k_begin + p)", "matrix_a + Index(p)", SPLIT, wide=True),
    Fault("part of k begun too early in columns", "matrix_b + (k_begin + p)", "matrix_b + Index(p)",
          SPLIT, "tt", wide=True),
    Fault("end of k not seen", "min(depth - int(k_begin) - p, kBlockK / kSlices)", "kBlockK / kSlices",
          SPLIT, wide=True),
    Fault("beyond A where terms cannot hold it", "Index(m - 1)", "Index(m + 60)", DOUBLE),
    Fault("slices overlap", "kSliceThreads * (kBlockK / kSlices)", "kSliceThreads * 0", SPLIT, wide=True),
    Fault("accumulators of the previous tile not reset", "        Elem acc[kAcc] = {};",
          "        static thread_local Elem acc[kAcc];", PERSISTENT),
    Fault("next tile of C left out", "each_tile += gridDim.x", "each_tile += 2 * gridDim.x", PERSISTENT),
)  # fmt: skip

# On the host device copies are NaN until they arrive. Tiles with NaN would be multiplied again in float, rightly.
NEVER_AGAIN = ("if (__any_sync(~0u, special)) {", "if (depth < kLeastK) {")
FAULTS_OF_COPIES = (
    ("barrier lost", "wait_copies<kStages - 2>();\n    __syncthreads();", "wait_copies<kStages - 2>();"),
    ("copies not waited for", "wait_copies<kStages - 2>", "wait_copies<kStages - 1>"),
    ("stage filled while it is read", "int writing = (kStages - 1) * kStage;", "int writing = 0;"),
    ("unfaulted but for special values", "", ""),
)


class TestTf32x3(TermConformance):
    family = "tf32x3"
    configs = CONFIGS
    fast_configs = SOME
    turns = (("float", "nn"), ("float", "tt")), (("float", "nt"), ("float", "tn"))
    least_k = 96
    precise = False
    refused = (
        Refusal("", "where each element is promised, k is at least 192", "1024x1024x191"),
        Refusal("promote=16", "where each element is promised, k is at least 96", "1024x1024x95"),
        Refusal("block_m=16,warp_m=32", "block_m 16 is a multiple of the rows of a warp, 32"),
        Refusal("warp=64x64", "a thread holds at most 64 elements of C"),
        Refusal("block_k=8,slices=2,fragments=single", "block_k 8 is whole steps of 8 for each of 2 slices"),
        Refusal("block_k=8,fragments=double", "an even number of them with double-buffered fragments"),
        Refusal("interleave=2,fragments=single", "interleave 2 is for double-buffered fragments"),
        Refusal("persistent=3,slices=2", "no shared memory free for the accumulators of 2 slices"),
        Refusal("128x128x32,warp=16x16", "registers of 1 CTAs fit on an SM"),
        Refusal("256x256x64,warp_m=64,stages=5", "shared memory of a CTA stays within"),
    )  # fmt: skip
    instruction = "mma.m16n8k8"
    faults = (
        *FAULTS,
        *(
            Fault(name, old, new, SINGLE, "tt", before=NEVER_AGAIN, special=False)
            for name, old, new in FAULTS_OF_COPIES
        ),
    )
    unfaulted = UNFAULTED
    unfaulted_trans = TRANS
    slow_faults = True

    def device(self, name: str) -> QuickDevice:
        return QuickDevice(sm_count=2)

    def sizes(self, tile: Shape, turn: int) -> list[Shape]:
        """Sizes around a tile, with k from 1, where products are in float, to several promotions."""
        m, n, k = tile
        depths = (1, 96, 97, 99 + k, 197)
        sizes = list(product((1, m - 1, m, 2 * m + 3), (1, n - 1, n + 1), depths))
        return sizes if turn else sizes[::2]

    def vector_sizes(self, edge: Edge, tile: Shape) -> list[Shape]:
        """Sizes at which kernels use vectors, of two elements too."""
        m, n, k = tile
        deep = -(-96 // k) * k
        if edge is Edge.EXACT:
            return [(2 * m, n, deep + k)]
        return [(m + 4, n - 4, deep + 4), (m + 2, n + 6, deep + 10)]

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        return (34, 35, 107), (64, 32, 128), (1, 1, 97)


def config_for(text: str) -> Config:
    return variant(f"tf32x3:{text}")


def problem_for(shape: str, trans: str = "nn", accuracy: str = "normwise") -> Problem:
    return Problem.parse(shape, "float", trans, accuracy)


def kernel_for(text: str, shape: str, trans: str = "nn") -> Kernel:
    """The instance that serves any size and alignment, for a shape."""
    return instance(QuickDevice(), problem_for(shape, trans), guarded(config_for(text), "float", trans))


NOT_NUMBERS = (0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0xFF800001, 0x7FC00000, 0x7F800000, 0xFF800000)
"""Bits of infinities, and of NaN whose rounded terms are no NaN."""


@pytest.mark.parametrize("word", NOT_NUMBERS)
def test_every_nan_and_infinity_is_seen(word: int) -> None:
    kernel = kernel_for(CONFIGS["double"], "33x20x100")
    a, b, c = integers(kernel.problem, 1)
    a[3, 50] = np.array([word], np.uint32).view(np.float32)[0]
    b[50, 4] = 0
    got = run(kernel.device, kernel, a, b, c, 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(got, expected.astype(np.float32), equal_nan=True)
    assert np.isnan(got[3, 4])
    assert np.isfinite(np.delete(got, 3, axis=0)).all()


def altered(kernel: Kernel, old: str, new: str, folder: Path) -> Kernel:
    """The kernel with a replacement in its text, compiled alone."""
    assert old in kernel.source.code
    folder.mkdir()
    source = replace(kernel.source, code=kernel.source.code.replace(old, new, 1))
    binary = kernel.device.compiler.build(source, str(folder))
    return Kernel(QuickDevice(), kernel.problem, kernel.fit, source, binary)


def test_products_are_in_float_where_magnitudes_are_tiny_and_not_elsewhere(tmp_path: Path) -> None:
    original, condition = kernel_for(CONFIGS["double"], "33x20x300"), "special = depth < kLeastK"
    kernel = altered(original, condition, condition, tmp_path / "kernel")
    plain = altered(original, condition, "special = true", tmp_path / "plain")
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
    assert np.array_equal(equal().all(axis=1), np.arange(33) // 16 == 1)  # the rows of a warp
    a[20, 8], b[10, 3] = 1, 2.0**-149
    assert np.array_equal(equal().all(axis=0), np.arange(20) < 16)


def test_few_steps_of_k_are_multiplied_in_float() -> None:
    """Terms of this step of k would lose 2^-22 of the product, so that it is multiplied in float."""
    kernel = kernel_for(CONFIGS["double"], "4x4x1")
    a, b = np.full((4, 1), 1 + 2.0**-12 + 2.0**-23, np.float32), np.full((1, 4), 1 + 3 * 2.0**-12, np.float32)
    assert (run(kernel.device, kernel, a, b, np.zeros((4, 4), np.float32), 1.0, 0.0) == a[0, 0] * b[0, 0]).all()


# ---- Accuracy and banks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "promote"),
    [(512, 32), *(pytest.param(*row, marks=pytest.mark.slow) for row in ((512, 16), (4096, 32), (4096, 64)))],
)
def test_the_error_is_at_most_that_of_ieee_arithmetic(k: int, promote: int) -> None:
    plain = prepare(QuickDevice(), Problem.parse(f"32x32x{k}"), parse("tiled:16"))
    kernel = kernel_for(f"32x32x32,warp=16x16,promote={promote}", f"32x32x{k}")
    nothing = np.zeros((32, 32), np.float32)
    for kind, make in KINDS.items():
        a, b = make(np.random.default_rng(1), 32, 32, k)
        exact = Exact(a, b)
        plain_errors, errors = (
            exact.errors(run(each.device, each, a, b, nothing, 1.0, 0.0)) for each in (plain, kernel)
        )
        assert errors[0] <= k + 2, kind
        assert errors[0] <= plain_errors[0], kind


def test_without_promotion_the_error_is_several_times_as_large(tmp_path: Path) -> None:
    kernel = kernel_for("32x32x32,warp=16x16", "32x32x1024")
    a, b = KINDS["uniform"](np.random.default_rng(1), 32, 32, 1024)
    exact = Exact(a, b).product

    def error(one: Kernel) -> float:
        return in_the_norm(exact, run(one.device, one, a, b, np.zeros((32, 32), np.float32), 1.0, 0.0))

    assert error(altered(kernel, "kPromote   = 32;", "kPromote   = 1024;", tmp_path / "rare")) > 5 * error(kernel)


def test_no_two_lanes_of_a_read_meet_in_a_bank(tmp_path: Path) -> None:
    cases = [*product(("nn", "tn"), (8, 16, 32, 64), (16, 32, 64))]
    texts = [f"{block_m}x8x{block_k},warp=16x8,stages=2,fragments=single" for _, block_k, block_m in cases]
    problems = [problem_for("64", trans) for trans, _, _ in cases]
    for case, places in zip(cases, places_read(problems, [*map(config_for, texts)], tmp_path), strict=True):
        if case[0] == "tn":  # all lanes read single elements at a time
            assert all(len(set(read % 32)) == 32 for read in places.T), case
            continue
        # Half a warp reads pairs of elements at a time, from 32 banks of 4 bytes.
        for half, pair in product((places[:16], places[16:]), range(0, places.shape[1], 2)):
            assert (half[:, pair] % 2 == 0).all()
            assert (half[:, pair + 1] == half[:, pair] + 1).all()
            assert len(set((half[:, pair] // 2) % 16)) == 16, case


def test_grade_is_elementwise() -> None:
    assert config_for(CONFIGS["double"]).accuracy is Grade.ELEMENTWISE


# ---- Rules and launches ------------------------------------------------------------------------------------------

SM_90 = TYPICAL["sm_90a"]


def reasons(text: str, problem: str = "1024", accuracy: str = "elementwise", arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse(problem, accuracy=accuracy), variant(f"tf32x3:{text}"), TYPICAL[arch]))


def test_the_family_serves_float_in_grades_below_ieee() -> None:
    assert reasons("", accuracy="ieee") == ["accuracy is no finer than the config's, elementwise"]
    assert reasons("", accuracy="normwise") == reasons("") == []
    assert reasons("", "64x64x1", "normwise") == []
    double = Problem.parse("1024", "double")
    assert "floats are split into terms" in list(rejections(double, parse("tf32x3:"), SM_90))


@pytest.mark.parametrize(("arch", "has"), [("sm_75", False), ("sm_80", True), ("sm_90a", True), ("host", True)])
def test_devices_that_multiply_tf32(arch: str, has: bool) -> None:
    assert ("the device multiplies TF32 by mma.m16n8k8" not in reasons("", arch=arch)) == has


def test_resources_and_text() -> None:
    problem, config = (
        Problem.parse("256x128x512", accuracy="normwise"),
        variant("tf32x3:128x16x16,warp=32x16,split_k=4"),
    )
    launch = config.launch_config(problem, 132)
    assert launch.grid == (2 * 8 * 4, 1, 1)
    assert launch.static_smem_bytes == 3 * 16 * (128 + 16 + 4) * 4
    assert config.workspace_bytes(problem, 132) == 16 * (4 * 128 * 16 * 4 + 4)
    code = render(problem, config, SM_90).code
    assert code.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") == 1
    assert "//   accuracy   elementwise\n" in code
    assert "--accuracy elementwise" in code
    assert "terms comes first" not in code


# ---- Configs that searches try ----------------------------------------------------------------------------------


def of(
    shape: str, target: str = "sm_90a", trans: str = "nn", accuracy: str = "elementwise", **values: Any
) -> list[Any]:
    """Configs that a search tries for a problem."""
    return tried(Problem.parse(shape, "float", trans, accuracy), target, "tf32x3", **values)


@pytest.mark.parametrize(("shape", "accuracy"), [("256x256x90", "elementwise"), ("1024", "ieee")])
def test_configs_that_would_break_the_grade_are_not_tried(shape: str, accuracy: str) -> None:
    assert all(config.least_k <= 90 for config in of(shape, accuracy=accuracy))
    assert accuracy == "elementwise" or not of(shape, accuracy=accuracy)


@pytest.mark.parametrize("shape", ["64x4096x4096", "256x256x16384", "35x700x2048", "512"])
def test_small_and_narrow_products_are_tried_with_shared_k(shape: str) -> None:
    configs = of(shape)
    assert len(configs) > 50
    assert any(config.split_ctas > 1 or config.tile.slices > 1 for config in configs)


# ---- Machine code -------------------------------------------------------------------------------------------------

BEST = (
    "128x64x16,warp=64x32,promote=16,stages=4,raster=8",
    "128x128x16,warp=64x32,promote=16,stages=4,fragments=single",
    "64x64x32,split_k=8",
    "32x64x64,slices=4,promote=16,stages=5",
    "32x64x64,slices=4,promote=16,stages=5,split_k=4",
)
"""Configs that are expected to be fast. They are compiled besides a sample."""


def sample() -> list[Row]:
    """Instances of all mechanisms, and targets."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str, str]] = []
    for target, (trans, count) in product(("sm_80", "sm_90a"), (("nn", 3), ("nt", 2), ("tn", 2), ("tt", 1))):
        rows += [(str(each), "float", trans, target) for each in generator.sample(of("1024", target, trans), count)]
    split = [each for each in of("512x512x2048") if each.split_ctas > 1]
    rows += [(str(each), "float", "nn", "sm_90a") for each in generator.sample(split, 4)]
    rows += [(str(variant(f"tf32x3:{text}")), "float", "nn", "sm_90a") for text in BEST]
    return [(text, target) for text, target in one_each(rows)]


@pytest.mark.nvrtc
def test_nothing_spills_and_resources_are_as_predicted() -> None:
    assert_as_predicted(sample())


# ---- Addresses of copies, which the template computes from the first copy of each thread ---------------------------


def misplaced(along: bool, depth: int, extent: int, vec: int, threads: int) -> int:
    """Number of copies of a tile that do not go to the address from which their row and column are read."""
    spare = 4 if extent % 32 else 0
    width, height, pitch = (depth, extent, depth) if along else (extent, depth, extent + spare)
    per_row = width // vec

    def swap(row: Any) -> Any:
        if along:
            return 0 * row if depth == 8 else row // 2 % 2 * 8 if depth == 16 else row % 4 * 8
        return 0 * row if spare else row // 2 % 4 * 8

    number = np.arange(height * per_row)  # numbers of the copies; a thread begins with its own number
    thread = number % threads
    row, col = thread // per_row, thread % per_row * vec
    place = row * pitch + (col ^ swap(row))
    further, right = (number - thread) // per_row, (number - thread) % per_row * vec
    to = (place ^ swap(further)) + further * pitch + right
    own, at = number // per_row, number % per_row * vec
    return int(np.count_nonzero(to != own * pitch + (at ^ swap(own))))


def test_copies_go_where_they_are_read() -> None:
    """Every legal way of copying is checked, with and without vectors, for whole and odd tiles."""
    ways = set()
    choices = {leaf.name: leaf.choices for leaf in parse("tf32x3:").leaves()}
    for trans, block_m, block_k, slices in product(
        ("nn", "tt"), choices["block_m"], choices["block_k"], choices["slices"]
    ):
        problem = Problem.parse("1024", "float", trans, "normwise")
        for block_n, warp_m, warp_n in product(choices["block_n"], (16, 32, 64), (8, 16, 32)):
            tile = f"{block_m}x{block_n}x{block_k},warp={warp_m}x{warp_n},slices={slices},stages=2"
            config = parse(f"tf32x3:{tile},fragments=single")
            fit = Fit(config, Edge.BOUNDS, 4, 4, 1)
            rules = all(rule.holds(problem, config, fit) for rule in config.fit_rules)
            if rules and config.threads <= 1024 and serves(config, problem, SM_90):
                for along, extent in ((trans == "nn", block_m), (trans == "tt", block_n)):
                    ways |= {(along, block_k, extent, vec, config.threads) for vec in (1, 4)}
    assert len(ways) > 200
    assert {way: misplaced(*way) for way in ways if misplaced(*way)} == {}
