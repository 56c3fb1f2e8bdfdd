"""Rounds of contenders that are timed side by side: every comparison, with the vendor's library too, is made here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...runtime.check.timing import Timer
from ...runtime.device.protocol import Launch
from .ratios import noisy, paired, spread

Name = TypeVar("Name")
_AGAIN = object()
"""Name of the contender that is timed a second time in the same rounds."""


@dataclass(frozen=True, slots=True)
class Rounds(Generic[Name]):
    """Times of contenders, a sample each round."""

    samples: dict[Name, list[float]]
    """Microseconds by contender, in the order of the rounds."""
    again: list[float]
    """The same of the contender that was timed twice; nothing where none was."""
    aa_interval: tuple[float, float] | None
    """Confidence interval of that contender's ratio to itself, which says what ratios of these rounds are worth."""
    clock_mhz: float | None

    @property
    def is_noisy(self) -> bool:
        """Whether ratios are worth nothing."""
        return self.aa_interval is not None and noisy(spread(self.aa_interval))

    def ratio(self, theirs: Name, ours: Name) -> tuple[float, tuple[float, float]] | tuple[None, None]:
        """Median of their times over ours, round by round, and its confidence interval: above 1 ours is faster. None
        for both where one was not timed or the rounds are noisy."""
        samples = self.samples.get(theirs), self.samples.get(ours)
        return (None, None) if self.is_noisy or not all(samples) else paired(*filter(None, samples))


def side_by_side(
    timer: Timer,
    contenders: Mapping[Name, Launch],
    count: int,
    *,
    twice: Name | None = None,
    seconds: float = 0.0,
    turn_seconds: float = 0.0,
) -> Rounds[Name]:
    """Time contenders for `count` rounds in shuffled order, and for more while they take less than `seconds`; the one
    named `twice` runs twice in each round. `turn_seconds` is the time of a turn, 0 for a batch. Raises LaunchError."""
    lined_up: dict[object, Launch] = dict(contenders.items())
    if twice is not None:
        lined_up[_AGAIN] = contenders[twice]
    samples, clock_mhz = timer.rounds(lined_up, count, seconds=seconds, turn_seconds=turn_seconds)
    again = samples.pop(_AGAIN, [])
    by_name = {name: samples[name] for name in contenders}
    return Rounds(by_name, again, paired(again, by_name[twice])[1] if twice is not None else None, clock_mhz)
