"""The families mma and wgmma, whose operands a kernel before splits into terms: products on the host device, special
values, errors of schemes, and planted faults."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from conformance import Refusal, TermConformance
from planted import Fault, Shape
from products import TRANS, QuickDevice, check, guarded, in_the_norm, instance, integers, run
from quick import rendered
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.kinds import KINDS, Exact
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.product.kernel import Kernel
from variants import variant

MMA = {
    "halves": "64x64x32,warp=32x32",
    "halves, grouped, five stages": "64x64x16,warp=32x32,promote=32,stages=5,raster=4",
    "halves, promoted within tiles": "32x64x64,warp=16x32,promote=16,stages=2",
    "halves, narrow warps": "32x32x32,warp=16x16,promote=32,evict_first",
    "bfloat16s": "64x32x32,warp=32x16,scheme=bf16x6,promote=16",
    "bfloat16s, two stages": "64x64x16,warp=32x32,scheme=bf16x6,promote=16,stages=2",
}
WGMMA = {
    "halves": "64x64x64,stages=2",
    "halves, promoted within tiles": "64x96x64,stages=2,promote=32,raster=4",
    "halves, in turns": "128x64x32,stages=4,ordered,raster=4",
    "bfloat16s, short tiles": "64x64x32,stages=3,scheme=bf16x6,promote=32",
    "bfloat16s": "64x64x64,stages=2,scheme=bf16x6,promote=32,evict_first",
}
CONFIGS = {name: f"mma:{text}" for name, text in MMA.items()} | {
    f"wgmma, {name}": f"wgmma:{text}" for name, text in WGMMA.items()
}
SOME = "halves", "bfloat16s", "wgmma, halves", "wgmma, bfloat16s"


def problem_for(config: Config, shape: str, trans: str = "nn") -> Problem:
    return Problem.parse(shape, "float", trans, config.accuracy)


def kernel_for(text: str, shape: str = "64x64x64", trans: str = "nn") -> Kernel:
    """The instance that serves any size and alignment, for a shape."""
    config = parse(text)
    return instance(QuickDevice(), problem_for(config, shape, trans), guarded(config, "float", trans))


# ---- Planted faults --------------------------------------------------------------------------------------------

# TYPE stands for the type of terms, by which the texts of the two schemes differ.
FAULTS = {
    "promotion lost": ("sums[e] += acc[e];", ""),
    "sums promoted twice": ("acc[e] = 0;", ""),
    "last promotion lost": ("        promote();\n        if (is_far)", "        if (is_far)"),
    "places of A not swizzled alike": ("(a_piece ^ 2 * step)", "(a_piece + 2 * step)"),
    "places of B not swizzled alike": ("(b_piece ^ 2 * step)", "(b_piece + 2 * step)"),
    "pieces written where they are not read": ("+ swizzled(row, piece) * 8", "+ piece * 8"),
    "wrong terms multiplied": ("b_terms[order - term]", "b_terms[term]"),
    "a product of terms dropped": ("term <= order", "term < order || (term == 0 && order == 0)"),
    "lanes of A name other rows": ("a_row = warp_m + lane % 16", "a_row = warp_m + lane % 8"),
    "lanes of B name other rows": ("lane / 16 * 8 + lane % 8", "lane % 16"),
    "fragments of B mixed up": ("of_b[j % 2 * 2], of_b", "of_b[j % 2], of_b"),
    "barrier lost": ("wait_copies<kStages - 2>();\n            __syncthreads();", "wait_copies<kStages - 2>();"),
    "copies not waited for": ("wait_copies<kStages - 2>", "wait_copies<kStages - 1>"),
    "stage filled while it is read": ("writing = kStages - 1;", "writing = 0;"),
    "low terms lost": ("low -= low_TYPE(both);", "low = 0;"),
    "low terms of every other lost": ("high -= high_TYPE(both);", "high = 0;"),
    "terms taken for their neighbours'": ("low -= low_TYPE(both);", "low -= high_TYPE(both);"),
    "scale of every other lost": ("high = x[e + 1] * scale;", "high = x[e + 1];"),
    "powers of two not taken off": ("unscale<false>(sums, row", "if (m < 0) unscale<false>(sums, row"),
    "exponents of rows taken for columns": ("Pair*>(col_exponents +", "Pair*>(row_exponents +"),
    "magnitude of some warps, of columns": ("each < count; ++each", "each < 1; ++each"),
    "magnitude of some lanes": ("other <= last; other *= 2", "other < first; other *= 2"),
    "guard along k of columns lost": ("first + lane < extent && begin + j < k", "first + lane < extent"),
    "guard of columns lost": ("first + lane < extent && begin + j < k", "begin + j < k"),
    "columns taken for whole": ("first + kTermRows <= extent && begin", "begin"),
    "steps of columns taken for whole": ("extent && begin + kTermK <= k", "extent"),
    "guard of rows along k lost": ("inside && p < k ?", "p < k ?"),
    "guard along k lost": ("inside && p < k ?", "inside ?"),
    "guard of aligned rows along k lost": ("inside && p + e < k ?", "p + e < k ?"),
    "guard along k of aligned rows lost": ("inside && p + e < k ?", "inside ?"),
    "eights along k taken for whole": ("inside && p + 8 <= k", "inside"),
    "aligned rows along k taken for inside": ("inside && p + 8 <= k", "p + 8 <= k"),
    "first steps of k of columns lost": ("there = false;", ""),
    "terms written at the wrong place": ("to + term * rows * depth", "to + 8 * term"),
    "units of A taken for B's": ("if (unit.of_a)", "if (!unit.of_a)"),
    "every other unit lost": ("at % 2 == 1, at / 2", "at % 2 == 1, at"),
    "units take too few turns": ("if (at < 2 * both)", "if (at < both)"),
    "units take too many turns": ("if (at < 2 * both)", "if (at <= 2 * both)"),
    "last units lost": ("at - both}", "at - 2 * both}"),
    "last units taken for the shorter operand's": ("{of_a > of_b,", "{of_a < of_b,"),
    "rest of the units always A's": ("{of_a > of_b,", "{true,"),
    "units of B counted in rows of op(A)": ("(to.cols, to.depth);", "(to.rows, to.depth);"),
    "guard of stored rows off by one": ("row >= rows ||", "row > rows ||"),
    "guard of stored columns lost": ("|| col >= cols", ""),
    "infinities not seen": ("== kSpecial;", "== kSpecial + 1;"),
    "beyond A where terms cannot hold it": ("Index(m - 1)", "Index(m + 60)"),
    "other columns where terms cannot hold them": (
        "min(col_of(j, lane), last)",
        "min(col_of(j, lane) + 1, last)",
    ),
}
FAULTS_OF_WGMMA = {
    "promotion lost": ("sums[e] += acc[e];", ";"),
    "sums not begun afresh": ("a, b, first, begins)", "a, b, first, each == 0 && begins)"),
    "sums begun afresh for each term": ("&& term == 0 && p == 0", "&& p == 0"),
    "instructions not waited for": ("wait_wgmma<0>(acc);\n", "\n"),
    "the last instructions not waited for": ("wait_wgmma<0>(acc);\n", "wait_wgmma<1>(acc);\n"),
    "group not closed": ("commit_wgmma();\n            if", "if"),
    "phase stays": ("parity ^= 1;", ""),
    "stages never given back": ("mbarrier_arrive(&empty[turn.stage]);", ";"),
    "stages given back by one lane too many": ("threadIdx.x % 32 == 0;", "threadIdx.x % 32 <= 1;"),
    "tile not waited for": ("while (!mbarrier_try_wait(&full[turn.stage], turn.parity)) {}", ";"),
    "too few bytes announced": ("&barrier, kStage * sizeof(Term))", "&barrier, (kStage - 64) * sizeof(Term))"),
    "descriptor of op(B) too far along k": ("* kSizeB + p);", "* kSizeB + 2 * p);"),
    "descriptor of op(A) not moved along k": ("first + term * kSizeA + p)", "first + term * kSizeA)"),
    "rows swizzled in spans of another length": ("kRowBytes == 128 ? 1 : 2", "kRowBytes == 128 ? 2 : 1"),
    "groups of 8 rows in another distance": ("kStrideBytes  = 8 * kRowBytes", "kStrideBytes  = 4 * kRowBytes"),
    "address in units of 8 bytes": ("__cvta_generic_to_shared(place)) / 16", "__cvta_generic_to_shared(place)) / 8"),
    "second interval of a tile lost": ("turn.stage * kStage + step % kBlockK", "turn.stage * kStage"),
    "wrong terms multiplied": ("(order - term) * kSizeB", "term * kSizeB"),
    "rows not swizzled in memory": (" ^ int(i % 8)) * 8", ") * 8"),
    "short rows not swizzled in memory": (" ^ int(i / 2 % 4)) * 8", ") * 8"),
    "rows of the first warpgroup for all": ("first_row = warp / 4 * 64", "first_row = 0 * warp"),
    "first tile of rows for all": ("Terms::place(row0, each", "Terms::place(0 * row0, each"),
    "terms of op(B) counted in rows of op(A)": ("term * from.cols * from.depth", "term * from.rows * from.depth"),
    "last products of terms dropped": ("order >= 0; --order", "order >= 1; --order"),
    "powers of two not taken off": ("unscale<false>(sums, row", "if (m < 0) unscale<false>(sums, row"),
    "rows of other warps": ("warp_m = warp * kWarpM", "warp_m = warp / 2 * kWarpM"),
    "infinities not seen in rows": ("= abs(row_exponents[lane % kWarpM]) > magnitude", "= false"),
    "infinities not seen in columns": ("larger |= abs(col_exponents[each + lane]) > magnitude;", ";"),
    "written where tiles are still read": ("sync_constant<15, kThreads>();  // no thread", "// no thread"),
    "written over the warp before": ("/ 32 * kPassing * kBand * kPitch;", "/ 64 * kPassing * kBand * kPitch;"),
    "sums kept where terms cannot hold the rows": ("sums[e] = 0;", ";"),
    "turn never passed": ("        pass_turn(first_row / 64);", ";"),
    "turn of the wrong warpgroup": ("const int next = warpgroup + 1 <", "const int next = warpgroup + 2 <"),
    "first turn not passed": ("if (first_row == kBlockM - 64) pass_turn", "if (first_row < 0) pass_turn"),
    "stage filled before it is read": ("(turn.stage == 0 ? kStages : turn.stage) - 1", "turn.stage"),
    "terms written at the wrong place": ("to + term * rows * depth", "to + 8 * term"),
    "units of A taken for B's": ("if (unit.of_a)", "if (!unit.of_a)"),
    "units take too few turns": ("if (at < 2 * both)", "if (at < both)"),
    "units of B counted in rows of op(A)": ("(to.cols, to.depth);", "(to.rows, to.depth);"),
    "rows of some CTAs of a unit lost": ("kTermParts + blockIdx.x % kTermParts;", "kTermParts;"),
    "units counted as CTAs": ("cta = unit.index * kTermParts", "cta = unit.index"),
    "part of k begun too late": ("begin = part * kTermK;", "begin = part * kTermK + 16;"),
    "magnitudes of the cluster's other CTAs lost": ("&own.most, each)", "&own.most, rank)"),
}
UNITS: Shape = (222, 70, 520)
"""A shape of which several CTAs or clusters split each operand."""
ONE: Shape = (1, 1, 1)
TRANS_OF = {"column": "tn", "along": "nt", "rest": "tt", "unit": "nn"}
"""Transposes by a word in the name of a fault: for faults in reading columns or rows along k, and in sharing out the
units to CTAs."""
SCHEMES = {
    "fp16x3": "32x32x32,warp=16x16",
    "bf16x6": "32x32x32,warp=16x16,scheme=bf16x6,promote=16",
}


def faults_of_mma() -> list[Fault]:
    """The faults, in a config of each scheme."""
    listed = []
    for (scheme, text), (number, (name, fault)) in product(SCHEMES.items(), enumerate(FAULTS.items())):
        old, new = (line.replace("TYPE", "f16" if scheme == "fp16x3" else "bf16") for line in fault)
        if scheme == "bf16x6" and name == "last promotion lost":  # tiles are promoted whole
            continue
        trans = next((trans for word, trans in TRANS_OF.items() if word in name), TRANS[number % 4])
        listed.append(Fault(f"{name}, {scheme}", old, new, text, trans, shapes=(UNITS,) if "unit" in name else ()))
    return listed


class SplitTermConformance(TermConformance):
    """Tests of families with a kernel before the product, which splits the operands."""

    turns = (tuple(("float", trans) for trans in TRANS),)
    unfaulted_trans = TRANS
    unfaulted_widths = (False,)
    slow_faults = True

    def sizes(self, tile: Shape, turn: int) -> list[Shape]:
        m, n, _ = tile
        return list(product((1, m - 1, m + 1, 2 * m + 3), (1, n, n + 3), (0, 1, 2, 67)))


class TestMma(SplitTermConformance):
    family = "mma"
    configs = MMA
    fast_configs = "halves", "bfloat16s"
    refused = (
        Refusal("64x64x32,warp=64x64", "a thread holds at most 64 elements of C"),
        Refusal("32x32x64,warp=32x32", "threads share out the rows of the tiles of A and B evenly"),
    )
    instruction = "mma.m16n8k16"
    faults = tuple(faults_of_mma())
    unfaulted = tuple(SCHEMES.values())
    fault_parts = 4

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        return (66, 35, 75), (64, 32, 128), (1, 1, 600)


PLANTED_WGMMA = {
    "fp16x3": ("128x64x64,stages=2", (130, 70, 130)),
    "fp16x3, in turns": ("128x64x32,stages=4,ordered", (130, 70, 130)),
    "bf16x6": ("64x64x64,scheme=bf16x6,stages=2,promote=32", (66, 130, 130)),
}


def _faults_of_wgmma(text: str) -> dict[str, tuple[str, str]]:
    """Faults whose line is in the text of the config and that its tiles can show."""
    config = variant(f"wgmma:{text}")
    source = rendered(problem_for(config, "64x64x64"), guarded(config))
    code = source.code + (source.preparation.code if source.preparation else "")
    faults = {name: fault for name, fault in FAULTS_OF_WGMMA.items() if fault[0] in code}
    if config.cta_tile[0] == 64:
        del faults["rows of the first warpgroup for all"]
    block_k, promote = config.cta_tile[2], dict(config.values)["promote"]
    if promote >= block_k:
        del faults["second interval of a tile lost"]
    if promote <= block_k:
        del faults["stage filled before it is read"]
    if "ordered" not in text:  # warpgroups of the host device end at the same time
        del faults["written where tiles are still read"]
    return faults


def faults_of_wgmma() -> list[Fault]:
    """The faults, in the configs that show them."""
    listed = []
    for scheme, (text, shape) in PLANTED_WGMMA.items():
        for number, (name, (old, new)) in enumerate(_faults_of_wgmma(text).items()):
            across = "k" in name.split() or "CTAs" in name  # CTAs share a long k of columns
            trans, shapes = "tn" if across else TRANS[number % 4], ((5, 9, 600),) if "CTAs" in name else (shape, ONE)
            if "unit" in name:
                trans, shapes = "nn", (UNITS,)
            listed.append(Fault(f"{name}, {scheme}", old, new, text, trans, shapes=shapes))
    return listed


def test_every_fault_of_wgmma_is_planted_in_some_config() -> None:
    assert {name for text, _ in PLANTED_WGMMA.values() for name in _faults_of_wgmma(text)} == FAULTS_OF_WGMMA.keys()


class TestWgmma(SplitTermConformance):
    family = "wgmma"
    configs = WGMMA
    fast_configs = "halves", "bfloat16s"
    refused = (
        Refusal("64x64x64,ordered", "two warpgroups or more take turns"),
        Refusal("64x64x32,stages=2,promote=64", "a stage is filled while an interval of 64 steps of k is multiplied"),
    )
    instruction = "wgmma.mma_async"
    faults = tuple(faults_of_wgmma())
    unfaulted = tuple(text for text, _ in PLANTED_WGMMA.values())
    fault_parts = 6

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        (shape,) = (shape for text, shape in PLANTED_WGMMA.values() if self.config(text) == config)
        return shape, ONE, UNITS


# ---- Long rows, magnitudes and errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2100, 8300])
@pytest.mark.parametrize("trans", ["nt", "tn"])
@pytest.mark.parametrize("name", ["halves, narrow warps", "wgmma, halves", "wgmma, bfloat16s"])
def test_long_rows_are_split_by_many_warps_some_of_them_more_than_once(name: str, trans: str, k: int) -> None:
    """Four warps of a CTA split a row along k, 2048 steps each at a time. Across k, 4 or 32 warps split 32 rows, 64
    steps each."""
    kernel = kernel_for(CONFIGS[name], f"5x3x{k}", trans)
    check(kernel, 1.0, 0.0, k % 4)
    a, b, _ = integers(kernel.problem, 5)
    a[:], b[:] = 0, 0
    (a.T if trans[0] == "t" else a)[2, k - 1] = 3.0e38
    (b.T if trans[1] == "t" else b)[k - 1, 1] = 2.0**-140
    got = run(kernel.device, kernel, a, b, np.zeros((5, 3), np.float32), 1.0, 0.0)
    assert got[2, 1] == np.float32(3.0e38) * np.float32(2.0**-140)
    assert np.count_nonzero(got) == 1


@pytest.mark.parametrize("trans", ["nn", "tt"])
@pytest.mark.parametrize("name", ["halves", "wgmma, halves", "wgmma, bfloat16s"])
def test_the_largest_element_counts_at_every_place(name: str, trans: str) -> None:
    """Each warp and CTA reads a part of k. Terms overflow where the magnitude of a part is missed."""
    kernel = kernel_for(CONFIGS[name], "5x3x1300", trans)
    for place in (0, 63, 64, 127, 128, 200, 511, 512, 640, 1023, 1024, 1299):
        op_a, op_b = np.ones((5, 1300), np.float32), np.ones((1300, 3), np.float32)
        op_a[2, place], op_b[place, 1] = 2.0**30, 2.0**25
        a, b = (np.ascontiguousarray(x.T if t == "t" else x) for x, t in zip((op_a, op_b), trans))
        got = run(kernel.device, kernel, a, b, np.zeros((5, 3), np.float32), 1.0, 0.0)
        exact = op_a.astype(np.float64) @ op_b
        assert (abs(got - exact) <= 2.0**-18 * abs(exact)).all(), place


@pytest.mark.parametrize("name", SOME)
def test_factors_beyond_normal_numbers_are_undone(name: str) -> None:
    """The powers of two of a row and a column multiply to a factor, which underflows where both hold small numbers and
    overflows where both hold large numbers."""
    for power in (-70, 62):
        kernel = kernel_for(CONFIGS[name], "70x66x64")
        a, b = np.full((70, 64), 2.0**power, np.float32), np.full((64, 66), 2.0 ** (power - 4), np.float32)
        got = run(kernel.device, kernel, a, b, np.zeros((70, 66), np.float32), 1.0, 0.0)
        assert (got == np.float32(2.0 ** (2 * power + 2))).all(), power


ERRORS = {
    Grade.NORMWISE: ("mma:32x32x32,warp=16x16", KINDS.keys() - {"graded"}),
    Grade.ELEMENTWISE: ("mma:32x32x32,warp=16x16,scheme=bf16x6", KINDS.keys()),
}
"""A config of each grade, and the kinds of data on which its errors are at most those of IEEE arithmetic."""


@pytest.mark.parametrize("k", [512, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("grade", ERRORS)
def test_the_error_is_at_most_that_of_ieee_arithmetic(grade: Grade, k: int) -> None:
    text, better = ERRORS[grade]
    shape = f"32x32x{k}"
    plain, kernel = kernel_for("tiled:16", shape), kernel_for(text, shape)
    for kind, make in KINDS.items():
        a, b = make(np.random.default_rng(1), 32, 32, k)
        nothing = np.zeros((32, 32), np.float32)
        exact = Exact(a, b)
        plain_errors = exact.errors(run(plain.device, plain, a, b, nothing, 1.0, 0.0))
        errors = exact.errors(run(kernel.device, kernel, a, b, nothing, 1.0, 0.0))
        assert errors[1] <= 256, kind  # the bound of `normwise`, in units of roundoff
        if grade is Grade.ELEMENTWISE:
            assert errors[0] <= k + 2, kind
        if kind in better:
            assert errors[0] <= plain_errors[0], kind


def test_without_promotion_the_error_is_several_times_as_large() -> None:
    """The host device truncates sums as tensor cores do, so that the benefit of promotion shows there too."""
    kernel, device = kernel_for("mma:32x32x32,warp=16x16", "32x32x1024"), QuickDevice()
    rare = re.sub(r"kPromote( *)= 64;", r"kPromote\1= 1024;", kernel.source.code)
    assert rare != kernel.source.code
    source = replace(kernel.source, code=rare)
    other = Kernel(device, kernel.problem, kernel.fit, source, compile_cached(device.compiler, source))
    a, b = KINDS["uniform"](np.random.default_rng(1), 32, 32, 1024)
    nothing = np.zeros((32, 32), np.float32)
    exact = Exact(a, b).product
    often, never = (in_the_norm(exact, run(device, each, a, b, nothing, 1.0, 0.0)) for each in (kernel, other))
    assert never > 5 * often
