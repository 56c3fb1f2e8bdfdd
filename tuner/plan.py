"""What a run goes through: a search over spaces that goes on from its journal, or variants that a user named."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import DeviceError, ShapeError, check
from ..codegen.legality import require
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from .recording.entry import Entry
from .search.ahead import AskAhead, InOrder
from .search.candidates import Candidates, candidates, given, read_spaces
from .search.journal import Journal
from .search.nearest import nearest
from .search.ranked import beyond_advice, first_guesses, stored
from .search.space import Point


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be tried, who chooses, and who meets in the duel."""

    found: Candidates
    search: AskAhead | InOrder
    earlier: Mapping[Point, Entry]
    """What earlier runs told."""
    keep: int
    """So many of the fastest meet in the duel."""
    stored: tuple[Config, ...] = ()
    """These too, where they work: what the store has for the problem."""
    stop_over: float = 1.3
    """A variant that takes so many times the best after its first repetitions is not timed any longer."""
    first: Point | None = None
    """What the library would run now: for as long again the search waits for it, lest tuning makes a product slower."""


def searched(
    problem: Problem,
    info: DeviceInfo,
    shelf: Store,
    versions: tuple[tuple[str, str], ...],
    spaces: Path | None,
    sampler: str,
    seed: int,
    keep: int,
) -> Plan:
    """A search by a sampler. Raises ConfigError, ShapeError and StoreError."""
    from .search.study import make_search  # with Optuna, which is slow to import

    choices = read_spaces(spaces)
    records = tuple(itertools.chain(*shelf.both()))  # of a problem that both layers have, both meet in the duel
    # What the store has for the problem meets its successor, though the model or the policies leave it out by now;
    # but those who name a space want a winner out of it.
    known = stored(problem, info, records)
    found = candidates(problem, info, choices, beyond_advice(problem, info, records) if spaces is None else ())
    journal = Journal.of(shelf.root / "trials", problem, info.key, versions, found.space)
    asked = make_search(sampler, found.space, seed)
    now = shelf.lookup(info, problem, nearest).config
    guesses = [now, *known, *first_guesses(problem, info, found.configs, records)]
    asked.seed(point for point in map(found.point_of, guesses) if point is not None)
    return Plan(found, AskAhead(asked, journal), journal.entries, keep, tuple(known), first=found.point_of(now))


def named(problem: Problem, info: DeviceInfo, shelf: Store, configs: Sequence[Config]) -> Plan:
    """These variants and what the library would run now: each is timed to its end, and all meet in the duel."""
    now = shelf.lookup(info, problem, nearest)
    found = given((*configs, now.config))
    known = (now.config,) if now.origin == "exact" else ()
    return Plan(found, InOrder(found.space), {}, len(found.configs), known, stop_over=math.inf)


def check_tunable(problem: Problem, info: DeviceInfo, configs: Sequence[Config] = ()) -> None:
    """Raise ShapeError for a problem without work, DeviceError for one that is larger than the device's memory, and
    ConfigError for a config that cannot serve it there."""
    check(min(problem.m, problem.n, problem.k) > 0, f"nothing to tune in {problem}: a dimension is 0", ShapeError)
    need = f"{problem} needs {problem.bytes / 1e9:.0f} GB, {info.name} has {info.memory_bytes / 1e9:.0f} GB"
    check(problem.bytes <= info.memory_bytes, need, DeviceError)
    for config in configs:
        require(problem, config, info.arch)
