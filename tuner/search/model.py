"""How long a variant takes by a simple model of a GPU, good enough to rank first guesses and to leave out what is far
off."""

import math
from functools import lru_cache

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.fit import Fit, nearest_fit
from ...codegen.leaf import Edge
from ...codegen.mechanisms.operands import SECTOR_BYTES, widest
from ...codegen.problem import DType, Problem
from ...runtime.device.known import CLUSTER_SHARE
from ...runtime.device.protocol import DeviceInfo
from .policies import policy_of
from .policies.policy import Cost

LAUNCH_CYCLES = 3500
"""From the launch to a CTA's first load, and from the last store to the end."""
FILL_CYCLES = 1500
"""Until a CTA's first tiles are there."""
SPLIT_CYCLES = 2500
"""Of CTAs that share a tile of C: writing accumulators and counting each other."""
_WAIT_CYCLES = 3000
"""Of those that add up a part of it each: until they know that all accumulators are there."""
CLUSTER_CYCLES = 1200
"""Of CTAs of a cluster, which read each other's accumulators: writing them and waiting for each other twice."""
_BARRIER_CYCLES = 60
ARRIVAL_CYCLES = 1000
"""From a copy's start to its end on a busy device."""
SMEM_BYTES_PER_CYCLE = 128
L2_BYTES_PER_CYCLE = 48
"""What an SM gets from the last-level cache in a clock while all of them ask."""
_STREAMED_BYTES_PER_CYCLE = 28
"""The same where operands do not stay in the cache: CTAs read again what has just come from memory."""
ALONE_BYTES_PER_CYCLE = 32
"""The same while only one of them asks."""
WARPS_PER_CYCLE = 4
"""Warps of an SM that issue an instruction in one clock."""
_HALF_WARPS = 0.5
"""So many warps of a scheduler keep it busy half the time."""
PACK_CYCLES = 5000
"""From the launch of the kernel that packs to its end, where there is little to pack."""
WRITTEN_BYTES_PER_CYCLE = 16
"""What a CTA that is alone on its SM writes of C in a clock when it is done: nothing runs meanwhile. On an H200
(2026-11-24) `wgmma` took 68 us for 4096x4096x64, 18 by all else."""
_NARROW = 0.045
"""How much longer a product takes for each operand that is copied in pieces of less than 16 bytes."""


def estimate_us(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """A rough time in microseconds: what the critical SM has to do, or device memory."""
    arch, dtype = info.arch, problem.dtype
    fit = nearest_fit(problem, config)
    cost = policy_of(config.family).cost(problem, config, fit)
    m, n, k = problem.m, problem.n, problem.k
    if fit.edge is Edge.PAD:
        m, n, k = (-(-size // multiple) * multiple for size, multiple in zip((m, n, k), config.multiples))
    tile_m, tile_n, tile_k = config.cta_tile
    splits, stream = config.split_ctas, config.stream_ctas_per_sm
    tiles, ctas = config.tiles(problem), config.ctas(problem, info.sm_count)
    depth = math.ceil(-(-k // tile_k) / splits)  # tiles of k for each CTA
    occupancy = _occupancy(fit, dtype, arch)
    # CTAs of the critical SM, in stream-K tiles: there all SMs have the same.
    critical = tiles / info.sm_count if stream else float(-(-tiles * splits // filled_sms(config, info.sm_count)))
    concurrent = min(occupancy, max(math.ceil(critical), stream))
    times = 1.0 if fit.edge is Edge.PAD else _times_written(problem, cost)
    written = (times - 1) * m * n * dtype.size_bytes
    memory_us = (problem.bytes + written) / (info.bandwidth_gbs * 1e3)
    if config.tensor_cores:
        cycles = _tensor_cycles(dtype, config, cost, info, critical, concurrent, depth)
    else:
        cycles = critical * _cta_cycles(dtype, config, cost, info, concurrent, depth)
        if cost.ahead:
            # A CTA waits for its tiles, and all for memory: what is nearly as slow as the slowest adds to it.
            waiting = math.ceil(critical / concurrent) * depth * ARRIVAL_CYCLES / cost.ahead
            cycles = _slowest(cycles, waiting, memory_us * info.clock_mhz)
        cycles += FILL_CYCLES
    cycles *= 1 + _NARROW * cost.narrow
    if (m + n) * k * dtype.size_bytes > info.l2_bytes:
        reuse_a, reuse_b = config.reuse
        passing = (m * -(-n // reuse_a) + n * -(-m // reuse_b)) * k * dtype.size_bytes
        cycles = max(cycles, passing / (_STREAMED_BYTES_PER_CYCLE * info.sm_count))
    cycles += LAUNCH_CYCLES + cost.slices_cycles + _split_cycles(config, tile_m * tile_n * dtype.size_bytes)
    copies_us = 2 * memory_us + 3 * LAUNCH_CYCLES / info.clock_mhz if fit.edge is Edge.PAD else 0.0
    if any(config.packs):
        sizes = (m * k * config.packs[0] + k * n * config.packs[1]) * dtype.size_bytes
        copies_us = 2 * sizes / (info.bandwidth_gbs * 1e3) + PACK_CYCLES / info.clock_mhz
    if config.terms:
        cycles += math.ceil(critical) * tile_m * tile_n * dtype.size_bytes / WRITTEN_BYTES_PER_CYCLE
        # Read, written at half the size or more, and what more it takes as if it were read twice.
        sizes = (m * k + k * n) * (2 * dtype.size_bytes + 2 * config.terms)
        copies_us = sizes / (info.bandwidth_gbs * 1e3) + PACK_CYCLES / info.clock_mhz
    if cost.in_flight:
        # Latency is hidden by what is on its way, not by warps: enough of it, or memory waits.
        per_sm = concurrent * config.threads * cost.in_flight * dtype.size_bytes
        needed = info.bandwidth_gbs * 1e3 / info.sm_count * ARRIVAL_CYCLES / info.clock_mhz
        waves = ctas / (occupancy * info.sm_count)
        memory_us *= (1 + (needed / per_sm) ** 2 / 4) * math.ceil(waves) / waves
        alone_cycles = cost.alone * dtype.size_bytes / ALONE_BYTES_PER_CYCLE
        memory_us += (alone_cycles + SPLIT_CYCLES * (splits > 1)) / info.clock_mhz
    return max(cycles / info.clock_mhz, LAUNCH_CYCLES / info.clock_mhz + memory_us) + copies_us


@lru_cache(1 << 16)  # a search asks for many thousand variants, once for each problem
def _occupancy(fit: Fit, dtype: DType, arch: Arch) -> int:
    return max(1, min(cta_limits(fit, dtype, arch).values()))


def cta_limits(fit: Fit, dtype: DType, arch: Arch, registers: int = 0) -> dict[str, int]:
    """How many CTAs an SM has room for at a time, by what they take of it: slots, warps, registers (`registers` of a
    thread where they are known, else those the config predicts), shared memory."""
    config = fit.config
    threads = -(-config.threads // 32) * 32
    return {
        "CTA slots": arch.max_blocks_per_sm,
        "warps": arch.max_threads_per_sm // threads,
        "registers": arch.registers_per_sm // ((registers or config.registers(fit, dtype)) * threads),
        "shared memory": arch.smem_per_sm_bytes // max(1, config.smem_bytes(dtype) + arch.smem_reserved_bytes),
    }


def filled_sms(config: Config, sm_count: int) -> int:
    """How many SMs can have one of the config's CTAs each, and none two."""
    return round(sm_count * (CLUSTER_SHARE.get(config.split_ctas, 1.0) if config.clustered else 1.0))


def fma_per_cycle(dtype: DType, config: Config, arch: Arch) -> int:
    """Multiply-adds of an SM in one clock, at best."""
    if config.tensor_cores:
        return arch.dmma_per_cycle if dtype is DType.DOUBLE else max(1, arch.mma_per_cycle // config.products)
    return arch.fma_per_cycle_float if dtype is DType.FLOAT else arch.fma_per_cycle_double


def _cta_cycles(dtype: DType, config: Config, cost: Cost, info: DeviceInfo, concurrent: int, depth: int) -> float:
    """Clocks of an SM for the steps of k of one CTA while so many work together: as long as the slowest of issuing
    instructions, shared memory and last-level cache, and longer where two of them are nearly as slow."""
    tile_m, tile_n, tile_k = config.cta_tile
    work = tile_m * tile_n * tile_k * depth  # multiply-adds
    warps = -(-config.threads // 32)
    lanes = config.threads / (warps * 32)
    scheduled = concurrent * warps / WARPS_PER_CYCLE
    issue = work * (1 / fma_per_cycle(dtype, config, info.arch) + cost.overhead / (32 * WARPS_PER_CYCLE))
    issue *= (scheduled + _HALF_WARPS) / scheduled / lanes
    shared = work * cost.smem_loads * dtype.size_bytes / SMEM_BYTES_PER_CYCLE
    cached = work * sum(1 / reuse for reuse in config.reuse) * dtype.size_bytes / L2_BYTES_PER_CYCLE
    return _slowest(issue, shared, cached)


def _tensor_cycles(
    dtype: DType, config: Config, cost: Cost, info: DeviceInfo, critical: float, concurrent: int, depth: int
) -> float:
    """Clocks of an SM for all its CTAs, by tensor cores, which few warps keep busy: what counts too is how long a CTA
    waits at its start and for its tiles."""
    tile_m, tile_n, tile_k = config.cta_tile
    warps = concurrent * config.threads // 32
    products = concurrent * tile_m * tile_n * tile_k
    busy = products / (cost.rate * fma_per_cycle(dtype, config, info.arch)) * (1 + 1 / warps) * max(1.0, 4 / warps)
    issue = products * cost.splitting / (32 * WARPS_PER_CYCLE)
    shared = products * cost.smem_loads * dtype.size_bytes / SMEM_BYTES_PER_CYCLE
    cached = concurrent * (tile_m + tile_n) * tile_k * dtype.size_bytes / L2_BYTES_PER_CYCLE
    arrival = ARRIVAL_CYCLES / cost.ahead
    # A tenth: some copies take longer than others.
    tile = _slowest(busy, issue, shared, cached) + _BARRIER_CYCLES / (3 if cost.fragments_ahead else 1) + arrival / 10
    rounds = math.ceil(critical / concurrent)
    return max(critical / concurrent * tile, rounds * arrival) * depth + rounds * FILL_CYCLES


def _times_written(problem: Problem, cost: Cost) -> float:
    """How many times as much is written as C has, where sectors are written in parts: one after another by the vectors
    of a thread, and those at both ends of what a warp writes side by side."""
    if not cost.neighbours or whole_sectors(problem):
        return 1.0
    ends = SECTOR_BYTES / (cost.beside * problem.dtype.size_bytes)
    return max(1.0, cost.neighbours / widest(problem, "c")) + ends


def whole_sectors(problem: Problem) -> bool:
    """Whether all rows of C begin and end with a sector of memory."""
    return problem.n * problem.dtype.size_bytes % SECTOR_BYTES == 0


def _slowest(*cycles: float) -> float:
    return float(sum(each**4 for each in cycles) ** 0.25)


def _split_cycles(config: Config, tile_bytes: int) -> float:
    """Clocks in which CTAs that share a tile of C add up their accumulators."""
    splits = config.split_ctas
    if config.stream_ctas_per_sm:  # each begins two tiles more, and writes and reads two at most
        return 2 * FILL_CYCLES + SPLIT_CYCLES + 3 * tile_bytes / ALONE_BYTES_PER_CYCLE
    if splits == 1:
        return 0.0
    if config.clustered:  # each its part of the tile, most of it from the others
        return CLUSTER_CYCLES + tile_bytes * (splits - 1) / splits / ALONE_BYTES_PER_CYCLE
    adding = config.cooperative_ctas
    return SPLIT_CYCLES + _WAIT_CYCLES * (adding > 1) + (1 + splits / adding) * tile_bytes / ALONE_BYTES_PER_CYCLE
