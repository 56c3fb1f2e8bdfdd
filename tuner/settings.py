"""Settings of a run that a user chooses by name, and their defaults. Completion reads this module, which therefore
imports nothing slow."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run, which ends at the first one that it reaches."""

    trials: int
    """Largest number of variants tried, resumed ones included."""
    seconds: float
    """Most seconds of wall time, the duel included."""
    gain: float = 0.0
    """Share of the best time: a search ends where its next variants are expected to save less."""
    least: int = 0
    """Number of variants before which `gain` does not end the search."""


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
"""Default samplers: `gp` for spaces that a user names and for recordings, else `local`."""
SAMPLERS = (LOCAL, GP, "tpe", "random", "exhaustive")
"""Names of samplers; `tpe` is Optuna's TPESampler, and `optuna:CLASS` any class of `optuna.samplers`."""

AHEAD = 40
"""Number of next variants whose expected gain a search reports."""

BENCH_SECONDS = 2.0
"""Default seconds for which a bench times each shape side by side."""
