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
    gain: float = 0.0
    """Share of the best time: a search ends where its next variants are expected to save less."""
    least: int = 0
    """Variants before which it does not end so."""


Effort = Literal["quick", "normal", "full"]
SamplerName = Literal["local", "gp", "tpe", "random", "exhaustive"] | str
"""Sampler that chooses variants: one of these words, or optuna:NAME."""

EFFORTS: dict[Effort, Budget] = {
    "quick": Budget(64, 20.0, 0.01),
    "normal": Budget(320, 45.0, 0.003),
    "full": Budget(100_000, 900.0, 0.0003, 400),
}
"""Budgets of a run, by the names that `--effort` takes."""

LOCAL, GP = "local", "gp"
"""Samplers that are taken where none is named: `gp` for spaces that a user names and for recordings, else `local`."""
SAMPLERS = (LOCAL, GP, "tpe", "random", "exhaustive")
"""Our names, of which `tpe` is Optuna's TPESampler; `optuna:` and the name of a class in `optuna.samplers` is any."""

AHEAD = 40
"""Variants for which a search tells the gain still to be expected."""

BENCH_SECONDS = 2.0
"""Seconds that a bench times each shape side by side, where nothing else is asked for."""
