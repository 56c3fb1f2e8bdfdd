"""Fits: the widths of vectors and the edge that a config's kernel gets for a problem."""

import itertools
import random
from functools import cache

import pytest
from quick import TYPICAL
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.fit import WIDTHS, Fit, FitRule, keeps
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import fitted
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.store.store import Store
from variants import coarse, combinations, dtypes, product_families

pytestmark = pytest.mark.fast

SM_90 = TYPICAL["sm_90a"]
TMA = "simt:32x16x64,load=tma,stages=3,thread=4,slices=2,k_inner_a"
UNALIGNED = "unaligned"
ROWS = (
    # Config, shape, dtype and transposes, then the edge and the widths of A, B and C, or nothing where there is no fit.
    ("naive:8x32", "1024x768x509", "float nn", "exact 1x1x1"),  # a step of k is one element
    ("naive:8x32", "1024x767x512", "float nn", "bounds 1x1x1"),
    ("naive:8x32,edge=bounds", "1024x768x512", "float nn", "bounds 1x1x1"),
    ("naive:8x32,edge=pad", "1024x768x512", "double tt", "pad 1x1x1"),
    ("tiled:16", "1024x768x512", "double nn", "exact 1x1x1"),
    ("tiled:16", "1024x768x509", "float nn", "bounds 1x1x1"),
    ("tiled:16", "0x0x0", "float nn", "exact 1x1x1"),
    ("tiled:16,edge=pad", "1021x767x509", "float nn", "pad 1x1x1"),
    # Vectors have 16 bytes at most and divide stored rows. These have k elements in A and n in B and C, or with
    # transposes m in A and k in B.
    ("simt:64x64x16,load=registers,stages=2", "1024x768x512", "float nn", "exact 4x4x4"),
    ("simt:64x64x16,load=registers,stages=2", "1021x766x508", "float nn", "bounds 4x2x2"),
    ("simt:64x64x16,load=registers,stages=2", "1022x767x508", "float tt", "bounds 2x4x1"),
    ("simt:64x64x16,load=registers,stages=2", "1021x767x509", "float nn", "bounds 1x1x1"),
    ("simt:64x64x16,thread=4,load=registers,stages=2", "1024x768x512", "double nt", "exact 2x2x2"),
    # cp.async transposes an operand whose rows run along k element by element, unless k is innermost in its tiles.
    ("simt:64x64x16", "1024x768x512", "float nn", "exact 1x4x4"),
    ("simt:64x64x16", "1024x768x512", "float tt", "exact 4x1x4"),
    ("simt:64x64x16", "1024x768x512", "float tn", "exact 4x4x4"),
    ("simt:64x64x16,k_inner_a", "1024x768x512", "float nn", "exact 4x4x4"),
    # Packed operands are read in the widest vectors, for any rows and alignment.
    ("simt:64x64x16,pack_a", "1021x767x509", "float nn", "bounds 4x1x1"),
    ("simt:64x64x16,pack_a,pack_b", "1021x766x509", "float nt", "bounds 4x4x2"),
    ("simt:64x64x16,pack_a,pack_b", "1024x768x512", "double nt unaligned", "exact 2x2x1"),
    # A thread stores neighbouring columns that it computes: 5, 10, or 1 where k is innermost in tiles of B.
    ("simt:40x40x16,thread=5,lanes_m=8", "1000x800x512", "float tn", "exact 4x4x1"),
    ("simt:64x40x16,thread=8x10", "1024x800x512", "float tn", "exact 4x4x2"),
    ("simt:64x64x16,k_inner_b", "1024x768x512", "float nt", "exact 1x4x1"),
    # A slice adds up whole vectors of the 8 accumulators of a thread.
    ("simt:16x16x128,thread=2x4,slices=8", "1024x768x512", "float tn", "exact 4x4x1"),
    ("simt:16x16x128,thread=2x4,slices=4", "1024x768x512", "float tn", "exact 4x4x2"),
    ("simt:128x16x32,lanes_m=16,thread=8", "1024x768x512", "float nn", ""),  # 128 elements a thread
    # Copies are in four groups, so that a thread copies its 8 elements of an operand in pairs at most.
    ("simt:32x32x16,thread=4,interleave=4", "1024x768x512", "float tn", "exact 2x4x4"),
    ("simt:32x32x16,thread=4,interleave=4,load=registers,stages=2", "1024x768x512", "float tn", ""),
    # A slice has 2 steps of k of its own to copy.
    ("simt:32x32x16,thread=4,slices=8,slice_barriers", "1024x768x512", "float tn", "exact 2x2x2"),
    ("simt:128x128x8,min_ctas=3", "1024x768x512", "float nn", ""),  # with 64 accumulators 80 registers are too few
    (TMA, "1020x764x516", "float nn", "bounds 4x4x4"),
    (TMA, "1020x766x516", "float nn", ""),  # rows of B are not aligned to 16 bytes
    (TMA, "1020x764x516", "float nn unaligned", "bounds 1x1x1"),
    # Only the large operand is read in vectors, of neighbours along its rows that one thread reads.
    ("skinny:4x4x4", "4x1024x1024", "float nn", "exact 1x4x1"),
    ("skinny:4x4x4", "3x1022x1024", "float nn", "bounds 1x2x1"),
    ("skinny:4x4x4", "4x1024x1024", "double nt", "exact 1x2x1"),
    ("skinny:4x8x2", "4x1024x1024", "float nt", "exact 1x2x1"),
    ("skinny:4x2x4", "4x1024x1024", "float nn", "exact 1x2x1"),
    ("skinny:4x4x4,short=n", "1024x4x1024", "float nn", "exact 4x1x1"),
    ("skinny:4x2x4,short=n", "1024x4x1024", "float tn", "exact 2x1x1"),
    ("skinny:4x4x4,short=n", "1024x4x1024", "float nn unaligned", "exact 1x1x1"),
    ("skinny:32x8x4", "32x1024x1024", "float nn", ""),  # 256 accumulators
    ("dmma:64x64x16", "1024x768x512", "double nn", "exact 2x2x2"),
    ("dmma:64x64x16", "1021x766x509", "double nn", "bounds 1x2x2"),
    ("dmma:64x64x16", "1024x768x512", "double nn unaligned", "exact 1x1x1"),
    ("dmma:16x8x32,warp=16x8,slices=4,fragments=single", "1024x768x512", "double nn", "exact 2x2x1"),
    ("dmma:256x8x32,warp=64x8", "1024x768x512", "double nn", ""),  # 64 elements a thread
    # Copies are in two groups, so that a thread copies its 2 elements one by one.
    ("dmma:64x64x16,warp=16,interleave=2", "1024x768x512", "double nn", "exact 1x2x2"),
    ("dmma:96x64x16,warp=48x32", "1056x768x512", "double nn", "exact 2x2x2"),
    ("dmma:96x64x16,warp=48x32", "1056x768x512", "double tn", ""),  # 128 threads share out rows of 96 elements
    ("dmma:128x192x16,warp=32x64", "1024x768x512", "double nn", ""),  # 64 accumulators for 12 warps
    # A lane stores two neighbours, or as many of its columns as pass through shared memory.
    ("tf32x3:64x64x32", "1024x768x512", "float nn", "exact 4x4x2"),
    ("tf32x3:64x64x32,shared", "1024x768x512", "float nn", "exact 4x4x4"),
    ("tf32x3:64x16x32,warp=32x8,shared", "1024x768x512", "float nn", "exact 4x4x2"),
    ("tf32x3:64x64x32", "1021x766x508", "float nn", "bounds 4x2x2"),
    ("tf32x3:64x64x32", "1024x768x512", "float nn unaligned", "exact 1x1x1"),
    ("tf32x3:64x16x64,warp=16x8,slices=4,fragments=single", "1024x768x512", "float nn", "exact 4x4x1"),
    ("tf32x3:64x64x16,interleave=4", "1024x768x512", "float nn", "exact 2x4x2"),
    ("tf32x3:256x8x64,warp=64x8", "1024x768x512", "float nn", ""),  # 128 elements a thread
    ("tf32x3:96x64x32", "1056x768x512", "float tn", ""),  # 192 threads share out rows of 96 elements
    ("tf32x3:128x128x32,warp=16", "1024x768x512", "float nn", ""),  # 64 warps
    # Products of split terms read terms, and store two neighbours, or `vec_c` of them.
    ("mma:64x64x32,warp=32x32", "1024x768x512", "float nn", "exact 1x1x2"),
    ("mma:64x64x32,warp=32x32", "1021x767x509", "float nn", "bounds 1x1x1"),
    ("mma:128x128x32,warp=64x64,min_ctas=4", "1024x768x512", "float nn", ""),
    ("wgmma:128x128x64", "1024x768x512", "float nn", "exact 1x1x4"),
    ("wgmma:128x128x64", "1024x766x512", "float nn", "bounds 1x1x2"),
    ("wgmma:128x128x64,vec_c=2", "1024x768x512", "float nn", "exact 1x1x2"),
    ("wgmma:128x128x64", "1024x768x512", "float nn unaligned", "exact 1x1x1"),
)  # fmt: skip


def problem_of(shape: str, kind: str) -> Problem:
    dtype, trans = kind.split()[:2]
    return coarse(Problem.parse(shape, dtype, trans))


def text_of(fit: Fit | None) -> str:
    return f"{fit.edge} {fit.vec_a}x{fit.vec_b}x{fit.vec_c}" if fit else ""


@pytest.mark.parametrize(("text", "shape", "kind", "expected"), ROWS)
def test_widths_and_edge_follow_from_config_and_problem(text: str, shape: str, kind: str, expected: str) -> None:
    assert text_of(parse(text).fit(problem_of(shape, kind), UNALIGNED not in kind)) == expected


def outcomes() -> list[tuple[str, list[str]]]:
    """The fit of each row, and the rules that no fit keeps."""
    rows = []
    for text, shape, kind, _ in ROWS:
        config, problem = parse(text), problem_of(shape, kind)
        reasons = [rule.reason for rule in config.fit_rules if not keeps(problem, config, (rule,))]
        rows.append((text_of(config.fit(problem, UNALIGNED not in kind)), reasons))
    return rows


RULES = [(family, rule) for family in product_families().values() for rule in family.fit_rules]


@pytest.mark.parametrize(("family", "rule"), RULES, ids=[f"{kind.family}: {rule.reason[:40]}" for kind, rule in RULES])
def test_every_rule_decides_a_row(monkeypatch: pytest.MonkeyPatch, family: type[Config], rule: FitRule) -> None:
    """Without a rule, the outcome of some row of the table changes."""
    before = outcomes()
    monkeypatch.setattr(family, "fit_rules", tuple(each for each in family.fit_rules if each is not rule))
    assert outcomes() != before


# ---- Any config and any problem -----------------------------------------------------------------------------------


SHAPES = ("1024", "1023x769x511", "1022x766x510", "1020x764x516", "4x1024x1024", "1024x4x1024", "17x1x3")


def sample(family: type[Config]) -> list[tuple[Config, Problem]]:
    """Configs, each with a problem; the same in each run."""
    generator = random.Random(1)
    pairs = []
    for config in itertools.islice(combinations(family, 400), 400):
        dtype, trans = generator.choice(dtypes(family)), generator.choice(("nn", "nt", "tn", "tt"))
        pairs.append((config, coarse(Problem.parse(generator.choice(SHAPES), dtype, trans))))
    return pairs


def is_allowed(config: Config, problem: Problem, fit: Fit, aligned: bool) -> bool:
    """Whether each operand is moved by single elements, or by vectors that the kernel can have and that lie aligned."""
    m, n, k = problem.m, problem.n, problem.k
    rows = (m if problem.trans_a else k, k if problem.trans_b else n, n)
    large = "a" if config.typed.get("short") == "n" else "b"
    moved = {"naive": "", "tiled": "", "skinny": large, "mma": "c", "wgmma": "c"}.get(config.family, "abc")
    most = 2 if config.family == "mma" else config.typed.get("vec_c", 4)
    for operand, row, vec, packed in zip("abc", rows, (fit.vec_a, fit.vec_b, fit.vec_c), (*config.packs, False)):
        usable = operand in moved and vec * problem.dtype.size_bytes <= 16 and vec <= most
        divides = packed or (row % vec == 0 and aligned)
        if vec > 1 and not (usable and divides):
            return False
    return True


@cache
def all_widths() -> tuple[tuple[int, int, int], ...]:
    return tuple(itertools.product(WIDTHS, WIDTHS, WIDTHS))


@pytest.mark.parametrize("family", product_families().values(), ids=product_families())
def test_a_fit_has_the_widest_vectors_that_keep_the_rules(family: type[Config]) -> None:
    fits = 0
    for (config, problem), aligned in itertools.product(sample(family), (True, False)):
        fit, instance = config.fit(problem, aligned), config if aligned else config.unaligned
        candidates = [Fit(instance, instance.edge_of(problem), *widths) for widths in all_widths()]
        legal = [
            each
            for each in candidates
            if is_allowed(instance, problem, each, aligned)
            and all(rule.holds(problem, instance, each) for rule in instance.fit_rules)
        ]
        assert (fit is None) == (not legal), (config, problem, aligned)
        assert not aligned or keeps(problem, config, config.fit_rules) == bool(legal), (config, problem)
        if fit:
            fits += 1
            assert fit in legal, (config, problem, aligned)
            assert elements(fit) == max(map(elements, legal)), (config, problem, aligned)
    assert fits > 20


def elements(fit: Fit) -> int:
    return fit.vec_a * fit.vec_b * fit.vec_c


@pytest.mark.parametrize("family", product_families().values(), ids=product_families())
def test_tiles_divide_the_sizes_of_exact_instances_and_of_no_others(family: type[Config]) -> None:
    for config, problem in sample(family):
        policy = config.typed.get("edge", "fit")
        if (fit := config.fit(problem)) and policy != "pad":
            divide = all(size % tile == 0 for size, tile in zip((problem.m, problem.n, problem.k), config.multiples))
            assert (fit.edge is Edge.EXACT) == (divide and policy == "fit"), (config, problem)
            assert fit.multiples == (config.multiples if fit.edge is Edge.EXACT else (1, 1, 1))


# ---- Shipped records, and instances for operands that are not aligned ---------------------------------------------


def test_every_shipped_record_has_both_instances() -> None:
    for record in Store().both()[1]:
        problem, config = record.problem, record.config
        fit, unaligned = (fitted(problem, config, SM_90, aligned) for aligned in (True, False))
        m, n, k = problem.m, problem.n, problem.k
        rows = (m if problem.trans_a else k, k if problem.trans_b else n, n)
        assert all(row % each == 0 for row, each in zip(rows, fit.alignment)), record
        assert unaligned.alignment == (1, 1, 1), record
        assert unaligned.edge is fit.edge, record
        assert unaligned.config.cta_tile[:2] == config.cta_tile[:2], record


def test_packed_operands_keep_wide_vectors_where_nothing_is_aligned() -> None:
    for dtype, wide in ((DType.FLOAT, 4), (DType.DOUBLE, 2)):
        fit = fitted(Problem.parse("1024", dtype), parse("simt:64x64x16,pack_a,pack_b"), SM_90, aligned=False)
        assert (fit.vec_a, fit.vec_b, fit.vec_c) == (wide, wide, 1)
        assert fit.alignment == (1, 1, 1)
        assert fit.has_memory


def test_an_unaligned_instance_of_tma_copies_by_cp_async_and_has_tiles_that_this_can_fill() -> None:
    for depth, unaligned in ((64, 64), (256, 128)):
        config = parse(f"simt:32x16x{depth},load=tma,stages=3,thread=4,slices=8,k_inner_a")
        fit = config.fit(Problem.parse("1024"), aligned=False)
        assert fit
        assert str(fit.config) == f"simt:32x16x{unaligned},thread=4,slices=8,k_inner_a"


def test_a_config_without_a_fit_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"cannot serve .*; required: TMA copies rows that are aligned to 16 bytes$"):
        fitted(Problem.parse("1020x766x516"), parse(TMA), SM_90)
    with pytest.raises(ConfigError, match=r"cannot serve .*; required: registers of 3 CTAs fit on an SM$"):
        fitted(Problem.parse("1024"), parse("simt:128x128x8,min_ctas=3"), SM_90, aligned=False)


@pytest.mark.parametrize(("text", "has_memory"), [
    ("naive:8x32", False), ("naive:8x32,edge=pad", True), ("simt:64x64x16,split_k=2", True),
    ("simt:64x64x16,split_k=2,reduce=cluster", False), ("simt:64x64x16,stream_k=1", True),
    ("simt:64x64x16,pack_b", True), ("mma:64x64x32,warp=32x32", True), ("dmma:persistent=4", False),
])  # fmt: skip
def test_instances_that_need_memory_of_their_own(text: str, has_memory: bool) -> None:
    config = parse(text)
    problem = coarse(Problem.parse("1024", dtypes(type(config))[-1]))
    assert fitted(problem, config, SM_90).has_memory == has_memory
