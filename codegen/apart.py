"""Slices that go apart: each copies its own steps of k and waits for its own threads alone, and where they pay.

One barrier of a whole block stops all of its warps at the end of each tile. Slices that pass barriers of their own
drift apart: while one waits for its copies, others multiply.
"""

from .arch import Arch
from .config import Config
from .family import Constraint, Parameter, family_in
from .problem import Problem
from .tiling import tiles

__all__ = ["APART", "APART_FITS", "APART_PAYS", "apart", "gain", "or_apart"]

APART = Parameter(
    "apart", "ap", (0, 1), "1 = each copies its own steps of k, and waits for its own threads alone", silent=True
)

_BARRIERS = 15
"""Barriers of a block by number, beside that of all its threads."""
_FEWEST, _MANY = 8, 16
"""Steps of k of a slice in a tile: fewer than the first gain nothing, from the second on no other way is searched."""
_NARROW = 32
"""Up to so many rows or columns of C all wait for memory, whatever their barriers."""
_DEEP = 64
"""Steps of k of the deep tiles that pay for larger parts of C where slices go apart."""
_AREAS = range(32 * 64, 64 * 128 + 1)
"""Elements of C that a block of those computes."""
_MOST_BLOCKS = 320
"""How many such blocks there are at most."""


def apart(config: Config) -> bool:
    """Whether the slices of a config go apart."""
    return config["apart"] == 1


def _barriers_do(problem: Problem, config: Config, arch: Arch) -> bool:
    if not apart(config) or config.number("slices") <= _BARRIERS:
        return True
    return family_in(config).threads(config) == 32 * config.number("slices")  # a warp has its own


APART_FITS = (
    Constraint(
        "only one of several slices can go apart, not with slices {slices}",
        lambda problem, config, arch: not apart(config) or config.number("slices") > 1,
        "!APART || SLICES > 1",
    ),
    Constraint(f"a block has barriers for {_BARRIERS} slices of several warps, not for {{slices}}", _barriers_do),
    Constraint(
        "a slice that goes apart copies whole vectors: block_k {block_k} in {slices}, vec_a {vec_a}, vec_b {vec_b}",
        lambda problem, config, arch: not apart(config) or all(
            config.number("block_k") // config.number("slices") % config.number(vec) == 0 for vec in ("vec_a", "vec_b")
        ),
    ),
)  # fmt: skip


def _pays(problem: Problem, config: Config, arch: Arch) -> bool:
    slices = config.number("slices")
    steps = config.number("block_k") // slices
    if slices == 1 or steps < _FEWEST or not config.number("cp_async") or min(problem.m, problem.n) <= _NARROW:
        return not apart(config)
    return steps < _MANY or apart(config)


APART_PAYS = Constraint(
    "slices go apart where each has 8 steps of k of a tile or more by cp.async, and C is not narrow", _pays
)


def or_apart(rule: Constraint) -> Constraint:
    """A rule for deep tiles, which some of 64 steps of k need not keep to where slices go apart."""

    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        return rule.holds(problem, config, arch) or (
            config["block_k"] == _DEEP
            and config.number("block_m") * config.number("block_n") in _AREAS
            and tiles(problem, config) <= _MOST_BLOCKS
            and config.number("stages") <= 4
            and config["slices"] in (4, 8)
            and apart(config)
            and tiles(problem, config) * config.number("split_k") <= _MOST_BLOCKS
            and _DEEP * (config.number("stages") - 1) * config.number("split_k") <= problem.k
        )

    return Constraint(f"{rule.reason}, or slices go apart", holds)


def gain(config: Config) -> float:
    """What slices that go apart save of waiting, in instructions of a warp for each of its multiply-adds."""
    return 0.05 if apart(config) and config.number("block_k") >= _FEWEST * config.number("slices") else 0.0
