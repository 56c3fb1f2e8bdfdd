"""What searches try of the `mma` family, and what the model has to know of it."""

from typing import Any

from ....codegen.families.mma import MmaConfig
from ....codegen.fit import Fit
from ....codegen.legality import Rule
from ....codegen.problem import Problem
from . import split_terms
from .policy import Cost, Policy

_ADVICE: tuple[Rule[MmaConfig], ...] = (
    *split_terms.ADVICE,
    Rule(
        "a CTA has 64 to 256 threads",
        lambda problem, config, target: 64 <= config.threads <= 256,
    ),
    Rule(
        "a warp tile is at most twice as long as wide",
        lambda problem, config, target: (
            max(config.tile.warp_m, config.tile.warp_n) <= 2 * min(config.tile.warp_m, config.tile.warp_n)
        ),
    ),
    Rule(
        "large block tiles have large warp tiles, which read less for each product",
        lambda problem, config, target: (
            config.tile.block_m * config.tile.block_n < 128 * 64 or config.tile.accumulators >= 32
        ),
    ),
    Rule(
        "sums are promoted no more often than the promise asks for",
        lambda problem, config, target: config.pipeline.promote >= 32 or problem.k < 256,
    ),
)


class _Mma(Policy):
    advice = _ADVICE
    first = ("scheme", "promote", "block_m", "block_n", "block_k", "warp_m", "warp_n", "stages", "min_ctas")

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile = config.tile
        # Terms have half a float's bytes, and are read once for all products.
        each = 0.5 * config.terms / config.products
        return Cost(
            smem_loads=each * (1 / tile.warp_m + 1 / tile.warp_n + 1 / tile.block_m + 1 / tile.block_n),
            ahead=config.pipeline.stages - 1,
            rate=0.62,  # on an H200: 98 to 115 TFLOP/s by three products, where wgmma has 184 to 201
        )


POLICY = _Mma()
