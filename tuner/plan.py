"""Plan of a run: who chooses what is tried, what earlier runs tried, and who meets in the duel."""

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
from .choose.choice import Source
from .choose.forecast import Forecast
from .choose.shortlist import ENTRIES, look_up, shortlist, varied
from .measure.decide import NAIVE
from .recording.entry import Entry
from .recording.journal import Journal
from .search.ahead import AskAhead, Asker, InOrder
from .search.candidates import candidates, read_spaces
from .settings import GP, LOCAL

GUESSES = 48
"""Configs that are tried before a sampler of listed variants chooses."""


@dataclass(frozen=True, slots=True)
class DuelTerms:
    """What a duel is like."""

    rounds: int = 11
    """Rounds at least."""
    seconds: float = 2.0
    """Seconds for which rounds go on, on a GPU, where they take less."""
    tries: int = 0
    """Variants whose median time is kept for the duel, beside what the caller keeps."""
    near: float = 0.02
    """Share of the fastest's time: variants that are no further behind it join, at most as many as are kept less one. A
    search times a variant that takes a few microseconds no better than that."""
    compared: tuple[Config, ...] = (NAIVE,)
    """Configs that are timed beside those that may win."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried, who chooses it, and who meets in the duel."""

    search: Asker
    sampler: str
    """Name of the sampler; empty where a user named the variants."""
    earlier: Mapping[Config, Entry]
    """Outcomes of earlier runs that this one goes on from."""
    keep: int
    """Number of the fastest that meet in the duel, whatever their times."""
    stored: tuple[Config, ...]
    """Configs that the store has for the problem, the user's own record first. They meet the fastest in the duel,
    whatever was searched: a record gives way only to what is faster there."""
    first: tuple[Config, ...]
    """Configs that are tried before anything else and waited for, lest tuning makes a product slower: those that are
    stored and, unless listed variants lack it, the one that the library would run now."""
    own: Config | None = None
    """Config of the user's own record of the problem, whether it can run or not."""
    listed: frozenset[Config] | None = None
    """Variants of which the search consists; None where it grows."""
    pruned: tuple[tuple[str, int], ...] = ()
    """Configs that were rejected before compiling, by reason, where variants were listed."""
    stop_over: float = 1.3
    """Factor on the best time beyond which a variant is not timed to its end."""
    duel: DuelTerms = DuelTerms()
    """What the duel is like."""

    def chooses(self, config: Config) -> bool:
        """Whether the config may win; others are compared with it."""
        return self.listed is None or config in self.listed


def planned(
    problem: Problem,
    info: DeviceInfo,
    shelf: Store,
    versions: tuple[tuple[str, str], ...],
    configs: Sequence[Config],
    spaces: Path | None,
    sampler: str | None,
    seed: int,
    keep: int,
) -> Plan:
    """The plan of a search, or where `configs` are named of a comparison: these, what is stored and what the library
    would run now, each timed to its end. Raises ConfigError, ShapeError and StoreError."""
    mine, shipped = shelf.both()
    records = (*mine, *shipped)
    own = next((each.config for each in mine if (each.device, each.problem) == (info.key, problem)), None)
    ranked = shortlist(problem, info, records, ENTRIES)
    stored = tuple(choice.config for choice in ranked if choice.source is Source.RECORD)
    first = tuple(dict.fromkeys((shelf.lookup(info, problem, look_up).config, *stored)))
    if configs:
        asked = InOrder(dict.fromkeys((*configs, *first)))
        return Plan(asked, "", {}, len(configs), stored, first, own, frozenset(configs), stop_over=math.inf)
    from .search.study import local_search, make_search  # with Optuna, which is slow to import

    likely, forecast = [choice.config for choice in ranked], Forecast(problem, info)
    journal = Journal.of(shelf.root / "trials", problem, info.key, versions)
    sampler = sampler or (GP if spaces else LOCAL)
    if sampler == LOCAL:
        text = f"sampler {LOCAL} searches all values of the families' parameters"
        check(spaces is None, f"{text}, and spaces is {str(spaces)!r}: leave spaces out, or take {GP}")
        search = local_search(forecast, varied(likely), seed)
        return Plan(AskAhead(search, journal, journal.entries), sampler, journal.entries, keep, stored, first, own)
    found = candidates(forecast, read_spaces(spaces), likely, likely if spaces is None else ())
    every = frozenset(found.configs)
    earlier = {config: entry for config, entry in journal.entries.items() if config in every}
    search = make_search(sampler, found.space, seed, found.configs)
    inside = [config for config in likely if config in every]
    if info.arch.is_host or not inside:  # the processor's shortlist is short: a config of each family
        inside += forecast.ordered(found.configs)
    search.seed(varied(inside)[:GUESSES])
    first = tuple(config for config in first if config in every or config in stored)
    return Plan(AskAhead(search, journal, earlier), sampler, earlier, keep, stored, first, own, every, found.pruned)


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
