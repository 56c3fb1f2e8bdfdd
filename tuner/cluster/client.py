"""The client's side of tuning many problems on many workers. The client alone writes the store.

A problem is one Dask task, handed out when a device is free, the longest first. The worker asks for earlier outcomes of
the problem, resumes from them, and sends each outcome as it comes: whichever process is killed, the journals hold the
outcomes that were sent.
"""

import contextlib
import json
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker

from ...codegen.errors import ConfigError, StoreError, TuningError, check
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...codegen.reading import read_named
from ...runtime.device.protocol import DeviceInfo
from ...runtime.files import spared
from ...runtime.store.store import Store
from ...runtime.store.versions import generator_version
from ..ending import noting_signals, watched
from ..result import Result
from ..search.candidates import MOST_BYTES
from .jobs import Attempt, Job, StoreView
from .link import RETURN_S
from .messages import Asks, Begins, ClusterProgress, Ends, Fails, Loses, Task, Tells, device_of, read
from .worker import answer, end_searches, facts, seat_of, seat_read, work

_LOOK_S = 0.5
"""Seconds between two questions to the scheduler for its workers."""
_ANSWERS = 8
"""Threads that answer workers."""
_AT_ONCE = 1000
"""Messages that are handled before journals are synced."""
_REFUSALS = 10
"""Refused messages that are shown, as a worker may send any number of them."""


def resources(client: Client) -> dict[str, dict[str, float]]:
    """The resources of each worker, by its address. Raises OSError, RuntimeError where the scheduler is gone."""
    return {address: each["resources"] for address, each in client.scheduler_info(n_workers=-1)["workers"].items()}


def model(client: Client, device_key: str, note: Callable[[str], None]) -> DeviceInfo:
    """Facts of the workers' devices, after a wait for a worker; `device_key` is the model, empty for the only one. Each
    notice goes to `note`. Raises ConfigError where there are several models and no key."""
    waited = False
    noted: set[str] = set()
    while True:
        names = [(worker, name) for worker, each in resources(client).items() for name, count in each.items() if count]
        seats = {worker: seat for worker, name in names if (seat := seat_read(name))}
        others = {version for version, _ in seats.values()} - {generator_version()}
        if others - noted:
            noted |= others
            versions = ", ".join(sorted(others))
            note(f"workers of tilewright {versions} get nothing: this is {generator_version()}; install the same there")
        ours = {worker: key for worker, (version, key) in seats.items() if version == generator_version()}
        keys = sorted({*ours.values()})
        if not device_key and len(keys) > 1:
            raise ConfigError(f"the workers have {', '.join(keys)}; name one of them by --device-key")
        worker = next((worker for worker, key in ours.items() if key == (device_key or key)), None)
        if worker is not None:
            with contextlib.suppress(OSError, KeyError):  # the worker is gone
                return device_of(json.loads(client.run(facts, workers=[worker])[worker]))
        elif not waited:
            waited = True
            there = f"there are {', '.join(keys)}" if keys else "there is none yet"
            note(f"waiting for a worker{f' with a {device_key}' if device_key else ''}; {there}")
        time.sleep(0.5)


class Tuning:
    """Problems on their way through the workers of a client."""

    def __init__(
        self,
        client: Client,
        problems: Sequence[Problem],
        options: dict[str, Any],
        store: Store,
        device_key: str,
        progress: ClusterProgress,
        spaces: Path | None = None,
    ) -> None:
        self.results: dict[Problem, Result] = {}
        """Results of the problems that are done."""
        self.interrupted: list[int] = []
        """Signals that asked for the end."""
        self.client = client
        """The client in use: another one once the scheduler went away and came back."""
        self._options, self._progress = options, watched(progress, self.interrupted)
        self._seat, self._key = seat_of(device_key), device_key
        self._jobs = [Job(*each) for each in enumerate(problems)]
        self._waiting = deque(sorted(range(len(problems)), key=lambda n: -problems[n].flops))
        self._under_way: set[int] = set()
        """Numbers of the problems that were handed out and have neither a result nor failed."""
        self._attempts: dict[str, Attempt] = {}
        self._events: queue.Queue[tuple[str, object]] = queue.Queue()
        """Topics and texts of messages, and ends of tasks, in the order they came."""
        self._seats, self._look_at_s, self._seen_s = 0, 0.0, time.monotonic()
        self._unsaved: deque[tuple[Job, Result]] = deque()
        """Jobs whose results are not in the store yet."""
        self._lost = False
        """Whether Dask gave up a task, as it does when it loses its scheduler."""
        self._refused: set[str] = set()
        self._answering = ThreadPoolExecutor(_ANSWERS, "answers")
        files = sorted(spaces.glob("*.toml")) if spaces else []
        self._spaces = {file.name: read_named("space", file, MOST_BYTES).decode() for file in files}
        self._store = StoreView(store, device_key)
        self._subscribe()

    def _subscribe(self) -> None:
        # Nobody guesses the name, and events of an earlier connection have another one.
        self._topic = topic = f"tilewright-{secrets.token_hex(8)}"
        self.client.subscribe_topic(topic, lambda event: self._events.put((topic, event[1])))

    def run(self, back: Callable[[], Client | None] | None = None) -> None:
        """Run until every problem is done or has failed. `back` gives a new client where the scheduler went away;
        without it the workers are this machine's own. Raises TuningError where scheduler or workers stay away."""
        with noting_signals(self.interrupted), contextlib.ExitStack() as ending:
            ending.callback(self._answering.shutdown, wait=False, cancel_futures=True)
            stopped = False
            while self._waiting or self._under_way or self._unsaved:
                if self.interrupted and not stopped:
                    stopped = True
                    self._stop()
                if self._lost or self.client.status != "running":
                    self._reconnect(back)
                self._look(back is None)
                self._hand_out()
                self._hear(0.1)

    def _look(self, has_own_workers: bool) -> None:
        """Count the devices every _LOOK_S seconds. Raises TuningError where this machine's own workers stay away."""
        if time.monotonic() < self._look_at_s:
            return
        with contextlib.suppress(OSError, RuntimeError):  # the client's status shows that the scheduler is gone
            seats = sum(each.get(self._seat, 0) > 0 for each in resources(self.client).values())
            if seats != self._seats:
                self._progress.workers(seats)
            self._seats = seats
        now = time.monotonic()
        self._look_at_s = now + _LOOK_S
        if self._seats:
            self._seen_s = now
        elif has_own_workers and now - self._seen_s > RETURN_S:
            raise TuningError(f"no worker is left, and none came back in {RETURN_S:.0f} s; what was measured is kept")

    def _hand_out(self) -> None:
        while self._waiting and len(self._under_way) < self._seats:
            number = self._waiting.popleft()
            self._under_way.add(number)
            job = self._jobs[number]
            task = Task(self._topic, number, job.problem, self._options, self._spaces)
            key = f"{self._topic}-{number}-{secrets.token_hex(4)}"
            job.future = self.client.submit(work, task, key=key, pure=False, resources={self._seat: 1})
            job.future.add_done_callback(lambda future, topic=self._topic: self._events.put((topic, future)))

    def _hear(self, seconds: float) -> None:
        """Handle the messages that have come, write their trials into journals, each synced once, and store winners."""
        with contextlib.suppress(queue.Empty):
            events = [self._events.get(timeout=seconds)]
            while len(events) < _AT_ONCE and not self._events.empty():
                events.append(self._events.get())
            try:
                for text in (text for topic, text in events if topic == self._topic):
                    self._handle(text)
            finally:
                self._write()
        while self._unsaved:
            self._save(*self._unsaved.popleft())
            if not self._events.empty():
                break

    def _handle(self, event: object) -> None:
        """Handle the end of a task or the text of a message, which may be refused."""
        if isinstance(event, Future):
            self._end_task(event)
            return
        try:
            message = read(event)
            if isinstance(message, Asks):
                self._answer(message)
            elif (attempt := self._attempts.get(message.attempt)) is None:
                raise StoreError("of an attempt that nobody began")
            else:
                self._follow(attempt, message)
        except (StoreError, ConfigError) as error:
            if len(self._refused) < _REFUSALS and str(error) not in self._refused:
                self._refused.add(str(error))
                self._progress.note(f"a message of a worker is refused: {error}")

    def _answer(self, message: Asks) -> None:
        check(0 <= message.number < len(self._jobs), "of a problem that nobody asked for", StoreError)
        job = self._jobs[message.number]
        if job.future is None:
            raise StoreError("of a problem that nobody is at")
        if job.number not in self._under_way:
            # The problem has ended, but its worker died before Dask heard of it: this worker gets another problem.
            with contextlib.suppress(OSError, RuntimeError):
                job.future.cancel()
            return
        attempt = self._attempts.get(message.attempt)
        check(attempt is None or attempt.job is job, "of an attempt at another problem", StoreError)
        is_ours = message.device.key == self._key and dict(message.versions).get("generator") == generator_version()
        check(is_ours, f"from a {message.device.key!r:.80} or a version that was not asked for", StoreError)
        self._write()
        if attempt is None:
            self._attempts[message.attempt] = Attempt(job, message.device, message.worker, message.versions)
        text = json.dumps(self._store.files(job.problem, message.versions))
        # Nobody waits for this: where the worker died meanwhile, Dask gives the problem to another.
        self._answering.submit(self.client.run, answer, message.attempt, text, workers=[message.worker])

    def _follow(self, attempt: Attempt, message: Begins | Tells | Ends | Fails | Loses) -> None:
        problem = attempt.job.problem
        if isinstance(message, Tells):
            self._add_trial(attempt, message)
            self._progress.tried(problem, self._key, message)
        elif isinstance(message, Begins):
            if not self._options.get("configs"):  # variants that a user names are in no journal
                with spared(self._store.root):
                    attempt.journal = self._store.journal(problem, attempt.versions)
            self._progress.begun(problem, message.trials, message.resumed)
        elif isinstance(message, Loses):
            where = attempt.device.uuid or attempt.device.name
            self._progress.note(f"{attempt.worker}: its device {where} is lost, and gets no more: {message.reason}")
        elif attempt.job.number not in self._under_way:  # it has a result already, or has failed
            return
        elif isinstance(message, Fails):
            self._fail(attempt.job, message.reason)
        else:
            result = message.result
            is_same = (result.problem, result.device.key) == (problem, self._key)
            check(is_same, "a result of another problem", StoreError)
            can_serve = serves(result.best.config, problem, attempt.device)
            check(can_serve, "a winner that cannot serve its problem", StoreError)
            self._unsaved.append((attempt.job, result))
            self._under_way.remove(attempt.job.number)
            self._hand_out()  # before storing the winner, which takes a while

    def _add_trial(self, attempt: Attempt, message: Tells) -> None:
        if attempt.journal is not None:
            config = message.config
            can_serve = serves(config, attempt.job.problem, attempt.device)
            check(can_serve, "of a variant that cannot serve its problem", StoreError)
            facts = {"started": message.started} | ({"gpu": attempt.device.uuid} if attempt.device.uuid else {})
            attempt.trials.append((config, message.entry, facts))

    def _write(self) -> None:
        """Write the new trials of all attempts into their journals."""
        for attempt in self._attempts.values():
            if attempt.journal is not None and attempt.trials:
                with spared(attempt.journal.path):
                    attempt.journal.extend(attempt.trials)
                attempt.trials = []

    def _save(self, job: Job, result: Result) -> None:
        try:
            replaces = bool(self._options.get("replace"))
            outdone = result.outdone or (result.kept and not self._store.keep(result, replaces))
        except StoreError as error:
            self._progress.failed(job.problem, f"{error}; the winner, which is not kept: {result.best.config}")
            return
        self.results[job.problem] = result = replace(result, outdone=outdone)
        self._progress.ended(result)

    def _fail(self, job: Job, reason: str) -> None:
        self._under_way.remove(job.number)
        self._progress.failed(job.problem, reason)

    def _end_task(self, future: Future) -> None:
        """Handle the end of a task, after all its messages."""
        job = next((job for job in map(self._jobs.__getitem__, self._under_way) if job.future is future), None)
        if job is None:
            return
        if future.status in ("cancelled", "lost"):
            self._lost = True
        elif future.status == "error":
            error = future.exception()
            reason = f"unexpected {type(error).__name__}: {error}"
            self._fail(job, "each worker that had it died" if isinstance(error, KilledWorker) else reason)
        else:
            self._fail(job, "its worker ended without a result that could be read")

    def _stop(self) -> None:
        """Have the running searches end with their duels, and begin no other."""
        self._waiting.clear()
        with contextlib.suppress(OSError, ValueError):
            self.client.run(end_searches, self._topic, on_error="ignore")

    def _reconnect(self, back: Callable[[], Client | None] | None) -> None:
        """Begin again with another connection: the journals hold the outcomes of the one that is gone."""
        self._progress.note(f"the scheduler is gone: waiting {RETURN_S:.0f} s for it; what was measured is kept")
        with contextlib.suppress(OSError, RuntimeError):
            self.client.close(timeout=1)
        self._hear(0.01)  # the last messages of that connection
        client = back() if back else None
        if client is None:
            raise TuningError(f"the scheduler did not come back in {RETURN_S:.0f} s; what was measured is kept")
        self._progress.note("the scheduler is back: going on")
        self.client, self._attempts, self._seats, self._look_at_s, self._lost = client, {}, 0, 0.0, False
        self._subscribe()
        for number in sorted(self._under_way, key=lambda n: self._jobs[n].problem.flops):
            self._jobs[number].future = None
            self._waiting.appendleft(number)
        self._under_way.clear()
        if self.interrupted:
            self._waiting.clear()
