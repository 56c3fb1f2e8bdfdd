"""Outcome of one tried variant, as recordings and journals store it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from ...runtime.store.codec import decode, packed
from ...runtime.store.record import Status

if TYPE_CHECKING:  # a reader of journals measures nothing
    from ..measure.evaluate import Tried

LEAST_US, MOST_US = 1e-6, 1e15
"""Bounds of a measured time in microseconds: a picosecond and some thirty years."""
_COSTS = ("compile_s", "verify_s", "bench_s")


@dataclass(frozen=True, slots=True)
class Entry:
    """Outcome of one tried variant. Raises ValueError for times that nobody can have measured."""

    status: str
    """ok, pruned, compile_error, launch_error, wrong_result, timeout, crashed or lost_device."""
    time_us: float | None = None
    """Time by which the search ranks the variant, in microseconds; None for a failure."""
    times_us: tuple[float, ...] = ()
    """Time of every repetition, in microseconds."""
    compile_s: float = 0.0
    """Seconds of compiling."""
    verify_s: float = 0.0
    """Seconds of checking the result."""
    bench_s: float = 0.0
    """Seconds of timing."""
    reason: str = ""
    """Cause of a failure, in a line."""
    error: float | None = None
    """Largest error over its bound, where it is known; a right result has at most 1."""

    def __post_init__(self) -> None:
        Status(self.status)
        times = (*self.times_us, *(() if self.time_us is None else (self.time_us,)))
        possible = all(0 <= getattr(self, name) <= MOST_US / 1e6 for name in _COSTS)
        possible = possible and all(LEAST_US <= time <= MOST_US for time in times)
        if not possible or (self.status == Status.OK.value) != (self.time_us is not None):
            raise ValueError("times that cannot be")
        if self.error is not None and not self.error >= 0:
            raise ValueError("an error that cannot be")

    @classmethod
    def of(cls, tried: "Tried") -> "Entry":
        """The entry of a variant that this process or its workers tried."""
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
        """Seconds that a replay charges for trying the variant."""
        return self.compile_s + self.verify_s + self.bench_s

    @property
    def started(self) -> datetime:
        """Time at which checking and timing started, for a trial that has just ended."""
        return datetime.now() - timedelta(seconds=self.verify_s + self.bench_s)

    def packed(self) -> dict[str, Any]:
        """The entry as JSON, without fields at their defaults; `unpacked` restores it to the nanosecond."""
        costs = {name: round(getattr(self, name), 9) for name in _COSTS}
        rounded = replace(self, times_us=tuple(round(time, 6) for time in self.times_us), **costs)
        return {"time_us": self.time_us, **packed(rounded, whole=False)}

    @classmethod
    def unpacked(cls, values: Mapping[str, Any]) -> "Entry":
        """The entry in the values of a JSON object, which may have others. Raises StoreError for bad values."""
        names = {field.name for field in fields(cls)}
        return cast(Entry, decode(cls, {name: values[name] for name in names & values.keys()}, "entry"))
