"""Problems on their way through the workers, and the part of the store that a worker needs for a problem."""

import contextlib
from dataclasses import dataclass, field

from distributed import Future

from ...codegen.config import Config
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, read_plain
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import dumps, key_digest
from ...runtime.store.store import Store
from ..choose.shortlist import distance
from ..recording.entry import Entry
from ..recording.files import MOST_BYTES
from ..recording.journal import Journal, Versions, digest_of
from ..result import Result

_NEAR = 32
"""Number of records that a worker gets, those of the nearest problems."""


@dataclass(slots=True)
class Job:
    """A problem on its way."""

    number: int
    problem: Problem
    future: Future | None = None
    """Dask's future; None before the problem is handed out."""


@dataclass(slots=True)
class Attempt:
    """A worker that has a problem in hand."""

    job: Job
    device: DeviceInfo
    worker: str
    """Address of the worker."""
    versions: Versions
    journal: Journal | None = None
    trials: list[tuple[Config, Entry, dict[str, str]]] = field(default_factory=list)
    """Outcomes that are not in the journal yet."""


class StoreView:
    """The records and journals of a store, for problems on one model of device."""

    def __init__(self, store: Store, device_key: str) -> None:
        self._store, self._key = store, device_key
        self.root = store.root / "trials"
        """Folder of the journals."""
        self._records = {(record.device, record.problem): record for record in store.both()[0]}

    def files(self, problem: Problem, versions: Versions) -> dict[str, dict[str, str]]:
        """Names and texts of files in two folders, with which a worker begins: the user's own records near a problem,
        and the journal of trials of these versions."""
        near = [record for record in self._records.values() if record.problem.dtype is problem.dtype]
        info = KNOWN.get(self._key)
        near.sort(key=lambda record: (record.device != self._key, distance(record.problem, problem, info)))
        records = {f"{key_digest(each.device, each.problem)}.json": dumps(each).decode() for each in near[:_NEAR]}
        path, trials = self.root / f"{digest_of(problem, self._key, versions)}.jsonl", {}
        with contextlib.suppress(OSError, NotPlainError, ValueError):
            trials[path.name] = read_plain(path, MOST_BYTES).decode()
        return {"records": records, "trials": trials}

    def journal(self, problem: Problem, versions: Versions) -> Journal:
        """The journal of a problem's trials. Raises StoreError."""
        return Journal.of(self.root, problem, self._key, versions)

    def keep(self, result: Result, replace: bool) -> bool:
        """Store a winner, unless a record that its worker did not have is faster; returns whether it is stored. Raises
        StoreError."""
        best = result.best
        sent = self._records.get((best.device, best.problem))
        beaten = [each.config for each in (sent, *result.contenders) if each is not None and each.config is not None]
        stored = self._store.keep(best, beaten=beaten, replace=replace)
        if stored:
            self._records[best.device, best.problem] = best
        return stored
