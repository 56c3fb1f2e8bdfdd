"""Rounds of contenders that are timed side by side: all comparisons, also with the vendor's library, are made here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...runtime.check.timing import Timer
from ...runtime.device.protocol import Launch
from .ratios import paired

Name = TypeVar("Name")
_AGAIN = object()
"""Name of the contender that is timed a second time in the same rounds."""


@dataclass(frozen=True, slots=True)
class Rounds(Generic[Name]):
    """Times of contenders, a sample each round."""

    samples: dict[Name, list[float]]
    """Microseconds by contender, in the order of the rounds."""
    again: list[float]
    """Microseconds of the contender that was timed twice; empty where none was."""
    aa_interval: tuple[float, float] | None
    """Confidence interval of that contender's ratio to itself, which bounds the precision of all ratios."""
    clock_mhz: float | None
    """Clock of the device meanwhile, where it can be read."""


def side_by_side(
    timer: Timer,
    contenders: Mapping[Name, Launch],
    count: int,
    *,
    twice: Name | None = None,
    seconds: float = 0.0,
    turn_seconds: float = 0.0,
) -> Rounds[Name]:
    """Time contenders for `count` rounds in shuffled order, and for more while they take less than `seconds`; the
    contender named `twice` runs twice in each round. A turn takes `turn_seconds`, or is a batch for 0. Raises
    LaunchError."""
    launches: dict[object, Launch] = dict(contenders.items())
    if twice is not None:
        launches[_AGAIN] = contenders[twice]
    samples, clock_mhz = timer.rounds(launches, count, seconds=seconds, turn_seconds=turn_seconds)
    again = samples.pop(_AGAIN, [])
    by_name = {name: samples[name] for name in contenders}
    return Rounds(by_name, again, paired(again, by_name[twice])[1] if twice is not None else None, clock_mhz)
