"""Data of a tuning for its page: the winner's record, the trials and the contenders of the duel."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.config import Config
from ...codegen.errors import ConfigError, ShapeError, TilewrightError, check
from ...codegen.problem import Problem
from ...codegen.reading import read_named, reason_of
from ...runtime.device.detect import available
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import decode
from ...runtime.store.record import Record
from ...runtime.store.store import Store
from ..measure.decide import Contender
from ..recording.entry import Entry
from ..recording.files import MOST_BYTES, Recording, read_cache_file
from ..recording.journal import journals_of, read_journal
from ..recording.points import ABSENT, FAMILY, config_of
from ..result import options_of

_MOST_LETTERS = 400
"""Most characters of a text from a file on a page."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One variant that was tried."""

    number: int
    """Place in the search, from 1."""
    variant: str
    """Text of the config; names and values where this version does not have it."""
    config: Config | None
    entry: Entry
    """Outcome of the trial."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search of a problem on a device."""

    problem: Problem
    device: str
    """Name or key of the device."""
    info: DeviceInfo | None
    """Facts of the device, None where this machine does not have them."""
    trials: tuple[Trial, ...]
    """Trials in the order in which they were made."""
    record: Record | None
    """Record of the problem, from the results or the store."""
    contenders: tuple[Contender, ...]
    """Contenders of the duel; empty without the results of the run."""
    sources: tuple[str, ...]
    """Sentences on the sources of the data."""

    @property
    def gpu(self) -> DeviceInfo | None:
        """The device if it is a GPU with facts: the processor has no roofline here."""
        return None if self.info is None or self.info.arch.is_host else self.info

    @property
    def fastest(self) -> tuple[Trial, ...]:
        """The trials that worked, fastest first."""
        return tuple(sorted((t for t in self.trials if t.entry.time_us), key=lambda t: t.entry.time_us or math.inf))

    @property
    def winner(self) -> tuple[Config | None, str, float]:
        """Config, text and microseconds of the record, else of the fastest trial."""
        if self.record:
            return self.record.config, str(self.record.config), self.record.median_us
        first = self.fastest[0]
        return first.config, first.variant, first.entry.time_us or math.inf


def tuning_of(
    store: Store, problem: Problem | None, device_key: str | None, recording: Path | None, results: Path | None
) -> Tuning:
    """Data of a tuning: the trials of a recording, else of a journal in the store; the winner and the contenders
    of the results that `tune --json` wrote, else the record in the store.

    A recording and results name their problem and device. Raises ConfigError where there are no data, and for a file
    that cannot be read.
    """
    sources: list[str] = []
    recorded = read_cache_file(recording) if recording else None
    if recorded is not None:
        foreign = f"--recording must be a file of tune --record, got one of the kernel {recorded.kernel_name!r}"
        check(recorded.problem is not None, foreign)
        problem = _agreed(problem, recorded.problem, f"--recording {recording}")
        device_key = _agreed(device_key, DeviceInfo.key_of(recorded.device_name), f"--recording {recording}")
        origin = f"a recording of {recorded.device_name}, {recording and recording.name}"
    record, contenders, date = _results(results, problem) if results else (None, (), "")
    if record is not None:
        problem, device_key = record.problem, _agreed(device_key, record.device, f"--results {results}")
        sources.append(f"Winner and contenders: results of tune --json, {results and results.name}")
        sources[-1] += f"{stamp((('date', date),))}."
    assert problem is not None
    check(min(problem.m, problem.n, problem.k) > 0, f"nothing was tuned of {problem}: a dimension is 0", ShapeError)
    device_key = _only_device(store, problem) if device_key is None else device_key
    if record is None:
        record = store.best(device_key, problem)
        sources += ["Winner: the record in the store, which has no date of its own."] if record else []
    versions = record.versions if record else ()
    if recorded is None:
        for path, same in journals_of(store.root / "trials", device_key, problem, versions):
            recorded = read_journal(path)
            origin = "the search's journal in the store" + ("" if same else ", of other versions")
            break
    if recorded is not None:  # the page lists the record's versions by themselves
        sources.append(f"Trials: {origin}{stamp([fact for fact in recorded.environment if fact not in versions])}.")
    info = next((info for info in (*available()[0], *KNOWN.values()) if info.key == device_key), None)
    trials = _trials(recorded) if recorded else ()
    if unknown := sum(trial.config is None for trial in trials):
        sources.append(f"{unknown} trials are of variants that this version does not have: listed, and not drawn.")
    if record is None and not any(trial.entry.time_us for trial in trials):
        others = ", ".join(sorted({record.device for record in store.records() if record.problem == problem}))
        remedy = (
            f"--device-key may be {others}" if others else f"tilewright tune {' '.join(options_of(problem))} tunes it"
        )
        raise ConfigError(f"nothing is stored of {problem} on {device_key}: {remedy}")
    name = info.name if info else recorded.device_name if recorded else device_key
    return Tuning(problem, name, info, trials, record, contenders, tuple(sources))


def shortened(text: str, most: int = _MOST_LETTERS) -> str:
    """The beginning of a text from a file, for a page."""
    return text if len(text) <= most else text[:most] + "..."


def stamp(environment: Sequence[tuple[str, str]]) -> str:
    """Date and versions as the end of a sentence, to the minute; empty without any."""
    facts = dict(environment)
    date = facts.pop("date", "")
    words = [f"{date[:10]} {date[11:16]}{' UTC' * date.endswith('+00:00')}".strip()] if date else []
    words += [text if text.lower().startswith(name) else f"{name} {text}" for name, text in facts.items()]
    return "".join(f"; {shortened(each)}" for each in words)


def _agreed(option: Any, value: Any, where: str) -> Any:
    """The value that a file has. Raises ConfigError where an option of the command line differs."""
    check(option in (None, value), f"{where} is of {value}, not of {option}; name {value}, or leave that out")
    return value


def _results(path: Path, problem: Problem | None) -> tuple[Record, tuple[Contender, ...], str]:
    """Record, contenders and date of the problem's run in a file of results."""
    data = read_named("results", path, MOST_BYTES)
    try:
        runs = json.loads(data)
        check(isinstance(runs, list) and all(isinstance(run, dict) for run in runs), "it is no list of results")
        read: Callable[..., Any] = decode
        tunings = [
            (
                read(Record, run["best"], "best"),
                read(tuple[Contender, ...], run["contenders"], "contenders"),
                str(run.get("date", "")),
            )
            for run in runs
        ]
    except (TilewrightError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"--results {path}: not what tune --json writes: {reason_of(error)}") from error
    chosen = [each for each in tunings if problem in (None, each[0].problem)]
    shapes = ", ".join(str(record.problem) for record, *_ in tunings)
    remedy = "name one of them by --shape, --dtype, --trans and --accuracy"
    check(len(chosen) == 1, f"--results {path} is of {shapes}: {remedy}")
    return chosen[0]


def _only_device(store: Store, problem: Problem) -> str:
    """Key of this machine's device if the store has a record of the problem on it, else of the only device with one."""
    keys = sorted({record.device for record in store.records() if record.problem == problem})
    here = [info.key for info in available()[0] if info.key in keys]
    if here or len(keys) == 1:
        return (here or keys)[0]
    check(not keys, f"{problem} was tuned on {', '.join(keys)}: name one of them by --device-key")
    return available()[0][0].key


def _trials(recording: Recording) -> tuple[Trial, ...]:
    trials = []
    for number, (point, entry) in enumerate(recording.entries.items(), 1):
        values = recording.values(point)
        try:
            config = config_of(values)
            text = str(config)
        except TilewrightError:  # the variant is of another version
            config = None
            settings = (f"{name}={value}" for name, value in values.items() if value != ABSENT and name != FAMILY)
            text = shortened(f"{values.get(FAMILY, '?')}:{','.join(settings)}")
        trials.append(Trial(number, text, config, entry))
    return tuple(trials)
