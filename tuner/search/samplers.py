"""The samplers by their names."""

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from ...codegen.errors import check
from .space import Space

if TYPE_CHECKING:
    from .study import Search

SAMPLERS = ("gp", "tpe", "random", "exhaustive")
"""Our names, of which `tpe` is Optuna's TPESampler; `optuna:` and the name of a class in `optuna.samplers` is any."""

OPTUNA = "optuna:"
_TPE = OPTUNA + "TPESampler"


def check_sampler(name: str) -> None:
    """Raise ConfigError for a name that `make_search` does not know."""
    if name.startswith(OPTUNA):
        known = _of_optuna()
        check(name in known, f"Optuna samplers that need no arguments are {', '.join(known)}; got {name!r}")
    else:
        check(name in SAMPLERS, f"sampler must be one of {', '.join(SAMPLERS)} or {OPTUNA}CLASS, got {name!r}")


def make_search(name: str, space: Space, seed: int) -> "Search":
    """The search called `name`. Raises ConfigError for an unknown one.

    A sampler of Optuna's may need a package; `ask` raises ConfigError then.
    """
    check_sampler(name)
    # Only here: Optuna is slow to import.
    from .gaussian import GaussianSampler
    from .sampler import ExhaustiveSampler, RandomSampler
    from .study import Search

    if name == "tpe":
        name = _TPE
    if name.startswith(OPTUNA):
        kind = _of_optuna()[name]
        options = {"seed": seed, "warn_independent_sampling": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            sampler = kind(**{k: v for k, v in options.items() if k in inspect.signature(kind).parameters})
    else:
        kinds = {"gp": GaussianSampler, "random": RandomSampler, "exhaustive": ExhaustiveSampler}
        sampler = kinds[name](space, seed)
    # Positions taken for numbers mislead Optuna's TPE: on recordings it needs twice as many outcomes or more.
    return Search(space, sampler, numbers=name != _TPE)


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
