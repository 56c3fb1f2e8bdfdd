"""The space: look-ups of points, distances and neighbours."""

import itertools

import numpy as np
import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.search.space import Dimension, Space

pytestmark = pytest.mark.fast

SIZE = Dimension("SIZE", (8, 16, 32, 64))
KIND = Dimension("KIND", ("thin", "wide", "tall"))
DEPTH = Dimension("DEPTH", ("absent", 1, 2, 4))
ALL = tuple(itertools.product(range(4), range(3), range(4)))
SPACE = Space((SIZE, KIND, DEPTH), tuple(point for point in ALL if point[0] != 1))


def test_values_and_points_match() -> None:
    assert SPACE.values((3, 1, 0)) == (("SIZE", 64), ("KIND", "wide"), ("DEPTH", "absent"))
    for point in SPACE.points:
        assert SPACE.points[SPACE.index(point)] == point


def test_unknown_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a point"):
        SPACE.index((1, 0, 0))


def test_broken_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Space((SIZE,), ())
    with pytest.raises(ConfigError, match="outside"):
        Space((SIZE,), ((4,),))
    with pytest.raises(ConfigError, match="twice"):
        Space((SIZE,), ((1,), (1,)))
    with pytest.raises(ConfigError, match="differ"):
        Dimension("SIZE", (8, 8))


def test_only_words_have_no_order() -> None:
    assert SIZE.ordered
    assert DEPTH.ordered  # "absent" stands before the numbers
    assert not KIND.ordered


def test_the_nearest_unseen_point_is_near_and_unseen() -> None:
    unseen = np.ones(len(SPACE), dtype=np.bool_)
    assert SPACE.nearest((2, 2, 3), unseen) == (2, 2, 3)
    unseen[SPACE.index((2, 2, 3))] = False
    assert SPACE.nearest((2, 2, 3), unseen) in {(3, 2, 3), (2, 2, 2)}
    unseen[:] = False
    assert SPACE.nearest((2, 2, 3), unseen) is None
    unseen[SPACE.index((0, 0, 0))] = True
    assert SPACE.nearest((3, 2, 3), unseen) == (0, 0, 0)


def test_a_word_that_differs_counts_one_whatever_it_is() -> None:
    rows = np.array([SPACE.index((0, 1, 0)), SPACE.index((0, 2, 0)), SPACE.index((3, 0, 0))])
    assert SPACE.distances((0, 0, 0), rows).tolist() == [1, 1, 1]


def test_around_counts_changes() -> None:
    points = {SPACE.points[row] for row in np.flatnonzero(SPACE.around((2, 0, 1), 1))}
    assert points == {p for p in SPACE.points if sum(a != b for a, b in zip(p, (2, 0, 1), strict=True)) <= 1}


def test_a_hundred_thousand_points_are_no_trouble() -> None:
    dimensions = tuple(Dimension(name, tuple(range(10))) for name in "abcde")
    space = Space(dimensions, tuple(itertools.product(range(10), repeat=5)))
    unseen = np.ones(len(space), dtype=np.bool_)
    unseen[space.index((5, 5, 5, 5, 5))] = False
    nearest = space.nearest((5, 5, 5, 5, 5), unseen)
    assert nearest is not None
    assert sum(abs(i - 5) for i in nearest) == 1
