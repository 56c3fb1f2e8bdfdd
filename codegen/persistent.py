"""Persistent blocks, which compute several tiles of C one after the other, and where they pay.

While such a block multiplies the last tiles of k of one tile of C the first of its next one are on their way, and they
arrive while it writes C. Other blocks have asked for nothing by then.
"""

from .config import Config, Value
from .epilogue import SHORT_K
from .family import Constraint, Parameter, family_in
from .problem import Problem
from .spread import spread

__all__ = ["PERSISTENT", "PERSISTENT_FITS", "PERSISTENT_PAYS", "persistent"]

_FEWEST_BLOCKS = 256
"""Fewer leave a large device without two blocks on each multiprocessor, of which one writes while the other works."""


def persistent(config: Config) -> int:
    """Tiles of C that a block computes."""
    return config.number("persistent")


def _worth(problem: Problem, value: Value) -> bool:
    # Longer loops over k leave little before and after them; blocks that end in any order fill a device better then.
    return value == 1 or problem.k <= SHORT_K


PERSISTENT = Parameter(
    "persistent",
    "pt",
    (1, 2, 3, 4, 6, 8, 16),
    "tiles of C that a block computes, one after the other",
    _worth,
    silent=True,
    constant=False,
)
PERSISTENT_FITS = (
    Constraint(
        "a block of {persistent} tiles of C shares none of them with others, split_k {split_k}, stream_k {stream_k}",
        lambda problem, config, arch: persistent(config) == 1 or (config["split_k"] == 1 and config["stream_k"] == 0),
    ),
    Constraint(
        "a block of {persistent} tiles of C has no shared memory free for the sums of {slices} slices",
        lambda problem, config, arch: persistent(config) == 1 or config["slices"] == 1,
    ),
    Constraint(
        "blocks of {persistent} tiles of C count fewer than 2^31 of them",
        lambda problem, config, arch: persistent(config) == 1 or family_in(config).tiles(problem, config) < 2**31,
    ),
)
PERSISTENT_PAYS = Constraint(
    # Where k is short there is little to spread copies over, and the compiler runs out of registers.
    f"blocks compute several tiles of C each where {_FEWEST_BLOCKS} of them are left, and start their copies together",
    lambda problem, config, arch: (
        persistent(config) == 1 or (family_in(config).blocks(problem, config) >= _FEWEST_BLOCKS and not spread(config))
    ),
)
