"""What families share that compute tiles of C: stored rows, vectors, tiles, residency, and what of them pays."""

from collections.abc import Callable

from .arch import Arch
from .config import Config, Value
from .family import Constraint, Parameter, family_in
from .problem import Problem

__all__ = [
    "CLUSTER",
    "CLUSTER_FITS",
    "CLUSTER_PAYS",
    "EDGES_PAY",
    "GROUPS_PAY",
    "MOST_COPIES",
    "RESIDENT_FITS",
    "SHAPE_PAYS",
    "TAIL",
    "TAIL_FITS",
    "WIDE_BYTES",
    "aligned",
    "alignment",
    "block_worth",
    "clustered",
    "packed",
    "packs",
    "read_along_k",
    "registers_for",
    "registers_held_to",
    "reuse",
    "runs_along_k",
    "scalar",
    "split_pays",
    "split_worth",
    "splits",
    "stored_row",
    "tail",
    "tile",
    "tiles",
    "widest",
    "widest_copy",
]

WIDE_BYTES = 16
"""The widest load of a thread."""
_ALL_RUN, _SOME_WAIT = 128, 512
"""Up to so many tiles of C all run at a time, on a large device; beyond so many some surely wait."""
_CACHED_BYTES = 1 << 25
"""Matrices that large caches hold, so that the order of tiles makes no difference to memory."""
MOST_COPIES = 32
"""Elements that a thread copies of an operand for a tile: a bit for each where they are copied one by one."""


def runs_along_k(problem: Problem, operand: str) -> bool:
    """Whether a stored row of A or B runs along k."""
    return not problem.trans_a if operand == "a" else problem.trans_b


def stored_row(problem: Problem, operand: str) -> int:
    """Elements of a stored row of A, B or C."""
    return {"a": problem.stored_a[1], "b": problem.stored_b[1], "c": problem.n}[operand]


def widest(problem: Problem, operand: str) -> int:
    """The widest vector of at most 16 bytes that divides the stored rows of A, B or C."""
    width = WIDE_BYTES // problem.dtype.size_bytes
    while stored_row(problem, operand) % width:
        width //= 2
    return width


def packed(config: Config, operand: str) -> bool:
    """Whether A or B is copied first, to k rows that are aligned."""
    return config[f"pack_{operand}"] == 1


def packs(config: Config) -> tuple[bool, bool]:
    """Whether A and B are."""
    return packed(config, "a"), packed(config, "b")


def read_along_k(problem: Problem, config: Config, operand: str) -> bool:
    """Whether a row of A or B runs along k where tiles are copied from."""
    return runs_along_k(problem, operand) and not packed(config, operand)


def widest_copy(problem: Problem, config: Config, operand: str) -> int:
    """The widest vector in which tiles of A or B can be copied."""
    return WIDE_BYTES // problem.dtype.size_bytes if packed(config, operand) else widest(problem, operand)


def splits(config: Config) -> int:
    """Blocks that share a tile of C."""
    return config.number("split_k")


def tail(config: Config) -> int:
    """They share the tiles of the last one of so many parts of all."""
    return config.number("tail")


def tile(config: Config) -> tuple[int, int, int]:
    """Rows and columns of C that a block computes, and the steps of k that its tiles of A and B cover."""
    return config.number("block_m"), config.number("block_n"), config.number("block_k")


def tiles(problem: Problem, config: Config) -> int:
    """Tiles of C."""
    return -(-problem.m // config.number("block_m")) * -(-problem.n // config.number("block_n"))


def reuse(config: Config) -> tuple[int, int]:
    """How often a block uses an element of A and of B."""
    return config.number("block_n"), config.number("block_m")


def alignment(config: Config) -> tuple[int, int, int]:
    """Elements of which pointers and rows of A, B and C are multiples."""
    vec_a, vec_b = (1 if packed(config, each) else config.number(f"vec_{each}") for each in "ab")
    return vec_a, vec_b, config.number("vec_c")


def scalar(config: Config) -> Config:
    """The config with vectors of one element where the caller's matrices are read or written."""
    packs = family_in(config).packs(config)
    own = {f"vec_{each}" for each, copied in zip("ab", packs) if copied}
    changed = ((name, 1 if name.startswith("vec") and name not in own else v) for name, v in config.values)
    return Config(config.family, tuple(changed))


def clustered(config: Config) -> bool:
    """Whether the blocks that share a tile of C form a cluster."""
    return config["cluster"] == 1


def registers_for(threads: int, blocks: int) -> int:
    """Registers of a thread with which so many blocks of so many threads fit, on every device of the table."""
    # Each of the four schedulers has a quarter of the registers and takes whole warps.
    warps = -(-threads // 32) * blocks
    return min(255, 65536 // (32 * 4 * -(-warps // 4)) // 8 * 8)


def registers_held_to(config: Config) -> int:
    """Registers that the launch bounds leave a thread."""
    return registers_for(family_in(config).threads(config), config.number("min_blocks"))


def block_worth(side: str) -> Callable[[Problem, Value], bool]:
    """Whether a tile is not much larger than C along m or n."""

    def worth(problem: Problem, block: Value) -> bool:
        return isinstance(block, int) and (block <= 16 or block < 2 * (problem.m if side == "m" else problem.n))

    return worth


def split_worth(least: int) -> Callable[[Problem, Value], bool]:
    """Whether each of the blocks that share out k has so many steps; large results fill the device without."""
    return lambda problem, split: (
        split == 1 or (isinstance(split, int) and least * split <= problem.k and problem.m * problem.n <= 2**23)
    )


def aligned(operand: str, check: str | None = None) -> Constraint:
    """The rule for vec_a, vec_b or vec_c."""

    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        vec = config.number(f"vec_{operand}")
        fits = vec * problem.dtype.size_bytes <= WIDE_BYTES
        free = config["edge"] == "pad" or (operand != "c" and packed(config, operand))
        return fits and (free or stored_row(problem, operand) % vec == 0)

    reason = f"vec_{operand} {{vec_{operand}}} is at most 16 bytes and divides the stored rows of {operand.upper()}"
    return Constraint(reason, holds, check)


def _resident_fits(problem: Problem, config: Config, arch: Arch) -> bool:
    family, blocks = family_in(config), config.number("min_blocks")
    smem = family.smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes
    return family.threads(config) * blocks <= arch.max_threads_per_sm and smem * blocks <= arch.smem_per_sm_bytes


RESIDENT_FITS = Constraint("threads and shared memory of {min_blocks} blocks fit on a multiprocessor", _resident_fits)


CLUSTER = Parameter("cluster", "x", (0, 1), "1 = they form a cluster, and add up in each other's shared memory")
_MOST_CLUSTERED = 8
"""Blocks of a cluster that every device with clusters can run."""
CLUSTER_PAYS = Constraint(
    # Larger clusters crowd on some multiprocessors of a device and leave others idle.
    "two blocks that share a tile of C form a cluster, more do not",
    lambda problem, config, arch: (
        clustered(config) == ("cluster" in arch.instructions and config["split_k"] == 2 and config["tail"] == 1)
    ),
)
CLUSTER_FITS = (
    Constraint(
        "the device has clusters",
        lambda problem, config, arch: not clustered(config) or "cluster" in arch.instructions,
    ),
    Constraint(
        f"a cluster has 2 to {_MOST_CLUSTERED} blocks, not {{split_k}}",
        lambda problem, config, arch: not clustered(config) or 2 <= config.number("split_k") <= _MOST_CLUSTERED,
        f"!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= {_MOST_CLUSTERED})",
    ),
)


TAIL = Parameter(
    "tail", "u", (1, 2, 4, 8, 16), "they share out the last one of so many parts of the tiles of C", silent=True
)
TAIL_FITS = Constraint(
    "tail {tail} is for blocks that share out k, not {split_k}, and add up in device memory, cluster {cluster}",
    lambda problem, config, arch: config["tail"] == 1 or (config.number("split_k") > 1 and not clustered(config)),
    "TAIL == 1 || (SPLIT_K > 1 && !CLUSTER)",
)


def _shape_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    m, n = config.number("block_m"), config.number("block_n")
    return max(m, n) <= 4 * min(m, n) or min(problem.m, problem.n) <= 64


SHAPE_PAYS = Constraint("a block's part of C is at most four times as long as wide, unless C is narrow", _shape_pays)


def split_pays(most: int) -> Constraint:
    """The advice on splits of k, for a family that tries them where C has so many tiles at most."""

    def pays(problem: Problem, config: Config, arch: Arch) -> bool:
        parts, split = tiles(problem, config), config.number("split_k")
        if config.number("tail") > 1:
            return parts >= config.number("tail") and 4 * config.number("block_k") * split <= problem.k
        return split == 1 or (parts <= most and parts * split <= 1024 and config.number("block_k") * split <= problem.k)

    return Constraint("blocks share out k where there are few tiles, and each has a tile of k", pays)


def _groups_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    tile_m, tile_n, _ = tile(config)
    rows, cols, group = -(-problem.m // tile_m), -(-problem.n // tile_n), config.number("group_m")
    if rows == 1 or cols == 1 or rows * cols <= _ALL_RUN:
        return group == 1
    if rows * cols <= _SOME_WAIT:
        return group == 1 or (group == 4 and problem.bytes > _CACHED_BYTES)
    return group == 4 or 4 < group < 2 * rows


GROUPS_PAY = Constraint(
    "tiles are grouped where not all of them run at a time, and no more than there are", _groups_pay
)


def _edges_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    sizes = zip((problem.m, problem.n, problem.k), family_in(config).multiples(config), strict=True)
    return (config["edge"] == "exact") == all(size % multiple == 0 for size, multiple in sizes)


EDGES_PAY = Constraint("edges are exact where the tiles fit", _edges_pay)
