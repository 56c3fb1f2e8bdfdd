"""Calls as LAPACK's level-3 BLAS testers make them: everything column by column, small sizes, all factors."""

import itertools
from typing import Any

import numpy as np
import pytest
import tilewright
from numpy.typing import NDArray
from tilewright.codegen.problem import DType

SIZES = (0, 1, 2, 3, 5, 9)
"""Values of M, N and K of the testers' standard input."""
ALPHAS, BETAS = (0.0, 1.0, 0.7), (0.0, 1.0, 1.3)
ROGUE = -1e10
"""The testers' value for elements that belong to no matrix."""
THRESHOLD = 16.0
"""Largest ratio of the error to its bound that passes."""


def stored(rows: int, cols: int, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """A column-major array with one row more than its matrix, whose leading dimension is rows + 1."""
    memory = np.full((cols, rows + 1), ROGUE, dtype)
    memory[:, :rows] = rng.uniform(-0.5, 0.5, (cols, rows))
    return memory.T


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
def test_gemm_passes_the_tester(dtype: DType, trans: str) -> None:
    rng, name = np.random.default_rng(7), dtype.numpy_name
    for m, n, k in itertools.product(SIZES, repeat=3):
        a = stored(*((k, m) if trans[0] == "t" else (m, k)), name, rng)
        b = stored(*((n, k) if trans[1] == "t" else (k, n)), name, rng)
        c = stored(m, n, name, rng)
        inner_a, inner_b = a[:-1].T if trans[0] == "t" else a[:-1], b[:-1].T if trans[1] == "t" else b[:-1]
        wide_a, wide_b = inner_a.astype("longdouble"), inner_b.astype("longdouble")
        for alpha, beta in itertools.product(ALPHAS, BETAS):
            result = c.copy(order="F")
            out = result[:-1]
            assert tilewright.matmul(inner_a, inner_b, out=out, alpha=alpha, beta=beta, device="host") is out
            exact = alpha * (wide_a @ wide_b) + beta * c[:-1]
            bound = abs(alpha) * (abs(wide_a) @ abs(wide_b)) + abs(beta) * abs(c[:-1])
            assert (abs(out - exact) <= THRESHOLD * 2 * dtype.unit_roundoff * bound).all(), (m, n, k, alpha, beta)
            assert (result[-1] == ROGUE).all()
