"""Which configs to try first: a ranking by a simple model of a GPU, good enough to begin with."""

import itertools
from collections.abc import Mapping, Sequence
from functools import cache

from ..codegen.arch import Arch
from ..codegen.config import Config, Value
from ..codegen.families import canonical, family_of
from ..codegen.family import Constraint, Family, grouped
from ..codegen.problem import Problem
from ..runtime.device import DeviceInfo
from ..runtime.store import Store, distance

__all__ = ["estimate_us", "pays", "ranked", "recorded"]

_LAUNCH_CYCLES = 3500
"""From the launch to a block's first load, and from the last store to the end."""
_FILL_CYCLES = 1500
"""Until a block's first tiles are there."""
_SPLIT_CYCLES = 2500
"""Of blocks that share a tile of C: writing sums and counting each other."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 24
"""What a multiprocessor gets from the last-level cache in a clock while all of them ask."""
_WARPS_PER_CYCLE = 4
"""Warps of a multiprocessor that issue an instruction in one clock."""
_OVER_BEST = 1.3
_TILINGS = 40
"""Tiles and splits are worth trying with which the device could be done in so many times what the best take, and of
those so many."""
_HALF_WARPS = 0.5
"""So many warps of a scheduler keep it busy half the time."""


def pays(
    problem: Problem, info: DeviceInfo, family: Family, values: Mapping[str, Sequence[Value]]
) -> tuple[Constraint, ...]:
    """Which tiles and splits of k are worth combining with other parameters on this device: those that keep all of
    its multiprocessors at work and ask no more of the cache than it gives. None for a family without them."""
    if not {"block_m", "block_n", "split_k"} <= set(values):
        return ()
    worth = {
        parameter.name: [v for v in values[parameter.name] if isinstance(v, int) and parameter.worth(problem, v)]
        for parameter in family.parameters
        if parameter.name in ("block_m", "block_n", "split_k")
    }
    if info.arch.is_host:
        return (
            Constraint(
                "the processor has no multiprocessors that other tiles than powers of two would share out evenly",
                lambda problem, config, arch: (
                    _power_of_two(config.number("block_m")) and _power_of_two(config.number("block_n"))
                ),
            ),
        )
    rate = family.fma_per_cycle(problem.dtype, info.arch)

    @cache
    def cycles(tile_m: int, tile_n: int, split: int) -> float:
        blocks = -(-problem.m // tile_m) * -(-problem.n // tile_n) * split
        work = -(-blocks // info.sm_count) * tile_m * tile_n * -(-problem.k // split)
        cached = work * (1 / tile_m + 1 / tile_n) * problem.dtype.size_bytes / _L2_BYTES_PER_CYCLE
        adding = _split_cycles(tile_m * tile_n * problem.dtype.size_bytes, split)
        return _LAUNCH_CYCLES + ((1.3 * work / rate) ** 4 + cached**4) ** 0.25 + adding

    @cache
    def least(tile_m: int, tile_n: int) -> float:
        return min(cycles(tile_m, tile_n, split) for split in worth["split_k"])

    costs = sorted(cycles(*each) for each in itertools.product(*worth.values()))
    limit = min(_OVER_BEST * costs[0], costs[min(_TILINGS, len(costs)) - 1])

    def tile_pays(problem: Problem, config: Config, arch: Arch) -> bool:
        return least(config.number("block_m"), config.number("block_n")) <= limit

    def split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
        return cycles(config.number("block_m"), config.number("block_n"), config.number("split_k")) <= limit

    return (
        Constraint("tiles of C can be shared out evenly among the multiprocessors", tile_pays),
        Constraint("with its split of k the tiles of C are shared out evenly among the multiprocessors", split_pays),
    )


def _split_cycles(tile_bytes: int, splits: int) -> float:
    """Clocks in which blocks that share a tile of C add up their sums."""
    if splits == 1:
        return 0.0
    group = grouped(splits)
    read = group + (-(-splits // group) if group < splits else 0)
    return _SPLIT_CYCLES + (1 + read) * tile_bytes / _L2_BYTES_PER_CYCLE


def _power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


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
    # Configs that the model cannot tell apart follow their first: a few guesses should differ in what counts.
    firsts: dict[float, Config] = {}
    for estimate, place in estimates:
        firsts.setdefault(float(f"{estimate:.2g}"), configs[place])
    return list(dict.fromkeys((*heads.values(), *firsts.values(), *(configs[place] for _, place in estimates))))


def recorded(problem: Problem, info: DeviceInfo, store: Store, count: int = 4) -> list[Config]:
    """Winners of the nearest tuned shapes: of this device first, then of others."""
    near = sorted(
        (record for record in store.records() if record.problem.dtype is problem.dtype),
        key=lambda record: (record.device != info.key, distance(record.problem, problem)),
    )
    return list(dict.fromkeys(record.config for record in near[:count]))


def estimate_us(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """A rough time in microseconds: what the busiest multiprocessor has to do, or device memory.

    A block's steps of k take as long as the slowest of issuing instructions, shared memory and last-level cache, and
    somewhat longer where two of them are nearly as slow.
    """
    family, arch, dtype = family_of(config), info.arch, problem.dtype
    m, n, k = problem.m, problem.n, problem.k
    if config["edge"] == "pad":
        m, n, k = (-(-size // multiple) * multiple for size, multiple in zip((m, n, k), family.multiples(config)))
    tile_m, tile_n, tile_k = family.tile(config)
    splits, blocks = family.splits(config), family.blocks(problem, config)
    steps = -(-k // tile_k)
    depth = -(-steps // splits) * tile_k
    work = tile_m * tile_n * depth  # multiply-adds of a block

    warps = -(-family.threads(config) // 32)
    registers = family.registers(dtype, config) * warps * 32
    smem = family.smem_bytes(dtype, config) + arch.smem_reserved_bytes
    resident = max(1, min(
        arch.max_blocks_per_sm, arch.max_threads_per_sm // (warps * 32), arch.registers_per_sm // registers,
        arch.smem_per_sm_bytes // smem,
    ))  # fmt: skip
    in_turn = -(-blocks // info.sm_count)  # blocks of the busiest multiprocessor
    scheduled = min(resident, in_turn) * warps / _WARPS_PER_CYCLE

    lanes = family.threads(config) / (warps * 32)
    issue = work * (1 / family.fma_per_cycle(dtype, arch) + family.overhead(dtype, config) / (32 * _WARPS_PER_CYCLE))
    issue *= (scheduled + _HALF_WARPS) / scheduled / lanes
    shared = work * family.smem_bytes_per_fma(dtype, config) / _SMEM_BYTES_PER_CYCLE
    cached = work * sum(1 / reuse for reuse in family.reuse(config)) * dtype.size_bytes / _L2_BYTES_PER_CYCLE
    cycles = in_turn * (issue**4 + shared**4 + cached**4) ** 0.25
    cycles += _LAUNCH_CYCLES + _FILL_CYCLES + family.tail_cycles(config)
    cycles += _split_cycles(tile_m * tile_n * dtype.size_bytes, splits)
    memory_us = problem.bytes / (info.bandwidth_gbs * 1e3)
    copies_us = 2 * memory_us + 3 * _LAUNCH_CYCLES / info.clock_mhz if config["edge"] == "pad" else 0.0
    return max(cycles / info.clock_mhz, _LAUNCH_CYCLES / info.clock_mhz + memory_us) + copies_us
