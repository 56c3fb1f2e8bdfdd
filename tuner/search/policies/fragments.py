"""What pays for families whose warps read the tensor cores' fragments from shared memory element by element."""

from collections.abc import Mapping
from typing import Any

from ....codegen.leaf import Mode
from ....codegen.legality import Rule
from ....codegen.mechanisms.fragments import MOST_ACCUMULATORS
from ....codegen.mechanisms.operands import SECTOR_BYTES
from ....codegen.problem import Problem
from ....codegen.target import Target
from . import blocked
from .blocked import is_deep


def _area_pays(problem: Problem, config: Any, target: Target) -> bool:
    # The smaller a block tile, the more often A and B pass through the cache.
    area = config.tile.block_m * config.tile.block_n
    return bool(area >= 128 * 64 or blocked.tiles(problem, config) <= (1024 if area >= 64 * 64 else 600))


def _slices_pay(problem: Problem, config: Any, target: Target) -> bool:
    slices = config.tile.slices
    return bool(
        slices == 1
        or (
            config.threads <= 256
            and (is_deep(config) or 64 * slices <= config.threads)
            and blocked.tiles(problem, config) <= 512
        )
    )


def _depth_pays(problem: Problem, config: Any, target: Target) -> bool:
    if is_deep(config):
        return blocked.few_small(problem, config) and blocked.much_ahead(problem, config)
    return bool(config.tile.slices <= 4 and config.pipeline.stages <= 5)


SHARED_PAYS = blocked.shared_pays(SECTOR_BYTES)
"""The lanes of a warp write two sectors side by side. In double 83 products with rows of whole vectors but no whole
sectors, k of at most 128 and a C of 4 MB and more took 1.23 times as long without (H100s, 2026-11-26)."""
FOR_ROWS: Mapping[str, Rule[Any]] = {"shared": SHARED_PAYS}
"""What a config has for rows that are not aligned."""

SHAPES_PAY: tuple[Rule[Any], ...] = (
    *blocked.SHAPES_PAY,
    Rule(
        "a CTA has 64 to 256 threads, or as many as its block tile allows",
        lambda problem, config, target: config.threads <= 256 and (config.threads >= 64 or config.tile.slices == 1),
    ),
)
"""CTAs."""

TILES_PAY: tuple[Rule[Any], ...] = (
    Rule("small block tiles are for results that have few of them", _area_pays),
    Rule(
        "large block tiles have large warp tiles, which read less for each product",
        lambda problem, config, target: (
            config.tile.block_m * config.tile.block_n < 64 * 64 or config.tile.accumulators >= 32 or config.fitted
        ),
    ),
    Rule(
        "two stages are enough only with 32 steps of k each",
        lambda problem, config, target: config.pipeline.stages != 2 or config.tile.block_k == 32,
    ),
    Rule(
        f"a thread that holds {MOST_ACCUMULATORS} elements of C has no registers left for split-K",
        lambda problem, config, target: config.tile.accumulators < MOST_ACCUMULATORS or config.split_ctas == 1,
    ),
    Rule(
        "tiles of more than 32 steps of k are for small block tiles of a result that has few, with much on its way and "
        "few barriers; others have at most 4 slices",
        _depth_pays,
    ),
    Rule("warps share out k where there are few tiles", _slices_pay),
    *blocked.splits_pay(most_tiles=128, least_k=32, few=(1, 2, 4)),
    *blocked.STREAMS_PAY,
)
"""Block tiles and ways to share out their work."""

ENDS_PAY: tuple[Rule[Any], ...] = (
    Rule(
        "two CTAs that share a tile of C form a cluster, more do not",
        lambda problem, config, target: blocked.cluster_fits(config, target),
    ),
    blocked.RASTER_PAYS,
    SHARED_PAYS,
    blocked.EVICT_FIRST_PAYS,
    *blocked.L2_PREFETCH_PAYS,
    Rule(
        # Longer loops over k leave little before and after them; CTAs that end in any order fill a device better then.
        "persistent CTAs are for products of few steps of k",
        lambda problem, config, target: config.split.mode is not Mode.PERSISTENT or problem.k <= blocked.SHORT_K,
    ),
    Rule(
        "persistent CTAs compute 2 or 4 tiles of C where 256 CTAs are left, one of two on an SM writes while the other "
        "works, and start their copies together",
        lambda problem, config, target: (
            config.split.mode is not Mode.PERSISTENT
            or (config.split.parts in (2, 4) and config.ctas(problem, 0) >= 256 and config.pipeline.interleave == 1)
        ),
    ),
    blocked.INTERLEAVE_PAYS,
    Rule(
        "copies are interleaved up to sm_90, where that was measured: for later devices the compiler runs out of "
        "registers",
        lambda problem, config, target: config.pipeline.interleave == 1 or target.arch.capability < (10, 0),
    ),
)
"""Order of tiles, epilogue, launch and copies."""
