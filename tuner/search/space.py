"""The set of variants that a search may try, as points of small whole numbers.

A point holds, for each dimension, the position of its value among that dimension's choices. A space lists all valid
points, so that a search proposes no variant that breaks a constraint and can take the nearest one that was not tried.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.errors import ConfigError, check
from ...codegen.leaf import Value

Point: TypeAlias = tuple[int, ...]
"""Position of the value among the choices, for each dimension."""

Mask: TypeAlias = NDArray[np.bool_]
"""One flag for each point of a space, in the space's order."""

MOST_CHOICES = 2**15 - 1
"""Most values of a dimension: positions have 16 bits."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter and its values. Raises ConfigError for no values and for a value that comes twice."""

    name: str
    choices: tuple[Value, ...]
    """Values, all different; numbers in rising order, so that neighbours here are neighbours."""

    def __post_init__(self) -> None:
        check(bool(self.choices), f"{self.name} needs at least one choice")
        check(len(set(self.choices)) == len(self.choices), f"the choices of {self.name} must differ")

    @property
    def ordered(self) -> bool:
        """Whether the distance between two positions means something: numbers, not words.

        One word may stand before the numbers, for a family that lacks the parameter.
        """
        return all(isinstance(choice, int) for choice in self.choices[1:])


class Space:
    """Dimensions and every valid point over them. Raises ConfigError for points that are outside, repeated or none."""

    def __init__(self, dimensions: tuple[Dimension, ...], points: tuple[Point, ...]) -> None:
        check(bool(points), "no variant meets the constraints: the space is empty")
        self.dimensions = dimensions
        """The parameters, in the order of a point's entries."""
        self.points = points
        """All valid points, each once."""
        self.matrix = np.array(points, dtype=np.int16).reshape(len(points), len(dimensions))
        """The points as rows of an array, points x dimensions."""
        sizes = np.array([len(dimension.choices) for dimension in dimensions])
        check(bool((self.matrix >= 0).all() and (self.matrix < sizes).all()), "a point lies outside its choices")
        self._rows = {point: row for row, point in enumerate(points)}
        check(len(self._rows) == len(points), "a point is listed twice")
        self._words: Mask = np.array([not dimension.ordered for dimension in dimensions], dtype=np.bool_)
        # Positions of numbers are scaled to 0..1; words keep their positions.
        self._scale = np.where(self._words, 1, np.maximum(sizes - 1, 1)).astype(np.float32)
        self._scaled = (self.matrix / self._scale).astype(np.float32)

    def __len__(self) -> int:
        return len(self.points)

    def index(self, point: Point) -> int:
        """The row of a valid point in `points`. Raises ConfigError for any other."""
        row = self._rows.get(point)
        if row is None:
            raise ConfigError(f"not a point of this space: {point}")
        return row

    def values(self, point: Point) -> tuple[tuple[str, Value], ...]:
        """Names and values of all parameters at a point."""
        return tuple((d.name, d.choices[place]) for d, place in zip(self.dimensions, point, strict=True))

    def distances(self, point: Point, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Distances of the points of these rows: the sum of differences of scaled positions of numbers, and of 1 for
        each word that differs."""
        gaps = np.abs(self._scaled[rows] - np.array(point, dtype=np.float32) / self._scale)
        if self._words.any():
            gaps[:, self._words] = gaps[:, self._words] > 0
        total: NDArray[np.float32] = gaps.sum(axis=1, dtype=np.float32)
        return total

    def around(self, point: Point, changes: int) -> Mask:
        """Flags of the points that differ from `point` in at most `changes` dimensions."""
        near: Mask = np.count_nonzero(self.matrix != np.array(point, dtype=np.int16), axis=1) <= changes
        return near

    def nearest(self, point: Point, unseen: Mask) -> Point | None:
        """The nearest point whose flag in `unseen` is set, the first of equals; None where no flag is set."""
        rows = np.flatnonzero(unseen)
        if not rows.size:
            return None
        return self.points[int(rows[np.argmin(self.distances(point, rows))])]
