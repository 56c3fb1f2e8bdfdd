"""Plan of a run: the search that chooses variants, the outcomes of earlier runs, and the contenders of the duel."""

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
from .settings import GP, LOCAL, Budget

GUESSES = 48
"""Configs that are tried before a sampler of listed variants chooses."""
HOST_GFLOPS = 16.0
"""10^9 operations a second that no kernel reaches on the processor, where one thread runs all of it."""


@dataclass(frozen=True, slots=True)
class DuelTerms:
    """Terms of a duel."""

    rounds: int = 11
    """Least number of rounds."""
    seconds: float = 2.0
    """Least seconds of a duel on a GPU."""
    tries: int = 0
    """Number of trials, each as long as the median one, whose time is reserved for the duel."""
    near: float = 0.02
    """Share of the fastest time: `keep` - 1 further variants at most join where they are slower by at most this share.
    A search times a variant of a few microseconds no more exactly."""
    compared: tuple[Config, ...] = (NAIVE,)
    """Configs that are timed beside the finalists."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Search of a run, the outcomes that it goes on from, and the contenders of its duel."""

    search: Asker
    sampler: str
    """Name of the sampler; empty where a user named the variants."""
    earlier: Mapping[Config, Entry]
    """Outcomes of earlier runs that this one goes on from."""
    keep: int
    """Number of the fastest variants that meet in the duel, whatever their times."""
    stored: tuple[Config, ...]
    """Configs that the store has for the problem, the user's own record first. All take part in the duel: a record is
    replaced only by a config that is faster there."""
    first: tuple[Config, ...]
    """Configs that are tried first and waited for, lest tuning makes a product slower: the stored ones and, unless
    listed variants lack it, the one that the library would run now."""
    own: Config | None = None
    """Config of the user's own record of the problem, whether it can run or not."""
    listed: frozenset[Config] | None = None
    """Variants among which the search chooses; None where neighbours join them as it goes on."""
    pruned: tuple[tuple[str, int], ...] = ()
    """Number of listed variants that were rejected before compiling, by reason."""
    stop_over: float = 1.3
    """Factor on the best time beyond which the timing of a variant stops."""
    duel: DuelTerms = DuelTerms()
    """Terms of the duel."""

    def chooses(self, config: Config) -> bool:
        """Whether the config may win; all others are only compared."""
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
    """The plan of a search or, where `configs` are named, of their comparison with the stored configs and with the one
    that the library would run now, each timed to its end. Raises ConfigError, ShapeError and StoreError."""
    mine, shipped = shelf.both()
    records = (*mine, *shipped)
    own = next((each.config for each in mine if (each.device, each.problem) == (info.key, problem)), None)
    ranked = shortlist(problem, info, records, ENTRIES)
    stored = tuple(choice.config for choice in ranked if choice.source is Source.RECORD)
    first = tuple(dict.fromkeys((shelf.lookup(info, problem, look_up).config, *stored)))
    if configs:
        search = InOrder(dict.fromkeys((*configs, *first)))
        return Plan(search, "", {}, len(configs), stored, first, own, frozenset(configs), stop_over=math.inf)
    from .search.study import local_search, make_search  # with Optuna, which is slow to import

    likely, forecast = [choice.config for choice in ranked], Forecast(problem, info)
    journal = Journal.of(shelf.root / "trials", problem, info.key, versions)
    sampler = sampler or (GP if spaces else LOCAL)
    if sampler == LOCAL:
        text = f"sampler {LOCAL} searches all values of the families' parameters"
        check(spaces is None, f"{text}, and spaces is {str(spaces)!r}: leave spaces out, or take {GP}")
        local = AskAhead(local_search(forecast, varied(likely), seed), journal, journal.entries)
        return Plan(local, sampler, journal.entries, keep, stored, first, own)
    listed = candidates(forecast, read_spaces(spaces), likely, likely if spaces is None else ())
    allowed = frozenset(listed.configs)
    earlier = {config: entry for config, entry in journal.entries.items() if config in allowed}
    sampled = make_search(sampler, listed.space, seed, listed.configs)
    inside = [config for config in likely if config in allowed]
    if info.arch.is_host or not inside:  # the processor's shortlist is short: a config of each family
        inside += forecast.ordered(listed.configs)
    sampled.seed(varied(inside)[:GUESSES])
    first = tuple(config for config in first if config in allowed or config in stored)
    return Plan(AskAhead(sampled, journal, earlier), sampler, earlier, keep, stored, first, own, allowed, listed.pruned)


def check_work(problem: Problem, verb: str, info: DeviceInfo) -> None:
    """Raise ShapeError for a problem without work, which nobody can `verb`, such as tune or time, and DeviceError for
    one that exceeds the device's memory."""
    text = f"nothing to {verb} in {problem}: a dimension is 0; name a shape without"
    check(min(problem.m, problem.n, problem.k) > 0, text, ShapeError)
    need = f"{problem} needs {problem.bytes / 1e9:.0f} GB, {info.name} has {info.memory_bytes / 1e9:.0f} GB"
    remedy = "name a smaller shape" if problem.batch == 1 else "name a smaller batch"
    check(problem.bytes <= info.memory_bytes, f"{need}; {remedy}", DeviceError)


def check_tunable(problem: Problem, info: DeviceInfo, configs: Sequence[Config] = ()) -> None:
    """Raise ShapeError for a problem without work, DeviceError for one that exceeds the device's memory, ConfigError
    for a config that cannot serve it on the device."""
    check_work(problem, "tune", info)
    for config in configs:
        require(problem, config, info)


def check_time(problem: Problem, info: DeviceInfo, budget: Budget, try_limit_s: float) -> None:
    """Raise ShapeError where the device is known to be too slow: a variant is run once to be checked, then timed."""
    gflops = HOST_GFLOPS if info.arch.is_host else info.peak_gflops(problem.dtype)
    least_s = 2 * problem.flops / gflops / 1e9
    if least_s <= min(budget.seconds, try_limit_s):
        return
    slow = f"checking and timing one variant of {problem} takes at least {least_s:.2g} s on {info.name}"
    allowed = f"a variant may take {try_limit_s:g} s: the shape is too large for this device"
    if least_s <= try_limit_s:
        allowed = f"the run may take {budget.seconds:g} s: allow more (--seconds, --effort)"
    raise ShapeError(f"{slow}, and {allowed}")
