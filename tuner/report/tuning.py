"""What is stored of a tuning: the winner's record, the trials, the contenders of the duel."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.config import Config
from ...codegen.errors import ConfigError, ShapeError, TilewrightError, check
from ...codegen.problem import Grade, Problem
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

_LETTERS = 400


@dataclass(frozen=True, slots=True)
class Trial:
    """One variant that was tried."""

    number: int
    """Its place in the search, from 1."""
    variant: str
    """The config as text; where this version does not know it, names and values."""
    config: Config | None
    entry: Entry
    """What came of it."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search of a problem on a device."""

    problem: Problem
    device: str
    """Name or key of the device."""
    info: DeviceInfo | None
    """Its facts, None where this machine does not know it."""
    trials: tuple[Trial, ...]
    """In the order tried."""
    record: Record | None
    """What the store holds for the problem."""
    contenders: tuple[Contender, ...]
    """Of the duel, where the results of that run were given."""
    sources: tuple[str, ...]
    """Where all of it is from, a sentence each."""

    @property
    def gpu(self) -> DeviceInfo | None:
        """The device if it is a GPU with known facts: the processor has no roofline here."""
        return None if self.info is None or self.info.arch.is_host else self.info

    @property
    def fastest(self) -> tuple[Trial, ...]:
        """The trials that worked, fastest first."""
        return tuple(sorted((t for t in self.trials if t.entry.time_us), key=lambda t: t.entry.time_us or math.inf))

    @property
    def winner(self) -> tuple[Config | None, str, float]:
        """Config, text and microseconds: of the record, else of the fastest trial."""
        if self.record:
            return self.record.config, str(self.record.config), self.record.median_us
        first = self.fastest[0]
        return first.config, first.variant, first.entry.time_us or math.inf


def tuning_of(
    store: Store, problem: Problem | None, device_key: str | None, recording: Path | None, results: Path | None
) -> Tuning:
    """What there is of a tuning: the trials of a recording, else of a journal in the store; the winner and contenders
    of the results that `tune --json` wrote, else the record in the store.

    A recording and results tell their problem and device. Raises ConfigError where nothing is known, and for a file
    that cannot be read.
    """
    sources: list[str] = []
    told = read_cache_file(recording) if recording else None
    if told is not None:
        ours = f"--recording must be a file of tune --record, got one of the kernel {told.kernel_name!r}"
        check(told.problem is not None, ours)
        problem = _agreed(problem, told.problem, f"--recording {recording}")
        device_key = _agreed(device_key, DeviceInfo.key_of(told.device_name), f"--recording {recording}")
        sources.append(f"Trials: a recording of {told.device_name}, {recording and recording.name}.")
    record, contenders = _results(results, problem) if results else (None, ())
    if record is not None:
        problem, device_key = record.problem, _agreed(device_key, record.device, f"--results {results}")
        sources.append(f"Winner and contenders: results of tune --json, {results and results.name}.")
    assert problem is not None
    check(min(problem.m, problem.n, problem.k) > 0, f"nothing was tuned of {problem}: a dimension is 0", ShapeError)
    device_key = _only_device(store, problem) if device_key is None else device_key
    if record is None:
        record = store.best(device_key, problem)
        sources += ["Winner: the record in the store."] if record else []
    versions = record.versions if record else ()
    if told is None:
        for path, same in journals_of(store.root / "trials", device_key, problem, versions):
            told = read_journal(path)
            sources.append("Trials: the search's journal in the store" + ("." if same else ", of other versions."))
            break
    info = _info_of(device_key)
    trials = _trials(told) if told else ()
    if unknown := sum(trial.config is None for trial in trials):
        sources.append(f"{unknown} trials are of variants that this version does not have: listed, and not drawn.")
    if record is None and not any(trial.entry.time_us for trial in trials):
        others = ", ".join(sorted({record.device for record in store.records() if record.problem == problem}))
        remedy = f"--device-key may be {others}" if others else f"tilewright tune {asked_of(problem)} tunes it"
        raise ConfigError(f"nothing is stored of {problem} on {device_key}: {remedy}")
    name = info.name if info else told.device_name if told else device_key
    return Tuning(problem, name, info, trials, record, contenders, tuple(sources))


def asked_of(problem: Problem) -> str:
    """The options of a command that ask for a problem."""
    accuracy = "" if problem.accuracy is Grade.IEEE else f" --accuracy {problem.accuracy}"
    return f"--shape {problem.shape} --dtype {problem.dtype.value} --trans {problem.trans}{accuracy}"


def shortened(text: str) -> str:
    """A text from a file, as much of it as a page has room for."""
    return text if len(text) <= _LETTERS else text[:_LETTERS] + "..."


def _agreed(given: Any, found: Any, where: str) -> Any:
    """What a file tells, if the command line says nothing else."""
    check(given in (None, found), f"{where} is of {found}, not of {given}; name {found}, or leave that out")
    return found


def _results(path: Path, problem: Problem | None) -> tuple[Record, tuple[Contender, ...]]:
    data = read_named("results", path, MOST_BYTES)
    try:
        runs = json.loads(data)
        check(isinstance(runs, list) and all(isinstance(run, dict) for run in runs), "it is no list of results")
        read: Callable[..., Any] = decode
        found = [
            (read(Record, run["best"], "best"), read(tuple[Contender, ...], run["contenders"], "contenders"))
            for run in runs
        ]
    except (TilewrightError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"--results {path}: not what tune --json writes: {reason_of(error)}") from error
    wanted = [each for each in found if problem in (None, each[0].problem)]
    shapes = ", ".join(str(record.problem) for record, _ in found)
    asked = "name one of them by --shape, --dtype, --trans and --accuracy"
    check(len(wanted) == 1, f"--results {path} is of {shapes}: {asked}")
    return wanted[0]


def _only_device(store: Store, problem: Problem) -> str:
    """The device of this machine if the store knows the problem on it, else the only one on which it does."""
    keys = sorted({record.device for record in store.records() if record.problem == problem})
    here = [info.key for info in available()[0] if info.key in keys]
    if here or len(keys) == 1:
        return (here or keys)[0]
    check(not keys, f"{problem} was tuned on {', '.join(keys)}: name one of them by --device-key")
    return available()[0][0].key


def _info_of(key: str) -> DeviceInfo | None:
    return next((info for info in (*available()[0], *KNOWN.values()) if info.key == key), None)


def _trials(recording: Recording) -> tuple[Trial, ...]:
    found = []
    for number, (point, entry) in enumerate(recording.entries.items(), 1):
        values = recording.values(point)
        try:
            config = config_of(values)
            text = str(config)
        except TilewrightError:  # of an older version
            config = None
            told = (f"{name}={value}" for name, value in values.items() if value != ABSENT and name != FAMILY)
            text = shortened(f"{values.get(FAMILY, '?')}:{','.join(told)}")
        found.append(Trial(number, text, config, entry))
    return tuple(found)
