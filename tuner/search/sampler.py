"""Samplers that choose among listed points, as Optuna's samplers choose in a box; and two that need no model.

Any of them drives a study of Optuna's by itself, if the study asks for `distributions(space)`:

    study = optuna.create_study(sampler=GaussianSampler(space, seed=0))
    trial = study.ask(distributions(space))
    study.tell(trial, log_time)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from ...codegen.errors import ConfigError, check
from .space import Mask, Point, Space


def distributions(space: Space, numbers: bool = True) -> dict[str, BaseDistribution]:
    """What Optuna is told of a space: for each parameter that varies, the position of its value among the choices.

    Without `numbers`, any two positions are as far apart as any others, like words.
    """
    found: dict[str, BaseDistribution] = {}
    for dimension in space.dimensions:
        size = len(dimension.choices)
        if size > 1:
            order = numbers and dimension.ordered
            found[dimension.name] = IntDistribution(0, size - 1) if order else CategoricalDistribution(range(size))
    return found


class Outcomes:
    """What the trials of a study say about the points of a space. A point is a row of the space's matrix here."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._told: list[tuple[int, float]] = []
        self._running: dict[int, int | None] = {}
        self._read = 0
        self.unseen: Mask = np.ones(len(space), dtype=np.bool_)
        """Points that no trial has."""

    def read(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in what is new in all the trials of the study; those that hold no point of the space do not count."""
        numbers = [*self._running, *range(self._read, len(trials))]
        self._running = {}
        self._read = len(trials)
        for number in numbers:
            trial = trials[number]
            point = tuple(trial.params.get(d.name, 0) for d in self._space.dimensions)
            row = self._space.index(point) if trial.params and point in self._space else None
            if row is not None:
                self.unseen[row] = False
            if not trial.state.is_finished():
                self._running[number] = row
            elif row is not None:
                self._told.append((row, math.inf if trial.value is None else trial.value))

    def __len__(self) -> int:
        """Trials that are running or done."""
        return len(self._told) + len(self.pending)

    @property
    def rows(self) -> NDArray[np.intp]:
        """Points of the trials that are done, in the order in which they were."""
        return np.array([row for row, _ in self._told], dtype=np.intp)

    @property
    def values(self) -> NDArray[np.float64]:
        """Logarithm of the time of each of `rows`, infinite where the trial failed."""
        return np.array([value for _, value in self._told], dtype=np.float64)

    @property
    def pending(self) -> NDArray[np.intp]:
        """Points of the trials that are running."""
        return np.array([row for row in self._running.values() if row is not None], dtype=np.intp)


class ListedSampler(BaseSampler):
    """Chooses a point of the space that no trial of its study has; a subclass says which. One study for each."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.random = np.random.default_rng(seed)
        self._outcomes = Outcomes(space)
        self._distributions = distributions(space)

    def choose(self, outcomes: Outcomes) -> int:
        """The row of an unseen point; called only while there is one."""
        raise NotImplementedError

    def farthest(self, outcomes: Outcomes) -> int:
        """The one of some random unseen points that is farthest from all seen ones."""
        rows = self.random.permutation(np.flatnonzero(outcomes.unseen))[:256]
        seen = np.flatnonzero(~outcomes.unseen)[:256]
        if not seen.size:
            return int(rows[0])
        gaps = np.stack([self.space.distances(self.space.points[int(row)], rows) for row in seen])
        return int(rows[np.argmax(gaps.min(axis=0))])

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._outcomes.read(study.get_trials(deepcopy=False))
        check(bool(self._outcomes.unseen.any()), "every point of the space was tried")
        point: Point = self.space.points[self.choose(self._outcomes)]
        return {d.name: i for d, i in zip(self.space.dimensions, point, strict=True) if d.name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ConfigError(f"{param_name} does not vary in this space, or another distribution was asked for")


class RandomSampler(ListedSampler):
    """Any unseen point, each as likely as the others."""

    def choose(self, outcomes: Outcomes) -> int:
        return int(self.random.choice(np.flatnonzero(outcomes.unseen)))


class ExhaustiveSampler(ListedSampler):
    """Every point in the order of the space."""

    def choose(self, outcomes: Outcomes) -> int:
        return int(np.argmax(outcomes.unseen))
