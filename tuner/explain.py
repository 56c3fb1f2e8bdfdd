"""Why a look-up gives what it gives for a problem on a device, and what else could run. Touches no device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..codegen.config import Config
from ..codegen.families import families, family_named
from ..codegen.legality import rejections
from ..codegen.problem import Problem
from ..runtime.check.roofline import Bound, bounds_of
from ..runtime.device.protocol import DeviceInfo
from ..runtime.product.vendor import VendorFallback
from ..runtime.store.lookup import LookupResult
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from .choose.choice import Choice, Source
from .choose.fallback import untimed
from .choose.forecast import Forecast
from .choose.shortlist import ENTRIES, distance, look_up, shortlist
from .search.candidates import candidates, read_spaces

NEAR = 4
"""Records of near shapes that are listed."""


@dataclass(frozen=True, slots=True)
class Unable:
    """A family that cannot run a problem on a device."""

    family: str
    required: str
    """The first rule that its default breaks; empty where it breaks none, and the values of its space do."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The look-up of a problem on a device, and the shortlist that it comes from."""

    problem: Problem
    device: DeviceInfo
    bounds: tuple[Bound, ...]
    """What the device cannot pass, the longest first; none for the processor."""
    found: LookupResult
    """What a look-up gives."""
    why: str
    """The reason of that, in one sentence."""
    expected_us: float | None
    """Microseconds that a ranker, or the model of the device, expects of it; None where nothing says so."""
    handover: VendorFallback | None
    """That the vendor's library serves in its place, where a record says that it is faster."""
    near: tuple[tuple[Record, float], ...]
    """The nearest records of the device with the same type and transposes, and how far their shapes are."""
    choices: tuple[Choice, ...]
    """The shortlist, without what a look-up gives."""
    variants: tuple[tuple[str, int], ...]
    """How many variants of each family a search may try."""
    unable: tuple[Unable, ...]
    """The families that cannot run it."""


def explain(problem: Problem, info: DeviceInfo, shelf: Store, spaces: Path | None = None) -> Explained:
    """All of it for one problem; `spaces` is a folder of values to combine, None for those of the package. Raises
    ConfigError for spaces that cannot be read, ShapeError where no variant serves it, and StoreVersionError."""
    records = tuple(shelf.records())
    found = shelf.lookup(info, problem, look_up)
    like = (each for each in records if each.device == info.key and _serves(each.problem, problem))
    near = sorted(((record, distance(record.problem, problem)) for record in like), key=lambda pair: pair[1])
    ranked = shortlist(problem, info, records, ENTRIES)
    likely, choices = [choice.config for choice in ranked], read_spaces(spaces)
    allowed = candidates(Forecast(problem, info), choices, likely, likely if spaces is None else ()).configs
    counts = {each.family: sum(config.family == each.family for config in allowed) for each in choices}
    lacking = [family for family, count in counts.items() if not count]
    return Explained(
        problem=problem,
        device=info,
        bounds=bounds_of(info, problem),
        found=found,
        why=_why(problem, info, found, near, {choice.config: choice.source for choice in ranked}),
        expected_us=Forecast(problem, info).us([found.config])[0],
        handover=untimed(info, found),
        near=tuple(near[:NEAR]),
        choices=tuple(choice for choice in ranked if choice.config != found.config),
        variants=tuple((name, counts[name]) for name in families() if counts.get(name)),
        unable=tuple(Unable(family, _first_rejection(family, problem, info)) for family in lacking),
    )


def _first_rejection(family: str, problem: Problem, info: DeviceInfo) -> str:
    default: Config = family_named(family)()
    return next(rejections(problem, default, info), "")


def _serves(tuned: Problem, problem: Problem) -> bool:
    """Whether what was tuned for a product may serve another one, but for their sizes."""
    kind = tuned.dtype, tuned.trans
    return kind == (problem.dtype, problem.trans) and tuned.accuracy.keeps(problem.accuracy)


def _why(
    problem: Problem,
    info: DeviceInfo,
    found: LookupResult,
    near: Sequence[tuple[Record, float]],
    sources: Mapping[Config, Source],
) -> str:
    exact = next((record for record, _ in near if record.problem == problem), None)
    if exact is not None and found.origin == "exact":
        if found.record is not None and found.record.problem != problem:
            faster = f"the record of this product in {found.record.problem.accuracy} is faster than its own"
            return f"{faster} on {info.key}"
        return f"there is a record of exactly this product on {info.key}"
    reason = "" if exact is None else next(rejections(problem, exact.config, info), "")
    begin = f"there is no record of this product on {info.key}"
    if reason:
        begin = f"the record of this product on {info.key} does not serve it, as it requires that {reason}"
    if found.record is not None:
        away = distance(found.record.problem, problem)
        text = f"the nearest one that serves it was tuned for {found.record.problem.shape}"
        return f"{begin}; {text}, {away:.2f} doublings of m, n and k away"
    if found.sibling is not None:
        same = found.sibling.problem == problem
        text = f"{begin}; it runs as tuned {'' if same else f'for {found.sibling.problem.shape} '}on"
        return f"{text} {found.sibling.device}, which has the same SMs"
    if found.expected_us is None:
        return f"{begin}, and no other record that helps"
    text = f"{begin}, and none near it"
    measured = "on other devices" if sources.get(found.config) is Source.TRANSFERRED else "for other shapes"
    text = f"{text}; by what was measured {measured} it takes about {found.expected_us:.4g} us, and"
    if found.regret is None:
        return f"{text} what it costs not to tune was not measured here"
    return f"{text} not to tune costs at most {found.regret - 1:.0%} for nine of ten shapes"
