"""The `wgmma` family: float on Hopper's tensor cores, by products of terms that both lie in shared memory."""

from dataclasses import dataclass

from ..arch import REGISTERS_PER_SM
from ..cost import Cost
from ..fit import Fit
from ..leaf import option
from ..legality import Rule, needs
from ..mechanisms.split_terms import TERM_RULES, Scheme, TermConfig
from ..problem import DType

WARPGROUP = 128
"""Threads that execute an instruction together."""
ROWS = 64
"""Rows of op(A), and of C, of an instruction."""
_TERM_CTAS = 8
"""CTAs of a cluster that splits rows stored across k. They hold 2,048 steps of k and read further steps twice."""
_REGISTERS = {1: (0, 0), 2: (40, 232), 3: (24, 160)}
"""Registers that a thread of the producer keeps and that a thread of the others takes, by the number of warpgroups that
multiply; 0 where all threads have as many as they can use."""
_MOST_ACCUMULATORS = {1: 96, 2: 96, 3: 64}
"""Most elements of C that a thread can hold twice in those registers, by the number of warpgroups that multiply."""


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """Sizes of the block tile."""

    block_m: int = option(128, 64, 192, meaning="rows of C a CTA computes, 64 of them a warpgroup")
    block_n: int = option(128, 64, 96, 192, meaning="columns of C a CTA computes")
    block_k: int = option(64, 32, meaning="steps of k that a tile covers")

    @property
    def warpgroups(self) -> int:
        """Warpgroups that multiply."""
        return self.block_m // ROWS

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread holds."""
        return self.block_n // 2


@dataclass(frozen=True, slots=True)
class WgmmaPipeline:
    """The split of elements into terms, and the way of tiles of terms along k."""

    scheme: Scheme = option(Scheme.FP16X3, *Scheme, meaning="terms of an element, and which of their products count")
    promote: int = option(64, 32, meaning="steps of k after which the tensor cores' sums are added up in float")
    stages: int = option(3, 2, 4, 5, 6, meaning="tiles that shared memory holds at a time")
    ordered: bool = option(False, meaning="warpgroups start their products in turns")


@dataclass(frozen=True, slots=True)
class WgmmaEpilogue:
    """The way of sums to C, through shared memory."""

    evict_first: bool = option(False, meaning="C is written by evict-first (streaming) stores")
    vec_c: int = option(4, 2, meaning="elements of C that one store moves at most")


@dataclass(frozen=True, slots=True)
class WgmmaLaunch:
    """Order of tiles."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")


_RULES: tuple[Rule["WgmmaConfig"], ...] = (
    *TERM_RULES,
    Rule(
        "a stage is filled while an interval of {c.term_k} steps of k is multiplied",
        lambda problem, config, target: config.term_k < config.pipeline.stages * config.tile.block_k,
    ),
    Rule(
        "two warpgroups or more take turns",
        lambda problem, config, target: config.tile.warpgroups > 1 or not config.pipeline.ordered,
    ),
    needs("wgmma.mma_async", "the device has wgmma"),
    Rule(
        "a thread of {c.tile.warpgroups} warpgroups has registers for {c.tile.accumulators} elements of C, twice",
        lambda problem, config, target: config.tile.accumulators <= _MOST_ACCUMULATORS[config.tile.warpgroups],
    ),
)


@dataclass(frozen=True, slots=True)
class WgmmaConfig(TermConfig):
    """A variant of the family."""

    family = "wgmma"
    title = "float by products of half-precision terms on the tensor cores, wgmma"
    template = "wgmma.cu.jinja"
    order = 6
    rules = _RULES
    least_intervals = 2
    joined = (("", ("block_m", "block_n", "block_k")),)

    tile: WgmmaTile = WgmmaTile()
    pipeline: WgmmaPipeline = WgmmaPipeline()
    epilogue: WgmmaEpilogue = WgmmaEpilogue()
    launch: WgmmaLaunch = WgmmaLaunch()

    @property
    def most_stored(self) -> int:
        return self.epilogue.vec_c

    @property
    def term_k(self) -> int:
        return max(self.tile.block_k, self.pipeline.promote)

    @property
    def term_blocked(self) -> int:
        return int(self.tile.block_k)

    @property
    def term_ctas(self) -> int:
        return _TERM_CTAS

    @property
    def producer_threads(self) -> int:
        return WARPGROUP

    @property
    def reallocated(self) -> tuple[int, int]:
        """Registers that a thread of the producer keeps, and that one of the other warpgroups takes; 0 for neither."""
        return _REGISTERS[self.tile.warpgroups]

    @property
    def block(self) -> tuple[int, int, int]:
        return WARPGROUP * (self.tile.warpgroups + 1), 1, 1

    def smem_bytes(self, dtype: DType) -> int:
        """The terms of both operands' tiles in each stage, and two barriers for each."""
        tile = self.tile
        terms = 2 * self.terms * tile.block_k * (tile.block_m + tile.block_n)
        return self.pipeline.stages * (terms + 16)

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        # Terms have half a float's bytes. Each product reads all terms of op(B), and a warpgroup its own of op(A).
        loads = 0.5 * (1 / ROWS + 1 / (4 * self.tile.block_n))
        return Cost(smem_loads=loads, ahead=self.pipeline.stages - 1)

    def registers(self, fit: Fit, dtype: DType) -> int:
        # A thread has these registers on average when it starts.
        return min(255, REGISTERS_PER_SM // self.threads // 8 * 8)
