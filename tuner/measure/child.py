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
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

from ...codegen.errors import DeviceError
from ...runtime import settings
from ...runtime.device.cache import remove_private

_START = (
    "import sys; sys.path[:] = {path!r}; from {package}.tuner.measure.worker import main; main({descriptor}, {mark!r})"
)
_told: set[str] = set()  # what a worker warned of, once for all of them
_kept: dict[str, list["Child"]] | None = None  # idle ones by what they were for, where runs follow each other


class ChildDiedError(Exception):
    """The worker process ended without answering; the text says how."""


class Child:
    """One worker process: started fresh, in a process group of its own, spoken to over a connection.

    It does not go by `multiprocessing`, which would run the caller's main module again.
    """

    def __init__(self) -> None:
        """Raises ConfigError for a cache that cannot be named and DeviceError without a temporary folder: not each
        variant's fault."""
        settings.cache_folder()
        self.connection, theirs = Pipe()
        """Readable where an answer waits."""
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
        """When the answer to the first job is overdue, by time.monotonic()."""
        self.jobs: deque[tuple[Any, float]] = deque()
        """What it was asked and not answered yet, with the limit of each in seconds."""

    @property
    def job(self) -> Any:
        """What it is working on; None while it is idle."""
        return self.jobs[0][0] if self.jobs else None

    def send(self, question: tuple[Any, ...], job: Any, limit_s: float) -> None:
        """Ask by the name of a worker's method and what it is given; the answer is due within `limit_s` of the answer
        before it. Raises ChildDiedError."""
        if not self.jobs:
            self.deadline = time.monotonic() + limit_s
        self.jobs.append((job, limit_s))
        try:
            self.connection.send(question)
        except OSError as error:
            raise ChildDiedError(self._last_words()) from error

    def receive(self) -> Any:
        """The answer to the first job, waiting for it: what the method gave, or the error it raised. What the worker
        warned of is warned of here, once. Raises ChildDiedError."""
        try:
            answer, told = self.connection.recv()
        except (OSError, EOFError) as error:
            raise ChildDiedError(self._last_words()) from error
        for warning in told:
            if str(warning) not in _told:
                _told.add(str(warning))
                warnings.warn(warning, stacklevel=2)
        self.jobs.popleft()
        self.deadline = time.monotonic() + self.jobs[0][1] if self.jobs else float("inf")
        return answer

    def drain(self) -> None:
        """Drop the answers that are there by now."""
        with contextlib.suppress(ChildDiedError, OSError):
            while self.jobs and self.connection.poll():
                self.receive()

    def ask(self, question: tuple[Any, ...], limit_s: float) -> Any:
        """Ask, wait and return what the method gave. Raises what it raised, and ChildDiedError, also when the answer is
        overdue (the child is ended then)."""
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
        """End the process and all that it started. Waits until it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        remove_private(self._mark)
        self.connection.close()
        self._stderr.close()

    @property
    def idle(self) -> bool:
        """Whether it is there and has nothing to do."""
        return not self.jobs and self._process.poll() is None


@contextlib.contextmanager
def kept_between_runs() -> Iterator[None]:
    """Within, processes that a run leaves serve the next one: starting them, and the device, takes seconds."""
    global _kept
    if _kept is not None:  # whoever is outside ends them
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        left, _kept = _kept, None
        for child in itertools.chain(*left.values()):
            child.end()


def child_for(work: str) -> Child:
    """A process for some work: one that did such work before, where there is one, else a new one."""
    waiting = _kept.get(work, []) if _kept is not None else []
    while waiting:
        child = waiting.pop()
        if child.idle:
            return child
        child.end()
    return Child()


def leave(child: Child, work: str) -> None:
    """End a process, or keep it for the next run."""
    if _kept is not None and child.idle:
        _kept.setdefault(work, []).append(child)
    else:
        child.end()
