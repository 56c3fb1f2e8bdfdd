"""Tuning from a recording, without a GPU."""

import math
from dataclasses import dataclass

from ...codegen.errors import TuningError, check
from ..search.space import Point
from .files import Recording

TRIALS = 200
"""Trials of a replay, unless the user names another number."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a search of a recording."""

    recording: Recording
    trials: tuple[tuple[Point, float | None], ...]
    """Points and their recorded times in microseconds, in the order tried; None for a failure."""
    charged_s: float
    """Seconds that the recorded trials took: compiling, checking and timing."""
    stopped: str
    """Limit that ended the search: trials, seconds or space."""

    @property
    def share(self) -> float:
        """The recording's least time over the best time of the search: 1 where the search reached the optimum."""
        return self.recording.best_us / min(time_us for _, time_us in self.trials if time_us is not None)


def replay(
    recording: Recording,
    *,
    sampler: str = "gp",
    trials: int = TRIALS,
    seconds: float = math.inf,
    seed: int = 0,
) -> Replayed:
    """Search a recording as if it were a device: each trial takes as long as when it was recorded.

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
