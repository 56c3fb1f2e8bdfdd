"""Which configs may serve a problem on a device, and why others may not."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .arch import Arch
from .errors import ConfigError
from .leaf import Edge
from .problem import Problem

if TYPE_CHECKING:
    from .config import Config

MAX_GRID = 2**31 - 1
_PLACED = re.compile(r"[,:]? ?(?:not )?\{[^}]*\}(?:,(?= (?:and|are)\b))?")

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """Something that must hold before a config is worth compiling."""

    reason: str
    """One sentence a person reads; `{c.tile.block_m}` is replaced by the config's value."""
    holds: Callable[[Problem, C, Arch], bool]
    """True where the config may be used."""

    @property
    def title(self) -> str:
        """The reason without values, under which configs are counted."""
        return _PLACED.sub("", self.reason)


def whole(problem: Problem, config: "Config") -> bool:
    """Whether m, n and k are multiples of what the config covers at a time."""
    return all(size % each == 0 for size, each in zip((problem.m, problem.n, problem.k), config.multiples))


COMMON: tuple[Rule["Config"], ...] = (
    Rule(
        "a CTA has at most as many threads as the device allows, not {c.threads}",
        lambda problem, config, arch: config.threads <= arch.max_threads_per_block,
    ),
    Rule(
        "shared memory of a CTA stays within the device's limit",
        lambda problem, config, arch: config.smem_bytes(problem.dtype) <= arch.smem_per_block_bytes,
    ),
    Rule(
        "the grid has fewer than 2^31 CTAs",
        # A device of many SMs: stream-K adds at most some hundred CTAs.
        lambda problem, config, arch: config.ctas(problem, 256) <= MAX_GRID,
    ),
    Rule(
        "with exact edges m, n and k are multiples of {c.multiples}",
        lambda problem, config, arch: config.edge is not Edge.EXACT or whole(problem, config),
    ),
)
"""Rules that every family keeps."""


def rules_of(config: "Config | type[Config]") -> tuple[Rule[Any], ...]:
    """All rules of a family: its own, then the common ones."""
    return (*config.rules, *COMMON)


def rejections(problem: Problem, config: "Config", arch: Arch) -> Iterator[str]:
    """The reason of each rule that the config breaks."""
    for rule in rules_of(config):
        if not rule.holds(problem, config, arch):
            yield rule.reason.format(c=config)


def serves(config: "Config", problem: Problem, arch: Arch) -> bool:
    """Whether the config breaks no rule."""
    return all(rule.holds(problem, config, arch) for rule in rules_of(config))


def require(problem: Problem, config: "Config", arch: Arch) -> None:
    """Raise ConfigError with the first thing that is required and missing where the config cannot serve the problem."""
    for reason in rejections(problem, config, arch):
        raise ConfigError(f"{config} cannot serve {problem} on {arch.name}; required: {reason}")
