"""The rules that a config must keep to serve a problem on a device, and their reasons."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import ConfigError
from .fit import Fit, FitRule, keeps
from .problem import Problem
from .target import Target

if TYPE_CHECKING:
    from .config import Config

MAX_GRID = 2**31 - 1
_PLACED = re.compile(r"[,:]? ?(?:not )?\{[^}]*\}(?:,(?= (?:and|are)\b))?")

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """A condition without which a config is not worth compiling."""

    reason: str
    """One sentence a person reads; `{c.tile.block_m}` is replaced by the config's value."""
    holds: Callable[[Problem, C, Target], bool]
    """True where the config may be used."""

    @property
    def title(self) -> str:
        """The reason without values, under which rejected configs are counted."""
        return _PLACED.sub("", self.reason)


def needs(instruction: str, reason: str) -> Rule[Any]:
    """The rule that a device has an instruction."""
    return Rule(reason, lambda problem, config, target: instruction in target.arch.instructions)


COMMON: tuple[Rule["Config"], ...] = (
    Rule(
        "a CTA has at most as many threads as the device allows, not {c.threads}",
        lambda problem, config, target: config.threads <= target.arch.max_threads_per_block,
    ),
    Rule(
        "shared memory of a CTA stays within the device's limit",
        lambda problem, config, target: config.smem_bytes(problem.dtype) <= target.arch.smem_per_block_bytes,
    ),
    Rule(
        "the grid has fewer than 2^31 CTAs",
        lambda problem, config, target: config.ctas_along_x(problem, target.sm_count) <= MAX_GRID,
    ),
    Rule(
        "groups of a ragged batch are served by block tiles that threads copy as they lie, without persistent CTAs",
        lambda problem, config, target: not problem.ragged or config.serves_groups,
    ),
)
"""Rules that every family keeps."""


def rules_of(config: "Config | type[Config]") -> tuple[Rule[Any], ...]:
    """All rules of a family: its own, the common ones, and last those on vectors, singly and together."""
    return (*config.rules, *COMMON, *_fitting(config.fit_rules))


@cache
def _fitting(rules: tuple[FitRule, ...]) -> tuple[Rule["Config"], ...]:
    def fitting(rule: FitRule) -> Rule["Config"]:
        return Rule(rule.reason, lambda problem, config, target: keeps(problem, config, (rule,)))

    def together(problem: Problem, config: "Config", target: Target) -> bool:
        return keeps(problem, config, rules) or not all(keeps(problem, config, (rule,)) for rule in rules)

    return (*map(fitting, rules), Rule("vectors of some widths keep all rules on them at a time", together))


def rejections(problem: Problem, config: "Config", target: Target) -> Iterator[str]:
    """The reason of each rule that the config breaks."""
    for rule in rules_of(config):
        if not rule.holds(problem, config, target):
            yield rule.reason.format(c=config)


def serves(config: "Config", problem: Problem, target: Target) -> bool:
    """Whether the config breaks no rule."""
    rules = (*config.rules, *COMMON)
    return all(rule.holds(problem, config, target) for rule in rules) and keeps(problem, config, config.fit_rules)


def require(problem: Problem, config: "Config", target: Target) -> None:
    """Raise ConfigError with the reason of the first broken rule where the config cannot serve the problem."""
    for reason in rejections(problem, config, target):
        raise ConfigError(f"{config} cannot serve {problem} on {target.arch.name}; required: {reason}")


def fitted(problem: Problem, config: "Config", target: Target, aligned: bool = True) -> Fit:
    """The instance of a config that serves a problem, with operands that are `aligned` or not. Raises ConfigError where
    there is none."""
    fit = config.fit(problem, aligned)
    require(problem, fit.config if fit else config, target)
    if fit is None:
        raise ConfigError(f"{config} has no kernel for operands of {problem} that are not aligned; use another config")
    return fit
