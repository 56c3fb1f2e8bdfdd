"""The set of variants a search may try, as points of small whole numbers.

A point holds, for each dimension, the position of its value among that dimension's choices. All valid points
are listed once, so that a search never proposes a variant that breaks a constraint, and so that "the nearest
one that was not tried yet" has an answer. A parameter that a family lacks sits at position 0.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.errors import ConfigError, check
from ...codegen.leaf import Value

Point: TypeAlias = tuple[int, ...]
"""For each dimension the position of the value among its choices."""

Mask: TypeAlias = NDArray[np.bool_]
"""One flag for each point of a space, in the space's order."""


MOST_CHOICES = 2**15 - 1
"""Values of a dimension at most: positions are held in 16 bits."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter and the values it may take."""

    name: str
    choices: tuple[Value, ...]
    """Its values, all different; numbers in rising order, for neighbours here are taken for neighbours."""

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
    """Dimensions and every valid point over them."""

    def __init__(self, dimensions: tuple[Dimension, ...], points: tuple[Point, ...]) -> None:
        check(bool(points), "no variant meets the constraints: the space is empty")
        self.dimensions = dimensions
        """The parameters, in the order of a point's entries."""
        self.points = points
        """All valid points, each once."""
        self.matrix = np.array(points, dtype=np.int16).reshape(len(points), len(dimensions))
        """A row for each point."""
        sizes = np.array([len(dimension.choices) for dimension in dimensions])
        check(bool((self.matrix >= 0).all() and (self.matrix < sizes).all()), "a point lies outside its choices")
        self._rows = {point: row for row, point in enumerate(points)}
        check(len(self._rows) == len(points), "a point is listed twice")
        self._words: Mask = np.array([not dimension.ordered for dimension in dimensions], dtype=np.bool_)
        # Numbers are scaled to 0..1 by position; words keep their position.
        self._scale = np.where(self._words, 1, np.maximum(sizes - 1, 1)).astype(np.float32)
        self._scaled = (self.matrix / self._scale).astype(np.float32)

    def __len__(self) -> int:
        return len(self.points)

    def __contains__(self, point: object) -> bool:
        return point in self._rows

    def index(self, point: Point) -> int:
        """The place of a valid point in `points`; raises ConfigError for any other."""
        row = self._rows.get(point)
        if row is None:
            raise ConfigError(f"not a point of this space: {point}")
        return row

    def values(self, point: Point) -> tuple[tuple[str, Value], ...]:
        """Names and values of all parameters at a point."""
        return tuple((d.name, d.choices[i]) for d, i in zip(self.dimensions, point, strict=True))

    def distances(self, point: Point, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """How far the points of these rows are: along numbers by scaled position, 1 for a word that differs."""
        gaps = np.abs(self._scaled[rows] - np.array(point, dtype=np.float32) / self._scale)
        if self._words.any():
            gaps[:, self._words] = gaps[:, self._words] > 0
        total: NDArray[np.float32] = gaps.sum(axis=1, dtype=np.float32)
        return total

    def around(self, point: Point, changes: int) -> Mask:
        """Valid points that differ from `point` in at most `changes` dimensions."""
        near: Mask = np.count_nonzero(self.matrix != np.array(point, dtype=np.int16), axis=1) <= changes
        return near

    def nearest(self, point: Point, unseen: Mask) -> Point | None:
        """The nearest valid point whose flag in `unseen` is set, the first of equals; None when none is."""
        rows = np.flatnonzero(unseen)
        if not rows.size:
            return None
        return self.points[int(rows[np.argmin(self.distances(point, rows))])]
