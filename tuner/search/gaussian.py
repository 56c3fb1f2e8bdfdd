"""A Gaussian process over listed points, in NumPy, fast enough for a suggestion between two measurements.

Optuna's process searches a box of parameters for the best score, with torch. Here the points are listed and few
outcomes are known, so that scoring some thousands of points is a matrix product.
"""

import math
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .outcomes import Outcomes
from .sampler import ListedChooser, ListedSampler
from .space import Mask, Point, Space

Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.intp]
T = TypeVar("T", np.float32, np.float64)

LENGTH, LENGTH_SPREAD = -0.25, 0.5
"""Mean and standard deviation of the prior of a length scale's logarithm, where a length of 1 is a parameter's whole
range. The prior is narrow: some dozens of outcomes cannot tell the lengths of a dozen parameters apart."""

NOISE, NOISE_SPREAD = math.log(1e-2), 1.0
"""Mean and standard deviation of the prior of the noise's logarithm, as a share of the variance of all values."""

POWER = 2
"""Power of the share of the best speed, which the model sees in place of a time: 1 for the best variant, 0 for a
failure. A model of how slow the slow variants are could not tell the fast ones apart."""

FIRST = 8
"""Points, spread over the space, that are tried before the model chooses."""

BOLD = 3.0
"""Standard deviations between the mean and the bound of a point. The model is too sure of itself: with fewer the search
stays at the first local optimum."""

SCORED = 500_000
"""Most pairs of an outcome and a scored point: all points are scored while outcomes are few, a random choice later."""

FEW = 25
"""Outcomes below which the largest number of scored points is constant, for the sake of huge spaces."""

BLOCK = 1024
"""Points whose covariances are computed at once: they stay in the processor's cache, which halves the time."""

REMEMBERED = 256
"""Most outcomes in the model, whose cost grows with their cube: half of them are the best, the others are drawn at
random."""

STEPS = 10
"""Steps of a fit; the first fit takes three times as many."""


class GaussianProcess:
    """Gaussian process with a Matern-5/2 kernel, whose length scale of each parameter is fitted to the outcomes."""

    def __init__(self, space: Space) -> None:
        columns, of = [], []
        for place, dimension in enumerate(space.dimensions):
            column = space.matrix[:, place]
            if (column == column[0]).all():
                continue
            if dimension.ordered:
                columns.append(column / (len(dimension.choices) - 1))
                of.append(place)
            else:  # any two words are 1 apart
                columns += [(column == word) * math.sqrt(0.5) for word in range(len(dimension.choices))]
                of += [place] * len(dimension.choices)
        self._features = np.stack(columns, axis=1).astype(np.float64) if columns else np.zeros((len(space), 1))
        self._of = np.unique(of, return_inverse=True)[1] if of else np.zeros(1, dtype=np.intp)
        count = int(self._of.max()) + 1
        self._prior = np.array([LENGTH] * count + [0.0, NOISE])
        self._spread = np.array([LENGTH_SPREAD] * count + [1.0, NOISE_SPREAD])
        self._parameters = self._prior.copy()

    def fit(self, rows: Rows, values: Floats, steps: int) -> None:
        """Move the parameters towards the maximum of the posterior, from where the last fit ended.

        Each step goes by the signs of the gradient (Rprop), without a line search.
        """
        features = self._features[rows]
        gaps = np.zeros((self._prior.size - 2, rows.size, rows.size))
        for place, column in zip(self._of, features.T, strict=True):
            gaps[place] += (column[:, None] - column) ** 2
        flat = gaps.reshape(len(gaps), -1)
        rate, before = np.full(self._prior.size, 0.3), np.zeros(self._prior.size)
        for _ in range(steps):
            gradient = self._gradient(flat, values)
            turned = gradient * before < 0
            rate = np.clip(np.where(turned, 0.5 * rate, np.where(before == 0, rate, 1.3 * rate)), 1e-3, 1.0)
            before = np.where(turned, 0.0, gradient)
            step = self._parameters - rate * np.sign(before)
            self._parameters = np.clip(step, self._prior - 4 * self._spread, self._prior + 4 * self._spread)

    def predict(self, rows: Rows, values: Floats, pending: Rows, targets: Rows) -> tuple[Singles, Singles]:
        """Mean and standard deviation at the target rows, as vectors, from the values at `rows`.

        Pending rows count as measured at their means: the mean stays, and the deviation around them falls.
        """
        measured = self._scaled(np.concatenate([rows, pending]))
        inner = self._kernel(measured, measured) + math.exp(self._parameters[-1]) * np.eye(len(measured))
        # Single precision is enough for a choice, and the loop takes most of the time.
        single = np.float32
        weights = np.linalg.solve(inner[: rows.size, : rows.size], values).astype(single)
        # The root of the inverse, not the inverse, whose large entries would cancel.
        root = np.linalg.inv(np.linalg.cholesky(inner)).astype(single)
        mean: Singles = np.empty(targets.size, dtype=single)
        variance: Singles = np.full(targets.size, math.exp(self._parameters[-2]), dtype=single)
        for start in range(0, targets.size, BLOCK):
            part = slice(start, start + BLOCK)
            outer = self._kernel(self._scaled(targets[part]).astype(single), measured.astype(single))
            mean[part] = outer[:, : rows.size] @ weights
            variance[part] -= ((outer @ root.T) ** 2).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def _scaled(self, rows: Rows) -> Floats:
        scaled: Floats = self._features[rows] * np.exp(-self._parameters[:-2])[self._of]
        return scaled

    def _kernel(self, left: NDArray[T], right: NDArray[T]) -> NDArray[T]:
        # In place, because a new array costs more than a sum.
        with np.errstate(all="ignore"):  # a BLAS may raise flags for lanes of its registers that hold no element
            squares = left @ (-2 * right.T)
        squares += (left**2).sum(axis=1)[:, None]
        squares += (right**2).sum(axis=1)
        r = np.sqrt(5 * np.maximum(squares, 0))
        value: NDArray[T] = math.exp(self._parameters[-2]) * (1 + r * (1 + r / 3)) * np.exp(-r)
        return value

    def _gradient(self, gaps: Floats, values: Floats) -> Floats:
        """Gradient of the negative logarithm of likelihood times prior."""
        shrink = np.exp(-2 * self._parameters[:-2])
        amplitude, noise = np.exp(self._parameters[-2:])
        r = np.sqrt(5 * (shrink @ gaps).reshape(values.size, values.size))
        decay = np.exp(-r)
        kernel = amplitude * (1 + r + r * r / 3) * decay
        inverse = np.linalg.inv(kernel + noise * np.eye(values.size))
        weights = inverse @ values
        slope = 0.5 * (inverse - np.outer(weights, weights))
        lengths = gaps @ (slope * amplitude * (5 / 3) * (1 + r) * decay).ravel() * shrink
        gradient = np.concatenate([lengths, [(slope * kernel).sum(), np.trace(slope) * noise]])
        gradient += (self._parameters - self._prior) / self._spread**2
        return gradient


class GaussianSampler(ListedSampler):
    """Chooses the unseen point with the lowest bound, every other time among the neighbours of the best point."""

    def chooser(self) -> ListedChooser:
        return _LowestBound(self)


class _LowestBound(ListedChooser):
    """The process of one study."""

    def __init__(self, sampler: ListedSampler) -> None:
        super().__init__(sampler)
        self._process = GaussianProcess(self.space)
        self._fitted = 0
        self._steps = 0

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        random, index = self.sampler.random, self.space.index
        rows = np.array([index(point) for point, _ in outcomes.finished], dtype=np.intp)
        pending = np.array([index(point) for point in outcomes.pending], dtype=np.intp)
        times = np.array([value for _, value in outcomes.finished])
        count = len(rows)
        if not np.isfinite(times).any() or len(outcomes) < FIRST:
            return self._farthest(unseen)
        best = int(rows[np.argmin(times)])
        values = -np.exp(POWER * (times.min() - times))
        if count > REMEMBERED:
            order = np.argsort(values, kind="stable")
            others = random.choice(order[REMEMBERED // 2 :], REMEMBERED // 2, replace=False)
            remembered = np.concatenate([order[: REMEMBERED // 2], others])
            rows, values = rows[remembered], values[remembered]
        values = (values - values.mean()) / max(float(values.std()), 1e-9)
        if count - self._fitted >= max(2, count // 16):  # one outcome changes little among many
            self._process.fit(rows, values, STEPS if self._fitted else 3 * STEPS)
            self._fitted = count
        targets = self._targets(best, unseen, count)
        mean, deviation = self._process.predict(rows, values, pending, targets)
        return int(targets[np.argmin(mean - BOLD * deviation)])

    def _targets(self, best: int, unseen: Mask, count: int) -> Rows:
        """Rows of the points to score. Tile shapes are good in pairs, so neighbours differ in up to two dimensions."""
        self._steps += 1
        near = self.space.around(self.space.points[best], 2) & unseen
        rows = np.flatnonzero(near if self._steps % 2 == 0 and near.any() else unseen)
        most = SCORED // min(max(count, FEW), REMEMBERED)
        return self.sampler.random.choice(rows, most, replace=False) if rows.size > most else rows

    def _farthest(self, unseen: Mask) -> int:
        """Among random unseen rows, the one that is farthest from the seen rows."""
        rows = self.sampler.random.permutation(np.flatnonzero(unseen))[:256]
        seen = np.flatnonzero(~unseen)[:256]
        if not seen.size:
            return int(rows[0])
        gaps = np.stack([self.space.distances(self.space.points[int(row)], rows) for row in seen])
        return int(rows[np.argmax(gaps.min(axis=0))])
