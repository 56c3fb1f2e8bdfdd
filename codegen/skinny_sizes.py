"""Sizes of a `skinny` variant, derived from its parameters: threads, tiles, shared memory, registers."""

from .config import Config
from .problem import DType, Problem
from .tiling import WIDE_BYTES, registers_held_to, runs_along_k

__all__ = [
    "alone_elements",
    "along_k",
    "easy_registers",
    "large",
    "least_registers",
    "long_side",
    "part_elements",
    "registers",
    "ring_elements",
    "round_steps",
    "rows_at_once",
    "slice_steps",
    "smem_bytes",
    "smem_elements",
    "sum_elements",
    "threads",
    "tile",
    "tile_k",
    "tile_l",
]

_PART_ELEMENTS = 4096
"""Sums that warps exchange at a time, where the small operand does not take more shared memory anyway."""


def sum_elements(config: Config) -> int:
    """Elements of C that a thread computes."""
    return config.number("count") * config.number("span")


def threads(config: Config) -> int:
    """Threads of a block."""
    return 32 * config.number("warps_l") * config.number("warps_k")


def tile_l(config: Config) -> int:
    """Elements of the long side that a block computes."""
    return config.number("warps_l") * 32 // config.number("lanes_k") * config.number("span")


def tile_k(config: Config) -> int:
    """Steps of k that a block loads at a time."""
    return config.number("warps_k") * config.number("lanes_k") * config.number("depth")


def round_steps(config: Config) -> int:
    """Steps of k that the main loop covers at a time."""
    return tile_k(config) * (1 + config.number("cp_async"))


def part_elements(config: Config) -> int:
    """Elements of the large operand that a thread loads at a time."""
    return config.number("span") * config.number("depth")


def tile(config: Config) -> tuple[int, int, int]:
    """Rows and columns of C that a block computes, and the steps of k that it loads at a time."""
    short, long = config.number("count"), tile_l(config)
    return (long, short, tile_k(config)) if config.number("short_n") else (short, long, tile_k(config))


def rows_at_once(config: Config) -> int:
    """Short rows whose sums the warps exchange at a time."""
    rows, room = config.number("count"), max(config.number("count") * config.number("staged"), _PART_ELEMENTS)
    while rows > 1 and config.number("warps_k") * tile_l(config) * rows > room:
        rows //= 2
    return rows


def ring_elements(config: Config) -> int:
    """Elements of the large operand in shared memory."""
    return config.number("cp_async") * config.number("stages") * part_elements(config) * threads(config)


def smem_elements(config: Config, wide: int) -> int:
    """What either form of the template needs, `wide` elements being 16 bytes."""
    count, staged = config.number("count"), config.number("staged")
    along_c = staged * (count if count <= wide else count + wide)
    along_k = count * (staged + 8)
    slots = config.number("warps_k") * tile_l(config) * (rows_at_once(config) + config.number("short_n"))
    return max(ring_elements(config) + max(along_c, along_k), slots)


def smem_bytes(dtype: DType, config: Config) -> int:
    """Shared memory of a block in bytes."""
    return smem_elements(config, WIDE_BYTES // dtype.size_bytes) * dtype.size_bytes


def slice_steps(problem: Problem, config: Config) -> int:
    """Steps of k that a block covers."""
    step = tile_k(config)
    return -(-problem.k // (step * config.number("split_k"))) * step


def least_registers(dtype: DType, config: Config) -> int:
    """Registers that a thread can do with."""
    return 34 + dtype.size_bytes // 4 * (sum_elements(config) + part_elements(config))


def easy_registers(dtype: DType, config: Config) -> int:
    """Registers with which nothing is spilled."""
    addresses = 2 * part_elements(config) // config.number("vec") + (5 if config["edge"] == "bounds" else 0)
    loaded = 0 if config.number("cp_async") else 10
    return least_registers(dtype, config) + addresses + loaded + dtype.size_bytes // 4 - 1


def registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: what there is, if it is not held to less."""
    return registers_held_to(config)


def long_side(problem: Problem, config: Config) -> int:
    """Elements of C along the side that the config takes for the long one."""
    return problem.m if config.number("short_n") else problem.n


def large(config: Config) -> str:
    """Which operand is the large one."""
    return "a" if config.number("short_n") else "b"


def along_k(problem: Problem, config: Config) -> bool:
    """Whether stored rows of the large operand run along k; otherwise they run along C."""
    return runs_along_k(problem, large(config))


def alone_elements(problem: Problem, config: Config) -> int:
    """The small operand, what stands still while more of it is staged, and the sums of all blocks that split k."""
    split, covered = config.number("split_k"), slice_steps(problem, config)
    sums = split * config.number("count") * tile_l(config) if split > 1 else 0
    later = max(0, covered - 1) // config.number("staged")
    on_their_way = part_elements(config) * config.number("stages") * threads(config)
    return config.number("count") * covered + later * on_their_way // 2 + sums
