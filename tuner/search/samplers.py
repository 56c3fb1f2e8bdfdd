"""The searches by their names, and those that keep what they were told."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...codegen.errors import ConfigError, check
from .ahead import AskAhead
from .gaussian import GaussianSampler
from .sampler import BaseSampler, ExhaustiveSampler, RandomSampler, Sampler, Trials
from .space import Point, Space

if TYPE_CHECKING:
    from .study import Journal

__all__ = ["SAMPLERS", "StoredSampler", "make_sampler"]

SAMPLERS = ("auto", "tpe", "gp", "optuna-gp", "random", "exhaustive")
"""Names that `make_sampler` knows."""

GP_BUDGET = 1000
"""Trials up to which the Gaussian process suggests faster than TPE, and at least as well."""


class StoredSampler:
    """A sampler whose outcomes are kept in a journal; it starts knowing all that the journal holds."""

    def __init__(self, sampler: Sampler, journal: "Journal") -> None:
        self._sampler = sampler
        self._journal = journal
        self._started: dict[Point, datetime] = {}
        for point, time_us in journal.history:
            sampler.tell(point, time_us)

    @property
    def history(self) -> Trials:
        return self._sampler.history

    def seed(self, points: Iterable[Point]) -> None:
        self._sampler.seed(points)

    def ready(self) -> bool:
        return self._sampler.ready()

    def close(self) -> None:
        self._sampler.close()

    def ask(self) -> Point | None:
        point = self._sampler.ask()
        if point is not None:
            self._started[point] = datetime.now()
        return point

    def tell(self, point: Point, time_us: float | None, *, status: str = "", reason: str = "") -> None:
        started = self._started.pop(point, datetime.now())
        self._journal.add(point, time_us, started, status, reason)
        self._sampler.tell(point, time_us)


def make_sampler(
    name: str,
    space: Space,
    seed: int,
    storage: Path | None = None,
    budget: int | None = None,
    study: str = "tilewright",
) -> Sampler:
    """The search called `name`; with `storage`, one that resumes what that file holds under `study`.

    `auto` is the Gaussian process up to a `budget` of 1,000 trials, else TPE. Raises ConfigError for another name, and
    for `optuna-gp` without torch and scipy.
    """
    from .study import GPSampler, Journal, TPESampler  # only here: Optuna is slow to import

    check(name in SAMPLERS, f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}", ConfigError)
    if name == "auto":
        name = "gp" if budget is not None and budget <= GP_BUDGET else "tpe"
    kinds: dict[str, type[BaseSampler]] = {
        "tpe": TPESampler,
        "gp": GaussianSampler,
        "optuna-gp": GPSampler,
        "random": RandomSampler,
        "exhaustive": ExhaustiveSampler,
    }
    sampler = kinds[name](space, seed)
    return sampler if storage is None else StoredSampler(AskAhead(sampler), Journal(storage, space, study))
