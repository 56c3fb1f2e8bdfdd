"""The client's side of tuning many problems on many workers. It alone writes the store.

A problem is one Dask task, handed out when a device is free, the longest first. The worker asks what was tried of the
problem, goes on from there, and sends each outcome as it comes; so whoever is killed, what was told is in a journal.
"""

import contextlib
import errno
import itertools
import json
import queue
import secrets
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker

from ...codegen.errors import ConfigError, DeviceError, StoreError, check
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.files import OutputWarning
from ...runtime.store.codec import dumps
from ...runtime.store.store import Store
from ...runtime.store.versions import generator_version
from ..ending import noting_signals
from ..recording.entry import Entry
from ..recording.journals import studies
from ..result import Result
from ..search.journal import Journal, digest_of, study_of
from ..search.nearest import distance
from ..search.space import Box, Point
from .link import RETURN_S
from .messages import Asks, Begins, Ends, Fails, Loses, Task, Tells, Told, read
from .models import resources
from .worker import answer, end_searches, seat_of, work

_LOOK_S = 2.0
_NEAR, _ANSWERS = 32, 8


@dataclass(slots=True)
class _Job:
    number: int
    problem: Problem
    future: Future | None = None
    over: bool = False


@dataclass(slots=True)
class _Attempt:
    job: _Job
    device: DeviceInfo
    worker: str
    versions: tuple[tuple[str, str], ...]
    journal: Journal | None = None
    trials: list[tuple[Point, Entry, dict[str, str]]] = field(default_factory=list)
    """Told and not in the journal yet."""


class Tuning:
    """Problems on their way through the workers of a client."""

    def __init__(
        self,
        client: Client,
        problems: Sequence[Problem],
        options: dict[str, Any],
        store: Store,
        device_key: str,
        told: Told,
        spaces: Path | None = None,
    ) -> None:
        self.results: dict[Problem, Result] = {}
        """Of those that are done."""
        self.interrupted: list[int] = []
        """Signals that asked for the end."""
        self._client, self._options, self._store, self._told = client, options, store, told
        self._seat, self._key = seat_of(device_key), device_key
        self._jobs = [_Job(*each) for each in enumerate(problems)]
        self._waiting = deque(sorted(range(len(problems)), key=lambda n: -problems[n].flops))
        self._under_way: set[int] = set()
        self._attempts: dict[str, _Attempt] = {}
        self._fresh: list[_Attempt] = []
        """Those with trials that are not in their journals yet."""
        self._heard: queue.Queue[tuple[str, object]] = queue.Queue()
        self._seats, self._looked_s, self._seen_s = 0, -1e9, time.monotonic()
        self._lost = False
        """Whether Dask gave up a task, as it does when it loses its scheduler."""
        self._refused: set[str] = set()
        self._answering = ThreadPoolExecutor(_ANSWERS, "answers")
        files = sorted(spaces.glob("*.toml")) if spaces else []
        self._spaces = tuple((file.name, file.read_text()) for file in files)
        self._records = {(each.device, each.problem): each for each in store.layers()[0]}
        self._journals = studies(store.root / "trials")
        self._subscribe()

    def _subscribe(self) -> None:
        # A name that nobody guesses; events of an earlier connection are not ours any longer.
        self._topic = f"tilewright-{secrets.token_hex(8)}"
        heard, topic = self._heard, self._topic
        self._client.subscribe_topic(topic, lambda event: heard.put((topic, event[1])))

    def run(self, back: Callable[[], Client | None] | None = None) -> None:
        """Until every problem is done or has failed. `back` gives a new client where the scheduler went away; without
        it the workers are this machine's own. Raises DeviceError where scheduler or workers stay away."""
        with noting_signals(self.interrupted), contextlib.ExitStack() as ending:
            ending.callback(self._answering.shutdown, wait=False, cancel_futures=True)
            stopped = False
            while self._waiting or self._under_way:
                if self.interrupted and not stopped:
                    stopped = True
                    self._stop()
                try:
                    if self._lost or self._client.status != "running":
                        self._reconnect(back)
                    self._look(back is None)
                    self._hand_out()
                    self._hear(0.1)
                except OSError as error:
                    if error.errno not in (errno.EPIPE, errno.EIO):  # whoever watched is gone
                        raise
                    self._told = Told()
                    self.interrupted.append(signal.SIGHUP)

    @property
    def client(self) -> Client:
        """The client in use by now."""
        return self._client

    def _look(self, own: bool) -> None:
        """How many devices there are, every few seconds."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        with contextlib.suppress(OSError, RuntimeError):  # the scheduler is gone: seen by the client's status
            seats = sum(each.get(self._seat, 0) > 0 for each in resources(self._client).values())
            if seats != self._seats:
                self._told.workers(seats)
            self._seats = seats
        if self._seats:
            self._seen_s = now
        elif own and now - self._seen_s > RETURN_S:
            raise DeviceError(f"no worker is left, and none came back in {RETURN_S:.0f} s; what was measured is kept")

    def _hand_out(self) -> None:
        while self._waiting and len(self._under_way) < self._seats:
            number = self._waiting.popleft()
            self._under_way.add(number)
            job = self._jobs[number]
            task = Task(self._topic, number, job.problem, tuple(self._options.items()), self._spaces)
            key = f"{self._topic}-{number}-{secrets.token_hex(4)}"
            job.future = self._client.submit(work, task.text(), key=key, pure=False, resources={self._seat: 1})
            job.future.add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: Future) -> None:
        self._heard.put((self._topic, (number, future.key)))

    def _hear(self, seconds: float) -> None:
        """All that was said by now; what of it is trials is in the journals then, each synced once."""
        try:
            said = self._heard.get(timeout=seconds)
            for topic, message in itertools.chain([said], _drained(self._heard)):
                if topic == self._topic and isinstance(message, tuple):
                    self._over(*message)
                elif topic == self._topic:
                    self._understand(message)
        except queue.Empty:
            return
        finally:
            self._write()

    def _understand(self, text: object) -> None:
        try:
            message = read(text)
            if isinstance(message, Asks):
                self._asked(message)
                return
            attempt = self._attempts.get(message.attempt)
            check(attempt is not None, "of an attempt that nobody began", StoreError)
            assert attempt is not None
            if isinstance(message, Tells):
                self._tried(attempt, message)
            elif isinstance(message, Begins):
                self._begun(attempt, message)
            elif isinstance(message, Loses):
                where = attempt.device.uuid or attempt.device.name
                self._told.note(f"{attempt.worker}: its device {where} is lost, and gets no more: {message.reason}")
            elif not attempt.job.over:
                self._write()
                self._finished(attempt, message)
        except (StoreError, ConfigError) as error:
            if len(self._refused) < 10 and str(error) not in self._refused:  # a worker that babbles is told a few times
                self._refused.add(str(error))
                self._told.note(f"a message of a worker is refused: {error}")

    def _asked(self, message: Asks) -> None:
        check(0 <= message.number < len(self._jobs), "of a problem that nobody asked for", StoreError)
        job = self._jobs[message.number]
        check(job.future is not None and not job.over, "of a problem that nobody is at", StoreError)
        known = self._attempts.get(message.attempt)
        check(known is None or known.job is job, "of an attempt at another problem", StoreError)
        right = message.device.key == self._key and dict(message.versions).get("generator") == generator_version()
        check(right, f"from a {message.device.key!r:.80} or a version that was not asked for", StoreError)
        self._write()
        if known is None:
            self._attempts[message.attempt] = _Attempt(job, message.device, message.worker, message.versions)
        told = json.dumps({"records": self._near(job.problem), "trials": self._tried_before(job.problem, message)})
        # Not waited for: where it died meanwhile, Dask gives the problem to another.
        self._answering.submit(self._client.run, answer, message.attempt, told, workers=[message.worker])

    def _near(self, problem: Problem) -> list[str]:
        """The user's own records that help with a problem."""
        near = [each for each in self._records.values() if each.problem.dtype is problem.dtype]
        near.sort(key=lambda each: (each.device != self._key, distance(each.problem, problem)))
        return [dumps(each).decode() for each in near[:_NEAR]]

    def _tried_before(self, problem: Problem, message: Asks) -> dict[str, str]:
        """Journals of the problem on such a device, of these versions."""
        found = {}
        for path, dimensions in self._journals.get(study_of(problem, self._key), {}).items():
            if path.stem == digest_of(problem, self._key, message.versions, dimensions):
                with contextlib.suppress(OSError, ValueError):
                    found[path.name] = path.read_text()
        return found

    def _begun(self, attempt: _Attempt, message: Begins) -> None:
        problem, box = attempt.job.problem, Box(message.dimensions)
        if not self._options.get("configs"):  # variants that a user names are in no journal
            folder = self._store.root / "trials"
            with self._spared():
                attempt.journal = Journal.of(folder, problem, self._key, attempt.versions, box)
            dimensions = [[d.name, list(d.choices)] for d in message.dimensions]
            path = folder / f"{digest_of(problem, self._key, attempt.versions, dimensions)}.jsonl"
            self._journals.setdefault(study_of(problem, self._key), {})[path] = dimensions
        self._told.begun(problem, attempt.worker, message.trials, message.resumed)

    def _tried(self, attempt: _Attempt, message: Tells) -> None:
        if attempt.journal is not None:
            check(message.point in attempt.journal.space, "of a point outside its space", StoreError)
            facts = {"started": message.started} | ({"gpu": attempt.device.uuid} if attempt.device.uuid else {})
            self._fresh += [] if attempt.trials else [attempt]
            attempt.trials.append((message.point, message.entry, facts))
        self._told.tried(attempt.job.problem, self._key, message)

    def _write(self) -> None:
        while self._fresh:
            attempt = self._fresh.pop()
            assert attempt.journal is not None
            with self._spared():
                attempt.journal.extend(attempt.trials)
            attempt.trials = []

    @contextlib.contextmanager
    def _spared(self) -> Iterator[None]:
        """A journal that cannot be written costs an OutputWarning: the rest goes on."""
        try:
            yield
        except StoreError as error:
            warnings.warn(str(error), OutputWarning, stacklevel=3)

    def _finished(self, attempt: _Attempt, message: Ends | Fails) -> None:
        job = attempt.job
        if isinstance(message, Fails):
            self._failed(job, message.reason)
            return
        result = message.result
        check(
            (result.problem, result.device.key) == (job.problem, self._key), "a result of another problem", StoreError
        )
        good = serves(result.best.config, job.problem, attempt.device.arch)
        check(good, "a winner that cannot serve its problem", StoreError)
        try:
            if result.kept:
                self._store.keep(result.best, replace=True)
                self._records[self._key, job.problem] = result.best
        except StoreError as error:
            self._failed(job, f"{error}; the winner, which is not kept: {result.best.config}")
            return
        self._close(job)
        self.results[job.problem] = result
        self._told.ended(result)

    def _failed(self, job: _Job, reason: str) -> None:
        self._close(job)
        self._told.failed(job.problem, reason)

    def _close(self, job: _Job) -> None:
        job.over = True
        self._under_way.discard(job.number)

    def _over(self, number: int, key: str) -> None:
        """Dask is done with a task: all that it said was heard before."""
        job = self._jobs[number]
        if job.over or job.future is None or job.future.key != key:
            return
        if job.future.status in ("cancelled", "lost"):
            self._lost = True
        elif job.future.status == "error":
            error = job.future.exception()
            reason = f"unexpected {type(error).__name__}: {error}"
            self._failed(job, "each worker that had it died" if isinstance(error, KilledWorker) else reason)
        else:
            self._failed(job, "its worker ended without a result that could be read")

    def _stop(self) -> None:
        """The searches that run end with their duels; no other begins."""
        self._waiting.clear()
        with contextlib.suppress(OSError, ValueError):
            self._client.run(end_searches, self._topic, on_error="ignore")

    def _reconnect(self, back: Callable[[], Client | None] | None) -> None:
        """Begin again with another connection: what was told is in the journals."""
        self._told.note(f"the scheduler is gone: waiting {RETURN_S:.0f} s for it; what was measured is kept")
        with contextlib.suppress(OSError, RuntimeError):
            self._client.close(timeout=1)
        self._hear(0.01)  # the last words of the old one
        client = back() if back else None
        if client is None:
            raise DeviceError(f"the scheduler did not come back in {RETURN_S:.0f} s; what was measured is kept")
        self._told.note("the scheduler is back: going on")
        self._client, self._attempts, self._seats, self._looked_s, self._lost = client, {}, 0, -1e9, False
        self._subscribe()
        for number in sorted(self._under_way, key=lambda n: self._jobs[n].problem.flops):
            self._jobs[number].future = None
            self._waiting.appendleft(number)
        self._under_way.clear()
        if self.interrupted:
            self._waiting.clear()


def _drained(source: "queue.Queue[tuple[str, object]]") -> Iterator[tuple[str, object]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield source.get_nowait()
