"""A search: an Optuna study in memory that answers with points of a space, each at most once; and the samplers by their
names. To be imported where a search begins: Optuna is slow to import."""

import importlib.util
import inspect
import math
import warnings
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ...codegen.errors import ConfigError, check, check_type, meant
from ...runtime.check.threads import one_thread
from ..settings import SAMPLERS
from .gaussian import GaussianSampler
from .sampler import ExhaustiveSampler, RandomSampler, distributions
from .space import Mask, Point, Space

OPTUNA = "optuna:"
_TPE = OPTUNA + "TPESampler"
_PACKAGES = {"CmaEsSampler": ("cmaes",), "GPSampler": ("torch", "scipy"), "QMCSampler": ("scipy",)}
"""What samplers of Optuna's import once they are asked, some of them after the first outcomes alone."""


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
            with one_thread():  # a model's matrices are small, and others use the other cores
                trial = self._study.ask(self._distributions)
        except ImportError as error:
            sampler = type(self._study.sampler).__name__
            raise ConfigError(f"the sampler {sampler} needs a package that is missing: {error}") from error
        params = trial.params  # a copy each time
        point = tuple(params.get(d.name, 0) for d in self.space.dimensions)
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


def check_sampler(name: str) -> None:
    """Raise ConfigError for a name that `make_search` does not know, ArgumentTypeError for no name."""
    check_type("sampler", name, str, "a name")
    if name.startswith(OPTUNA):
        known = _of_optuna()
        listed = f"sampler must be one of {', '.join(known)}, which need no arguments"
        check(name in known, f"{listed}, got {name!r}{meant(name, known)}")
    else:
        check(
            name in SAMPLERS,
            f"sampler must be one of {', '.join(SAMPLERS)} or {OPTUNA}CLASS, got {name!r}{meant(name, SAMPLERS)}",
        )


def make_search(name: str, space: Space, seed: int) -> Search:
    """The search called `name`. Raises ConfigError for an unknown one, and for one that needs a package that is
    missing."""
    check_sampler(name)
    if name == "tpe":
        name = _TPE
    if name.startswith(OPTUNA):
        kind = _of_optuna()[name]
        packages = _PACKAGES.get(kind.__name__, ())
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        check(not missing, f"the sampler {name} needs what is not installed: pip install {' '.join(missing)}")
        options = {"seed": seed, "warn_independent_sampling": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            sampler = kind(**{k: v for k, v in options.items() if k in inspect.signature(kind).parameters})
    else:
        kinds = {"gp": GaussianSampler, "random": RandomSampler, "exhaustive": ExhaustiveSampler}
        sampler = kinds[name](space, seed)
    # Positions taken for numbers mislead Optuna's TPE: on recordings it needs twice as many outcomes or more.
    return Search(space, sampler, numbers=name != _TPE)


def _of_optuna() -> dict[str, Any]:
    """Optuna's samplers that can be made without an argument, by our names of them."""
    found = {}
    for name in sorted(optuna.samplers.__all__):
        kind = getattr(optuna.samplers, name)
        if not inspect.isclass(kind) or inspect.isabstract(kind):
            continue
        needed = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
        if not needed and name != "BruteForceSampler":  # stops its study, as only `optimize` may; ours is `exhaustive`
            found[OPTUNA + name] = kind
    return found
