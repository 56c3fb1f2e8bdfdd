"""What families share whose warps read the fragments of tensor cores from shared memory, element by element."""

from dataclasses import dataclass
from typing import Any

from ..arch import Arch
from ..leaf import Mode, option
from ..legality import Rule
from ..problem import DType, Problem
from .blocked import BLOCKED_RULES, TILE_RULES, BlockedConfig
from .operands import WIDE_BYTES, Fragments, runs_along_k
from .split import split_rules

MOST_ACCUMULATORS = 64
"""Elements of C that a thread can hold in registers, at most two each, beside the operands."""
STEP = 8
"""Steps of k whose operands a warp reads at once."""


@dataclass(frozen=True, slots=True)
class FragmentLaunch:
    """Order of tiles, and PDL."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")
    l2_prefetch: bool = option(False, meaning="a CTA prefetches its first tiles to L2 while earlier kernels end")


def _interleave_fits(problem: Problem, config: "FragmentConfig", arch: Arch) -> bool:
    groups, tile = config.pipeline.interleave, config.tile
    if groups == 1:
        return True
    # Not the instructions of a tile's last step, which waits for the next tile.
    steps = tile.block_k // (tile.slices * STEP)
    places = (steps - 1) * (tile.warp_m // tile.mma_m) * (tile.warp_n // 8)
    copies = max(config.copied("a") // config.pipeline.vec_a, config.copied("b") // config.pipeline.vec_b)
    return config.pipeline.fragments is Fragments.DOUBLE and bool(groups <= min(copies, places))


def _evenly(problem: Problem, config: "FragmentConfig", arch: Arch) -> bool:
    """What a thread copies lies at the same distances for all threads, with and without vectors."""
    depth, team = config.tile.block_k, config.threads
    sides = (("a", config.tile.block_m, config.pipeline.vec_a), ("b", config.tile.block_n, config.pipeline.vec_b))
    for operand, extent, widest in sides:
        along = runs_along_k(problem, operand)
        for vec in (1, widest):
            row = (depth if along else extent) // vec
            if team % row and row % team:
                return False
            # From copy to copy the chunks of all threads' rows have to be swapped alike.
            rows, period = team // row, 2 if along and depth > 8 else 4
            if rows not in (0, 1, 2) and rows % period:
                return False
    return True


FRAGMENT_RULES: tuple[Rule[Any], ...] = (
    *TILE_RULES,
    Rule(
        f"a thread holds at most {MOST_ACCUMULATORS} elements of C",
        lambda problem, config, arch: config.tile.accumulators <= MOST_ACCUMULATORS,
    ),
    Rule(
        "block_k {c.tile.block_k} is whole steps of 8 for each of {c.tile.slices} slices, an even number of them with "
        "double-buffered fragments",
        lambda problem, config, arch: (
            config.tile.block_k
            % (config.tile.slices * STEP * (2 if config.pipeline.fragments is Fragments.DOUBLE else 1))
            == 0
        ),
    ),
    Rule(
        "interleave {c.pipeline.interleave} is for double-buffered fragments, at most the copies of a thread of A or B "
        "for a tile and the instructions they go with",
        _interleave_fits,
    ),
    Rule("threads share out the rows of the tiles of A and B evenly", _evenly),
    *split_rules(Mode.SPLIT_K, Mode.STREAM_K, Mode.PERSISTENT),
    Rule(
        "a CTA of several tiles of C has no shared memory free for the accumulators of {c.tile.slices} slices",
        lambda problem, config, arch: config.tile.slices == 1 or config.split.mode is not Mode.PERSISTENT,
    ),
    Rule(
        "CTAs of several tiles of C count fewer than 2^31 of them",
        lambda problem, config, arch: config.split.mode is not Mode.PERSISTENT or config.tiles(problem) < 2**31,
    ),
    *BLOCKED_RULES,
)
"""The rules on tiles, copies, work and epilogue, beside dtype, device and accuracy."""


class FragmentConfig(BlockedConfig):
    """A config of such a family."""

    __slots__ = ()

    def smem_bytes(self, dtype: DType) -> int:
        """Both operands' tiles in each stage, with four spare elements for each step of k where they are short; later
        what a family of block tiles needs."""
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

    def copied(self, operand: str) -> int:
        """Elements of an operand that a thread copies for a tile."""
        extent = self.tile.block_m if operand == "a" else self.tile.block_n
        return int(-(-extent * self.tile.block_k // self.threads))
