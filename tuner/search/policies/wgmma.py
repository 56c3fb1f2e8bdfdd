"""What searches try of the `wgmma` family, and what the model has to know of it."""

from typing import Any, ClassVar

from ....codegen.families.wgmma import WgmmaConfig
from ....codegen.fit import Fit
from ....codegen.legality import Rule
from ....codegen.problem import Problem
from . import split_terms
from .policy import Cost, Factors, Policy

_ADVICE: tuple[Rule[WgmmaConfig], ...] = (
    *split_terms.ADVICE,
    Rule(
        "sums are promoted no more often than the promise asks for",
        lambda problem, config, target: config.pipeline.promote == 64 or problem.k < 256,
    ),
    Rule(
        "tiles of fewer steps of k where three of more do not fit",
        lambda problem, config, target: (
            config.tile.block_k == 64
            or 6 * config.smem_bytes(problem.dtype) > config.pipeline.stages * target.arch.smem_per_block_bytes
        ),
    ),
)


class _Wgmma(Policy):
    advice = _ADVICE
    first = ("scheme", "promote", "block_m", "block_n", "block_k", "stages", "ordered", "raster")
    # On an H200, 2026-11-23 and 24.
    factors: ClassVar[Factors] = {
        ("block_n", "ordered"): {(192, 0): 1.07},
        ("block_m", "block_n"): {(128, 64): 1.1, (64, 192): 1.2},
    }

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile = config.tile
        # Terms have half a float's bytes. Each product reads those of op(B), and a warpgroup its own of op(A).
        return Cost(
            smem_loads=0.5 * (1 / 64 + 1 / (4 * tile.block_n)),
            ahead=config.pipeline.stages - 1,
        )


POLICY = _Wgmma()
