"""Explanation of a look-up: the reason for its config, and the other configs that could run. No device is opened."""

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
"""Number of records of near shapes that are listed."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The look-up of a problem on a device, and the shortlist that it comes from."""

    problem: Problem
    device: DeviceInfo
    bounds: tuple[Bound, ...]
    """Least times that the device allows, the longest first; none for the processor."""
    lookup: LookupResult
    """Result of the look-up."""
    why: str
    """Reason for this result, a sentence."""
    expected_us: float | None
    """Microseconds that a ranker or the model of the device expects of the look-up's config; None without either."""
    handover: VendorFallback | None
    """Vendor fallback in place of the config, where a record says that the library is faster."""
    near: tuple[tuple[Record, float], ...]
    """Nearest records of the device with the same type and transposes, and the distances of their shapes."""
    choices: tuple[Choice, ...]
    """Shortlist without the look-up's config."""
    variants: tuple[tuple[str, int], ...]
    """Number of variants of each family that a search may try."""
    unable: tuple[tuple[str, str], ...]
    """Families that cannot run the problem, and the first rule that the default of each breaks; the rule is empty where
    only the values of the family's space break one."""

    @property
    def record(self) -> Record | None:
        """The record of exactly this product, where the look-up gives it."""
        return self.lookup.record if self.lookup.origin == "exact" else None


def explain(problem: Problem, info: DeviceInfo, shelf: Store, spaces: Path | None = None) -> Explained:
    """Explain the look-up of a problem on a device; `spaces` is a folder of space files, None for the package's own.
    Raises ConfigError for spaces that cannot be read, ShapeError where no variant serves the problem, and
    StoreVersionError."""
    records = tuple(shelf.records())
    lookup = shelf.lookup(info, problem, look_up)
    alike = (each for each in records if each.device == info.key and _serves(each.problem, problem))
    near = sorted(((record, distance(record.problem, problem, info)) for record in alike), key=lambda pair: pair[1])
    ranked = shortlist(problem, info, records, ENTRIES)
    likely, choices = [choice.config for choice in ranked], read_spaces(spaces)
    allowed = candidates(Forecast(problem, info), choices, likely, likely if spaces is None else ()).configs
    counts = {each.family: sum(config.family == each.family for config in allowed) for each in choices}
    serving = {name for name, family in families().items() if problem.batch > 1 or not family.batches_alone}
    lacking = [family for family, count in counts.items() if not count and family in serving]
    return Explained(
        problem=problem,
        device=info,
        bounds=bounds_of(info, problem),
        lookup=lookup,
        why=_why(problem, info, lookup, near, {choice.config: choice.source for choice in ranked}),
        expected_us=Forecast(problem, info).us([lookup.config])[0],
        handover=untimed(info, lookup),
        near=tuple(near[:NEAR]),
        choices=tuple(choice for choice in ranked if choice.config != lookup.config),
        variants=tuple((name, counts[name]) for name in families() if counts.get(name)),
        unable=tuple((family, next(rejections(problem, family_named(family)(), info), "")) for family in lacking),
    )


def _serves(tuned: Problem, problem: Problem) -> bool:
    """Whether the record of one product may serve another, whatever their sizes."""
    kind = tuned.dtype, tuned.trans, tuned.batch > 1
    return kind == (problem.dtype, problem.trans, problem.batch > 1) and tuned.accuracy.keeps(problem.accuracy)


def _why(
    problem: Problem,
    info: DeviceInfo,
    lookup: LookupResult,
    near: Sequence[tuple[Record, float]],
    sources: Mapping[Config, Source],
) -> str:
    exact = next((record for record, _ in near if record.problem == problem), None)
    if exact is not None and lookup.origin == "exact":
        if lookup.record is not None and lookup.record.problem != problem:
            faster = f"the record of this product in {lookup.record.problem.accuracy} is faster than its own"
            return f"{faster} on {info.key}"
        return f"there is a record of exactly this product on {info.key}"
    reason = "" if exact is None else next(rejections(problem, exact.config, info), "")
    begin = f"there is no record of this product on {info.key}"
    if reason:
        begin = f"the record of this product on {info.key} does not serve it, as it requires that {reason}"
    if lookup.record is not None and lookup.of_class:
        return f"{begin}; that of {lookup.record.problem.batch:,} products serves it, as both batches fill the device"
    if lookup.record is not None:
        away = distance(lookup.record.problem, problem, info)
        text = f"the nearest one that serves it was tuned for {lookup.record.problem.title}"
        sizes = "m, n and k" if problem.batch == 1 else "m, n, k and the batch"
        return f"{begin}; {text}, {away:.2f} doublings of {sizes} away"
    if lookup.sibling is not None:
        same = lookup.sibling.problem == problem
        text = f"{begin}; it runs as tuned {'' if same else f'for {lookup.sibling.problem.shape} '}on"
        return f"{text} {lookup.sibling.device}, which has the same SMs"
    if lookup.expected_us is None:
        return f"{begin}, and no other record that helps"
    text = f"{begin}, and none near it"
    measured = "on other devices" if sources.get(lookup.config) is Source.TRANSFERRED else "for other shapes"
    text = f"{text}; by what was measured {measured} it takes about {lookup.expected_us:.4g} us, and"
    if lookup.regret is None:
        return f"{text} what it costs not to tune was not measured here"
    return f"{text} not to tune costs at most {lookup.regret - 1:.0%} for nine of ten shapes"
