"""Operands that are split first: each float into a sum of terms of half the bits, which the tensor cores multiply."""

import enum
from typing import Any, ClassVar

from ..config import Config
from ..fit import Fit
from ..legality import Rule
from ..problem import DType, Grade, Problem
from ..source import TERM_HELD, TERM_ROWS, TERM_THREADS
from .operands import widest

MMA_K = 16
"""Steps of k of one instruction."""


class Scheme(enum.StrEnum):
    """The terms into which A and B are split, and the products of terms that count."""

    FP16X3 = "fp16x3"
    """Two halves for each element, three products: all but the one of the low terms."""
    BF16X6 = "bf16x6"
    """Three bfloat16s for each element, six products: those of at least 2^-16 of the largest."""

    @property
    def terms(self) -> int:
        """Terms of an element."""
        return 2 if self is Scheme.FP16X3 else 3

    @property
    def products(self) -> int:
        """Products of terms for one product of elements."""
        return self.terms * (self.terms + 1) // 2

    @property
    def accuracy(self) -> Grade:
        """The finest accuracy that it keeps where its sums are promoted often enough."""
        return Grade.NORMWISE if self is Scheme.FP16X3 else Grade.ELEMENTWISE


def term_sizes(config: Any, problem: Problem) -> tuple[int, int, int]:
    """m, n and k rounded up to whole tiles: what the terms cover, zero past the matrix."""
    sizes = problem.m, problem.n, problem.k
    multiples = (*config.cta_tile[:2], config.term_k)
    m, n, k = (-(-size // each) * each for size, each in zip(sizes, multiples))
    return m, n, k


def term_bytes(config: Any, problem: Problem) -> int:
    """Device memory of the terms of A, those of B, and an exponent of 4 bytes for each row and column."""
    m, n, k = term_sizes(config, problem)
    return (m + n) * (2 * int(config.terms) * k + 4)


def term_ctas(config: Any, problem: Problem) -> int:
    """CTAs of the kernel that splits: those of op(A) and those of op(B)."""
    m, n, depth = term_sizes(config, problem)
    along = not problem.trans_a, problem.trans_b
    parts = 1 if all(along) else int(config.term_ctas)
    return sum(_ctas(rows, depth, each, parts) for rows, each in zip((m, n), along))


def _ctas(rows: int, depth: int, along: bool, parts: int) -> int:
    """CTAs that split `rows` rows of op(A) or columns of op(B), stored along k or across it. Some warps share k: warps
    of a CTA for an operand stored along k, else warps of a cluster."""
    warps = TERM_THREADS // 32 * (1 if along else parts)
    steps = TERM_HELD if along else TERM_HELD // TERM_ROWS
    sharing = 1
    while sharing < warps and sharing * steps < depth:
        sharing *= 2
    at_once = warps // sharing * (1 if along else TERM_ROWS)
    return -(-rows // (at_once * parts)) * parts if along else -(-rows // at_once) * parts


PROMISE_RULES: tuple[Rule[Any], ...] = (
    Rule("floats are split into terms", lambda problem, config, target: problem.dtype is DType.FLOAT),
    Rule(
        "accuracy is no finer than the config's, {c.accuracy}",
        lambda problem, config, target: config.accuracy.keeps(problem.accuracy),
    ),
    Rule(
        "where each element is promised, k is at least {c.least_k}",
        lambda problem, config, target: problem.accuracy is Grade.NORMWISE or problem.k >= config.least_k,
    ),
)
"""The rules on the accuracy that products of terms promise."""
TERM_RULES: tuple[Rule[Any], ...] = (
    *PROMISE_RULES,
    Rule(
        "of block_k {c.tile.block_k} and the promotion interval {c.pipeline.promote} one divides the other",
        lambda problem, config, target: (
            max(config.tile.block_k, config.pipeline.promote) % min(config.tile.block_k, config.pipeline.promote) == 0
        ),
    ),
)
"""The rules for a family of products of terms."""


class TermConfig(Config):
    """A config of a family that multiplies terms."""

    __slots__ = ()

    tensor_cores = True
    pdl = True
    least_intervals: ClassVar[int]
    """Least promotion intervals of k with which each element keeps its bound: docs/experiments/errors.md derives it."""

    tile: Any
    pipeline: Any
    epilogue: Any

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        return {"kVecC": fit.vec_c, "kGuarded": fit.guarded}

    @property
    def accuracy(self) -> Grade:
        accuracy: Grade = self.pipeline.scheme.accuracy
        return accuracy

    @property
    def terms(self) -> int:
        return int(self.pipeline.scheme.terms)

    @property
    def term_format(self) -> str:
        return str(self.pipeline.scheme)

    @property
    def least_k(self) -> int:
        """Fewest steps of k multiplied as terms. Fewer are multiplied as `ieee` does, so elements keep their bound."""
        return self.least_intervals * int(self.pipeline.promote) if self.accuracy is Grade.ELEMENTWISE else 0

    @property
    def products(self) -> int:
        return int(self.pipeline.scheme.products)

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        return self.tile.block_m, self.tile.block_n, self.tile.block_k

    @property
    def most_stored(self) -> int:
        """Elements of C that one store moves at most."""
        raise NotImplementedError

    def widest_vectors(self, problem: Problem, aligned: bool) -> tuple[int, int, int]:
        return 1, 1, min(self.most_stored, widest(problem, "c")) if aligned else 1
