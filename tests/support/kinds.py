"""Kinds of data on which the error of a product is measured, and that error."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Pair = tuple[Floats, Floats]


def _normal(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def _uniform(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


def _wide(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    a, b = _normal(rng, m, n, k)
    return tuple(x * np.float32(2) ** rng.integers(-12, 13, x.shape).astype(np.float32) for x in (a, b))  # type: ignore[return-value]


def _graded(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """A falls along k by 2^30, B rises."""
    a, b = _normal(rng, m, n, k)
    powers = np.exp2(-np.linspace(0, 30, k)).astype(np.float32)
    return a * powers, b / powers[:, None]


def _huge(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """One huge element in each row of A."""
    a, b = _normal(rng, m, n, k)
    a[np.arange(m), rng.integers(0, k, m)] *= np.float32(2**20)
    return a, b


def _cancelling(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """The second half of k nearly takes away what the first half adds."""
    a, b = _normal(rng, m, n, k)
    half = k // 2
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half] * (1 + np.float32(2**-20) * rng.standard_normal((half, n), np.float32))
    return a, b


KINDS: dict[str, Callable[[np.random.Generator, int, int, int], Pair]] = {
    "normal": _normal, "uniform": _uniform, "wide": _wide, "graded": _graded, "huge": _huge, "cancelling": _cancelling,
}  # fmt: skip


def errors(a: Any, b: Any, c: Any) -> tuple[float, float, float]:
    """The worst error of c = a b over u |a||b|, over u times the norms of row and column, and the relative error in
    the norm. NaN where c has one."""
    u = 2.0**-24
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = x @ y
    off = abs(c - exact)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=0)[None, :]
    return (
        float((off / (u * (abs(x) @ abs(y)))).max()),
        float((off / (u * norms)).max()),
        float(np.linalg.norm(c - exact) / np.linalg.norm(exact)),
    )
