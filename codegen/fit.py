"""Fit of a config to a problem: the widths of vectors and the guards at the edges that follow from both."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from .leaf import Edge
from .problem import Problem

if TYPE_CHECKING:
    from .config import Config

WIDTHS = (1, 2, 4)
"""Elements that one vector can have."""
FOLLOWING = ("edge", "vec")
"""First words of names, such as `vec_a`, that a person may take for parameters but that belong to a fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The instance of a config's kernel that serves some operands. A config is searched, stored and named; its fit is
    derived wherever a kernel is rendered, compiled or predicted."""

    config: "Config"
    """The config. For operands that are not aligned it may be another one than the caller's: `Config.unaligned`."""
    edge: Edge = Edge.BOUNDS
    """Treatment of tiles that reach beyond a matrix."""
    vec_a: int = 1
    """Elements of A that one copy or load moves."""
    vec_b: int = 1
    """Elements of B that one copy or load moves."""
    vec_c: int = 1
    """Elements of C that one store moves."""
    dense: bool = False
    """Whether the matrices of a batch must follow each other without gaps; rows may then have any length."""

    @property
    def alignment(self) -> tuple[int, int, int]:
        """Elements, for A, B and C, of which pointer, leading dimension and stored row must be whole multiples."""
        pack_a, pack_b = self.config.packs
        return 1 if pack_a else self.vec_a, 1 if pack_b else self.vec_b, self.vec_c

    @property
    def multiples(self) -> tuple[int, int, int]:
        """Numbers of which m, n and k must be multiples."""
        return self.config.multiples if self.edge is Edge.EXACT and not self.dense else (1, 1, 1)

    @property
    def guarded(self) -> bool:
        """Whether the kernel guards the edges of matrices, beyond which its tiles may reach."""
        return self.edge is Edge.BOUNDS

    @property
    def contract(self) -> str:
        """The operands that the kernel serves, for a person."""
        if self.dense:
            elements = f"{self.vec_c} elements" if self.vec_c > 1 else "one element"
            return f"m, n and k as kM, kN and kK; matrices without gaps, pointers aligned to {elements}"
        m, n, k = self.config.cta_tile
        sizes = "any m, n > 0 and k >= 0" if self.guarded else f"m a multiple of {m}, n of {n}, k of {k}"
        if self.alignment == (1, 1, 1):
            return f"{sizes}; pointers and leading dimensions aligned to one element"
        a, b, c = self.alignment
        return f"{sizes}; pointers, leading dimensions and rows of A, B, C aligned to {a}, {b}, {c} elements"

    @property
    def has_memory(self) -> bool:
        """Whether launches need device memory beside the matrices."""
        config = self.config
        return config.has_workspace or any(config.packs) or self.edge is Edge.PAD or config.terms > 0


@dataclass(frozen=True, slots=True)
class FitRule:
    """A condition on vectors without which a kernel does not compile or does not work."""

    reason: str
    """One sentence a person reads; `{c.tile.block_m}` is replaced by the config's value."""
    holds: Callable[[Problem, Any, Fit], bool]
    """True where the config may use the widths of the fit."""


def nearest_fit(problem: Problem, config: "Config") -> Fit:
    """The fit of a config to a problem, or the one with vectors of one element where no widths keep the rules."""
    return config.fit(problem) or Fit(config, config.edge_of(problem))


def fit_of(problem: Problem, config: "Config", aligned: bool) -> Fit | None:
    """The fit of a config to a problem: exact where tiles divide it, with the widest vectors that keep the rules.
    Operands that are neither `aligned` nor packed get vectors of one element. None where no widths keep the rules.
    """
    for vec_a, vec_b, vec_c in _widths(config.widest_vectors(problem, aligned)):
        fit = Fit(config, Edge.BOUNDS, vec_a, vec_b, vec_c)
        if all(rule.holds(problem, config, fit) for rule in config.fit_rules):  # no rule reads the edge
            return replace(fit, edge=config.edge_of(problem))
    return None


def keeps(problem: Problem, config: "Config", rules: Sequence[FitRule]) -> bool:
    """Whether vectors of some widths keep all of these rules of a config."""
    fit = Fit(config)
    if all(rule.holds(problem, config, fit) for rule in rules):  # mostly so, and then wider vectors need no look
        return True
    fits = (Fit(config, Edge.BOUNDS, *widths) for widths in _widths(config.widest_vectors(problem, aligned=True)))
    return any(all(rule.holds(problem, config, each) for rule in rules) for each in fits)


@cache
def _widths(most: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
    """Every combination of widths that divide these, the widest first."""
    of_a, of_b, of_c = ([width for width in WIDTHS if limit % width == 0] for limit in most)
    return tuple(sorted(itertools.product(of_a, of_b, of_c), key=math.prod, reverse=True))
