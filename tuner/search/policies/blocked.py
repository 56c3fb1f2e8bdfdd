"""What pays for families whose CTAs multiply tiles out of shared memory, whatever multiplies them."""

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from ....codegen.leaf import Mode
from ....codegen.legality import Rule
from ....codegen.mechanisms.operands import WIDE_BYTES, Fragments, stored_row, widest
from ....codegen.mechanisms.split import USUAL_PARTS
from ....codegen.problem import DType, Problem
from ....codegen.target import Target
from .policy import Policy

SHALLOW = 32
"""Tiles that cover more steps of k are deep. They are for results of few small tiles, where a CTA has little to do and
waits for memory and barriers: more is on its way at a time then, and a barrier comes more seldom."""
SHORT_K = 128
"""Up to so many steps of k it counts how C is written."""
_MOST_CTAS = 320
"""CTAs of deep tiles at most."""
_LARGEST = 32 * 64
"""Elements of C that a CTA of deep tiles computes at most."""
_BYTES_AHEAD = range(24 << 10, 104 << 10)
"""What a CTA of deep tiles keeps on its way: an SM takes some 34 KB from memory while one copy lasts."""
_WAVES_WAIT = 4
"""Waves of tiles of C, one on each SM, of which some surely wait."""
_FEW_ROWS = 3
"""Rows of tiles with which the best of a problem gains in double where tiles of a column follow each other, though all
run at a time: 1.1% in the mean, with four to eight 0.6%, in float 0.2% (H100s, CUDA 13.0, 2026-11-26)."""
_CACHED_BYTES = 1 << 25
"""Matrices that large caches hold, so that the order of tiles makes no difference to memory."""
_EVICTED_BYTES, _UNCACHED_BYTES = 1 << 24, 1 << 25
"""Matrices from which on it may gain to let caches drop C first, and of which caches cannot hold much anyway."""
_VERY_SHORT_K = 8
"""Steps of k up to which a smaller C gains as well: the best of a problem 1.3% in the mean in double, in float 1.4% up
to 4 MB and nothing beyond; with more steps 0.1% (H100s, CUDA 13.0, 2026-11-26)."""
_INTERLEAVED_FLOPS = {DType.FLOAT: 1 << 29, DType.DOUBLE: 1 << 30}
"""Shorter products have few tiles a CTA, and lose more by what each group of copies costs than they gain."""
_PREFETCH_FLOPS = 1 << 30
"""Products beyond take so long that what is gained before their first tiles no longer counts."""
_MOST_FITTED, _FITS, _NEARLY = 2, 0.93, 1.12
"""Tiles that may cover a narrow side of C where theirs is fitted to it, what share they compute of what the usual ones
do, and how much more than the best of them."""
LONG_K = 1 << 14
"""Steps of k from which on it counts that CTAs which share them fill every SM."""
_IDLE_SMS = 5
"""SMs that may stay idle in each wave of CTAs that are said to fill a device."""
_AT_ONCE = 2
"""CTAs of an SM that a device runs at a time: later ones begin while others work, and have nothing to wait for before
their tiles."""


def _written(problem: Problem, least_bytes: int) -> bool:
    return problem.k <= SHORT_K and problem.m * problem.n * problem.dtype.size_bytes >= least_bytes


def shared_pays(row_bytes: int) -> Rule[Any]:
    """Where accumulators should pass through shared memory: rows of C are no multiple of so many bytes, or much is
    written. Elsewhere threads write whole sectors by themselves."""
    return Rule(
        f"accumulators pass through shared memory where rows of C are no multiple of {row_bytes} bytes, or much is "
        "written and little computed",
        lambda problem, config, target: (
            not config.epilogue.shared
            or stored_row(problem, "c") * problem.dtype.size_bytes % row_bytes > 0
            or _written(problem, _UNCACHED_BYTES)
        ),
    )


class Blocked(Policy):
    """What such families have in common."""

    tile_sides = ("block_m", "block_n")
    orders_tiles = frozenset(("block_m", "block_n"))
    side_by_side: ClassVar[tuple[str, ...]] = (
        "mode", "parts", "slices", "fragments", "stages", "raster", "interleave", "evict_first",
    )  # fmt: skip

    def typical(self, target: Target) -> Mapping[str, tuple[Any, ...]]:
        return {
            "block_k": (16, 32, 64),
            "slices": (1, 4, 8),
            "stages": (3,),
            "fragments": tuple(Fragments),
            "raster": (1, 4, 8),
        }


def tiles(problem: Problem, config: Any) -> int:
    """Tiles of C, told from the sides of the block tile alone: rules that ask for little drop much."""
    rows, cols = -(-problem.m // config.tile.block_m), -(-problem.n // config.tile.block_n)
    return int(rows * cols)


def nearly_square(ratio: int, m: int, n: int) -> bool:
    """Whether the longer of two sides is at most so many times the shorter."""
    return max(m, n) <= ratio * min(m, n)


def is_deep(config: Any) -> bool:
    """Whether tiles of A and B cover many steps of k."""
    return bool(config.tile.block_k > SHALLOW)


def few_small(problem: Problem, config: Any) -> bool:
    """Whether a small block tile belongs to a result that has few: there deep tiles pay."""
    return config.tile.block_m * config.tile.block_n <= _LARGEST and tiles(problem, config) <= _MOST_CTAS


def much_ahead(problem: Problem, config: Any) -> bool:
    """Whether deep tiles keep as much on their way as memory gives, with few barriers and work for every stage. Where k
    is long the smallest tiles may have few threads: little else keeps enough on its way."""
    depth, ahead = config.tile.block_k, config.pipeline.stages - 1
    bytes_ahead = ahead * depth * (config.tile.block_m + config.tile.block_n) * problem.dtype.size_bytes
    return (
        bytes_ahead in _BYTES_AHEAD
        and 8 <= depth // config.tile.slices <= 32
        and config.threads >= (256 if problem.k < LONG_K else 128)
        and config.min_ctas == 1
        and depth * ahead * config.split_ctas <= problem.k
        and tiles(problem, config) * config.split_ctas <= _MOST_CTAS
    )


def cluster_fits(config: Any, target: Target) -> bool:
    """Whether two CTAs that share a tile of C form a cluster where there are clusters, and no others do: larger ones
    crowd on some SMs of a device and leave others idle."""
    return bool(config.clustered == ("cluster" in target.arch.instructions and config.split_ctas == 2))


def unaligned(problem: Problem, operand: str) -> bool:
    """Whether stored rows of A or B allow no vectors of 16 bytes."""
    return widest(problem, operand) * problem.dtype.size_bytes < WIDE_BYTES


def narrow_operands(problem: Problem, config: Any) -> int:
    """How many of A and B are copied in pieces of less than 16 bytes: those whose rows allow no more."""
    return sum(not packed and unaligned(problem, operand) for operand, packed in zip("ab", config.packs))


def has_pdl(target: Target) -> bool:
    """Whether a kernel can begin while the one before it ends."""
    return "griddepcontrol" in target.arch.instructions


def at_once(problem: Problem, config: Any, target: Target) -> bool:
    """Whether the device runs all CTAs at a time, two on each SM."""
    return bool(config.ctas(problem, 0) <= _AT_ONCE * target.sm_count)


def _raster_pays(problem: Problem, config: Any, target: Target) -> bool:
    rows, cols = -(-problem.m // config.tile.block_m), -(-problem.n // config.tile.block_n)
    group = config.launch.raster
    if rows == 1 or cols == 1:
        return bool(group == 1)
    if rows * cols <= _WAVES_WAIT * target.sm_count:
        # Operands are read again when the cache has dropped them.
        apart = rows * cols > target.sm_count and problem.bytes > _CACHED_BYTES
        by_column = rows <= _FEW_ROWS and problem.dtype is DType.DOUBLE
        return group == 1 or (group == 4 and (apart or by_column))
    return bool(group == 4 or 4 < group < 2 * rows)


def _side_fits(extent: int, side: int, usual: Collection[int], fitted: Collection[int]) -> bool:
    """Whether one or two tiles of `side` cover that much of C with clearly less to spare than any of the usual sides,
    and not much more than the best of those that fit."""

    def covered(by: int) -> float:
        count = -(-extent // by)
        return count * by if count <= _MOST_FITTED else math.inf

    least = min(map(covered, usual))
    return covered(side) <= min(_FITS * least, _NEARLY * min(map(covered, fitted))) and least < math.inf


def sides_fit(
    rows: Collection[int], fitted_m: Collection[int], columns: Collection[int], fitted_n: Collection[int]
) -> tuple[Rule[Any], ...]:
    """That sides of block tiles between the usual `rows` and `columns` are tried where they fit a narrow C."""
    return (
        Rule(
            "block tiles between the usual ones fit a narrow C, by their rows",
            lambda problem, config, target: (
                config.tile.block_m not in fitted_m or _side_fits(problem.m, config.tile.block_m, rows, fitted_m)
            ),
        ),
        Rule(
            "block tiles between the usual ones fit a narrow C, by their columns",
            lambda problem, config, target: (
                config.tile.block_n not in fitted_n or _side_fits(problem.n, config.tile.block_n, columns, fitted_n)
            ),
        ),
    )


SHAPES_PAY: tuple[Rule[Any], ...] = (
    Rule(
        "a block tile has at most 16 rows, or less than twice those of C",
        lambda problem, config, target: config.tile.block_m <= 16 or config.tile.block_m < 2 * problem.m,
    ),
    Rule(
        "a block tile has at most 16 columns, or less than twice those of C",
        lambda problem, config, target: config.tile.block_n <= 16 or config.tile.block_n < 2 * problem.n,
    ),
    Rule(
        "a block tile is at most four times as long as wide, unless C is narrow",
        lambda problem, config, target: (
            min(problem.m, problem.n) <= 64 or nearly_square(4, config.tile.block_m, config.tile.block_n)
        ),
    ),
)


def _fills(problem: Problem, config: Any, target: Target, few: Collection[int]) -> bool:
    """Whether CTAs fill all SMs once or twice, with tiles that are no power of two or among `few`."""
    count = tiles(problem, config)
    waves = -(-count * config.split.parts // target.sm_count)
    idle = waves * target.sm_count - count * config.split.parts
    filled = waves in (1, 2) and idle <= _IDLE_SMS * waves
    return problem.k >= LONG_K and filled and (count.bit_count() > 1 or count in few)


def splits_pay(most_tiles: int, least_k: int, few: Collection[int]) -> tuple[Rule[Any], ...]:
    """Where split-K pays: in results of at most so many tiles, with so many steps of k for each CTA at least. So few
    tiles as `few` has are shared out among all SMs, not only among a power of two."""
    return (
        Rule(
            f"CTAs that share out k have {least_k} steps each",
            lambda problem, config, target: config.split_ctas == 1 or least_k * config.split_ctas <= problem.k,
        ),
        Rule(
            "split counts that are not usual fill all SMs, for a long k",
            lambda problem, config, target: (
                config.split.parts in USUAL_PARTS[config.split.mode] or _fills(problem, config, target, few)
            ),
        ),
        Rule(
            f"CTAs share out k where there are at most {most_tiles} tiles, and each has a tile of k",
            lambda problem, config, target: (
                config.split_ctas == 1
                or (
                    tiles(problem, config) <= most_tiles
                    and tiles(problem, config) * config.split_ctas <= 1024
                    and config.tile.block_k * config.split_ctas <= problem.k
                )
            ),
        ),
    )


STREAMS_PAY: tuple[Rule[Any], ...] = (
    Rule(
        "stream-K has 256 steps of k at least: shorter parts cost more to add up than they gain",
        lambda problem, config, target: config.split.mode is not Mode.STREAM_K or problem.k >= 256,
    ),
    Rule(
        "stream-K has one to three CTAs per SM, which shared memory lets run at a time",
        lambda problem, config, target: (
            config.split.mode is not Mode.STREAM_K
            or (
                config.split.parts <= 3
                and config.split.parts * config.smem_bytes(problem.dtype) <= target.arch.smem_per_sm_bytes
            )
        ),
    ),
    Rule(
        "stream-K shares out large block tiles: small ones come out even by themselves",
        lambda problem, config, target: (
            config.split.mode is not Mode.STREAM_K or config.tile.block_m * config.tile.block_n >= 96 * 64
        ),
    ),
)
EVICT_FIRST_PAYS: Rule[Any] = Rule(
    "evict-first stores are for a large C of few steps of k, or any of very few",
    lambda problem, config, target: (
        not config.epilogue.evict_first or _written(problem, _EVICTED_BYTES) or problem.k <= _VERY_SHORT_K
    ),
)
INTERLEAVE_PAYS: Rule[Any] = Rule(
    "cp.async copies are interleaved with the multiply-adds of long products",
    lambda problem, config, target: (
        config.pipeline.interleave == 1 or problem.flops >= _INTERLEAVED_FLOPS[problem.dtype]
    ),
)
L2_PREFETCH_SHORT: Rule[Any] = Rule(
    "L2 prefetch is for short products",
    lambda problem, config, target: not config.launch.l2_prefetch or problem.flops <= _PREFETCH_FLOPS,
)
L2_PREFETCH_PAYS: tuple[Rule[Any], ...] = (
    L2_PREFETCH_SHORT,
    Rule(
        "L2 prefetch is for kernels with PDL of which all CTAs run at once",
        lambda problem, config, target: (
            not config.launch.l2_prefetch or (has_pdl(target) and at_once(problem, config, target))
        ),
    ),
)
RASTER_PAYS: Rule[Any] = Rule(
    "tiles are rasterised in groups where not all of them run at a time, or in double have few rows, and no more than "
    "there are",
    _raster_pays,
)
