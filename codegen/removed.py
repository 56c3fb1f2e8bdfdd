"""Configs that earlier versions stored, without the parameters and values that families lost since."""

from collections.abc import Mapping

from .config import Config
from .errors import check
from .leaf import Value


def without_removed(kind: type[Config], values: Mapping[str, Value]) -> tuple[list[dict[str, Value]], str]:
    """What may stand for the values today, the best first, and what they name that was removed; that is empty where
    they still mean the same kernel."""
    gone = {n: value for n, value in values.items() if n in kind.gone and type(value) is type(kind.gone[n])}
    removed = [f"{name}={value}" for name, value in gone.items() if value != kind.gone[name]]
    found = [{name: value for name, value in values.items() if name not in gone}]
    for name, value, others in kind.replaced:
        if values.get(name) == value:
            removed.append(f"{name}={value}")
            found = [{**each, name: other} for each in found for other in others]
    return found, ", ".join(removed)


def same_today(kind: type[Config], values: Mapping[str, Value]) -> Config:
    """The config of these values. Raises ConfigError, also where they name what was removed and did something."""
    found, removed = without_removed(kind, values)
    check(not removed, f"{kind.family} has no {removed} any more: tune the problem again")
    return kind.of(found[0])
