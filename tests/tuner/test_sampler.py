"""What every search must keep to, whatever it thinks: valid, unseen, pending, seeds first, an end."""

import itertools

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.sampler import BaseSampler, ExhaustiveSampler, RandomSampler, make_sampler
from tilewright.tuner.space import Dimension, Point, Space
from tilewright.tuner.study import GPSampler, TPESampler

SPACE = Space(
    (Dimension("M", (8, 16, 32)), Dimension("N", ("absent", 8, 16)), Dimension("KIND", ("a", "b", "c"))),
    tuple(p for p in itertools.product(range(3), range(3), range(3)) if p[0] != p[1]),
)
KINDS = [ExhaustiveSampler, RandomSampler, TPESampler]


def time_at(point: Point) -> float:
    """A smooth bowl with its floor at (2, 1, 1)."""
    return 10.0 + abs(point[0] - 2) + 2 * abs(point[1] - 1) + (point[2] != 1)


@pytest.fixture(params=[*KINDS, GPSampler], ids=lambda kind: kind.__name__)
def sampler(request: pytest.FixtureRequest) -> BaseSampler:
    """Each search in turn; the Gaussian process where torch is installed."""
    if request.param is GPSampler:
        pytest.importorskip("torch")
        pytest.importorskip("scipy")
    made = request.param(SPACE, 3)
    assert isinstance(made, BaseSampler)
    return made


def test_every_point_is_asked_once_and_then_none(sampler: BaseSampler) -> None:
    asked = []
    while (point := sampler.ask()) is not None:
        asked.append(point)
        sampler.tell(point, time_at(point))
    assert sorted(asked) == sorted(SPACE.points)
    assert sampler.history == tuple((point, time_at(point)) for point in asked)
    assert sampler.ask() is None


def test_pending_points_are_not_asked_again(sampler: BaseSampler) -> None:
    pending = []
    while (point := sampler.ask()) is not None:
        pending.append(point)
        if len(pending) % 8 == 0:
            told = pending[-5]
            sampler.tell(told, time_at(told))
    assert sorted(pending) == sorted(SPACE.points)


def test_seeds_come_first_once_and_only_valid_ones(sampler: BaseSampler) -> None:
    sampler.seed([(2, 0, 1), (9, 9, 9), (0, 0, 0), (2, 0, 1), (0, 1, 2)])
    assert sampler.ask() == (2, 0, 1)
    assert sampler.ask() == (0, 1, 2)
    third = sampler.ask()
    assert third in SPACE
    assert third not in {(2, 0, 1), (0, 1, 2)}


def test_all_may_fail(sampler: BaseSampler) -> None:
    asked = []
    while (point := sampler.ask()) is not None:
        asked.append(point)
        sampler.tell(point, None, status="crashed", reason="always")
    assert sorted(asked) == sorted(SPACE.points)


def test_failures_among_times(sampler: BaseSampler) -> None:
    asked = []
    while (point := sampler.ask()) is not None:
        asked.append(point)
        sampler.tell(point, None if point[2] == 0 else time_at(point))
    assert sorted(asked) == sorted(SPACE.points)


def test_a_point_told_without_being_asked_is_seen(sampler: BaseSampler) -> None:
    sampler.tell((2, 1, 1), 5.0)
    asked = list(iter(sampler.ask, None))
    assert (2, 1, 1) not in asked
    assert len(asked) == len(SPACE) - 1
    with pytest.raises(ConfigError, match="positive"):
        sampler.tell((2, 1, 1), 0.0)


def test_the_same_seed_gives_the_same_run(sampler: BaseSampler) -> None:
    twin = type(sampler)(SPACE, 3)
    for _ in range(16):
        point = sampler.ask()
        assert point is not None
        assert twin.ask() == point
        sampler.tell(point, time_at(point))
        twin.tell(point, time_at(point))


def test_the_model_finds_a_floor_sooner_than_chance() -> None:
    dimensions = tuple(Dimension(name, (1, 2, 4, 8)) for name in "ABCDE")
    space = Space(dimensions, tuple(p for p in itertools.product(range(4), repeat=5) if sum(p) % 2))
    needed = []
    for seed in range(3):
        search = TPESampler(space, seed)
        for trial in range(1, 101):
            point = search.ask()
            assert point is not None
            search.tell(point, 10.0 + sum((i - 2) ** 2 for i in point))
            if sum((i - 2) ** 2 for i in point) <= 1:
                needed.append(trial)
                break
    assert len(needed) == 3
    assert sorted(needed)[1] <= 60


def test_names() -> None:
    assert make_sampler("exhaustive", SPACE, 0).ask() == SPACE.points[0]
    with pytest.raises(ConfigError, match="sampler must be one of"):
        make_sampler("best", SPACE, 0)
