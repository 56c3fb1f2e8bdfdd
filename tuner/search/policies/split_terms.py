"""Advice that families of products of terms share."""

from typing import Any

from ....codegen.legality import Rule

ADVICE: tuple[Rule[Any], ...] = (
    Rule(
        "of schemes that are accurate enough the one with fewer products",
        lambda problem, config, target: config.accuracy is problem.accuracy,
    ),
    Rule(
        "block tiles are not much larger than C",
        lambda problem, config, target: (
            config.tile.block_m < 2 * max(32, problem.m) and config.tile.block_n < 2 * max(32, problem.n)
        ),
    ),
    Rule(
        "tiles are counted down where there are several of them on each SM",
        lambda problem, config, target: config.launch.raster == 1 or config.tiles(problem) >= 256,
    ),
)
