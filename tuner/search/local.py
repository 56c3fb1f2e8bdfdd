"""The sampler of a neighbourhood: likely configs first, then neighbours of the fastest ones.

    likely = [choice.config for choice in shortlist(problem, info, records, 240)]
    sampler = LocalSampler(Forecast(problem, info), likely)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask(sampler.distributions)
    config = sampler.variants.variant_of(trial.params)
"""  # fmt: skip

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution

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
    values. A parameter that a config's family lacks has its first value, which means nothing."""

    def __init__(self) -> None:
        self.distributions = _distributions()

    def params_of(self, variant: Config) -> dict[str, Any]:
        """The family and the values of all parameters."""
        params = {
            name: each.low if isinstance(each, IntDistribution) else each.choices[0]
            for name, each in self.distributions.items()
        }
        return params | {FAMILY: variant.family, **dict(variant.values)}

    def variant_of(self, params: Mapping[str, Any]) -> Config | None:
        """The config with these values; None where no config has them."""
        try:
            kind = family_named(params[FAMILY])
            return kind.of({leaf.name: params[leaf.name] for leaf in kind.leaves()})
        except (KeyError, ConfigError):
            return None

    def nearest(self, params: Mapping[str, Any], seen: set[Config]) -> Config | None:
        """None: this class cannot tell which configs are legal for a problem."""
        return None


@cache
def _distributions() -> dict[str, Any]:
    distributions: dict[str, Any] = {FAMILY: CategoricalDistribution([*families()])}
    choices: dict[str, dict[Value, None]] = {}
    for leaf in (leaf for kind in families().values() for leaf in kind.leaves()):
        if isinstance(leaf.choices, range):
            distributions[leaf.name] = IntDistribution(leaf.choices[0], leaf.choices[-1])
        else:
            choices.setdefault(leaf.name, {}).update(dict.fromkeys(map(leaf.plain, leaf.choices)))
    return distributions | {name: CategoricalDistribution([*values]) for name, values in choices.items()}


class LocalSampler(VariantSampler[Config]):
    """Chooses configs for a problem on a device, the configs of `start` first."""

    def __init__(self, forecast: Forecast, start: Sequence[Config], seed: int | None = None) -> None:
        super().__init__(Parameters(), seed)
        self.forecast, self.start = forecast, tuple(dict.fromkeys(start))
        self._latest: Neighbourhood | None = None

    @property
    def expected_gain(self) -> float | None:
        """Share of the best time that the next AHEAD variants of the newest study are expected to save; None while too
        few outcomes are known."""
        return None if self._latest is None else self._latest.expected_gain

    def chooser(self) -> Neighbourhood:
        self._latest = Neighbourhood(self.forecast, self.start)
        return self._latest
