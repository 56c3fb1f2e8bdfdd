"""Tree-structured Parzen estimator (TPE) over listed points, in NumPy.

A point is promising where the good outcomes are dense and the others are not. Each outcome is a kernel: a weight for
each choice of each parameter, most of it at the choice that was tried. Optuna draws its candidates from the box of all
choices, most of which break a constraint; here the unseen points themselves are scored.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .gaussian import GaussianSampler
from .sampler import ListedSampler, Outcomes
from .space import Space

FIRST = 15
"""Points spread over the space before the densities are asked."""

GOOD, GOOD_AT_MOST = 0.25, 25
"""Share of the outcomes that count as good, and how many at most."""

RECENT = 25
"""So many of the other outcomes weigh 1, older ones less: what was tried last is what the good are compared with."""

NEXT = 0.3
"""Share of a number's weight that is handed to the numbers next to it, half to each side."""

SINGLES = 0.3
"""Weight of the densities of single parameters, where the joint density has 1."""

CLIP = math.log(3)
"""Times beyond three times the best count as three times: how slow the slow ones are is of no use."""

LEAST = 1e-3
"""Weight of a good point that improves on nothing, before scaling, so that there is something to divide by."""

SCORED = 4096
"""Points to score at a time, at most: a random choice of the unseen ones where there are more."""

HELPED = 4
"""One in so many suggestions is a Gaussian process's, twice as often for each STALE outcomes without a new best: TPE
alone may stay on a hill that is not the highest."""

STALE = 12
"""Outcomes without a new best after which the steps around the best grow."""


def improvements(good: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight for each good value: how far it is below the best of the others; 1 on average.

    Values are logarithms of times. Beyond three times the best it does not matter how far.
    """
    limit = min(others.min(initial=math.inf), good.min() + CLIP)
    gains = np.maximum(limit - good, 0) + LEAST
    weights: NDArray[np.float64] = gains / gains.mean()
    return weights


class Densities:
    """Adds up kernels at listed points. One column for each choice of each parameter: sums over parameters become
    a matrix product."""

    def __init__(self, space: Space) -> None:
        sizes = [len(d.choices) for d in space.dimensions]
        starts = np.cumsum([0, *sizes])
        self._size = np.repeat(sizes, sizes)
        self._next = np.zeros((starts[-1], starts[-1]))
        for dimension, start, end in zip(space.dimensions, starts[:-1], starts[1:], strict=True):
            share = NEXT if dimension.ordered else 0.0
            size = len(dimension.choices)
            block = (1 - share) * np.eye(size) + share / 2 * (np.eye(size, k=1) + np.eye(size, k=-1))
            self._next[start:end, start:end] = block / block.sum(axis=1, keepdims=True)
        self._chosen = np.zeros((len(space), starts[-1]), dtype=np.float32)
        for column, start in zip(space.matrix.T, starts[:-1], strict=True):
            self._chosen[np.arange(len(space)), start + column] = 1

    def log_density(
        self, asked: NDArray[np.intp], rows: NDArray[np.intp], weights: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """At the asked points, the logarithm of the joint density times a power of the densities of the single
        parameters: the first alone knows little away from what was tried, the others alone miss what goes together.

        Kernels stand at `rows` with these weights, and one of weight 1 is the same everywhere.
        """
        weights = np.append(weights, 1.0)
        weights /= weights.sum()
        everywhere = 1 / len(weights)
        kernels = (self._chosen[rows] + everywhere) / (1 + everywhere * self._size)
        kernels = np.vstack([kernels, 1 / self._size]) @ self._next
        chosen = self._chosen[asked]
        joint = chosen @ np.log(kernels).T.astype(np.float32) + np.log(weights).astype(np.float32)
        top = joint.max(axis=1)
        singles = (SINGLES * np.log(weights @ kernels)).astype(np.float32)
        found: NDArray[np.float32] = top + np.log(np.exp(joint - top[:, None]).sum(axis=1)) + chosen @ singles
        return found

    def score(
        self, asked: NDArray[np.intp], rows: NDArray[np.intp], values: NDArray[np.float64], pending: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """How promising the asked points are, after these values at `rows`. Pending points are taken for no good."""
        order = np.argsort(values, kind="stable")
        count = min(math.ceil(GOOD * len(order)), GOOD_AT_MOST)
        good, others = np.sort(order[:count]), np.sort(order[count:])
        known = np.concatenate([rows[others], pending])
        ages = np.ones(len(known))
        old = max(0, len(known) - RECENT)
        ages[:old] = np.linspace(1 / max(1, len(known)), 1, old)
        below = self.log_density(asked, rows[good], improvements(values[good], values[others]))
        return below - self.log_density(asked, known, ages)


class ParzenSampler(ListedSampler):
    """TPE whose good points count by how much they improve, helped by a Gaussian process."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self._densities = Densities(space)
        self._process = GaussianSampler(space, seed)
        self._turns = self._steps = 0

    def choose(self, outcomes: Outcomes) -> int:
        self._turns += 1
        values = outcomes.values
        worked = np.isfinite(values)
        if len(outcomes) < FIRST or not worked.any():
            return self.farthest(outcomes)
        stale = len(values) - 1 - int(np.argmin(values))
        if self._turns % max(1, HELPED >> stale // STALE) == 0:
            return self._process.choose(outcomes)
        # A failure is as bad as the worst time seen: the model turns away without being bent by an outlier.
        rows, values = outcomes.rows, np.where(worked, values, values[worked].max())
        best = int(rows[np.argmin(values)])
        self._steps += 1
        allowed = outcomes.unseen
        if self._steps % 2 == 0:
            # Tile shapes are good in pairs (a wider tile with more threads), so a step changes up to two.
            near = self.space.around(self.space.points[best], 2, 1 if stale < STALE else None)
            allowed = near & outcomes.unseen
        asked = np.flatnonzero(allowed if allowed.any() else outcomes.unseen)
        if asked.size > SCORED:
            asked = self.random.choice(asked, SCORED, replace=False)
        return int(asked[np.argmax(self._densities.score(asked, rows, values, outcomes.pending))])
