"""Recorded runs, in the two formats other tuners read: Kernel Tuner's cache file and T4 1.0.0.

Both count in milliseconds; in memory times are microseconds and costs seconds.
"""

import contextlib
import gzip
import json
import re
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.errors import ConfigError, StoreError, check
from ...codegen.leaf import Value
from ...runtime.files import write_whole
from ..search.space import Dimension, Point, Space

UNPACKED_BYTES = 256 << 20
"""A gzipped recording of this size or more is refused."""

_CACHE = re.compile(r'^\s*"cache"\s*:\s*\{', re.MULTILINE)
_FAILURES = {
    "InvalidConfig": "pruned",
    "CompilationFailedConfig": "compile_error",
    "RuntimeFailedConfig": "launch_error",
    "ErrorConfig": "launch_error",
}
_INVALIDITY = {
    "ok": "correct",
    "pruned": "constraints",
    "compile_error": "compile",
    "wrong_result": "correctness",
    "timeout": "timeout",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What trying one variant gave."""

    status: str
    """ok, pruned, compile_error, launch_error, wrong_result, timeout, crashed or lost_device."""
    time_us: float | None = None
    """The time that counts, in microseconds; None for a failure."""
    times_us: tuple[float, ...] = ()
    """Every repetition, in microseconds."""
    compile_s: float = 0.0
    verify_s: float = 0.0
    bench_s: float = 0.0
    reason: str = ""
    error: float | None = None
    """Largest error over its bound, where it is known; at most 1 is right."""

    @property
    def charged_s(self) -> float:
        """Seconds that a replay charges for trying it."""
        return self.compile_s + self.verify_s + self.bench_s


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recorded run: what was tried and what came of it."""

    device_name: str
    kernel_name: str
    problem_size: tuple[int, ...]
    """The problem, as the recorder wrote it."""
    dimensions: tuple[Dimension, ...]
    entries: Mapping[Point, Entry]
    """The outcome at each point tried, in the order recorded."""

    def space(self) -> Space:
        """All points that are not known to break a constraint, failed ones included."""
        return Space(self.dimensions, tuple(p for p, entry in self.entries.items() if entry.status != "pruned"))

    def best(self) -> tuple[Point, float]:
        """The fastest point and its time in microseconds; raises ConfigError if none worked."""
        times = [(e.time_us, point) for point, e in self.entries.items() if e.time_us is not None]
        if not times:
            raise ConfigError("nothing in the recording worked")
        time_us, point = min(times)
        return point, time_us


def read_cache_file(path: Path) -> Recording:
    """Read a Kernel Tuner cache file, gzipped or not.

    Of one that is damaged or was cut off the rows that are whole are read, with a warning that counts the others.
    Raises StoreError for any other file, and for one that unpacks to more than UNPACKED_BYTES.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read the recording {path}: {error}") from error
    try:
        if data[:2] == b"\x1f\x8b":
            # zlib rather than gzip: it gives what there is of a file that was cut off.
            data = zlib.decompressobj(31).decompress(data, UNPACKED_BYTES)
            check(len(data) < UNPACKED_BYTES, f"it unpacks to {UNPACKED_BYTES >> 20} MB or more")
        return _recording(_parse(data.decode(errors="replace"), path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise StoreError(f"not a Kernel Tuner cache file: {path}: {error!r}") from error


def _parse(text: str, path: Path) -> Any:
    """The document; of a damaged one what is whole of its rows, in time linear in its size."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        head = _CACHE.search(text)
        if head is None:
            raise
    document = json.loads(text[: head.end()] + "}}")
    dropped = []
    for number, line in enumerate(text[head.end() :].split("\n"), text.count("\n", 0, head.end()) + 1):
        row = _row(line)
        document["cache"].update(row or {})
        dropped += [number] if row is None else []
    if dropped:
        what = f"{path} is damaged: rows dropped: {len(dropped)}, the first in line {dropped[0]}"
        warnings.warn(what, stacklevel=3)
    check(bool(document["cache"]), "no row is whole")
    return document


def _row(line: str) -> dict[str, Any] | None:
    """Key and values of a row, which Kernel Tuner writes on a line of its own; empty for what closes the document."""
    row = line.strip().removesuffix(",")
    for text in ("{" + row.removeprefix("}").removeprefix("}") + "}", "{" + row):  # the last row may close it too
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            return found if all(isinstance(element, dict) for element in found.values()) else None
    return None


def _recording(document: dict[str, Any]) -> Recording:
    names = document["tune_params_keys"]
    dimensions = tuple(Dimension(name, _choices(document["tune_params"][name])) for name in names)
    places = [{choice: place for place, choice in enumerate(d.choices)} for d in dimensions]
    entries: dict[Point, Entry] = {}
    for element in document["cache"].values():
        point = tuple(place[_value(element[name])] for name, place in zip(names, places, strict=True))
        entries[point] = _entry(element)
    size = document.get("problem_size")
    return Recording(
        device_name=str(document.get("device_name", "")),
        kernel_name=str(document.get("kernel_name", "")),
        problem_size=tuple(int(n) for n in size) if isinstance(size, list) else (),
        dimensions=dimensions,
        entries=entries,
    )


def _choices(values: list[Any]) -> tuple[Value, ...]:
    """Numbers in rising order, so that neighbours are neighbours; a word before them stays in front."""
    choices = list(dict.fromkeys(_value(value) for value in values))
    return tuple(sorted(choices, key=lambda c: (not isinstance(c, str), c if isinstance(c, int) else 0)))


def _value(value: Any) -> Value:
    if (isinstance(value, float) and value.is_integer()) or isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int) else str(value)


def _entry(element: dict[str, Any]) -> Entry:
    costs = [element.get(f"{name}_time") or 0.0 for name in ("compile", "verification", "benchmark")]
    compile_s, verify_s, bench_s = (float(cost) / 1e3 for cost in costs)
    reason = str(element.get("reason", ""))
    error = element.get("error_over_bound")
    error = float(error) if isinstance(error, int | float) else None
    time = element.get("time")
    failure = next((v for v in (time, element.get("__error__")) if isinstance(v, str)), None)
    if failure is not None or not isinstance(time, int | float) or not time > 0:
        status = str(element.get("status", _FAILURES.get(failure or "", "launch_error")))
        return Entry(status, None, (), compile_s, verify_s, bench_s, reason, error)
    times = element.get("times") or [time]
    times_us = tuple(float(one) * 1e3 for one in times)
    return Entry("ok", float(time) * 1e3, times_us, compile_s, verify_s, bench_s, reason, error)


def write_both(path: Path, recording: Recording) -> None:
    """Write a Kernel Tuner cache file, and beside it T4."""
    write_cache_file(path, recording)
    write_t4(t4_path(path), recording)


def t4_path(path: Path) -> Path:
    """`run.json.gz` gives `run.t4.json.gz`."""
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(stem + ".t4.json" + (".gz" if path.name.endswith(".gz") else ""))


def write_cache_file(path: Path, recording: Recording) -> None:
    """Write a Kernel Tuner cache file, gzipped if the name ends in .gz; it appears whole or not at all."""
    names = [d.name for d in recording.dimensions]
    header = {
        "device_name": recording.device_name,
        "kernel_name": recording.kernel_name,
        "problem_size": list(recording.problem_size),
        "tune_params_keys": names,
        "tune_params": {d.name: list(d.choices) for d in recording.dimensions},
        "objective": "time",
        "cache": {},
    }
    lines = []
    for point, entry in recording.entries.items():
        values = {d.name: d.choices[i] for d, i in zip(recording.dimensions, point, strict=True)}
        key = ",".join(str(value) for value in values.values())
        lines.append(f"{json.dumps(key)}: {json.dumps(values | _element(entry))}")
    # Kernel Tuner appends to such a file line by line and takes the last three characters off for it.
    text = json.dumps(header, indent="").removesuffix("}\n}") + "\n" + ",\n".join(lines) + "}\n}"
    _write(path, text)


def _element(entry: Entry) -> dict[str, Any]:
    costs = {
        "compile_time": _ms(entry.compile_s * 1e6),
        "verification_time": _ms(entry.verify_s * 1e6),
        "benchmark_time": _ms(entry.bench_s * 1e6),
    } | ({} if entry.error is None else {"error_over_bound": entry.error})
    if entry.time_us is not None:
        return {"time": _ms(entry.time_us), "times": [_ms(time) for time in entry.times_us], **costs}
    names = {status: name for name, status in reversed(_FAILURES.items()) if name != "ErrorConfig"}
    # The format knows three failures; ours are kept beside them.
    return {
        "time": names.get(entry.status, "RuntimeFailedConfig"),
        "status": entry.status,
        "reason": entry.reason,
        **costs,
    }


def write_t4(path: Path, recording: Recording) -> None:
    """Write the results in the T4 1.0.0 schema, gzipped if the name ends in .gz."""
    results = []
    for point, entry in recording.entries.items():
        time_ms = [] if entry.time_us is None else [{"name": "time", "value": _ms(entry.time_us), "unit": "ms"}]
        results.append(
            {
                "configuration": {d.name: d.choices[i] for d, i in zip(recording.dimensions, point, strict=True)},
                "objectives": ["time"],
                "times": {
                    "compilation_time": _ms(entry.compile_s * 1e6),
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


def _write(path: Path, text: str) -> None:
    data = text.encode()
    # No time stamp and no name in the gzip header: the same run gives the same bytes.
    data = gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise StoreError(f"cannot write the recording {path}: {error}") from error
