"""Six kinds of data for measuring the error of a float product, and that error: docs/experiments/errors.md."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Pair = tuple[Floats, Floats]
_U = 2.0**-24  # unit roundoff of float
_LEAST = 2.0**-125  # u times this is the smallest subnormal, an error that no result is free of


def _normal(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def _uniform(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


def _wide(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    a, b = _normal(rng, m, n, k)
    return tuple(x * np.float32(2) ** rng.integers(-12, 13, x.shape).astype(np.float32) for x in (a, b))  # type: ignore[return-value]


def _graded(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Elements of A fall along k by a factor of 2^30, and those of B rise by it."""
    a, b = _normal(rng, m, n, k)
    powers = np.exp2(-np.linspace(0, 30, k)).astype(np.float32)
    return a * powers, b / powers[:, None]


def _huge(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """One huge element in each row of A."""
    a, b = _normal(rng, m, n, k)
    a[np.arange(m), rng.integers(0, k, m)] *= np.float32(2**20)
    return a, b


def _cancelling(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Products of the second half of k cancel those of the first half to within 2^-20."""
    a, b = _normal(rng, m, n, k)
    half = k // 2
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half] * (1 + np.float32(2**-20) * rng.standard_normal((half, n), np.float32))
    return a, b


KINDS: dict[str, Callable[[np.random.Generator, int, int, int], Pair]] = {
    "normal": _normal, "uniform": _uniform, "wide": _wide, "graded": _graded, "huge": _huge, "cancelling": _cancelling,
}  # fmt: skip
"""Functions that draw op(A), m x k, and op(B), k x n, in float, by the name of the kind."""


class Exact:
    """The product of two float matrices in double, and the scales of its errors.

    The matrices belong to NumPy or a library like it; a is m x k, b is k x n.
    """

    def __init__(self, a: Any, b: Any) -> None:
        x, y = a.astype("float64"), b.astype("float64")
        self.product = x @ y
        """m x n."""
        self._magnitudes = abs(x) @ abs(y) + _LEAST
        self._norms = ((x * x).sum(axis=1) ** 0.5)[:, None] * ((y * y).sum(axis=0) ** 0.5)[None, :] + _LEAST

    def errors(self, c: Any) -> tuple[float, float]:
        """Largest errors of c, over u |a||b| and over u times the norms of an element's row of a and column of b, where
        u = 2^-24. Both are NaN if c has a NaN. c is m x n, or the first rows and columns of the product."""
        part = tuple(map(slice, c.shape))
        off = abs(c.astype("float64") - self.product[part]) / _U
        return float((off / self._magnitudes[part]).max()), float((off / self._norms[part]).max())
