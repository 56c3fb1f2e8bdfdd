"""A search: an Optuna study in memory that answers with points of a space, each at most once."""

import math
from collections import deque
from collections.abc import Iterable

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ...codegen.errors import ConfigError, check
from .sampler import distributions
from .space import Mask, Point, Space


class Search:
    """Asks a sampler of Optuna's public interface, ours or another, by ask and tell.

    Several points may be asked before one is told. The sampler sees positions of values, as `distributions`
    has them, and the logarithm of the time; what failed is a failed trial, which Optuna's own samplers pass over.
    """

    def __init__(self, space: Space, sampler: optuna.samplers.BaseSampler, numbers: bool = True) -> None:
        self.space = space
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))  # a new study is no news
        self._study = optuna.create_study(sampler=sampler)
        optuna.logging.set_verbosity(verbosity)
        self._distributions = distributions(space, numbers)
        self._unseen: Mask = np.ones(len(space), dtype=np.bool_)
        self._queue: deque[Point] = deque()
        self._running: dict[Point, int] = {}

    def seed(self, points: Iterable[Point]) -> None:
        """First guesses, handed out before anything else; known and invalid ones are passed over."""
        self._queue.extend(point for point in points if point in self.space)

    def ask(self) -> Point | None:
        """A valid point that was neither asked nor told before; None when there is none left."""
        while self._queue:
            point = self._queue.popleft()
            if self._unseen[self.space.index(point)]:
                return self._start(point)
        if not self._unseen.any():
            return None
        try:
            trial = self._study.ask(self._distributions)
        except ImportError as error:
            sampler = type(self._study.sampler).__name__
            raise ConfigError(f"the sampler {sampler} needs a package that is missing: {error}") from error
        point = tuple(trial.params.get(d.name, 0) for d in self.space.dimensions)
        if point in self.space and self._unseen[self.space.index(point)]:
            return self._mark(point, trial.number)
        # A sampler that knows the box alone: its suggestion fails, and the nearest that may be tried is another trial.
        self._study.tell(trial, state=TrialState.FAIL)
        nearest = self.space.nearest(point, self._unseen)
        assert nearest is not None
        return self._start(nearest)

    def tell(self, point: Point, time_us: float | None) -> None:
        """The time at a point, None if it failed. A point that was never asked counts as seen from now on."""
        check(time_us is None or time_us > 0, f"a time must be positive, got {time_us}")
        value, state = (None, TrialState.FAIL) if time_us is None else (math.log(time_us), TrialState.COMPLETE)
        number = self._running.pop(point, None)
        if number is None:
            self._add(point, state, value)
        else:
            self._study.tell(number, value, state)

    def _start(self, point: Point) -> Point:
        """A running trial at a point of our choice."""
        self._add(point, TrialState.RUNNING)
        return self._mark(point, len(self._study.get_trials(deepcopy=False)) - 1)

    def _add(self, point: Point, state: TrialState, value: float | None = None) -> None:
        self._unseen[self.space.index(point)] = False
        values = zip(self.space.dimensions, point, strict=True)
        params = {d.name: position for d, position in values if d.name in self._distributions}
        self._study.add_trial(create_trial(state=state, params=params, distributions=self._distributions, value=value))

    def _mark(self, point: Point, number: int) -> Point:
        self._running[point] = number
        self._unseen[self.space.index(point)] = False
        return point
