"""Advice that families of products of limbs share."""

from typing import Any

from ....codegen.leaf import Edge
from ....codegen.legality import Rule, whole
from ....codegen.mechanisms.operands import widest

ADVICE: tuple[Rule[Any], ...] = (
    Rule(
        "of schemes that are accurate enough the one with fewer products",
        lambda problem, config, arch: config.accuracy is problem.accuracy,
    ),
    Rule(
        "edges are exact where the tiles divide C, and guarded elsewhere",
        lambda problem, config, arch: (config.edge is Edge.EXACT) == whole(problem, config),
    ),
    Rule(
        "block tiles are not much larger than C",
        lambda problem, config, arch: (
            config.tile.block_m < 2 * max(32, problem.m) and config.tile.block_n < 2 * max(32, problem.n)
        ),
    ),
    Rule(
        "tiles are counted down where there are several of them on each SM",
        lambda problem, config, arch: config.launch.raster == 1 or config.tiles(problem) >= 256,
    ),
)


def stored_by(most: int) -> Rule[Any]:
    """What is hopeless of stores, for a family whose lanes have so many neighbours of C in the end."""
    return Rule(
        f"C is stored in vectors as wide as its rows allow, of up to {most} elements",
        lambda problem, config, arch: config.epilogue.vec_c == min(most, widest(problem, "c")),
    )
