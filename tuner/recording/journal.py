"""The journal of a search: a file of JSON lines, a header with the study and then a line for each outcome.

    {"format": "tilewright trials 2", "study": "..."}
    {"config": "tiled:16", "time_us": 12.5, "status": "ok", "times_us": [12.4, 12.5, 12.7], "compile_s": 0.4, ...}

A line holds a config, its `Entry` and the time at which the trial started; the config is the key of the trial, whatever
sampler chose it. `add` writes and syncs a line before it returns, and several processes may add to one file: a process
that is killed loses no outcome that it added.
"""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from ...codegen.config import Config
from ...codegen.errors import StoreError, TilewrightError, check
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, opened_plain, read_plain
from ...runtime.file_lock import writing
from ...runtime.files import in_lines, set_aside
from .entry import Entry
from .files import MOST_BYTES, Recording

FORMAT = "tilewright trials 2"
"""Format of journals."""
_HEADER_BYTES = 1 << 24
"""Bytes of the longest header that is read."""
_STARTED = re.compile(rb'"started":"([0-9T:-]+)"')
"""Time in a line at which its trial started."""
_BROKEN = (
    OSError, NotPlainError, TilewrightError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
    RecursionError,
)  # fmt: skip
"""Errors that reading a damaged file or line raises."""
Versions = tuple[tuple[str, str], ...]
"""Names and versions of what a measured time depends on."""


def digest_of(problem: Problem, device_key: str, versions: Versions) -> str:
    """Digest of all that a time depends on beside the config."""
    facts = [FORMAT, device_key, str(problem), *map(list, versions)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class Journal:
    """The outcomes of one study."""

    @classmethod
    def of(cls, folder: Path, problem: Problem, device_key: str, versions: Versions) -> "Journal":
        """The journal of a problem on a device. Its name holds all that a time depends on, so that a run resumes only
        comparable outcomes. Raises StoreError."""
        digest = digest_of(problem, device_key, versions)
        return cls(folder / f"{digest}.jsonl", f"{study_of(problem)} {device_key} {digest}")

    def __init__(self, path: Path, study: str) -> None:
        """Open or begin the file at `path`. A file that is no journal of this study, or cannot be read, is set aside
        with a warning; a warning also counts broken lines.

        Raises StoreError if the file cannot be written.
        """
        self.path = path
        """Path of the file."""
        self._header = _line({"format": FORMAT, "study": study})
        with _locked(path, "open"):
            text = self._read()
            self._append(b"")
        self.entries: dict[Config, Entry] = self._entries(text)
        """Outcomes when the file was opened, in the order they came."""

    def add(self, config: Config, entry: Entry, started: datetime) -> None:
        """Write one outcome. Raises StoreError if it cannot be written."""
        self.extend([(config, entry, {"started": started.isoformat(timespec="seconds")})])

    def extend(self, outcomes: Iterable[tuple[Config, Entry, dict[str, str]]]) -> None:
        """Write several outcomes, each with further facts, synced once. Raises StoreError if they cannot be written."""
        lines = (_line({"config": str(config), **entry.packed(), **facts}) for config, entry, facts in outcomes)
        with _locked(self.path, "write"):
            self._append(b"".join(lines))

    def _read(self) -> bytes:
        """The text of the file; nothing where it was set aside, with a warning."""
        try:
            text = read_plain(self.path, MOST_BYTES)
            if text.startswith(self._header) or self._header.startswith(text):
                return text
            reason = "is no journal of this search"
        except FileNotFoundError:
            return b""
        except (NotPlainError, OSError) as error:
            reason = f"cannot be read ({getattr(error, 'strerror', error)})"
        warnings.warn(f"{self.path} {reason}: moved to {set_aside(self.path, 'corrupt')}", stacklevel=4)
        return b""

    def _entries(self, text: bytes) -> dict[Config, Entry]:
        lines = text.split(b"\n")[1:-1]  # behind the last line break stands nothing, or a torn line
        outcomes = [outcome_of(line) for line in lines]
        if broken := [number for number, outcome in enumerate(outcomes, 2) if outcome is None]:
            message = f"{self.path} is damaged: trials dropped: {len(broken)}, in {in_lines(broken)}"
            warnings.warn(message, stacklevel=4)
        return _firsts(outcomes)

    def _append(self, line: bytes) -> None:
        with self.path.open("a+b") as file:
            _drop_torn_line(file)
            file.write(line if file.tell() else self._header + line)
            file.flush()
            os.fsync(file.fileno())


def remove_journal(path: Path) -> bool:
    """Remove a journal under its lock; False where it is gone already. A search that is under way begins another one.
    Raises StoreError where it cannot be removed."""
    with _locked(path, "remove"):
        is_there = path.exists()
        path.unlink(missing_ok=True)
        return is_there


def outcome_of(line: bytes) -> tuple[Config, Entry] | None:
    """Config and outcome of a line; None for a broken line, whose config is tried again."""
    try:
        values = json.loads(line)
        return parse(values["config"]), Entry.unpacked(values)
    except _BROKEN:
        return None


def study_of(problem: Problem) -> str:
    """The first word of a study's name, which names the problem."""
    return f"{problem.shape} {problem.kind}".replace(" ", "-")


def problem_of(study: str) -> tuple[Problem, str]:
    """The problem and the key of the device that the name of a study stands for. Raises TilewrightError, ValueError or
    TypeError for a name that is not ours."""
    text, device, *_ = study.split(" ")
    kind, _, batch = text.partition("-batch-")
    return Problem.parse(*kind.split("-"), batch=int(batch or 1)), device


def studies(folder: Path) -> dict[str, list[Path]]:
    """The journals in a folder, by the first two words of their studies' names: problem and key of the device."""
    journals: dict[str, list[Path]] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(*_BROKEN), opened_plain(path) as file:
            header = json.loads(file.readline(_HEADER_BYTES))
            if header["format"] == FORMAT:
                journals.setdefault(str(header["study"]).rpartition(" ")[0], []).append(path)
    return journals


def journals_of(folder: Path, device_key: str, problem: Problem, versions: Versions) -> list[tuple[Path, bool]]:
    """Journals in `folder` of a problem on a device, and whether they are of these versions. Journals of these versions
    come first, and among equals the one that was written last."""
    ranked = []
    for path in studies(folder).get(f"{study_of(problem)} {device_key}", ()):
        with contextlib.suppress(OSError):
            same = digest_of(problem, device_key, versions) == path.stem
            ranked.append((same, path.stat().st_mtime, path))
    return [(path, same) for same, _, path in sorted(ranked, reverse=True)]


def read_journal(path: Path) -> Recording:
    """The outcomes of a journal in the order they came, the first of each variant, as a search takes them. Torn lines
    and configs that this version does not have are left out. Raises StoreError."""
    try:
        data = read_plain(path, MOST_BYTES)
        head, *lines = data.split(b"\n")
        header = json.loads(head)
        problem, device_name = problem_of(str(header["study"]))
        check(header["format"] == FORMAT, "of another format", StoreError)
        date = min(_STARTED.findall(data), default=b"").decode()
        environment = (("date", date),) if date else ()
        recording = Recording.of(problem, device_name, _firsts(map(outcome_of, lines)))
        return replace(recording, environment=environment)
    except _BROKEN as error:
        raise StoreError(f"cannot read the journal {path}: {error}") from error


def _firsts(outcomes: Iterable[tuple[Config, Entry] | None]) -> dict[Config, Entry]:
    """The first outcome of each variant, without broken lines."""
    entries: dict[Config, Entry] = {}
    for variant, entry in filter(None, outcomes):
        entries.setdefault(variant, entry)
    return entries


def _locked(path: Path, action: str) -> AbstractContextManager[None]:
    """Context that holds the lock of a journal."""
    return writing(f"{action} the study", path, path.with_name(f"{path.name}.lock"))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off the torn last line that a killed process left, so that the next line starts on its own."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
