"""The parent's end of a worker process."""

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

from ...codegen.errors import DeviceError
from ...runtime import settings
from ...runtime.device.cache import remove_private

_START = (
    "import sys; sys.path[:] = {path!r}; from {package}.tuner.measure.worker import main; main({descriptor}, {mark!r})"
)
_warned: set[str] = set()
"""Texts of the warnings of all workers, each of which is shown once."""
_idle: dict[str, list["Child"]] | None = None
"""Idle processes by their kind of work; None outside `kept_between_runs`."""


class ChildDiedError(Exception):
    """The worker process ended without answering; the text says how."""


class Child:
    """One worker process in a process group of its own, and a connection to it.

    The process is no `multiprocessing.Process`, which would run the caller's main module again.
    """

    def __init__(self) -> None:
        """Start the process. Raises ConfigError for a cache folder without a name, which each variant would meet, and
        DeviceError without a temporary folder."""
        settings.cache_folder()
        self.connection, theirs = Pipe()
        """Connection to the process, readable where an answer waits."""
        package = __package__.partition(".")[0]
        self._mark = secrets.token_hex(8)
        code = _START.format(path=sys.path, package=package, descriptor=theirs.fileno(), mark=self._mark)
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        except OSError as error:
            raise DeviceError(f"no place for a worker's output: {error.strerror}; TMPDIR names a folder") from error
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        self.deadline = float("inf")
        """Time at which the answer to the first job is overdue, by time.monotonic()."""
        self.jobs: deque[tuple[Any, float]] = deque()
        """Jobs without an answer yet, and the limit of each in seconds."""

    @property
    def job(self) -> Any:
        """The first job without an answer; None while the process is idle."""
        return self.jobs[0][0] if self.jobs else None

    @property
    def begun(self) -> float:
        """Time at which the process began its first job, by time.monotonic(); infinity while the process is idle."""
        return self.deadline - (self.jobs[0][1] if self.jobs else 0.0)

    def send(self, question: tuple[Any, ...], job: Any, limit_s: float) -> None:
        """Send the name of a worker's method and its arguments; the answer is due `limit_s` seconds after the answer
        before it. Raises ChildDiedError."""
        if not self.jobs:
            self.deadline = time.monotonic() + limit_s
        self.jobs.append((job, limit_s))
        try:
            self.connection.send(question)
        except OSError as error:
            raise ChildDiedError(self._last_words()) from error

    def receive(self) -> Any:
        """Wait for the answer to the first job: the method's value, or the error that it raised. The worker's warnings
        are shown here, each once. Raises ChildDiedError."""
        try:
            answer, warned = self.connection.recv()
        except (OSError, EOFError) as error:
            raise ChildDiedError(self._last_words()) from error
        for warning in warned:
            if str(warning) not in _warned:
                _warned.add(str(warning))
                warnings.warn(warning, stacklevel=2)
        self.jobs.popleft()
        self.deadline = time.monotonic() + self.jobs[0][1] if self.jobs else float("inf")
        return answer

    def drain(self) -> None:
        """Drop the answers that have come."""
        with contextlib.suppress(ChildDiedError, OSError):
            while self.jobs and self.connection.poll():
                self.receive()

    def ask(self, question: tuple[Any, ...], limit_s: float) -> Any:
        """Ask a question and wait for the method's value. Raises the method's error, and ChildDiedError, also when the
        answer is overdue, which ends the process."""
        self.send(question, question, limit_s)
        if not self.connection.poll(limit_s):
            self.end()
            raise ChildDiedError(f"no answer within {limit_s:.0f} s")
        answer = self.receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _last_words(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.end()
            return "it closed its connection"
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1][:300]}" if lines else how

    def end(self) -> None:
        """End the process and all processes that it started, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        remove_private(self._mark)
        self.connection.close()
        self._stderr.close()

    @property
    def idle(self) -> bool:
        """Whether the process runs and has no job."""
        return not self.jobs and self._process.poll() is None


@contextlib.contextmanager
def kept_between_runs() -> Iterator[None]:
    """Context in which a run's processes serve the next run: starting them, and the device, takes seconds."""
    global _idle
    if _idle is not None:  # the outer context ends them
        yield
        return
    _idle = defaultdict(list)
    try:
        yield
    finally:
        children, _idle = [*itertools.chain(*_idle.values())], None
        for child in children:
            child.end()


def child_for(work: str) -> Child:
    """An idle process that did this kind of work before, else a new process."""
    while _idle and _idle[work]:
        child = _idle[work].pop()
        if child.idle:
            return child
        child.end()
    return Child()


def leave(child: Child, work: str) -> None:
    """End a process, or keep it for the next run."""
    if _idle is not None and child.idle:
        _idle[work].append(child)
    else:
        child.end()
