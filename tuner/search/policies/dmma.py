"""What searches try of the `dmma` family, and what the model has to know of it."""

from typing import Any, ClassVar

from ....codegen.families.dmma import FITTED_M, FITTED_N, DmmaConfig
from ....codegen.fit import Fit
from ....codegen.leaf import Mode
from ....codegen.legality import Rule
from ....codegen.mechanisms.fragments import MOST_ACCUMULATORS
from ....codegen.mechanisms.operands import Fragments, widest
from ....codegen.mechanisms.split import Reduce
from ....codegen.problem import Problem
from ....codegen.target import Target
from . import blocked, fragments
from .blocked import nearly_square
from .policy import Cost, Factors

_ROWS, _COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256), (8, 16, 32, 64, 96, 128, 192, 256)
"""Sides of block tiles for any C."""
_SCHEDULERS = 4
"""Of an SM: each issues the instructions of every fourth warp of a CTA."""


def _warp_shape_pays(problem: Problem, config: DmmaConfig, target: Target) -> bool:
    tile = config.tile
    if not tile.fitted:
        return tile.warp_m <= 64 and tile.warp_n in (8, 16, 32, 64) and nearly_square(2, tile.warp_m, tile.warp_n)
    # A long warp tile reads more from shared memory for each product, but one or two may span a fitted side.
    across = tile.block_n // tile.warp_n if tile.block_n in FITTED_N else tile.block_m // tile.warp_m
    return across <= 2 or nearly_square(2, tile.warp_m, tile.warp_n)


def _warps_fit(problem: Problem, config: DmmaConfig, target: Target) -> bool:
    warps = config.tile.warps * config.tile.slices
    return not config.tile.fitted or (warps % _SCHEDULERS == 0 and config.tile.accumulators >= 16)


def _streams_plainly(problem: Problem, config: DmmaConfig, target: Target) -> bool:
    if config.split.mode is not Mode.STREAM_K:
        return True
    if config.tile.accumulators < MOST_ACCUMULATORS:  # beside rows that not all threads copy, addresses take more
        return not config.tile.fitted or config.pipeline.interleave == 1 or config.tile.block_k == 16
    plain = config.tile.block_k == 16 and not config.epilogue.shared
    return plain and widest(problem, "a") == widest(problem, "b") == 2


_ADVICE: tuple[Rule[DmmaConfig], ...] = (
    Rule(
        "the larger instructions run at twice the rate where the device has them",
        lambda problem, config, target: config.tile.mma_k != 4 or "dmma.m16n8" not in target.arch.instructions,
    ),
    *blocked.sides_fit(_ROWS, FITTED_M, _COLUMNS, FITTED_N),
    Rule(
        "a warp tile is at most twice as long as wide, or one or two span the side of a block tile that fits a narrow "
        "C",
        _warp_shape_pays,
    ),
    Rule(
        "tiles that fit a narrow C keep all four schedulers of an SM at work alike, with large warp tiles",
        _warps_fit,
    ),
    *fragments.SHAPES_PAY,
    *fragments.TILES_PAY,
    Rule(
        f"a thread that holds {MOST_ACCUMULATORS} elements of C has no registers left for stream-K with deep tiles, a "
        "shared-memory epilogue or copies of single elements, and one of a tile that fits a narrow C none with deep "
        "tiles whose copies are interleaved",
        _streams_plainly,
    ),
    *fragments.ENDS_PAY,
)


class _Dmma(blocked.Blocked):
    instead = (
        {"mma_k": 4},
        {"mma_k": 4, "interleave": 1},
        {"mma_k": 4, "interleave": 1, "stages": 2},
        {"mma_k": 4, "interleave": 1, "stages": 2, "reduce": Reduce.WORKSPACE},
        {"stages": 2},
    )
    advice = _ADVICE
    for_rows = fragments.FOR_ROWS
    first = (
        "block_m", "block_n", "block_k", "warp_m", "warp_n", "mma_k", "stages", "fragments", "slices",
         "mode", "parts", "reduce", "raster",
    )  # fmt: skip
    orders_tiles = blocked.Blocked.orders_tiles | {"warp_m", "warp_n"}
    # Fitted to what 18 tunings in double measured on H200s: 9,199 variants (2026-11-22, CUDA 13.0); interleave to 34
    # tunings more. They say that small warp tiles cost less than the model thinks.
    factors: ClassVar[Factors] = {
        ("warp_m", "warp_n"): {
            (16, 8): 0.975, (16, 16): 0.956, (16, 32): 0.983, (32, 16): 0.975,
            (32, 32): 1.004, (32, 64): 1.031, (48, 32): 1.049, (64, 32): 1.031,
        },
        ("block_k",): {(16,): 0.963, (32,): 1.004, (64,): 1.035},
        ("stages",): {(2,): 1.017, (3,): 0.992, (4,): 0.987, (5,): 1.003},
        ("fragments",): {("double",): 0.979},
        ("interleave",): {(1,): 1.009, (2,): 0.991, (4,): 0.999},
    }  # fmt: skip

    def non_power_of_two(self, config: Any) -> bool:
        return bool(config.tile.fitted)

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile = config.tile
        return Cost(
            # A lane reads one operand for each 32 multiply-adds of its warp tile's side; and what is written for it.
            smem_loads=1 / tile.warp_m + 1 / tile.warp_n + 1 / tile.block_m + 1 / tile.block_n,
            ahead=config.pipeline.stages - 1,
            fragments_ahead=config.pipeline.fragments is Fragments.DOUBLE,
            narrow=blocked.narrow_operands(problem, config),
            neighbours=0 if config.epilogue.shared else 2,
            beside=0 if config.epilogue.shared else 8,
        )


POLICY = _Dmma()
