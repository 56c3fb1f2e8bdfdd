"""What a look-up gives: how to run a problem on a device, and whence that is."""

from collections.abc import Callable
from dataclasses import dataclass

from ...codegen.bundle import Served
from ...codegen.config import Config
from ...codegen.problem import Problem
from ..device.protocol import DeviceInfo
from .record import Record


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up gave."""

    config: Config
    """A config that is valid for the problem on the device."""
    origin: str
    """`exact`, `predicted` or `default`."""
    record: Record | None = None
    """The record of this device that it comes from, of another shape where it is predicted; None where it comes from
    none."""
    expected_us: float | None = None
    """Microseconds that are expected of it, where it was predicted."""
    regret: float | None = None
    """What was predicted takes at most so many times the best, for nine of ten shapes that were left out to see;
    None on a device that was not measured."""
    sibling: Record | None = None
    """The record of a like device that it comes from; none of its times are this device's."""

    @property
    def taken_from(self) -> str:
        """The tuned shape whose config it is, where that is another one or was tuned on another device; else empty."""
        if self.sibling is not None:
            return f"{self.sibling.problem.shape} on {self.sibling.device}"
        return self.record.problem.shape if self.record is not None and self.origin == "predicted" else ""

    @property
    def told(self) -> str:
        """The origin, with that shape."""
        return f"{self.origin} (from {self.taken_from})" if self.taken_from else self.origin

    def _tuned_on(self, info: DeviceInfo) -> str:
        return self.taken_from if self.sibling is not None else f"{self.taken_from} on {info.key}"

    def served(self, problem: Problem, info: DeviceInfo) -> Served:
        """What a bundle of emitted kernels needs to know of it, for the problem and device that were looked up."""
        exact = self.record if self.origin == "exact" else None
        predicted = "predicted by what was measured for other shapes"
        origin = {
            "exact": f"tuned on {info.key}",
            "predicted": f"as tuned for {self._tuned_on(info)}" if self.taken_from else predicted,
        }.get(self.origin, "a default: nothing tuned helps")
        time_us, accuracy = (exact.median_us, exact.accuracy) if exact else (0.0, None)
        worst = accuracy.worst if accuracy else 0.0
        return Served(problem, self.config, info, origin, time_us, worst)


Ranking = Callable[[Problem, DeviceInfo, tuple[Record, ...]], Found | None]
"""What to run for a problem that was not tuned on a device, out of all records there are; None where none helps."""
