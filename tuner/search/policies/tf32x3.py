"""What searches try of the `tf32x3` family, and what the model has to know of it."""

from typing import Any

from ....codegen.families.tf32x3 import Tf32x3Config
from ....codegen.fit import Fit
from ....codegen.leaf import Mode
from ....codegen.legality import Rule
from ....codegen.mechanisms.fragments import MOST_ACCUMULATORS
from ....codegen.mechanisms.operands import Fragments
from ....codegen.problem import Grade, Problem
from ....codegen.target import Target
from . import blocked, fragments
from .policy import Cost

_SPLIT = 5
"""Instructions that make terms of an element, an addition in float aside; those on integers issue at half the rate."""


def _promotes(problem: Problem, config: Tf32x3Config, target: Target) -> bool:
    # Within a tile the compiler knows when: it leaves out to set sums to 0, and additions in other tiles. With 64 the
    # errors on positive data come near those of sums in order.
    most = 64 if problem.accuracy is Grade.NORMWISE else 32
    most = max(16, min(most, config.tile.block_k // config.tile.slices))
    fitting = [each for each in (64, 32, 16) if each <= most and 6 * each <= problem.k]
    return bool(config.pipeline.promote == (fitting or [16])[0])


_ADVICE: tuple[Rule[Tf32x3Config], ...] = (
    Rule(
        "k is long enough for the tensor cores: {c.least_k}",
        lambda problem, config, target: problem.k >= config.least_k,
    ),
    Rule("sums are promoted once a tile, or as seldom as the promise and errors allow", _promotes),
    Rule(
        "a warp tile is at most twice as long as wide",
        lambda problem, config, target: blocked.nearly_square(2, config.tile.warp_m, config.tile.warp_n),
    ),
    *fragments.SHAPES_PAY,
    *fragments.TILES_PAY,
    Rule(
        f"a thread that holds {MOST_ACCUMULATORS} elements of C has no registers left for stream-K, persistent CTAs or "
        "more than 16 steps of k in a tile",
        lambda problem, config, target: (
            config.tile.accumulators < MOST_ACCUMULATORS
            or (
                config.tile.block_k <= 16 * config.tile.slices
                and config.split.mode not in (Mode.STREAM_K, Mode.PERSISTENT)
            )
        ),
    ),
    *fragments.ENDS_PAY,
)


class _Tf32x3(blocked.Blocked):
    instead = ({"interleave": 1}, {"interleave": 1, "stages": 2})
    advice = _ADVICE
    for_rows = fragments.FOR_ROWS
    first = (
        "promote", "block_m", "block_n", "block_k", "warp_m", "warp_n", "stages", "fragments",
         "slices", "mode", "parts", "reduce", "raster",
    )  # fmt: skip
    orders_tiles = blocked.Blocked.orders_tiles | {"warp_m", "warp_n"}

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile = config.tile
        read = 1 / tile.warp_m + 1 / tile.warp_n
        return Cost(
            # A lane reads one operand for each 32 multiply-adds of its warp tile's side; and what is written for it.
            smem_loads=read + 1 / tile.block_m + 1 / tile.block_n,
            splitting=_SPLIT * read,
            ahead=config.pipeline.stages - 1,
            fragments_ahead=config.pipeline.fragments is Fragments.DOUBLE,
            rate=0.33,  # an H200, 2026-11-24: the best variants of nine shapes within 8%
            narrow=blocked.narrow_operands(problem, config),
        )


POLICY = _Tf32x3()
