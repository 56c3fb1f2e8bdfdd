"""Who wins: contenders timed side by side, paired round by round."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...codegen.config import Config
from ...codegen.errors import TuningError
from ...codegen.families import families
from ...codegen.problem import Problem
from ...codegen.render import render
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Accuracy, Measurement, Record, Status
from .evaluate import Duel, tied

NAIVE = next(iter(families().values()))()
"""What every result is compared with: the defaults of the simplest family."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the final table."""

    config: Config | None
    """The variant; None for the vendor's library."""
    measurement: Measurement
    """Its times in the duel."""
    accuracy: Accuracy
    """Its error on the duel's inputs."""
    ratio_vendor: float
    """Median over the rounds of the vendor's time over this one's: above 1 is faster than the vendor."""
    interval: tuple[float, float]
    """Confidence interval of that ratio, 95% or what the rounds allow."""
    between_us: float | None = None
    """Median of what it adds to a kernel of another library that comes between two products, where that was timed."""
    between_ratio: float | None = None
    """The ratio of these times, and its interval. The winner is decided by the first ratio."""
    between_interval: tuple[float, float] | None = None
    stored: bool = False
    """Whether the store had it for the problem before the duel."""


def judge(duel: Duel, only_compared: tuple[Config, ...] = (), stored: Sequence[Config] = ()) -> tuple[Contender, ...]:
    """The contenders of a duel: the winner, then the others, fastest first.

    Of those tied with the fastest the first of `stored` stays, else the canonical first wins; `only_compared` names
    contenders that cannot win, beside the vendor's library.
    """
    vendor = next(side for side in duel if side.config is None)
    contenders = []
    for side in duel:
        samples = side.measurement.samples_us
        ratio, within = paired(vendor.measurement.samples_us[: len(samples)], samples)
        beside = median(side.between_us), *paired_if_timed(vendor.between_us, side.between_us)
        contender = Contender(side.config, side.measurement, side.accuracy, ratio, within, *beside)
        contenders.append(replace(contender, stored=side.config in stored))
    contenders.sort(key=lambda contender: contender.measurement.median_us)
    places = {config: place for place, config in enumerate(stored)}
    ours = [
        ((places.get(c.config, len(places)), c.config.canonical), c)
        for c in contenders
        if c.config is not None and c.config not in only_compared
    ]
    if not ours:
        raise TuningError("nobody to judge")
    fastest = ours[0][1].measurement.median_us
    equal = [pair for pair in ours if tied(pair[1].measurement.median_us, fastest)]
    _, first = min(equal, key=lambda pair: pair[0])
    return (first, *(contender for contender in contenders if contender is not first))


def paired(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median of their times over ours, round by round, and its confidence interval: above 1 is faster than they."""
    ratios = [their_us / our_us for their_us, our_us in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), interval(ratios)


def paired_if_timed(
    theirs: Sequence[float], ours: Sequence[float]
) -> tuple[float, tuple[float, float]] | tuple[None, None]:
    """`paired`, or nothing where one of them has no times."""
    return paired(theirs, ours) if theirs and ours else (None, None)


def median(samples: Sequence[float]) -> float | None:
    """The median, None without samples."""
    return statistics.median(samples) if samples else None


def interval(ratios: list[float]) -> tuple[float, float]:
    """Confidence interval of the median, free of assumptions: the widest pair of order statistics that still covers
    at most 5% outside, or all of them where there are too few."""
    ordered = sorted(ratios)
    count = len(ordered)
    cut, outside = 0, 0.0
    while cut < (count - 1) // 2:
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 0.05:
            break
        cut += 1
    cut = max(0, cut - 1)
    return ordered[cut], ordered[-1 - cut]


def decided(
    problem: Problem,
    info: DeviceInfo,
    contenders: tuple[Contender, ...],
    versions: tuple[tuple[str, str], ...],
    effort: str = "",
) -> Record:
    """The record of the winner, the first of `judge`'s contenders."""
    first = contenders[0]
    assert first.config is not None
    vendor = next(contender for contender in contenders if contender.config is None)
    return Record(
        problem=problem,
        device=info.key,
        config=first.config,
        status=Status.OK,
        measurement=first.measurement,
        accuracy=first.accuracy,
        versions=versions,
        digest=render(problem, first.config, info.arch).digest,
        vendor_us=vendor.measurement.median_us,
        ratio_vendor=first.ratio_vendor,
        ratio_interval=first.interval,
        effort=effort,
        gpu=info.uuid,
    )
