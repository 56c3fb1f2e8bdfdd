"""Lists of shapes: the files of benchmarks/suites/, and the user's own."""

import csv
import io
import json
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from reprlib import repr as short
from typing import Any

from ...codegen.errors import ConfigError, TilewrightError, check, check_path, nearest_of
from ...codegen.problem import DType, Grade, Problem
from ...codegen.reading import read_named, reason_of

MAX_PROBLEMS = 10_000
"""Most shapes of one command: at 20 s each they take two days to tune, and more are likely a mistake."""
_MAX_BYTES = 1 << 20
"""Most bytes of a file of shapes."""
_SIZES = ("m", "n", "k")
_FIELDS = (*_SIZES, "dtype", "trans", "accuracy", "batch")


def _folder() -> Traversable:
    return resources.files(__package__.partition(".")[0]).joinpath("benchmarks", "suites")


def suite_names() -> tuple[str, ...]:
    """Every suite that ships, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def suite_problems(
    name: str, dtype: object = DType.FLOAT, trans: str = "nn", accuracy: object = Grade.IEEE, batch: int = 1
) -> tuple[Problem, ...]:
    """The problems of a suite in order, each once; `name` is a suite that ships, or a .toml, .json or .csv file.

    An entry is `MxNxK` or has m, n and k, and perhaps its own dtype, trans, accuracy and batch in place of the
    arguments.
    Raises ConfigError, which lists the suites or names the file and the entry that is wrong.
    """
    reader = _READERS.get(Path(name).suffix.lower())
    if reader is None:
        names, endings = suite_names(), ", ".join(_READERS)
        text = f"suite must be a file ending in {endings} or one of {', '.join(names)}, got {name!r}"
        check(name in names, text + nearest_of(name, names))
        data, reader = _folder().joinpath(f"{name}.toml").read_bytes(), _READERS[".toml"]
    else:
        data = read_named("suite", check_path("suite", name) or Path(), _MAX_BYTES)
    problems: dict[Problem, None] = {}
    place = ""
    try:
        for where, entry in reader(data.decode("utf-8-sig")):  # spreadsheets begin a file with a mark
            place = where
            problems[_problem(entry, dtype, trans, accuracy, batch)] = None
            place = ""
        count = len(problems)
        check(count > 0, 'it wants a list of shapes, such as shapes = ["1024x768x512", "100"]')
        check(count <= MAX_PROBLEMS, f"it has {count:,} shapes, {MAX_PROBLEMS:,} are taken at most; divide it")
    except (TilewrightError, ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(f"suite {name}: {place}{reason_of(error)}") from error
    return tuple(problems)


def _problem(entry: object, dtype: object, trans: str, accuracy: object, batch: object) -> Problem:
    if isinstance(entry, dict):
        for key in entry:
            check(key in _FIELDS, f"an entry has {', '.join(_FIELDS)}, got {short(key)}")
        sizes, batch = [entry.get(name) for name in _SIZES], entry.get("batch", batch)
        for name, size in zip((*_SIZES, "batch"), (*sizes, batch)):
            is_whole = type(size) is int or (isinstance(size, str) and size.isdecimal())
            check(is_whole, f"{name} must be a whole number, got {short(size)}")
        text, dtype, trans = "x".join(map(str, sizes)), entry.get("dtype", dtype), entry.get("trans", trans)
        accuracy = entry.get("accuracy", accuracy)
    else:
        check(isinstance(entry, str), f"an entry is MxNxK or has m, n and k, got {short(entry)}")
        text = str(entry)
    problem = Problem.parse(text, dtype, trans, accuracy, batch=int(str(batch)))
    check(min(problem.m, problem.n, problem.k) > 0, f"a dimension is 0 in {problem}")
    return problem


def _numbered(document: Any) -> Iterator[tuple[str, object]]:
    """Entries of a list, or of `shapes` in a table, each after the words that name it."""
    shapes = document.get("shapes") if isinstance(document, dict) else document
    for number, entry in enumerate(shapes if isinstance(shapes, list) else (), start=1):
        yield f"entry {number}: ", entry


def _csv(text: str) -> Iterator[tuple[str, object]]:
    rows = csv.reader(io.StringIO(text), strict=True)
    header = [cell.strip().lower() for cell in next(rows, [])]
    is_valid = {*_SIZES} <= {*header} <= {*_FIELDS} and len(header) == len(set(header))
    check(
        is_valid,
        f"its first line must be m,n,k and perhaps ,dtype, ,trans, ,accuracy and ,batch, got {short(','.join(header))}",
    )
    for row in rows:
        cells = [cell.strip() for cell in row]
        if any(cells):
            named = {name: cell for name, cell in zip(header, cells) if cell}
            yield f"line {rows.line_num}: ", named if len(cells) <= len(header) else cells


_READERS: dict[str, Callable[[str], Iterator[tuple[str, object]]]] = {
    ".toml": lambda text: _numbered(tomllib.loads(text)),
    ".json": lambda text: _numbered(json.loads(text)),
    ".csv": _csv,
}
