"""What `bench --json` wrote, read back."""

import json
from pathlib import Path
from typing import Any

from ...codegen.arch import arch_named
from ...codegen.errors import ConfigError, TilewrightError, check
from ...codegen.problem import Problem
from ...codegen.reading import read_named, reason_of
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Status
from ..measure.ratios import noisy
from .kinds import error_kinds_of
from .report import SUFFIX
from .rows import TITLES, BenchResult, BenchRow, Rival, Setting

_MOST_BYTES = 64 << 20
_SMALLEST, _LARGEST = 1e-12, 1e15
"""Between these are all times, rates and ratios that were measured."""
_OF_ROW = "ours_us floor_us error_over_bound eager_us fixed_us between_us between_kernel_us clock_mhz".split()
_WORDS = ("config", "origin", "reason")


def read_bench(path: Path) -> BenchResult:
    """The run that a JSON file of `bench` tells of. Raises ConfigError."""
    data = read_named("bench", path, _MOST_BYTES)
    try:
        document = json.loads(data)
        check(isinstance(document, dict), "it is no object")
        rows = tuple(map(_row, document["rows"]))
        check(bool(rows), "it has no rows")
        keys = tuple(key for key in TITLES if any(row.rival(key) for row in rows))
        versions = tuple((str(name), str(value)) for name, value in document["versions"].items())
        return BenchResult(
            device=_device(document),
            setting=Setting(keys, versions, tuple(map(str, document["missing"]))),
            date=str(document["date"]),
            wanted=max(len(rows), int(document.get("wanted", 0))),  # whole runs do not tell
            rows=rows,
            stopped=str(document["stopped"] or ""),
            turn_seconds=_number(document, "turn_seconds") or 0.0,
        )
    except (TilewrightError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"--bench {path}: not what bench --json writes: {reason_of(error)}") from error


def _device(document: dict[str, Any]) -> DeviceInfo:
    """The device by the facts in the file; older files have its name alone."""
    name = str(document["device"])
    facts = document.get("device_facts")
    if facts is None:
        known = KNOWN.get(DeviceInfo.key_of(name))
        if known is None:
            raise ConfigError(f"it tells nothing of {name!r}")
        return known
    numbers = {name: _number(facts, name) for name in ("clock_mhz", "bandwidth_gbs")}
    counts = {name: int(facts[name]) for name in ("sm_count", "memory_bytes", "l2_bytes")}
    check(all(numbers.values()) and counts["sm_count"] > 0, "device_facts needs clock_mhz, bandwidth_gbs and sm_count")
    words = {name: str(facts[name]) for name in ("name", "selector", "driver")}
    words["uuid"] = str(facts.get("uuid", ""))
    rest: dict[str, Any] = numbers | counts | words
    return DeviceInfo(arch=arch_named(facts["arch"]), **rest)


def _row(row: dict[str, Any]) -> BenchRow:
    given: dict[str, Any] = {name: _number(row, name) for name in _OF_ROW}
    given |= {name: str(row[name] or "") for name in _WORDS}
    spread = _number(row, "aa_spread")
    aa_interval = None if spread is None else (1 / (1 + spread), 1 + spread)
    rivals = (_rival(row, key, noisy(spread)) for key in TITLES if row.get(f"{key}_us") is not None)
    shape, accuracy = f"{row['m']}x{row['n']}x{row['k']}", row.get("accuracy", "ieee")
    problem = Problem.parse(shape, row["dtype"], row["trans"], accuracy)
    return BenchRow(
        problem=problem,
        status=Status(row["status"]),
        notes=tuple(map(str, row["notes"])),
        aa_interval=aa_interval,
        rounds=int(row["rounds"]),
        held_back=row["held_back"] is True,
        taken_from=str(row.get("from") or ""),
        handed_over=row.get("used") == "cublas",
        rivals=tuple(rivals),
        error_kinds=error_kinds_of(row.get("error_kinds")),
        **given,
    )


def _rival(row: dict[str, Any], key: str, noisy: bool) -> Rival:
    ratios = {name: _number(row, f"ratio_{key}{end}") for name, end in SUFFIX.items()}
    found = Rival(
        key=key,
        us=_number(row, f"{key}_us") or 0.0,
        ratio=ratios["ratio"],
        interval=_interval(row, f"ratio_{key}_interval"),
        error_over_bound=_number(row, f"{key}_error_over_bound"),
        eager_us=_number(row, f"{key}_eager_us") or 0.0,
        fixed_us=_number(row, f"{key}_fixed_us"),
        between_us=_number(row, f"{key}_between_us"),
        between_ratio=ratios["between_ratio"],
        between_interval=_interval(row, f"ratio_{key}_between_interval"),
        eager_ratio=ratios["eager_ratio"],
    )
    check(found.us > 0 and (noisy or bool(found.ratio)), f"{key}_us and ratio_{key} must be positive")
    return found


def _interval(row: dict[str, Any], name: str) -> tuple[float, float] | None:
    if row.get(name) is None:
        return None
    low, high = row[name]
    check(_SMALLEST < low <= high < _LARGEST, f"{name} must be two positive numbers, got {row[name]!r:.60}")
    return float(low), float(high)


def _number(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    good = value is None or (number and (value == 0 or _SMALLEST < value < _LARGEST))
    check(good, f"{name} must be a number that can be, got {value!r:.60}")
    return None if value is None else float(value)
