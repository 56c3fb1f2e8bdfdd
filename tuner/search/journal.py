"""The journal of a search: a file of JSON lines, the space once and then a line for each outcome.

    {"format": "tilewright trials 1", "study": "...", "dimensions": [["block_m", [16, 32, 64]], ...]}
    {"point": [2, 0, 1], "time_us": 12.5, "status": "ok", "started": "2026-11-23T06:45:00"}

A point holds the position of each varied parameter's value among the choices. A line is written and synced before
`add` returns, and several processes may add to one file: whatever kills one of them, nothing told is lost.
"""

import hashlib
import json
import os
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from ...codegen.errors import StoreError
from ...codegen.problem import Problem
from .space import Point, Space, Trials

FORMAT = "tilewright trials 1"


class Journal:
    """The outcomes of one study over one space."""

    @classmethod
    def of(
        cls, folder: Path, problem: Problem, device_key: str, versions: tuple[tuple[str, str], ...], space: Space
    ) -> "Journal":
        """The journal of a problem on a device. Its name holds all that a time depends on, so that a run resumes only
        what is comparable. Raises StoreError."""
        facts = [device_key, str(problem), *map(list, versions), [[d.name, list(d.choices)] for d in space.dimensions]]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        study = f"{problem.shape}-{problem.dtype.value}-{problem.trans} {device_key} {digest}"
        return cls(folder / f"{digest}.jsonl", space, study)

    def __init__(self, path: Path, space: Space, study: str) -> None:
        """Open or begin the file at `path`. A file that holds something else is set aside, with a warning.

        Raises StoreError if the file cannot be read or written.
        """
        self.space = space
        self._path = path
        self._lock = FileLock(f"{path}.lock")  # the system takes it back when its holder is killed
        dimensions = [[d.name, list(d.choices)] for d in space.dimensions]
        self._header = _line({"format": FORMAT, "study": study, "dimensions": dimensions})
        self._varied = [place for place, d in enumerate(space.dimensions) if len(d.choices) > 1]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                text = path.read_bytes() if path.exists() else b""
                if not text.startswith(self._header) and not self._header.startswith(text):
                    aside = path.with_name(path.name + ".corrupt")
                    path.replace(aside)
                    warnings.warn(f"{path} is no journal of this search: moved to {aside.name}", stacklevel=2)
                    text = b""
                self._append(b"")
        except OSError as error:
            raise StoreError(f"cannot open the study {path}: {error}") from error
        found: dict[Point, float | None] = {}
        for line in text.split(b"\n")[1:]:
            outcome = self._outcome(line)
            if outcome is not None and outcome[0] in space:
                found.setdefault(*outcome)
        self.history: Trials = tuple(found.items())
        """Outcomes when the file was opened, in the order they came; what the space lacks is left out."""

    def add(
        self,
        point: Point,
        time_us: float | None,
        started: datetime,
        status: str,
        reason: str,
        worst: float | None = None,
    ) -> None:
        """Keep one outcome; `worst` is the largest error over its bound. Raises StoreError if it cannot be written."""
        entry = {"point": [point[place] for place in self._varied], "time_us": time_us, "status": status}
        entry |= {"reason": reason} if reason else {}
        entry |= {} if worst is None else {"error_over_bound": worst}
        try:
            with self._lock:
                self._append(_line(entry | {"started": started.isoformat(timespec="seconds")}))
        except OSError as error:
            raise StoreError(f"cannot write the study {self._path}: {error}") from error

    def _append(self, line: bytes) -> None:
        with self._path.open("a+b") as file:
            _drop_torn_line(file)
            file.write(line if file.tell() else self._header + line)
            file.flush()
            os.fsync(file.fileno())

    def _outcome(self, line: bytes) -> tuple[Point, float | None] | None:
        """What a line holds; None where something broke it: that point is tried again."""
        try:
            entry = json.loads(line)
            given = dict(zip(self._varied, entry["point"], strict=True))
            point = tuple(given.get(place, 0) for place in range(len(self.space.dimensions)))
            time_us = entry["time_us"]
            return (point, time_us) if time_us is None or time_us > 0 else None
        except (ValueError, KeyError, TypeError):
            return None


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off what a killed process left of its last line, so that the next line starts on its own."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
