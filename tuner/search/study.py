"""A search: an Optuna study in memory that suggests each variant at most once; and the samplers by their names.

Optuna is slow to import: import this module where a search begins.
"""

import importlib.util
import inspect
import math
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Generic

import optuna
from optuna.trial import TrialState

from ...codegen.config import Config
from ...codegen.errors import ConfigError, check, check_type, nearest_of
from ...runtime.locks import one_thread
from ..choose.forecast import Forecast
from ..settings import GP, LOCAL, SAMPLERS
from .gaussian import GaussianSampler
from .outcomes import ExhaustedError, V
from .sampler import ExhaustiveSampler, Listed, LocalSampler, RandomSampler, Variants
from .space import Space

OPTUNA = "optuna:"
_TPE = OPTUNA + "TPESampler"
_PACKAGES = {"CmaEsSampler": ("cmaes",), "GPSampler": ("torch", "scipy"), "QMCSampler": ("scipy",)}
"""Packages that samplers of Optuna's import at a suggestion, some only after the first outcomes."""


class Search(Generic[V]):
    """Drives a sampler, ours or another, by Optuna's public ask and tell.

    Several variants may be asked before one is told. The study minimises the logarithm of the time; a variant that
    failed is a failed trial, which Optuna's own samplers pass over.
    """

    def __init__(self, variants: Variants[V], sampler: optuna.samplers.BaseSampler) -> None:
        self._variants = variants
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))  # a new study is no news
        self._study = optuna.create_study(sampler=sampler)
        optuna.logging.set_verbosity(verbosity)
        self._seen: set[V] = set()
        self._guesses: deque[V] = deque()
        self._running: dict[V, int] = {}

    @property
    def expected_gain(self) -> float | None:
        """Share of the best time that the next variants are expected to save; None where the sampler has none."""
        return getattr(self._study.sampler, "expected_gain", None)

    def seed(self, variants: Iterable[V]) -> None:
        """Queue first guesses, which `ask` returns before anything else."""
        self._guesses.extend(variants)

    def ask(self) -> V | None:
        """A variant that was neither asked nor told before; None when there is none left."""
        while self._guesses:
            guess = self._guesses.popleft()
            if guess not in self._seen:
                return self._begin(guess)
        try:
            with one_thread():  # a model's matrices are small, and compilers use the other cores
                trial = self._study.ask(self._variants.distributions)
        except ExhaustedError:
            return None
        except ImportError as error:
            sampler = type(self._study.sampler).__name__
            raise ConfigError(f"the sampler {sampler} needs a package that is missing: {error}") from error
        params = trial.params  # a copy each time
        suggested = self._variants.variant_of(params)
        if suggested is not None and suggested not in self._seen:
            return self._begin(suggested, trial)
        # The sampler knows nothing of the constraints: its trial fails, and the nearest variant is another trial.
        self._study.tell(trial, state=TrialState.FAIL)
        nearest = self._variants.nearest(params, self._seen)
        return None if nearest is None else self._begin(nearest)

    def _begin(self, variant: V, trial: optuna.Trial | None = None) -> V:
        """Note that a variant is under way in a `trial`, or in a new one if the sampler did not suggest it."""
        if trial is None:
            self._study.enqueue_trial(self._variants.params_of(variant))
            trial = self._study.ask(self._variants.distributions)
        self._seen.add(variant)
        self._running[variant] = trial.number
        return variant

    def tell(self, variant: V, time_us: float | None) -> None:
        """Add the time of a variant in microseconds, None if it failed, whether it was asked or not. Raises ConfigError
        for a time that is not positive."""
        check(time_us is None or time_us > 0, f"a time must be positive, got {time_us}")
        if variant not in self._running:
            self._begin(variant)
        value, state = (None, TrialState.FAIL) if time_us is None else (math.log(time_us), TrialState.COMPLETE)
        self._study.tell(self._running.pop(variant), value, state)


def check_sampler(name: str | None) -> None:
    """Raise ConfigError for a name that no sampler has, ArgumentTypeError for another type than a text or None."""
    if name is None:
        return
    check_type("sampler", name, str, "a name")
    by_class = name.startswith(OPTUNA)
    names = [*_of_optuna()] if by_class else SAMPLERS
    more = ", which need no arguments" if by_class else f" or {OPTUNA}CLASS"
    check(name in names, f"sampler must be one of {', '.join(names)}{more}, got {name!r}{nearest_of(name, names)}")


def local_search(forecast: Forecast, start: Sequence[Config], seed: int) -> Search[Config]:
    """A search for the problem of a forecast: first the configs of `start`, then neighbours of the fastest ones."""
    sampler = LocalSampler(forecast, start, seed)
    return Search(sampler.variants, sampler)


def make_search(name: str, space: Space, seed: int, variants: Sequence[Config] | None = None) -> Search[Any]:
    """A search of a space's points, or of `variants` at them, by the sampler called `name`. Raises ConfigError for an
    unknown sampler, for `local`, which searches no listed variants, and for one whose package is missing."""
    check_sampler(name)
    check(name != LOCAL, f"the sampler {LOCAL} searches no listed variants; name another one, such as {GP}")
    # Positions taken for numbers mislead Optuna's TPE: on recordings it needs twice as many outcomes or more.
    name = _TPE if name == "tpe" else name
    listed: Listed[Any] = Listed(space, variants, numbers=name != _TPE)
    kinds = {GP: GaussianSampler, "random": RandomSampler, "exhaustive": ExhaustiveSampler}
    if not name.startswith(OPTUNA):
        return Search(listed, kinds[name](space, seed))
    kind = _of_optuna()[name]
    packages = _PACKAGES.get(kind.__name__, ())
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    check(not missing, f"the sampler {name} needs what is not installed: pip install {' '.join(missing)}")
    options = {"seed": seed, "warn_independent_sampling": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns of experimental samplers
        sampler = kind(**{k: v for k, v in options.items() if k in inspect.signature(kind).parameters})
    return Search(listed, sampler)


def _of_optuna() -> dict[str, Any]:
    """Optuna's samplers that need no argument, by our names of them."""
    kinds = {}
    # BruteForceSampler stops its study, which only `optimize` may do; our `exhaustive` takes its place.
    for name in sorted({*optuna.samplers.__all__} - {"BruteForceSampler"}):
        kind = getattr(optuna.samplers, name)
        if inspect.isclass(kind) and not inspect.isabstract(kind):
            parameters = inspect.signature(kind).parameters.values()
            if all(parameter.default is not parameter.empty for parameter in parameters):
                kinds[OPTUNA + name] = kind
    return kinds
