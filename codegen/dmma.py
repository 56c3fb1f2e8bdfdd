"""The `dmma` family: double precision on the fp64 tensor cores."""

from .arch import Arch
from .config import Config
from .deep import DEEP_SMALL, deep_pays, is_deep
from .dmma_sizes import copied, least_registers, places, registers, smem_elements, smem_loads, step, sums, threads
from .epilogue import ATOMIC, ATOMIC_FITS, STAGED_C, STAGED_C_FITS, STREAM_C, atomic, sharers
from .family import EDGE, SPLITS, Constraint, Family, Parameter
from .overlap import WARM_L2, WARM_L2_FITS, WARM_L2_PAYS, early
from .pack import PACK_FITS, pack, pack_pays, vec_worth
from .persistent import PERSISTENT, PERSISTENT_FITS, PERSISTENT_PAYS, persistent
from .problem import DType, Problem
from .spread import COPY_GROUPS, spread, spread_fits
from .stream import STREAM_FITS, STREAM_K, STREAM_PAYS, streams
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


def _instruction(config: Config) -> str:
    return "dmma.m8n8k4" if config.number("mma_k") == 4 else "dmma.m16n8"


def _fast(arch: Arch) -> bool:
    """Whether the device has the instruction that runs its tensor cores at full rate where there are two."""
    return "dmma.m16n8" in arch.instructions


def _evenly(operand: str) -> Constraint:
    """What a thread copies lies at the same distances for all threads, with and without vectors."""

    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        extent, team = config.number("block_m" if operand == "a" else "block_n"), threads(config)
        depth, along = config.number("block_k"), read_along_k(problem, config, operand)
        for vec in (1, config.number(f"vec_{operand}")):
            row = (depth if along else extent) // vec
            if team % row and row % team:
                return False
            # From copy to copy the chunks of all threads' rows have to be swapped alike.
            rows, period = team // row, 2 if along and depth > 8 else 4
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
        lambda problem, config, arch: sums(config) <= _MOST_SUMS,
        f"THREAD_M * THREAD_N <= {_MOST_SUMS}",
    ),
    aligned("a"),
    aligned("b"),
    aligned("c"),
    Constraint(
        "block_k {block_k} is whole steps for each of {slices} slices",
        lambda problem, config, arch: config.number("block_k") % (config.number("slices") * step(config)) == 0,
        "BLOCK_K % (SLICES * STEP) == 0",
    ),
    Constraint(
        "prefetch 2 takes an even number of steps of k for each slice",
        lambda problem, config, arch: (
            config["prefetch"] != 2 or config.number("block_k") % (2 * config.number("slices") * step(config)) == 0
        ),
        "PREFETCH < 2 || STEPS % 2 == 0",
    ),
    Constraint(
        "the sums of a thread are whole vectors for each of {slices} slices",
        lambda problem, config, arch: sums(config) % (config.number("slices") * config.number("vec_c")) == 0,
        "THREAD_M * THREAD_N % (SLICES * VEC_C) == 0",
    ),
    Constraint(
        f"a thread copies at most {MOST_COPIES} elements of an operand for a tile",
        lambda problem, config, arch: all(copied(config, operand) <= MOST_COPIES for operand in "ab"),
    ),
    Constraint(
        "copies in {copy_groups} groups go with operands that are read beside others, not with prefetch {prefetch}",
        lambda problem, config, arch: config["prefetch"] == 2 or not spread(config),
    ),
    spread_fits(copied, places),
    _evenly("a"),
    _evenly("b"),
    *PERSISTENT_FITS,
    *CLUSTER_FITS,
    TAIL_FITS,
    *STREAM_FITS,
    PACK_FITS,
    STAGED_C_FITS,
    WARM_L2_FITS,
    *ATOMIC_FITS,
    RESIDENT_FITS,
    Constraint(
        "registers of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: least_registers(config) <= registers_held_to(config),
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
    few = is_deep(config) or 64 * slices <= threads(config)
    return slices == 1 or (tiles(problem, config) <= 512 and few and threads(config) <= 256)


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # Without being held to it the compiler may take all the registers that one block can have.
    blocks = config.number("min_blocks")
    return blocks == 1 or (threads(config) * blocks <= 512 and sums(config) >= 16)


def _plain(config: Config) -> bool:
    """Whether a main loop needs few registers beside sums and operands: else words of it may wait in memory."""
    return (config["block_k"], config["vec_a"], config["vec_b"], config["staged_c"]) == (16, 2, 2, 0)


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
        lambda problem, config, arch: threads(config) <= 256 and (threads(config) >= 64 or config["slices"] == 1),
    ),
    pack_pays(turns=False),
    Constraint(
        "packed operands are copied two elements at a time, others as their rows allow",
        lambda problem, config, arch: all(config[f"vec_{each}"] == widest_copy(problem, config, each) for each in "ab"),
    ),
    Constraint("small parts of C are for results that have few of them", _area_pays),
    Constraint(
        "the warps of a large part of C have large parts themselves, which read less for each product",
        lambda problem, config, arch: _area(config) < 64 * 64 or sums(config) >= 32,
    ),
    Constraint(
        "two tiles at a time are enough only where they are deep",
        lambda problem, config, arch: config["stages"] != 2 or config["block_k"] == 32,
    ),
    Constraint(
        f"a thread that holds {_MOST_SUMS} elements of C has no registers left to share out k over blocks",
        lambda problem, config, arch: sums(config) < _MOST_SUMS or config["split_k"] == 1,
    ),
    DEEP_SMALL,
    deep_pays(stages=lambda problem, config: 5, slices=4),
    Constraint("warps share out k where there are few tiles", _slices_pay),
    split_pays(128),
    STREAM_PAYS,
    Constraint(
        f"a thread that holds {_MOST_SUMS} elements of C and shares out tiles has no registers left for deep ones, to "
        "stage sums or to copy single elements",
        lambda problem, config, arch: sums(config) < _MOST_SUMS or streams(config) == 0 or _plain(config),
    ),
    CLUSTER_PAYS,
    GROUPS_PAY,
    Constraint("the compiler is held to fewer registers only where blocks are small", _residency_pays),
    WARM_L2_PAYS,
    PERSISTENT_PAYS,
    Constraint(
        "copies are spread up to sm_90, where that was measured: for later devices the compiler runs out of registers",
        lambda problem, config, arch: not spread(config) or arch.capability < (10, 0),
    ),
    EDGES_PAY,
)


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
        STREAM_K,
        Parameter("group_m", "g", (1, 4, 8, 16), "tiles that blocks go down before they go right"),
        Parameter("min_blocks", "r", (1, 2, 3, 4), "blocks that the registers must allow on a multiprocessor"),
        STAGED_C,
        STREAM_C,
        ATOMIC,
        WARM_L2,
        COPY_GROUPS,
        PERSISTENT,
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (threads(config), 1, 1),
    tile=tile,
    smem_elements=smem_elements,
    registers=registers,
    reuse=reuse,
    smem_loads=smem_loads,
    advice=_ADVICE,
    alignment=alignment,
    splits=splits,
    tail=tail,
    streams=streams,
    sharers=sharers,
    persistent=persistent,
    clustered=clustered,
    packs=packs,
    atomic=atomic,
    early=early,
    scalar=scalar,
    tensor_cores=True,
)
