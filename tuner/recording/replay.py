"""Tuning from a recording, without a GPU."""

import math
from dataclasses import dataclass

from ...codegen.errors import TuningError, check
from ..search.space import Point
from .files import Recording

TRIALS = 200
"""Of a search where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a search of a recording found."""

    recording: Recording
    trials: tuple[tuple[Point, float | None], ...]
    """Points in the order tried, and their recorded times in microseconds; None for a failure."""
    charged_s: float
    """Seconds that the recorded runs took, compiling, checking and timing together."""
    stopped: str
    """trials, seconds or space."""

    @property
    def share(self) -> float:
        """The recording's optimum over the best found: 1 where the search found it."""
        return self.recording.best_us / min(time_us for _, time_us in self.trials if time_us is not None)


def replay(
    recording: Recording,
    *,
    sampler: str = "gp",
    trials: int = TRIALS,
    seconds: float = math.inf,
    seed: int = 0,
) -> Replayed:
    """Search a recording as if it were a device: each trial costs what it cost when it was recorded.

    `seconds` counts recorded seconds. Raises ConfigError for an unknown sampler, TuningError if nothing worked.
    """
    from ..search.study import make_search

    search = make_search(sampler, recording.space(), seed)
    tried: list[tuple[Point, float | None]] = []
    charged_s, stopped = 0.0, "trials"
    while len(tried) < trials:
        point = search.ask()
        if point is None or charged_s > seconds:
            stopped = "space" if point is None else "seconds"
            break
        entry = recording.entries[point]
        charged_s += entry.charged_s
        search.tell(point, entry.time_us)
        tried.append((point, entry.time_us))
    worked = any(time_us is not None for _, time_us in tried)
    check(worked, f"nothing worked in {len(tried)} trials of the recording", TuningError)
    return Replayed(recording, tuple(tried), charged_s, stopped)
