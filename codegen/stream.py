"""Blocks that share out evenly the k of those tiles of C that are over (stream-K), so that all of them end together.

Tiles of C rarely come out even: 1024 of them take 132 multiprocessors eight rounds, of which one is not full. Here as
many blocks as run at a time first share out what is left over when each has as many tiles as the others.
"""

from .config import Config, Value
from .family import Constraint, Parameter
from .problem import Problem
from .tiling import tiles

__all__ = ["STREAM_FITS", "STREAM_K", "STREAM_PAYS", "streams"]

_MOST = 1024
"""More blocks than any device of today runs at a time of those that are worth it."""
_LEAST_K = 256
"""With fewer steps of k the parts are too short for what it costs to add them up."""
_LEAST_AREA = 96 * 64
"""Elements of C that a block computes: smaller parts come out more even by themselves."""


def streams(config: Config) -> int:
    """Blocks that share out the k of the tiles of C that are over, 0 where each tile has a block."""
    return config.number("stream_k")


def _worth(problem: Problem, value: Value) -> bool:
    return value == 0 or problem.k >= _LEAST_K


STREAM_K = Parameter(
    "stream_k",
    "q",
    (0, *range(1, _MOST + 1)),
    "blocks that share out evenly the k of tiles left over, 0 = none",
    _worth,
    silent=True,
)
STREAM_FITS = (
    Constraint(
        "stream_k {stream_k} shares out k by itself: split_k is 1, and warm_l2 0",
        lambda problem, config, arch: streams(config) == 0 or (config["split_k"] == 1 and config["warm_l2"] == 0),
        "!STREAM_K || SPLIT_K == 1",
    ),
    Constraint(
        "blocks that share out k count fewer than 2^32 tiles of k, of all tiles of C",
        lambda problem, config, arch: (
            streams(config) == 0 or tiles(problem, config) * -(-problem.k // config.number("block_k")) < 2**32
        ),
    ),
)
STREAM_PAYS = Constraint(
    "what is over of large parts of C is shared out evenly, small ones come out even",
    lambda problem, config, arch: (
        streams(config) == 0 or config.number("block_m") * config.number("block_n") >= _LEAST_AREA
    ),
)
