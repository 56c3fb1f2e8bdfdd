"""Entries of a shortlist: a config, its source, and its expected time."""

import enum
from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...codegen.target import Target
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.lookup import LookupResult, alike
from ...runtime.store.record import Record


class Source(enum.StrEnum):
    """Source of an entry of a shortlist."""

    RECORD = "record"
    """Record of exactly this product on the device, or of the same product in a finer accuracy."""
    NEAR = "near record"
    """Record of another shape, or of a device with the same SMs."""
    LEARNED = "learned"
    """Ranker that was fitted to measurements of the device, or of one with the same SMs."""
    TRANSFERRED = "learned elsewhere"
    """Ranker that was fitted to other devices."""
    MODEL = "model"
    """Model of the processor."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a shortlist."""

    config: Config
    """Config that serves the problem on the device."""
    source: Source
    expected_us: float | None = None
    """Microseconds, measured for a record of exactly this product, else expected; None where there is no estimate."""
    regret: float | None = None
    """90th percentile of a ranker's first choice's time over the best time, for shapes that were left out of the fit;
    None on a device that was not measured."""
    record: Record | None = None
    """Record that the config comes from."""

    def as_lookup(self, problem: Problem, info: DeviceInfo) -> LookupResult:
        """The entry as the result of a look-up of a problem that has no record of exactly this product."""
        if self.record is None:
            return LookupResult(self.config, "predicted", expected_us=self.expected_us, regret=self.regret)
        if self.record.device != info.key:
            return LookupResult(self.config, "predicted", sibling=self.record)
        return LookupResult(self.config, "predicted", self.record, of_class=alike(self.record.problem, problem, info))


def carried(config: Config, problem: Problem, target: Target) -> Config | None:
    """The config of another problem, adapted to this one; None where it cannot serve it."""
    config = config.suited(problem).for_target(target)
    return config if serves(config, problem, target) else None
