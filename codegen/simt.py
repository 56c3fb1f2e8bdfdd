"""The `simt` family: register tiles fed from shared memory, by the ordinary multiply-add."""

from collections.abc import Callable

from .apart import APART, APART_FITS, APART_PAYS, or_apart
from .arch import Arch
from .config import Config, Value
from .deep import DEEP_SMALL, SHALLOW, deep_pays, is_deep
from .epilogue import ATOMIC, ATOMIC_FITS, STAGED_C, STAGED_C_FITS, atomic
from .family import EDGE, SPLITS, Constraint, Family, Parameter
from .overlap import WARM_L2, WARM_L2_FITS, WARM_L2_PAYS, early
from .pack import PACK_FITS, pack, pack_pays, vec_worth
from .problem import DType, Problem
from .simt_sizes import (
    copied,
    least_registers,
    neighbours,
    overhead,
    registers,
    smem_elements,
    smem_loads,
    step,
    sum_registers,
    tail_cycles,
    threads,
    warp_m,
    warp_n,
)
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
    WIDE_BYTES,
    aligned,
    alignment,
    block_worth,
    clustered,
    packs,
    read_along_k,
    registers_held_to,
    reuse,
    runs_along_k,
    scalar,
    split_worth,
    splits,
    tail,
    tile,
    tiles,
    widest,
    widest_copy,
)

__all__ = ["SIMT"]

_MOST_FMAS = 2560
"""Multiply-adds of a thread in a tile: the loop over them is unrolled, and must fit the instruction cache."""


def _turned_in_flight(problem: Problem, config: Config, operand: str) -> bool:
    """Whether cp.async has to transpose."""
    along = read_along_k(problem, config, operand)
    return bool(config.number("cp_async")) and along and not config.number(f"{operand}_k_inner")


def _inner_worth(operand: str) -> Callable[[Problem, Value], bool]:
    return lambda problem, value: value == 0 or runs_along_k(problem, operand)


def _turns_elements(operand: str) -> Constraint:
    name = operand.upper()
    along = "!TRANS_A" if operand == "a" else "TRANS_B"
    return Constraint(
        f"cp.async transposes {name} element by element: vec_{operand} {{vec_{operand}}} is 1",
        lambda problem, config, arch: not _turned_in_flight(problem, config, operand) or config[f"vec_{operand}"] == 1,
        f"!(CP_ASYNC && {along} && !{name}_K_INNER) || VEC_{name} == 1",
    )


def _inner_stays(operand: str) -> Constraint:
    name = operand.upper()
    along = "!TRANS_A" if operand == "a" else "TRANS_B"
    return Constraint(
        f"k is innermost in the tiles of {name} only if stored rows of {name} run along k",
        lambda problem, config, arch: config[f"{operand}_k_inner"] == 0 or read_along_k(problem, config, operand),
        f"{along} || !{name}_K_INNER",
    )


def _steps_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    reads = config.number("slices") * step(problem.dtype, config) * (1 + config.number("prefetch"))
    return config.number("block_k") % reads == 0


_CONSTRAINTS = (
    Constraint(
        "block_m {block_m} is a multiple of the rows of a warp, thread_m {thread_m} * lanes_m {lanes_m}",
        lambda problem, config, arch: config.number("block_m") % warp_m(config) == 0,
        "BLOCK_M % WARP_M == 0",
    ),
    Constraint(
        "block_n {block_n} is a multiple of the columns of a warp, thread_n {thread_n} * 32 / lanes_m {lanes_m}",
        lambda problem, config, arch: config.number("block_n") % warp_n(config) == 0,
        "BLOCK_N % WARP_N == 0",
    ),
    Constraint(
        "tiles that pass through registers use two stages, not {stages}",
        lambda problem, config, arch: bool(config.number("cp_async")) or config["stages"] == 2,
        "CP_ASYNC || STAGES == 2",
    ),
    Constraint(
        "the device has cp.async",
        lambda problem, config, arch: not config.number("cp_async") or "cp.async" in arch.instructions,
    ),
    _inner_stays("a"),
    _inner_stays("b"),
    aligned("a", "VEC_A <= WIDE"),
    aligned("b", "VEC_B <= WIDE"),
    aligned("c", "VEC_C <= WIDE"),
    Constraint(
        "vec_c {vec_c} is at most the neighbours in a row of C that a thread computes",
        lambda problem, config, arch: config.number("vec_c") <= neighbours(problem.dtype, config),
        "VEC_C <= WIDE && VEC_C <= THREAD_N && !(B_K_INNER && VEC_C > 1)",
    ),
    _turns_elements("a"),
    _turns_elements("b"),
    Constraint(
        "block_k {block_k} is whole steps for each of {slices} slices, an even number of them with prefetch {prefetch}",
        _steps_fit,
        "BLOCK_K % (SLICES * STEP * (1 + PREFETCH)) == 0",
    ),
    Constraint(
        "thread_m {thread_m} * thread_n {thread_n} sums are whole vectors for each of {slices} slices",
        lambda problem, config, arch: (
            config.number("thread_m") * config.number("thread_n") % (config.number("slices") * config.number("vec_c"))
            == 0
        ),
        "THREAD_M * THREAD_N % (SLICES * VEC_C) == 0",
    ),
    Constraint(
        f"a thread copies at most {MOST_COPIES} elements of an operand for a tile",
        lambda problem, config, arch: all(copied(config, operand) <= MOST_COPIES for operand in "ab"),
    ),
    Constraint(
        f"a thread has at most {_MOST_FMAS} multiply-adds in a tile: they are unrolled",
        lambda problem, config, arch: (
            config.number("thread_m") * config.number("thread_n") * config.number("block_k")
            <= _MOST_FMAS * config.number("slices")
        ),
        f"THREAD_M * THREAD_N * BLOCK_K <= {_MOST_FMAS} * SLICES",
    ),
    *APART_FITS,
    *CLUSTER_FITS,
    TAIL_FITS,
    PACK_FITS,
    STAGED_C_FITS,
    WARM_L2_FITS,
    *ATOMIC_FITS,
    RESIDENT_FITS,
    Constraint(
        "registers of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: least_registers(problem.dtype, config) <= registers_held_to(config),
    ),
)


def _vectors_wide(problem: Problem, config: Config, arch: Arch) -> bool:
    reads = all(
        config[f"vec_{operand}"] == widest_copy(problem, config, operand) or _turned_in_flight(problem, config, operand)
        for operand in "ab"
    )
    vec_c = min(widest(problem, "c"), neighbours(problem.dtype, config))
    if is_deep(config):  # many slices leave each thread few sums to write
        vec_c = min(vec_c, config.number("thread_m") * config.number("thread_n") // config.number("slices"))
    return reads and config.number("vec_c") == vec_c


def _split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    parts, split = tiles(problem, config), config.number("split_k")
    if config.number("tail") > 1:
        return parts >= config.number("tail") and 4 * config.number("block_k") * split <= problem.k
    return split == 1 or (parts <= 256 and parts * split <= 1024 and config.number("block_k") * split <= problem.k)


def _slices_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    slices, sums = config.number("slices"), sum_registers(problem.dtype, config)
    return slices == 1 or (sums <= 64 and tiles(problem, config) <= 512 and threads(config) <= 128 * slices)


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


def _order_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # How often a multiply-add has to read all its operands anew is the compiler's luck in small parts of C.
    m, n = config.number("thread_m"), config.number("thread_n")
    if m > n:
        return config["rows_first"] == 1
    return config["rows_first"] == 0 or (m * n == 64 and config["prefetch"] == 1)


def _warp_shape_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    m, n = warp_m(config), warp_n(config)
    # A long warp reads less from shared memory for each product; most of it is idle where C has very few rows.
    narrow = 4 < min(problem.m, problem.n) <= 32
    return _nearly_square(2, m, n) or (_writes_mostly(problem) and m < n <= 8 * m) or (
        narrow
        and _nearly_square(4, m, n)
        and config.number("block_k") >= SHALLOW
        and config["cp_async"] == 1
        and config["prefetch"] == 1
    )


_ADVICE = (
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
        "a warp's part of C is at most twice as long as wide, four times where C is narrow and tiles are deep, or has "
        "long rows where k is short and C takes longest to write",
        _warp_shape_pays,
    ),
    SHAPE_PAYS,
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
    Constraint("a thread with many sums multiplies in one order or the other", _order_pays),
    or_apart(DEEP_SMALL),
    Constraint(
        "deep tiles are filled by cp.async",
        lambda problem, config, arch: not is_deep(config) or config["cp_async"] == 1,
    ),
    or_apart(deep_pays(stages=4, slices=8)),
    APART_PAYS,
    Constraint("warps share out k where there are few tiles, of few warps with few sums", _slices_pay),
    Constraint("blocks share out k where there are few tiles, and each has a tile of k", _split_pays),
    CLUSTER_PAYS,
    GROUPS_PAY,
    Constraint("the compiler is held to fewer registers only where one block more gains from it", _residency_pays),
    WARM_L2_PAYS,
    EDGES_PAY,
)


class _Simt(Family):
    """A family whose rows in shared memory are padded by bytes, not by elements."""

    __slots__ = ()

    def smem_bytes(self, dtype: DType, config: Config) -> int:
        return smem_elements(config, WIDE_BYTES // dtype.size_bytes) * dtype.size_bytes


SIMT = _Simt(
    name="simt",
    title="register tiles fed from shared memory, by the ordinary multiply-add",
    template="simt.cu.jinja",
    parameters=(
        Parameter(
            "block_m",
            "bm",
            (64, 16, 32, 48, 96, 128, 160, 192, 256),
            "rows of C a block computes",
            block_worth("m"),
        ),
        Parameter(
            "block_n",
            "bn",
            (64, 16, 32, 48, 96, 128, 160, 192, 256),
            "columns of C a block computes",
            block_worth("n"),
        ),
        Parameter("block_k", "bk", (8, 16, 32, 64, 128), "steps of k that a tile covers"),
        Parameter("thread_m", "tm", (4, 2, 8, 16), "rows of C a thread computes"),
        Parameter("thread_n", "tn", (4, 2, 8), "columns of C a thread computes"),
        Parameter("lanes_m", "l", (8, 4, 2, 16), "lanes of a warp along the rows of C"),
        Parameter("stages", "s", (2, 3, 4, 5, 6, 8), "tiles that shared memory holds at a time"),
        Parameter("cp_async", "c", (0, 1), "1 = cp.async fills shared memory, 0 = tiles pass through registers"),
        pack("a", turns=True),
        pack("b", turns=True),
        Parameter("vec_a", "va", (1, 2, 4), "elements of A that one copy moves", vec_worth("a", turns=True)),
        Parameter("vec_b", "vb", (1, 2, 4), "elements of B that one copy moves", vec_worth("b", turns=True)),
        Parameter(
            "vec_c",
            "vc",
            (1, 2, 4),
            "elements of C that one store moves",
            lambda problem, value: isinstance(value, int) and (value == 1 or value <= widest(problem, "c")),
        ),
        Parameter("a_k_inner", "ka", (0, 1), "1 = k stays innermost in the tiles of A, 0 = m is", _inner_worth("a")),
        Parameter("b_k_inner", "kb", (0, 1), "1 = k stays innermost in the tiles of B, 0 = n is", _inner_worth("b")),
        Parameter("prefetch", "p", (0, 1), "1 = registers hold the operands of the next step too"),
        Parameter(
            "rows_first",
            "rf",
            (0, 1),
            "a thread multiplies: 1 = row after row, 0 = column after column",
            silent=True,
            constant=False,
        ),
        Parameter("slices", "w", (1, 2, 4, 8, 16), "groups of warps that share out the k of each tile"),
        APART,
        Parameter("split_k", "z", SPLITS, "blocks that share out k", split_worth(24)),
        CLUSTER,
        TAIL,
        Parameter("group_m", "g", (1, 4, 8, 16), "tiles that blocks go down before they go right"),
        Parameter("min_blocks", "r", (1, 2, 3, 4, 6, 8), "blocks that the registers must allow on a multiprocessor"),
        STAGED_C,
        ATOMIC,
        WARM_L2,
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (threads(config), 1, 1),
    tile=tile,
    smem_elements=lambda config: smem_elements(config, 4),
    registers=registers,
    reuse=reuse,
    smem_loads=smem_loads,
    overhead=overhead,
    tail_cycles=tail_cycles,
    ahead=lambda config: config.number("stages") - 1,
    advice=_ADVICE,
    alignment=alignment,
    splits=splits,
    tail=tail,
    clustered=clustered,
    packs=packs,
    atomic=atomic,
    early=early,
    scalar=scalar,
)
