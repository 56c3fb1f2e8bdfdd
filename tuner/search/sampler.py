"""Samplers for Optuna that choose among variants: points of a listed space, or configs by a model.

Each of them drives a user's own studies, one after another or in threads, if a study asks for its `distributions`:

    sampler = GaussianSampler(space, seed=0)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask(sampler.distributions)
    study.tell(trial, log_time)

or, for configs by a model, with `sampler.variants.variant_of(trial.params)` as the config to time:

    likely = [choice.config for choice in shortlist(problem, info, records, 240)]
    sampler = LocalSampler(Forecast(problem, info), likely)

A study has one objective, which is minimised or maximised by its direction; a sampler may serve several studies.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Generic, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from ...codegen.config import Config
from ...codegen.errors import ConfigError, check
from ...codegen.families import families, family_named
from ...codegen.leaf import Value
from ...runtime.locks import Lock
from ..choose.forecast import Forecast
from ..recording.points import FAMILY
from .neighbourhood import Neighbourhood
from .outcomes import Chooser, ExhaustedError, Outcomes, V
from .space import Mask, Point, Space


class Variants(Protocol[V]):
    """Variants as the parameters of a study's trials."""

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Distributions of all parameters that vary, by name."""

    def params_of(self, variant: V) -> dict[str, Any]:
        """The parameters of a variant."""

    def variant_of(self, params: Mapping[str, Any]) -> V | None:
        """The variant with these parameters, None where there is none."""

    def nearest(self, params: Mapping[str, Any], seen: "set[V]") -> V | None:
        """The variant nearest to these parameters that is not among the `seen` ones; None where there is none."""


def distributions(space: Space, numbers: bool = True) -> dict[str, BaseDistribution]:
    """Distributions of a space's parameters that vary: the position of a value among the choices.

    Without `numbers`, any two positions are as far apart as any others, like words.
    """
    return {
        d.name: IntDistribution(0, len(d.choices) - 1)
        if numbers and d.ordered
        else CategoricalDistribution(range(len(d.choices)))
        for d in space.dimensions
        if len(d.choices) > 1
    }


class Listed(Generic[V]):
    """The points of a space as variants, or `variants` that lie at these points."""

    def __init__(self, space: Space, variants: Sequence[Any] | None = None, numbers: bool = True) -> None:
        self.space, self.distributions = space, distributions(space, numbers)
        at: Sequence[Any] = space.points if variants is None else variants
        self._at: dict[Point, V] = dict(zip(space.points, at, strict=True))
        self._point_of = {variant: point for point, variant in self._at.items()}

    def params_of(self, variant: V) -> dict[str, Any]:
        """The positions of all values that vary. Raises ConfigError for a variant that is not at a point."""
        check(variant in self._point_of, f"not a point of this space: {variant}")
        values = zip(self.space.dimensions, self._point_of[variant], strict=True)
        return {d.name: position for d, position in values if d.name in self.distributions}

    def variant_of(self, params: Mapping[str, Any]) -> V | None:
        """The variant at these positions; None if there is none, or if a position is missing, as in a trial that
        another thread is filling."""
        is_complete = bool(params) and self.distributions.keys() <= params.keys()
        return self._at.get(self._point(params)) if is_complete else None

    def nearest(self, params: Mapping[str, Any], seen: set[V]) -> V | None:
        """The nearest variant that is not among the `seen` ones; None where there is none."""
        point = self.space.nearest(self._point(params), self.unseen(seen))
        return None if point is None else self._at[point]

    def unseen(self, seen: set[V]) -> Mask:
        """A flag for each point: whether its variant is not among the `seen` ones."""
        flags: Mask = np.ones(len(self.space), dtype=np.bool_)
        flags[[self.space.index(self._point_of[variant]) for variant in seen]] = False
        return flags

    def _point(self, params: Mapping[str, Any]) -> Point:
        return tuple(params.get(d.name, 0) for d in self.space.dimensions)


class _Study(Generic[V]):
    """A study that a sampler serves: its outcomes, and the chooser of its variants."""

    def __init__(self, variants: Variants[V], chooser: Chooser[V]) -> None:
        self.outcomes, self.chooser = Outcomes[V](), chooser
        self._variants = variants
        self._open: set[int] = set()
        self._read = 0

    def read(self, trials: Sequence[FrozenTrial], sign: float) -> None:
        """Read new outcomes from all trials, their values times `sign`; a trial without a variant does not count."""
        numbers = [*sorted(self._open), *range(self._read, len(trials))]
        self._read = max(self._read, len(trials))
        for number in numbers:
            trial = trials[number]
            variant = self._variants.variant_of(trial.params)
            if not trial.state.is_finished():
                self._open.add(number)
                if variant is not None:  # a trial gets its parameters only some time after they were chosen
                    self.outcomes.begin(number, variant)
                continue
            self._open.discard(number)
            if variant is not None:
                self.outcomes.end(number, variant, None if trial.value is None else sign * trial.value)
            else:
                self.outcomes.running.pop(number, None)


class VariantSampler(BaseSampler, Generic[V]):
    """Chooses a variant that no trial of its study has; a subclass says which."""

    def __init__(self, variants: Variants[V], seed: int | None) -> None:
        self.variants = variants
        self.random = np.random.default_rng(seed)
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        """The state without studies, whose storages hold all outcomes: Optuna's users pickle samplers."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_studies")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = Lock(self._forget)
        self._forget()

    def _forget(self) -> None:
        """Drop all outcomes and read the studies anew, as in a child that was forked while a thread read one."""
        self._studies: WeakKeyDictionary[Study, _Study[V]] = WeakKeyDictionary()

    def chooser(self) -> Chooser[V]:
        """A chooser for a study that is new."""
        raise NotImplementedError

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Distributions that a study must ask for."""
        return self.variants.distributions

    def reseed_rng(self) -> None:
        self.random = np.random.default_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        count = len(study.directions)
        check(count == 1, f"{type(self).__name__} serves a study of one objective, got {count}: name one direction")
        sign = -1.0 if study.direction is StudyDirection.MAXIMIZE else 1.0
        with self._lock.alone():  # threads of one study share its outcomes
            served = self._studies.get(study)
            if served is None:
                served = self._studies[study] = _Study(self.variants, self.chooser())
            served.read(study.get_trials(deepcopy=False), sign)
            variant = served.chooser.choose(served.outcomes)
            served.outcomes.begin(trial.number, variant)
        params = self.variants.params_of(variant)
        return {name: value for name, value in params.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ConfigError(f"{param_name} does not vary in this space, or another distribution was asked for")


class ListedSampler(VariantSampler[Point]):
    """Chooses a point of a listed space; a subclass says which."""

    def __init__(self, space: Space, seed: int | None) -> None:
        self.space = space
        self.listed = Listed[Point](space)
        super().__init__(self.listed, seed)

    def chooser(self) -> "ListedChooser":
        return ListedChooser(self)

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        """The row of an unseen point. The default chooser calls this, only while there is one."""
        raise NotImplementedError


class ListedChooser:
    """Chooses a point of a listed space that no trial has, the one at the row that its sampler names. A subclass keeps
    a model of one study."""

    def __init__(self, sampler: ListedSampler) -> None:
        self.sampler = sampler
        self.space = sampler.space

    def choose(self, outcomes: Outcomes[Point]) -> Point:
        """An unseen point. Raises ExhaustedError where there is none."""
        unseen = self.sampler.listed.unseen(outcomes.seen)
        check(bool(unseen.any()), "every point of the space was tried", ExhaustedError)
        return self.space.points[self.row(outcomes, unseen)]

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        """The row of an unseen point; called only while there is one."""
        return self.sampler.row(outcomes, unseen)


class RandomSampler(ListedSampler):
    """Chooses any unseen point, each as likely as the others."""

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        return int(self.random.choice(np.flatnonzero(unseen)))


class ExhaustiveSampler(ListedSampler):
    """Chooses every point in the order of the space."""

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        return int(np.argmax(unseen))


class Parameters:
    """The configs of all families as variants: a parameter of a trial for each parameter of any family, in plain
    values. A parameter that a config's family lacks has its first value, which means nothing."""

    def __init__(self) -> None:
        self.distributions = _distributions()

    def params_of(self, variant: Config) -> dict[str, Any]:
        """The family and the values of all parameters."""
        params = {
            name: each.low if isinstance(each, IntDistribution) else each.choices[0]
            for name, each in self.distributions.items()
        }
        return params | {FAMILY: variant.family, **dict(variant.values)}

    def variant_of(self, params: Mapping[str, Any]) -> Config | None:
        """The config with these values; None where no config has them."""
        try:
            kind = family_named(params[FAMILY])
            return kind.of({leaf.name: params[leaf.name] for leaf in kind.leaves()})
        except (KeyError, ConfigError):
            return None

    def nearest(self, params: Mapping[str, Any], seen: set[Config]) -> Config | None:
        """None: this class cannot tell which configs are legal for a problem."""
        return None


@cache
def _distributions() -> dict[str, Any]:
    distributions: dict[str, Any] = {FAMILY: CategoricalDistribution([*families()])}
    choices: dict[str, dict[Value, None]] = {}
    for leaf in (leaf for kind in families().values() for leaf in kind.leaves()):
        if isinstance(leaf.choices, range):
            distributions[leaf.name] = IntDistribution(leaf.choices[0], leaf.choices[-1])
        else:
            choices.setdefault(leaf.name, {}).update(dict.fromkeys(map(leaf.plain, leaf.choices)))
    return distributions | {name: CategoricalDistribution([*values]) for name, values in choices.items()}


class LocalSampler(VariantSampler[Config]):
    """Chooses configs for a problem on a device, the configs of `start` first."""

    def __init__(self, forecast: Forecast, start: Sequence[Config], seed: int | None = None) -> None:
        super().__init__(Parameters(), seed)
        self.forecast, self.start = forecast, tuple(dict.fromkeys(start))
        self._latest: Neighbourhood | None = None

    @property
    def expected_gain(self) -> float | None:
        """Share of the best time that the next AHEAD variants of the newest study are expected to save; None while too
        few outcomes are known."""
        return None if self._latest is None else self._latest.expected_gain

    def chooser(self) -> Neighbourhood:
        self._latest = Neighbourhood(self.forecast, self.start)
        return self._latest
