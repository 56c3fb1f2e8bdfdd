"""Copies that are spread over the steps of a tile, instead of all started where it begins.

Reads of operands queue behind copies in the same pipe: a few of each at a time keep the multiply-adds fed.
"""

from collections.abc import Callable

from .arch import Arch
from .config import Config, Value
from .family import Constraint, Parameter
from .problem import DType, Problem

__all__ = ["COPY_GROUPS", "spread", "spread_fits"]

_LEAST_FLOPS = {DType.FLOAT: 1 << 29, DType.DOUBLE: 1 << 30}
"""Shorter products have few tiles a block, and lose more by what each group costs than they gain."""


def spread(config: Config) -> bool:
    """Whether a config's copies are."""
    return config.number("copy_groups") > 1


def _worth(problem: Problem, value: Value) -> bool:
    return value == 1 or problem.flops >= _LEAST_FLOPS[problem.dtype]


COPY_GROUPS = Parameter(
    "copy_groups",
    "h",
    (1, 2, 4),
    "groups in which a tile's copies are started, spread over its steps of k",
    _worth,
    silent=True,
    constant=False,
)


def spread_fits(copied: Callable[[Config, str], int], places: Callable[[Problem, Config], int]) -> Constraint:
    """The rule for a family of which a thread copies so many elements of A or B for a tile, and which has so many
    places in the loop over its steps where a group can be started."""

    def fits(problem: Problem, config: Config, arch: Arch) -> bool:
        if not spread(config):
            return True
        copies = max(copied(config, operand) // config.number(f"vec_{operand}") for operand in "ab")
        return config.number("copy_groups") <= min(copies, places(problem, config))

    return Constraint(
        "copy_groups {copy_groups} is at most the copies of a thread of A or B for a tile, and the steps they go with",
        fits,
    )
