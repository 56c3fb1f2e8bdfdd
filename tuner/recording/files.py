"""Recorded runs, in the two formats that other tuners read: Kernel Tuner's cache file and T4 1.0.0.

Both formats count in milliseconds; in memory times are in microseconds and costs in seconds.
"""

import contextlib
import gzip
import itertools
import json
import keyword
import math
import re
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.config import Config
from ...codegen.errors import ConfigError, check
from ...codegen.leaf import Value
from ...codegen.problem import Grade, Problem
from ...codegen.reading import read_named, reason_of
from ...runtime.files import in_lines, spared, write_output
from ..search.space import MOST_CHOICES, Dimension, Point, Space
from .entry import Entry
from .points import space_of

MOST_BYTES = 256 << 20
"""Bytes of the largest recording or journal that is read, unpacked too."""
MOST_VALUES = 8_000_000
"""Values of the largest recording that is read: each takes some hundred bytes of memory, however short its text is."""

_CACHE = re.compile(r'"cache"[ \t]*:[ \t]*\{')
_KERNEL = re.compile(r"gemm (\w+) (\w\w)(?: (\w+))?")
_ROW = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_CLOSED = re.compile(r"[\s,]*\}?\s*\}?\s*")
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_FAILURES = {"InvalidConfig": "pruned", "CompilationFailedConfig": "compile_error"}
"""Our statuses of Kernel Tuner's failures; any other failure is a launch_error."""
_FAILURE_NAMES = {status: name for name, status in _FAILURES.items()}
_INVALIDITY = {
    "ok": "correct",
    "pruned": "constraints",
    "compile_error": "compile",
    "wrong_result": "correctness",
    "timeout": "timeout",
}
"""T4's words for our statuses; any other status is a runtime failure."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recorded run: the points that were tried and their outcomes."""

    device_name: str
    kernel_name: str
    problem_size: tuple[int, ...]
    """Numbers by which the recorder described the problem: m, n and k in our recordings."""
    dimensions: tuple[Dimension, ...]
    """Parameters and their values."""
    entries: Mapping[Point, Entry]
    """Outcome at each point tried, in the order recorded."""
    environment: tuple[tuple[str, str], ...] = ()
    """Date of the run in ISO 8601, and versions of what its times depend on, by name; empty where they were not
    recorded."""

    @classmethod
    def of(cls, problem: Problem, device_name: str, entries: Mapping[Config, Entry]) -> "Recording":
        """The recording of a search of our own, over the values that occur; its `problem` is this one."""
        space = space_of(entries) if entries else None
        return cls(
            device_name=device_name,
            kernel_name=f"gemm {problem.kind}",
            problem_size=(problem.m, problem.n, problem.k),
            dimensions=space.dimensions if space else (),
            entries=dict(zip(space.points, entries.values(), strict=True)) if space else {},
        )

    @property
    def problem(self) -> Problem | None:
        """The problem that was tuned; None where another program recorded something else."""
        match = _KERNEL.fullmatch(self.kernel_name)
        if match is None or len(self.problem_size) != 3:
            return None
        return Problem.parse("x".join(map(str, self.problem_size)), match[1], match[2], match[3] or Grade.IEEE)

    def values(self, point: Point) -> dict[str, Value]:
        """Names and values of all parameters at a point."""
        return {d.name: d.choices[place] for d, place in zip(self.dimensions, point, strict=True)}

    def space(self) -> Space:
        """All points that break no constraint, failed ones included. Raises ConfigError where there is none."""
        return Space(self.dimensions, tuple(p for p, entry in self.entries.items() if entry.status != "pruned"))

    @property
    def best_us(self) -> float:
        """The least time in microseconds. Raises ConfigError if nothing worked."""
        times = [entry.time_us for entry in self.entries.values() if entry.time_us is not None]
        check(bool(times), "no variant of the recording worked")
        return min(times)


def read_cache_file(path: Path) -> Recording:
    """Read a Kernel Tuner cache file, gzipped or not.

    A file without its last brackets is whole: Kernel Tuner appends to such files. A damaged or torn file gives its
    whole rows, with a warning that counts the others and names their lines. Raises ConfigError, which names the file,
    for any other file and for one past MOST_BYTES or MOST_VALUES.
    """
    data = read_named("recording", path, MOST_BYTES)
    try:
        if data[:2] == b"\x1f\x8b":
            # zlib rather than gzip: it unpacks a torn file as far as it goes.
            data = zlib.decompressobj(31).decompress(data, MOST_BYTES + 1)
            check(len(data) <= MOST_BYTES, f"it unpacks to more than {MOST_BYTES >> 20} MB")
        check(sum(map(data.count, b",[{\n")) <= MOST_VALUES, f"it holds more than {MOST_VALUES:,} values")
        text = data.decode(errors="replace")
        document, broken = _parse(text)
        recording, odd = _recording(document)
    except ConfigError as error:
        raise ConfigError(f"not a recording: {path}: {error}") from error
    except (*_BROKEN, zlib.error) as error:
        raise ConfigError(f"not a Kernel Tuner cache file: {path}: {reason_of(error)}") from error
    numbered = enumerate(text.split("\n") if odd else (), 1)
    odd_at = {place: keys for place, line in numbered if (keys := _rows(line)[0].keys() & odd)}
    lines = sorted({*broken, *odd_at})
    if dropped := len(lines) + len(odd.difference(*odd_at.values())):
        where = f", in {in_lines(lines)}" if lines else ""
        warnings.warn(f"{path} is damaged: rows dropped: {dropped}{where}", stacklevel=2)
    return recording


def _parse(text: str) -> tuple[dict[str, Any], list[int]]:
    """The document, without the broken rows of a damaged one, and the lines of these; in time linear in its size."""
    open_end = text.rstrip().removesuffix(",") + "}}"  # a file that Kernel Tuner appends to lacks its brackets
    for version in (text, open_end):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            document = json.loads(version)
            check(isinstance(document, dict), "it is no object")
            return document, []
    head = _CACHE.search(text)
    document = json.loads(text if head is None else text[: head.end()] + "}}")
    broken = []
    start = head.end() if head else 0
    for place, line in enumerate(text[start:].split("\n"), text.count("\n", 0, start) + 1):
        rows, is_whole = _rows(line)
        document["cache"].update(rows)
        broken += [] if is_whole else [place]
    return document, broken


def _rows(line: str) -> tuple[dict[str, Any], bool]:
    """Keys and values of the rows on a line up to the first broken one, and whether all are whole. Kernel Tuner writes
    a row a line, other programs write all rows on one."""
    rows, end, decoder = dict[str, Any](), 0, json.JSONDecoder()
    while match := _ROW.match(line, end):
        try:
            rows[json.loads(match[1])], end = decoder.raw_decode(line, match.end())
        except (ValueError, RecursionError):
            return rows, False
    return rows, _CLOSED.fullmatch(line, end) is not None  # the last row may close the document too


def _recording(document: dict[str, Any]) -> tuple[Recording, set[str]]:
    """The recording of a document, and the keys of its rows that cannot be used. Raises any of _BROKEN."""
    names, choices, rows = document["tune_params_keys"], document["tune_params"], document["cache"]
    check(isinstance(names, list) and all(isinstance(name, str) for name in names), "tune_params_keys are no names")
    check(len(set(names)) == len(names) > 0, "tune_params_keys are not all different")
    check(isinstance(choices, dict) and isinstance(rows, dict), "tune_params or cache is no object")
    dimensions = tuple(Dimension(name, _choices(name, choices[name])) for name in names)
    places = [{choice: place for place, choice in enumerate(d.choices)} for d in dimensions]
    entries: dict[Point, Entry] = {}
    odd = set()
    for key, element in rows.items():
        try:
            point = tuple(place[_value(element[name])] for name, place in zip(names, places, strict=True))
            entries[point] = _entry(element)
        except _BROKEN:
            odd.add(key)
    check(bool(entries), "no row is whole")
    size, environment = document.get("problem_size"), document.get("environment")
    recording = Recording(
        device_name=str(document.get("device_name", "")),
        kernel_name=str(document.get("kernel_name", "")),
        problem_size=tuple(int(n) for n in size) if isinstance(size, list) else (),
        dimensions=dimensions,
        entries=entries,
        environment=tuple((name, str(value)) for name, value in environment.items()) if environment else (),
    )
    return recording, odd


def _choices(name: str, values: object) -> tuple[Value, ...]:
    """Numbers in rising order, so that neighbours are neighbours; a word before them stays in front."""
    check(isinstance(values, list), f"the values of {name} are no list")
    assert isinstance(values, list)
    choices = list(dict.fromkeys(_value(value) for value in values))
    check(len(choices) <= MOST_CHOICES, f"{name} has more than {MOST_CHOICES} values")
    return tuple(sorted(choices, key=lambda c: (not isinstance(c, str), c if isinstance(c, int) else 0)))


def _value(value: Any) -> Value:
    if (isinstance(value, float) and value.is_integer()) or isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int) else str(value)


def _entry(element: dict[str, Any]) -> Entry:
    """The outcome of a row. Raises any of _BROKEN."""
    names = ("compile_time", "verification_time", "benchmark_time")
    compile_s, verify_s, bench_s = (_number(element.get(name) or 0) / 1e3 for name in names)
    reason, error, time = str(element.get("reason", "")), element.get("error_over_bound"), element.get("time")
    error = None if error is None else _number(error)
    failure = next((text for text in (time, element.get("__error__")) if isinstance(text, str)), None)
    if failure is not None or time is None or not time > 0:
        status = str(element.get("status", _FAILURES.get(failure or "", "launch_error")))
        return Entry(status, None, (), compile_s, verify_s, bench_s, reason, error)
    times_us = tuple(_us_of(_number(one)) for one in element.get("times") or [time])
    return Entry("ok", _us_of(_number(time)), times_us, compile_s, verify_s, bench_s, reason, error)


def _number(value: Any) -> float:
    """A finite number of JSON. Raises ValueError for anything else, OverflowError for one past all floats."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"no number: {value!r:.60}")
    return float(value)


def write_both(path: Path, recording: Recording) -> None:
    """Write a Kernel Tuner cache file, and a T4 file beside it. A file that cannot be written costs an OutputWarning
    alone."""
    for file, write in ((path, write_cache_file), (t4_path(path), write_t4)):
        with spared(file):
            write(file, recording)


def t4_path(path: Path) -> Path:
    """Path of the T4 file beside a cache file: `run.json.gz` gives `run.t4.json.gz`."""
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(stem + ".t4.json" + (".gz" if path.name.endswith(".gz") else ""))


def write_cache_file(path: Path, recording: Recording) -> None:
    """Write a Kernel Tuner cache file, gzipped if the name ends in .gz, whole or not at all. Its header has the
    restrictions that Kernel Tuner needs to search the space. Raises OSError."""
    names = [d.name for d in recording.dimensions]
    header = {
        "device_name": recording.device_name,
        "kernel_name": recording.kernel_name,
        "problem_size": list(recording.problem_size),
        "tune_params_keys": names,
        "tune_params": {d.name: list(d.choices) for d in recording.dimensions},
        "objective": "time",
        **({"environment": dict(recording.environment)} if recording.environment else {}),
        "restrictions": restrictions(recording),
        "cache": {},
    }
    lines = []
    for point, entry in recording.entries.items():
        values = recording.values(point)
        key = ",".join(str(value) for value in values.values())
        lines.append(f"{json.dumps(key)}: {json.dumps(values | _element(entry))}")
    # Kernel Tuner takes the last three characters off and appends line by line.
    text = json.dumps(header, indent="").removesuffix("}\n}") + "\n" + ",\n".join(lines) + "}\n}"
    _write(path, text)


def restrictions(recording: Recording) -> list[str]:
    """Restrictions, in Python, that leave Kernel Tuner the points of a recording: it builds the space before it
    searches, and would list every combination of values.

    The pairs of values that occur leave out most combinations early; the points themselves, as the last restriction,
    leave out the others, which Kernel Tuner could not simulate. Empty where the name of a dimension is none in Python.
    """
    dimensions = recording.dimensions
    if any(not d.name.isidentifier() or keyword.iskeyword(d.name) for d in dimensions):
        return []
    pairs = itertools.combinations(range(len(dimensions)), 2)
    everything = tuple(range(len(dimensions)))
    written = []
    for places in dict.fromkeys([*pairs, everything]):
        chosen = [dimensions[place] for place in places]
        occurring = sorted({tuple(point[place] for place in places) for point in recording.entries})
        if len(occurring) < math.prod(len(d.choices) for d in chosen):
            values = (tuple(d.choices[at] for d, at in zip(chosen, point)) for point in occurring)
            written.append(f"({''.join(f'{d.name}, ' for d in chosen)}) in {{{', '.join(map(repr, values))}}}")
    return written


def _element(entry: Entry) -> dict[str, Any]:
    costs = {
        "compile_time": _ms(entry.compile_s * 1e6),
        "verification_time": _ms(entry.verify_s * 1e6),
        "benchmark_time": _ms(entry.bench_s * 1e6),
    } | ({} if entry.error is None else {"error_over_bound": entry.error})
    if entry.time_us is not None:
        return {"time": _ms(entry.time_us), "times": [_ms(time) for time in entry.times_us], **costs}
    # The format has three kinds of failure; our own status stands beside them.
    name = _FAILURE_NAMES.get(entry.status, "RuntimeFailedConfig")
    return {"time": name, "status": entry.status, "reason": entry.reason, **costs}


def write_t4(path: Path, recording: Recording) -> None:
    """Write the results in the T4 1.0.0 schema, gzipped if the name ends in .gz. Raises OSError."""
    results = []
    for point, entry in recording.entries.items():
        time_ms = [] if entry.time_us is None else [{"name": "time", "value": _ms(entry.time_us), "unit": "ms"}]
        results.append(
            {
                "configuration": recording.values(point),
                "objectives": ["time"],
                "times": {
                    # The schema says compilation_time, Kernel Tuner and KTT write and read compilation.
                    "compilation_time": _ms(entry.compile_s * 1e6),
                    "compilation": _ms(entry.compile_s * 1e6),
                    "benchmark": _ms(entry.bench_s * 1e6),
                    "runtimes": [_ms(time) for time in entry.times_us],
                    "framework": 0.0,
                    "search_algorithm": 0.0,
                    "validation": _ms(entry.verify_s * 1e6),
                },
                "invalidity": _INVALIDITY.get(entry.status, "runtime"),
                "correctness": 0.0 if entry.status == "wrong_result" else 1.0,
                "measurements": time_ms,
            }
        )
    document = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results}
    _write(path, json.dumps(document, indent=1) + "\n")


def _ms(time_us: float) -> float:
    return round(time_us / 1e3, 9)


def _us_of(time_ms: float) -> float:
    return round(time_ms * 1e3, 6)  # `_ms` leaves as many digits: 27.705 stays 27.705


def _write(path: Path, text: str) -> None:
    data = text.encode()
    # The gzip header has no time stamp and no name: equal recordings give equal bytes.
    data = gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data
    write_output(path, data)
