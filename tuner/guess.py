"""Which configs to try first: a ranking by a simple model of a GPU, good enough to begin with."""

import math

from ..codegen.config import Config
from ..codegen.families import canonical, family_of
from ..codegen.problem import DType, Problem
from ..runtime.device import DeviceInfo
from ..runtime.store import Store, distance

__all__ = ["estimate_us", "ranked", "recorded"]

_L2_OVER_DRAM = 2.5
"""How much faster than device memory the last-level cache serves blocks, roughly, on the GPUs of the table."""
_SMEM_BYTES_PER_CYCLE = 128
_LAUNCH_US = 2.0
_CACHE_BYTES_PER_CYCLE = 24
"""What the last-level cache serves one multiprocessor, roughly, while it serves all others."""
_ARRIVAL_CYCLES = 1000
"""From a copy's start to its end, roughly, on a busy device."""
_BARRIER_CYCLES = 60


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
    """A rough time in microseconds: the slowest of arithmetic, shared memory, cache and memory traffic, times how
    unevenly the blocks fill the device."""
    family, arch = family_of(config), info.arch
    m, n, k = problem.m, problem.n, problem.k
    if config["edge"] == "pad":
        m, n, k = (-(-size // multiple) * multiple for size, multiple in zip((m, n, k), family.multiples(config)))
    threads = family.threads(config)
    warps = -(-threads // 32)
    registers = family.registers(problem.dtype, config) * warps * 32
    smem = family.smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes
    resident = max(1, min(
        arch.max_blocks_per_sm, arch.max_threads_per_sm // (warps * 32), arch.registers_per_sm // registers,
        arch.smem_per_sm_bytes // max(1, smem),
    ))  # fmt: skip
    blocks = family.blocks(problem, config)
    waves = blocks / (resident * info.sm_count)
    fill = math.ceil(waves) / waves
    # Latency is hidden by some 16 warps an SM that each do one thing at a time.
    occupancy = min(1.0, min(resident, max(1, blocks / info.sm_count)) * warps / 32)
    lanes = threads / (warps * 32)
    rate = arch.fma_per_cycle_float if problem.dtype is DType.FLOAT else arch.fma_per_cycle_double
    flops_us = m * n * k / (rate * info.sm_count * info.clock_mhz)
    size = problem.dtype.size_bytes
    reuse_a, reuse_b = family.reuse(config)
    cache_us = m * n * k * (1 / reuse_a + 1 / reuse_b) * size / (info.bandwidth_gbs * _L2_OVER_DRAM * 1e3)
    memory_us = problem.bytes / (info.bandwidth_gbs * 1e3)
    smem_us = 0.0
    if family.smem_elements(config):
        per_fma = family.smem_bytes_per_fma(problem.dtype, config)
        smem_us = m * n * k * per_fma / (_SMEM_BYTES_PER_CYCLE * info.sm_count * info.clock_mhz)
    copies_us = 2 * problem.bytes / (info.bandwidth_gbs * 1e3) + 3 * _LAUNCH_US if config["edge"] == "pad" else 0.0
    if family.tensor_cores:
        return _LAUNCH_US + max(_tensor_us(problem, config, info, resident), memory_us) + copies_us
    slowest = max(flops_us, smem_us, cache_us) / lanes / max(0.05, occupancy) * fill
    return _LAUNCH_US + max(slowest, memory_us) + copies_us


def _tensor_us(problem: Problem, config: Config, info: DeviceInfo, resident: int) -> float:
    """The same for tensor cores, which few warps keep busy: what counts is how evenly the blocks are spread, how much
    passes through the cache, and how long a block waits at its start, for its tiles and for the blocks it shares with.
    """
    family, arch = family_of(config), info.arch
    tile_m, tile_n, tile_k = family.tile(config)
    splits, size = family.splits(config), problem.dtype.size_bytes
    busiest = -(-family.blocks(problem, config) // info.sm_count)  # blocks of the multiprocessor that has most
    together = min(resident, busiest)
    warps = together * family.threads(config) // 32
    depth = -(-problem.k // (tile_k * splits))  # tiles of k of a block
    # Cycles for a tile of k of all blocks that a multiprocessor has at a time.
    products = together * tile_m * tile_n * tile_k
    busy = products / arch.dmma_per_cycle * (1 + 1 / warps) * max(1.0, 4 / warps)
    smem = products * family.smem_bytes_per_fma(problem.dtype, config) / _SMEM_BYTES_PER_CYCLE
    cache = together * (tile_m + tile_n) * tile_k * size / _CACHE_BYTES_PER_CYCLE
    tile = math.cbrt(busy**3 + smem**3 + cache**3) + _BARRIER_CYCLES / (1 + config.number("prefetch"))
    arrival = _ARRIVAL_CYCLES / (config.number("stages") - 1)
    tile += arrival / 10  # some copies take longer than others
    rounds = -(-busiest // together)
    cycles = max(busiest / together * tile, rounds * arrival) * depth + rounds * 1.5 * _ARRIVAL_CYCLES
    if splits > 1:
        written = 2 * splits * problem.m * problem.n * size / info.sm_count
        last = splits * tile_m * tile_n * size
        cycles += (written + last) / _CACHE_BYTES_PER_CYCLE + 2 * _ARRIVAL_CYCLES
    return cycles / info.clock_mhz
