"""The journal of a search: a file of JSON lines, the space once and then a line for each outcome.

    {"format": "tilewright trials 1", "study": "...", "dimensions": [["block_m", [16, 32, 64]], ...]}
    {"point": [2, 0, 1], "time_us": 12.5, "status": "ok", "times_us": [12.4, 12.5, 12.7], "compile_s": 0.4, ...}

A point holds the position of each varied parameter's value among the choices; the rest is its `Entry` and when it was
started. A line is written and synced before
`add` returns, and several processes may add to one file: whatever kills one of them, nothing told is lost.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from ...codegen.errors import StoreError
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, read_plain
from ...runtime.file_lock import file_lock
from ...runtime.files import in_lines, set_aside
from ..recording.entry import Entry
from .space import Box, Dimension, Point, Space, Trials

FORMAT = "tilewright trials 1"
MOST_BYTES = 256 << 20
"""Bytes that a journal may have to be read."""
_LOCK_SECONDS = 30.0


def listed(dimensions: Sequence[Dimension]) -> list[list[Any]]:
    """Names and values as JSON has them."""
    return [[dimension.name, list(dimension.choices)] for dimension in dimensions]


def digest_of(
    problem: Problem, device_key: str, versions: Iterable[tuple[str, str]], dimensions: Sequence[list[Any]]
) -> str:
    """Of all that a time depends on."""
    facts = [device_key, str(problem), *map(list, versions), dimensions]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class Journal:
    """The outcomes of one study over one space."""

    @classmethod
    def of(
        cls, folder: Path, problem: Problem, device_key: str, versions: tuple[tuple[str, str], ...], space: Space | Box
    ) -> "Journal":
        """The journal of a problem on a device. Its name holds all that a time depends on, so that a run resumes only
        what is comparable. Raises StoreError."""
        digest = digest_of(problem, device_key, versions, listed(space.dimensions))
        return cls(folder / f"{digest}.jsonl", space, f"{study_of(problem)} {device_key} {digest}")

    def __init__(self, path: Path, space: Space | Box, study: str) -> None:
        """Open or begin the file at `path`. What is there and is no journal of this search, or cannot be read, is set
        aside, with a warning; so are lines that are broken told.

        Raises StoreError if the file cannot be written.
        """
        self.space = space
        self.path = path
        """Its file."""
        self._header = _line({"format": FORMAT, "study": study, "dimensions": listed(space.dimensions)})
        self._varied = _varied(space.dimensions)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                text = self._read()
                self._append(b"")
        except OSError as error:
            raise StoreError(f"cannot open the study {path}: {error.strerror or error}") from error
        self.entries: dict[Point, Entry] = self._entries(text)
        """Outcomes when the file was opened, in the order they came; what the space lacks is left out."""

    @property
    def history(self) -> Trials:
        """Their times."""
        return tuple((point, entry.time_us) for point, entry in self.entries.items())

    def add(self, point: Point, entry: Entry, started: datetime) -> None:
        """Keep one outcome. Raises StoreError if it cannot be written."""
        self.extend([(point, entry, {"started": started.isoformat(timespec="seconds")})])

    def extend(self, outcomes: Iterable[tuple[Point, Entry, dict[str, str]]]) -> None:
        """Keep several, each with further facts, synced once. Raises StoreError if they cannot be written."""
        lines = (
            _line({"point": [point[place] for place in self._varied], **entry.packed(), **facts})
            for point, entry, facts in outcomes
        )
        try:
            with _locked(self.path):
                self._append(b"".join(lines))
        except OSError as error:
            raise StoreError(f"cannot write the study {self.path}: {error.strerror or error}") from error

    def _read(self) -> bytes:
        """The text of the file; nothing where it was set aside, with a warning."""
        try:
            text = read_plain(self.path, MOST_BYTES)
            if text.startswith(self._header) or self._header.startswith(text):
                return text
            reason = "is no journal of this search"
        except FileNotFoundError:
            return b""
        except NotPlainError as error:
            reason = f"cannot be read ({error})"
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        warnings.warn(f"{self.path} {reason}: moved to {set_aside(self.path, 'corrupt')}", stacklevel=4)
        return b""

    def _entries(self, text: bytes) -> dict[Point, Entry]:
        found: dict[Point, Entry] = {}
        broken = []
        for number, line in enumerate(text.split(b"\n")[1:-1], 2):  # after the last line break: nothing, or a torn line
            outcome = outcome_of(line, self.space.dimensions)
            if outcome is None:
                broken.append(number)
            elif outcome[0] in self.space:
                found.setdefault(*outcome)
        if broken:
            what = f"{self.path} is damaged: trials dropped: {len(broken)}, in {in_lines(broken)}"
            warnings.warn(what, stacklevel=4)
        return found

    def _append(self, line: bytes) -> None:
        with self.path.open("a+b") as file:
            _drop_torn_line(file)
            file.write(line if file.tell() else self._header + line)
            file.flush()
            os.fsync(file.fileno())


def remove_journal(path: Path) -> bool:
    """Remove a journal under its lock; False where it is gone already. A search that is under way begins another one.
    Raises StoreError where it cannot be removed."""
    try:
        with _locked(path):
            path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot remove the study {path}: {error.strerror or error}") from error
    return True


def outcome_of(line: bytes, dimensions: Sequence[Dimension]) -> tuple[Point, Entry] | None:
    """What a line holds, wherever its point is; None where something broke it: that point is tried again."""
    try:
        told = json.loads(line)
        places = told["point"]
        if not all(type(place) is int for place in places):
            return None
        given = dict(zip(_varied(dimensions), places, strict=True))
        return tuple(given.get(place, 0) for place in range(len(dimensions))), Entry.unpacked(told)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _locked(path: Path) -> AbstractContextManager[None]:
    return file_lock(path.with_name(f"{path.name}.lock"), _LOCK_SECONDS)


def _varied(dimensions: Sequence[Dimension]) -> list[int]:
    """The places of the parameters that a line tells."""
    return [place for place, dimension in enumerate(dimensions) if len(dimension.choices) > 1]


def study_of(problem: Problem) -> str:
    """The first word of a study's name: what is multiplied."""
    return f"{problem.shape} {problem.kind}".replace(" ", "-")


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
