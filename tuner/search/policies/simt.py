"""What searches try of the `simt` family, and what the model has to know of it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ....codegen.families.simt import FITTED_M, FITTED_N, Order, SimtConfig
from ....codegen.fit import Fit
from ....codegen.legality import Rule
from ....codegen.mechanisms.operands import WIDE_BYTES, Fragments, Load, runs_along_k
from ....codegen.mechanisms.split import Reduce
from ....codegen.problem import DType, Problem
from ....codegen.target import Target
from . import blocked
from .blocked import is_deep, nearly_square
from .policy import Cost, Factors

_UNALIGNED_PAYS, _TRANSPOSED_PAYS = 1024, 2048
"""How often an element has to be used for packing it to pay where rows are not aligned, and the sizes from which on it
pays to transpose them."""
_NARROW = 32
"""Up to so many rows or columns of C memory decides: TMA pays, and barriers do not count."""
_TMA_BYTES_AHEAD = range(60 << 10, 200 << 10)
"""What a CTA keeps on its way by TMA."""
_LARGE = 4_000_000
"""Elements of C from which on those count whose tiles of 8 steps of k are multiplied by thread tiles of 16x8."""
_ROWS, _COLUMNS = (16, 32, 40, 48, 56, 64, 80, 96, 112, 120, 128), (16, 32, 40, 48, 64, 80, 96, 120, 128)
"""Sides of block tiles that are tried for any C, as far as they count for a narrow one."""
_BETWEEN = (40, 56, 80, 112, 120, *FITTED_M)
"""Sides of a block tile that thread tiles with powers of two could only share out among five warps and more, or that
fit a narrow C."""
_FEWEST_OWN, _MANY_OWN = 8, 16
"""Steps of k of a slice in a tile: with fewer than the first its own barriers gain nothing, from the second on no other
way is searched."""
_OWN_AREAS, _MOST_OWN_CTAS = range(32 * 64, 64 * 128 + 1), 320
"""Elements of C of block tiles that may be deep where slices have barriers of their own, and CTAs of those at most."""


_SHARED_PAYS = blocked.shared_pays(WIDE_BYTES)
"""The lanes of a warp write four sectors and more side by side, but vectors of less than 16 bytes each sector in parts.
With rows of 8 bytes 57 float products with k of at most 128 and a C of 4 MB and more took 1.39 times as long without,
with rows of 16 bytes 21 as long (H100s, 2026-11-26)."""


def _pack_worth(problem: Problem, operand: str) -> bool:
    if blocked.unaligned(problem, operand):
        return (problem.n if operand == "a" else problem.m) >= _UNALIGNED_PAYS
    return runs_along_k(problem, operand) and min(problem.m, problem.n, problem.k) >= _TRANSPOSED_PAYS


def _packed_alike(problem: Problem, config: SimtConfig, target: Target) -> bool:
    both = all(blocked.unaligned(problem, each) and _pack_worth(problem, each) for each in "ab")
    return not both or config.pipeline.pack_a == config.pipeline.pack_b


def _long_in_large(problem: Problem, config: SimtConfig) -> bool:
    """Thread tiles of 16x8 that multiply shallow tiles of a large C: longer warp tiles and six stages may pay."""
    return problem.m * problem.n >= _LARGE and config.tile.block_k == 8 and config.tile.thread_m == 16


def _warp_shape_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    m, n = config.tile.warp_m, config.tile.warp_n
    # Where C takes longer to write than to compute, long parts of its rows are written better.
    writes_mostly = problem.k <= 32 and 16 * problem.k <= min(problem.m, problem.n)
    # A long warp tile reads less from shared memory for each product; most of it is idle where C has very few rows.
    narrow = 4 < min(problem.m, problem.n) <= _NARROW and nearly_square(4, m, n)
    return (
        nearly_square(2, m, n)
        or (m == 4 * n and _long_in_large(problem, config))
        or (writes_mostly and m < n <= 8 * m)
        or (
            narrow
            and config.pipeline.load is not Load.REGISTERS
            and config.tile.block_k >= blocked.SHALLOW
            and config.pipeline.fragments is Fragments.DOUBLE
        )
    )


def _non_power_of_two_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    tile, pipeline = config.tile, config.pipeline
    if not tile.non_power_of_two:
        return True
    sides, slices = (tile.thread_m, tile.thread_n), tile.slices
    if tile.fitted:
        return pipeline.load is not Load.REGISTERS and pipeline.fragments is Fragments.DOUBLE
    if not {6, 7}.isdisjoint(sides):
        return False
    small = sides == (5, 4) and min(problem.m, problem.n) <= _NARROW
    return (
        (small or ((8 in sides or sides == (10, 10)) and not pipeline.k_inner_a))
        and pipeline.load is not Load.REGISTERS
        and pipeline.fragments is Fragments.DOUBLE
        and not pipeline.k_inner_b
        # Where slices pass accumulators on, a thread's share of them passes at a time: where it goes takes registers.
        and (slices == 1 or sides[0] * sides[1] // slices <= 32 or not config.epilogue.shared)
    )


def _order_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    # By rows fewer multiply-adds of a long thread tile read all their operands anew; in a square one either may win.
    m, n, rows = config.tile.thread_m, config.tile.thread_n, config.tile.order is Order.ROWS
    if m > n:
        return rows
    return not rows or (m * n == 64 and config.pipeline.fragments is Fragments.DOUBLE)


def _own_barriers_go_deep(problem: Problem, config: SimtConfig) -> bool:
    """Whether slices with barriers of their own may share a tile of 64 steps of k of a larger block tile."""
    tile, ahead = config.tile, config.pipeline.stages - 1
    return (
        tile.block_k == 64
        and tile.block_m * tile.block_n in _OWN_AREAS
        and blocked.tiles(problem, config) <= _MOST_OWN_CTAS
        and tile.slices in (4, 8)
        and tile.slice_barriers
        and ahead <= 3
        and blocked.tiles(problem, config) * config.split_ctas <= _MOST_OWN_CTAS
        and 64 * ahead * config.split_ctas <= problem.k
    )


def _depth_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    if config.pipeline.load is Load.TMA:
        return True
    if not is_deep(config):
        most = 6 if _long_in_large(problem, config) else 4
        return config.tile.slices <= 8 and config.pipeline.stages <= most
    small = blocked.few_small(problem, config) and blocked.much_ahead(problem, config)
    return small or _own_barriers_go_deep(problem, config)


def _tma_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    if config.pipeline.load is not Load.TMA:
        return True
    depth, ahead, sides = config.tile.block_k, config.pipeline.stages - 1, config.tile.block_m + config.tile.block_n
    return (
        "griddepcontrol" in target.arch.instructions
        and ahead * depth * sides * problem.dtype.size_bytes in _TMA_BYTES_AHEAD
        and 8 <= depth // config.tile.slices <= 32
        and config.threads >= 160
        and config.launch.min_ctas == 1
        and depth * ahead * config.split_ctas <= problem.k
    )


def _own_barriers_pay(problem: Problem, config: SimtConfig, target: Target) -> bool:
    slices, steps = config.tile.slices, config.tile.block_k // config.tile.slices
    if (
        slices == 1
        or steps < _FEWEST_OWN
        or config.pipeline.load is Load.REGISTERS
        or min(problem.m, problem.n) <= _NARROW
    ):
        return not config.tile.slice_barriers
    return steps < _MANY_OWN or config.tile.slice_barriers


def _slices_pay(problem: Problem, config: SimtConfig, target: Target) -> bool:
    slices, most = config.tile.slices, 112 if config.tile.non_power_of_two else 64
    few = config.accumulator_registers(problem.dtype) <= most and config.multiplying_threads <= 128 * slices
    return slices == 1 or (few and blocked.tiles(problem, config) <= 512)


def _residency_pays(problem: Problem, config: SimtConfig, target: Target) -> bool:
    # Without being held to it the compiler takes up to some 24 registers more than it needs.
    ctas = config.launch.min_ctas
    needed = (config.least_registers(Fit(config), problem.dtype) + 24) * config.multiplying_threads
    return ctas == 1 or needed * ctas > target.arch.registers_per_sm


_PACKS_PAY: dict[str, Rule[SimtConfig]] = {
    "pack_a": Rule(
        "A is packed where its rows are not aligned or run along k, and each element is used often",
        lambda problem, config, target: not config.pipeline.pack_a or _pack_worth(problem, "a"),
    ),
    "pack_b": Rule(
        "B is packed where its rows are not aligned or run along k, and each element is used often",
        lambda problem, config, target: not config.pipeline.pack_b or _pack_worth(problem, "b"),
    ),
}
_ADVICE: tuple[Rule[SimtConfig], ...] = (
    Rule(
        "double is for the fp64 tensor cores where they are faster",
        lambda problem, config, target: (
            problem.dtype is not DType.DOUBLE or target.arch.dmma_per_cycle <= target.arch.fma_per_cycle_double
        ),
    ),
    Rule(
        "TMA is for narrow results, where memory decides",
        lambda problem, config, target: config.pipeline.load is not Load.TMA or min(problem.m, problem.n) <= _NARROW,
    ),
    Rule(
        "a thread tile is at most twice as long as wide",
        lambda problem, config, target: nearly_square(2, config.tile.thread_m, config.tile.thread_n),
    ),
    Rule(
        "a warp tile is at most twice as long as wide, four times where C is narrow and tiles are deep or large with "
        "thread tiles of 16x8, or has long rows where k is short and C takes longest to write",
        _warp_shape_pays,
    ),
    *blocked.SHAPES_PAY,
    Rule(
        "thread tiles have 5, 10 or 14 rows or columns beside 8 or 10, 5x4 of narrow results, 5 to 7 of block tiles "
        "that fit a narrow C, with fragments double-buffered and few accumulators to pass on",
        _non_power_of_two_pays,
    ),
    *blocked.sides_fit(_ROWS, FITTED_M, _COLUMNS, FITTED_N),
    Rule(
        "sides of a block tile between those of whole warps with powers of two are for thread tiles with others",
        lambda problem, config, target: (
            (config.tile.block_m not in _BETWEEN or config.tile.thread_m.bit_count() > 1)
            and (config.tile.block_n not in (*_BETWEEN, *FITTED_N) or config.tile.thread_n.bit_count() > 1)
        ),
    ),
    Rule(
        "block tiles below 64x64 are for results that have few of them",
        lambda problem, config, target: (
            config.tile.block_m * config.tile.block_n >= 64 * 64 or blocked.tiles(problem, config) <= 2048
        ),
    ),
    *_PACKS_PAY.values(),
    Rule("where rows of both operands are not aligned, both are packed or none is", _packed_alike),
    Rule("at most 512 threads multiply", lambda problem, config, target: config.multiplying_threads <= 512),
    Rule(
        "fragments are double-buffered where a thread has at least 16 multiply-adds a step",
        lambda problem, config, target: (
            config.tile.thread_m * config.tile.thread_n >= 16 or config.pipeline.fragments is Fragments.SINGLE
        ),
    ),
    Rule("a long thread tile is multiplied row after row, a large square one in either order", _order_pays),
    Rule(
        "deep tiles are filled by cp.async or TMA",
        lambda problem, config, target: config.pipeline.load is not Load.REGISTERS or not is_deep(config),
    ),
    Rule(
        "tiles of more than 32 steps of k are for small block tiles of a result that has few, for slices with barriers "
        "of their own and for TMA; others have at most 8 slices and 4 stages, 6 for thread tiles of 16x8 of a large C",
        _depth_pays,
    ),
    Rule("TMA fills deep tiles of narrow results", _tma_pays),
    Rule(
        "slices have barriers of their own where each has 8 steps of k of a tile or more by cp.async, and C is not "
        "narrow",
        _own_barriers_pay,
    ),
    Rule("warps share out k where there are few tiles, with few accumulators", _slices_pay),
    *blocked.splits_pay(most_tiles=256, least_k=24, few=(1,)),
    *blocked.STREAMS_PAY,
    Rule(
        "two CTAs that share a tile of C form a cluster, more do not, nor do those that TMA feeds",
        lambda problem, config, target: config.pipeline.load is Load.TMA or blocked.cluster_fits(config, target),
    ),
    blocked.RASTER_PAYS,
    Rule("the compiler is held to fewer registers only where one CTA more gains from it", _residency_pays),
    _SHARED_PAYS,
    blocked.EVICT_FIRST_PAYS,
    blocked.INTERLEAVE_PAYS,
    *blocked.L2_PREFETCH_PAYS,
)


def _reads(count: int, wide: int) -> int:
    """Reads of so many neighbours, of up to `wide` at a time."""
    whole, left = divmod(count, wide)
    return whole + left.bit_count()


class _Simt(blocked.Blocked):
    advice = _ADVICE
    first = (
        "load", "block_m", "block_n", "block_k", "thread_m", "thread_n", "lanes_m", "stages", "pack_a", "pack_b",
        "k_inner_a", "k_inner_b", "fragments", "order", "slices", "slice_barriers",
        "mode", "parts", "reduce", "raster", "min_ctas",
    )  # fmt: skip
    for_rows: ClassVar[Mapping[str, Rule[Any]]] = {**_PACKS_PAY, "shared": _SHARED_PAYS}
    instead = (
        {"stages": 3},
        {"stages": 2},
        {"reduce": Reduce.WORKSPACE},
        {"load": Load.REGISTERS, "stages": 2, "interleave": 1},
        {"load": Load.REGISTERS, "stages": 2, "interleave": 1, "slice_barriers": False, "reduce": Reduce.WORKSPACE},
    )
    orders_tiles = blocked.Blocked.orders_tiles | {"thread_m", "thread_n", "lanes_m"}
    side_by_side = (*blocked.Blocked.side_by_side, "min_ctas")
    # Fitted to what 19 tunings in float measured on H200s: 9,634 variants (2026-11-22, CUDA 13.0); interleave to 34
    # tunings more. They say what the model does not: deep tiles fill longer, few stages cost less than it thinks.
    factors: ClassVar[Factors] = {
        ("block_k",): {(8,): 0.950, (16,): 0.951, (32,): 1.001, (64,): 1.010, (128,): 1.095},
        ("stages", "load"): {
            (2, "registers"): 1.061, (2, "cp_async"): 0.936, (3, "cp_async"): 0.983, (4, "cp_async"): 1.002,
            (6, "cp_async"): 1.022, (2, "tma"): 0.936, (3, "tma"): 0.983, (4, "tma"): 1.002, (6, "tma"): 1.022,
        },
        ("slices", "slice_barriers"): {
            (1, 0): 1.026, (2, 0): 0.960, (4, 0): 0.982, (8, 0): 1.008, (16, 0): 1.038,
            (2, 1): 0.992, (4, 1): 0.979, (8, 1): 0.998, (16, 1): 1.021,
        },
        ("l2_prefetch",): {(0,): 1.014, (1,): 0.986},
        ("interleave",): {(1,): 1.012, (2,): 0.988},
    }  # fmt: skip

    def modelled(self, target: Target) -> Mapping[str, Any]:
        return {"load": Load.CP_ASYNC if "cp.async" in target.arch.instructions else Load.REGISTERS}

    def typical(self, target: Target) -> Mapping[str, tuple[Any, ...]]:
        load = self.modelled(target)["load"]
        return {**super().typical(target), "load": (load,), "stages": (3,) if load is Load.CP_ASYNC else (2,)}

    def unmodelled(self, config: Any) -> bool:
        # The model does not tell what copies cost the threads that start them.
        return bool(config.pipeline.load is Load.TMA)

    def non_power_of_two(self, config: Any) -> bool:
        return bool(config.tile.non_power_of_two)

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile, pipeline = config.tile, config.pipeline
        m, n, wide = tile.thread_m, tile.thread_n, WIDE_BYTES // problem.dtype.size_bytes
        # Reads of operands, copies of tiles where threads that multiply start them, and some 40 instructions that a
        # thread has for each tile of k.
        reads = (_reads(m, wide) + _reads(n, wide)) / (m * n)
        copy = {Load.TMA: 0.0, Load.CP_ASYNC: 1.5, Load.REGISTERS: 2.5}[pipeline.load]
        copies = copy / (fit.vec_a * tile.block_n) + copy / (fit.vec_b * tile.block_m)
        # Clocks lost where no fragment is read ahead, or only one tile is on its way and a thread has few
        # accumulators, and gained where slices have barriers of their own.
        waits = 0.08 * (pipeline.fragments is Fragments.SINGLE) + 0.12 * (pipeline.stages == 2 and m * n < 128)
        waits -= 0.05 * (tile.slice_barriers and tile.block_k >= _FEWEST_OWN * tile.slices)
        # Each thread writes its accumulators to shared memory and reads as many again.
        passing = 200 + m * n * (8 + config.multiplying_threads / 64) if tile.slices > 1 else 0.0
        neighbours = 0 if config.epilogue.shared else config.neighbours(problem.dtype)
        return Cost(
            # A wide read takes half the time of as many single ones, as lanes share what they read.
            smem_loads=(1 / m + 1 / n) / 2 + (1 / tile.block_m + 1 / tile.block_n),
            overhead=0.1 + waits + reads + copies + 40 * tile.slices / (m * n * tile.block_k),
            slices_cycles=passing,
            ahead=pipeline.stages - 1,
            narrow=blocked.narrow_operands(problem, config),
            neighbours=neighbours,
            beside=32 // tile.lanes_m * neighbours,
        )


POLICY = _Simt()
