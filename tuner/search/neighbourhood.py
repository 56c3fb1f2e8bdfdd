"""A neighbourhood: likely configs first, then neighbours of the fastest ones.

The model of the device expects a time of each config. A Gaussian process over the error, the logarithm of measured over
expected time, corrects the model: configs of one family, and configs that differ in few parameters, have similar
errors. The config with the largest expected improvement over the best time is next.
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
"""Likeliest configs, which are tried before the process chooses."""
EXPANDED = 6
"""Fastest configs whose neighbours may be tried; the fastest of each family counts too where it is near the best."""
NEAR = 0.1
"""Largest logarithm of a family's fastest time over the best time at which its fastest config is near."""
EXPANDED_AT_ONCE = 2
"""Configs whose neighbours join between two evaluations of the process: this takes a tenth of a second."""
LOOKED_AT = 512
"""Number of configs, those with the lowest means, whose deviations are computed."""
AT_ONCE = 4
"""Configs that are chosen from one evaluation of the process. The last one comes from the likely configs, so that kinds
of configs whose times the model overestimates are tried too."""
LEAST_OUTCOMES = 80
"""Outcomes before the process estimates the gain: fewer tell too little about its errors."""
SLOW = 0.2
"""Largest logarithm of a time over the best time that the process sees, also for failures: how slow a slow config is
tells nothing about the fast ones."""
LEVELLED = 16
"""Number of the fastest configs whose median error is the level of a problem."""
AMPLITUDE, LENGTH, OWN = 0.08, 3.0, 0.015
"""Standard deviation of the part of an error that similar configs share, number of differing parameters over which the
similarity decays, and standard deviation of a config's own part."""
NOISES = (0.0, 0.02, 0.05, 0.1)
"""Standard deviations of the noise of measured errors; a fit takes the likeliest."""
FAMILY_SHARE = 0.3
"""Share of the variance of an error that all configs of a family have in common."""
CORE = 0.35
"""Factor on the standard deviations for expected improvements: errors have a tail of configs that are much slower than
expected, and vary less to the fast side."""
_LEVEL = 1.0
"""Standard deviation of the error that all configs of a problem have in common."""
_DRAWS = 256
"""Draws of the process from which the expected gain is estimated."""


class Neighbourhood:
    """The configs that a search may try next, and the process over their errors."""

    def __init__(self, forecast: Forecast, start: Sequence[Config], least_outcomes: int = LEAST_OUTCOMES) -> None:
        """Begin with the configs of `start`; `least_outcomes` come before an expected gain."""
        self._forecast, self._start = forecast, tuple(dict.fromkeys(start))
        self._least_outcomes = least_outcomes
        self._process = ErrorProcess()
        self.expected_gain: float | None = None
        """Share of the best time that the next AHEAD variants are expected to save; None while too few outcomes are
        known."""
        self._expected: dict[Config, float] = {}
        """Logarithm of the expected time of every config of the neighbourhood."""
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
        times = {config: value for config, value in outcomes.finished if value < math.inf}
        self._grow(times)
        while not (untried := [config for config in self._expected if config not in seen]):
            # No config near the measured ones is left: expand the likeliest of the others.
            others = self._expected.keys() - self._expanded
            check(bool(others), "every config of the neighbourhood was tried", ExhaustedError)
            self._expand(min(others, key=lambda config: (self._expected[config], config.canonical)))
        self._next = self._best(outcomes, times, untried) if times else untried[:AT_ONCE]
        return self._next.pop(0)

    def _meet(self, configs: Iterable[Config]) -> None:
        """Add configs to the neighbourhood."""
        new = [config for config in dict.fromkeys(configs) if config not in self._expected]
        times = self._forecast.us(new)
        self._expected.update((config, math.log(us) if us else 0.0) for config, us in zip(new, times))
        self._process.meet(new)

    def _grow(self, times: Mapping[Config, float]) -> None:
        """Add neighbours of the fastest configs, and of the fastest of each family that is near the best."""
        ranked = _fastest_first(times)
        firsts = {config.family: config for config in reversed(ranked)}.values()
        near = (config for config in firsts if times[config] <= times[ranked[0]] + NEAR)
        to_expand = [config for config in dict.fromkeys((*ranked[:EXPANDED], *near)) if config not in self._expanded]
        for config in to_expand[:EXPANDED_AT_ONCE]:
            self._expand(config)

    def _expand(self, config: Config) -> None:
        """Add the neighbours of a config."""
        self._expanded.add(config)
        self._meet(neighbours(config, self._forecast))

    def _best(self, outcomes: Outcomes[Config], times: Mapping[Config, float], untried: list[Config]) -> list[Config]:
        """The configs with the largest expected improvement, the largest first, and one likely config."""
        tried, pending = [config for config, _ in outcomes.finished], outcomes.pending
        self._meet((*tried, *pending))
        slow = min(times.values()) + SLOW
        level = float(np.median([times[each] - self._expected[each] for each in _fastest_first(times)[:LEVELLED]]))

        def expected(configs: Sequence[Config]) -> Floats:
            return np.minimum(np.array([self._expected[config] for config in configs]) + level, slow)

        process = self._process
        measured = np.minimum(np.array([times.get(config, math.inf) for config in tried]), slow)
        best = float((process.fit(tried, measured - expected(tried)) + expected(tried)).min())
        unmeasured = [*untried, *pending]
        means = process.mean(unmeasured) + expected(unmeasured)
        likely = [unmeasured[place] for place in np.argsort(means, kind="stable")[:LOOKED_AT]]
        if len(tried) >= self._least_outcomes:
            mean, covariance = process.joint(likely[:AHEAD])
            self.expected_gain = _gain(mean + expected(likely[:AHEAD]), covariance, best)
        waiting = set(pending)
        likely = [config for config in likely if config not in waiting] or untried
        mean, deviation = process.predict(likely, pending)
        order = np.argsort(-improvement(mean + expected(likely), deviation, best), kind="stable")
        chosen = [likely[place] for place in order[: AT_ONCE - 1]]
        fresh = (config for config in self._start if config not in outcomes.seen and config not in chosen)
        return [*chosen, *itertools.islice(fresh, 1)]


def _fastest_first(times: Mapping[Config, float]) -> list[Config]:
    return sorted(times, key=lambda config: (times[config], config.canonical))


def improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Expected improvement over the best of normal values with these means and deviations."""
    deviation = np.maximum(deviation, 1e-9)
    scaled = np.clip((best - mean) / deviation, -30, 30)
    density = np.exp(-0.5 * scaled * scaled) / math.sqrt(2 * math.pi)
    probability = 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in scaled]))
    improvements: Floats = (best - mean) * probability + deviation * density
    return improvements


def _gain(mean: Floats, covariance: Floats, best: float) -> float:
    """Expected share of the best time that the least of jointly normal logarithms of times saves."""
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(mean)))
    drawn = np.random.default_rng(0).standard_normal((_DRAWS, len(mean))) @ root.T + mean
    return float((1 - np.exp(np.minimum(drawn.min(axis=1) - best, 0.0))).mean())


class ErrorProcess:
    """A Gaussian process over the errors of a model's expected times of configs."""

    def __init__(self) -> None:
        self._row: dict[Config, int] = {}
        self._codes: NDArray[np.int16] = np.empty((0, len(_places())), np.int16)
        """Family and places of the parameters' values, a row for each config."""
        self._measured: list[int] = []
        """Rows of the configs whose errors were measured."""
        self._outer: Floats = np.empty((0, 0))
        """Covariance of each config with each measured one."""
        self._level = 0.0
        self._root: Floats = np.empty((0, 0))
        self._weights: Floats = np.empty(0)

    def meet(self, configs: Sequence[Config]) -> None:
        """Add configs whose errors may be predicted."""
        new = [config for config in configs if config not in self._row]
        if new:
            self._row.update(zip(new, range(len(self._row), len(self._row) + len(new))))
            codes = np.array([_code(config) for config in new])
            self._codes = np.concatenate([self._codes, codes])
            self._outer = np.concatenate([self._outer, _covariance(codes, self._codes[self._measured])])

    def fit(self, configs: Sequence[Config], errors: Floats) -> Floats:
        """Take the measured errors of configs, and return them without the likeliest noise. The configs of the call
        before come first."""
        rows = self._rows(configs)
        new = rows[len(self._measured) :]
        self._outer = np.concatenate([self._outer, _covariance(self._codes, self._codes[new])], axis=1)
        self._measured = rows
        self._level = float(errors.mean())
        signal, centred, least = self._outer[rows] + OWN**2 * np.eye(len(rows)), errors - self._level, math.inf
        for noise in NOISES:
            root = np.linalg.cholesky(signal + noise**2 * np.eye(len(rows)))
            whitened = np.linalg.solve(root, centred)
            unlikely = 0.5 * float(whitened @ whitened) + float(np.log(np.diag(root)).sum())
            if unlikely < least:
                least, self._root = unlikely, np.asarray(root, float)
                self._weights = np.asarray(np.linalg.solve(root.T, whitened), float)
        smooth: Floats = self._level + signal @ self._weights
        return smooth

    def mean(self, configs: Sequence[Config]) -> Floats:
        """Means of the errors of configs."""
        means: Floats = self._level + self._outer[self._rows(configs)] @ self._weights
        return means

    def predict(self, configs: Sequence[Config], pending: Sequence[Config]) -> tuple[Floats, Floats]:
        """Means and standard deviations of the errors of configs. Pending configs count as measured at their means,
        which lowers the deviations around them."""
        rows, waiting = self._rows(configs), self._rows(pending)
        solved = np.linalg.solve(self._root, self._outer[rows].T)
        variance = _LEVEL**2 + AMPLITUDE**2 + OWN**2 - (solved**2).sum(axis=0)
        if waiting:
            root = np.linalg.solve(self._root, self._outer[waiting].T)
            inner = self._own(waiting) - root.T @ root
            outer = _covariance(self._codes[waiting], self._codes[rows]) - root.T @ solved
            variance -= (np.linalg.solve(np.linalg.cholesky(inner), outer) ** 2).sum(axis=0)
        return self.mean(configs), CORE * np.sqrt(np.maximum(variance, 1e-12))

    def joint(self, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Means and covariance of the errors of configs."""
        rows = self._rows(configs)
        solved = np.linalg.solve(self._root, self._outer[rows].T)
        return self.mean(configs), CORE**2 * (self._own(rows) - solved.T @ solved)

    def _rows(self, configs: Sequence[Config]) -> list[int]:
        return [self._row[config] for config in configs]

    def _own(self, rows: list[int]) -> Floats:
        """Covariance of the configs at `rows` with each other."""
        return _covariance(self._codes[rows], self._codes[rows]) + OWN**2 * np.eye(len(rows))


def _covariance(left: NDArray[np.int16], right: NDArray[np.int16]) -> Floats:
    """Covariance of the errors of configs by their codes, without a config's own part."""
    differing = np.zeros((len(left), len(right)))
    for column, other in zip(left.T, right.T):
        differing += column[:, None] != other
    alike = left[:, None, 0] == right[None, :, 0]
    shared = FAMILY_SHARE * alike + (1 - FAMILY_SHARE) * np.exp(-differing / LENGTH)
    covariance: Floats = _LEVEL**2 + AMPLITUDE**2 * shared
    return covariance


def _code(config: Config) -> NDArray[np.int16]:
    """The places of the family and of each parameter's value, -1 for one that the family lacks."""
    values = {FAMILY: config.family, **config.typed}
    code = [places.get(values[name], -2) if name in values else -1 for name, places in _places().items()]
    return np.array(code, np.int16)


@cache
def _places() -> dict[str, dict[Any, int]]:
    """Places of the values of each parameter of any family."""
    tables: dict[str, dict[Any, int]] = {FAMILY: {name: place for place, name in enumerate(families())}}
    for leaf in (leaf for kind in families().values() for leaf in kind.leaves()):
        places = tables.setdefault(leaf.name, {})
        for choice in leaf.choices:
            places.setdefault(choice, len(places))
    return tables
