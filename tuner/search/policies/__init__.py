"""What each family's searches try: one module a family, found by its name."""

import importlib
import pkgutil
from functools import cache

from .policy import Policy


@cache
def policy_of(family: str) -> Policy:
    """The policy of a family: `POLICY` in the module here that has its name, else the default, which tries all."""
    if family not in {module.name for module in pkgutil.iter_modules(__path__)}:
        return Policy()
    found: Policy = importlib.import_module(f"{__name__}.{family}").POLICY
    return found
