"""Deep tiles, which cover many steps of k: where they pay.

They are for results of few small tiles. There a block has little to do and waits for memory and barriers: with deep
tiles more is on its way at a time, and a barrier comes more seldom.
"""

from collections.abc import Callable

from .arch import Arch
from .config import Config
from .family import Constraint, family_in
from .problem import Problem
from .tiling import tiles

__all__ = ["DEEP_SMALL", "SHALLOW", "deep_pays", "is_deep"]

SHALLOW = 32
"""Tiles that cover more steps of k are deep."""
_BYTES_AHEAD = range(24 << 10, 104 << 10)
"""What a block of deep tiles keeps on its way: a multiprocessor takes some 34 KB from memory while one copy lasts."""
_MOST_BLOCKS = 320
_LARGEST = 32 * 64
"""Elements of C that a block of deep tiles computes at most."""


def is_deep(config: Config) -> bool:
    """Whether the tiles of A and B are deep."""
    return config.number("block_k") > SHALLOW


def _small(problem: Problem, config: Config, arch: Arch) -> bool:
    area = config.number("block_m") * config.number("block_n")
    return not is_deep(config) or (area <= _LARGEST and tiles(problem, config) <= _MOST_BLOCKS)


DEEP_SMALL = Constraint("tiles of more than 32 steps of k are for small parts of a result that has few", _small)


def deep_pays(stages: Callable[[Problem, Config], int], slices: int) -> Constraint:
    """The rule for stages and slices: up to so many in other tiles, more only in deep ones."""

    def pays(problem: Problem, config: Config, arch: Arch) -> bool:
        depth, ahead = config.number("block_k"), config.number("stages") - 1
        if not is_deep(config):
            return ahead < stages(problem, config) and config.number("slices") <= slices
        bytes_ahead = ahead * depth * (config.number("block_m") + config.number("block_n")) * problem.dtype.size_bytes
        return (
            bytes_ahead in _BYTES_AHEAD
            and 8 <= depth // config.number("slices") <= 32
            and family_in(config).threads(config) >= 256
            and depth * ahead * config.number("split_k") <= problem.k
            and tiles(problem, config) * config.number("split_k") <= _MOST_BLOCKS
            and config["min_blocks"] == 1
        )

    return Constraint("deep tiles, and they alone, have many stages or slices: much on its way, few barriers", pays)
