"""What every search must keep to, whatever it thinks: valid, unseen, pending, seeds first, an end."""

import itertools

import numpy as np
import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.search.gaussian import FIRST, GaussianProcess, GaussianSampler
from tilewright.tuner.search.parzen import Densities, improvements
from tilewright.tuner.search.sampler import BaseSampler, ExhaustiveSampler, RandomSampler
from tilewright.tuner.search.samplers import make_sampler
from tilewright.tuner.search.space import Dimension, Point, Space
from tilewright.tuner.search.study import GPSampler, TPESampler

SPACE = Space(
    (Dimension("M", (8, 16, 32)), Dimension("N", ("absent", 8, 16)), Dimension("KIND", ("a", "b", "c"))),
    tuple(p for p in itertools.product(range(3), range(3), range(3)) if p[0] != p[1]),
)
KINDS = [ExhaustiveSampler, RandomSampler, TPESampler, GaussianSampler]


def time_at(point: Point) -> float:
    """A smooth bowl with its floor at (2, 1, 1)."""
    return 10.0 + abs(point[0] - 2) + 2 * abs(point[1] - 1) + (point[2] != 1)


@pytest.fixture(params=[*KINDS, GPSampler], ids=lambda kind: kind.__name__)
def sampler(request: pytest.FixtureRequest) -> BaseSampler:
    """Each search in turn; Optuna's Gaussian process where torch is installed."""
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


@pytest.mark.parametrize("kind", [TPESampler, GaussianSampler])
def test_the_model_finds_a_floor_sooner_than_chance(kind: type[BaseSampler]) -> None:
    dimensions = tuple(Dimension(name, (1, 2, 4, 8)) for name in "ABCDE")
    space = Space(dimensions, tuple(p for p in itertools.product(range(4), repeat=5) if sum(p) % 2))
    needed = []
    for seed in range(3):
        search = kind(space, seed)
        for trial in range(1, 101):
            point = search.ask()
            assert point is not None
            search.tell(point, 10.0 + sum((i - 2) ** 2 for i in point))
            if sum((i - 2) ** 2 for i in point) <= 1:
                needed.append(trial)
                break
    assert len(needed) == 3
    assert sorted(needed)[1] <= 60


def test_some_suggestions_of_tpe_are_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(tuple(Dimension(n, tuple(range(5))) for n in "ABC"), tuple(itertools.product(range(5), repeat=3)))
    knew = []
    choose = GaussianSampler.choose

    def watched(self: GaussianSampler) -> Point:
        knew.append((len(self.history), len(self.pending), int(self.unseen.sum())))
        return choose(self)

    monkeypatch.setattr(GaussianSampler, "choose", watched)
    search = TPESampler(space, 0)
    waits = search.ask()
    assert waits is not None
    for trial in range(60):
        point = search.ask()
        assert point is not None
        search.tell(point, 100.0 - trial if trial < 32 else 100.0)
    # One in four after the first 15, one in two from the 12th outcome on that is no new best, then all from the 24th.
    expected = [*range(14, 44, 4), *range(44, 56, 2), *range(56, 60)]
    assert knew == [(told, 1, 125 - told - 1) for told in expected]
    search.tell(waits, None)
    assert search.history[-1] == (waits, None)


def test_the_process_learns_which_parameter_matters_and_what_it_does_not_know() -> None:
    space = Space(tuple(Dimension(n, tuple(range(8))) for n in "AB"), tuple(itertools.product(range(8), repeat=2)))
    known = np.array([row for row, point in enumerate(space.points) if point[1] in {0, 3, 6}])
    values = np.sin(space.matrix[known, 0] * 0.7) * 1.4
    process = GaussianProcess(space)
    process.fit(known, values, 40)
    nothing = np.arange(0)
    asked = np.array([space.index((a, 5)) for a in range(8)])
    mean, deviation, _ = process.predict(known, values, nothing, asked)
    assert np.abs(mean - np.sin(np.arange(8) * 0.7) * 1.4).max() < 0.1
    few = known[::7]
    _, wide, vectors = process.predict(few, values[::7], nothing, asked)
    assert (wide >= deviation).all()
    same, after, _ = process.predict(few, values[::7], asked[3:4], asked)
    assert after[3] < wide[3]
    assert np.allclose(same, process.predict(few, values[::7], nothing, asked)[0], atol=1e-5)
    assert np.allclose(process.narrow(asked, wide, vectors, 3), after, atol=1e-3)


def test_the_gradient_of_the_process_is_that_of_its_likelihood() -> None:
    process = GaussianProcess(SPACE)
    random = np.random.default_rng(0)
    rows, values = np.arange(0, len(SPACE), 2), random.normal(size=(len(SPACE) + 1) // 2)
    features = process._features[rows]
    gaps = np.zeros((process._prior.size - 2, rows.size, rows.size))
    for place, column in zip(process._of, features.T, strict=True):
        gaps[place] += (column[:, None] - column) ** 2
    gradient = process._gradient(gaps.reshape(len(gaps), -1), values)

    def cost(parameters: np.ndarray) -> float:
        r = np.sqrt(5 * np.tensordot(np.exp(-2 * parameters[:-2]), gaps, 1))
        kernel = np.exp(parameters[-2]) * (1 + r + r * r / 3) * np.exp(-r)
        kernel += np.exp(parameters[-1]) * np.eye(rows.size)
        fit = 0.5 * values @ np.linalg.solve(kernel, values) + 0.5 * np.linalg.slogdet(kernel)[1]
        return float(fit + 0.5 * (((parameters - process._prior) / process._spread) ** 2).sum())

    for place, slope in enumerate(gradient):
        step = np.zeros(process._prior.size)
        step[place] = 1e-5
        difference = cost(process._parameters + step) - cost(process._parameters - step)
        assert difference / 2e-5 == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_the_process_takes_what_may_be_best_by_mean_or_by_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = GaussianSampler(SPACE, 0)
    for step in range(FIRST):
        point = sampler.ask()
        assert point is not None
        sampler.tell(point, 1.0 + step)
    sure, doubted = np.flatnonzero(sampler.space.around(sampler.history[0][0], 1) & sampler.unseen)[:2]
    doubt = 1.0

    def predict(_: GaussianProcess, *asked: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = asked[-1]
        return np.where(rows == sure, -1.0, 0.0), np.where(rows == doubted, doubt, 0.1), np.zeros((rows.size, 1))

    monkeypatch.setattr(GaussianProcess, "predict", predict)
    assert sampler.choose() == SPACE.points[doubted]
    doubt = 0.1
    assert sampler.choose() == SPACE.points[sure]


def test_good_points_weigh_what_they_improve_on_the_others() -> None:
    assert improvements([1.0, 1.5], [2.0, 9.0]) == pytest.approx([4 / 3, 2 / 3], rel=2e-3)
    assert improvements([0.0, 2.0], [5.0]) == pytest.approx([2.0, 0.0], abs=2e-3)  # three times the best at most
    assert improvements([3.0, 3.0], []) == pytest.approx([1.0, 1.0])
    assert improvements([3.0, 3.0], [3.0]) == pytest.approx([1.0, 1.0])


def test_the_density_is_highest_around_the_heaviest_kernel() -> None:
    kernels = {d.name: np.full((2, 3), 0.1) for d in SPACE.dimensions}
    for name, heavy, light in zip("M N KIND".split(), (2, 1, 1), (0, 2, 0), strict=True):
        kernels[name][0, heavy] = kernels[name][1, light] = 0.8
    density = Densities(SPACE).log_density(np.arange(len(SPACE)), np.array([0.75, 0.25]), kernels)
    order = [SPACE.points[row] for row in np.argsort(-density)]
    assert order[0] == (2, 1, 1)
    assert density[SPACE.index((2, 1, 0))] > density[SPACE.index((0, 2, 1))]
    ranks = {point: order.index(point) for point in ((1, 2, 2), (0, 2, 0), (2, 0, 1))}
    assert ranks[0, 2, 0] < ranks[1, 2, 2]  # the other kernel counts too
    assert ranks[2, 0, 1] < ranks[1, 2, 2]


def test_a_long_run_keeps_a_model_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    predict = GaussianProcess.predict

    def watched(self: GaussianProcess, rows: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
        sizes.append(rows.size)
        return predict(self, rows, *rest)

    monkeypatch.setattr(GaussianProcess, "predict", watched)
    space = Space(tuple(Dimension(n, tuple(range(5))) for n in "ABCD"), tuple(itertools.product(range(5), repeat=4)))
    search = GaussianSampler(space, 0)
    for row, point in enumerate(space.points[:400]):
        search.tell(point, 1.0 + row % 17)
    asked = [search.ask() for _ in range(5)]
    assert len(set(asked) - set(space.points[:400])) == 5
    assert max(sizes) == 256
    assert len(sizes) == 2  # four suggestions at once


def test_names() -> None:
    assert make_sampler("exhaustive", SPACE, 0).ask() == SPACE.points[0]
    with pytest.raises(ConfigError, match="sampler must be one of"):
        make_sampler("best", SPACE, 0)
