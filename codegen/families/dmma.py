"""The `dmma` family: double precision on the fp64 tensor cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from ..arch import Arch
from ..leaf import Edge, Mode, Value, option
from ..legality import Rule
from ..mechanisms.blocked import BLOCKED_RULES, TILE_RULES, BlockedConfig, Epilogue, registers_held_to
from ..mechanisms.operands import MOST_COPIES, Fragments, runs_along_k
from ..mechanisms.split import Split, split_rules
from ..problem import DType, Problem

MOST_ACCUMULATORS = 64
"""Elements of C that a thread can hold in registers, two each, beside the operands."""
STEP = 8
"""Steps of k whose operands a warp reads at once."""
FITTED_M = (80, 112, 160)
"""Rows of block tiles that fit a C of few rows, where others would reach far beyond it."""
FITTED_N = (24, 40, 48, 56, 72, 80, 104, 112, 144, 160)
"""Columns of those that fit a C of few columns."""
_SWAPPED = 16
"""Elements of a row within which chunks are swapped in shared memory."""


@dataclass(frozen=True, slots=True)
class DmmaTile:
    """Sizes of the block tile, the warp tile and the instruction."""

    block_m: int = option(64, 16, 32, 48, 96, 128, 192, 256, *FITTED_M, meaning="rows of C a CTA computes")
    block_n: int = option(64, 8, 16, 32, 96, 128, 192, 256, *FITTED_N, meaning="columns of C a CTA computes")
    block_k: int = option(16, 8, 32, 64, meaning="steps of k that a tile covers")
    warp_m: int = option(32, 16, 48, 64, 80, 112, meaning="rows of C a warp computes")
    warp_n: int = option(32, 8, 16, 64, 24, 40, 48, 56, 72, 80, 104, 112, meaning="columns of C a warp computes")
    mma_k: int = option(8, 4, meaning="steps of k of one instruction: 16x8 elements of C, with 4 of them 8x8")
    slices: int = option(1, 2, 4, 8, meaning="sliced-K: groups of warps that share out the k of each tile")

    @property
    def warps(self) -> int:
        """Warps of a slice, rounded down where the block tile is no multiple of a warp tile."""
        return max(1, self.block_m // self.warp_m * (self.block_n // self.warp_n))

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread holds."""
        return self.warp_m * self.warp_n // 32

    @property
    def fitted(self) -> bool:
        """Whether the block tile has a side that is there for a C as narrow as that."""
        return self.block_m in FITTED_M or self.block_n in FITTED_N


@dataclass(frozen=True, slots=True)
class DmmaPipeline:
    """How tiles of A and B come to shared memory by cp.async, and from there to registers."""

    stages: int = option(3, 2, 4, 5, meaning="tiles that shared memory holds at a time")
    vec_a: int = option(1, 2, meaning="elements of A that one copy moves")
    vec_b: int = option(1, 2, meaning="elements of B that one copy moves")
    fragments: Fragments = option(Fragments.DOUBLE, Fragments.SINGLE, meaning="fragment buffering of operands")
    interleave: int = option(1, 2, 4, meaning="groups of a tile's cp.async copies, interleaved with its instructions")


@dataclass(frozen=True, slots=True)
class DmmaLaunch:
    """Order of tiles, and PDL."""

    raster: int = option(1, 4, 8, 16, meaning="rows of tiles of a rasterisation group (threadblock swizzle)")
    l2_prefetch: bool = option(False, meaning="a CTA prefetches its first tiles to L2 while earlier kernels end")


def _interleave_fits(problem: Problem, config: "DmmaConfig", arch: Arch) -> bool:
    groups, tile = config.pipeline.interleave, config.tile
    if groups == 1:
        return True
    # Not the instructions of a tile's last step, which waits for the next tile.
    steps = tile.block_k // (tile.slices * STEP)
    places = (steps - 1) * (tile.warp_m // (8 if tile.mma_k == 4 else 16)) * (tile.warp_n // 8)
    copies = max(config.copied("a") // config.pipeline.vec_a, config.copied("b") // config.pipeline.vec_b)
    return config.pipeline.fragments is Fragments.DOUBLE and groups <= min(copies, places)


def _copied_evenly(problem: Problem, config: "DmmaConfig", arch: Arch) -> bool:
    """Whether all threads copy, or in tiles that fit a narrow C half of them at least; with and without vectors."""
    team, widest = config.threads, (config.pipeline.vec_a, config.pipeline.vec_b)
    for operand, vec in zip("ab", widest):
        along, elements = runs_along_k(problem, operand), config.extent(operand) * config.tile.block_k
        for each in (1, vec):
            copiers = config.copiers(operand, each, along)
            if copiers < (team // 2 if config.tile.fitted else team) or elements > MOST_COPIES * each * copiers:
                return False
    return True


_RULES: tuple[Rule["DmmaConfig"], ...] = (
    Rule("the tensor cores multiply double", lambda problem, config, arch: problem.dtype is DType.DOUBLE),
    Rule(
        "the device has fp64 tensor cores that multiply {c.tile.mma_k} steps of k",
        lambda problem, config, arch: ("dmma.m8n8k4" if config.tile.mma_k == 4 else "dmma.m16n8") in arch.instructions,
    ),
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
    Rule(
        "threads share out the rows of the tiles of A and B evenly, half of them at least where tiles fit a narrow C",
        _copied_evenly,
    ),
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


@dataclass(frozen=True, slots=True)
class DmmaConfig(BlockedConfig):
    """A variant of the family."""

    family = "dmma"
    title = "warp tiles fed from shared memory, by the fp64 tensor cores"
    template = "dmma.cu.jinja"
    order = 4
    rules = _RULES
    tensor_cores = True
    gone: ClassVar[Mapping[str, Value]] = {"min_ctas": 1}
    replaced = (("fragments", "ahead", (Fragments.DOUBLE.value, Fragments.SINGLE.value)),)
    joined = (
        ("", ("block_m", "block_n", "block_k")),
        ("warp", ("warp_m", "warp_n")),
        ("vec", ("vec_a", "vec_b", "vec_c")),
    )

    tile: DmmaTile = DmmaTile()
    pipeline: DmmaPipeline = DmmaPipeline()
    split: Split = Split()
    epilogue: Epilogue = Epilogue()
    launch: DmmaLaunch = DmmaLaunch()
    edge: Edge = option(Edge.BOUNDS, meaning="outside the matrix")

    # --- resources

    def smem_bytes(self, dtype: DType) -> int:
        """Both operands' tiles in each stage, with four spare elements for each step of k where they are short; later
        what a family of block tiles needs."""
        tile = self.tile
        sides = sum(side + (4 if side % 16 else 0) for side in (tile.block_m, tile.block_n))
        elements = self.pipeline.stages * tile.block_k * sides
        passing = self.passing_elements(8, 2, wide=2)
        if tile.slices > 1 or self.clustered or self.persistent_tiles == 1:
            elements = self.most_elements(elements, passing, wide=2)
        elif self.epilogue.shared:  # accumulators pass beside the stages, which are filled again meanwhile
            elements += passing
        return elements * dtype.size_bytes

    def extent(self, operand: str) -> int:
        """Rows of A or columns of B in a tile."""
        return self.tile.block_m if operand == "a" else self.tile.block_n

    def copied(self, operand: str) -> int:
        """Elements of an operand that a thread copies for a tile where all threads do."""
        return -(-self.extent(operand) * self.tile.block_k // self.threads)

    def copiers(self, operand: str, vec: int, along_k: bool) -> int:
        """How many threads copy A or B in vectors of `vec` elements, along k if its stored rows run along it: the most
        whose copies lie at the same distances for all of them, in memory and where chunks of rows are swapped."""
        return _copiers(self.extent(operand), self.tile.block_k, vec, along_k, self.threads)

    def _operand_registers(self) -> int:
        return 2 * (self.tile.warp_m + self.tile.warp_n) * STEP // 32

    def least_registers(self, dtype: DType) -> int:
        """Registers that a thread can do with; with fewer some spill."""
        held = 2 * self.tile.accumulators + self._operand_registers()
        if self.persistent_tiles > 1:
            held += 12  # where its next tile of C is
        if self.pipeline.fragments is Fragments.DOUBLE:
            return held + self._operand_registers() + 28
        return held + 40

    def registers(self, dtype: DType) -> int:
        """Registers that the compiler takes, from above: it reads operands a step ahead of what the text says."""
        held, bound = 2 * self.tile.accumulators, registers_held_to(self)
        if held >= 128:
            return bound  # it takes what there is
        needed = 48 + held + 2 * self._operand_registers() + self.copied("a") + self.copied("b")
        if needed < bound and self.epilogue.shared:
            needed += 32
        if self.tile.fitted and self.pipeline.interleave > 1:
            needed += 24
        if self.persistent_tiles > 1:
            needed += 24
        if self.stream_ctas_per_sm:
            needed += 8
        return min(needed, bound)


@cache
def _copiers(extent: int, depth: int, vec: int, along_k: bool, threads: int) -> int:
    per_row = (depth if along_k else extent) // vec
    swapped = along_k or extent % _SWAPPED == 0
    period = 2 if along_k and depth > STEP else 4  # rows after which chunks are swapped alike, or after a multiple

    def alike(count: int) -> bool:
        rows, more = divmod(count, per_row)
        if rows == 0:  # a row takes several copies of each thread, which no swap may cross
            return per_row % count == 0 and (not swapped or count * vec % _SWAPPED == 0)
        return more == 0 and (not swapped or rows in (1, 2) or rows % period == 0)

    return next(count for count in range(threads, 0, -1) if alike(count) or count == 1)
