"""Sizes of a `simt` variant, derived from its parameters: threads, shared memory, registers, and what it costs."""

import math
from functools import cache

from .apart import apart, gain
from .config import Config
from .epilogue import staged_elements, with_pieces
from .problem import DType, Problem
from .spread import spread
from .tiling import WIDE_BYTES, clustered, read_along_k, registers_held_to

__all__ = [
    "copied",
    "least_registers",
    "neighbours",
    "overhead",
    "registers",
    "smem_elements",
    "smem_loads",
    "step",
    "sum_registers",
    "tail_cycles",
    "threads",
    "turned_in_flight",
    "uneven",
    "warp_m",
    "warp_n",
]


def _warps(config: Config) -> tuple[int, int]:
    """Warps of a block along the rows and the columns of C, rounded down where the tile is no multiple of a warp's."""
    return config.number("block_m") // warp_m(config), config.number("block_n") // warp_n(config)


def warp_m(config: Config) -> int:
    """Rows of C that a warp computes."""
    return config.number("thread_m") * config.number("lanes_m")


def warp_n(config: Config) -> int:
    """Columns of C that a warp computes."""
    return config.number("thread_n") * (32 // config.number("lanes_m"))


def uneven(config: Config) -> bool:
    """Whether the rows or columns of a thread are no power of two: its block's tile of C may have such sides then."""
    return config.number("thread_m").bit_count() > 1 or config.number("thread_n").bit_count() > 1


def threads(config: Config) -> int:
    """Threads of a block."""
    warps_m, warps_n = _warps(config)
    return 32 * max(1, warps_m * warps_n) * config.number("slices")


def _team(config: Config) -> tuple[int, int]:
    """Threads that copy together, and the steps of k of a tile that they copy."""
    slices = config.number("slices") if apart(config) else 1
    return threads(config) // slices, config.number("block_k") // slices


def _tile_elements(config: Config, pad: int) -> tuple[int, int]:
    """Elements that a tile of A and of B takes in shared memory, or what a slice has of it."""
    _, depth = _team(config)
    sizes = []
    for name in ("a", "b"):
        extent = config.number("block_m" if name == "a" else "block_n")
        inner, outer = (depth, extent) if config.number(f"{name}_k_inner") else (extent, depth)
        sizes.append(outer * (inner + pad))
    return sizes[0], sizes[1]


def smem_elements(config: Config, wide: int) -> int:
    """Elements of shared memory of a block, of which a load takes `wide`: the tiles of all stages, or later the sums
    of the slices, of a block of a cluster, or of a row of each thread, or pieces of other blocks' sums."""
    elements = config.number("stages") * sum(_tile_elements(config, wide))
    if apart(config):
        elements *= config.number("slices")
    if config.number("slices") > 1 or clustered(config):
        elements = max(elements, config.number("slices") * config.number("block_m") * config.number("block_n"))
        return with_pieces(elements, threads(config), wide, config)
    warps_m, warps_n = _warps(config)
    lanes_m = config.number("lanes_m")
    written_rows = min(lanes_m, 8 * wide // _neighbours(config, wide) // 2)
    passing = staged_elements(warps_m * warps_n, lanes_m, warp_n(config), written_rows, 8 * wide)
    # Asked last, for few need it: a space is pruned by what is known first.
    if passing > elements and config["staged_c"] == 1:
        return passing
    return with_pieces(elements, threads(config), wide, config)


def copied(config: Config, operand: str, vec: int = 0) -> int:
    """Most elements of an operand that a thread copies for a tile, whichever way its rows run: in the config's vectors,
    or in those of `vec` elements."""
    extent, vec = config.number("block_m" if operand == "a" else "block_n"), vec or config.number(f"vec_{operand}")
    team, depth = _team(config)
    fewest = min(_copiers(extent // vec, team), _copiers(max(1, depth // vec), team))
    return vec * -(-extent * depth // (vec * fewest))


def turned_in_flight(problem: Problem, config: Config, operand: str) -> bool:
    """Whether cp.async has to transpose."""
    along = read_along_k(problem, config, operand)
    return bool(config.number("cp_async")) and along and not config.number(f"{operand}_k_inner")


@cache
def _copiers(per_row: int, threads: int) -> int:
    """How many threads share out rows of so many vectors: the most that take whole rows, or whole parts of a row."""
    return next(count for count in range(threads, 0, -1) if count % per_row == 0 or per_row % count == 0)


def step(dtype: DType, config: Config) -> int:
    """Steps of k whose operands a thread reads at once."""
    wide = WIDE_BYTES // dtype.size_bytes
    return wide if config.number("a_k_inner") or config.number("b_k_inner") else 1


def _operand_registers(dtype: DType, config: Config) -> int:
    """Registers of a step's operands."""
    wide = dtype.size_bytes // 4
    return wide * step(dtype, config) * (config.number("thread_m") + config.number("thread_n"))


def sum_registers(dtype: DType, config: Config) -> int:
    """Registers of the sums."""
    return dtype.size_bytes // 4 * config.number("thread_m") * config.number("thread_n")


def _staged_registers(dtype: DType, config: Config, vec: int = 0) -> int:
    """Registers of the tiles that pass through registers."""
    if config.number("cp_async"):
        return 0
    return dtype.size_bytes // 4 * (copied(config, "a", vec) + copied(config, "b", vec))


def _copied_evenly(config: Config, operand: str) -> bool:
    """Whether all threads copy as many vectors of a tile."""
    team, depth = _team(config)
    extent, vec = config.number("block_m" if operand == "a" else "block_n"), config.number(f"vec_{operand}")
    return extent * depth % (vec * team) == 0


def _address_registers(config: Config) -> int:
    """Registers that say where copies by cp.async go, at most one for each."""
    if not config.number("cp_async"):
        return 0
    return sum(copied(config, operand) // config.number(f"vec_{operand}") for operand in "ab")


def least_registers(dtype: DType, config: Config) -> int:
    """Registers that a thread can do with; with fewer some are spilled."""
    # Its scalar twin, which copies element by element, has to fit as well.
    staged = max(_staged_registers(dtype, config), _staged_registers(dtype, config, vec=1))
    held = sum_registers(dtype, config) + max(0, staged - 4)
    splitting = 12 if config.number("split_k") > 1 else 0
    held += 12 if uneven(config) and spread(config) else 0
    return 40 + held + splitting + (5 + config.number("prefetch")) * _operand_registers(dtype, config) // 4


def registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: it reads operands a step ahead of what the text says."""
    held = sum_registers(dtype, config) + _staged_registers(dtype, config)
    bound = registers_held_to(config)
    regular = not uneven(config) and all(_copied_evenly(config, operand) for operand in "ab")
    if held >= 128 or (spread(config) and not regular):
        return bound  # it takes what there is
    operands = (2 + config.number("prefetch")) * _operand_registers(dtype, config)
    split = config.number("split_k")
    splitting = 8 if split > 1 else 0
    needed = max(64 + 8 * dtype.size_bytes, 60 + held + operands + splitting + _address_registers(config))
    if uneven(config):
        needed += 20
    if needed < bound and config["staged_c"] == 1:
        needed += 16
    return min(needed, bound)


def neighbours(dtype: DType, config: Config) -> int:
    """Neighbours in a row of C that a thread computes: as many as it reads of B at once, at least."""
    return _neighbours(config, WIDE_BYTES // dtype.size_bytes)


def _neighbours(config: Config, wide: int) -> int:
    if config.number("b_k_inner"):
        return 1
    return math.gcd(config.number("thread_n"), wide)


def smem_loads(config: Config) -> float:
    """Operands of each step: a wide read takes half the time of as many single ones, as lanes share what they read."""
    m, n = config.number("thread_m"), config.number("thread_n")
    written = 1 / config.number("block_m") + 1 / config.number("block_n")
    return (1 / m + 1 / n) / 2 + written


def _reads(count: int, wide: int) -> int:
    """Reads of so many neighbours, of up to `wide` at a time."""
    whole, left = divmod(count, wide)
    return whole + left.bit_count()


def overhead(dtype: DType, config: Config) -> float:
    """Reads of operands, copies of tiles where threads that multiply start them, and some 40 instructions that a thread
    has for each tile of k; clocks lost where no operand is read ahead, or only one tile is on its way and a thread has
    few sums, and gained where slices go apart."""
    m, n, wide = config.number("thread_m"), config.number("thread_n"), WIDE_BYTES // dtype.size_bytes
    reads = (_reads(m, wide) + _reads(n, wide)) / (m * n)
    copy = 0.0 if config["bulk"] == 1 else 1.5 if config.number("cp_async") else 2.5
    copies = copy / (config.number("vec_a") * config.number("block_n"))
    copies += copy / (config.number("vec_b") * config.number("block_m"))
    short = config.number("stages") == 2 and m * n < 128
    waits = 0.08 * (not config.number("prefetch")) + 0.12 * short - gain(config)
    return 0.1 + waits + reads + copies + 40 * config.number("slices") / (m * n * config.number("block_k"))


def tail_cycles(config: Config) -> float:
    """Each thread writes its sums to shared memory and reads as many again."""
    sums = config.number("thread_m") * config.number("thread_n")
    return 200 + sums * (8 + threads(config) / 64) if config.number("slices") > 1 else 0.0
