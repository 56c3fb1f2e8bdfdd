"""Settings of a run that a user chooses by name, and their defaults. It imports nothing slow: completion reads it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Budget:
    """When a run ends, whichever comes first. Hard limits."""

    trials: int
    """Variants tried, those of earlier runs that this one resumes counted."""
    seconds: float
    """Wall time, the duel included."""


Effort = Literal["quick", "normal", "full"]
SamplerName = Literal["gp", "tpe", "random", "exhaustive"] | str
"""Sampler that chooses variants: one of these words, or optuna:NAME."""

EFFORTS: dict[Effort, Budget] = {
    "quick": Budget(32, 20.0),
    "normal": Budget(600, 45.0),
    "full": Budget(100_000, 900.0),
}
"""Budgets of a run, by the names that `--effort` takes."""

SAMPLERS = ("gp", "tpe", "random", "exhaustive")
"""Our names, of which `tpe` is Optuna's TPESampler; `optuna:` and the name of a class in `optuna.samplers` is any."""

BENCH_SECONDS = 2.0
"""Seconds that a bench times each shape side by side, where nothing else is asked for."""
