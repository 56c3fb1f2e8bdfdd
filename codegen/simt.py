"""The `simt` family: register tiles fed from shared memory, by the ordinary multiply-add."""

from collections.abc import Callable

from .apart import APART, APART_FITS
from .arch import Arch
from .bulk import BULK, BULK_FITS, boxes, depth_worth, loaders, unbulked
from .config import Config, Value
from .epilogue import ATOMIC, ATOMIC_FITS, STAGED_C, STAGED_C_FITS, STREAM_C, atomic, sharers
from .family import EDGE, SPLITS, Constraint, Family, Parameter
from .overlap import WARM_L2, WARM_L2_FITS, early
from .pack import PACK_FITS, pack, vec_worth
from .problem import DType, Problem
from .simt_advice import ADVICE
from .simt_sizes import (
    copied,
    least_registers,
    neighbours,
    overhead,
    registers,
    smem_elements,
    smem_loads,
    step,
    tail_cycles,
    threads,
    turned_in_flight,
    uneven,
    warp_m,
    warp_n,
)
from .spread import COPY_GROUPS, spread, spread_fits
from .stream import STREAM_FITS, STREAM_K, streams
from .tiling import (
    CLUSTER,
    CLUSTER_FITS,
    MOST_COPIES,
    RESIDENT_FITS,
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
    widest,
)

__all__ = ["SIMT"]

_MOST_FMAS = 2560
"""Multiply-adds of a thread in a tile: the loop over them is unrolled, and must fit the instruction cache."""


def _inner_worth(operand: str) -> Callable[[Problem, Value], bool]:
    return lambda problem, value: value == 0 or runs_along_k(problem, operand)


def _turns_elements(operand: str) -> Constraint:
    name = operand.upper()
    along = "!TRANS_A" if operand == "a" else "TRANS_B"
    return Constraint(
        f"cp.async transposes {name} element by element: vec_{operand} {{vec_{operand}}} is 1",
        lambda problem, config, arch: not turned_in_flight(problem, config, operand) or config[f"vec_{operand}"] == 1,
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


def _places(problem: Problem, config: Config) -> int:
    """Steps of a tile with which copies can be started: not the last one, where that waits for the next tile."""
    reads = config.number("block_k") // (config.number("slices") * step(problem.dtype, config))
    return reads - config.number("prefetch")


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
        "the rows of a warp, thread_m {thread_m} * lanes_m {lanes_m}, and its columns are whole vectors of 16 bytes",
        lambda problem, config, arch: all(
            side(config) * problem.dtype.size_bytes % WIDE_BYTES == 0 for side in (warp_m, warp_n)
        ),
        "WARP_M % WIDE == 0 && WARP_N % WIDE == 0",
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
        "VEC_C <= WIDE && THREAD_N % VEC_C == 0 && !(B_K_INNER && VEC_C > 1)",
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
    Constraint(
        "copies that are spread, in {copy_groups} groups, are those of cp.async",
        lambda problem, config, arch: bool(config.number("cp_async")) or not spread(config),
    ),
    spread_fits(copied, _places),
    *BULK_FITS,
    *APART_FITS,
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
        lambda problem, config, arch: least_registers(problem.dtype, config) <= registers_held_to(config),
    ),
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
        BULK,  # first: what is tried of the others depends on it
        Parameter(
            "block_m",
            "bm",
            (64, 16, 32, 48, 96, 128, 160, 192, 256, 40, 56, 80, 112, 120),
            "rows of C a block computes",
            block_worth("m"),
        ),
        Parameter(
            "block_n",
            "bn",
            (64, 16, 32, 48, 96, 128, 160, 192, 256, 40, 80, 120),
            "columns of C a block computes",
            block_worth("n"),
        ),
        Parameter("block_k", "bk", (8, 16, 32, 64, 128, 256), "steps of k that a tile covers", depth_worth),
        Parameter("thread_m", "tm", (4, 2, 8, 16, 5, 10, 14), "rows of C a thread computes"),
        Parameter("thread_n", "tn", (4, 2, 8, 5, 10), "columns of C a thread computes"),
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
        STREAM_K,
        Parameter("group_m", "g", (1, 4, 8, 16), "tiles that blocks go down before they go right"),
        Parameter("min_blocks", "r", (1, 2, 3, 4, 6, 8), "blocks that the registers must allow on a multiprocessor"),
        STAGED_C,
        STREAM_C,
        ATOMIC,
        WARM_L2,
        COPY_GROUPS,
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (threads(config) + loaders(config), 1, 1),
    tile=tile,
    smem_elements=lambda config: smem_elements(config, 4),
    registers=registers,
    reuse=reuse,
    smem_loads=smem_loads,
    overhead=overhead,
    tail_cycles=tail_cycles,
    ahead=lambda config: config.number("stages") - 1,
    advice=ADVICE,
    alignment=alignment,
    splits=splits,
    tail=tail,
    streams=streams,
    sharers=sharers,
    clustered=clustered,
    packs=packs,
    atomic=atomic,
    early=early,
    uneven=uneven,
    loaders=loaders,
    boxes=boxes,
    scalar=lambda config: unbulked(scalar(config)),
)
