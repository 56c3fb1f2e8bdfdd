"""The journal of a search: a file of JSON lines, the study once and then a line for each outcome.

    {"format": "tilewright trials 2", "study": "..."}
    {"config": "tiled:16", "time_us": 12.5, "status": "ok", "times_us": [12.4, 12.5, 12.7], "compile_s": 0.4, ...}

The config is the key of a trial, whatever chose it; the rest is its `Entry` and when it was started. A line is written
and synced before `add` returns, and several processes may add to one file: whatever kills one of them, nothing told is
lost.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from ...codegen.config import Config
from ...codegen.errors import StoreError, TilewrightError
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, read_plain
from ...runtime.file_lock import file_lock
from ...runtime.files import in_lines, set_aside
from .entry import Entry

FORMAT = "tilewright trials 2"
MOST_BYTES = 256 << 20
"""Bytes that a journal may have to be read."""
_LOCK_SECONDS = 30.0


def digest_of(problem: Problem, device_key: str, versions: Iterable[tuple[str, str]]) -> str:
    """Digest of all that a time depends on beside the config."""
    facts = [FORMAT, device_key, str(problem), *map(list, versions)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class Journal:
    """The outcomes of one study."""

    @classmethod
    def of(cls, folder: Path, problem: Problem, device_key: str, versions: tuple[tuple[str, str], ...]) -> "Journal":
        """The journal of a problem on a device. Its name holds all that a time depends on, so that a run resumes only
        what is comparable. Raises StoreError."""
        digest = digest_of(problem, device_key, versions)
        return cls(folder / f"{digest}.jsonl", f"{study_of(problem)} {device_key} {digest}")

    def __init__(self, path: Path, study: str) -> None:
        """Open or begin the file at `path`. What is there and is no journal of this search, or cannot be read, is set
        aside, with a warning; so are lines that are broken told.

        Raises StoreError if the file cannot be written.
        """
        self.path = path
        """Its file."""
        self._header = _line({"format": FORMAT, "study": study})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                text = self._read()
                self._append(b"")
        except OSError as error:
            raise StoreError(f"cannot open the study {path}: {error.strerror or error}") from error
        self.entries: dict[Config, Entry] = self._entries(text)
        """Outcomes when the file was opened, in the order they came."""

    def add(self, config: Config, entry: Entry, started: datetime) -> None:
        """Keep one outcome. Raises StoreError if it cannot be written."""
        self.extend([(config, entry, {"started": started.isoformat(timespec="seconds")})])

    def extend(self, outcomes: Iterable[tuple[Config, Entry, dict[str, str]]]) -> None:
        """Keep several, each with further facts, synced once. Raises StoreError if they cannot be written."""
        lines = (_line({"config": str(config), **entry.packed(), **facts}) for config, entry, facts in outcomes)
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

    def _entries(self, text: bytes) -> dict[Config, Entry]:
        found: dict[Config, Entry] = {}
        broken = []
        for number, line in enumerate(text.split(b"\n")[1:-1], 2):  # after the last line break: nothing, or a torn line
            outcome = outcome_of(line)
            if outcome is None:
                broken.append(number)
            else:
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


def outcome_of(line: bytes) -> tuple[Config, Entry] | None:
    """Config and outcome of a line; None where something broke it: that config is tried again."""
    try:
        told = json.loads(line)
        return parse(told["config"]), Entry.unpacked(told)
    except (TilewrightError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _locked(path: Path) -> AbstractContextManager[None]:
    return file_lock(path.with_name(f"{path.name}.lock"), _LOCK_SECONDS)


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
