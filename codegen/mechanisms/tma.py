"""TMA: one thread of a producer warp starts copies of whole tiles, which the device carries out alone.

Threads that multiply spend no instructions on copies. Each of their warps waits only for the tiles, so the main loop
has no barrier of the CTA.
"""

from typing import Any

from ..leaf import Mode
from ..legality import Rule
from ..problem import Problem
from ..source import TensorBox
from ..target import Target
from .operands import Load

DEEPEST = 256
"""Steps of k of the deepest tiles, which only TMA fills."""
_ROW_BYTES = 128
"""Bytes of a row of a box whose rows run along k."""
_MOST_BOX = 256
"""Elements along a side of a TMA box."""
_ALIGNED = 1024
"""Bytes whose multiple the size of each tile is, so that each tile also begins at a multiple of them."""


def tma_boxes(config: Any, problem: Problem) -> tuple[TensorBox, ...]:
    """Boxes of A and of B that TMA copies bring, or would bring with `load` at TMA."""
    tile, row = config.tile, _ROW_BYTES // problem.dtype.size_bytes
    sides = zip((tile.block_m, tile.block_n), config.along_k(problem))
    return tuple(
        TensorBox(extent, row, True) if along else TensorBox(tile.block_k, extent, False) for extent, along in sides
    )


def _boxes_fit(problem: Problem, config: Any, target: Target) -> bool:
    size, inner = problem.dtype.size_bytes, (config.pipeline.k_inner_a, config.pipeline.k_inner_b)
    if inner != config.along_k(problem) or (any(inner) and config.tile.block_k * size % _ROW_BYTES):
        return False
    return all(
        max(box.rows, box.cols) <= _MOST_BOX and box.rows * box.cols * size % _ALIGNED == 0
        for box in tma_boxes(config, problem)
    )


def _shape_fits(problem: Problem, config: Any, target: Target) -> bool:
    return bool(
        "tma" in target.arch.instructions
        and not config.tile.slice_barriers
        and not config.clustered
        and config.split.mode is not Mode.STREAM_K
        and not config.tile.non_power_of_two
    )


TMA_RULES: tuple[Rule[Any], ...] = (
    Rule(
        "TMA copies the matrices of one product, not of a batch",
        lambda problem, config, target: config.pipeline.load is not Load.TMA or problem.batch == 1,
    ),
    Rule(
        "the device has TMA, the CTA has no cluster, stream-K or slice barriers, and the sides of thread tiles are "
        "powers of two",
        lambda problem, config, target: config.pipeline.load is not Load.TMA or _shape_fits(problem, config, target),
    ),
    Rule(
        f"a TMA box has at most {_MOST_BOX} by {_MOST_BOX} elements, a multiple of {_ALIGNED} bytes, and leaves k "
        f"innermost where it is innermost in memory, {_ROW_BYTES} bytes of it at a time",
        lambda problem, config, target: config.pipeline.load is not Load.TMA or _boxes_fit(problem, config, target),
    ),
    Rule(
        f"tiles of {DEEPEST} steps of k are for TMA",
        lambda problem, config, target: config.pipeline.load is Load.TMA or config.tile.block_k < DEEPEST,
    ),
)
"""The rules for a family that knows TMA."""
