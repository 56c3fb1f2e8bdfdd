"""Every search proposes valid variants once each, first guesses first, comes to an end, and needs few evaluations."""

import ast
import importlib.util
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import recorded_search
import threadpoolctl
import tilewright
from recorded_search import FIGURES, FIRST_GUESSES, METHODS
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.search import gaussian
from tilewright.tuner.search.gaussian import FIRST, GaussianProcess, GaussianSampler
from tilewright.tuner.search.outcomes import Outcomes
from tilewright.tuner.search.sampler import (
    ExhaustiveSampler,
    Listed,
    ListedChooser,
    ListedSampler,
    VariantSampler,
    distributions,
)
from tilewright.tuner.search.space import Dimension, Mask, Point, Space
from tilewright.tuner.search.study import Search, check_sampler, make_search
from tilewright.tuner.settings import LOCAL, SAMPLERS

SPACE = Space(
    (
        Dimension("M", (8, 16, 32)),
        Dimension("N", ("absent", 8, 16)),
        Dimension("ONE", (1,)),
        Dimension("KIND", ("a", "b", "c")),
    ),
    tuple((m, n, 0, kind) for m, n, kind in itertools.product(range(3), range(3), range(3)) if m != n),
)
OPTUNA = ("NSGAIISampler", "QMCSampler", "CmaEsSampler", "GPSampler")
NEEDS = {"QMCSampler": "scipy", "CmaEsSampler": "cmaes", "GPSampler": "torch"}


def time_at(point: Point) -> float:
    """A smooth bowl with its floor at (2, 1, 0, 1)."""
    return 10.0 + abs(point[0] - 2) + 2 * abs(point[1] - 1) + (point[3] != 1)


@pytest.fixture(params=[*(name for name in SAMPLERS if name != LOCAL), *(f"optuna:{name}" for name in OPTUNA)])
def name(request: pytest.FixtureRequest) -> str:
    """Name of each sampler of listed points, in turn; Optuna's are skipped where their packages are missing."""
    pytest.importorskip(NEEDS.get(request.param.removeprefix("optuna:"), "numpy"))
    return str(request.param)


@pytest.mark.fast
@pytest.mark.parametrize("working", [(1, 2), ()])
def test_every_point_is_asked_once_and_then_none(name: str, working: tuple[int, ...]) -> None:
    """First guesses come first, several trials are under way at a time, and part of them or all fail."""
    search = make_search(name, SPACE, 3)
    search.seed([(2, 0, 0, 1), (2, 0, 0, 1), (0, 1, 0, 2)])
    suggested: list[Point] = []
    finished: list[tuple[Point, float | None]] = []
    while (point := search.ask()) is not None:
        suggested.append(point)
        if len(suggested) % 4 == 0:
            for other in suggested[len(finished) : -1]:
                finished.append((other, time_at(other) if other[3] in working else None))
                search.tell(*finished[-1])
    assert suggested[:2] == [(2, 0, 0, 1), (0, 1, 0, 2)]
    assert sorted(suggested) == sorted(SPACE.points)
    assert search.ask() is None


@pytest.mark.fast
def test_the_same_seed_gives_the_same_run_after_the_same_history(name: str) -> None:
    searches = [make_search(name, SPACE, 3) for _ in range(2)]
    for search in searches:
        search.tell((2, 1, 0, 1), 5.0)
    for _ in range(12):
        point, twin = (search.ask() for search in searches)
        assert point == twin
        assert point not in (None, (2, 1, 0, 1))
        for search in searches:
            search.tell(point, time_at(point))


@pytest.mark.fast
def test_only_times_and_points_of_the_space_are_accepted() -> None:
    search = make_search("gp", SPACE, 0)
    with pytest.raises(ConfigError, match=r"positive, got 0\.0"):
        search.tell((2, 1, 0, 1), 0.0)
    with pytest.raises(ConfigError, match="not a point"):
        search.tell((1, 1, 0, 1), 1.0)
    search.seed([(9, 9, 9, 9), (2, 1, 0, 1)])
    with pytest.raises(ConfigError, match="not a point"):
        search.ask()
    assert search.ask() == (2, 1, 0, 1)  # it has no outcome yet


@pytest.mark.fast
@pytest.mark.parametrize("name", ["gp", "tpe"])
def test_the_model_finds_a_floor_sooner_than_chance(name: str) -> None:
    dimensions = tuple(Dimension(name, (1, 2, 4, 8)) for name in "ABCDE")
    space = Space(dimensions, tuple(p for p in itertools.product(range(4), repeat=5) if sum(p) % 2))
    needed = []
    for seed in range(3):
        search = make_search(name, space, seed)
        for trial in range(1, 101):
            point = search.ask()
            assert point is not None
            search.tell(point, 10.0 + sum((i - 2) ** 2 for i in point))
            if sum((i - 2) ** 2 for i in point) <= 1:
                needed.append(trial)
                break
    assert len(needed) == 3
    assert sorted(needed)[1] <= 60


@pytest.mark.fast
def test_a_sampler_drives_a_study_of_the_user_s() -> None:
    study = optuna.create_study(sampler=GaussianSampler(SPACE, 0))
    study.add_trial(optuna.create_trial(value=100.0))  # this trial is no point of the space
    for _ in range(len(SPACE)):
        trial = study.ask(distributions(SPACE))
        study.tell(trial, time_at((trial.params["M"], trial.params["N"], 0, trial.params["KIND"])))
    assert study.best_params == {"M": 2, "N": 1, "KIND": 1}
    assert len({tuple(trial.params.values()) for trial in study.trials[1:]}) == len(SPACE)
    with pytest.raises(ConfigError, match="every point"):
        study.ask(distributions(SPACE))
    with pytest.raises(ConfigError, match="OTHER does not vary"):
        make_search("random", SPACE, 0)._study.ask().suggest_int("OTHER", 0, 3)


def outcomes_of(sampler: VariantSampler[Point], search: Search[Point]) -> Outcomes[Point]:
    """Outcomes that a sampler has read from its search, brought up to date by a further suggestion."""
    search.ask()
    return sampler._studies[search._study].outcomes


@pytest.mark.fast
def test_outcomes_follow_from_the_trials_of_a_study() -> None:
    sampler = ExhaustiveSampler(SPACE, 0)
    search = Search(sampler.variants, sampler)
    points = [search.ask() for _ in range(4)]
    first, second, third, fourth = SPACE.points[:4]
    assert points == [first, second, third, fourth]
    search.tell(third, None)
    search.tell(first, np.e)
    outcomes = outcomes_of(sampler, search)
    assert outcomes.finished == [(first, 1.0), (third, math.inf)]
    search.tell(second, 1.0)
    assert outcomes_of(sampler, search) is outcomes
    assert outcomes.finished == [(first, 1.0), (third, math.inf), (second, 0.0)]
    assert outcomes.pending == [fourth, *SPACE.points[4:6]]
    assert outcomes.seen == {*SPACE.points[:6]}
    assert len(outcomes) == 6
    assert np.flatnonzero(~sampler.listed.unseen(outcomes.seen)).tolist() == [*range(6)]
    kinds = [type(kind).__name__ for numbers in (True, False) for kind in distributions(SPACE, numbers).values()]
    assert kinds == ["IntDistribution"] * 2 + ["CategoricalDistribution"] * 4


@pytest.mark.fast
def test_a_suggestion_that_cannot_be_tried_becomes_the_nearest_that_can() -> None:
    class Stubborn(optuna.samplers.RandomSampler):
        def sample_independent(self, study: object, trial: object, name: str, distribution: object) -> int:
            return 2

    search = Search(Listed(SPACE), Stubborn())
    assert search.ask() in {(2, 1, 0, 2), (1, 2, 0, 2)}  # (2, 2, 0, 2) breaks the constraint
    assert search.ask() in {(2, 1, 0, 2), (1, 2, 0, 2)}
    search.tell((2, 1, 0, 2), 3.0)
    assert [trial.state.name for trial in search._study.trials[:4]].count("FAIL") == 2
    (complete,) = (trial for trial in search._study.trials if trial.state.name == "COMPLETE")
    assert complete.params == {"M": 2, "N": 1, "KIND": 2}


@pytest.mark.fast
def test_a_model_has_one_core_and_its_suggestion_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads of a BLAS than free cores make its small matrices many times slower."""
    threads, read = set(), []

    class Noting(ListedChooser):
        def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
            threads.update(each["num_threads"] for each in threadpoolctl.threadpool_info())
            return int(np.argmax(unseen))

    class Model(ListedSampler):
        def chooser(self) -> ListedChooser:
            return Noting(self)

    def params(self: Any) -> Any:
        read.append(self.number)
        return copied(self)

    copied: Any = optuna.trial.Trial.params.fget
    monkeypatch.setattr(optuna.trial.Trial, "params", property(params))
    with threadpoolctl.threadpool_limits(2):
        search = Search(Listed(SPACE), Model(SPACE, 0))
        assert None not in (search.ask(), search.ask())
    assert threads == {1}
    assert read == [0, 1]


@pytest.mark.fast
def test_samplers_have_names_and_unknown_names_are_refused() -> None:
    assert make_search("exhaustive", SPACE, 0).ask() == SPACE.points[0]
    for name in ("tpe", "optuna:TPESampler"):
        search = make_search(name, SPACE, 0)
        assert isinstance(search._study.sampler, optuna.samplers.TPESampler)
        assert search._variants.distributions == distributions(SPACE, numbers=False)
    with pytest.raises(ConfigError, match="local searches no listed variants; name another one, such as gp"):
        make_search("local", SPACE, 0)
    check_sampler(None)  # None takes the one that suits
    for wrong in ("best", "", "GPSampler"):
        with pytest.raises(ConfigError, match=f"sampler must be one of local, gp, tpe.*got '{wrong}'"):
            check_sampler(wrong)
    for wrong in ("Best", "GridSampler", "BruteForceSampler", "BaseSampler", "nsgaii", ""):
        with pytest.raises(ConfigError, match=f"optuna:CmaEsSampler.*got 'optuna:{wrong}'"):
            make_search(f"optuna:{wrong}", SPACE, 0)


@pytest.mark.fast
def test_a_sampler_whose_package_is_missing_says_so_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna itself fails at its first suggestion, which a tuning needs after its first guesses."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(ConfigError, match=r"the sampler optuna:GPSampler needs .*: pip install torch$"):
        make_search("optuna:GPSampler", SPACE, 0)


@pytest.mark.fast
def test_a_sampler_that_misses_another_package_says_so_too() -> None:
    class Broken(optuna.samplers.RandomSampler):
        def sample_independent(self, study: object, trial: object, name: str, distribution: object) -> int:
            raise ImportError("No module named 'other'")

    with pytest.raises(ConfigError, match=r"Broken needs a package that is missing.*other"):
        Search(Listed(SPACE), Broken()).ask()


@pytest.mark.fast
def test_optuna_is_used_by_its_public_names_alone() -> None:
    for path in (Path(tilewright.__file__).resolve().parent / "tuner").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "optuna" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("optuna"):
                names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
                assert [name for name in names if name.startswith("_")] == []
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert ast.unparse(node.value).split(".")[-1] in ("self", "_rows"), ast.unparse(node)


@pytest.mark.fast
def test_the_process_learns_which_parameter_matters_and_where_it_is_unsure() -> None:
    space = Space(tuple(Dimension(n, tuple(range(8))) for n in "AB"), tuple(itertools.product(range(8), repeat=2)))
    measured = np.array([row for row, point in enumerate(space.points) if point[1] in {0, 3, 6}])
    values = np.sin(space.matrix[measured, 0] * 0.7) * 1.4
    process = GaussianProcess(space)
    process.fit(measured, values, 40)
    nothing = np.arange(0)
    targets = np.array([space.index((a, 5)) for a in range(8)])
    mean, deviation = process.predict(measured, values, nothing, targets)
    assert np.abs(mean - np.sin(np.arange(8) * 0.7) * 1.4).max() < 0.1
    fewer = measured[::7]
    _, wider = process.predict(fewer, values[::7], nothing, targets)
    assert (wider >= deviation).all()
    mean_with_pending, with_pending = process.predict(fewer, values[::7], targets[3:4], targets)
    assert with_pending[3] < wider[3]
    assert np.allclose(mean_with_pending, process.predict(fewer, values[::7], nothing, targets)[0], atol=1e-5)


@pytest.mark.fast
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


def outcomes_of_first(space: Space, count: int) -> Outcomes[Point]:
    """Outcomes of the first points of a space, whose times rise by steps and start again after 17."""
    outcomes = Outcomes[Point]()
    for row, point in enumerate(space.points[:count]):
        outcomes.end(row, point, math.log(1.0 + row % 17))
    return outcomes


@pytest.mark.fast
def test_the_process_takes_the_point_that_may_be_best_by_mean_or_by_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, outcomes = GaussianSampler(SPACE, 0), outcomes_of_first(SPACE, FIRST)
    near = SPACE.around(SPACE.points[0], 2) & sampler.listed.unseen(outcomes.seen)
    sure, doubted = np.flatnonzero(near)[:2]
    doubt = 1.0

    def predict(_: GaussianProcess, *arguments: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = arguments[-1]
        return np.where(rows == sure, -1.0, 0.0), np.where(rows == doubted, doubt, 0.1)

    monkeypatch.setattr(GaussianProcess, "predict", predict)
    chooser = sampler.chooser()
    assert chooser.choose(outcomes) == SPACE.points[doubted]
    doubt = 0.1
    assert chooser.choose(outcomes) == SPACE.points[sure]


@pytest.mark.fast
def test_a_long_run_keeps_a_model_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    predict = GaussianProcess.predict

    def watched(self: GaussianProcess, rows: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
        sizes.append(rows.size)
        return predict(self, rows, *rest)

    monkeypatch.setattr(GaussianProcess, "predict", watched)
    monkeypatch.setattr(gaussian, "REMEMBERED", 32)
    space = Space(tuple(Dimension(n, tuple(range(5))) for n in "ABC"), tuple(itertools.product(range(5), repeat=3)))
    chooser, outcomes = GaussianSampler(space, 0).chooser(), outcomes_of_first(space, 60)
    chosen: set[Point] = set()
    for number in range(60, 65):
        point = chooser.choose(outcomes)
        chosen.add(point)
        outcomes.begin(number, point)
    assert len(chosen - set(space.points[:60])) == 5
    assert sizes == [32] * 5


# ---- A search of a recorded space needs no more evaluations than the committed figures say ----------------------


SLACK = 1.05
"""Factor by which a figure may exceed the committed one. The same seed gives the same run, but a BLAS that rounds
differently may lead a few runs elsewhere."""
COMMITTED: dict[str, Any] = json.loads(FIGURES.read_text())
QUICK = {*itertools.product(recorded_search.NAMES, (FIRST_GUESSES,)), (recorded_search.NAMES[0], "gp")}
"""The recordings and methods that take seconds; the others are marked slow."""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow])
        for each in itertools.product(recorded_search.NAMES, METHODS)
    ],
)
def test_a_search_needs_no_more_evaluations_than_before(name: str, method: str) -> None:
    limits, measured = COMMITTED["figures"][name][method], recorded_search.figures(name, method)
    worse = [
        f"{figure} {target}: {measured[target][figure]:.1f}, committed {limit:.1f}"
        for target, figures in limits.items()
        for figure, limit in figures.items()
        if measured[target][figure] > SLACK * limit
    ]
    versions = f"with {recorded_search.versions()}, committed with {COMMITTED['versions']}"
    remedy = "if it is meant, write them again: python tests/support/recorded_search.py"
    assert not worse, f"{name}, {method}: {'; '.join(worse)}; {versions}; {remedy}"
