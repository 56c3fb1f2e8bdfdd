"""A Gaussian process over listed points, quick enough to be asked between two measurements. NumPy alone.

Optuna's process searches a box of parameters for the best score, with torch. Here the points are listed and few of
them are told, so that scoring some thousands at a time is a matrix product.
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
"""Prior of the logarithm of a length scale, where a length of 1 is a parameter's whole range. It is narrow:
some dozens of outcomes cannot tell the lengths of a dozen parameters, and lengths that follow them mislead."""

NOISE, NOISE_SPREAD = math.log(1e-2), 1.0
"""Prior of the logarithm of the noise, as a share of the variance of the values told."""

POWER = 2
"""The model sees the share of the best's speed to this power: 1 for the best, little for the slow ones. How slow they
are is of no use, and a model that follows them has nothing left to tell the fast ones apart with. A failure is 0."""

FIRST = 8
"""Points spread over the space before the model is asked."""

BOLD = 3.0
"""The bound of a point is its mean less so many standard deviations. The model is too sure of itself, and fewer keep
the search on the first hill that it climbs."""

SCORED = 500_000
"""Pairs of an outcome and a point to score, at most: all points while outcomes are few, a random choice of them later.
The bound is for the most promising point of all; the lowest of some thousands is often another."""

FEW = 25
"""The points to score grow no more in number below so many outcomes, for the sake of huge spaces."""

BLOCK = 1024
"""Points whose covariances are computed in one go: these stay in the processor's cache, which halves the time."""

REMEMBERED = 256
"""Outcomes in the model, at most, because its cost grows with their cube: the best half of these and any others."""

AT_ONCE = 4
"""Suggestions from one look at the model once it holds all that it can: a look takes as long as a GPU needs for a
variant then, and one outcome more changes little."""

STEPS = 10
"""Steps of a fit; the first takes three times as many."""


class GaussianProcess:
    """Matern-5/2 with a length scale for each parameter, all of them fitted to what was told."""

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
        """Move the parameters towards what the values make likely, starting from where the last fit ended.

        Each step goes by signs of the gradient (Rprop): no line search, and no step is wasted on scale.
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

    def predict(self, rows: Rows, values: Floats, pending: Rows, asked: Rows) -> tuple[Singles, Singles, Singles]:
        """Mean and standard deviation at the asked rows; what is pending is taken to come out as expected.

        That leaves the mean as it is and lowers the deviation around the pending points. Last a vector for each asked
        row: products of them are what is known of the rows' covariances.
        """
        known = self._scaled(np.concatenate([rows, pending]))
        inner = self._kernel(known, known) + math.exp(self._parameters[-1]) * np.eye(len(known))
        # Single precision is enough for a choice, and this is where the time goes.
        single = np.float32
        told = rows.size
        weights = np.linalg.solve(inner[:told, :told], values).astype(single)
        # The root of the inverse, not the inverse, whose large entries would cancel.
        root = np.linalg.inv(np.linalg.cholesky(inner)).astype(single)
        mean: Singles = np.empty(asked.size, dtype=single)
        vectors: Singles = np.empty((asked.size, len(known)), dtype=single)
        for start in range(0, asked.size, BLOCK):
            part = slice(start, start + BLOCK)
            outer = self._kernel(self._scaled(asked[part]).astype(single), known.astype(single))
            mean[part] = outer[:, :told] @ weights
            vectors[part] = outer @ root.T
        variance: Singles = math.exp(self._parameters[-2]) - (vectors**2).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 1e-12)), vectors

    def narrow(self, asked: Rows, deviation: Singles, vectors: Singles, place: int) -> Singles:
        """The deviations once the asked row at `place` is pending too."""
        prior = self._kernel(self._scaled(asked), self._scaled(asked[[place]]))[:, 0]
        shared = prior - vectors @ vectors[place]
        told = shared**2 / (deviation[place] ** 2 + math.exp(self._parameters[-1]))
        left: Singles = np.sqrt(np.maximum(deviation**2 - told, 1e-12)).astype(np.float32)
        return left

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
        """Of the negative logarithm of likelihood times prior."""
        shrink = np.exp(-2 * self._parameters[:-2])
        amplitude, noise = np.exp(self._parameters[-2:])
        r = np.sqrt(5 * (shrink @ gaps).reshape(values.size, values.size))
        decay = np.exp(-r)
        kernel = amplitude * (1 + r + r * r / 3) * decay
        inverse = np.linalg.inv(kernel + noise * np.eye(values.size))
        weights = inverse @ values
        slope = 0.5 * (inverse - np.outer(weights, weights))
        lengths = gaps @ (slope * amplitude * (5 / 3) * (1 + r) * decay).ravel() * shrink
        found = np.concatenate([lengths, [(slope * kernel).sum(), np.trace(slope) * noise]])
        found += (self._parameters - self._prior) / self._spread**2
        return found


class GaussianSampler(ListedSampler):
    """Takes the unseen point with the lowest bound, every other time of those near the best point."""

    def chooser(self) -> ListedChooser:
        return _LowestBound(self)


class _LowestBound(ListedChooser):
    """The process of one study, and what it chose ahead."""

    def __init__(self, sampler: ListedSampler) -> None:
        super().__init__(sampler)
        self._process = GaussianProcess(self.space)
        self._fitted = 0
        self._steps = 0
        self._next: list[int] = []

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        while self._next:
            row = self._next.pop(0)
            if unseen[row]:
                return row
        random, index = self.sampler.random, self.space.index
        rows = np.array([index(point) for point, _ in outcomes.told], dtype=np.intp)
        pending = np.array([index(point) for point in outcomes.pending], dtype=np.intp)
        times = np.array([value for _, value in outcomes.told])
        count = len(rows)
        if not np.isfinite(times).any() or len(outcomes) < FIRST:
            return self.farthest(unseen)
        best = int(rows[np.argmin(times)])
        values = -np.exp(POWER * (times.min() - times))
        if count > REMEMBERED:
            order = np.argsort(values, kind="stable")
            others = random.choice(order[REMEMBERED // 2 :], REMEMBERED // 2, replace=False)
            kept = np.concatenate([order[: REMEMBERED // 2], others])
            rows, values = rows[kept], values[kept]
        values = (values - values.mean()) / max(float(values.std()), 1e-9)
        if count - self._fitted >= max(2, count // 16):  # one outcome changes little among many
            self._process.fit(rows, values, STEPS if self._fitted else 3 * STEPS)
            self._fitted = count
        asked = self._asked(best, unseen, count)
        mean, deviation, vectors = self._process.predict(rows, values, pending, asked)
        lowest = [int(np.argmin(mean - BOLD * deviation))]
        while len(lowest) < min(AT_ONCE if count > REMEMBERED else 1, asked.size):
            mean[lowest[-1]] = math.inf
            deviation = self._process.narrow(asked, deviation, vectors, lowest[-1])
            lowest.append(int(np.argmin(mean - BOLD * deviation)))
        first, *self._next = (int(asked[place]) for place in lowest)
        return first

    def _asked(self, best: int, unseen: Mask, count: int) -> Rows:
        """Rows of the points to score. Tile shapes are good in pairs, so near means up to two changes."""
        self._steps += 1
        asked = unseen
        if self._steps % 2 == 0:
            near = self.space.around(self.space.points[best], 2) & unseen
            asked = near if near.any() else asked
        rows = np.flatnonzero(asked)
        most = SCORED // min(max(count, FEW), REMEMBERED)
        return self.sampler.random.choice(rows, most, replace=False) if rows.size > most else rows
