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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker

from ...codegen.errors import ConfigError, StoreError, TuningError, check
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...codegen.reading import read_named
from ...runtime.files import UNSEEN, OutputWarning
from ...runtime.store.store import Store
from ...runtime.store.versions import generator_version
from ..ending import noting_signals
from ..result import Result
from ..search.candidates import MOST_BYTES
from .jobs import Attempt, Job, Known, Over
from .link import RETURN_S
from .messages import Asks, Begins, Ends, Fails, Loses, Message, Task, Tells, Told, read
from .models import resources
from .worker import answer, end_searches, seat_of, work

_LOOK_SHARE = 0.05
"""Share of the time, at most, that goes to asking the scheduler which workers there are."""
_LOOK_S = 0.2
"""Seconds between two such questions at least."""
_ANSWERS, _AT_ONCE = 8, 1000


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
        self.client = client
        """The one in use by now."""
        self._options, self._told = options, told
        self._seat, self._key = seat_of(device_key), device_key
        self._jobs = [Job(*each) for each in enumerate(problems)]
        self._waiting = deque(sorted(range(len(problems)), key=lambda n: -problems[n].flops))
        self._under_way: set[int] = set()
        self._attempts: dict[str, Attempt] = {}
        self._fresh: list[Attempt] = []
        """Those with trials that are not in their journals yet."""
        self._heard: queue.Queue[tuple[str, object]] = queue.Queue()
        self._seats, self._look_at_s, self._seen_s = 0, 0.0, time.monotonic()
        self._ended: deque[tuple[Job, Result]] = deque()
        """Done and not kept yet."""
        self._lost = False
        """Whether Dask gave up a task, as it does when it loses its scheduler."""
        self._refused: set[str] = set()
        self._answering = ThreadPoolExecutor(_ANSWERS, "answers")
        files = sorted(spaces.glob("*.toml")) if spaces else []
        self._spaces = tuple((file.name, read_named("space", file, MOST_BYTES).decode()) for file in files)
        self._known = Known(store, device_key)
        self._subscribe()

    def _subscribe(self) -> None:
        # A name that nobody guesses; events of an earlier connection are not ours any longer.
        self._topic = f"tilewright-{secrets.token_hex(8)}"
        heard, topic = self._heard, self._topic
        self.client.subscribe_topic(topic, lambda event: heard.put((topic, event[1])))

    def run(self, back: Callable[[], Client | None] | None = None) -> None:
        """Until every problem is done or has failed. `back` gives a new client where the scheduler went away; without
        it the workers are this machine's own. Raises TuningError where scheduler or workers stay away."""
        with noting_signals(self.interrupted), contextlib.ExitStack() as ending:
            ending.callback(self._answering.shutdown, wait=False, cancel_futures=True)
            stopped = False
            while self._waiting or self._under_way or self._ended:
                if self.interrupted and not stopped:
                    stopped = True
                    self._stop()
                with self._watched():
                    if self._lost or self.client.status != "running":
                        self._reconnect(back)
                    self._look(back is None)
                    self._hand_out()
                    self._hear(0.1)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Where whoever watched is gone, the run ends as by a signal."""
        try:
            yield
        except OSError as error:
            if error.errno not in UNSEEN:
                raise
            self._told = Told()
            self.interrupted += [signal.SIGHUP] * (error.errno != errno.ENOSPC)

    def _look(self, own: bool) -> None:
        """How many devices there are, time and again."""
        now = time.monotonic()
        if now < self._look_at_s:
            return
        with contextlib.suppress(OSError, RuntimeError):  # the scheduler is gone: seen by the client's status
            seats = sum(each.get(self._seat, 0) > 0 for each in resources(self.client).values())
            if seats != self._seats:
                self._told.workers(seats)
            self._seats = seats
        self._look_at_s = now + max(_LOOK_S, (time.monotonic() - now) / _LOOK_SHARE)
        if self._seats:
            self._seen_s = now
        elif own and now - self._seen_s > RETURN_S:
            raise TuningError(f"no worker is left, and none came back in {RETURN_S:.0f} s; what was measured is kept")

    def _hand_out(self) -> None:
        while self._waiting and len(self._under_way) < self._seats:
            number = self._waiting.popleft()
            self._under_way.add(number)
            job = self._jobs[number]
            task = Task(self._topic, number, job.problem, tuple(self._options.items()), self._spaces)
            key = f"{self._topic}-{number}-{secrets.token_hex(4)}"
            job.future = self.client.submit(work, task.text(), key=key, pure=False, resources={self._seat: 1})
            job.future.add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: Future) -> None:
        self._heard.put((self._topic, Over(number, future.key)))

    def _hear(self, seconds: float) -> None:
        """Much of what was said by now; what of it is trials is in the journals then, each synced once."""
        with contextlib.suppress(queue.Empty):
            said = self._heard.get(timeout=seconds)
            given = itertools.chain([said], itertools.islice(_drained(self._heard), _AT_ONCE))
            heard = [message for topic, text in given if topic == self._topic and (message := self._read(text))]
            heard.sort(key=self._later)
            try:
                for each in heard:
                    with self._watched():
                        self._understand(each)
            finally:
                self._write()
        while self._ended:
            with self._watched():
                self._keep(*self._ended.popleft())
            if not self._heard.empty():
                break

    def _later(self, message: Message | Over) -> bool:
        """False for who waits for an answer, unless earlier trials of the problem may be among these."""
        if not isinstance(message, Asks) or not 0 <= message.number < len(self._jobs):
            return True
        return self._jobs[message.number].begun

    def _read(self, said: object) -> Message | Over | None:
        try:
            return said if isinstance(said, Over) else read(said)
        except StoreError as error:
            self._refuse(error)
        return None

    def _refuse(self, error: Exception) -> None:
        if len(self._refused) < 10 and str(error) not in self._refused:  # a worker that babbles is told a few times
            self._refused.add(str(error))
            self._told.note(f"a message of a worker is refused: {error}")

    def _understand(self, message: Message | Over) -> None:
        try:
            if isinstance(message, Over):
                self._over(message)
                return
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
                self._finished(attempt, message)
        except (StoreError, ConfigError) as error:
            self._refuse(error)

    def _asked(self, message: Asks) -> None:
        check(0 <= message.number < len(self._jobs), "of a problem that nobody asked for", StoreError)
        job = self._jobs[message.number]
        check(job.future is not None, "of a problem that nobody is at", StoreError)
        assert job.future is not None
        if job.over:  # who solved it died before Dask heard that: the next one gets something else
            with contextlib.suppress(OSError, RuntimeError):
                job.future.cancel()
            return
        known = self._attempts.get(message.attempt)
        check(known is None or known.job is job, "of an attempt at another problem", StoreError)
        right = message.device.key == self._key and dict(message.versions).get("generator") == generator_version()
        check(right, f"from a {message.device.key!r:.80} or a version that was not asked for", StoreError)
        self._write()
        if known is None:
            self._attempts[message.attempt] = Attempt(job, message.device, message.worker, message.versions)
        job.begun = True
        told = json.dumps(self._known.of(job.problem, message.versions))
        # Not waited for: where it died meanwhile, Dask gives the problem to another.
        self._answering.submit(self.client.run, answer, message.attempt, told, workers=[message.worker])

    def _begun(self, attempt: Attempt, message: Begins) -> None:
        if not self._options.get("configs"):  # variants that a user names are in no journal
            with self._spared():
                attempt.journal = self._known.journal(attempt.job.problem, attempt.versions)
        self._told.begun(attempt.job.problem, message.trials, message.resumed)

    def _tried(self, attempt: Attempt, message: Tells) -> None:
        if attempt.journal is not None:
            config = message.config
            good = serves(config, attempt.job.problem, attempt.device)
            check(good, "of a variant that cannot serve its problem", StoreError)
            facts = {"started": message.started} | ({"gpu": attempt.device.uuid} if attempt.device.uuid else {})
            self._fresh += [] if attempt.trials else [attempt]
            attempt.trials.append((config, message.entry, facts))
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

    def _finished(self, attempt: Attempt, message: Ends | Fails) -> None:
        job = attempt.job
        if isinstance(message, Ends):
            result = message.result
            right = (result.problem, result.device.key) == (job.problem, self._key)
            check(right, "a result of another problem", StoreError)
            good = serves(result.best.config, job.problem, attempt.device)
            check(good, "a winner that cannot serve its problem", StoreError)
            self._ended.append((job, result))
            self._close(job)
            self._hand_out()  # at once: keeping takes a while
        else:
            self._failed(job, message.reason)

    def _keep(self, job: Job, result: Result) -> None:
        try:
            replaces = bool(self._options.get("replace"))
            outdone = result.outdone or (result.kept and not self._known.keep(result, replaces))
        except StoreError as error:
            self._told.failed(job.problem, f"{error}; the winner, which is not kept: {result.best.config}")
            return
        self.results[job.problem] = result = replace(result, outdone=outdone)
        self._told.ended(result)

    def _failed(self, job: Job, reason: str) -> None:
        self._close(job)
        self._told.failed(job.problem, reason)

    def _close(self, job: Job) -> None:
        job.over = True
        self._under_way.discard(job.number)

    def _over(self, what: Over) -> None:
        """Dask is done with a task: all that it said was heard before."""
        job = self._jobs[what.number]
        if job.over or job.future is None or job.future.key != what.key:
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
            self.client.run(end_searches, self._topic, on_error="ignore")

    def _reconnect(self, back: Callable[[], Client | None] | None) -> None:
        """Begin again with another connection: what was told is in the journals."""
        self._told.note(f"the scheduler is gone: waiting {RETURN_S:.0f} s for it; what was measured is kept")
        with contextlib.suppress(OSError, RuntimeError):
            self.client.close(timeout=1)
        self._hear(0.01)  # the last words of the old one
        client = back() if back else None
        if client is None:
            raise TuningError(f"the scheduler did not come back in {RETURN_S:.0f} s; what was measured is kept")
        self._told.note("the scheduler is back: going on")
        self.client, self._attempts, self._seats, self._look_at_s, self._lost = client, {}, 0, 0.0, False
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
