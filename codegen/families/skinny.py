"""The `skinny` family: products with a short side, which read the large operand once at the memory's rate.

One side of C, m or n, is short. One operand is then small, and each element of the large one is used as often as the
short side is long. The number of bytes that are on their way from memory at a time decides the speed.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..cost import Cost
from ..fit import Fit, FitRule
from ..leaf import Mode, option
from ..legality import Rule
from ..mechanisms.blocked import REGISTERS_FIT, PrefetchingConfig, registers_held_to
from ..mechanisms.operands import HAS_CP_ASYNC, WIDE_BYTES, Load, runs_along_k, widest
from ..mechanisms.split import Reduce, Split, split_rules
from ..problem import DType, Problem

_MOST_LOADED = 64
"""Most elements of the large operand that a thread loads at a time: vectors of one take an instruction each."""
_EXCHANGED_ELEMENTS = 4096
"""Most sums that warps exchange at a time, unless the small operand takes more shared memory anyway."""


class Side(enum.StrEnum):
    """A side of C."""

    M = "m"
    N = "n"


@dataclass(frozen=True, slots=True)
class SkinnyTile:
    """The tiles that a CTA and a thread compute and load."""

    short: Side = option(Side.M, meaning="which side of C is short: its rows, m, or its columns, n")
    block_short: int = option(4, 1, 2, 8, 16, 32, meaning="elements of the short side a CTA computes")
    thread_long: int = option(4, 1, 2, 8, 16, meaning="elements of the long side that a thread computes")
    thread_k: int = option(4, 1, 2, 8, 16, meaning="steps of k that a thread loads at a time")
    lanes_k: int = option(1, 2, 4, 8, 16, 32, meaning="lanes of a warp that share out k")
    warps_long: int = option(1, 2, 4, 8, meaning="warps along the long side")
    warps_k: int = option(4, 1, 2, 8, 16, 32, meaning="warps that share out k")

    @property
    def block_long(self) -> int:
        """Elements of the long side that a CTA computes."""
        return self.warps_long * 32 // self.lanes_k * self.thread_long

    @property
    def block_k(self) -> int:
        """Steps of k that a CTA loads at a time."""
        return self.warps_k * self.lanes_k * self.thread_k

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread computes."""
        return self.block_short * self.thread_long

    @property
    def loaded(self) -> int:
        """Elements of the large operand that a thread loads at a time."""
        return self.thread_long * self.thread_k


@dataclass(frozen=True, slots=True)
class SkinnyPipeline:
    """The way of the operands to the threads."""

    load: Load = option(Load.REGISTERS, Load.CP_ASYNC, meaning="how the large operand comes")
    stages: int = option(1, 2, 4, 6, 8, meaning="parts of the large operand on their way at a time")
    resident_k: int = option(256, 128, 512, 1024, 2048, 4096, meaning="steps of k of the small operand held at a time")


@dataclass(frozen=True, slots=True)
class SkinnyLaunch:
    """PDL."""

    l2_prefetch: bool = option(False, meaning="a CTA prefetches its first parts to L2 while earlier kernels end")


def _vectors_fit(problem: Problem, config: "SkinnyConfig", fit: Fit) -> bool:
    along = config.tile.thread_k if config.along_k(problem) else config.tile.thread_long
    return along % max(fit.vec_a, fit.vec_b) == 0


_RULES: tuple[Rule["SkinnyConfig"], ...] = (
    Rule(
        "resident_k {c.pipeline.resident_k} is a multiple of the steps of k of the main loop, {c.round_k}",
        lambda problem, config, target: config.pipeline.resident_k % config.round_k == 0,
    ),
    Rule(
        f"a thread loads at most {_MOST_LOADED} elements at a time",
        lambda problem, config, target: config.tile.loaded <= _MOST_LOADED,
    ),
    Rule(
        "cp.async has an even number of stages, registers have one: not {c.pipeline.stages}",
        lambda problem, config, target: (config.pipeline.stages == 1) == (config.pipeline.load is Load.REGISTERS),
    ),
    HAS_CP_ASYNC,
    *split_rules(Mode.SPLIT_K),
    Rule(
        "CTAs that share a tile of C add up in the workspace",
        lambda problem, config, target: config.split.reduce is Reduce.WORKSPACE,
    ),
)
_FIT_RULES = (
    FitRule(
        "vectors divide thread_long {c.tile.thread_long}, or thread_k {c.tile.thread_k} where stored rows of the large "
        "operand run along k",
        _vectors_fit,
    ),
    REGISTERS_FIT,
)


@dataclass(frozen=True, slots=True)
class SkinnyConfig(PrefetchingConfig):
    """A variant of the family."""

    family = "skinny"
    title = "a short side of C: the large operand streams through registers once, the small one waits in shared memory"
    template = "skinny.cu.jinja"
    order = 3
    rules = _RULES
    fit_rules = _FIT_RULES
    substitutes: ClassVar[tuple[Mapping[str, Any], ...]] = ({"load": Load.REGISTERS, "stages": 1},)
    joined = (
        ("", ("block_short", "thread_long", "thread_k")),
        ("warps", ("warps_long", "warps_k")),
    )

    tile: SkinnyTile = SkinnyTile()
    pipeline: SkinnyPipeline = SkinnyPipeline()
    split: Split = Split()
    launch: SkinnyLaunch = SkinnyLaunch()

    @property
    def block(self) -> tuple[int, int, int]:
        return 32 * self.tile.warps_long * self.tile.warps_k, 1, 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        short, long = self.tile.block_short, self.tile.block_long
        return (long, short, self.tile.block_k) if self.tile.short is Side.N else (short, long, self.tile.block_k)

    @property
    def large(self) -> str:
        """Name of the large operand: `a` or `b`."""
        return "a" if self.tile.short is Side.N else "b"

    def widest_vectors(self, problem: Problem, aligned: bool) -> tuple[int, int, int]:
        wide = widest(problem, self.large) if aligned else 1
        return (wide, 1, 1) if self.large == "a" else (1, wide, 1)

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        return {"kVec": max(fit.vec_a, fit.vec_b), "kGuarded": fit.guarded}

    def along_k(self, problem: Problem) -> bool:
        """Whether stored rows of the large operand run along k; otherwise they run along C."""
        return runs_along_k(problem, self.large)

    @property
    def streamed(self) -> tuple[int, int, int]:
        lanes = self.tile.lanes_k
        return (lanes, 0, self.pipeline.resident_k) if self.large == "a" else (0, lanes, self.pipeline.resident_k)

    @property
    def sides(self) -> tuple["SkinnyConfig", ...]:
        return tuple(self.changed(short=side) for side in Side)

    @property
    def round_k(self) -> int:
        """Steps of k that the main loop covers at a time."""
        return self.tile.block_k * (2 if self.pipeline.load is Load.CP_ASYNC else 1)

    def cta_k(self, problem: Problem) -> int:
        """Steps of k that a CTA covers."""
        step = self.tile.block_k
        return -(-problem.k // (step * self.split_ctas)) * step

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        tile, pipeline = self.tile, self.pipeline
        loads = 0.5 / tile.thread_long + 2 * (pipeline.load is Load.CP_ASYNC) / tile.block_short
        return Cost(smem_loads=loads, in_flight=tile.loaded * pipeline.stages)

    # --- resources

    def smem_bytes(self, dtype: DType) -> int:
        """Bytes of shared memory that suffice for a small operand stored along C and for one stored along k."""
        wide = WIDE_BYTES // dtype.size_bytes
        count, resident = self.tile.block_short, self.pipeline.resident_k
        along_c = resident * (count if count <= wide else count + wide)
        along_k = count * (resident + 8)
        ring = 0
        if self.pipeline.load is Load.CP_ASYNC:
            ring = self.pipeline.stages * self.tile.loaded * self.threads
        rows, room = count, max(count * resident, _EXCHANGED_ELEMENTS)
        while rows > 1 and self.tile.warps_k * self.tile.block_long * rows > room:
            rows //= 2  # short rows whose sums the warps exchange at a time
        exchanged = self.tile.warps_k * self.tile.block_long * (rows + (self.tile.short is Side.N))
        return max(ring + max(along_c, along_k), exchanged) * dtype.size_bytes

    def least_registers(self, fit: Fit, dtype: DType) -> int:
        """Least registers of a thread; with fewer some spill."""
        return 34 + dtype.size_bytes // 4 * (self.tile.accumulators + self.tile.loaded)

    def registers(self, fit: Fit, dtype: DType) -> int:
        """Registers that the compiler takes, estimated from above: it reads earlier than the text, most of all where
        parts come by cp.async."""
        tile, words = self.tile, dtype.size_bytes // 4
        held, loaded, small = tile.accumulators, tile.loaded, tile.block_short * tile.thread_k
        if self.pipeline.load is Load.CP_ASYNC:
            needed = 68 + words * (3 * held // 2 + 3 * loaded + 2 * small)
        else:
            needed = 96 + words * (held + loaded + small // 4)
        return min(needed, registers_held_to(self))
