"""Journals of searches, read as recordings."""

import contextlib
import json
from pathlib import Path
from typing import Any

from ...codegen.errors import StoreError, check
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, opened_plain, read_plain
from ..search.journal import FORMAT, digest_of, outcome_of, study_of
from ..search.space import Box, Dimension, Point
from .entry import Entry
from .files import MOST_BYTES, Recording

_HEADER_BYTES = 1 << 24
_BROKEN = (OSError, NotPlainError, ValueError, KeyError, TypeError, RecursionError)
Versions = tuple[tuple[str, str], ...]


def journals_of(folder: Path, device_key: str, problem: Problem, versions: Versions) -> list[tuple[Path, bool]]:
    """Journals in `folder` of a problem on a device, and whether they are of these versions: such ones come first, and
    of equals the one that was written last."""
    found = []
    for path, dimensions in studies(folder).get(f"{study_of(problem)} {device_key}", {}).items():
        with contextlib.suppress(OSError):
            same = digest_of(problem, device_key, versions, dimensions) == path.stem
            found.append((same, path.stat().st_mtime, path))
    return [(path, same) for same, _, path in sorted(found, reverse=True)]


def studies(folder: Path) -> dict[str, dict[Path, list[Any]]]:
    """The journals that are there, and the dimensions of each, by how the names of their studies begin."""
    found: dict[str, dict[Path, list[Any]]] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(*_BROKEN), opened_plain(path) as file:
            header = json.loads(file.readline(_HEADER_BYTES))
            if header["format"] == FORMAT:
                found.setdefault(str(header["study"]).rpartition(" ")[0], {})[path] = header["dimensions"]
    return found


def problem_of(study: str) -> tuple[Problem, str]:
    """The problem and the key of the device that the name of a study stands for. Raises TilewrightError, ValueError or
    TypeError for a name that is not ours."""
    text, device, *_ = study.split(" ")
    shape, *kind = text.split("-")
    return Problem.parse(shape, *kind), device


def read_journal(path: Path) -> Recording:
    """The outcomes of a journal in the order they came, of each point the first, as a search takes them; lines that are
    not whole are left out. Raises StoreError."""
    try:
        head, *lines = read_plain(path, MOST_BYTES).split(b"\n")
        header = json.loads(head)
        check(header["format"] == FORMAT, "of another format", StoreError)
        problem, device_name = problem_of(str(header["study"]))
        dimensions = tuple(Dimension(name, tuple(choices)) for name, choices in header["dimensions"])
        known, entries = Box(dimensions), dict[Point, Entry]()
        for line in lines:
            outcome = outcome_of(line, dimensions)
            if outcome is not None and outcome[0] in known:
                entries.setdefault(*outcome)
        return Recording.of(problem, device_name, dimensions, entries)
    except (*_BROKEN, IndexError) as error:
        raise StoreError(f"cannot read the journal {path}: {error}") from error
