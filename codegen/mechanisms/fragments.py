"""The base of families whose warps read the fragments of tensor cores from shared memory, element by element."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from ..fit import Fit, FitRule
from ..leaf import Mode, option
from ..legality import Rule
from ..problem import DType, Problem
from .blocked import ACCUMULATORS_FIT, BLOCKED_RULES, REGISTERS_FIT, TILE_FIT_RULES, TILE_RULES, BlockedConfig
from .operands import MOST_COPIES, SECTOR_BYTES, WIDE_BYTES, passes_shared, runs_along_k
from .split import split_rules

STEP = 8
"""Steps of k whose operands a warp reads at once."""
_SWAPPED = 16
"""Elements of a row in shared memory that a swizzle of doubles exchanges; a swizzle of floats exchanges 16 or 32."""


@dataclass(frozen=True, slots=True)
class FragmentLaunch:
    """Order of tiles, and PDL."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")
    l2_prefetch: bool = option(False, meaning="a CTA prefetches its first tiles to L2 while earlier kernels end")


def _interleave_fits(problem: Problem, config: "FragmentConfig", fit: Fit) -> bool:
    groups, tile = config.pipeline.interleave, config.tile
    if groups == 1:
        return True
    # No copies go with the instructions of a tile's last step, which waits for the next tile.
    steps = tile.block_k // (tile.slices * STEP)
    places = (steps - 1) * (tile.warp_m // tile.mma_m) * (tile.warp_n // 8)
    return config.buffers == 2 and bool(groups <= min(max(config.copies(fit)), places))


def _copied_evenly(problem: Problem, config: "FragmentConfig", fit: Fit) -> bool:
    """Whether all threads copy, or at least half of them in tiles that fit a narrow C, with vectors and without."""
    team = config.threads
    for operand, vec in (("a", fit.vec_a), ("b", fit.vec_b)):
        along, elements = runs_along_k(problem, operand), config.extent(operand) * config.tile.block_k
        for each in (1, vec):
            copiers = config.copiers(operand, each, along)
            if copiers < (team // 2 if config.tile.fitted else team) or elements > MOST_COPIES * each * copiers:
                return False
    return True


FRAGMENT_RULES: tuple[Rule[Any], ...] = (
    *TILE_RULES,
    ACCUMULATORS_FIT,
    Rule(
        "block_k {c.tile.block_k} is whole steps of 8 for each of {c.tile.slices} slices, an even number of them with "
        "double-buffered fragments",
        lambda problem, config, target: config.tile.block_k % (config.tile.slices * STEP * config.buffers) == 0,
    ),
    *split_rules(Mode.SPLIT_K, Mode.STREAM_K, Mode.PERSISTENT),
    Rule(
        "a CTA of several tiles of C has no shared memory free for the accumulators of {c.tile.slices} slices",
        lambda problem, config, target: config.tile.slices == 1 or config.split.mode is not Mode.PERSISTENT,
    ),
    Rule(
        "CTAs of several tiles of C count fewer than 2^31 of them",
        lambda problem, config, target: config.split.mode is not Mode.PERSISTENT or config.tiles(problem) < 2**31,
    ),
    *BLOCKED_RULES,
)
"""The rules on tiles, work decomposition, epilogue and launch."""

FRAGMENT_FIT_RULES: tuple[FitRule, ...] = (
    *TILE_FIT_RULES,
    FitRule(
        "interleave {c.pipeline.interleave} is for double-buffered fragments, at most the copies of a thread of A or B "
        "for a tile and the instructions they go with",
        _interleave_fits,
    ),
    FitRule(
        "threads share out the rows of the tiles of A and B evenly, half of them at least where tiles fit a narrow C",
        _copied_evenly,
    ),
    REGISTERS_FIT,
)
"""The rules on copies and vectors."""


class FragmentConfig(BlockedConfig):
    """A config of a family whose warps read fragments from shared memory."""

    __slots__ = ()

    def suited(self, problem: Problem) -> Self:
        needless = self.epilogue.shared and not passes_shared(problem, SECTOR_BYTES)
        return self.changed(shared=False) if needless else self

    def smem_bytes(self, dtype: DType) -> int:
        """Both operands' tiles in each stage, or later the most that a family of block tiles needs. A step of k has
        four spare elements where its side does not fill all banks."""
        tile, wide = self.tile, WIDE_BYTES // dtype.size_bytes
        banks = 8 * wide  # elements that all banks of shared memory hold side by side
        sides = sum(side + (4 if side % banks else 0) for side in (tile.block_m, tile.block_n))
        elements = self.pipeline.stages * tile.block_k * sides
        passing = self.passing_elements(8, wide, wide)
        if tile.slices > 1 or self.clustered or self.persistent_tiles == 1:
            elements = self.most_elements(elements, passing, wide)
        elif self.epilogue.shared:  # accumulators pass beside the stages, which are filled again meanwhile
            elements += passing
        return int(elements) * dtype.size_bytes

    def copied(self, operand: str, vec: int) -> int:
        """Elements of an operand that a thread copies for a tile if all threads copy, whatever the vectors."""
        return int(-(-self.extent(operand) * self.tile.block_k // self.threads))

    def copiers(self, operand: str, vec: int, along_k: bool) -> int:
        """Threads that copy A or B in vectors of `vec` elements, along k if its stored rows run along it. They are the
        most whose copies lie at the same distances for each thread, in memory and in swizzled rows."""
        return _copiers(self.extent(operand), self.tile.block_k, vec, along_k, self.threads)


@cache
def _copiers(extent: int, depth: int, vec: int, along_k: bool, threads: int) -> int:
    per_row = (depth if along_k else extent) // vec
    swizzled = along_k or extent % _SWAPPED == 0
    period = 2 if along_k and depth > STEP else 4  # rows after which the swizzle is the same again

    def alike(count: int) -> bool:
        rows, more = divmod(count, per_row)
        if rows == 0:  # a thread copies several parts of a row, whole swizzles apart
            return per_row % count == 0 and (not swizzled or count * vec % _SWAPPED == 0)
        return more == 0 and (not swizzled or rows in (1, 2) or rows % period == 0)

    return next(count for count in range(threads, 0, -1) if alike(count) or count == 1)
