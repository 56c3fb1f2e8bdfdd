"""Who wins: contenders timed side by side, paired round by round."""

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
from .ratios import median, noisy, paired, paired_if_timed, spread

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
    ratio_vendor: float | None
    """Median over the rounds of the vendor's time over this one's: above 1 is faster than the vendor. None where the
    times were too noisy, as for all ratios."""
    interval: tuple[float, float] | None
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

    Ratios are None where the vendor's library could not be had.

    Of those tied with the fastest the first of `stored` stays, else the canonical first wins; `only_compared` names
    contenders that cannot win, beside the vendor's library. A duel that was too noisy has no ratios.
    """
    comparable = not noisy(aa_spread(duel))
    vendor = next((side for side in duel if side.config is None), None)
    contenders = []
    for side in duel:
        samples = side.measurement.samples_us
        theirs = vendor.measurement.samples_us[: len(samples)] if vendor else ()
        theirs_between = vendor.between_us if vendor else ()
        ratio, within = paired(theirs, samples) if comparable and theirs else (None, None)
        beside = median(side.between_us), *paired_if_timed(theirs_between if comparable else (), side.between_us)
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


def aa_spread(duel: Duel) -> float | None:
    """How far a contender was from itself in the same rounds, as a share; None where that was not timed."""
    twice = next((side for side in duel if side.again_us), None)
    return None if twice is None else spread(paired(twice.again_us, twice.measurement.samples_us)[1])


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
    vendor_us = next((c.measurement.median_us for c in contenders if c.config is None), None)
    return Record(
        problem=problem,
        device=info.key,
        config=first.config,
        status=Status.OK,
        measurement=first.measurement,
        accuracy=first.accuracy,
        versions=versions,
        digest=render(problem, first.config, info).digest,
        vendor_us=vendor_us,
        ratio_vendor=first.ratio_vendor,
        ratio_interval=first.interval,
        effort=effort,
        gpu=info.uuid,
    )
