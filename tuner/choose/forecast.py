"""Forecast: the times that are expected of configs for one problem on one device.

On a GPU rankers say them, on the processor its model does.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.config import Config
from ...codegen.problem import Grade, Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.locks import CachedProperty
from .choice import Choice, Source, carried
from .host import host_us
from .ranker import Ranker, ranker_of

_FINER = 1.1
"""Factor on the time that a ranker of a finer accuracy expects: the lower of two estimates is the bolder one."""


class Forecast:
    """Expected times for a problem on a device."""

    def __init__(self, problem: Problem, info: DeviceInfo) -> None:
        self.problem, self.info = problem, info

    @CachedProperty
    def _rankers(self) -> list[Ranker]:
        """The ranker of the problem's accuracy, if there is one, and those of finer ones; none for the processor."""
        problem, arch = self.problem, self.info.arch
        if arch.is_host:
            return []
        grades = (grade for grade in reversed(Grade) if grade.keeps(problem.accuracy))
        return list(filter(None, (ranker_of(problem.dtype, grade, arch) for grade in grades)))

    def choices(self, count: int) -> list[Choice]:
        """The configs that rankers put first, at most so many; none for the processor, and for a product without work.

        The ranker of the problem's accuracy is asked, or of the next finer one where there is none, and all of finer
        ones: a caller who is content with less must not wait longer."""
        problem, info, rankers = self.problem, self.info, self._rankers
        if not rankers or min(problem.m, problem.n, problem.k) == 0:
            return []
        regret = rankers[0].regret_of(problem, info)
        source = Source.LEARNED if rankers[0].knows(info) else Source.TRANSFERRED
        weighted = zip(itertools.chain((1.0,), itertools.repeat(_FINER)), rankers)
        ranked = (zip(itertools.repeat(weight), ranker.ranked(problem, info)) for weight, ranker in weighted)
        found: dict[Config, Choice] = {}
        for _, each in heapq.merge(*ranked, key=lambda pair: pair[0] * pair[1].us):
            config = carried(each.config, problem, info)
            if config is not None:
                found.setdefault(config, Choice(config, source, each.us, regret))
                if len(found) == count:
                    break
        return list(found.values())

    @CachedProperty
    def _first(self) -> list[Choice]:
        """The first choice, where there is one."""
        return self.choices(1)

    def us(self, configs: Sequence[Config]) -> list[float | None]:
        """Microseconds that are expected of configs; None for all where no ranker knows the type, or the product has no
        work."""
        problem, info = self.problem, self.info
        if info.arch.is_host:
            return [host_us(problem, config) for config in configs]
        if not (configs and self._first):
            return [None] * len(configs)
        first = self._first[0]
        first_us = first.expected_us or 0.0
        *logs, of_first = self._rankers[0].log_times(problem, info, [*configs, first.config])
        return [first_us * math.exp(log - of_first) for log in logs]

    def ordered(self, configs: Sequence[Config]) -> list[Config]:
        """The configs, those that are expected to be the fastest first."""
        if configs and self._rankers:
            order = np.argsort(self._rankers[0].log_times(self.problem, self.info, configs), kind="stable")
            return [configs[place] for place in order]
        return sorted(configs, key=lambda config: (host_us(self.problem, config), config.canonical))

    def decompositions(self, config: Config) -> list[dict[str, Any]]:
        """The decompositions of the problem's work for a config, as values of its parameters, for which the model of a
        GPU holds; none for the processor."""
        return self._rankers[0].decompositions(config, self.problem, self.info) if self._rankers else []
