"""The `dmma` family: double precision on the fp64 tensor cores."""

from .arch import Arch
from .config import Config
from .deep import DEEP_SMALL, deep_pays, is_deep
from .epilogue import ATOMIC, ATOMIC_FITS, STAGED_C, STAGED_C_FITS, STREAM_C, atomic, staged_elements
from .family import EDGE, SPLITS, Constraint, Family, Parameter
from .overlap import WARM_L2, WARM_L2_FITS, WARM_L2_PAYS, early
from .pack import PACK_FITS, pack, pack_pays, vec_worth
from .problem import DType, Problem
from .spread import COPY_GROUPS, spread, spread_fits
from .tiling import (
    CLUSTER,
    CLUSTER_FITS,
    CLUSTER_PAYS,
    EDGES_PAY,
    GROUPS_PAY,
    MOST_COPIES,
    RESIDENT_FITS,
    SHAPE_PAYS,
    TAIL,
    TAIL_FITS,
    aligned,
    alignment,
    block_worth,
    clustered,
    packs,
    read_along_k,
    registers_held_to,
    reuse,
    scalar,
    split_pays,
    split_worth,
    splits,
    tail,
    tile,
    tiles,
    widest,
    widest_copy,
)

__all__ = ["DMMA"]

_MOST_SUMS = 64
"""Elements of C that a thread can hold in registers, two each, beside the operands."""


def _warps(config: Config) -> tuple[int, int]:
    """Warps of a slice along the rows and the columns of C, rounded down where the tile is no multiple of a warp's."""
    return config.number("block_m") // config.number("warp_m"), config.number("block_n") // config.number("warp_n")


def _threads(config: Config) -> int:
    warps_m, warps_n = _warps(config)
    return 32 * max(1, warps_m * warps_n) * config.number("slices")


def _step(config: Config) -> int:
    """Steps of k whose operands a warp reads at once."""
    return 16 if config.number("mma_k") == 16 else 8


def _instruction(config: Config) -> str:
    return "dmma.m8n8k4" if config.number("mma_k") == 4 else "dmma.m16n8"


def _fast(arch: Arch) -> bool:
    """Whether the device has the instruction that runs its tensor cores at full rate where there are two."""
    return "dmma.m16n8" in arch.instructions


def _smem_elements(config: Config) -> int:
    """Both operands' tiles in each stage, with four spare elements for each step of k where they are short; the slices'
    sums come later, those of a block of a cluster, or those of a row of each thread."""
    m, n, k = (config.number(f"block_{side}") for side in "mnk")
    elements = config.number("stages") * k * sum(side + (4 if side % 16 else 0) for side in (m, n))
    if config.number("slices") > 1 or clustered(config):
        return max(elements, config.number("slices") * m * n)
    warps_m, warps_n = _warps(config)
    passing = staged_elements(warps_m * warps_n, 8, config.number("warp_n"), 2, 16)
    # Asked last, for few need it: a space is pruned by what is known first.
    return passing if passing > elements and config["staged_c"] == 1 else elements


def _sums(config: Config) -> int:
    """Elements of C that a thread holds."""
    return config.number("warp_m") * config.number("warp_n") // 32


def _operand_registers(config: Config) -> int:
    """Registers of a step's operands."""
    return 2 * (config.number("warp_m") + config.number("warp_n")) * _step(config) // 32


def _copied(config: Config, operand: str) -> int:
    """Elements of an operand that a thread copies for a tile."""
    return -(-config.number("block_m" if operand == "a" else "block_n") * config.number("block_k") // _threads(config))


def _copies(config: Config) -> int:
    """Most copies of a thread of A or of B for a tile."""
    return max(_copied(config, operand) // config.number(f"vec_{operand}") for operand in "ab")


def _places(problem: Problem, config: Config) -> int:
    """Instructions of a warp with which copies can be started: not those of a tile's last step, which waits for the
    next tile."""
    steps = config.number("block_k") // (config.number("slices") * _step(config))
    rows = 8 if config.number("mma_k") == 4 else 16
    return (steps - 1) * (config.number("warp_m") // rows) * (config.number("warp_n") // 8)


def _least_registers(config: Config) -> int:
    """Registers that a thread can do with; with fewer some are spilled."""
    held = 2 * _sums(config) + _operand_registers(config)
    if config["prefetch"] == 2:
        return held + _operand_registers(config) + 28
    return held + (48 if _step(config) == 16 else 40)


def _registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: it reads operands a step ahead of what the text says."""
    sums, bound = 2 * _sums(config), registers_held_to(config)
    if sums >= 128:
        return bound  # it takes what there is
    needed = 48 + sums + 2 * _operand_registers(config) + _copied(config, "a") + _copied(config, "b")
    if needed < bound and config["staged_c"] == 1:
        needed += 32
    return min(needed, bound)


def _evenly(operand: str) -> Constraint:
    """What a thread copies lies at the same distances for all threads, with and without vectors."""

    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        extent, threads = config.number("block_m" if operand == "a" else "block_n"), _threads(config)
        depth, along = config.number("block_k"), read_along_k(problem, config, operand)
        for vec in (1, config.number(f"vec_{operand}")):
            row = (depth if along else extent) // vec
            if threads % row and row % threads:
                return False
            # From copy to copy the chunks of all threads' rows have to be swapped alike.
            rows, period = threads // row, 2 if along and depth > 8 else 4
            if rows not in (0, 1, 2) and rows % period:
                return False
        return True

    return Constraint(f"threads share out the rows of a tile of {operand.upper()} evenly", holds)


_CONSTRAINTS = (
    Constraint("the tensor cores multiply double", lambda problem, config, arch: problem.dtype is DType.DOUBLE),
    Constraint(
        "the device has fp64 tensor cores that multiply {mma_k} steps of k",
        lambda problem, config, arch: _instruction(config) in arch.instructions,
    ),
    Constraint(
        "block_m {block_m} is a multiple of warp_m {warp_m}",
        lambda problem, config, arch: config.number("block_m") % config.number("warp_m") == 0,
        "BLOCK_M % WARP_M == 0",
    ),
    Constraint(
        "block_n {block_n} is a multiple of warp_n {warp_n}",
        lambda problem, config, arch: config.number("block_n") % config.number("warp_n") == 0,
        "BLOCK_N % WARP_N == 0",
    ),
    Constraint(
        f"a thread holds at most {_MOST_SUMS} elements of C",
        lambda problem, config, arch: _sums(config) <= _MOST_SUMS,
        f"THREAD_M * THREAD_N <= {_MOST_SUMS}",
    ),
    aligned("a"),
    aligned("b"),
    aligned("c"),
    Constraint(
        "block_k {block_k} is whole steps for each of {slices} slices",
        lambda problem, config, arch: config.number("block_k") % (config.number("slices") * _step(config)) == 0,
        "BLOCK_K % (SLICES * STEP) == 0",
    ),
    Constraint(
        "prefetch 2 takes an even number of steps of k for each slice",
        lambda problem, config, arch: (
            config["prefetch"] != 2 or config.number("block_k") % (2 * config.number("slices") * _step(config)) == 0
        ),
        "PREFETCH < 2 || STEPS % 2 == 0",
    ),
    Constraint(
        "the sums of a thread are whole vectors for each of {slices} slices",
        lambda problem, config, arch: _sums(config) % (config.number("slices") * config.number("vec_c")) == 0,
        "THREAD_M * THREAD_N % (SLICES * VEC_C) == 0",
    ),
    Constraint(
        f"a thread copies at most {MOST_COPIES} elements of an operand for a tile",
        lambda problem, config, arch: all(_copied(config, operand) <= MOST_COPIES for operand in "ab"),
    ),
    Constraint(
        "copies in {copy_groups} groups go with operands that are read beside others, not with prefetch {prefetch}",
        lambda problem, config, arch: config["prefetch"] == 2 or not spread(config),
    ),
    spread_fits(_copies, _places),
    _evenly("a"),
    _evenly("b"),
    *CLUSTER_FITS,
    TAIL_FITS,
    PACK_FITS,
    STAGED_C_FITS,
    WARM_L2_FITS,
    *ATOMIC_FITS,
    RESIDENT_FITS,
    Constraint(
        "registers of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: _least_registers(config) <= registers_held_to(config),
    ),
)


def _area(config: Config) -> int:
    """Elements of C that a block computes."""
    return config.number("block_m") * config.number("block_n")


def _area_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # The smaller a block's part, the more often A and B pass through the cache.
    area = _area(config)
    return area >= 128 * 64 or tiles(problem, config) <= (1024 if area >= 64 * 64 else 600)


def _slices_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    slices = config.number("slices")
    few = is_deep(config) or 64 * slices <= _threads(config)
    return slices == 1 or (tiles(problem, config) <= 512 and few and _threads(config) <= 256)


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # Without being held to it the compiler may take all the registers that one block can have.
    blocks = config.number("min_blocks")
    return blocks == 1 or (_threads(config) * blocks <= 512 and _sums(config) >= 16)


_ADVICE = (
    Constraint(
        "the larger instructions run at twice the rate",
        lambda problem, config, arch: config["mma_k"] != 4 or not _fast(arch),
    ),
    Constraint(
        "a warp's part of C is at most twice as long as wide",
        lambda problem, config, arch: (
            max(config.number("warp_m"), config.number("warp_n"))
            <= 2 * min(config.number("warp_m"), config.number("warp_n"))
        ),
    ),
    SHAPE_PAYS,
    Constraint(
        "a block has 64 to 256 threads, or as many as its part of C allows",
        lambda problem, config, arch: _threads(config) <= 256 and (_threads(config) >= 64 or config["slices"] == 1),
    ),
    pack_pays(turns=False),
    Constraint(
        "packed operands are copied two elements at a time, others as their rows allow",
        lambda problem, config, arch: all(config[f"vec_{each}"] == widest_copy(problem, config, each) for each in "ab"),
    ),
    Constraint("small parts of C are for results that have few of them", _area_pays),
    Constraint(
        "the warps of a large part of C have large parts themselves, which read less for each product",
        lambda problem, config, arch: _area(config) < 64 * 64 or _sums(config) >= 32,
    ),
    Constraint(
        "two tiles at a time are enough only where they are deep",
        lambda problem, config, arch: config["stages"] != 2 or config["block_k"] == 32,
    ),
    Constraint(
        f"a thread that holds {_MOST_SUMS} elements of C has no registers left to share out k over blocks",
        lambda problem, config, arch: _sums(config) < _MOST_SUMS or config["split_k"] == 1,
    ),
    DEEP_SMALL,
    deep_pays(stages=lambda problem, config: 5, slices=4),
    Constraint("warps share out k where there are few tiles", _slices_pay),
    split_pays(128),
    CLUSTER_PAYS,
    GROUPS_PAY,
    Constraint("the compiler is held to fewer registers only where blocks are small", _residency_pays),
    WARM_L2_PAYS,
    Constraint(
        "copies are spread up to sm_90, where that was measured: for later devices the compiler runs out of registers",
        lambda problem, config, arch: not spread(config) or arch.capability < (10, 0),
    ),
    EDGES_PAY,
)


def _smem_loads(config: Config) -> float:
    """Operands of each step of a warp, and what is written for it: a lane reads one for each 32 multiply-adds of its
    warp's tile side."""
    m, n = config.number("warp_m"), config.number("warp_n")
    return 1 / m + 1 / n + 1 / config.number("block_m") + 1 / config.number("block_n")


DMMA = Family(
    name="dmma",
    title="warp tiles fed from shared memory, by the fp64 tensor cores",
    template="dmma.cu.jinja",
    parameters=(
        Parameter(
            "block_m",
            "bm",
            (64, 16, 32, 48, 96, 128, 192, 256),
            "rows of C a block computes",
            block_worth("m"),
        ),
        Parameter(
            "block_n",
            "bn",
            (64, 8, 16, 32, 96, 128, 192, 256),
            "columns of C a block computes",
            block_worth("n"),
        ),
        Parameter("block_k", "bk", (16, 8, 32, 64), "steps of k that a tile covers"),
        Parameter("warp_m", "wm", (32, 16, 48, 64), "rows of C a warp computes"),
        Parameter("warp_n", "wn", (32, 8, 16, 64), "columns of C a warp computes"),
        Parameter("mma_k", "mk", (8, 16, 4), "steps of k of one instruction: 16x8 elements of C, with 4 of them 8x8"),
        Parameter("stages", "s", (3, 2, 4, 5), "tiles that shared memory holds at a time"),
        pack("a", turns=False),
        pack("b", turns=False),
        Parameter("vec_a", "va", (1, 2), "elements of A that one copy moves", vec_worth("a", turns=False)),
        Parameter("vec_b", "vb", (1, 2), "elements of B that one copy moves", vec_worth("b", turns=False)),
        Parameter(
            "vec_c",
            "vc",
            (1, 2),
            "elements of C that one store moves",
            lambda problem, value: value == widest(problem, "c"),
        ),
        Parameter(
            "prefetch",
            "p",
            (0, 1, 2),
            "operands are read: 0 = in time, 1 = ahead, 2 = ahead, beside others",
        ),
        Parameter("slices", "w", (1, 2, 4, 8), "groups of warps that share out the k of each tile"),
        Parameter("split_k", "z", SPLITS, "blocks that share out k", split_worth(32)),
        CLUSTER,
        TAIL,
        Parameter("group_m", "g", (1, 4, 8, 16), "tiles that blocks go down before they go right"),
        Parameter("min_blocks", "r", (1, 2, 3, 4), "blocks that the registers must allow on a multiprocessor"),
        STAGED_C,
        STREAM_C,
        ATOMIC,
        WARM_L2,
        COPY_GROUPS,
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (_threads(config), 1, 1),
    tile=tile,
    smem_elements=_smem_elements,
    registers=_registers,
    reuse=reuse,
    smem_loads=_smem_loads,
    advice=_ADVICE,
    alignment=alignment,
    splits=splits,
    tail=tail,
    clustered=clustered,
    packs=packs,
    atomic=atomic,
    early=early,
    scalar=scalar,
    tensor_cores=True,
)
