"""Ratios of times that were measured side by side, round by round, and their precision."""

import math
import statistics
from collections.abc import Sequence

NOISY = 0.1
"""Share by which a contender may differ from itself in the same rounds; beyond it their ratios are useless."""


def paired(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median of their times over ours, round by round, and its confidence interval: above 1 we are faster."""
    ratios = [their_us / our_us for their_us, our_us in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), interval(ratios)


def paired_if_timed(
    theirs: Sequence[float], ours: Sequence[float]
) -> tuple[float, tuple[float, float]] | tuple[None, None]:
    """`paired`, or None for both where one of them has no times."""
    return paired(theirs, ours) if theirs and ours else (None, None)


def median(samples: Sequence[float]) -> float | None:
    """The median, None without samples."""
    return statistics.median(samples) if samples else None


def interval(ratios: list[float]) -> tuple[float, float]:
    """Confidence interval of the median, free of assumptions: the narrowest pair of order statistics that leaves at
    most 5% outside, or the least and the largest ratio where there are too few."""
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


def spread(within: tuple[float, float]) -> float:
    """Distance from 1 of the farther end of an interval of ratios, as a share: 0.01 is 1%, up or down."""
    return max(max(end, 1 / end) for end in within) - 1


def noisy(aa_spread: float | None) -> bool:
    """Whether ratios are useless, by the spread of a contender's ratio to itself where it was timed twice."""
    return aa_spread is not None and aa_spread > NOISY
