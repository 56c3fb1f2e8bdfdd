"""Which configs to try first: those that a model of the device ranks best, and winners of near shapes."""

import itertools

from ...codegen.config import Config
from ...codegen.families import canonical, family_of, fitted
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.store import Store, distance
from .experience import factor
from .model import estimate_us

__all__ = ["ranked", "recorded"]

_HOPELESS = 3.0
"""No way to share out the work is guessed that takes so many times as long as the best, by the model."""


def ranked(problem: Problem, info: DeviceInfo, configs: tuple[Config, ...]) -> list[Config]:
    """The configs by estimated time, best first; before them the first config of each family in canonical order.

    The processor is no GPU, and there the model says nothing: canonical order alone.
    """
    heads: dict[str, Config] = {}
    for config in sorted(configs, key=canonical):
        heads.setdefault(config.family, config)
    if info.arch.is_host:
        return list(dict.fromkeys((*heads.values(), *sorted(configs, key=canonical))))
    estimates = sorted((estimate_us(problem, config, info), place) for place, config in enumerate(configs))
    # Half of the guesses differ in what counts most, each the best of a way to share out the work by what was measured
    # elsewhere too; the others are simply the best of the model, whatever they share, of those that it does not tell
    # apart the first.
    firsts: dict[tuple[object, ...], Config] = {}
    near = [(us, place) for us, place in estimates if us <= _HOPELESS * estimates[0][0]]
    for _, place in sorted((us * factor(configs[place]), place) for us, place in near):
        config = configs[place]
        family = family_of(config)
        firsts.setdefault(
            (
                family.name,
                family.tile(config)[:2],
                family.splits(config),
                family.tail(config),
                family.streams(config) > 0,
                family.packs(config),
            ),
            config,
        )
    told_apart: dict[float, Config] = {}
    for us, place in near:
        told_apart.setdefault(us, configs[place])
    in_turn = itertools.chain.from_iterable(zip(firsts.values(), told_apart.values()))
    return list(dict.fromkeys((*heads.values(), *in_turn, *(configs[place] for _, place in estimates))))


def recorded(problem: Problem, info: DeviceInfo, store: Store, count: int = 4) -> list[Config]:
    """Winners of the nearest tuned shapes, with the vectors and edges of this one: of this device first, then of
    others."""
    near = sorted(
        (record for record in store.records() if record.problem.dtype is problem.dtype),
        key=lambda record: (record.device != info.key, distance(record.problem, problem)),
    )
    winners = (fitted(record.config, problem, info.arch, ("exact", "bounds", "pad")) for record in near)
    return list(itertools.islice(dict.fromkeys(config for config in winners if config is not None), count))
