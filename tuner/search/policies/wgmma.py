"""What searches try of the `wgmma` family, and what the model has to know of it."""

from typing import Any

from ....codegen.families.wgmma import WgmmaConfig
from ....codegen.legality import Rule
from ....codegen.problem import Problem
from . import limbs
from .policy import Cost, Policy

_ADVICE: tuple[Rule[WgmmaConfig], ...] = (
    *limbs.ADVICE,
    Rule(
        "sums are promoted no more often than the promise asks for",
        lambda problem, config, arch: config.pipeline.promote == 64 or problem.k < 256,
    ),
)


class _Wgmma(Policy):
    advice = _ADVICE
    first = ("scheme", "promote", "block_m", "block_n", "stages", "raster")

    def cost(self, problem: Problem, config: Any) -> Cost:
        tile = config.tile
        # Limbs have half a float's bytes. Each product reads those of op(B), and a warpgroup its own of op(A).
        return Cost(
            smem_loads=0.5 * (1 / 64 + 1 / (4 * tile.block_n)),
            ahead=config.pipeline.stages - 1,
        )


POLICY = _Wgmma()
