"""Problems on their way through the workers, and what the store knows of each."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from ...codegen.config import Config
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, read_plain
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import dumps, key_digest
from ...runtime.store.record import Record
from ...runtime.store.store import Store
from ..choose.shortlist import distance
from ..recording.entry import Entry
from ..recording.journal import MOST_BYTES, Journal, digest_of, study_of
from ..recording.journals import studies
from ..result import Result

_NEAR = 32


@dataclass(slots=True)
class Job:
    """A problem on its way."""

    number: int
    problem: Problem
    future: Future | None = None
    """Dask's, once it was handed out."""
    begun: bool = False
    """Whether a worker had it in hand."""
    over: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """Dask is done with a task."""

    number: int
    key: str


@dataclass(slots=True)
class Attempt:
    """A worker that has it in hand."""

    job: Job
    device: DeviceInfo
    worker: str
    """Its address."""
    versions: tuple[tuple[str, str], ...]
    journal: Journal | None = None
    trials: list[tuple[Config, Entry, dict[str, str]]] = field(default_factory=list)
    """Told and not in the journal yet."""


class Known:
    """What the store knows of problems on a model of device, by which a worker begins."""

    def __init__(self, store: Store, device_key: str) -> None:
        self._store, self._key = store, device_key
        self._folder = store.root / "trials"
        self._records = {(each.device, each.problem): each for each in store.both()[0]}
        self._texts: dict[tuple[str, Problem], tuple[str, str]] = {}
        self._journals = studies(self._folder)

    def of(self, problem: Problem, versions: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """Files, names and texts: the user's own records near a problem, and journals of trials of these versions."""
        near = [each for each in self._records.values() if each.problem.dtype is problem.dtype]
        near.sort(key=lambda each: (each.device != self._key, distance(each.problem, problem)))
        trials = {}
        for path in self._journals.get(f"{study_of(problem)} {self._key}", ()):
            if path.stem == digest_of(problem, self._key, versions):
                with contextlib.suppress(OSError, NotPlainError, ValueError):
                    trials[path.name] = read_plain(path, MOST_BYTES).decode()
        return {"records": dict(self._text(each) for each in near[:_NEAR]), "trials": trials}

    def _text(self, record: Record) -> tuple[str, str]:
        """Name and text of its file."""
        key = record.device, record.problem
        if key not in self._texts:
            self._texts[key] = f"{key_digest(*key)}.json", dumps(record).decode()
        return self._texts[key]

    def journal(self, problem: Problem, versions: tuple[tuple[str, str], ...]) -> Journal:
        """Where its trials go. Raises StoreError."""
        journal = Journal.of(self._folder, problem, self._key, versions)
        paths = self._journals.setdefault(f"{study_of(problem)} {self._key}", [])
        paths += [] if journal.path in paths else [journal.path]
        return journal

    def keep(self, result: Result, replace: bool) -> bool:
        """Keep a winner in the store too, unless a record that the worker did not have is faster; whether it is there.
        Raises StoreError."""
        best = result.best
        key = best.device, best.problem
        sent = self._records.get(key)
        beaten = [each.config for each in (sent, *result.contenders) if each is not None and each.config is not None]
        kept = self._store.keep(best, beaten=beaten, replace=replace)
        if kept:
            self._records[key] = best
            self._texts.pop(key, None)
        return kept
