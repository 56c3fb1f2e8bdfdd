"""Expected times of configs for one problem on one device, by rankers on a GPU and by a model on the processor."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from ...codegen.config import Config
from ...codegen.legality import serves
from ...codegen.problem import Grade, Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.locks import CachedProperty
from .batches import batch_ranker_of
from .choice import Choice, Source, carried
from .host import host_us
from .ranker import Predicted, Ranker, ranker_of

_FINER = 1.1
"""Factor on the expected times of a ranker of a finer accuracy: the lower of two estimates is the less certain one."""


class Forecast:
    """Expected times for a problem on a device. `Problem.even` stands for a ragged batch."""

    def __init__(self, problem: Problem, info: DeviceInfo) -> None:
        self.problem, self.info = problem.even, info
        self._original = problem

    @CachedProperty
    def _rankers(self) -> list[Ranker]:
        """Rankers of the problem's accuracy, if there is one, and of finer accuracies; none on the processor."""
        problem, arch = self.problem, self.info.arch
        if arch.is_host:
            return []
        grades = (grade for grade in reversed(Grade) if grade.keeps(problem.accuracy))
        of = ranker_of if problem.batch == 1 else batch_ranker_of
        return list(filter(None, (of(problem.dtype, grade, arch) for grade in grades)))

    def choices(self, count: int) -> list[Choice]:
        """At most `count` first choices of the rankers; none on the processor, and for a product without work."""
        rankers = self._rankers
        if not rankers:
            return []
        regret = None if self._original.ragged else rankers[0].regret_of(self.problem, self.info)
        source = Source.LEARNED if rankers[0].knows(self.info) else Source.TRANSFERRED
        choices: dict[Config, Choice] = {}
        for config, each in self._serving():
            choices.setdefault(config, Choice(config, source, each.us, regret))
            if len(choices) == count:
                break
        return list(choices.values())

    def _serving(self) -> Iterator[tuple[Config, Predicted]]:
        """Configs that serve the problem, the fastest first, each with the prediction for the config that it was made
        of; none for a product without work.

        Predictions of rankers of finer accuracies are merged in: a product that needs less accuracy must not be slower.
        """
        problem, info = self.problem, self.info
        if min(problem.m, problem.n, problem.k) == 0:
            return
        weighted = zip(itertools.chain((1.0,), itertools.repeat(_FINER)), self._rankers)
        ranked = (zip(itertools.repeat(weight), self._ranked(ranker)) for weight, ranker in weighted)
        for _, each in heapq.merge(*ranked, key=lambda pair: pair[0] * pair[1].us):
            config = carried(each.config, problem, info)
            if config is not None and self._serves(config):
                yield config, each

    def _ranked(self, ranker: Ranker) -> Iterable[Predicted]:
        """A ranker's configs for the problem, the fastest first. A config is expected to take as long for groups of
        rows as for one product of as many tiles."""
        problem, info = self.problem, self.info
        if self._original.ragged != "m":
            return ranker.ranked(problem, info)
        ranked = list[Predicted]()
        tiles = {
            e.config.cta_tile[0]: e.config.expected_row_tiles(self._original) for e in ranker.ranked(problem, info)
        }
        for tile_m, row_tiles in tiles.items():
            whole = ranker.ranked(replace(problem, m=row_tiles * tile_m), info)
            ranked += (each for each in whole if each.config.cta_tile[0] == tile_m)
        return sorted(ranked, key=attrgetter("us"))

    def _serves(self, config: Config) -> bool:
        """Whether a config that serves equal products also serves the groups of a ragged batch."""
        return not self._original.ragged or serves(config, self._original, self.info)

    @CachedProperty
    def _first(self) -> list[tuple[Config, Predicted]]:
        """The first of `_serving`, where there is one."""
        return list(itertools.islice(self._serving(), 1))

    def us(self, configs: Sequence[Config]) -> list[float | None]:
        """Expected microseconds of configs; all None where there is no ranker for the type, or the product has no
        work."""
        problem, info = self.problem, self.info
        if info.arch.is_host:
            return [host_us(problem, config) for config in configs]
        if not (configs and self._first):
            return [None] * len(configs)
        ((_, first),) = self._first
        *logs, of_first = self._rankers[0].log_times(problem, info, [*configs, first.config])
        return [first.us * math.exp(log - of_first) for log in logs]

    def ordered(self, configs: Sequence[Config]) -> list[Config]:
        """The configs in the order of their expected times."""
        if configs and self._rankers:
            order = np.argsort(self._rankers[0].log_times(self.problem, self.info, configs), kind="stable")
            return [configs[place] for place in order]
        return sorted(configs, key=lambda config: (host_us(self.problem, config), config.canonical))

    def decompositions(self, config: Config) -> list[dict[str, Any]]:
        """The work decompositions of a config for which the model of a GPU holds, as values of its parameters; none on
        the processor."""
        learned = self._rankers and not config.batches_alone
        return self._rankers[0].decompositions(config, self.problem, self.info) if learned else []
