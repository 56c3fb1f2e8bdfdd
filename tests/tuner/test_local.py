"""The search of a neighbourhood: configs as parameters, its proposals, how soon it nears the best, and its end."""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import threadpoolctl
from search_spaces import H200, on, searched
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import families, family_named, parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import shortlist
from tilewright.tuner.measure.evaluate import Bench, Phases, Tried
from tilewright.tuner.plan import Plan, planned
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.points import space_of
from tilewright.tuner.result import Progress
from tilewright.tuner.run import Run
from tilewright.tuner.search import neighbourhood
from tilewright.tuner.search import sampler as sampler_module
from tilewright.tuner.search.ahead import InOrder, Unrecorded
from tilewright.tuner.search.neighbourhood import (
    BEGUN,
    LEAST_OUTCOMES,
    ErrorProcess,
    Neighbourhood,
    _covariance,
    improvement,
)
from tilewright.tuner.search.neighbours import neighbours
from tilewright.tuner.search.outcomes import ExhaustedError, Outcomes
from tilewright.tuner.search.sampler import Listed, LocalSampler, Parameters, RandomSampler
from tilewright.tuner.search.study import Search, local_search
from tilewright.tuner.settings import EFFORTS, Budget
from tilewright.tuner.tune import tune

WIDE, EVEN = Problem.parse("1000x520x3000"), Problem.parse("700x900x800")
FAST = pytest.mark.fast


@cache
def likely(problem: Problem) -> tuple[Config, ...]:
    """The configs that a search of a problem begins with."""
    return tuple(choice.config for choice in shortlist(problem, H200, (), 240))


class Truth:
    """Made-up times: each value of a parameter makes the forecast wrong by a few percent of its own."""

    def __init__(self, problem: Problem) -> None:
        self.forecast = Forecast(problem, H200)

    def us(self, configs: Iterable[Config]) -> list[float]:
        """Microseconds of configs."""
        configs = tuple(configs)
        return [(us or 1.0) * math.exp(self._error(config)) for us, config in zip(self.forecast.us(configs), configs)]

    def _error(self, config: Config) -> float:
        return sum(map(_error, itertools.repeat(self.forecast.problem), (("family", config.family), *config.values)))


@cache
def _error(problem: Problem, parameter: tuple[str, Any]) -> float:
    return 0.02 * float(np.random.default_rng(zlib.crc32(f"{problem} {parameter}".encode())).normal())


def least(search: Search[Config], truth: Truth, trials: int) -> float:
    """The least microseconds of the first `trials` trials of a search."""
    times_us = []
    for _ in range(trials):
        config = search.ask()
        assert config is not None
        times_us += truth.us([config])
        search.tell(config, times_us[-1])
    return min(times_us)


# Configs as parameters


@FAST
@pytest.mark.parametrize("family", families())
def test_a_config_of_any_family_is_its_parameters_and_back(family: str) -> None:
    variants = Parameters()
    random, configs = np.random.default_rng(5), [family_named(family)()]
    for _ in range(60):
        config, leaves = configs[-1], family_named(family).leaves()
        for leaf in (leaves[place] for place in random.permutation(len(leaves))):
            with contextlib.suppress(ConfigError):
                config = config.changed(**{leaf.name: leaf.choices[int(random.integers(len(leaf.choices)))]})
        configs.append(config)
    assert len(set(configs)) > 20
    for config in configs:
        params = variants.params_of(config)
        assert variants.variant_of(params) == config
        assert params.keys() == variants.distributions.keys()
        for name, distribution in variants.distributions.items():
            assert distribution._contains(distribution.to_internal_repr(params[name])), (name, params[name])
        # A study gets plain values, which any storage keeps.
        assert {type(value) for value in params.values()} <= {int, str, bool}
        trial = optuna.create_trial(params=params, distributions=variants.distributions, value=1.0)
        assert variants.variant_of(trial.params) == config


@FAST
def test_configs_that_differ_have_parameters_that_differ() -> None:
    variants = Parameters()
    configs = searched(WIDE, H200)
    assert len({tuple(variants.params_of(config).items()) for config in configs}) == len(configs) > 1000


@FAST
def test_parameters_that_a_family_lacks_are_ignored() -> None:
    variants, config = Parameters(), parse("tiled:16")
    params = variants.params_of(config)
    assert "block_k" in params
    assert variants.variant_of({**params, "block_k": 64, "lanes_k": "?"}) == config
    assert variants.variant_of({name: params[name] for name in ("family", *dict(config.values))}) == config


@FAST
@pytest.mark.parametrize(
    "changed",
    [{"family": "other"}, {"family": 5}, {"tile_width": 17}, {"edge": "?"}, {"family": "simt", "block_m": -1}],
)
def test_parameters_of_no_config_give_none(changed: dict[str, Any]) -> None:
    params = Parameters().params_of(parse("tiled:16"))
    assert Parameters().variant_of({**params, **changed}) is None


@FAST
@pytest.mark.parametrize("missing", ["family", "tile_width", "edge"])
def test_incomplete_parameters_give_none(missing: str) -> None:
    params = Parameters().params_of(parse("tiled:16"))
    del params[missing]
    assert Parameters().variant_of(params) is None
    assert Parameters().variant_of({}) is None


# The proposals


@FAST
@pytest.mark.parametrize(
    ("shape", "dtype", "accuracy", "arch"),
    [
        ("1000x520x3000", "float", "ieee", "sm_90a"),
        ("4096x4096x64", "float", "normwise", "sm_90a"),
        ("16x4096x512", "double", "ieee", "sm_80"),
        ("7x9x11", "float", "ieee", "sm_100"),
        ("300x500x700", "float", "ieee", "host"),
    ],
)
@pytest.mark.parametrize("works", [0.9, 0.0])
def test_it_proposes_legal_configs_each_once(shape: str, dtype: str, accuracy: str, arch: str, works: float) -> None:
    """Trials may all fail, several are under way at a time, and one outcome is of a config that was not proposed."""
    problem = Problem.parse(shape, dtype, accuracy=accuracy)
    info = host_info() if arch == "host" else on(arch)
    start = [choice.config for choice in shortlist(problem, info, (), 60)]
    search, random = local_search(Forecast(problem, info), start, 0), np.random.default_rng(0)
    foreign = parse("naive:1x8,unroll=1")
    search.tell(foreign, 1e9)
    suggested, waiting = [foreign], list[Config]()
    for _ in range(100):
        config = search.ask()
        assert config is not None
        assert serves(config, problem, info), config
        suggested.append(config)
        waiting.append(config)
        while len(waiting) > random.integers(0, 6):
            ended = waiting.pop(int(random.integers(len(waiting))))
            search.tell(ended, 10.0 + random.random() if random.random() < works else None)
    assert len(set(suggested)) == len(suggested)


@FAST
def test_it_begins_with_the_likely_ones_and_goes_on_to_neighbours_of_the_fastest() -> None:
    truth, search = Truth(WIDE), local_search(Forecast(WIDE, H200), likely(WIDE), 0)
    times = dict[Config, float]()
    for _ in range(80):
        config = search.ask()
        assert config is not None
        (times[config],) = truth.us([config])
        search.tell(config, times[config])
    assert [*times][:BEGUN] == [*likely(WIDE)][:BEGUN]
    others = [config for config in times if config not in likely(WIDE)]
    assert len(others) > 20
    fastest = min([*times][:BEGUN], key=times.__getitem__)
    assert set(neighbours(fastest, truth.forecast)) & set(others)


@FAST
def test_it_ends_once_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every config of a neighbourhood is tried, also one far from the fastest and one that only failures lead to."""
    configs = [parse(f"tiled:{width}") for width in (4, 8, 16, 32)]
    chain = {config: [other] for config, other in itertools.pairwise(configs)}
    monkeypatch.setattr(neighbourhood, "neighbours", lambda config, forecast: chain.get(config, []))
    falling, rising, mixed = [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [None, 1.0, None, 2.0]
    for times in (falling, rising, mixed, [None] * 4):
        search = local_search(Forecast(WIDE, H200), configs[:1], 0)
        time_of = dict(zip(configs, times))
        suggested = []
        while (config := search.ask()) is not None:
            suggested.append(config)
            search.tell(config, time_of[config])
        assert set(suggested) == set(time_of)
        assert len(suggested) == 4
    with pytest.raises(ExhaustedError, match="every config of the neighbourhood was tried"):
        Neighbourhood(Forecast(WIDE, H200), []).choose(Outcomes())


@pytest.mark.parametrize("problem", [WIDE, pytest.param(EVEN, marks=pytest.mark.slow)], ids=str)
def test_a_user_s_study_is_near_the_best_sooner_than_by_chance(problem: Problem) -> None:
    """After 30 trials its best is within 3% of the best of the thousand configs that spaces list. After 60 it is faster
    than all of them, and 2% faster than the best of 60 random ones."""
    truth, listed = Truth(problem), searched(problem, H200)
    best = min(truth.us(listed))
    sampler = LocalSampler(truth.forecast, likely(problem), 0)
    study = optuna.create_study(sampler=sampler)
    for _ in range(60):
        trial = study.ask(sampler.distributions)
        config = sampler.variants.variant_of(trial.params)
        assert config is not None
        study.tell(trial, math.log(truth.us([config])[0]))
    result = math.exp(study.best_value)
    assert result < 0.99 * best
    first = next(t.number for t in study.trials if t.value is not None and t.value < math.log(1.03 * best))
    assert first < 30
    for seed in range(3):
        chance = RandomSampler(space_of(listed), seed)
        search = Search(Listed(chance.space, listed), chance)
        assert result < 0.98 * least(search, truth, 60)


def test_a_search_without_a_study_chooses_the_same() -> None:
    """First use searches without a study, since importing Optuna takes too long."""
    truth, suggestions = Truth(WIDE), []
    for search in (
        Unrecorded(Neighbourhood(Forecast(WIDE, H200), likely(WIDE))),
        local_search(Forecast(WIDE, H200), likely(WIDE), 0),
    ):
        suggested = []
        for trial in range(50):
            config = search.ask()
            assert config is not None
            suggested.append(config)
            search.tell(config, None if trial % 7 == 0 else truth.us([config])[0])
        suggestions.append(suggested)
    assert suggestions[0] == suggestions[1]


@FAST
def test_a_model_without_a_study_has_one_core_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads take many times as long for small matrices where compilers use the other cores."""
    threads = set()
    choose = Neighbourhood.choose

    def noted(self: Neighbourhood, outcomes: Outcomes[Config]) -> Config:
        threads.update(each["num_threads"] for each in threadpoolctl.threadpool_info())
        return choose(self, outcomes)

    monkeypatch.setattr(Neighbourhood, "choose", noted)
    with threadpoolctl.threadpool_limits(2):
        assert Unrecorded(Neighbourhood(Forecast(WIDE, H200), likely(WIDE))).ask() == likely(WIDE)[0]
    assert threads == {1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_goes_on_though_a_thread_was_being_served() -> None:
    """The child reads the study anew: the thread may have read half of it."""
    sampler = LocalSampler(Forecast(WIDE, H200), likely(WIDE), 0)
    study = optuna.create_study(sampler=sampler)

    def drive() -> None:
        for _ in range(5):
            study.tell(study.ask(sampler.distributions), 1.0)

    drive()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sampler._lock.alone():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            drive()
            result = [sampler.variants.variant_of(trial.params) for trial in study.trials]
            os._exit(0 if len(set(result)) == 10 and None not in result else 2)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


# The process


@FAST
def test_the_process_predicts_measured_errors_and_is_less_sure_of_what_is_less_alike() -> None:
    process = ErrorProcess()
    measured = parse("simt:64x64x16")
    alike, other, foreign = parse("simt:64x64x16,interleave=2"), parse("simt:128x32x8,thread=4x4"), parse("tiled:16")
    configs = [measured, alike, other, foreign]
    process.meet(configs)
    assert process.fit([measured], np.array([0.3])) == pytest.approx([0.3])
    mean, deviation = process.predict(configs, [])
    assert mean == pytest.approx([0.3] * 4)
    assert (np.diff(deviation) > 0).all()
    errors = np.array([0.3, -0.1])
    process.fit([measured, foreign], errors)
    mean, _ = process.predict(configs, [])
    assert mean[0] > mean[1] > mean[2] > mean[3]
    # A trial that is under way lowers the deviations around it, and moves no mean.
    before, waiting = process.predict([alike, other], []), process.predict([alike, other], [other])
    assert waiting[0] == pytest.approx(before[0])
    assert waiting[1][0] < before[1][0]
    assert waiting[1][1] < before[1][1] / 3


@FAST
def test_the_process_is_the_one_of_its_covariance() -> None:
    """Its mean and covariance are those of the formulas, solved for all configs at once."""
    process, configs = ErrorProcess(), list(searched(WIDE, H200)[::60])
    measured, others = configs[:20], configs[20:]
    errors = np.random.default_rng(1).normal(0.1, 0.05, len(measured))
    process.meet(configs[:5])
    process.fit(measured[:0] + configs[:5], errors[:5])  # in two steps, as a search does
    process.meet(configs)
    process.fit(measured, errors)
    mean, covariance = process.joint(others)
    codes = process._codes[process._rows(configs)]
    whole = _covariance(codes, codes) + 0.015**2 * np.eye(len(configs))
    fits = []
    for noise in (0.0, 0.02, 0.05, 0.1):
        inner = whole[:20, :20] + noise**2 * np.eye(20)
        centred = errors - errors.mean()
        likelihood = -0.5 * centred @ np.linalg.solve(inner, centred) - 0.5 * np.linalg.slogdet(inner)[1]
        fits.append((likelihood, errors.mean() + whole[20:, :20] @ np.linalg.solve(inner, centred), inner))
    _, expected, inner = max(fits, key=lambda each: each[0])
    assert mean == pytest.approx(expected, abs=1e-9)
    conditional = whole[20:, 20:] - whole[20:, :20] @ np.linalg.solve(inner, whole[:20, 20:])
    assert covariance == pytest.approx(0.35**2 * conditional, abs=1e-9)
    assert process.predict(others, [])[1] == pytest.approx(0.35 * np.sqrt(np.diag(conditional)), abs=1e-6)


@FAST
def test_the_expected_improvement_is_the_mean_of_what_is_below_the_best() -> None:
    mean, deviation = np.array([0.0, 0.1, -0.2]), np.array([0.1, 0.05, 0.0])
    drawn = np.random.default_rng(0).standard_normal((200_000, 3)) * deviation + mean
    assert improvement(mean, deviation, 0.05) == pytest.approx(np.maximum(0.05 - drawn, 0).mean(axis=0), rel=0.02)


# The expected gain, and the end of a search by it


def test_the_expected_gain_falls_while_the_best_is_neared() -> None:
    """The gain is None before there are enough outcomes."""
    truth, gains = Truth(EVEN), list[float | None]()
    chooser = Neighbourhood(truth.forecast, likely(EVEN), least_outcomes=24)
    search = Unrecorded(chooser)
    for _ in range(240):
        config = search.ask()
        assert config is not None
        search.tell(config, truth.us([config])[0])
        gains.append(search.expected_gain)
    estimates = [gain for gain in gains if gain is not None]
    assert gains[:24] == [None] * 24
    assert len(estimates) == 240 - 24
    assert all(0 <= gain < 1 for gain in estimates)
    assert estimates[0] > 1e-2
    assert min(estimates[:100]) > 3e-4 > max(estimates[-20:])


def test_a_sampler_reports_the_gain_of_the_study_that_began_last() -> None:
    truth = Truth(WIDE)
    sampler = LocalSampler(truth.forecast, likely(WIDE), 0)
    assert sampler.expected_gain is None
    for _ in range(2):
        search, gains = Search(sampler.variants, sampler), list[float | None]()
        for _ in range(90):
            config = search.ask()
            assert config is not None
            search.tell(config, truth.us([config])[0])
            gains.append(search.expected_gain)
        assert gains[:80] == [None] * 80
        assert gains[-1] == sampler.expected_gain is not None


@FAST
def test_samplers_of_listed_points_expect_no_gain() -> None:
    space = space_of([parse("tiled:8"), parse("tiled:16")])
    assert Search(Listed(space), RandomSampler(space, 0)).expected_gain is None


def tried_of(problem: Problem, device_key: str, config: Config, us: float | None) -> Tried:
    """The outcome of a config that takes `us` microseconds, or that crashes where `us` is None."""
    if us is None:
        record = Record(problem, device_key, config, Status.CRASHED, "it ended")
    else:
        times = Measurement((us,), us, 0.0)
        record = Record(problem, device_key, config, Status.OK, "", times, Accuracy(0.5, 0, 0))
    return Tried(record, Phases(0.1, 0.01, 0.01))


class FakeEvaluator:
    """An evaluator that returns made-up times at once."""

    given_up = ""

    def __init__(self, truth: Truth, room: int = 4) -> None:
        self._truth, self._room = truth, room
        self._waiting: list[Config] = []
        self.tried: list[Config] = []

    def submit(self, config: Config) -> None:
        """Queue a variant for `results`."""
        self._waiting.append(config)

    def room(self) -> int:
        """Number of further variants that the evaluator takes."""
        return self._room - len(self._waiting)

    def busy(self) -> bool:
        """Whether a variant waits."""
        return bool(self._waiting)

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        """The outcome of the variant that has waited longest."""
        if not self._waiting:
            time.sleep(min(timeout_s, 0.001))
            return []
        config = self._waiting.pop(0)
        self.tried.append(config)
        us = None if len(self.tried) % 9 == 0 else self._truth.us([config])[0]
        return [tried_of(self._truth.forecast.problem, H200.key, config, us)]


def explored(folder: Path, budget: Budget, sampler: str | None = None, seed: int = 0) -> tuple[Run, FakeEvaluator, str]:
    """A search for `EVEN` with made-up times, its evaluator, and why it ended."""
    plan = planned(EVEN, H200, Store(folder, folder / "none"), (("compiler", "1"),), (), None, sampler, seed, 5)
    run, evaluator = Run(plan, budget, Progress()), FakeEvaluator(Truth(EVEN))
    untyped: Any = evaluator
    try:
        stopped = run.explore(untyped, time.monotonic() + 200, 60.0)
    finally:
        plan.search.close()
    return run, evaluator, stopped


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        pytest.param(Budget(1000, 60.0, EFFORTS["quick"].gain), 8, id="quick"),
        pytest.param(Budget(1000, 60.0, EFFORTS["normal"].gain), 8, id="normal", marks=pytest.mark.slow),
        pytest.param(replace(EFFORTS["full"], trials=1000), 8, id="full", marks=pytest.mark.slow),
        # The estimate varies by some 1e-4, as the sampler's thread learns outcomes sooner or later.
        pytest.param(Budget(1000, 60.0, 1e-4), LEAST_OUTCOMES, id="less than its noise", marks=pytest.mark.slow),
    ],
)
def test_a_search_ends_where_little_is_to_be_gained_and_at_once_where_it_resumes_enough(
    tmp_path: Path, budget: Budget, most: int
) -> None:
    fewest = max(LEAST_OUTCOMES, budget.least)
    run, evaluator, stopped = explored(tmp_path, budget)
    assert stopped == "gain"
    assert run.plan.search.expected_gain is not None
    assert 0 <= run.plan.search.expected_gain < budget.gain
    assert len(set(evaluator.tried)) == len(evaluator.tried)
    assert fewest <= len(evaluator.tried) < fewest + 320
    assert run.best_us < 1.02 * min(Truth(EVEN).us(searched(EVEN, H200)))
    run, evaluator, stopped = explored(tmp_path, budget)
    assert stopped == "gain"
    assert len(evaluator.tried) <= most
    assert run.resumed >= fewest


class Foreseen(InOrder):
    """A search of a list of configs, with the gain that it expects after each outcome."""

    def __init__(self, configs: Iterable[Config], gains: list[float | None]) -> None:
        super().__init__(configs)
        self._gains = gains

    def tell(self, config: Config, entry: Entry) -> None:
        """Go on to the next gain."""
        self._gains = self._gains[1:] or self._gains

    @property
    def expected_gain(self) -> float | None:  # type: ignore[override]
        """The gain after the outcomes so far."""
        return self._gains[0]


@FAST
@pytest.mark.parametrize(
    ("gains", "trials", "stopped"),
    [
        ([None, None, 0.5, 0.02, 0.005], 4, "gain"),
        ([0.5, 0.01, 0.01, 0.0], 3, "gain"),  # a gain that equals the limit is worth a trial
        ([None], 9, "space"),
        ([1.0, 0.02], 9, "space"),
    ],
)
def test_a_search_goes_on_until_the_expected_gain_is_below_the_limit(
    gains: list[float | None], trials: int, stopped: str
) -> None:
    configs = [parse(f"naive:8x{width}") for width in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    run = Run(Plan(Foreseen(configs, gains), "local", {}, 3, (), ()), Budget(100, 60.0, 0.01), Progress())
    evaluator: Any = FakeEvaluator(Truth(EVEN), room=1)
    assert run.explore(evaluator, time.monotonic() + 60, 60.0) == stopped
    assert evaluator.tried == configs[:trials]


@FAST
def test_a_search_tries_its_least_number_of_variants_whatever_the_gain() -> None:
    configs = [parse(f"naive:8x{width}") for width in (1, 2, 4, 8, 16, 32)]
    run = Run(Plan(Foreseen(configs, [0.0]), "local", {}, 3, (), ()), Budget(100, 60.0, 0.01, 4), Progress())
    evaluator: Any = FakeEvaluator(Truth(EVEN), room=1)
    assert run.explore(evaluator, time.monotonic() + 60, 60.0) == "gain"
    assert evaluator.tried == configs[:4]


@FAST
def test_what_the_library_would_run_is_waited_for_though_nothing_is_to_be_gained() -> None:
    first = parse("tiled:16")
    plan = Plan(Foreseen(map(parse, ("naive", "tiled:8")), [0.0]), "local", {}, 3, (first,), (first,))
    evaluator: Any = FakeEvaluator(Truth(EVEN), room=3)
    run = Run(plan, Budget(100, 60.0, 0.01), Progress())
    assert run.explore(evaluator, time.monotonic() + 60, 60.0) == "gain"
    assert evaluator.tried == [first]


def test_a_search_without_an_estimate_or_a_limit_of_the_gain_ends_by_its_trials(tmp_path: Path) -> None:
    assert explored(tmp_path / "a", Budget(70, 60.0, 0.5))[2] == "trials"  # too few for an expected gain
    run, evaluator, stopped = explored(tmp_path / "b", Budget(120, 60.0))
    assert (stopped, len(evaluator.tried)) == ("trials", 120)
    assert run.plan.search.expected_gain is not None


SLOW_PAIRS = [pytest.param("local", other, marks=pytest.mark.slow) for other in ("gp", "local")]


@pytest.mark.parametrize(("first", "second"), [("gp", "local"), ("tpe", "random"), *SLOW_PAIRS])
def test_one_journal_serves_all_samplers(tmp_path: Path, first: str, second: str) -> None:
    """A sampler resumes the trials of another one, and repeats none of them. A sampler of listed configs resumes no
    trial of another config."""
    before, tried, _ = explored(tmp_path, Budget(60, 60.0), first)
    assert not before.resumed
    assert len(tried.tried) == 60
    after, more, stopped = explored(tmp_path, Budget(100, 60.0), second, 1)
    assert stopped == "trials"
    resumed = set(after.plan.earlier)
    assert resumed <= set(tried.tried)
    if second == "local" or first == "tpe":
        assert len(resumed) == 60
    else:
        assert after.plan.listed is not None
        assert resumed == set(tried.tried) & after.plan.listed
        assert 24 <= len(resumed) < 60
    assert len(more.tried) == 100 - len(resumed)
    assert not resumed & set(more.tried)
    assert after.best_us <= min(entry.time_us for entry in after.plan.earlier.values() if entry.time_us)
    third, _, _ = explored(tmp_path, Budget(1, 60.0), "local")
    assert set(third.plan.earlier) == {*tried.tried, *more.tried}
    (path,) = (tmp_path / "trials").glob("*.jsonl")
    assert len(path.read_text().splitlines()) == 1 + len(third.plan.earlier) + len({*tried.tried} & {*more.tried})


def test_a_tuning_says_that_it_ended_by_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up times follow the model of the processor."""
    problem, info = Problem(24, 20, 16), host_info()
    forecast, configs = Forecast(problem, info), list[Config]()

    def timed(self: Bench, config: Config, stop_above_us: float = math.inf) -> Tried:
        configs.append(config)
        return tried_of(problem, info.key, config, forecast.us([config])[0])

    monkeypatch.setattr(Bench, "try_variant", timed)
    monkeypatch.setattr("tilewright.tuner.measure.evaluate._compiled", lambda *arguments: 0.0)
    monkeypatch.setattr(
        sampler_module, "Neighbourhood", lambda *arguments: Neighbourhood(*arguments, least_outcomes=30)
    )
    result = tune(problem, device="host", isolation=False, trials=300, seconds=60, keep=1, effort="quick")
    assert (result.stopped, result.sampler) == ("gain", "local")
    assert result.expected_gain is not None
    assert 0 <= result.expected_gain < 0.01
    assert 30 <= result.trials == len(configs) < 300
    listed = tune(problem, device="host", isolation=False, trials=60, seconds=60, keep=1, sampler="random")
    assert (listed.stopped, listed.expected_gain) == ("trials", None)
