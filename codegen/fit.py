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
"""First words of the names under which a person may look for a parameter where a fit has the value: `vec_a`."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The instance of a config's kernel that serves some operands. A config is searched, stored and named; its fit is
    derived wherever a kernel is rendered, compiled or predicted."""

    config: "Config"
    """The config. Operands that are not aligned may need another one than a caller asked for: `Config.unaligned`."""
    edge: Edge = Edge.BOUNDS
    """Treatment of tiles that reach beyond a matrix."""
    vec_a: int = 1
    """Elements of A that one copy or load moves."""
    vec_b: int = 1
    """Elements of B that one copy or load moves."""
    vec_c: int = 1
    """Elements of C that one store moves."""
    dense: bool = False
    """Whether the matrices of a batch must follow each other without gaps; rows are then of any length."""

    @property
    def alignment(self) -> tuple[int, int, int]:
        """Elements of which the pointer, the leading dimension and the stored row of A, B and C must be multiples."""
        pack_a, pack_b = self.config.packs
        return 1 if pack_a else self.vec_a, 1 if pack_b else self.vec_b, self.vec_c

    @property
    def multiples(self) -> tuple[int, int, int]:
        """Numbers of which m, n and k must be multiples."""
        return self.config.multiples if self.edge is Edge.EXACT and not self.dense else (1, 1, 1)

    @property
    def guarded(self) -> bool:
        """Whether the kernel looks for the edges of matrices, beyond which its tiles may reach."""
        return self.edge is Edge.BOUNDS

    @property
    def contract(self) -> str:
        """The operands that the kernel serves, for a person."""
        if self.dense:
            return f"m, n and k as kM, kN and kK; matrices without gaps, pointers aligned to {self.vec_c} elements"
        m, n, k = self.config.cta_tile
        sizes = "any m, n > 0 and k >= 0" if self.guarded else f"m a multiple of {m}, n of {n}, k of {k}"
        if self.alignment == (1, 1, 1):
            return f"{sizes}; pointers and leading dimensions aligned to one element"
        a, b, c = self.alignment
        return f"{sizes}; pointers, leading dimensions and rows of A, B, C aligned to {a}, {b}, {c} elements"

    @property
    def has_memory(self) -> bool:
        """Whether launches work in memory of their own."""
        config = self.config
        return config.has_workspace or any(config.packs) or self.edge is Edge.PAD or config.terms > 0


@dataclass(frozen=True, slots=True)
class FitRule:
    """Something that vectors must keep for a kernel to compile and to work."""

    reason: str
    """One sentence a person reads; `{c.tile.block_m}` is replaced by the config's value."""
    holds: Callable[[Problem, Any, Fit], bool]
    """True where the widths of the fit, of this config, may be used."""


def nearest_fit(problem: Problem, config: "Config") -> Fit:
    """The fit of a config to a problem, or the one with vectors of one element where no widths keep the rules."""
    return config.fit(problem) or Fit(config, config.edge_of(problem))


def fit_of(problem: Problem, config: "Config", aligned: bool) -> Fit | None:
    """The fit of a config to a problem: exact where tiles divide it, with the widest vectors that keep the rules; with
    vectors of one element for operands that are not `aligned`, but for those that are packed. None where no widths do.
    """
    for vec_a, vec_b, vec_c in _widths(config.widest_vectors(problem, aligned)):
        fit = Fit(config, Edge.BOUNDS, vec_a, vec_b, vec_c)
        if all(rule.holds(problem, config, fit) for rule in config.fit_rules):  # none asks for the edge
            return replace(fit, edge=config.edge_of(problem))
    return None


def keeps(problem: Problem, config: "Config", rules: Sequence[FitRule]) -> bool:
    """Whether vectors of some widths keep all of these rules of a config."""
    fit = Fit(config)
    if all(rule.holds(problem, config, fit) for rule in rules):  # most are kept so: no wider vectors are looked at then
        return True
    fits = (Fit(config, Edge.BOUNDS, *widths) for widths in _widths(config.widest_vectors(problem, aligned=True)))
    return any(all(rule.holds(problem, config, each) for rule in rules) for each in fits)


@cache
def _widths(most: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
    """Every combination of widths that divide these, the widest first."""
    of_a, of_b, of_c = ([width for width in WIDTHS if limit % width == 0] for limit in most)
    return tuple(sorted(itertools.product(of_a, of_b, of_c), key=math.prod, reverse=True))
