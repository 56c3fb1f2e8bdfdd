"""How a kernel and those before and after it on a stream overlap: parameters and rules that families of tiles share."""

from .config import Config, Value
from .family import Constraint, Parameter, family_in
from .problem import Problem

__all__ = ["WARM_L2", "WARM_L2_FITS", "WARM_L2_PAYS", "early"]

_SHORT_FLOPS = 1 << 30
"""Products beyond take so long that what is gained before their first tiles no longer counts."""
_AT_ONCE = 264
"""Blocks that a large device runs at a time with two on each multiprocessor: later ones begin while others work, and
have nothing to wait for before their tiles."""


def early(config: Config) -> bool:
    """Whether the next kernel may come up while this one ends: not where blocks have unequal work, which would lie
    unevenly on the multiprocessors then."""
    return config["tail"] == 1


def _worth(problem: Problem, value: Value) -> bool:
    return value == 0 or problem.flops <= _SHORT_FLOPS


WARM_L2 = Parameter(
    "warm_l2", "wa", (0, 1), "1 = a block asks for its first tiles while earlier kernels end", _worth, silent=True
)
WARM_L2_FITS = Constraint(
    "packed operands are written by the kernel before: none are asked for with warm_l2 {warm_l2}",
    lambda problem, config, arch: config["warm_l2"] == 0 or (config["pack_a"] == 0 and config["pack_b"] == 0),
    "!WARM_L2 || (!PACK_A && !PACK_B)",
)
WARM_L2_PAYS = Constraint(
    "tiles are asked for before the others where kernels overlap and all blocks run at once",
    lambda problem, config, arch: (
        config["warm_l2"] == 0
        or (
            "griddepcontrol" in arch.instructions
            and family_in(config).early(config)
            and family_in(config).blocks(problem, config) <= _AT_ONCE
        )
    ),
)
