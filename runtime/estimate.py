"""How long a variant takes by a simple model of a GPU, good enough to rank first guesses and to leave out what is far
off."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache

from ..codegen.arch import Arch
from ..codegen.combine import combine, may_hold
from ..codegen.config import Config, Value
from ..codegen.families import family_of
from ..codegen.family import Constraint, Family
from ..codegen.problem import Problem
from ..codegen.tiling import WIDE_BYTES, widest
from .device import DeviceInfo

__all__ = ["estimate_us", "pays"]

_LAUNCH_CYCLES = 3500
"""From the launch to a block's first load, and from the last store to the end."""
_FILL_CYCLES = 1500
"""Until a block's first tiles are there."""
_SPLIT_CYCLES = 2500
"""Of blocks that share a tile of C: writing sums and counting each other."""
_WAIT_CYCLES = 3000
"""Of those that add up a part of it each: until they know that all sums are there."""
_CLUSTER_CYCLES = 1200
"""Of blocks of a cluster, which read each other's sums: writing them and waiting for each other twice."""
_BARRIER_CYCLES = 60
_ARRIVAL_CYCLES = 1000
"""From a copy's start to its end on a busy device."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 48
"""What a multiprocessor gets from the last-level cache in a clock while all of them ask."""
_ALONE_BYTES_PER_CYCLE = 32
"""The same while only one of them asks."""
_WARPS_PER_CYCLE = 4
"""Warps of a multiprocessor that issue an instruction in one clock."""
_HALF_WARPS = 0.5
"""So many warps of a scheduler keep it busy half the time."""
_OVER_BEST = 1.3
_TILINGS = 16
"""Tiles and splits are worth trying with which the device could be done in so many times what the best take, and of
those so many."""

_PACK_CYCLES = 5000
"""From the launch of the kernel that packs to its end, where there is little to pack."""
_NARROW = 0.045
"""How much longer a product takes for each operand that is copied in pieces of less than 16 bytes."""
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


def estimate_us(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """A rough time in microseconds: what the busiest multiprocessor has to do, or device memory."""
    family, arch, dtype = family_of(config), info.arch, problem.dtype
    m, n, k = problem.m, problem.n, problem.k
    if config["edge"] == "pad":
        m, n, k = (-(-size // multiple) * multiple for size, multiple in zip((m, n, k), family.multiples(config)))
    tile_m, tile_n, tile_k = family.tile(config)
    splits, tail = family.splits(config), family.tail(config)
    parts, blocks = family.tiles(problem, config), family.blocks(problem, config)
    tiles = -(-k // tile_k)  # of k
    depth = -(-tiles // splits) if tail == 1 else tiles  # those of a block
    warps = -(-family.threads(config) // 32)
    registers = family.registers(dtype, config) * warps * 32
    smem = family.smem_bytes(dtype, config) + arch.smem_reserved_bytes
    resident = max(1, min(
        arch.max_blocks_per_sm, arch.max_threads_per_sm // (warps * 32), arch.registers_per_sm // registers,
        arch.smem_per_sm_bytes // smem,
    ))  # fmt: skip
    streams = family.streams(config)
    # Blocks of the multiprocessor that has most; where only the last tiles are shared out, in blocks with a whole one.
    busiest = _busiest(parts, info.sm_count, splits, tail) * (splits if tail == 1 else 1)
    if streams:
        busiest = parts / info.sm_count
    together = min(resident, max(math.ceil(busiest), streams // info.sm_count))
    if family.tensor_cores:
        cycles = _tensor_cycles(problem, config, info, busiest, together, depth)
    else:
        cycles = busiest * _block_cycles(problem, config, info, together, depth)
        if family.ahead(config):
            # A block waits for its tiles, and all for memory: what is nearly as slow as the slowest adds to it.
            waiting = math.ceil(busiest / together) * depth * _ARRIVAL_CYCLES / family.ahead(config)
            memory = problem.bytes / (info.bandwidth_gbs * 1e3) * info.clock_mhz
            cycles = _slowest(cycles, waiting, memory)
        cycles += _FILL_CYCLES
    # Families that could pack an operand copy it in narrow pieces where its rows are not aligned.
    narrow = sum(
        not packs and widest(problem, operand) * dtype.size_bytes < WIDE_BYTES
        for operand, packs in zip("ab", family.packs(config))
        if any(each.name == f"pack_{operand}" for each in family.parameters)
    )
    cycles *= 1 + _NARROW * narrow
    cycles += _LAUNCH_CYCLES + family.tail_cycles(config)
    cycles += _split_cycles(family, config, tile_m * tile_n * dtype.size_bytes)
    memory_us = problem.bytes / (info.bandwidth_gbs * 1e3)
    copies_us = 2 * memory_us + 3 * _LAUNCH_CYCLES / info.clock_mhz if config["edge"] == "pad" else 0.0
    if any(family.packs(config)):
        sizes = (m * k * family.packs(config)[0] + k * n * family.packs(config)[1]) * dtype.size_bytes
        copies_us = 2 * sizes / (info.bandwidth_gbs * 1e3) + _PACK_CYCLES / info.clock_mhz
    if family.in_flight(config):
        # Latency is hidden by what is on its way, not by warps: enough of it, or memory waits.
        per_sm = together * family.threads(config) * family.in_flight(config) * dtype.size_bytes
        needed = info.bandwidth_gbs * 1e3 / info.sm_count * _ARRIVAL_CYCLES / info.clock_mhz
        waves = blocks / (resident * info.sm_count)
        memory_us *= (1 + (needed / per_sm) ** 2 / 4) * math.ceil(waves) / waves
        alone_cycles = family.alone(problem, config) * dtype.size_bytes / _ALONE_BYTES_PER_CYCLE
        memory_us += (alone_cycles + _SPLIT_CYCLES * (splits > 1)) / info.clock_mhz
    return max(cycles / info.clock_mhz, _LAUNCH_CYCLES / info.clock_mhz + memory_us) + copies_us


def _block_cycles(problem: Problem, config: Config, info: DeviceInfo, together: int, depth: int) -> float:
    """Clocks of a multiprocessor for the steps of k of one block while so many work together: as long as the slowest of
    issuing instructions, shared memory and last-level cache, and longer where two of them are nearly as slow."""
    family, dtype = family_of(config), problem.dtype
    tile_m, tile_n, tile_k = family.tile(config)
    work = tile_m * tile_n * tile_k * depth  # multiply-adds
    warps = -(-family.threads(config) // 32)
    lanes = family.threads(config) / (warps * 32)
    scheduled = together * warps / _WARPS_PER_CYCLE
    beside = family.overhead(dtype, config) / (32 * _WARPS_PER_CYCLE)
    issue = work * (1 / family.fma_per_cycle(dtype, info.arch) + beside)
    issue *= (scheduled + _HALF_WARPS) / scheduled / lanes
    shared = work * family.smem_bytes_per_fma(dtype, config) / _SMEM_BYTES_PER_CYCLE
    cached = work * sum(1 / reuse for reuse in family.reuse(config)) * dtype.size_bytes / _L2_BYTES_PER_CYCLE
    return _slowest(issue, shared, cached)


def _tensor_cycles(
    problem: Problem, config: Config, info: DeviceInfo, busiest: float, together: int, depth: int
) -> float:
    """Clocks of a multiprocessor for all its blocks, by tensor cores, which few warps keep busy: what counts too is how
    long a block waits at its start and for its tiles."""
    family, size = family_of(config), problem.dtype.size_bytes
    tile_m, tile_n, tile_k = family.tile(config)
    warps = together * family.threads(config) // 32
    products = together * tile_m * tile_n * tile_k
    busy = products / family.fma_per_cycle(problem.dtype, info.arch) * (1 + 1 / warps) * max(1.0, 4 / warps)
    shared = products * family.smem_bytes_per_fma(problem.dtype, config) / _SMEM_BYTES_PER_CYCLE
    cached = together * (tile_m + tile_n) * tile_k * size / _L2_BYTES_PER_CYCLE
    arrival = _ARRIVAL_CYCLES / (config.number("stages") - 1)
    # A tenth: some copies take longer than others.
    tile = _slowest(busy, shared, cached) + _BARRIER_CYCLES / (1 + config.number("prefetch")) + arrival / 10
    rounds = math.ceil(busiest / together)
    return max(busiest / together * tile, rounds * arrival) * depth + rounds * _FILL_CYCLES


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


def _busiest(tiles: int, sm_count: int, splits: int, tail: int) -> float:
    """Tiles of C that the multiprocessor with most of them computes, of some of which it has a part."""
    whole = tiles - -(-tiles // tail)
    return max(-(-whole // sm_count), -(-tiles * splits // sm_count) / splits)


def _slowest(*cycles: float) -> float:
    return float(sum(each**4 for each in cycles) ** 0.25)


def _split_cycles(family: Family, config: Config, tile_bytes: int) -> float:
    """Clocks in which blocks that share a tile of C add up their sums."""
    splits = family.splits(config)
    if family.streams(config):  # each begins two tiles more, and writes and reads two at most
        return 2 * _FILL_CYCLES + _SPLIT_CYCLES + 3 * tile_bytes / _ALONE_BYTES_PER_CYCLE
    if splits == 1:
        return 0.0
    if family.clustered(config):  # each its part of the tile, most of it from the others
        return _CLUSTER_CYCLES + tile_bytes * (splits - 1) / splits / _ALONE_BYTES_PER_CYCLE
    sharers = family.sharers(config)
    return _SPLIT_CYCLES + _WAIT_CYCLES * (sharers > 1) + (1 + splits / sharers) * tile_bytes / _ALONE_BYTES_PER_CYCLE


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
