"""How long a variant takes by a simple model of a GPU, good enough to rank first guesses and to leave out what is far
off."""

import math

from ...codegen.config import Config
from ...codegen.families import family_of
from ...codegen.family import Family
from ...codegen.problem import Problem
from ...codegen.tiling import WIDE_BYTES, widest
from ...runtime.device.protocol import DeviceInfo

__all__ = ["estimate_us"]

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
_PACK_CYCLES = 5000
"""From the launch of the kernel that packs to its end, where there is little to pack."""
_NARROW = 0.045
"""How much longer a product takes for each operand that is copied in pieces of less than 16 bytes."""


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
    # Blocks of the multiprocessor that has most; where only some tiles are shared out, in blocks with a whole one.
    busiest = _busiest(parts, info.sm_count, splits, tail) * (splits if tail == 1 else 1)
    streams = family.streams(config)
    if streams:  # all have the same
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
