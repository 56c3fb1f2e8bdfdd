"""What a run goes through: a search over spaces that goes on from its journal, or variants that a user named."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import DeviceError, ShapeError, check
from ..codegen.legality import require
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from .choose.shortlist import Choice, Source, by_expected, exact, look_up, shortlist, varied
from .recording.entry import Entry
from .search.ahead import AskAhead, InOrder
from .search.candidates import Candidates, candidates, given, read_spaces
from .search.journal import Journal
from .search.space import Point

_SHORTLIST = 240
"""Entries of the shortlist from which a search is listed."""
GUESSES = 48
"""Configs that are tried before a sampler chooses."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be tried, who chooses, and who meets in the duel."""

    found: Candidates
    search: AskAhead | InOrder
    earlier: Mapping[Point, Entry]
    """Outcomes of earlier runs."""
    keep: int
    """Number of the fastest that meet in the duel."""
    stored: tuple[Config, ...] = ()
    """Configs that the store has for the problem, the user's own record first. They meet the fastest in the duel,
    whatever was searched: a record gives way only to what is faster there."""
    first: tuple[Config, ...] = ()
    """Configs that are tried before anything else and waited for, lest tuning makes a product slower: those that are
    stored and, unless a space that the user named lacks it, the one that the library would run now."""
    own: Config | None = None
    """The config of the user's own record of the problem, whether it can run or not."""
    named: tuple[Config, ...] = ()
    """The variants that a user named; empty for a search."""
    stop_over: float = 1.3
    """Factor on the best time beyond which a variant is not timed to its end."""

    def chooses(self, config: Config) -> bool:
        """Whether the winner is chosen from configs of which this is one; others are compared with it."""
        return config in self.named if self.named else self.found.point_of(config) is not None


def listed(
    problem: Problem, info: DeviceInfo, records: Sequence[Record], spaces: Path | None = None
) -> tuple[tuple[Choice, ...], Candidates]:
    """The shortlist of a problem, and the configs that a search may try: of the package's spaces with all of the
    shortlist, or of those in a folder alone, as a user who names spaces has nothing else searched. Raises ConfigError
    for a folder that cannot be read, ShapeError where no config serves the problem."""
    choices = read_spaces(spaces)
    ranked = shortlist(problem, info, records, _SHORTLIST)
    likely = [choice.config for choice in ranked]
    return ranked, candidates(problem, info, choices, likely, likely if spaces is None else ())


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

    own, records = _records(problem, info, shelf)
    ranked, found = listed(problem, info, records, spaces)
    serving = tuple(choice.config for choice in ranked if choice.source is Source.RECORD)
    journal = Journal.of(shelf.root / "trials", problem, info.key, versions, found.space)
    asked = make_search(sampler, found.space, seed)
    inside = [choice.config for choice in ranked if found.point_of(choice.config) is not None]
    if info.arch.is_host or not inside:  # the processor's shortlist is short: a config of each family
        inside += by_expected(problem, info, found.configs)
    asked.seed(point for point in map(found.point_of, varied(inside)[:GUESSES]) if point is not None)
    now = shelf.lookup(info, problem, look_up).config
    first = dict.fromkeys((*([] if found.point_of(now) is None else [now]), *serving))
    return Plan(found, AskAhead(asked, journal), journal.entries, keep, serving, tuple(first), own)


def named(problem: Problem, info: DeviceInfo, shelf: Store, configs: Sequence[Config]) -> Plan:
    """These variants, what is stored and what the library would run now: each is timed to its end, and all meet in the
    duel."""
    own, records = _records(problem, info, shelf)
    serving = tuple(choice.config for choice in exact(problem, info, records))
    first = tuple(dict.fromkeys((shelf.lookup(info, problem, look_up).config, *serving)))
    found, chosen = given((*configs, *first)), tuple(configs)
    return Plan(found, InOrder(found.space), {}, len(chosen), serving, first, own, chosen, stop_over=math.inf)


def _records(problem: Problem, info: DeviceInfo, shelf: Store) -> tuple[Config | None, tuple[Record, ...]]:
    """The config of the user's own record of the problem, and all records of both layers, the user's own first."""
    mine, shipped = shelf.both()
    own = next((each.config for each in mine if (each.device, each.problem) == (info.key, problem)), None)
    return own, (*mine, *shipped)


def check_tunable(problem: Problem, info: DeviceInfo, configs: Sequence[Config] = ()) -> None:
    """Raise ShapeError for a problem without work, DeviceError for one that is larger than the device's memory, and
    ConfigError for a config that cannot serve it there."""
    check(
        min(problem.m, problem.n, problem.k) > 0,
        f"nothing to tune in {problem}: a dimension is 0; name a shape without",
        ShapeError,
    )
    need = f"{problem} needs {problem.bytes / 1e9:.0f} GB, {info.name} has {info.memory_bytes / 1e9:.0f} GB"
    check(problem.bytes <= info.memory_bytes, f"{need}; name a smaller shape", DeviceError)
    for config in configs:
        require(problem, config, info)
