"""The `mma` family: float on the tensor cores, by products of terms of half the bits."""

from dataclasses import dataclass

from ..cost import Cost
from ..fit import Fit
from ..leaf import option
from ..legality import Rule, needs
from ..mechanisms.blocked import ACCUMULATORS_FIT, CTAS_FIT, REGISTERS_FIT, WARP_RULES, WarpTile, registers_held_to
from ..mechanisms.split_terms import MMA_K, TERM_RULES, Scheme, TermConfig
from ..problem import DType

_RATE = 0.62
"""Share of the tensor cores' rate that `mma.sync` reached on an H200: docs/experiments/model.md."""
_CHUNK = 8
"""Elements of a term that one copy moves."""


@dataclass(frozen=True, slots=True)
class MmaTile(WarpTile):
    """Sizes of the block tile and the warp tile."""

    block_m: int = option(128, 32, 64, 256, meaning="rows of C a CTA computes")
    block_n: int = option(128, 32, 64, 256, meaning="columns of C a CTA computes")
    block_k: int = option(32, 16, 64, meaning="steps of k that a tile covers")
    warp_m: int = option(64, 16, 32, meaning="rows of C a warp computes")
    warp_n: int = option(32, 16, 64, meaning="columns of C a warp computes")


@dataclass(frozen=True, slots=True)
class MmaPipeline:
    """The split of elements into terms, and the way of tiles of terms along k."""

    scheme: Scheme = option(Scheme.FP16X3, *Scheme, meaning="terms of an element, and which of their products count")
    promote: int = option(64, 16, 32, meaning="steps of k after which the tensor cores' sums are added up in float")
    stages: int = option(3, 2, 4, 5, meaning="tiles that shared memory holds at a time")


@dataclass(frozen=True, slots=True)
class MmaEpilogue:
    """The way of sums to C."""

    evict_first: bool = option(False, meaning="C is written by evict-first (streaming) stores")


@dataclass(frozen=True, slots=True)
class MmaLaunch:
    """Order of tiles and occupancy."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")
    min_ctas: int = option(1, 2, 3, 4, meaning="CTAs that the registers must allow on an SM")


def _even(config: "MmaConfig") -> bool:
    """Whether all threads copy equally often, whole groups of 8 rows apart."""
    chunks, tile = config.tile.block_k // _CHUNK, config.tile
    rows = config.threads // chunks
    return config.threads % (8 * chunks) == 0 and tile.block_m % rows == 0 and tile.block_n % rows == 0


_RULES: tuple[Rule["MmaConfig"], ...] = (
    *TERM_RULES,
    needs("mma.m16n8k16", "the device multiplies halves and bfloat16s by mma.m16n8k16"),
    *WARP_RULES,
    ACCUMULATORS_FIT,
    Rule("threads share out the rows of the tiles of A and B evenly", lambda problem, config, target: _even(config)),
    CTAS_FIT,
)


@dataclass(frozen=True, slots=True)
class MmaConfig(TermConfig):
    """A variant of the family."""

    family = "mma"
    title = "float by products of half-precision terms on the tensor cores, mma.sync"
    template = "mma.cu.jinja"
    order = 5
    rules = _RULES
    fit_rules = (REGISTERS_FIT,)
    least_intervals = 4
    joined = (("", ("block_m", "block_n", "block_k")), ("warp", ("warp_m", "warp_n")))

    tile: MmaTile = MmaTile()
    pipeline: MmaPipeline = MmaPipeline()
    epilogue: MmaEpilogue = MmaEpilogue()
    launch: MmaLaunch = MmaLaunch()

    @property
    def most_stored(self) -> int:
        return 2  # neighbours of a row of C that a lane holds

    @property
    def block(self) -> tuple[int, int, int]:
        return 32 * self.tile.warps, 1, 1

    def smem_bytes(self, dtype: DType) -> int:
        """The terms of both operands' tiles in each stage."""
        tile = self.tile
        return 2 * self.terms * self.pipeline.stages * tile.block_k * (tile.block_m + tile.block_n)

    @property
    def _fragment_registers(self) -> int:
        return self.terms * (self.tile.warp_m + self.tile.warp_n) * MMA_K // 64

    @property
    def min_ctas(self) -> int:
        return self.launch.min_ctas

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        scale = 0.5 * self.terms / self.products  # terms have half a float's bytes, and are read once for all products
        return Cost(smem_loads=scale * self.tile.smem_loads, ahead=self.pipeline.stages - 1, rate=_RATE)

    def least_registers(self, fit: Fit, dtype: DType) -> int:
        """Least registers of a thread; with fewer some spill."""
        return 2 * self.tile.accumulators + self._fragment_registers + 32

    def registers(self, fit: Fit, dtype: DType) -> int:
        return min(registers_held_to(self), self.least_registers(fit, dtype) + self._fragment_registers + 16)
