"""Reading of the files that `bench --json` writes."""

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

from ...codegen.errors import ConfigError, TilewrightError, check
from ...codegen.problem import Problem
from ...codegen.reading import read_named, reason_of
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import decode
from ..measure.ratios import noisy
from .kinds import error_kinds_of
from .report import RIVAL_NAMES
from .rows import TITLES, BenchResult, BenchRow, Setting

_MOST_BYTES = 64 << 20
"""Most bytes of a file that is read."""
_SMALLEST, _LARGEST = 1e-12, 1e15
"""Bounds of all times, rates and ratios that were measured."""


def read_bench(path: Path) -> BenchResult:
    """The run in a file that `bench --json` wrote. Raises ConfigError for any other file."""
    data = read_named("bench", path, _MOST_BYTES)
    try:
        document = json.loads(data)
        check(isinstance(document, dict), "it is no object")
        _check_numbers(document)
        rows = tuple(map(_row, document["rows"]))
        check(bool(rows), "it has no rows")
        keys = tuple(key for key in TITLES if any(row.rival(key) for row in rows))
        versions = tuple((str(name), str(value)) for name, value in document["versions"].items())
        return BenchResult(
            device=_device(document),
            setting=Setting(keys, versions, tuple(map(str, document["missing"]))),
            date=str(document["date"]),
            wanted=max(len(rows), int(document.get("wanted", 0))),  # files of complete runs lack it
            rows=rows,
            stopped=str(document["stopped"] or ""),
            turn_seconds=float(document["turn_seconds"]),
        )
    except (TilewrightError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"--bench {path}: not what bench --json writes: {reason_of(error)}") from error


def _device(document: dict[str, Any]) -> DeviceInfo:
    """The device, by the facts in the file."""
    facts = document["device_facts"]
    _check_numbers(facts)
    info = cast(DeviceInfo, decode(DeviceInfo, facts, "device_facts"))
    check(info.complete, "device_facts needs sm_count, memory_bytes, clock_mhz and bandwidth_gbs")
    return info


def _row(row: dict[str, Any]) -> BenchRow:
    _check_numbers(row)
    spread = row.get("aa_spread")
    rivals = [_rival(row, key, noisy(spread)) for key in TITLES if row.get(f"{key}_us") is not None]
    shape, accuracy = f"{row['m']}x{row['n']}x{row['k']}", row.get("accuracy", "ieee")
    fields = {
        **{field.name: row[field.name] for field in dataclasses.fields(BenchRow) if field.name in row},
        **{name: row[name] or "" for name in ("config", "origin", "reason")},
        "problem": Problem.parse(shape, row["dtype"], row["trans"], accuracy, batch=row.get("batch", 1)),
        "aa_interval": None if spread is None else [1 / (1 + spread), 1 + spread],
        "taken_from": row.get("from") or "",
        "handed_over": row.get("used") == "cublas",
        "rivals": rivals,
        "error_kinds": error_kinds_of(row.get("error_kinds")),
    }
    return cast(BenchRow, decode(BenchRow, fields, "row"))


def _rival(row: dict[str, Any], key: str, noisy: bool) -> dict[str, Any]:
    """The fields of a rival."""
    fields = {field: row.get(name.format(key)) for field, name in RIVAL_NAMES.items() if field != "tflops"}
    check(noisy or bool(fields["ratio"]), f"ratio_{key} must be positive")
    return {**fields, "key": key, "eager_us": fields["eager_us"] or 0.0}


def _check_numbers(fields: dict[str, Any]) -> None:
    """Raise ConfigError for a number that nobody can have measured: a ratio must not be 0, other numbers may."""
    for name, value in fields.items():
        for number in value if isinstance(value, list) else [value]:
            possible = not isinstance(number, int | float) or _SMALLEST < number < _LARGEST
            check(possible or (number == 0 and not name.startswith("ratio_")), f"{name} cannot be {number!r:.60}")
