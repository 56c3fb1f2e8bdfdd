"""A Dask worker that tunes: `dask worker --preload tilewright.tuner.cluster.worker`, or `tilewright worker`.

It measures on the one device that it has, keeps nothing, and sends the client each outcome as it comes.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import queue
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

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
from .messages import Asks, Begins, Ends, Fails, Loses, Message, Task, Tells, written

_IDLE_S = 20.0
"""Seconds that processes which compile and measure wait for the worker's next problem before they end."""
_SEAT = "tilewright "
_SMALL = Problem(32, 32, 32)
_LOOK_S, _ASK_AGAIN = 0.2, 150
_here: list[DeviceInfo] = []
_processes = contextlib.ExitStack()
"""Ends the processes that wait for the next problem."""
_timers: list[threading.Timer] = []
"""The timer that ends them; none while a problem is in hand."""
_lock = Lock()
"""Held while either changes."""
_answers: dict[str, "queue.Queue[str]"] = {}
_ending: set[str] = set()


def seat_of(device_key: str) -> str:
    """The Dask resource that a worker of this version has one of: a device of a model."""
    return f"{_SEAT}{generator_version()} {device_key}"


def seat_read(resource: str) -> tuple[str, str] | None:
    """Version and model of such a resource; None for another one."""
    if not resource.startswith(_SEAT):
        return None
    version, _, key = resource.removeprefix(_SEAT).partition(" ")
    return version, key


@click.command()
@click.option("--device", default="auto")
@click.option("--cores", default="", help="Numbers of the processor's cores that it keeps to.")
def dask_setup(worker: Worker, device: str, cores: str) -> None:
    """Dask calls this before the worker joins its scheduler."""
    if cores:  # one of ours; its compile processes are as many as cores, and inherit them
        quiet()
        os.sched_setaffinity(0, map(int, cores.split(",")))
        if not dask.config.get(WORKER_ROUTES):
            worker.http_server.stop()
    if worker.nanny and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the client's to answer
    info = choose(device).info
    _here[:] = [info]
    for resources in (worker.state.total_resources, worker.state.available_resources):
        resources[seat_of(info.key)] = 1.0  # one problem at a time, however many threads there are


def dask_teardown(worker: Worker) -> None:
    """Dask calls this when the worker ends."""
    with _lock.alone():
        for timer in _timers:
            timer.cancel()
        _processes.close()


def facts() -> str:
    """Of this worker's device; called by the client."""
    return json.dumps(_here[0].packed())


def answer(attempt: str, text: str) -> None:
    """What the client knows of a problem; called by the client."""
    if attempt in _answers:  # it may have been asked for twice
        _answers[attempt].put(text)


def end_searches(topic: str) -> None:
    """Go on to the duel with what was found; called by the client."""
    _ending.add(topic)


class _GoneError(Exception):
    """Nobody wants the outcome: the client is gone, or the scheduler, or the worker is being closed."""


class Attempt:
    """One problem in hand: what is said of it, and whether anybody still listens."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name = secrets.token_hex(8)
        self._worker = get_worker()
        self._key = self._worker.get_current_task()

    def say(self, message: Message) -> None:
        """To the client, by way of the scheduler, in order."""
        self._worker.log_event(self.task.topic, written(message))

    def check(self) -> None:
        """Raise _GoneError where the task was cancelled, as Dask does when a client or scheduler vanishes."""
        state = self._worker.state.tasks.get(self._key)
        if state is None or state.state != "executing" or self._worker.status.name in ("closing", "closed", "failed"):
            raise _GoneError

    @property
    def ending(self) -> bool:
        """Whether the client wants no further trials."""
        return self.task.topic in _ending

    def ask(self, info: DeviceInfo, versions: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """What the client knows of the problem: records near it, and journals of what was tried."""
        replies = _answers.setdefault(self.name, queue.Queue())
        try:
            for turn in itertools.count():
                self.check()
                if turn % _ASK_AGAIN == 0:
                    self.say(Asks(self.name, self.task.number, self._worker.address, info, versions))
                with contextlib.suppress(queue.Empty):
                    known: dict[str, Any] = json.loads(replies.get(timeout=_LOOK_S))
                    return known
            raise AssertionError
        finally:
            del _answers[self.name]

    def resign(self, info: DeviceInfo, reason: str) -> None:
        """Take no further problems: the device is lost."""
        self.say(Loses(self.name, reason))
        sync(self._worker.loop, self._worker.set_resources, **{seat_of(info.key): 0.0})

    @property
    def folder(self) -> str:
        """Of the worker's own, which Dask removes."""
        return str(self._worker.local_directory)


class Streamed(Progress):
    """Sends each outcome to the client as soon as it is there."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        """How many variants are tried at most."""
        trials = budget.trials if variants is None else min(budget.trials, variants)
        self._attempt.say(Begins(self._attempt.name, trials, resumed))

    def tried(self, tried: Tried, best: Record | None) -> None:
        """One more. Ends the run, once it is sent, where nobody listens any longer."""
        entry, phases = Entry.of(tried), tried.phases
        started = datetime.now() - timedelta(seconds=phases.verify_s + phases.time_s)
        variant = str(tried.record.config)
        self._attempt.say(Tells(self._attempt.name, variant, entry, started.isoformat(timespec="seconds")))
        self._attempt.check()
        if self._attempt.ending:
            raise BrokenPipeError(errno.EPIPE, "the client wants no more")  # ends as by Ctrl-C: with the duel

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """The last moment to give up."""
        self._attempt.check()


def work(text: str) -> None:
    """Tune a problem on this worker's device: what Dask runs. Its outcome is not returned but said, as JSON."""
    attempt, info = Attempt(Task.read(text)), _here[0]
    with _serving(), contextlib.suppress(_GoneError):
        attempt.say(_outcome(attempt, info))


@contextlib.contextmanager
def _serving() -> Iterator[None]:
    """Context of a problem in hand. Processes serve the next problem too, unless none comes in _IDLE_S seconds: to
    start them and to open the device takes seconds."""
    with _lock.alone():
        if _timers:  # they wait
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
        known = attempt.ask(info, versions_of(info, compiler_for(info)))
        with tempfile.TemporaryDirectory(prefix="tilewright-", dir=attempt.folder) as made:
            return Ends(attempt.name, _tuned(attempt, info, known, Path(made)))
    except TuningError as error:
        reason = one_line(error)
        if lost := fault(info):  # else it would fail every problem there is
            attempt.resign(info, lost)
            raise Reschedule from error
    except (TilewrightError, OSError, MemoryError) as error:
        reason = one_line(error)
    except KeyboardInterrupt:
        reason = "interrupted before anything worked"
    except _GoneError:
        raise
    except Exception as error:  # told as text: Dask would pickle it
        reason = f"unexpected {type(error).__name__}: {one_line(error)}"
    return Fails(attempt.name, reason)


def _tuned(attempt: Attempt, info: DeviceInfo, known: dict[str, Any], folder: Path) -> Result:
    """By `tune` itself, whose store is a folder with what the client knows."""
    task = attempt.task
    options = {name: value for name, value in task.options if name != "configs"}
    configs = tuple(map(parse, dict(task.options).get("configs", ())))
    for place, files in {**known, "spaces": dict(task.spaces)}.items():
        (folder / place).mkdir()
        for name, text in files.items():
            check(Path(name).name == name, f"no name of a file: {name!r}", ConfigError)
            (folder / place / name).write_text(text)
    spaces = folder / "spaces" if task.spaces else None
    progress = Streamed(attempt)
    return tune(
        task.problem, device=info.selector, store=folder, spaces=spaces, configs=configs, progress=progress, **options
    )


def fault(info: DeviceInfo) -> str:
    """Why a fresh process cannot compute the simplest product on the device; empty where it can."""
    child = Child()
    try:
        child.ask(("open", info, _SMALL), OPEN_LIMIT_S)
        tried: Tried = child.ask(("try_variant", NAIVE, math.inf), TRY_LIMIT_S)
        return "" if tried.record.status is Status.OK else tried.record.reason
    except (ChildDiedError, TilewrightError, MemoryError) as error:
        return one_line(error)
    finally:
        child.end()
