"""What a search tries of the `simt` family, and what it leaves out as hopeless."""

import math

from .apart import APART_PAYS, or_apart
from .arch import Arch
from .bulk import BULK_PAYS, bulk, or_bulk
from .config import Config
from .deep import DEEP_SMALL, SHALLOW, deep_pays, is_deep
from .family import Constraint
from .overlap import WARM_L2_PAYS
from .pack import pack_pays
from .problem import DType, Problem
from .simt_sizes import least_registers, neighbours, sum_registers, threads, turned_in_flight, uneven, warp_m, warp_n
from .stream import STREAM_PAYS
from .tiling import CLUSTER_PAYS, EDGES_PAY, GROUPS_PAY, SHAPE_PAYS, split_pays, tiles, widest, widest_copy

__all__ = ["ADVICE"]

_MOST_UNEVEN = 112
"""Registers of the sums of a thread whose sides are no powers of two, where slices share out k."""
_BETWEEN = (40, 56, 80, 112, 120)
"""Sides of a block that threads with powers of two could only share out among five warps and more."""
_MOST_PASSING = 32
"""Sums of such a thread that pass through shared memory at a time."""
_LARGE = 4_000_000
"""Elements of C from which on those count whose tiles of 8 steps of k are multiplied by threads of 16x8."""


def _vectors_wide(problem: Problem, config: Config, arch: Arch) -> bool:
    reads = all(
        config[f"vec_{operand}"] == widest_copy(problem, config, operand) or turned_in_flight(problem, config, operand)
        for operand in "ab"
    )
    vec_c = min(widest(problem, "c"), neighbours(problem.dtype, config))
    if is_deep(config) or bulk(config) or uneven(config):  # many slices leave each thread few sums to write
        sums = config.number("thread_m") * config.number("thread_n")
        while sums % (config.number("slices") * vec_c) and vec_c > 1:
            vec_c //= 2
    return reads and config.number("vec_c") == vec_c


def _slices_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    slices, sums = config.number("slices"), sum_registers(problem.dtype, config)
    if slices == 1 or tiles(problem, config) > 512:
        return slices == 1
    most = _MOST_UNEVEN if uneven(config) else 64
    return (sums <= most and threads(config) <= 128 * slices) or _long_in_slices(config)


def _long_in_slices(config: Config) -> bool:
    """Whether four slices of one or two warps have threads of 16x8, which read least for each multiply-add."""
    return (
        config["slices"] == 4
        and config["thread_m"] == 16
        and config["prefetch"] == 1
        and config.number("block_k") >= 16
        and threads(config) <= 256
    )


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # Without being held to it the compiler takes up to some 24 registers more than it needs.
    blocks = config.number("min_blocks")
    least = least_registers(problem.dtype, config)
    return blocks == 1 or (least + 24) * threads(config) * blocks > arch.registers_per_sm


def _area_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    return config.number("block_m") * config.number("block_n") >= 64 * 64 or tiles(problem, config) <= 2048


def _nearly_square(ratio: int, m: int, n: int) -> bool:
    return max(m, n) <= ratio * min(m, n)


def _writes_mostly(problem: Problem) -> bool:
    """Whether C takes longer to write than to compute: long parts of its rows are written better then."""
    return problem.k <= 32 and 16 * problem.k <= min(problem.m, problem.n)


def _long_in_large(problem: Problem, config: Config) -> bool:
    """Whether threads of 16x8 multiply shallow tiles of a large C: where longer warps and six stages may pay."""
    return config["block_k"] == 8 and config["thread_m"] == 16 and problem.m * problem.n >= _LARGE


def _uneven_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    if not uneven(config):
        return True
    sides, slices = (config.number("thread_m"), config.number("thread_n")), config.number("slices")
    # Where slices pass sums on, a thread's share of them passes at a time: where it goes takes registers.
    passing = math.prod(sides) // slices if config["staged_c"] == 1 and slices > 1 else 0
    return (
        (8 in sides or sides == (10, 10))
        and passing <= _MOST_PASSING
        and config["cp_async"] == 1
        and config["prefetch"] == 1
        and config["a_k_inner"] == 0
        and config["b_k_inner"] == 0
    )


def _order_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # By rows fewer multiply-adds of a long part have to read all their operands anew; in a square one that is luck.
    m, n = config.number("thread_m"), config.number("thread_n")
    if m > n:
        return config["rows_first"] == 1
    return config["rows_first"] == 0 or (m * n == 64 and config["prefetch"] == 1)


def _warp_shape_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    m, n = warp_m(config), warp_n(config)
    # A long warp reads less from shared memory for each product; most of it is idle where C has very few rows.
    narrow = 4 < min(problem.m, problem.n) <= 32
    return (
        _nearly_square(2, m, n)
        or (_long_in_large(problem, config) and m == 4 * n)
        or (_long_in_slices(config) and n == 4 * m)
        or (_writes_mostly(problem) and m < n <= 8 * m)
        or (
            narrow
            and _nearly_square(4, m, n)
            and config.number("block_k") >= SHALLOW
            and config["cp_async"] == 1
            and config["prefetch"] == 1
        )
    )


ADVICE = (
    Constraint(
        "double is for the fp64 tensor cores where they are faster",
        lambda problem, config, arch: (
            problem.dtype is not DType.DOUBLE or arch.dmma_per_cycle <= arch.fma_per_cycle_double
        ),
    ),
    Constraint(
        "a thread's part of C is at most twice as long as wide",
        lambda problem, config, arch: _nearly_square(2, config.number("thread_m"), config.number("thread_n")),
    ),
    Constraint(
        "a warp's part of C is at most twice as long as wide, four times where C is narrow and tiles are deep or large "
        "with threads of 16x8, or has long rows where k is short and C takes longest to write",
        _warp_shape_pays,
    ),
    SHAPE_PAYS,
    Constraint(
        "threads have 5, 10 or 14 rows or columns beside 8 or 10, and read ahead from tiles that cp.async fills",
        _uneven_pays,
    ),
    Constraint(
        "sides of a block between those of whole warps with powers of two are for threads with others",
        lambda problem, config, arch: all(
            config[f"block_{side}"] not in _BETWEEN or config.number(f"thread_{side}").bit_count() > 1 for side in "mn"
        ),
    ),
    Constraint("tiles below 64 x 64 are for results that have few of them", _area_pays),
    pack_pays(turns=True),
    Constraint("copies are as wide as the stored rows allow", _vectors_wide),
    Constraint(
        "a block has at most 512 threads",
        lambda problem, config, arch: threads(config) <= 512,
    ),
    Constraint(
        "operands are read ahead where a thread has at least 16 multiply-adds a step",
        lambda problem, config, arch: (
            not config.number("prefetch") or config.number("thread_m") * config.number("thread_n") >= 16
        ),
    ),
    Constraint("a thread multiplies long parts of C row after row, large square ones in either order", _order_pays),
    or_bulk(or_apart(DEEP_SMALL)),
    Constraint(
        "deep tiles are filled by cp.async",
        lambda problem, config, arch: not is_deep(config) or config["cp_async"] == 1,
    ),
    or_bulk(or_apart(deep_pays(stages=lambda problem, config: 6 if _long_in_large(problem, config) else 4, slices=8))),
    BULK_PAYS,
    APART_PAYS,
    Constraint(
        "warps share out k where there are few tiles, with few sums or in four slices of threads of 16x8", _slices_pay
    ),
    split_pays(256),
    STREAM_PAYS,
    or_bulk(CLUSTER_PAYS),
    GROUPS_PAY,
    Constraint("the compiler is held to fewer registers only where one block more gains from it", _residency_pays),
    WARM_L2_PAYS,
    EDGES_PAY,
)
