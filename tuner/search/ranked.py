"""Which configs to try first: those that a model of the device ranks best, and winners of near shapes."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from ...codegen.config import Config
from ...codegen.legality import serves
from ...codegen.problem import Grade, Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Record
from .model import estimate_us
from .nearest import around, carried, distance, predictions
from .policies import policy_of

GUESSES = 48
"""First guesses by the analytic model."""

PREDICTED = 8
"""First guesses by what was measured for other shapes."""

_HOPELESS = 3.0
"""No way to share out the work is guessed that takes so many times as long as the best, by the model."""


def ranked(problem: Problem, info: DeviceInfo, configs: tuple[Config, ...]) -> list[Config]:
    """The configs by estimated time, best first; before them the first config of each family in canonical order.

    The processor is no GPU, and there the model says nothing: canonical order alone.
    """
    canonical = attrgetter("canonical")
    families = dict.fromkeys(config.family for config in configs)
    firsts = (min((c for c in configs if c.family == name), key=canonical) for name in families)
    heads = sorted(firsts, key=canonical)
    if info.arch.is_host:
        return list(dict.fromkeys((*heads, *sorted(configs, key=canonical))))
    estimates = sorted((estimate_us(problem, config, info), place) for place, config in enumerate(configs))
    # Half of the guesses differ in what counts most, each the best of a way to share out the work by what was measured
    # elsewhere too; the others are simply the best of the model, whatever they share, of those that it does not tell
    # apart the first.
    near = [(us, place) for us, place in estimates if us <= _HOPELESS * estimates[0][0]]
    ways: dict[tuple[object, ...], Config] = {}
    for _, place in sorted((us * policy_of(configs[place].family).factor(configs[place]), place) for us, place in near):
        config = configs[place]
        way = config.cta_tile[:2], config.split_ctas, config.stream_ctas_per_sm > 0, config.packs
        ways.setdefault((config.family, *way), config)
    told_apart: dict[float, Config] = {}
    for us, place in near:
        told_apart.setdefault(us, configs[place])
    in_turn = itertools.chain.from_iterable(zip(ways.values(), told_apart.values()))
    return list(dict.fromkeys((*heads, *in_turn, *(configs[place] for _, place in estimates))))


def recorded(problem: Problem, info: DeviceInfo, records: Iterable[Record], count: int = 4) -> list[Config]:
    """Winners of the nearest tuned shapes: of this device first, then of others."""
    near = sorted(
        (record for record in records if record.problem.dtype is problem.dtype),
        key=lambda record: (record.device != info.key, distance(record.problem, problem)),
    )
    winners = (carried(record.config, problem, info) for record in near)
    return list(itertools.islice(dict.fromkeys(config for config in winners if config is not None), count))


def stored(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> list[Config]:
    """What the store has for exactly this problem on this device, as far as it serves it, and after that what it has
    for a finer grade: asking for less accuracy must not make a product slower."""
    here = [record for record in records if record.device == info.key]
    grades = [problem.accuracy, *(grade for grade in Grade if grade.keeps(problem.accuracy))]
    asked = [replace(problem, accuracy=grade) for grade in dict.fromkeys(grades)]
    configs = dict.fromkeys(record.config for each in asked for record in here if record.problem == each)
    return [config for config in configs if serves(config, problem, info)]


def beyond_advice(problem: Problem, info: DeviceInfo, records: Iterable[Record]) -> list[Config]:
    """What may be tried whatever the policies advise: what the store has for the problem, what is predicted, and what
    is next to that, where first use looks too."""
    predicted = [each.config for each in predictions(problem, info, PREDICTED)]
    beside = itertools.chain.from_iterable(around(config, problem, info) for config in predicted)
    return list(dict.fromkeys([*stored(problem, info, records), *predicted, *beside]))


def first_guesses(
    problem: Problem, info: DeviceInfo, configs: tuple[Config, ...], records: Iterable[Record]
) -> list[Config]:
    """What a search tries first: winners of near shapes, what is predicted to be fast, then the best by the model."""
    predicted = (each.config for each in predictions(problem, info, PREDICTED))
    return [*recorded(problem, info, records), *predicted, *ranked(problem, info, configs)[:GUESSES]]
