"""Result of a look-up: the config for a problem on a device, and its origin; and the size class of a batch."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...codegen.bundle import Served
from ...codegen.config import Config
from ...codegen.problem import Problem
from ..device.protocol import DeviceInfo
from .record import Record

_FILLING = 1 << 15
"""Elements of C for each SM from which on a batch fills a device: eight tiles of 64 x 64. In larger batches one kernel
is among the fastest whatever the number of products: docs/experiments/batches.md has the measurement."""


class BatchClass(enum.StrEnum):
    """Size class of a batch on a device."""

    ONE = "one"
    """A single product."""
    FEW = "few"
    """Products that do not fill the device: how many they are decides which kernel is fast."""
    FULL = "full"
    """Products that fill the device: a record of any number of them serves all others."""

    @classmethod
    def of(cls, problem: Problem, info: DeviceInfo) -> "BatchClass":
        """The class of a problem on a device."""
        if problem.batch == 1:
            return cls.ONE
        return cls.FULL if problem.batch >= filling(problem.m * problem.n, info) else cls.FEW


def filling(elements: int, info: DeviceInfo) -> int:
    """Number of products that fill a device, where C of each product has `elements` elements."""
    return max(2, -(-_FILLING * info.sm_count // max(1, elements)))


def alike(tuned: Problem, problem: Problem, info: DeviceInfo) -> bool:
    """Whether two problems differ in their batches alone, and both fill the device."""
    same = replace(tuned, batch=problem.batch) == problem
    return same and BatchClass.of(tuned, info) is BatchClass.of(problem, info) is BatchClass.FULL


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Result of a look-up."""

    config: Config
    """Config that serves the problem on the device."""
    origin: str
    """`exact`, `predicted` or `default`."""
    record: Record | None = None
    """Record of this device that the config comes from, of another shape if it is predicted; None if there is none."""
    expected_us: float | None = None
    """Expected microseconds of a predicted config."""
    regret: float | None = None
    """Largest ratio of a predicted config's time to the best one's, for nine of ten held-out shapes; None on a device
    that was not measured."""
    sibling: Record | None = None
    """Record of a like device that the config comes from; its times are not this device's."""
    of_class: bool = False
    """Whether the record is of another batch of the same products, in the same size class: nothing is measured at
    first use then."""

    @property
    def taken_from(self) -> str:
        """Tuned shape that the config was taken from, if the shape or its device is another one; else empty."""
        if self.sibling is not None:
            return f"{self.sibling.problem.title} on {self.sibling.device}"
        return self.record.problem.title if self.record is not None and self.origin == "predicted" else ""

    @property
    def summary(self) -> str:
        """The origin, and the shape of `taken_from`."""
        return f"{self.origin} (from {self.taken_from})" if self.taken_from else self.origin

    def served(self, problem: Problem, info: DeviceInfo) -> Served:
        """The kernel as a bundle of emitted files takes it, for the problem and device that were looked up."""
        if self.origin == "exact" and self.record is not None:
            worst = self.record.accuracy.worst if self.record.accuracy else 0.0
            return Served(problem, self.config, info, f"tuned on {info.key}", self.record.median_us, worst)
        origin = "a default: nothing tuned helps"
        if self.taken_from:
            device = "" if self.sibling is not None else f" on {info.key}"
            origin = f"as tuned for {self.taken_from}{device}"
        elif self.origin == "predicted":
            origin = "predicted by what was measured for other shapes"
        return Served(problem, self.config, info, origin)


Ranking = Callable[[Problem, DeviceInfo, tuple[Record, ...]], LookupResult | None]
"""Chooses a config for a problem that was not tuned on a device, from all records; returns None where none helps."""
