"""Why a search tries what it tries for a problem on a device, and a look-up gives what it gives. Touches no device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.legality import rejections, rules_of
from ...codegen.problem import Problem
from ...runtime.check.roofline import Bound, bounds_of
from ...runtime.device.protocol import DeviceInfo
from ...runtime.product.vendor import Handover
from ...runtime.store.found import Found
from ...runtime.store.record import Record
from ...runtime.store.store import Store
from ..vendor import untimed
from .candidates import candidates, read_spaces
from .model import estimate_us
from .nearest import distance, nearest, predictions
from .policies import policy_of
from .ranked import PREDICTED, beyond_advice, first_guesses, recorded

NEAR = 4
"""Records of near shapes that are listed."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Combinations of parameters that are not tried, counted under the first rule that they break."""

    step: str
    """`legal` where they could not run, `policy` where that was measured not to pay, `model` where a model of the
    device says so."""
    reason: str
    combinations: int


@dataclass(frozen=True, slots=True)
class Guess:
    """A variant that a search tries among the first."""

    config: Config
    expected_us: float | None
    """What the model of a device expects, in microseconds; None for the processor."""
    source: str
    """`record` of a near shape, `predicted` by what was measured for others, `model`, or `default` where there is none
    of the processor."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What would be tried, what is expected, and what runs as things are."""

    problem: Problem
    device: DeviceInfo
    bounds: tuple[Bound, ...]
    """What the device cannot pass, the longest first; none for the processor."""
    found: Found
    """What a look-up gives."""
    why: str
    """And why, in one sentence."""
    handover: Handover | None
    """That the vendor's library serves in its place, where a record says that it is faster."""
    near: tuple[tuple[Record, float], ...]
    """The nearest records of the device with the same type and transposes, and how far their shapes are."""
    tried: tuple[tuple[str, int], ...]
    """How many variants of which family may be tried."""
    guesses: tuple[Guess, ...]
    """What is tried first; the model's best come first."""
    left_out: tuple[LeftOut, ...]
    """The others by reason, most first."""


def explain(problem: Problem, info: DeviceInfo, shelf: Store, spaces: Path | None = None) -> Explained:
    """All of it for one problem; `spaces` is a folder of values to combine, None for those of the package. Raises
    ConfigError for spaces that cannot be read, ShapeError where no variant serves it, and StoreVersionError."""
    records = tuple(shelf.records())
    found = shelf.lookup(info, problem, nearest)
    like = (each for each in records if each.device == info.key and _serves(each.problem, problem))
    near = sorted(((record, distance(record.problem, problem)) for record in like), key=lambda pair: pair[1])
    known = beyond_advice(problem, info, records) if spaces is None else ()
    allowed = candidates(problem, info, read_spaces(spaces), known)
    counts = {name: sum(config.family == name for config in allowed.configs) for name in families()}
    return Explained(
        problem=problem,
        device=info,
        bounds=bounds_of(info, problem),
        found=found,
        why=_why(problem, info, found, near),
        handover=untimed(info, found),
        near=tuple(near[:NEAR]),
        tried=tuple((name, count) for name, count in counts.items() if count),
        guesses=_guesses(problem, info, allowed.configs, records),
        left_out=tuple(LeftOut(_step(reason, info), reason, count) for reason, count in allowed.pruned),
    )


def _serves(tuned: Problem, problem: Problem) -> bool:
    """Whether what was tuned for a product may serve another one, but for their sizes."""
    kind = tuned.dtype, tuned.trans
    return kind == (problem.dtype, problem.trans) and tuned.accuracy.keeps(problem.accuracy)


def _why(problem: Problem, info: DeviceInfo, found: Found, near: Sequence[tuple[Record, float]]) -> str:
    exact = next((record for record, _ in near if record.problem == problem), None)
    if exact is not None and found.origin == "exact":
        return f"there is a record of exactly this product on {info.key}"
    reason = "" if exact is None else next(rejections(problem, exact.config, info), "")
    begin = (
        f"the record of this product does not serve it ({reason})" if reason else "there is no record of this product"
    )
    if found.record is not None:
        away = distance(found.record.problem, problem)
        kind = f"{problem.dtype.value} {problem.trans}"
        return (
            f"{begin} on {info.key}; of the {len(near)} of {kind} there, this is the nearest whose variant serves it: "
            f"{away:.2f} doublings of m, n and k away"
        )
    if found.sibling is not None:
        same = found.sibling.problem == problem
        text = f"{begin} on {info.key}; it is as tuned {'' if same else f'for {found.sibling.problem.shape} '}on"
        return f"{text} {found.sibling.device}, which has the same SMs"
    if found.expected_us is not None:
        text = f"{begin} on {info.key}, nor one near it; by what was measured for other shapes this takes about"
        if found.regret is None:
            return f"{text} {found.expected_us:.4g} us; how good that is was not measured on such a device"
        return (
            f"{text} {found.expected_us:.4g} us, and at most {found.regret:.3g} times the best for nine of ten shapes"
        )
    return f"{begin} on {info.key}, and none of another that would help"


def _guesses(
    problem: Problem, info: DeviceInfo, configs: tuple[Config, ...], records: Sequence[Record]
) -> tuple[Guess, ...]:
    near, known = set(recorded(problem, info, records)), set(configs)
    predicted = {each.config: each.us for each in predictions(problem, info, PREDICTED)}
    guesses = []
    for config in dict.fromkeys(first_guesses(problem, info, configs, records)):
        if config in known:
            us = None if info.arch.is_host else predicted.get(config) or estimate_us(problem, config, info)
            source = "predicted" if config in predicted else "default" if us is None else "model"
            guesses.append(Guess(config, us, "record" if config in near else source))
    return tuple(sorted(guesses, key=lambda guess: guess.expected_us or 0.0))


def _step(reason: str, info: DeviceInfo) -> str:
    kinds = families().values()
    if any(rule.title == reason for kind in kinds for rule in rules_of(kind)):
        return "legal"
    advised = (rule.title for kind in kinds for rule in policy_of(kind.family).advice)
    return "policy" if reason in advised or info.arch.is_host else "model"
