"""The densities behind TPE's score, over listed points: how the weights of kernels are chosen and added up."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .space import Space

__all__ = ["Densities", "improvements"]

NEXT = 0.3
"""Share of a number's weight that is handed to the numbers next to it, half to each side."""

SINGLES = 0.3
"""Weight of the densities of single parameters, where the joint density has 1."""

CLIP = math.log(3)
"""Times beyond three times the best count as three times: how slow the slow ones are is of no use."""

LEAST = 1e-3
"""Weight of a good point that improves on nothing, before scaling, so that there is something to divide by."""


def improvements(good: Sequence[float], others: Sequence[float]) -> NDArray[np.float64]:
    """A weight for each good value: how far it is below the best of the others; 1 on average.

    Values are logarithms of times. Beyond three times the best it does not matter how far.
    """
    values = np.array(good)
    limit = min(min(others, default=np.inf), values.min() + CLIP)
    gains = np.maximum(limit - values, 0) + LEAST
    weights: NDArray[np.float64] = gains / gains.mean()
    return weights


class Densities:
    """Adds up kernels at listed points. One column for each choice of each parameter: sums over parameters become
    a matrix product."""

    def __init__(self, space: Space) -> None:
        starts = np.cumsum([0, *(len(d.choices) for d in space.dimensions)])
        self._places = {d.name: slice(*ends) for d, ends in zip(space.dimensions, pairwise(starts))}
        self._spread_of = {d.name: _next(len(d.choices), NEXT if d.ordered else 0.0) for d in space.dimensions}
        self._chosen_in = np.zeros((len(space), starts[-1]), dtype=np.float32)
        for column, start in zip(space.matrix.T, starts):
            self._chosen_in[np.arange(len(space)), start + column] = 1

    def log_density(
        self, rows: NDArray[np.intp], weights: NDArray[Any], kernels: dict[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        """At these rows, the logarithm of the joint density times a power of the densities of the single parameters.

        The first alone knows little away from what was tried, the others alone miss what goes together. A kernel
        has one of the `weights`, and in `kernels`, by parameter, a row with a weight for each choice.
        """
        columns = np.zeros((self._chosen_in.shape[1], len(weights)), dtype=np.float32)
        singles = np.zeros(len(columns), dtype=np.float32)
        for name, choices in kernels.items():
            spread = choices @ self._spread_of[name]
            columns[self._places[name]] = np.log(spread).T
            singles[self._places[name]] = SINGLES * np.log(weights @ spread)
        chosen = self._chosen_in[rows]
        joint = chosen @ columns + np.log(weights).astype(np.float32)
        top = joint.max(axis=1)
        found: NDArray[np.float32] = top + np.log(np.exp(joint - top[:, None]).sum(axis=1)) + chosen @ singles
        return found


def _next(size: int, share: float) -> Any:
    """What hands that share of the weight of each of `size` numbers to its neighbours; each row adds up to 1."""
    matrix = (1 - share) * np.eye(size) + share / 2 * (np.eye(size, k=1) + np.eye(size, k=-1))
    return matrix / matrix.sum(axis=1, keepdims=True)
