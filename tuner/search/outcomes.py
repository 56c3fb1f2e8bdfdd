"""Outcomes of the variants that a search tried, and choosers of the next one. This module imports no Optuna."""

import math
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from ...codegen.errors import ConfigError

V = TypeVar("V", bound=Hashable)


class ExhaustedError(ConfigError):
    """Every variant was tried."""


class Outcomes(Generic[V]):
    """Variants that were tried, and variants that are under way."""

    def __init__(self) -> None:
        self.finished: list[tuple[V, float]] = []
        """Variants that were tried and the values to be minimised, in the order they ended; infinity for a failure."""
        self.running: dict[Hashable, V] = {}
        """Variants under way, by their trials."""
        self.seen: set[V] = set()
        """All variants that were tried or are under way."""

    def begin(self, trial: Hashable, variant: V) -> None:
        """Add a variant that is under way in a trial."""
        self.running[trial] = variant
        self.seen.add(variant)

    def end(self, trial: Hashable, variant: V, value: float | None) -> None:
        """Add the value of a variant whose trial ended, None for a failure."""
        self.running.pop(trial, None)
        self.finished.append((variant, math.inf if value is None else value))
        self.seen.add(variant)

    @property
    def pending(self) -> list[V]:
        """Variants under way."""
        return list(self.running.values())

    def __len__(self) -> int:
        return len(self.finished) + len(self.running)


class Chooser(Protocol[V]):
    """Chooses the variants of one search."""

    def choose(self, outcomes: Outcomes[V]) -> V:
        """A variant that was not tried. Raises ExhaustedError where there is none."""
