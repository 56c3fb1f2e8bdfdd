"""The winner of a duel: contenders timed side by side, paired round by round."""

from collections.abc import Sequence
from dataclasses import dataclass

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
"""The default config of the simplest family, with which every result is compared."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A config or the vendor's library in a duel: one line of the final table."""

    config: Config | None
    """The variant; None for the vendor's library."""
    measurement: Measurement
    """Times in the duel."""
    accuracy: Accuracy
    """Error on the duel's inputs."""
    ratio_vendor: float | None
    """Median over the rounds of the vendor's time over this contender's: above 1 is faster than the vendor. None, as
    all ratios, where the times were too noisy or there is no vendor's library."""
    interval: tuple[float, float] | None
    """Confidence interval of `ratio_vendor`, 95% or as the rounds allow."""
    between_us: float | None = None
    """Median microseconds that the contender adds to a kernel of another library between two products, where timed."""
    between_ratio: float | None = None
    """Median over the rounds of the vendor's `between_us` over this contender's; it decides nothing."""
    between_interval: tuple[float, float] | None = None
    """Confidence interval of `between_ratio`."""
    stored: bool = False
    """Whether the store had the config for the problem before the duel."""


def judge(duel: Duel, only_compared: tuple[Config, ...] = (), stored: Sequence[Config] = ()) -> tuple[Contender, ...]:
    """The contenders of a duel: the winner, then the others, fastest first. Raises TuningError where none can win.

    Among the contenders tied with the fastest the first of `stored` wins, else the canonical first. `only_compared` and
    the vendor's library cannot win.
    """
    rival = None if noisy(aa_spread(duel)) else next((side for side in duel if side.config is None), None)
    contenders = []
    for side in duel:
        samples = side.measurement.samples_us
        ratio, interval = paired_if_timed(rival.measurement.samples_us[: len(samples)] if rival else (), samples)
        between_ratio, between_interval = paired_if_timed(rival.between_us if rival else (), side.between_us)
        contenders.append(
            Contender(
                config=side.config,
                measurement=side.measurement,
                accuracy=side.accuracy,
                ratio_vendor=ratio,
                interval=interval,
                between_us=median(side.between_us),
                between_ratio=between_ratio,
                between_interval=between_interval,
                stored=side.config in stored,
            )
        )
    contenders.sort(key=lambda contender: contender.measurement.median_us)
    places = {config: place for place, config in enumerate(stored)}
    ours = [(c.config, c) for c in contenders if c.config is not None and c.config not in only_compared]
    if not ours:
        raise TuningError("nobody to judge")
    fastest_us = ours[0][1].measurement.median_us
    equal = [(config, c) for config, c in ours if tied(c.measurement.median_us, fastest_us)]
    _, first = min(equal, key=lambda pair: (places.get(pair[0], len(places)), pair[0].canonical))
    return (first, *(contender for contender in contenders if contender is not first))


def aa_spread(duel: Duel) -> float | None:
    """Share by which a contender differed from itself in the same rounds; None where none was timed twice."""
    twice = next((side for side in duel if side.again_us), None)
    return None if twice is None else spread(paired(twice.again_us, twice.measurement.samples_us)[1])


def decided(
    problem: Problem,
    info: DeviceInfo,
    contenders: tuple[Contender, ...],
    versions: tuple[tuple[str, str], ...],
    effort: str = "",
) -> Record:
    """The record of the winner, the first contender that `judge` returned."""
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
