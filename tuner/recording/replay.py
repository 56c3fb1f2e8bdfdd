"""Runs recorded, and tuning from a recording without a GPU."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...codegen.errors import TuningError, check
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ..measure.evaluate import Tried
from ..search.candidates import Candidates
from ..search.samplers import make_sampler
from ..search.space import Point
from .files import Entry, Recording, write_cache_file, write_t4

__all__ = ["Recorder", "Replayed", "replay", "t4_path"]


class Recorder:
    """Collects what was tried in one run."""

    def __init__(self, found: Candidates) -> None:
        self._found = found
        self._entries: dict[Point, Entry] = {}

    def add(self, tried: Tried) -> None:
        """One variant, right or failed."""
        record, phases = tried.record, tried.phases
        point = self._found.point_of(record.config)
        assert point is not None
        measured = record.measurement
        self._entries[point] = Entry(
            status=record.status.value,
            time_us=measured.median_us if measured else None,
            times_us=measured.samples_us if measured else (),
            compile_s=phases.compile_s,
            verify_s=phases.verify_s,
            bench_s=phases.time_s,
            reason=record.reason,
        )

    def write(self, path: Path, problem: Problem, info: DeviceInfo) -> tuple[Path, Path]:
        """Write a Kernel Tuner cache file at `path` and a T4 file beside it. Raises StoreError."""
        recording = Recording(
            device_name=info.name,
            kernel_name=f"gemm {problem.dtype.value} {problem.trans}",
            problem_size=(problem.m, problem.n, problem.k),
            dimensions=self._found.space.dimensions,
            entries=self._entries,
        )
        write_cache_file(path, recording)
        write_t4(t4_path(path), recording)
        return path, t4_path(path)


def t4_path(path: Path) -> Path:
    """`run.json.gz` gives `run.t4.json.gz`."""
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(stem + ".t4.json" + (".gz" if path.name.endswith(".gz") else ""))


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
    def best(self) -> tuple[Point, float]:
        """The fastest point tried and its time in microseconds."""
        times = [(time_us, point) for point, time_us in self.trials if time_us is not None]
        time_us, point = min(times)
        return point, time_us

    @property
    def share(self) -> float:
        """The recording's optimum over the best found: 1 where the search found it."""
        return self.recording.best()[1] / self.best[1]


def replay(
    recording: Recording,
    *,
    sampler: str = "auto",
    trials: int = 200,
    seconds: float = math.inf,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda count, best_us: None,
) -> Replayed:
    """Search a recording as if it were a device: each trial costs what it cost when it was recorded.

    `seconds` counts recorded seconds. Raises ConfigError for an unknown sampler, TuningError if nothing worked.
    """
    search = make_sampler(sampler, recording.space(), seed, budget=trials)
    tried: list[tuple[Point, float | None]] = []
    charged_s, best_us, stopped = 0.0, math.inf, "trials"
    while len(tried) < trials:
        point = search.ask()
        if point is None or charged_s > seconds:
            stopped = "space" if point is None else "seconds"
            break
        entry = recording.replay(point)
        charged_s += entry.charged_s
        search.tell(point, entry.time_us, status=entry.status, reason=entry.reason)
        tried.append((point, entry.time_us))
        best_us = min(best_us, entry.time_us or math.inf)
        progress(len(tried), best_us)
    check(math.isfinite(best_us), f"nothing worked in {len(tried)} trials of the recording", TuningError)
    return Replayed(recording, tuple(tried), charged_s, stopped)
