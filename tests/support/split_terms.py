"""Operands that kernels of terms multiply exactly, though every term and every power of two counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.problem import Problem

Floats = NDArray[np.float32]
RANGES = ((2**17, 1), (1, 2**17), (2**9, 2**9))
"""Largest whole numbers of A and of B: three terms of the one, of the other, or two of both. Sums stay below 2^24 for k
up to 60, and are exact."""


def scaled_integers(problem: Problem, which: int, seed: int = 1) -> tuple[Floats, Floats, Floats, NDArray[np.float64]]:
    """A, B as stored and C, and the exact op(A) op(B): whole numbers, row by row of op(A) and column by column of op(B)
    times powers of two of their own. Only the first 60 steps of k and the last are not 0."""
    rng = np.random.default_rng(seed)
    most_a, most_b = RANGES[which % len(RANGES)]
    m, n, k = problem.m, problem.n, problem.k
    a = rng.integers(-most_a, most_a + 1, (m, k)).astype(np.float64)
    b = rng.integers(-most_b, most_b + 1, (k, n)).astype(np.float64)
    zero = slice(59, max(59, k - 1))
    a[:, zero] = 0
    rows, cols = 2.0 ** rng.integers(-30, 31, (m, 1)), 2.0 ** rng.integers(-20, 21, (1, n))
    c = rng.integers(-9, 10, (m, n)) * rows * cols
    wide = (a @ b) * rows * cols
    a, b = a * rows, b * cols
    stored: tuple[Any, ...] = (a.T if problem.trans_a else a), (b.T if problem.trans_b else b), c
    one, other, third = (np.ascontiguousarray(each, np.float32) for each in stored)
    return one, other, third, wide


def with_infinity(problem: Problem, seed: int = 1) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """The operands with infinity in a row of op(A) and a NaN in a column of op(B), and what IEEE arithmetic gives."""
    a, b, _, _ = scaled_integers(problem, 1, seed)
    op_a, op_b = (a.T if problem.trans_a else a), (b.T if problem.trans_b else b)
    op_a[problem.m // 2, problem.k - 1] = np.inf
    op_b[0, problem.n // 3] = np.nan
    with np.errstate(invalid="ignore"):
        return a, b, op_a.astype(np.float64) @ op_b.astype(np.float64)
