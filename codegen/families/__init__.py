"""The kernel families, one module each: its config, its legality, its resources, its template's name."""

import importlib
import pkgutil
from functools import cache

from ..config import Config
from ..errors import ConfigError, nearest_of
from ..legality import require, serves
from ..problem import Problem
from ..target import Target
from ..text import values_of


@cache
def families() -> dict[str, type[Config]]:
    """Every family by name, simple ones first: what the modules of this folder define."""
    classes: list[type[Config]] = []
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        classes += [each for each in members if isinstance(each, type) and issubclass(each, Config)]
    named = (each for each in dict.fromkeys(classes) if hasattr(each, "family"))
    return {each.family: each for each in sorted(named, key=lambda each: (each.order, each.family))}


def family_named(name: str) -> type[Config]:
    """The family called `name`. Raises ConfigError listing the known ones."""
    family = families().get(name)
    if family is None:
        raise ConfigError(f"family must be one of {', '.join(families())}, got {name!r}{nearest_of(name, families())}")
    return family


def parse(text: str) -> Config:
    """The config written `family:tile,name=value,...`, as `str(config)` gives it. Raises ConfigError."""
    name, _, rest = text.strip().partition(":")
    try:
        family = family_named(name.strip())
        return family.of(values_of(rest, dict(family.joined)))
    except ConfigError as error:
        raise ConfigError(f"config {text!r}: {error}") from None


def default_config(problem: Problem, target: Target) -> Config:
    """The config that runs where nothing was tuned: the defaults of the first family with shared memory that serve the
    problem on the target, else those of the first family. Raises ConfigError if these exceed the limit of the grid."""
    defaults = [family() for family in families().values()]
    config = next((each for each in defaults if each.smem_bytes(problem.dtype) and serves(each, problem, target)), None)
    if config is None:
        require(problem, defaults[0], target)
    return config or defaults[0]
