"""Which tiles of C, and which ways to share out their work, are worth trying on a device, by its model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...codegen.config import Config
from ...codegen.leaf import Mode
from ...codegen.legality import Rule, rules_of
from ...codegen.mechanisms.split import USUAL_PARTS, Reduce, Split
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from .legal import legal_configs, may_hold
from .model import estimate_us
from .policies import policy_of
from .policies.policy import reader

_OVER_BEST = 1.3
_TILINGS = 16
"""Tiles and splits are worth trying with which the device could be done in so many times what the best take, and of
those so many."""
_JUDGED_BY = 2
"""Configs of a tile by which it is judged."""
_UNEVEN = 1.04
"""Tiles of which the model is less sure are tried up to so many times what the best others take."""
_STREAM = 1.04
"""So are tiles with stream-K, up to so many times what the best of all take."""
_STREAM_GAINS = 0.99
"""Stream-K has to take so much of the time, by the model, that the tile takes without."""
_FILLED = 0.75
"""What share of the SMs the CTAs have to fill of which the model knows too little; none of them waits for another."""

Way = tuple[Mode, int]
"""Mode and parts of a split; for stream-K those of one CTA per SM."""
_PLAIN, _STREAMED = (Mode.NONE, 1), (Mode.STREAM_K, 1)


def pays(
    problem: Problem, info: DeviceInfo, kind: type[Config], axes: Mapping[str, Sequence[Any]]
) -> tuple[Rule[Any], ...]:
    """Which tiles and splits of k are worth combining with other parameters on this device: those that keep all of
    its SMs at work and ask no more of the cache than it gives. None for a family whose policy names no tiles. `axes`
    are the values of each parameter that may hold."""
    policy = policy_of(kind.family)
    if not policy.tile_sides or not all(axes.values()):
        return ()
    if info.arch.is_host:
        return _on_host(kind, axes)
    rules = (*rules_of(kind), *policy.advice)
    typical = _typical(problem, info, kind, axes)
    modelled = policy.modelled(info)

    tile_of = reader(kind.family, *policy.tile_sides)

    def possible(way: Way, reduce: Reduce, tile: Mapping[str, int]) -> bool:
        # Those that the policy advises against, long or too small, are not counted: the others have to be enough.
        split = {"mode": way[0], "parts": way[1], "reduce": reduce}
        return may_hold(problem, info, kind, rules, {**modelled, **split, **tile})

    known = [_PLAIN] if Mode.NONE in axes["mode"] else []
    if Mode.SPLIT_K in axes["mode"]:
        known += [(Mode.SPLIT_K, parts) for parts in axes["parts"] if parts > 1]
    counts = [parts for _, parts in known]
    if Mode.STREAM_K in axes["mode"] and _PLAIN in known:
        known.append(_STREAMED)
    adds_up = {way: [each for each in axes["reduce"] if possible(way, each, {})] for way in known}

    @cache
    def us(tile: tuple[int, int], way: Way) -> float:
        times = (
            estimate_us(problem, replace(config, split=Split(*way, reduce)), info)
            for config, reduce in itertools.product(typical.get(tile, ()), adds_up.get(way, ()))
        )
        best = min(times, default=math.inf)
        return math.inf if way == _STREAMED and best > _STREAM_GAINS * us(tile, _PLAIN) else best

    def works(tile: tuple[int, int], way: Way) -> bool:
        return any(possible(way, each, dict(zip(policy.tile_sides, tile))) for each in adds_up[way])

    sure = {tile for tile, configs in typical.items() if not policy.non_power_of_two(configs[0])}
    tiles = itertools.product(*(axes[side] for side in policy.tile_sides))
    # Split counts that fill this device come beside the usual ones, and do not raise what those have to reach.
    usual = [way for way in known if way[1] in USUAL_PARTS[way[0]]]
    times = {
        (tile, way): us(tile, way) for tile, way in itertools.product(tiles, usual) if tile in sure and works(tile, way)
    }
    costs = sorted(time for (_, way), time in times.items() if way != _STREAMED)
    if not costs:
        return ()
    limit = min(_OVER_BEST * costs[0], costs[min(_TILINGS, len(costs)) - 1])
    stream_limit = _STREAM * min(times.values())

    @cache
    def within(tile: tuple[int, int]) -> set[Way]:
        most = limit if tile in sure else min(limit, _UNEVEN * costs[0])
        return {way for way in known if us(tile, way) <= (min(most, stream_limit) if way == _STREAMED else most)}

    def fills(config: Any, splits: int) -> bool:
        return bool(_FILLED * info.sm_count <= config.tiles(problem) * splits <= info.sm_count)

    def tile_pays(config: Any) -> bool:
        if policy.unmodelled(config):
            return any(fills(config, splits) for splits in counts)
        return bool(within(tile_of(config)))

    def split_pays(config: Any) -> bool:
        if policy.unmodelled(config):
            return fills(config, config.split_ctas)
        found = within(tile_of(config))
        if config.stream_ctas_per_sm:
            return _STREAMED in found
        return (_PLAIN if config.split_ctas == 1 else (Mode.SPLIT_K, config.split_ctas)) in found

    return (
        Rule("block tiles can be shared out evenly among the SMs", lambda problem, config, target: tile_pays(config)),
        Rule(
            "with its split of k block tiles are shared out evenly among the SMs",
            lambda problem, config, target: split_pays(config),
        ),
    )


def _on_host(kind: type[Config], axes: Mapping[str, Sequence[Any]]) -> tuple[Rule[Any], ...]:
    """What the processor tries: it runs one thread after the other."""

    def least(name: str) -> Rule[Any]:
        read, value = reader(kind.family, name), axes[name][0]
        return Rule(
            f"the processor runs one thread after the other, and gains nothing from {name}",
            lambda problem, config, target: read(config) == value,
        )

    policy = policy_of(kind.family)
    sides = reader(kind.family, *policy.tile_sides)
    even: Rule[Any] = Rule(
        "the processor has no SMs that other tiles than powers of two would share out evenly",
        lambda problem, config, target: all(side.bit_count() == 1 for side in sides(config)),
    )
    return (even, *(least(name) for name in policy.side_by_side))


def _typical(
    problem: Problem, info: DeviceInfo, kind: type[Config], axes: Mapping[str, Sequence[Any]]
) -> dict[tuple[int, int], list[Any]]:
    """For each tile of C a few configs by which it can be judged: the best by the model of those that have it, a CTA
    for each tile of C and common values of what hardly changes the order of tiles."""
    policy = policy_of(kind.family)
    common, left = policy.typical(info), {}
    for leaf in kind.leaves():
        given = axes[leaf.name]
        some = given if leaf.name in policy.orders_tiles else common.get(leaf.name, (leaf.default,))
        left[leaf.name] = [value for value in given if value in some] or given
    found: dict[tuple[int, int], list[tuple[bool, float, int, Any]]] = {}
    configs, _ = legal_configs(problem, info, kind, left, policy.advice, policy.first)
    for place, config in enumerate(configs):
        order = (policy.non_power_of_two(config), estimate_us(problem, config, info), place, config)
        found.setdefault(config.cta_tile[:2], []).append(order)
    return {tile: [config for *_, config in sorted(configs)[:_JUDGED_BY]] for tile, configs in found.items()}
