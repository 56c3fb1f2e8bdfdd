"""Which tiles of C, and which ways to share out their work, are worth trying on a device, by its model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache

from ...codegen.arch import Arch
from ...codegen.config import Config, Value
from ...codegen.family import Constraint, Family
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from .legal import combine, may_hold
from .model import estimate_us

__all__ = ["pays"]

_OVER_BEST = 1.3
_TILINGS = 16
"""Tiles and splits are worth trying with which the device could be done in so many times what the best take, and of
those so many."""
_ORDERS_TILES = frozenset(
    ("block_m", "block_n", "thread_m", "thread_n", "warp_m", "warp_n", "lanes_m", "vec_a", "vec_b", "vec_c", "edge")
)
"""Parameters on which it depends how tiles compare."""
_JUDGED_BY = 2
"""Configs of a tile by which it is judged."""
_UNEVEN = 1.04
"""Tiles that only threads with uneven parts of C have are tried up to so many times what the best others take."""
_EVENLY = 1.04
"""So are tiles of which blocks share out evenly what is over, up to so many times what the best of all take."""
_EVENS_OUT = 0.95
"""Sharing out the last tiles of C alone has to save so much, by the model."""
_TAIL_LEEWAY = 1.05
"""How far beyond the limit of other ways to share out the work those of the last tiles may be."""
_STREAMS = 0.99
"""What is over has to be shared out evenly in so much of the time, by the model, that it takes as it is."""
_NEARLY = 1.02
"""Of ways to share them out that are so near to the best by the model, the one with fewest blocks is tried."""
_FILLED = 0.75
"""What share of the multiprocessors blocks that are fed by bulk copies have to fill; none of them waits for another."""
_NOT_IN_TURN = (
    "split_k",
    "slices",
    "prefetch",
    "stages",
    "group_m",
    "min_blocks",
    "copy_groups",
    "stream_c",
    "persistent",
    "stream_k",
    "bulk",
)
"""What helps threads that run at the same time."""
_ALL_SHARED = Constraint("there is nothing to even out", lambda problem, config, arch: config["tail"] == 1)


def _least(name: str, given: Sequence[Value]) -> Constraint:
    least = min(value for value in given if isinstance(value, int))
    return Constraint(
        f"the processor runs one thread after the other, and gains nothing from {name} {{{name}}}",
        lambda problem, config, arch: config[name] == least,
    )


def _typical(
    problem: Problem, info: DeviceInfo, family: Family, values: Mapping[str, Sequence[Value]]
) -> dict[tuple[int, int], list[Config]]:
    """For each tile of C a few configs by which it can be judged: the best by the model of those that have it, a block
    for each tile of C and common values of what hardly changes the order of tiles."""
    copies = "cp.async" in info.arch.instructions
    common: dict[str, tuple[Value, ...]] = {
        "block_k": (16, 32, 64),
        "slices": (1, 4, 8),
        "cp_async": (int(copies),),
        "stages": (3,) if copies else (2,),
        "prefetch": (0, 1, 2),
        "group_m": (1, 4, 8),
    }
    left = {}
    for parameter in family.parameters:
        given = values.get(parameter.name, (parameter.default,))
        if parameter.name in _ORDERS_TILES:
            left[parameter.name] = given
        else:
            some = common.get(parameter.name, (parameter.default,))
            left[parameter.name] = [value for value in given if value in some] or given
    found: dict[tuple[int, int], list[tuple[bool, float, int, Config]]] = {}
    for place, config in enumerate(combine(problem, info.arch, family, left)[0]):
        order = (family.uneven(config), estimate_us(problem, config, info), place, config)
        found.setdefault(family.tile(config)[:2], []).append(order)
    return {tile: [config for *_, config in sorted(configs)[:_JUDGED_BY]] for tile, configs in found.items()}


def _changed(config: Config, values: Mapping[str, Value]) -> Config:
    return Config(config.family, tuple((name, values.get(name, value)) for name, value in config.values))


def pays(
    problem: Problem, info: DeviceInfo, family: Family, values: Mapping[str, Sequence[Value]]
) -> tuple[Constraint, ...]:
    """Which tiles and splits of k are worth combining with other parameters on this device: those that keep all of
    its multiprocessors at work and ask no more of the cache than it gives. None for a family without them."""
    if not {"block_m", "block_n", "split_k"} <= set(values):
        return ()
    known = {parameter.name: parameter for parameter in family.parameters}
    worth = {
        name: [
            v for v in values.get(name, (known[name].default,)) if isinstance(v, int) and known[name].worth(problem, v)
        ]
        for name in ("block_m", "block_n", "split_k", "cluster", "tail", "stream_k")
    }
    if info.arch.is_host:
        return (
            Constraint(
                "the processor has no multiprocessors that other tiles than powers of two would share out evenly",
                lambda problem, config, arch: (
                    _power_of_two(config.number("block_m")) and _power_of_two(config.number("block_n"))
                ),
            ),
            _ALL_SHARED,
            *(_least(name, values[name]) for name in _NOT_IN_TURN if name in values),
        )
    typical = _typical(problem, info, family, values)

    bulk = "bulk" in known  # the model does not tell what copies cost the threads that start them

    def possible(**sizes: int) -> bool:
        # Those that the family advises against, long or too small, are not counted: the others have to be enough.
        rules = (*family.constraints, *family.advice)
        return may_hold(problem, info.arch, family, rules, {"bulk": 0, **sizes} if bulk else sizes)

    adds_up = {  # how the blocks of each split can
        (split, tail): [each for each in worth["cluster"] if possible(split_k=split, cluster=each, tail=tail)]
        for split in worth["split_k"]
        for tail in worth["tail"]
    }

    @cache
    def us(tile_m: int, tile_n: int, split: int, tail: int, stream: bool = False) -> float:
        shares = ({"split_k": split, "tail": tail, "cluster": each} for each in adds_up.get((split, tail), ()))
        if stream:
            shares = ({**each, "stream_k": info.sm_count} for each in shares)
        configs = itertools.product(typical.get((tile_m, tile_n), ()), shares)
        return min((estimate_us(problem, _changed(config, share), info) for config, share in configs), default=math.inf)

    def works(tile_m: int, tile_n: int, split: int, tail: int, stream: bool) -> bool:
        sizes = {"block_m": tile_m, "block_n": tile_n, "split_k": split, "tail": tail}
        sizes["stream_k"] = info.sm_count * stream
        return any(possible(**sizes, cluster=each) for each in adds_up[split, tail])

    @cache
    def shared(tile_m: int, tile_n: int) -> list[tuple[int, int, bool]]:
        """Splits and tails that are worth trying with a tile, and whether blocks share out what is over evenly: all
        splits of all tiles of C, and where that evens out what they leave over the best of the last ones, and that."""
        found = [(split, 1, False) for split in worth["split_k"]]
        limit = _EVENS_OUT * us(tile_m, tile_n, 1, 1)
        for tail in (each for each in worth["tail"] if each > 1 and limit < math.inf):
            best = min(us(tile_m, tile_n, split, tail) for split in worth["split_k"])
            near = (each for each in sorted(worth["split_k"]) if us(tile_m, tile_n, each, tail) <= _NEARLY * best)
            found += [(next(near), tail, False)] if best <= limit else []
        evenly = us(tile_m, tile_n, 1, 1, True) if any(worth["stream_k"]) else math.inf
        if evenly < math.inf and evenly <= _STREAMS * us(tile_m, tile_n, 1, 1):
            found += [(1, 1, True)]
        return found

    even = {tile for tile, configs in typical.items() if not family.uneven(configs[0])}
    ways = [
        (tile_m, tile_n, *each)
        for tile_m, tile_n in itertools.product(worth["block_m"], worth["block_n"])
        for each in shared(tile_m, tile_n)
        if each[1] == 1 and (tile_m, tile_n) in even and works(tile_m, tile_n, *each)
    ]
    costs = sorted(us(*way) for way in ways if not way[-1])
    if not costs:
        return ()
    limit = min(_OVER_BEST * costs[0], costs[min(_TILINGS, len(costs)) - 1])
    uneven_limit = min(limit, _UNEVEN * costs[0])
    evenly_limit = _EVENLY * min(us(*way) for way in ways)

    @cache
    def within(tile_m: int, tile_n: int) -> set[tuple[int, int, bool]]:
        most = limit if (tile_m, tile_n) in even else uneven_limit

        def bound(tail: int, stream: bool) -> float:
            # Large tiles whose last ones are shared beat small ones that come out even by more than the model says.
            return min(most, evenly_limit) if stream else _TAIL_LEEWAY * most if tail > 1 else most

        return {each for each in shared(tile_m, tile_n) if us(tile_m, tile_n, *each) <= bound(*each[1:])}

    def fills(tile_m: int, tile_n: int, split: int) -> bool:
        blocks = -(-problem.m // tile_m) * -(-problem.n // tile_n) * split
        return _FILLED * info.sm_count <= blocks <= info.sm_count

    def tile_pays(problem: Problem, config: Config, arch: Arch) -> bool:
        if bulk and config["bulk"] == 1:
            return any(fills(config.number("block_m"), config.number("block_n"), split) for split in worth["split_k"])
        return bool(within(config.number("block_m"), config.number("block_n")))

    def split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
        if bulk and config["bulk"] == 1:
            alone = config.number("tail") == 1
            return alone and fills(config.number("block_m"), config.number("block_n"), config.number("split_k"))
        found = within(config.number("block_m"), config.number("block_n"))
        split = config.number("split_k")  # asked for first: a search need not go on to tails where it fails
        if not any(split == each for each, *_ in found):
            return False
        stream = config.number("stream_k")
        if stream and stream != info.sm_count * config.number("min_blocks"):
            return False
        return (split, config.number("tail"), stream > 0) in found

    return (
        Constraint("tiles of C can be shared out evenly among the multiprocessors", tile_pays),
        Constraint("with its split of k the tiles of C are shared out evenly among the multiprocessors", split_pays),
    )


def _power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
