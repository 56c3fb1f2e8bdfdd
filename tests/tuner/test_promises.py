"""Our samplers keep the promises of Optuna's: they serve users' own studies, in threads and in either direction."""

import gc
import itertools
import math
import pickle
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import shortlist
from tilewright.tuner.search.gaussian import GaussianSampler
from tilewright.tuner.search.outcomes import ExhaustedError
from tilewright.tuner.search.sampler import ExhaustiveSampler, LocalSampler, RandomSampler, VariantSampler
from tilewright.tuner.search.space import Dimension, Space

pytestmark = pytest.mark.fast

SPACE = Space(
    (
        Dimension("M", (8, 16, 32)),
        Dimension("N", ("absent", 8, 16)),
        Dimension("ONE", (1,)),
        Dimension("KIND", ("a", "b", "c")),
    ),
    tuple((m, n, 0, kind) for m, n, kind in itertools.product(range(3), range(3), range(3)) if m != n),
)
PROBLEM, DEVICE = Problem.parse("300x500x700"), KNOWN["nvidia-h200"]
Sampler = VariantSampler[Any]
Make = Callable[[], Sampler]


@cache
def begin() -> tuple[Config, ...]:
    """The likeliest configs."""
    return tuple(choice.config for choice in shortlist(PROBLEM, DEVICE, (), 40))


MAKERS: dict[str, Make] = {
    "local": lambda: LocalSampler(Forecast(PROBLEM, DEVICE), begin(), 3),
    "gp": lambda: GaussianSampler(SPACE, 3),
    "random": lambda: RandomSampler(SPACE, 3),
    "exhaustive": lambda: ExhaustiveSampler(SPACE, 3),
}
LISTED = ("gp", "random", "exhaustive")
FIXED = ("local", "exhaustive")
"""Samplers that draw no random numbers."""


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    """Name of each sampler, in turn."""
    return str(request.param)


@pytest.fixture
def make(name: str) -> Make:
    """A new sampler of that name, each time with the same seed."""
    return MAKERS[name]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Optuna logs each trial unless its verbosity is lower."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def suggest(trial: optuna.Trial, distributions: dict[str, BaseDistribution]) -> dict[str, Any]:
    """All parameters of a trial, suggested as a user's objective does it."""
    return {
        name: trial.suggest_int(name, each.low, each.high)
        if isinstance(each, IntDistribution)
        else trial.suggest_categorical(name, each.choices)  # type: ignore[attr-defined]
        for name, each in distributions.items()
    }


def cost(variant: Any) -> float:
    """A value for each variant, unlike those of similar variants."""
    text = repr(variant)
    return 1.0 + sum(place * ord(letter) for place, letter in enumerate(text, 1)) % 97 / 97


def variants_of(sampler: Sampler, study: optuna.Study) -> list[Any]:
    """The variants of a study's trials, in their order."""
    return [sampler.variants.variant_of(trial.params) for trial in study.trials]


def drive(study: optuna.Study, sampler: Sampler, count: int, sign: float = 1.0) -> list[Any]:
    """Run `count` trials of a study one after the other, and return their variants."""
    variants = []
    for _ in range(count):
        trial = study.ask(sampler.distributions)
        variants.append(sampler.variants.variant_of(trial.params))
        study.tell(trial, sign * cost(variants[-1]))
    return variants


def test_parallel_trials_repeat_nothing(make: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial gets its parameters a while after they were chosen."""
    sampler = make()
    study = optuna.create_study(sampler=sampler)
    chosen = sampler.sample_relative

    def slow(*arguments: Any) -> dict[str, Any]:
        variants = chosen(*arguments)
        time.sleep(0.01)
        return variants

    monkeypatch.setattr(sampler, "sample_relative", slow)

    def objective(trial: optuna.Trial) -> float:
        variant = sampler.variants.variant_of(suggest(trial, sampler.distributions))
        return cost(variant)

    count = 60 if name == "local" else len(SPACE)
    study.optimize(objective, n_trials=count, n_jobs=4)
    variants = variants_of(sampler, study)
    assert None not in variants
    assert len(set(variants)) == len(variants) == count
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_a_trial_that_has_part_of_its_parameters_takes_nothing_from_others(make: Make, name: str) -> None:
    """A study writes the parameters of a trial one by one, while other threads ask for other trials."""
    sampler = make()
    study = optuna.create_study(sampler=sampler)
    first_names = dict(itertools.islice(sampler.distributions.items(), 1))
    variants = []
    for _ in range(len(SPACE) // 2):
        half, whole = study.ask(first_names), study.ask(sampler.distributions)
        variants.append(sampler.variants.variant_of(whole.params))
        variants.append(sampler.variants.variant_of(suggest(half, sampler.distributions)))
        for trial, variant in zip((whole, half), variants[-2:]):
            study.tell(trial, cost(variant))
    assert None not in variants
    assert len(set(variants)) == len(SPACE)


@pytest.mark.parametrize("name", LISTED)
def test_every_point_is_tried_before_the_space_is_exhausted(make: Make) -> None:
    sampler = make()
    study = optuna.create_study(sampler=sampler)
    assert sorted(drive(study, sampler, len(SPACE))) == sorted(SPACE.points)
    with pytest.raises(ExhaustedError, match="every point of the space was tried"):
        study.ask(sampler.distributions)


def test_a_study_that_maximises_gets_what_one_that_minimises_gets(make: Make) -> None:
    samplers, variants = (make(), make()), []
    for sampler, direction, sign in zip(samplers, ("minimize", "maximize"), (1.0, -1.0)):
        study = optuna.create_study(sampler=sampler, direction=direction)
        variants.append(drive(study, sampler, len(SPACE), sign))
        assert study.best_value == sign * min(map(cost, variants[-1]))
    assert variants[0] == variants[1]


@pytest.mark.parametrize("name", ["local", "gp"])
def test_the_direction_matters_to_a_model(make: Make) -> None:
    """Without a difference here, the test before this one would show nothing."""
    variants = []
    for direction in ("minimize", "maximize"):
        sampler = make()
        study = optuna.create_study(sampler=sampler, direction=direction)
        variants.append(drive(study, sampler, 32 if isinstance(sampler, LocalSampler) else len(SPACE)))
    assert variants[0] != variants[1]


def test_a_study_of_two_objectives_is_refused_in_a_line(make: Make) -> None:
    sampler = make()
    study = optuna.create_study(sampler=sampler, directions=["minimize", "maximize"])
    with pytest.raises(ConfigError, match=r"^\w+Sampler serves a study of one objective, got 2: name one direction$"):
        study.ask(sampler.distributions)


def test_other_random_numbers_give_other_draws(make: Make, name: str) -> None:
    """Optuna reseeds the sampler of each thread."""
    variants = []
    for reseeded in (False, False, True):
        sampler = make()
        if reseeded:
            sampler.reseed_rng()
        variants.append(drive(optuna.create_study(sampler=sampler), sampler, len(SPACE)))
    assert variants[0] == variants[1]
    assert (variants[0] == variants[2]) == (name in FIXED)


def test_one_sampler_serves_studies_one_after_another(make: Make) -> None:
    sampler = make()
    for sign in (1.0, -1.0):
        study = optuna.create_study(sampler=sampler)
        variants = drive(study, sampler, len(SPACE), sign)
        assert len(set(variants)) == len(SPACE)
    assert len(sampler._studies) == 1  # the first one is gone
    del study
    gc.collect()
    assert len(sampler._studies) == 0


def test_studies_in_turn_know_nothing_of_each_other(make: Make, name: str) -> None:
    """Two studies of one sampler minimise and maximise the same values."""
    sampler = make()
    studies = [optuna.create_study(sampler=sampler, direction=each) for each in ("minimize", "maximize")]
    variants: list[list[Any]] = [[], []]
    for _ in range(len(SPACE)):
        for study, row in zip(studies, variants):
            row.extend(drive(study, sampler, 1))
    assert [len(set(each)) for each in variants] == [len(SPACE)] * 2
    for direction, row in zip(("minimize", "maximize"), variants) if name in FIXED else ():
        alone = make()
        assert row == drive(optuna.create_study(sampler=alone, direction=direction), alone, len(SPACE))


@pytest.mark.parametrize("running", [False, True])
def test_a_trial_of_other_parameters_is_passed_over(make: Make, running: bool) -> None:
    """A trial without parameters is passed over too, however good either was."""
    variants = []
    for has_foreign in (False, True):
        sampler = make()
        study = optuna.create_study(sampler=sampler)
        if has_foreign:
            other = {"other": FloatDistribution(0, 2)}
            state, value = (TrialState.RUNNING, None) if running else (TrialState.COMPLETE, -1e9)
            study.add_trial(create_trial(state=state, params={"other": 1.0}, distributions=other, value=value))
            study.add_trial(create_trial(state=state, value=value))
        variants.append(drive(study, sampler, len(SPACE)))
    assert variants[0] == variants[1]


def test_a_trial_that_the_user_added_is_not_repeated(make: Make) -> None:
    sampler, other = make(), make()
    first, second = drive(optuna.create_study(sampler=other), other, 2)
    study = optuna.create_study(sampler=sampler)
    for variant, state in ((first, TrialState.COMPLETE), (second, TrialState.RUNNING)):
        value = None if state is TrialState.RUNNING else 1.0
        params = sampler.variants.params_of(variant)
        study.add_trial(create_trial(state=state, params=params, distributions=sampler.distributions, value=value))
    variants = drive(study, sampler, len(SPACE) - 2)
    assert not {first, second} & set(variants)
    assert len(set(variants)) == len(SPACE) - 2


def test_variants_that_the_user_queues_come_first_and_cost_no_others(make: Make, name: str) -> None:
    sampler, other = make(), make()
    queued = drive(optuna.create_study(sampler=other), other, len(SPACE))[4:8]
    study = optuna.create_study(sampler=sampler)
    for variant in queued:
        study.enqueue_trial(sampler.variants.params_of(variant))
    variants = drive(study, sampler, len(SPACE))
    assert variants[:4] == queued
    assert len(set(variants)) == len(SPACE)
    if name == "local":
        assert set(begin()[: len(SPACE) - 8]) <= set(variants)


def test_a_trial_that_fails_is_not_repeated(make: Make, name: str) -> None:
    sampler = make()
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        variant = sampler.variants.variant_of(suggest(trial, sampler.distributions))
        if trial.number % 3 == 0:
            raise RuntimeError("it does not work")
        return math.nan if trial.number % 3 == 1 else cost(variant)

    study.optimize(objective, n_trials=len(SPACE), catch=RuntimeError)
    variants = variants_of(sampler, study)
    assert len(set(variants)) == len(SPACE)
    assert [trial.state for trial in study.trials].count(TrialState.FAIL) == 2 * len(SPACE) // 3


def test_a_parameter_that_does_not_vary_cannot_be_suggested(make: Make) -> None:
    sampler = make()
    with pytest.raises(ConfigError, match="OTHER does not vary"):
        optuna.create_study(sampler=sampler).ask().suggest_int("OTHER", 0, 3)


@pytest.mark.parametrize("saved", [False, True])
def test_a_study_goes_on_where_another_process_left_it(make: Make, name: str, saved: bool) -> None:
    """The storage has all outcomes. A sampler from a pickle repeats no variant, and a new one does not either."""
    variants = []
    for resumed in (False, True):
        storage = optuna.storages.InMemoryStorage()
        sampler = make()
        study = optuna.create_study(storage=storage, study_name="a", sampler=sampler)
        first = drive(study, sampler, 9)
        if resumed:
            sampler = pickle.loads(pickle.dumps(sampler)) if saved else make()
            study = optuna.load_study(storage=storage, study_name="a", sampler=sampler)
        variants.append(first + drive(study, sampler, 9))
    assert len(set(variants[1])) == 18
    if name in FIXED or (saved and name == "random"):
        assert variants[0] == variants[1]
