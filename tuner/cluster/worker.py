"""A Dask worker that tunes: `dask worker --preload tilewright.tuner.cluster.worker`, or `tilewright worker`.

It measures on its one device, stores nothing, and sends the client each outcome as it comes.
"""

import contextlib
import errno
import json
import math
import os
import queue
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import dask.config
from distributed import Reschedule, Worker, get_worker
from distributed.utils import sync

from ...codegen.config import Config
from ...codegen.errors import ConfigError, TilewrightError, TuningError, check
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...runtime.device.detect import choose, compiler_for
from ...runtime.device.protocol import DeviceInfo
from ...runtime.locks import Lock
from ...runtime.store.codec import encode
from ...runtime.store.record import Record, Status
from ...runtime.store.versions import generator_version, versions_of
from ..measure.child import Child, ChildDiedError, kept_between_runs
from ..measure.decide import NAIVE
from ..measure.evaluate import Tried, one_line
from ..measure.pipeline import OPEN_LIMIT_S, TRY_LIMIT_S
from ..recording.entry import Entry
from ..result import Progress, Result
from ..settings import Budget
from ..tune import tune
from .link import WORKER_ROUTES, quiet
from .messages import MOST_TRIALS, Asks, Begins, Ends, Fails, Loses, Message, Task, Tells, written

_IDLE_S = 20.0
"""Seconds that processes which compile and measure wait for the worker's next problem before they end."""
_SEAT = "tilewright "
_SMALL = Problem(32, 32, 32)
_LOOK_S = 0.2
"""Seconds between two checks whether the client still wants an attempt."""
_ASK_AGAIN_S = 30.0
"""Seconds without an answer after which a worker asks again."""
_here: list[DeviceInfo] = []
"""The worker's device, once it is set up."""
_processes = contextlib.ExitStack()
"""Stack that ends the processes which wait for the next problem."""
_timers: list[threading.Timer] = []
"""The timer that ends these processes; none while a problem is in hand."""
_lock = Lock()
"""Lock of `_processes` and `_timers`."""
_answers: dict[str, "queue.Queue[str]"] = {}
"""Answers of the client, by attempt."""
_ending: set[str] = set()
"""Topics of clients that want no further trials."""


def seat_of(device_key: str) -> str:
    """Name of the Dask resource for one device of a model; each worker of this version has one."""
    return f"{_SEAT}{generator_version()} {device_key}"


def seat_read(resource: str) -> tuple[str, str] | None:
    """Version and model of a resource of `seat_of`; None for another one."""
    if not resource.startswith(_SEAT):
        return None
    version, _, key = resource.removeprefix(_SEAT).partition(" ")
    return version, key


@click.command()
@click.option("--device", default="auto")
@click.option("--cores", default="", help="Numbers of the processor's cores on which the worker runs.")
def dask_setup(worker: Worker, device: str, cores: str) -> None:
    """Set a worker up before it joins its scheduler; called by Dask."""
    if cores:  # `link` started this worker, whose compile processes inherit the cores
        quiet()
        os.sched_setaffinity(0, map(int, cores.split(",")))
        if not dask.config.get(WORKER_ROUTES):
            worker.http_server.stop()
    if worker.nanny and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client answers Ctrl-C in a terminal
    info = choose(device)
    _here[:] = [info]
    for resources in (worker.state.total_resources, worker.state.available_resources):
        resources[seat_of(info.key)] = 1.0  # one problem at a time, however many threads there are


def dask_teardown(worker: Worker) -> None:
    """End the processes of a worker that ends; called by Dask."""
    with _lock.alone():
        for timer in _timers:
            timer.cancel()
        _processes.close()


def facts() -> str:
    """Facts of this worker's device as JSON; called by the client."""
    return json.dumps(encode(_here[0]))


def answer(attempt: str, text: str) -> None:
    """Take the client's files for an attempt; called by the client."""
    if attempt in _answers:  # a second answer comes too late
        _answers[attempt].put(text)


def end_searches(topic: str) -> None:
    """Have the searches of a client end with their duels; called by the client."""
    _ending.add(topic)


class _GoneError(Exception):
    """Nobody wants the outcome: the client is gone, or the scheduler, or the worker is being closed."""


class Attempt(Progress):
    """One problem in hand, and its messages to the client, who gets each outcome at once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name = secrets.token_hex(8)
        self._worker = get_worker()
        self._key = self._worker.get_current_task()

    def say(self, message: Message) -> None:
        """Send a message to the client through the scheduler, which keeps the order."""
        self._worker.log_event(self.task.topic, written(message))

    def check(self) -> None:
        """Raise _GoneError where the task was cancelled, as Dask does when a client or scheduler vanishes."""
        state = self._worker.state.tasks.get(self._key)
        if state is None or state.state != "executing" or self._worker.status.name in ("closing", "closed", "failed"):
            raise _GoneError

    def ask(self, info: DeviceInfo, versions: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """Names and texts of the client's files for the problem, by folder: records and the journal of trials. Raises
        _GoneError."""
        replies = _answers.setdefault(self.name, queue.Queue())
        ask_at_s = time.monotonic()
        try:
            while True:
                self.check()
                if time.monotonic() >= ask_at_s:
                    self.say(Asks(self.name, self.task.number, self._worker.address, info, versions))
                    ask_at_s += _ASK_AGAIN_S
                with contextlib.suppress(queue.Empty):
                    return cast(dict[str, Any], json.loads(replies.get(timeout=_LOOK_S)))
        finally:
            del _answers[self.name]

    def resign(self, info: DeviceInfo, reason: str) -> None:
        """Tell the client that the device is lost, and take no further problems."""
        self.say(Loses(self.name, reason))
        sync(self._worker.loop, self._worker.set_resources, **{seat_of(info.key): 0.0})

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        """Send the number of variants that are tried at most."""
        trials = budget.trials if variants is None else min(budget.trials, variants)
        self.say(Begins(self.name, min(trials, MOST_TRIALS), min(resumed, MOST_TRIALS)))

    def tried(self, tried: Tried, best: Record | None) -> None:
        """Send an outcome, then end the run where the client wants no more."""
        entry, variant = Entry.of(tried), str(tried.record.config)
        self.say(Tells(self.name, variant, entry, entry.started.isoformat(timespec="seconds")))
        self.check()
        if self.task.topic in _ending:
            raise BrokenPipeError(errno.EPIPE, "the client wants no more")  # ends the run as Ctrl-C does, with the duel

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """Give up before the duel where nobody wants the outcome."""
        self.check()


def work(task: Task) -> None:
    """Tune a problem on this worker's device, as a Dask task. The outcome is a message, not the task's value."""
    attempt, info = Attempt(task), _here[0]
    with _serving(), contextlib.suppress(_GoneError):
        attempt.say(_outcome(attempt, info))


@contextlib.contextmanager
def _serving() -> Iterator[None]:
    """Context of a problem in hand. Its processes serve the next problem too, unless none comes in _IDLE_S seconds:
    starting them and opening the device takes seconds."""
    with _lock.alone():
        if _timers:  # the processes wait
            _timers.pop().cancel()
        else:
            _processes.enter_context(kept_between_runs())
    try:
        yield
    finally:
        timer = threading.Timer(_IDLE_S, _end_processes)
        timer.daemon = True
        _timers.append(timer)
        timer.start()


def _end_processes() -> None:
    with _lock.alone():
        if threading.current_thread() in _timers:  # else a problem has come meanwhile
            _timers.clear()
            _processes.close()


def _outcome(attempt: Attempt, info: DeviceInfo) -> Message:
    try:
        files = attempt.ask(info, versions_of(info, compiler_for(info)))
        with tempfile.TemporaryDirectory(prefix="tilewright-", dir=get_worker().local_directory) as folder:
            return Ends(attempt.name, _tuned(attempt, info, files, Path(folder)))
    except TuningError as error:
        reason = one_line(error)
        if lost := fault(info):  # the worker would fail every other problem too
            attempt.resign(info, lost)
            raise Reschedule from error
    except (TilewrightError, OSError, MemoryError) as error:
        reason = one_line(error)
    except KeyboardInterrupt:
        reason = "interrupted before anything worked"
    except _GoneError:
        raise
    except Exception as error:  # a text in a message: Dask would pickle the error
        reason = f"unexpected {type(error).__name__}: {one_line(error)}"
    return Fails(attempt.name, reason)


def _tuned(attempt: Attempt, info: DeviceInfo, files: dict[str, Any], folder: Path) -> Result:
    """The result of `tune`, whose store is a folder with the client's files."""
    task = attempt.task
    options = {**task.options, "configs": tuple(map(parse, task.options.get("configs", ())))}
    for place, texts in {**files, "spaces": task.spaces}.items():
        (folder / place).mkdir()
        for name, text in texts.items():
            check(Path(name).name == name, f"no name of a file: {name!r}", ConfigError)
            (folder / place / name).write_text(text)
    spaces = folder / "spaces" if task.spaces else None
    return tune(task.problem, device=info.selector, store=folder, spaces=spaces, progress=attempt, **options)


def fault(info: DeviceInfo) -> str:
    """Reason that a fresh process cannot compute the simplest product on the device; empty where it can."""
    child = Child()
    try:
        child.ask(("open", info, _SMALL), OPEN_LIMIT_S)
        tried: Tried = child.ask(("try_variant", NAIVE, math.inf), TRY_LIMIT_S)
        return "" if tried.record.status is Status.OK else tried.record.reason
    except (ChildDiedError, TilewrightError, MemoryError) as error:
        return one_line(error)
    finally:
        child.end()
