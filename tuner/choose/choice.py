"""An entry of a shortlist: a config, where it comes from, and the time that is expected of it."""

import enum
from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...codegen.target import Target
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.lookup import LookupResult
from ...runtime.store.record import Record


class Source(enum.StrEnum):
    """Source of an entry of a shortlist."""

    RECORD = "record"
    """A record of just this product on the device, or of the same product in a finer accuracy."""
    NEAR = "near record"
    """A record of another shape, or of a device with the same SMs."""
    LEARNED = "learned"
    """A ranker that was fitted to measurements of the device, or of one with the same SMs."""
    TRANSFERRED = "learned elsewhere"
    """A ranker that was fitted to other devices."""
    MODEL = "model"
    """The model of the processor."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a shortlist."""

    config: Config
    """A config that serves the problem on the device."""
    source: Source
    expected_us: float | None = None
    """Microseconds: measured for a record of just this product, else expected; None where nothing says so."""
    regret: float | None = None
    """90th percentile of such a choice's time over the best one, for shapes that were left out of the fit; None on a
    device that was not measured."""
    record: Record | None = None
    """The record that the config comes from."""

    def found(self, info: DeviceInfo) -> LookupResult:
        """The entry as the result of a look-up that has no record of just this product."""
        if self.record is None:
            return LookupResult(self.config, "predicted", expected_us=self.expected_us, regret=self.regret)
        if self.record.device != info.key:
            return LookupResult(self.config, "predicted", sibling=self.record)
        return LookupResult(self.config, "predicted", self.record)


def carried(config: Config, problem: Problem, target: Target) -> Config | None:
    """The config of another problem as it serves this one; None where it cannot."""
    config = config.suited(problem).for_target(target)
    return config if serves(config, problem, target) else None
