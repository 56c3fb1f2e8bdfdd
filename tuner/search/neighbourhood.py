"""A neighbourhood: likely configs first, then neighbours of those that were measured to be fast.

The model of the device expects a time of each config. A Gaussian process over the logarithm of measured over expected
time corrects it by what the search has measured: configs of one family, and configs that differ in few parameters, err
alike. The config with the largest expected improvement over the best time is next.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.errors import check
from ...codegen.families import families
from ..choose.forecast import Forecast
from ..recording.points import FAMILY
from ..settings import AHEAD
from .neighbours import neighbours
from .outcomes import ExhaustedError, Outcomes

Floats = NDArray[np.float64]

BEGUN = 16
"""Configs, the likeliest ones, that are tried before the process is asked."""
EXPANDED = 6
"""Fastest configs whose neighbours may be tried; the fastest of each family counts too where it is near the best."""
NEAR = 0.1
"""Logarithm of the time over the best within which a family's fastest config is near."""
EXPANDED_AT_ONCE = 2
"""Configs whose neighbours are taken in between two looks at the process: it takes a tenth of a second."""
LOOKED_AT = 512
"""Configs, those with the lowest mean, whose deviations are computed."""
AT_ONCE = 4
"""Configs that are chosen from one look at the process; the last one is the next to begin with, so that kinds of
configs of which the model expects too little are met as well."""
LEAST_TOLD = 80
"""Outcomes before the process says what is still to be gained: fewer say too little about its errors."""
SLOW = 0.2
"""Logarithm of the time over the best beyond which configs are all as slow to the process, and failures too: how slow
they are says nothing of the fast ones."""
LEVELLED = 16
"""Fastest configs whose median error is the level of a problem."""
AMPLITUDE, LENGTH, OWN = 0.08, 3.0, 0.015
"""Standard deviation of the part of an error that alike configs share, number of differing parameters over which they
stop being alike, and standard deviation of the part that a config has alone."""
NOISES = (0.0, 0.02, 0.05, 0.1)
"""Standard deviations of the noise of measured errors: the likeliest is taken."""
FAMILY_SHARE = 0.3
"""Share of the variance of an error that all configs of a family have in common."""
CORE = 0.35
"""Factor on the standard deviations where improvements are expected. Errors have a tail of configs that are much slower
than expected, which the deviations cover; to the fast side they are so much smaller."""
_LEVEL = 1.0
"""Standard deviation of the error that all configs of a problem have in common."""
_DRAWS = 256
"""Draws of the process by which the expected gain is estimated."""


class Neighbourhood:
    """The configs that a search may try next, and the process over their errors."""

    def __init__(self, forecast: Forecast, start: Sequence[Config], least_told: int = LEAST_TOLD) -> None:
        self._forecast, self._start = forecast, tuple(dict.fromkeys(start))
        self._least_told = least_told
        self._process = ErrorProcess()
        self.expected_gain: float | None = None
        """Gain that the next AHEAD variants are expected to bring, as a share of the best time; None while too little
        was measured."""
        self._expected: dict[Config, float] = {}
        """Logarithm of the expected time of every config that was met."""
        self._expanded: set[Config] = set()
        self._next: list[Config] = []
        self._meet(self._start)

    def choose(self, outcomes: Outcomes[Config]) -> Config:
        """The config to try. Raises ExhaustedError where none is left."""
        seen = outcomes.seen
        begin = next((config for config in self._start[:BEGUN] if config not in seen), None)
        if begin is not None:
            return begin
        while self._next:
            config = self._next.pop(0)
            if config not in seen:
                return config
        times = {config: value for config, value in outcomes.told if value < math.inf}
        self._grow(times)
        while not (left := [config for config in self._expected if config not in seen]):
            # All that is near what was measured is tried, or under way: on to the neighbours of the others.
            far = min(self._expected.keys() - self._expanded, key=self._likely, default=None)
            check(far is not None, "every config of the neighbourhood was tried", ExhaustedError)
            assert far is not None
            self._expand(far)
        self._next = self._best(outcomes, times, left) if times else left[:AT_ONCE]
        return self._next.pop(0)

    def _meet(self, configs: Iterable[Config]) -> None:
        """Take configs into the neighbourhood."""
        new = [config for config in dict.fromkeys(configs) if config not in self._expected]
        times = self._forecast.us(new)
        self._expected.update((config, math.log(us) if us else 0.0) for config, us in zip(new, times))
        self._process.meet(new)

    def _grow(self, times: Mapping[Config, float]) -> None:
        """Take in the neighbours of the fastest configs, and of the fastest of each family that is near the best."""
        ranked = sorted(times, key=lambda config: (times[config], config.canonical))
        firsts = {config.family: config for config in reversed(ranked)}.values()
        near = (config for config in firsts if times[config] <= times[ranked[0]] + NEAR)
        wanted = [config for config in dict.fromkeys((*ranked[:EXPANDED], *near)) if config not in self._expanded]
        for config in wanted[:EXPANDED_AT_ONCE]:
            self._expand(config)

    def _expand(self, config: Config) -> None:
        """Take in the neighbours of a config."""
        self._expanded.add(config)
        self._meet(neighbours(config, self._forecast))

    def _likely(self, config: Config) -> tuple[Any, ...]:
        """Sort key: the config that is expected to be the fastest first."""
        return self._expected[config], config.canonical

    def _best(self, outcomes: Outcomes[Config], times: Mapping[Config, float], left: list[Config]) -> list[Config]:
        """The configs with the largest expected improvement, the largest first, and one of those to begin with."""
        told, pending = [config for config, _ in outcomes.told], outcomes.pending
        self._meet((*told, *pending))
        best = min(times.values())
        fastest = sorted(times, key=lambda config: (times[config], config.canonical))[:LEVELLED]
        level = float(np.median([times[config] - self._expected[config] for config in fastest]))

        slow = best + SLOW

        def expected(configs: Sequence[Config]) -> Floats:
            return np.minimum(np.array([self._expected[config] for config in configs]) + level, slow)

        process = self._process
        measured = np.minimum(np.array([times.get(config, math.inf) for config in told]), slow)
        best = float((process.tell(told, measured - expected(told)) + expected(told)).min())
        every = [*left, *pending]
        likely = process.mean(every) + expected(every)
        some = [every[place] for place in np.argsort(likely, kind="stable")[:LOOKED_AT]]
        if len(told) >= self._least_told:
            mean, covariance = process.joint(some[:AHEAD])
            self.expected_gain = _gain(mean + expected(some[:AHEAD]), covariance, best)
        waiting = set(pending)
        some = [config for config in some if config not in waiting] or left
        mean, deviation = process.predict(some, pending)
        order = np.argsort(-improvement(mean + expected(some), deviation, best), kind="stable")
        chosen = [some[place] for place in order[: AT_ONCE - 1]]
        fresh = (config for config in self._start if config not in outcomes.seen and config not in chosen)
        return [*chosen, *itertools.islice(fresh, 1)]


def improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Expected improvement over the best of normal values with these means and deviations."""
    deviation = np.maximum(deviation, 1e-9)
    scaled = np.clip((best - mean) / deviation, -30, 30)
    density = np.exp(-0.5 * scaled * scaled) / math.sqrt(2 * math.pi)
    found: Floats = (best - mean) * _below(scaled) + deviation * density
    return found


def _below(scaled: Floats) -> Floats:
    """The standard normal distribution function."""
    found: Floats = 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in scaled]))
    return found


def _gain(mean: Floats, covariance: Floats, best: float) -> float:
    """Expected share of the best time that the least of jointly normal logarithms of times saves."""
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(mean)))
    drawn = np.random.default_rng(0).standard_normal((_DRAWS, len(mean))) @ root.T + mean
    return float((1 - np.exp(np.minimum(drawn.min(axis=1) - best, 0.0))).mean())


class ErrorProcess:
    """A Gaussian process over the errors of a model of configs."""

    def __init__(self) -> None:
        self._row: dict[Config, int] = {}
        self._codes: NDArray[np.int16] = np.empty((0, len(_places())), np.int16)
        """By config that was met its family and the places of its parameters' values."""
        self._told: list[int] = []
        """Rows of the configs whose errors are known."""
        self._outer: Floats = np.empty((0, 0))
        """Covariance of each config with each of these."""
        self._level = 0.0
        self._root: Floats = np.empty((0, 0))
        self._weights: Floats = np.empty(0)

    def meet(self, configs: Sequence[Config]) -> None:
        """Take in configs that may be asked for."""
        new = [config for config in configs if config not in self._row]
        if new:
            self._row.update(zip(new, range(len(self._row), len(self._row) + len(new))))
            codes = np.array([_code(config) for config in new])
            self._codes = np.concatenate([self._codes, codes])
            self._outer = np.concatenate([self._outer, _covariance(codes, self._codes[self._told])])

    def tell(self, configs: Sequence[Config], errors: Floats) -> Floats:
        """Take the errors of configs, those of the call before first; the same without the likeliest noise."""
        rows = [self._row[config] for config in configs]
        new = rows[len(self._told) :]
        self._outer = np.concatenate([self._outer, _covariance(self._codes, self._codes[new])], axis=1)
        self._told = rows
        self._level = float(errors.mean())
        signal, centred, least = self._outer[rows] + OWN**2 * np.eye(len(rows)), errors - self._level, math.inf
        for noise in NOISES:
            root = np.linalg.cholesky(signal + noise**2 * np.eye(len(rows)))
            whitened = np.linalg.solve(root, centred)
            unlikely = 0.5 * float(whitened @ whitened) + float(np.log(np.diag(root)).sum())
            if unlikely < least:
                least, self._root = unlikely, np.asarray(root, float)
                self._weights = np.asarray(np.linalg.solve(root.T, whitened), float)
        found: Floats = self._level + signal @ self._weights
        return found

    def mean(self, configs: Sequence[Config]) -> Floats:
        """Means of the errors of configs."""
        found: Floats = self._level + self._outer[self._rows(configs)] @ self._weights
        return found

    def predict(self, configs: Sequence[Config], pending: Sequence[Config]) -> tuple[Floats, Floats]:
        """Means and standard deviations of the errors of configs; what is pending is taken to come out as expected,
        which lowers the deviations around it."""
        rows, waiting = self._rows(configs), self._rows(pending)
        solved = np.linalg.solve(self._root, self._outer[rows].T)
        variance = _LEVEL**2 + AMPLITUDE**2 + OWN**2 - (solved**2).sum(axis=0)
        if waiting:
            known = np.linalg.solve(self._root, self._outer[waiting].T)
            inner = self._own(waiting) - known.T @ known
            outer = _covariance(self._codes[waiting], self._codes[rows]) - known.T @ solved
            variance -= (np.linalg.solve(np.linalg.cholesky(inner), outer) ** 2).sum(axis=0)
        return self.mean(configs), CORE * np.sqrt(np.maximum(variance, 1e-12))

    def joint(self, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Means and covariance of the errors of configs."""
        rows = self._rows(configs)
        known = np.linalg.solve(self._root, self._outer[rows].T)
        return self.mean(configs), CORE**2 * (self._own(rows) - known.T @ known)

    def _rows(self, configs: Sequence[Config]) -> list[int]:
        return [self._row[config] for config in configs]

    def _own(self, rows: list[int]) -> Floats:
        """Covariance of some configs with each other."""
        return _covariance(self._codes[rows], self._codes[rows]) + OWN**2 * np.eye(len(rows))


def _covariance(left: NDArray[np.int16], right: NDArray[np.int16]) -> Floats:
    """Covariance of the errors of configs by their codes, but for the part that a config has alone."""
    differing = np.zeros((len(left), len(right)))
    for column, other in zip(left.T, right.T):
        differing += column[:, None] != other
    alike = left[:, None, 0] == right[None, :, 0]
    shared = FAMILY_SHARE * alike + (1 - FAMILY_SHARE) * np.exp(-differing / LENGTH)
    found: Floats = _LEVEL**2 + AMPLITUDE**2 * shared
    return found


def _code(config: Config) -> NDArray[np.int16]:
    """The family's place and the place of each parameter's value, -1 for one that the family lacks."""
    values, places = config.typed, _places()
    found = [places[FAMILY][config.family]]
    found += [places[name].get(values[name], -2) if name in values else -1 for name in [*places][1:]]
    return np.array(found, np.int16)


@cache
def _places() -> dict[str, dict[Any, int]]:
    """By parameter of any family the place of each value."""
    found: dict[str, dict[Any, int]] = {FAMILY: {name: place for place, name in enumerate(families())}}
    for leaf in (leaf for kind in families().values() for leaf in kind.leaves()):
        places = found.setdefault(leaf.name, {})
        for choice in leaf.choices:
            places.setdefault(choice, len(places))
    return found
