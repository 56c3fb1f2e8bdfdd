"""The sampler of a neighbourhood: likely configs first, then neighbours of those that were measured to be fast.

    likely = [choice.config for choice in shortlist(problem, info, records, 240)]
    sampler = LocalSampler(Forecast(problem, info), likely)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask(sampler.distributions)
    config = sampler.variants.variant_of(trial.params)
"""  # fmt: skip

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from ...codegen.config import Config
from ...codegen.errors import ConfigError
from ...codegen.families import families, family_named
from ...codegen.leaf import Value
from ..choose.forecast import Forecast
from ..recording.points import FAMILY
from .neighbourhood import Neighbourhood
from .sampler import VariantSampler


class Parameters:
    """The configs of all families as variants: a parameter of a trial for each parameter of any family, in plain
    values. One that a config's family lacks stands at its first value and says nothing."""

    def __init__(self) -> None:
        self.distributions = _distributions()

    def params_of(self, variant: Config) -> dict[str, Any]:
        """The family and the values of all parameters."""
        return {**_first_values(), FAMILY: variant.family, **dict(variant.values)}

    def variant_of(self, params: Mapping[str, Any]) -> Config | None:
        """The config with these values; None where they are none's."""
        try:
            kind = family_named(params[FAMILY])
            return kind.of({leaf.name: params[leaf.name] for leaf in kind.leaves()})
        except (KeyError, ConfigError):
            return None

    def nearest(self, params: Mapping[str, Any], seen: set[Config]) -> Config | None:
        """None: only samplers that know which configs are legal choose among all of them."""
        return None


@cache
def _distributions() -> dict[str, BaseDistribution]:
    found: dict[str, BaseDistribution] = {FAMILY: CategoricalDistribution([*families()])}
    choices: dict[str, dict[Value, None]] = {}
    for leaf in (leaf for kind in families().values() for leaf in kind.leaves()):
        if isinstance(leaf.choices, range):
            found[leaf.name] = IntDistribution(leaf.choices[0], leaf.choices[-1])
        else:
            choices.setdefault(leaf.name, {}).update(dict.fromkeys(map(leaf.plain, leaf.choices)))
    return found | {name: CategoricalDistribution([*values]) for name, values in choices.items()}


@cache
def _first_values() -> dict[str, Any]:
    leaves = (leaf for kind in families().values() for leaf in kind.leaves())
    found: dict[str, Any] = {}
    for leaf in leaves:
        found.setdefault(leaf.name, leaf.plain(leaf.choices[0]))
    return found


class LocalSampler(VariantSampler[Config]):
    """Chooses configs for a problem on a device, beginning with those of `start`."""

    def __init__(self, forecast: Forecast, start: Sequence[Config], seed: int | None = None) -> None:
        super().__init__(Parameters(), seed)
        self.forecast, self.start = forecast, tuple(dict.fromkeys(start))
        self._latest: Neighbourhood | None = None

    @property
    def expected_gain(self) -> float | None:
        """Gain that the next AHEAD variants are expected to bring to the study that began last, as a share of the best
        time; None while too little was measured."""
        return None if self._latest is None else self._latest.expected_gain

    def chooser(self) -> Neighbourhood:
        self._latest = Neighbourhood(self.forecast, self.start)
        return self._latest
