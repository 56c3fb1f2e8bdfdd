"""The samplers by their names."""

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from ...codegen.errors import check
from .space import Space

if TYPE_CHECKING:
    from .study import Search

SAMPLERS = ("auto", "gp", "tpe", "random", "exhaustive")
"""Our own names; `optuna:` and the name of a class in `optuna.samplers` is one of Optuna's."""

OPTUNA = "optuna:"

GP_BUDGET = 1000
"""Trials up to which the Gaussian process suggests faster than TPE, and at least as well."""


def check_sampler(name: str) -> None:
    """Raise ConfigError for a name that `make_search` does not know."""
    if name.startswith(OPTUNA):
        known = _of_optuna()
        check(name in known, f"Optuna samplers that need no arguments are {', '.join(known)}; got {name!r}")
    else:
        check(name in SAMPLERS, f"sampler must be one of {', '.join(SAMPLERS)} or {OPTUNA}CLASS, got {name!r}")


def make_search(name: str, space: Space, seed: int, budget: int | None = None) -> "Search":
    """The search called `name`: `auto` is the Gaussian process up to a `budget` of 1,000 trials, else TPE.

    Raises ConfigError for another name. A sampler of Optuna's may need a package; `ask` raises ConfigError then.
    """
    check_sampler(name)
    # Only here: Optuna is slow to import.
    from .gaussian import GaussianSampler
    from .parzen import ParzenSampler
    from .sampler import ExhaustiveSampler, RandomSampler
    from .study import Search

    if name == "auto":
        name = "gp" if budget is not None and budget <= GP_BUDGET else "tpe"
    if name.startswith(OPTUNA):
        kind = _of_optuna()[name]
        options = {"seed": seed, "warn_independent_sampling": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            sampler = kind(**{k: v for k, v in options.items() if k in inspect.signature(kind).parameters})
    else:
        kinds = {"gp": GaussianSampler, "tpe": ParzenSampler, "random": RandomSampler, "exhaustive": ExhaustiveSampler}
        sampler = kinds[name](space, seed)
    # Positions taken for numbers mislead Optuna's TPE: on recordings it needs twice as many outcomes or more.
    return Search(space, sampler, numbers=name != OPTUNA + "TPESampler")


def _of_optuna() -> dict[str, Any]:
    """Optuna's samplers that can be made without an argument, by our names of them."""
    import optuna

    found = {}
    for name in sorted(optuna.samplers.__all__):
        kind = getattr(optuna.samplers, name)
        if not inspect.isclass(kind) or inspect.isabstract(kind):
            continue
        needed = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
        if not needed and name != "BruteForceSampler":  # stops its study, as only `optimize` may; ours is `exhaustive`
            found[OPTUNA + name] = kind
    return found
