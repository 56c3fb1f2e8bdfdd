"""What trying one variant gave, as recordings and journals hold it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ...runtime.store.record import Status

if TYPE_CHECKING:  # only then: who reads a journal measures nothing
    from ..measure.evaluate import Tried

LEAST_US, MOST_US = 1e-6, 1e15
"""Times below and above, a picosecond and some thirty years, were never measured."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What trying one variant gave. Raises ValueError for times that nobody measured."""

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

    def __post_init__(self) -> None:
        Status(self.status)
        costs = (self.compile_s, self.verify_s, self.bench_s)
        times = (*self.times_us, *(() if self.time_us is None else (self.time_us,)))
        good = all(0 <= cost <= MOST_US / 1e6 for cost in costs) and all(LEAST_US <= time <= MOST_US for time in times)
        if not good or (self.status == Status.OK.value) != (self.time_us is not None):
            raise ValueError("times that cannot be")
        if self.error is not None and not self.error >= 0:
            raise ValueError("an error that cannot be")

    @classmethod
    def of(cls, tried: "Tried") -> "Entry":
        """That of a variant that this process or its workers tried."""
        record, phases, measured = tried.record, tried.phases, tried.record.measurement
        accuracy = record.accuracy
        return cls(
            status=record.status.value,
            time_us=measured.median_us if measured else None,
            times_us=measured.samples_us if measured else (),
            compile_s=phases.compile_s,
            verify_s=phases.verify_s,
            bench_s=phases.time_s,
            reason=record.reason,
            error=accuracy.worst if accuracy and math.isfinite(accuracy.worst) else None,
        )

    @property
    def charged_s(self) -> float:
        """Seconds that a replay charges for trying it."""
        return self.compile_s + self.verify_s + self.bench_s

    def packed(self) -> dict[str, Any]:
        """As JSON has it: `unpacked` gives it back, to the nanosecond."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["times_us"] = [round(time, 6) for time in self.times_us]
        for name in ("compile_s", "verify_s", "bench_s"):
            values[name] = round(values[name], 9)
        told = {name: value for name, value in values.items() if value or name in ("status", "time_us")}
        return told | ({} if self.error is None else {"error": self.error})

    @classmethod
    def unpacked(cls, values: Mapping[str, Any]) -> "Entry":
        """The entry among these values. Raises ValueError, TypeError or OverflowError for any others."""
        status, time_us, reason = values.get("status"), values.get("time_us"), values.get("reason", "")
        if not isinstance(status, str) or not isinstance(reason, str):
            raise TypeError("status and reason are texts")
        compile_s, verify_s, bench_s = (number(values.get(name, 0.0)) for name in ("compile_s", "verify_s", "bench_s"))
        times_us = tuple(map(number, values.get("times_us", ())))
        time_us = None if time_us is None else number(time_us)
        error = None if values.get("error") is None else number(values["error"])
        return cls(status, time_us, times_us, compile_s, verify_s, bench_s, reason, error)


def number(value: object) -> float:
    """A number of JSON that is one, and finite. Raises ValueError, OverflowError."""
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"no number: {value!r:.60}")
    return float(value)  # type: ignore[arg-type]
