"""The parent's end of a worker process."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import Any

_START = "import sys; sys.path[:] = {path!r}; from {package}.tuner.measure.worker import main; main({descriptor})"


class ChildDiedError(Exception):
    """The worker process ended without answering; the text says how."""


class Child:
    """One worker process: started fresh, in a process group of its own, spoken to over a socket pair."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        package = __package__.partition(".")[0]
        code = _START.format(path=sys.path, package=package, descriptor=theirs.fileno())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._received = b""
        self.deadline = float("inf")
        """When the answer to the first job is overdue, by time.monotonic()."""
        self.jobs: deque[tuple[Any, float]] = deque()
        """What it was asked and not answered yet, with the limit of each in seconds."""

    @property
    def job(self) -> Any:
        """What it is working on; None while it is idle."""
        return self.jobs[0][0] if self.jobs else None

    @property
    def pid(self) -> int:
        """Process id, also of its group."""
        return self._process.pid

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], job: Any, limit_s: float) -> None:
        """Ask; the answer is due within `limit_s` of the answer before it. Raises ChildDiedError."""
        if not self.jobs:
            self.deadline = time.monotonic() + limit_s
        self.jobs.append((job, limit_s))
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ChildDiedError(self._last_words()) from error

    def receive(self) -> dict[str, Any] | None:
        """The answer to the first job once it is whole, None until then; blocks only if nothing is there.

        Call again while `pending`. Raises ChildDiedError.
        """
        if not self.pending:
            try:
                chunk = self._socket.recv(1 << 20)
            except OSError:
                chunk = b""
            if not chunk:
                raise ChildDiedError(self._last_words())
            self._received += chunk
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = rest
        self.jobs.popleft()
        self.deadline = time.monotonic() + self.jobs[0][1] if self.jobs else float("inf")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def pending(self) -> bool:
        """Whether a whole answer was read already and waits."""
        return b"\n" in self._received

    def ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Ask and wait for the answer. Raises ChildDiedError, also when it is overdue (the child is ended then)."""
        self.send(message, message["do"], limit_s)
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while self.pending or selector.select(max(0.0, self.deadline - time.monotonic())):
                answer = self.receive()
                if answer is not None:
                    return answer
        self.end()
        raise ChildDiedError(f"no answer within {limit_s:.0f} s")

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
        self._socket.close()
        self._stderr.close()
