"""The `simt` family: register tiles fed from shared memory, by the ordinary multiply-add."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from ..cost import Cost
from ..fit import Fit, FitRule
from ..leaf import Mode, option
from ..legality import Rule
from ..mechanisms.blocked import (
    BLOCKED_RULES,
    CTAS_FIT,
    REGISTERS_FIT,
    TILE_FIT_RULES,
    TILE_RULES,
    BlockedConfig,
    Epilogue,
    WarpTile,
    registers_held_to,
)
from ..mechanisms.operands import HAS_CP_ASYNC, WIDE_BYTES, Fragments, Load, packing_pays, passes_shared
from ..mechanisms.split import Reduce, Split, split_rules
from ..mechanisms.tma import DEEPEST, TMA_RULES, tma_boxes
from ..problem import DType, Problem
from ..source import TensorBox
from ..target import Target

FITTED_M, FITTED_N = (20, 24, 28), (20, 24, 28, 56)
"""Sides of block tiles that fit a narrow C, made of thread tiles with 5, 6 or 7 rows or columns."""
_MOST_FMAS = 2560
"""Multiply-adds of a thread in a tile: the loop over them is unrolled, and must fit the instruction cache."""
_COPY = {Load.TMA: 0.0, Load.CP_ASYNC: 1.5, Load.REGISTERS: 2.5}
"""Instructions of a multiplying warp for each copy of its lanes to shared memory, by the way of loading."""
_TILE_INSTRUCTIONS = 40
"""Instructions of a thread for each tile of k, whatever the size of the thread tile."""
_FEWEST_OWN = 8
"""Least steps of k of a slice in a tile with which a barrier of its own saves time."""
_MOST_BARRIERS = 15
"""Named barriers of a CTA, beside that of all its threads."""


class Order(enum.StrEnum):
    """The order of a thread's multiply-adds in a step of k."""

    COLUMNS = "columns"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class SimtTile(WarpTile):
    """Sizes of the block tile, the warp tile and the thread tile."""

    block_m: int = option(
        64, 16, 32, 48, 96, 128, 160, 192, 256, 40, 56, 80, 112, 120, *FITTED_M, meaning="rows of C a CTA computes"
    )
    block_n: int = option(
        64, 16, 32, 48, 96, 128, 160, 192, 256, 40, 80, 120, *FITTED_N, 112, meaning="columns of C a CTA computes"
    )
    block_k: int = option(16, 8, 32, 64, 128, 256, meaning="steps of k that a tile covers")
    thread_m: int = option(8, 2, 4, 16, 5, 10, 14, 6, 7, meaning="rows of C a thread computes")
    thread_n: int = option(8, 2, 4, 5, 10, 6, 7, meaning="columns of C a thread computes")
    lanes_m: int = option(8, 2, 4, 16, meaning="lanes of a warp along the rows of C")
    slices: int = option(1, 2, 4, 8, 16, meaning="sliced-K: groups of warps that share out the k of each tile")
    slice_barriers: bool = option(False, meaning="each slice copies its own steps of k and has a barrier of its own")
    order: Order = option(Order.COLUMNS, meaning="FMA order of a thread's accumulators")

    @property
    def warp_m(self) -> int:
        """Rows of C that a warp computes."""
        return self.thread_m * self.lanes_m

    @property
    def warp_n(self) -> int:
        """Columns of C that a warp computes."""
        return self.thread_n * (32 // self.lanes_m)

    @property
    def non_power_of_two(self) -> bool:
        """Whether a side of the thread tile is no power of two: block tiles may have such sides then."""
        return self.thread_m.bit_count() > 1 or self.thread_n.bit_count() > 1


@dataclass(frozen=True, slots=True)
class SimtPipeline:
    """The way of tiles of A and B to shared memory, and from there to registers."""

    load: Load = option(Load.CP_ASYNC, Load.REGISTERS, Load.TMA, meaning="how tiles come to shared memory")
    stages: int = option(3, 2, 4, 5, 6, 8, meaning="tiles that shared memory holds at a time")
    pack_a: bool = option(False, meaning="A is copied first, to aligned rows of k")
    pack_b: bool = option(False, meaning="B is copied first, to aligned rows of k")
    k_inner_a: bool = option(False, meaning="k stays innermost in the tiles of A")
    k_inner_b: bool = option(False, meaning="k stays innermost in the tiles of B")
    fragments: Fragments = option(Fragments.DOUBLE, Fragments.SINGLE, meaning="fragment buffering of operands")
    interleave: int = option(1, 2, 4, meaning="groups of a tile's cp.async copies, interleaved with its steps of k")


@dataclass(frozen=True, slots=True)
class SimtLaunch:
    """Order of tiles, occupancy and PDL."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")
    min_ctas: int = option(1, 2, 3, 4, 6, 8, meaning="CTAs that the registers must allow on an SM")
    l2_prefetch: bool = option(False, meaning="a CTA prefetches its first tiles to L2 while earlier kernels end")


def _interleave_fits(problem: Problem, config: "SimtConfig", fit: Fit) -> bool:
    groups = config.pipeline.interleave
    if groups == 1:
        return True
    # No copies go with the last step where it waits for the next tile.
    places = config.tile.block_k // (config.tile.slices * config.step(problem.dtype)) - (config.buffers - 1)
    return config.pipeline.load is Load.CP_ASYNC and groups <= min(max(config.copies(fit)), places)


def _slice_barriers_fit(problem: Problem, config: "SimtConfig", target: Target) -> bool:
    tile = config.tile
    if not tile.slice_barriers:
        return True
    return tile.slices > 1 and (tile.slices <= _MOST_BARRIERS or tile.warps == 1)  # a warp needs no named one


def _slices_copy_whole_vectors(problem: Problem, config: "SimtConfig", fit: Fit) -> bool:
    tile = config.tile
    depth = tile.block_k // tile.slices
    return not tile.slice_barriers or (depth % fit.vec_a == 0 and depth % fit.vec_b == 0)


_RULES: tuple[Rule["SimtConfig"], ...] = (
    *TILE_RULES,
    Rule(
        "the rows of a warp, {c.tile.warp_m}, and its columns, {c.tile.warp_n}, are whole vectors of 16 bytes",
        lambda problem, config, target: all(
            side * problem.dtype.size_bytes % WIDE_BYTES == 0 for side in (config.tile.warp_m, config.tile.warp_n)
        ),
    ),
    Rule(
        "tiles that pass through registers use two stages, not {c.pipeline.stages}",
        lambda problem, config, target: config.pipeline.load is not Load.REGISTERS or config.pipeline.stages == 2,
    ),
    HAS_CP_ASYNC,
    Rule(
        "k is innermost in the tiles of an operand only if its stored rows run along k",
        lambda problem, config, target: all(
            along or not inner
            for along, inner in zip(config.along_k(problem), (config.pipeline.k_inner_a, config.pipeline.k_inner_b))
        ),
    ),
    Rule(
        "block_k {c.tile.block_k} is whole steps for each of {c.tile.slices} slices, an even number of them with "
        "double-buffered fragments",
        lambda problem, config, target: (
            config.tile.block_k % (config.tile.slices * config.step(problem.dtype) * config.buffers) == 0
        ),
    ),
    Rule(
        f"a thread has at most {_MOST_FMAS} multiply-adds in a tile: they are unrolled",
        lambda problem, config, target: (
            config.tile.accumulators * config.tile.block_k <= _MOST_FMAS * config.tile.slices
        ),
    ),
    *TMA_RULES,
    Rule(
        f"barriers of their own are for several slices, at most {_MOST_BARRIERS} or of one warp each",
        _slice_barriers_fit,
    ),
    *split_rules(Mode.SPLIT_K, Mode.STREAM_K),
    *BLOCKED_RULES,
    CTAS_FIT,
)
_FIT_RULES = (
    *TILE_FIT_RULES,
    FitRule(
        "a thread stores at most the neighbours in a row of C that it computes",
        lambda problem, config, fit: fit.vec_c <= config.neighbours(problem.dtype),
    ),
    FitRule(
        "cp.async transposes an operand element by element",
        lambda problem, config, fit: (
            (fit.vec_a == 1 or not config.transposes_in_flight(problem, "a"))
            and (fit.vec_b == 1 or not config.transposes_in_flight(problem, "b"))
        ),
    ),
    FitRule(
        "interleave {c.pipeline.interleave} is for cp.async, at most the copies of a thread of A or B for a tile and "
        "the steps they go with",
        _interleave_fits,
    ),
    FitRule("slices with barriers of their own copy whole vectors", _slices_copy_whole_vectors),
    FitRule(
        "TMA copies rows that are aligned to 16 bytes",
        lambda problem, config, fit: (
            config.pipeline.load is not Load.TMA or min(fit.vec_a, fit.vec_b) * problem.dtype.size_bytes == WIDE_BYTES
        ),
    ),
    REGISTERS_FIT,
)


@dataclass(frozen=True, slots=True)
class SimtConfig(BlockedConfig):
    """A variant of the family."""

    family = "simt"
    title = "register tiles fed from shared memory, by the ordinary multiply-add"
    template = "simt.cu.jinja"
    order = 2
    rules = _RULES
    fit_rules = _FIT_RULES
    substitutes: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"stages": 3},
        {"stages": 2},
        {"reduce": Reduce.WORKSPACE},
        {"load": Load.REGISTERS, "stages": 2, "interleave": 1},
        {"load": Load.REGISTERS, "stages": 2, "interleave": 1, "slice_barriers": False, "reduce": Reduce.WORKSPACE},
    )
    joined = (("", ("block_m", "block_n", "block_k")), ("thread", ("thread_m", "thread_n")))

    tile: SimtTile = SimtTile()
    pipeline: SimtPipeline = SimtPipeline()
    split: Split = Split()
    epilogue: Epilogue = Epilogue()
    launch: SimtLaunch = SimtLaunch()

    @property
    def min_ctas(self) -> int:
        return self.launch.min_ctas

    @property
    def producer_threads(self) -> int:
        return 32 if self.pipeline.load is Load.TMA else 0

    @property
    def unaligned(self) -> "SimtConfig":
        if self.pipeline.load is not Load.TMA:
            return self
        # TMA copies rows that are aligned; cp.async has no such deep tiles.
        return self.changed(load=Load.CP_ASYNC, block_k=min(self.tile.block_k, DEEPEST // 2))

    @property
    def k_innermost(self) -> tuple[int, int]:
        other = 0 if self.pipeline.load is Load.CP_ASYNC else -1
        return 1 if self.pipeline.k_inner_a else other, 1 if self.pipeline.k_inner_b else other

    @property
    def packs(self) -> tuple[bool, bool]:
        return self.pipeline.pack_a, self.pipeline.pack_b

    def boxes(self, problem: Problem) -> tuple[TensorBox, ...]:
        return tma_boxes(self, problem) if self.pipeline.load is Load.TMA else ()

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        tile, pipeline = self.tile, self.pipeline
        m, n, wide = tile.thread_m, tile.thread_n, WIDE_BYTES // dtype.size_bytes
        # Instructions for reads of operands, and for copies of tiles where threads that multiply start them.
        reads = (_reads(m, wide) + _reads(n, wide)) / (m * n)
        copy = _COPY[pipeline.load]
        copies = copy / (fit.vec_a * tile.block_n) + copy / (fit.vec_b * tile.block_m)
        # Clocks are lost where no fragment is read ahead, or where only one tile is on its way and a thread has few
        # accumulators. Clocks are saved where slices have barriers of their own.
        waits = 0.08 * (pipeline.fragments is Fragments.SINGLE) + 0.12 * (pipeline.stages == 2 and m * n < 128)
        waits -= 0.05 * (tile.slice_barriers and tile.block_k >= _FEWEST_OWN * tile.slices)
        neighbours = 0 if self.epilogue.shared else self.neighbours(dtype)
        return Cost(
            # A wide read takes half the time of as many single ones, as lanes share what they read.
            smem_loads=(1 / m + 1 / n) / 2 + (1 / tile.block_m + 1 / tile.block_n),
            overhead=0.1 + waits + reads + copies + _TILE_INSTRUCTIONS * tile.slices / (m * n * tile.block_k),
            # Each thread writes its accumulators to shared memory and reads as many again.
            slices_cycles=200 + m * n * (8 + self.multiplying_threads / 64) if tile.slices > 1 else 0.0,
            ahead=pipeline.stages - 1,
            neighbours=neighbours,
            beside=32 // tile.lanes_m * neighbours,
        )

    def suited(self, problem: Problem) -> "SimtConfig":
        needless = [f"pack_{x}" for x, packs in zip("ab", self.packs) if packs and not packing_pays(problem, x)]
        needless += ["shared"] * (self.epilogue.shared and not passes_shared(problem, WIDE_BYTES))
        return self.changed(**dict.fromkeys(needless, False)) if needless else self

    # --- resources

    @property
    def _team(self) -> tuple[int, int]:
        """Threads that copy together, and the steps of k of a tile that they copy."""
        slices = self.tile.slices if self.tile.slice_barriers else 1
        return self.multiplying_threads // slices, self.tile.block_k // slices

    def smem_bytes(self, dtype: DType) -> int:
        """The tiles of all stages, or later the most that a family of block tiles needs."""
        tile, (_, depth), wide = self.tile, self._team, WIDE_BYTES // dtype.size_bytes
        elements = 0
        for extent, inner in ((tile.block_m, self.pipeline.k_inner_a), (tile.block_n, self.pipeline.k_inner_b)):
            elements += extent * (depth + wide) if inner else depth * (extent + wide)
        elements *= self.pipeline.stages * (tile.slices if tile.slice_barriers else 1)
        written_rows = min(tile.lanes_m, 8 * wide // self.neighbours(dtype) // 2)
        passing = self.passing_elements(tile.lanes_m, written_rows, wide)
        return self.most_elements(elements, passing, wide) * dtype.size_bytes

    def copied(self, operand: str, vec: int) -> int:
        """Most elements of an operand that a thread copies for a tile in vectors of `vec` elements, whichever way its
        rows run."""
        extent, (team, depth) = self.extent(operand), self._team
        fewest = min(_copiers(extent // vec, team), _copiers(max(1, depth // vec), team))
        return vec * -(-extent * depth // (vec * fewest))

    @property
    def copying_threads(self) -> int:
        return 0 if self.pipeline.load is Load.TMA else self._team[0]

    def copiers(self, operand: str, vec: int, along_k: bool) -> int:
        team, depth = self._team
        return _copiers(max(1, (depth if along_k else self.extent(operand)) // vec), team)

    def transposes_in_flight(self, problem: Problem, operand: str) -> bool:
        """Whether cp.async has to transpose A or B."""
        place = "ab".index(operand)
        inner = (self.pipeline.k_inner_a, self.pipeline.k_inner_b)[place]
        return self.pipeline.load is not Load.REGISTERS and self.along_k(problem)[place] and not inner

    def step(self, dtype: DType) -> int:
        """Steps of k whose operands a thread reads at once."""
        return WIDE_BYTES // dtype.size_bytes if self.pipeline.k_inner_a or self.pipeline.k_inner_b else 1

    def neighbours(self, dtype: DType) -> int:
        """Neighbours in a row of C that a thread computes, at least as many as it reads of B at once."""
        return 1 if self.pipeline.k_inner_b else math.gcd(self.tile.thread_n, WIDE_BYTES // dtype.size_bytes)

    def accumulator_registers(self, dtype: DType) -> int:
        """Registers of a thread's accumulators."""
        return dtype.size_bytes // 4 * self.tile.accumulators

    def _operand_registers(self, dtype: DType) -> int:
        return dtype.size_bytes // 4 * self.step(dtype) * (self.tile.thread_m + self.tile.thread_n)

    def _passing_registers(self, dtype: DType, vec_a: int, vec_b: int) -> int:
        """Registers of the tiles that pass through registers."""
        if self.pipeline.load is not Load.REGISTERS:
            return 0
        return dtype.size_bytes // 4 * (self.copied("a", vec_a) + self.copied("b", vec_b))

    def least_registers(self, fit: Fit, dtype: DType) -> int:
        """Least registers of a thread; with fewer some spill."""
        # The instance for operands that are not aligned, which copies element by element, has to fit as well.
        passing = max(self._passing_registers(dtype, *each) for each in ((fit.vec_a, fit.vec_b), (1, 1)))
        held = self.accumulator_registers(dtype) + max(0, passing - 4)
        held += 12 if self.split_ctas > 1 else 0
        held += 12 if self.tile.non_power_of_two and self.pipeline.interleave > 1 else 0
        return 40 + held + (4 + self.buffers) * self._operand_registers(dtype) // 4

    def registers(self, fit: Fit, dtype: DType) -> int:
        """Registers that the compiler takes, estimated from above: it reads operands a step earlier than the text."""
        held = self.accumulator_registers(dtype) + self._passing_registers(dtype, fit.vec_a, fit.vec_b)
        bound = registers_held_to(self)
        regular = not self.tile.non_power_of_two and self._copies_evenly(fit)
        if held >= 128 or (self.pipeline.interleave > 1 and not regular):
            return bound  # the compiler takes all that it may
        addresses = sum(self.copies(fit)) if self.pipeline.load is not Load.REGISTERS else 0
        operands = (1 + self.buffers) * self._operand_registers(dtype)
        sharing = 8 if self.split_ctas > 1 or self.stream_ctas_per_sm else 0
        needed = max(64 + 8 * dtype.size_bytes, 60 + held + operands + sharing + addresses)
        if self.tile.non_power_of_two:
            needed += 20
        if needed < bound and self.epilogue.shared:
            needed += 16
        return min(needed, bound)

    def _copies_evenly(self, fit: Fit) -> bool:
        """Whether all threads copy the same number of vectors of a tile."""
        (team, depth), tile = self._team, self.tile
        pairs = ((tile.block_m, fit.vec_a), (tile.block_n, fit.vec_b))
        return all(extent * depth % (vec * team) == 0 for extent, vec in pairs)


def _reads(count: int, wide: int) -> int:
    """Number of reads that bring `count` neighbours: each read brings a power of two of them, at most `wide`."""
    whole, rest = divmod(count, wide)
    return whole + rest.bit_count()


@cache
def _copiers(per_row: int, threads: int) -> int:
    """The most of `threads` threads that together copy whole rows of `per_row` vectors, or an equal part of a row."""
    return next(count for count in range(threads, 0, -1) if count % per_row == 0 or per_row % count == 0)
