"""Sizes of a `dmma` variant, derived from its parameters: threads, shared memory, registers, and what it costs."""

from .config import Config
from .epilogue import staged_elements, with_pieces
from .persistent import persistent
from .problem import DType, Problem
from .tiling import clustered, registers_held_to

__all__ = [
    "copied",
    "least_registers",
    "places",
    "registers",
    "smem_elements",
    "smem_loads",
    "step",
    "sums",
    "threads",
]


def _warps(config: Config) -> tuple[int, int]:
    """Warps of a slice along the rows and the columns of C, rounded down where the tile is no multiple of a warp's."""
    return config.number("block_m") // config.number("warp_m"), config.number("block_n") // config.number("warp_n")


def threads(config: Config) -> int:
    """Threads of a block."""
    warps_m, warps_n = _warps(config)
    return 32 * max(1, warps_m * warps_n) * config.number("slices")


def step(config: Config) -> int:
    """Steps of k whose operands a warp reads at once."""
    return 16 if config.number("mma_k") == 16 else 8


def smem_elements(config: Config) -> int:
    """Both operands' tiles in each stage, with four spare elements for each step of k where they are short; later come
    the sums of the slices, of a block of a cluster, or of a row of each thread, or pieces of other blocks' sums."""
    m, n, k = (config.number(f"block_{side}") for side in "mnk")
    elements = config.number("stages") * k * sum(side + (4 if side % 16 else 0) for side in (m, n))
    if config.number("slices") > 1 or clustered(config):
        return with_pieces(max(elements, config.number("slices") * m * n), threads(config), 2, config)
    warps_m, warps_n = _warps(config)
    passing = staged_elements(warps_m * warps_n, 8, config.number("warp_n"), 2, 16)
    # Asked last, for few need them: a space is pruned by what is known first.
    if persistent(config) > 1:  # sums pass beside the stages, which are filled again meanwhile
        return elements + passing if config["staged_c"] == 1 else elements
    if passing > elements and config["staged_c"] == 1:
        return passing
    return with_pieces(elements, threads(config), 2, config)


def sums(config: Config) -> int:
    """Elements of C that a thread holds."""
    return config.number("warp_m") * config.number("warp_n") // 32


def _operand_registers(config: Config) -> int:
    """Registers of a step's operands."""
    return 2 * (config.number("warp_m") + config.number("warp_n")) * step(config) // 32


def copied(config: Config, operand: str) -> int:
    """Elements of an operand that a thread copies for a tile."""
    return -(-config.number("block_m" if operand == "a" else "block_n") * config.number("block_k") // threads(config))


def places(problem: Problem, config: Config) -> int:
    """Instructions of a warp with which copies can be started: not those of a tile's last step, which waits for the
    next tile."""
    steps = config.number("block_k") // (config.number("slices") * step(config))
    rows = 8 if config.number("mma_k") == 4 else 16
    return (steps - 1) * (config.number("warp_m") // rows) * (config.number("warp_n") // 8)


def least_registers(config: Config) -> int:
    """Registers that a thread can do with; with fewer some are spilled."""
    held = 2 * sums(config) + _operand_registers(config)
    if persistent(config) > 1:
        held += 12  # where its next tile of C is
    if config["prefetch"] == 2:
        return held + _operand_registers(config) + 28
    return held + (48 if step(config) == 16 else 40)


def registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: it reads operands a step ahead of what the text says."""
    held, bound = 2 * sums(config), registers_held_to(config)
    if held >= 128:
        return bound  # it takes what there is
    needed = 48 + held + 2 * _operand_registers(config) + copied(config, "a") + copied(config, "b")
    if needed < bound and config["staged_c"] == 1:
        needed += 32
    if persistent(config) > 1:
        needed += 24
    return min(needed, bound)


def smem_loads(config: Config) -> float:
    """Operands of each step of a warp, and what is written for it: a lane reads one for each 32 multiply-adds of its
    warp's tile side."""
    m, n = config.number("warp_m"), config.number("warp_n")
    return 1 / m + 1 / n + 1 / config.number("block_m") + 1 / config.number("block_n")
