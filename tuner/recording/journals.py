"""Journals of searches, read as recordings."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ...codegen.errors import StoreError, check
from ...codegen.problem import Problem
from ...codegen.reading import NotPlainError, opened_plain, read_plain
from ..search.space import Dimension, Point
from .entry import Entry
from .files import MOST_BYTES, Recording
from .journal import FORMAT, digest_of, outcome_of, study_of

_POINTS = "tilewright trials 1"
"""Format of journals whose header lists dimensions, and whose lines have positions of values in place of a config."""
_HEADER_BYTES = 1 << 24
_BROKEN = (OSError, NotPlainError, ValueError, KeyError, TypeError, RecursionError)
Versions = tuple[tuple[str, str], ...]
V = TypeVar("V")


def journals_of(folder: Path, device_key: str, problem: Problem, versions: Versions) -> list[tuple[Path, bool]]:
    """Journals in `folder` of a problem on a device, and whether they are of these versions: such ones come first, and
    of equals the one that was written last."""
    found = []
    for path in studies(folder).get(f"{study_of(problem)} {device_key}", ()):
        with contextlib.suppress(OSError):
            same = digest_of(problem, device_key, versions) == path.stem
            found.append((same, path.stat().st_mtime, path))
    return [(path, same) for same, _, path in sorted(found, reverse=True)]


def studies(folder: Path) -> dict[str, list[Path]]:
    """The journals that are there, by how the names of their studies begin."""
    found: dict[str, list[Path]] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(*_BROKEN), opened_plain(path) as file:
            header = json.loads(file.readline(_HEADER_BYTES))
            if header["format"] in (FORMAT, _POINTS):
                found.setdefault(str(header["study"]).rpartition(" ")[0], []).append(path)
    return found


def problem_of(study: str) -> tuple[Problem, str]:
    """The problem and the key of the device that the name of a study stands for. Raises TilewrightError, ValueError or
    TypeError for a name that is not ours."""
    text, device, *_ = study.split(" ")
    shape, *kind = text.split("-")
    return Problem.parse(shape, *kind), device


def read_journal(path: Path) -> Recording:
    """The outcomes of a journal in the order they came, of each variant the first, as a search takes them; lines that
    are not whole, or of configs that this version does not have, are left out. Raises StoreError."""
    try:
        head, *lines = read_plain(path, MOST_BYTES).split(b"\n")
        header = json.loads(head)
        problem, device_name = problem_of(str(header["study"]))
        if header["format"] == _POINTS:
            dimensions = tuple(Dimension(name, tuple(choices)) for name, choices in header["dimensions"])
            return Recording.at_points(problem, device_name, dimensions, _firsts(_of_points(dimensions, lines)))
        check(header["format"] == FORMAT, "of another format", StoreError)
        return Recording.of(problem, device_name, _firsts(filter(None, map(outcome_of, lines))))
    except (*_BROKEN, IndexError, StoreError) as error:
        raise StoreError(f"cannot read the journal {path}: {error}") from error


def _firsts(outcomes: Iterable[tuple[V, Entry]]) -> dict[V, Entry]:
    """The first outcome of each variant."""
    found: dict[V, Entry] = {}
    for variant, entry in outcomes:
        found.setdefault(variant, entry)
    return found


def _of_points(dimensions: Sequence[Dimension], lines: Iterable[bytes]) -> Iterator[tuple[Point, Entry]]:
    """Points and outcomes of lines that hold the position of a value for each dimension that has several."""
    sizes = [len(dimension.choices) for dimension in dimensions]
    varied = [place for place, size in enumerate(sizes) if size > 1]
    for line in lines:
        with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
            told = json.loads(line)
            at = dict(zip(varied, told["point"], strict=True))
            if all(type(place) is int and 0 <= place < sizes[each] for each, place in at.items()):
                yield tuple(at.get(place, 0) for place in range(len(sizes))), Entry.unpacked(told)
