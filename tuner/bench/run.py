"""Timing a list of shapes against other libraries: one worker process, and a row for each shape whatever happens."""

import datetime
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...codegen.config import Config
from ...codegen.errors import ShapeError, TilewrightError, TuningError, absolute, check
from ...codegen.problem import Grade, Problem
from ...runtime.device.detect import choose
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Status
from ..measure.child import Child, ChildDiedError
from ..measure.evaluate import one_line, status_of
from ..measure.pipeline import MAX_RESTARTS, OPEN_LIMIT_S
from ..settings import BENCH_SECONDS
from .rows import BenchResult, BenchRow, Setting

ROW_LIMIT_S = 180.0
"""A shape may take so long, ten times its seconds and a hundred times those of a turn."""


class BenchProgress(Protocol):
    """Told what happens while a run goes on."""

    def opened(self, result: BenchResult) -> None:
        """Once, before the first shape."""

    def begun(self, problem: Problem) -> None:
        """Before each shape."""

    def measured(self, result: BenchResult) -> None:
        """After each shape; its row is the last of `result.rows`."""


def bench(
    problems: Sequence[Problem],
    progress: BenchProgress,
    *,
    device: str = "auto",
    store: Path | None = None,
    seconds: float = BENCH_SECONDS,
    turn_seconds: float = 0.0,
    configs: Sequence[Config] = (),
) -> BenchResult:
    """Time what the store holds for each problem, or each of `configs`, beside the vendor's libraries, interleaved in
    one process.

    Batches alternate, or with `turn_seconds` each contender runs so long in its turn, at its own clock.
    A shape that fails, or takes its process down, is a row that says so. Ctrl-C ends the run with the rows that are
    done. Raises ShapeError for a problem with nothing to time, DeviceError for a device that is not there and
    TuningError for one that cannot be opened.
    """
    for problem in problems:
        check(
            min(problem.m, problem.n, problem.k) > 0,
            f"nothing to time in {problem}: a dimension is 0; name a shape without",
            ShapeError,
        )
    info = choose(device).info
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rows = list(itertools.product(problems, configs or (None,)))
    result = BenchResult(info, Setting((), ()), date, len(rows), turn_seconds=turn_seconds)
    grades = tuple(dict.fromkeys(problem.accuracy for problem in problems))
    worker = _Worker(info, grades, store, seconds, turn_seconds)
    try:
        result = replace(result, setting=worker.open())
        progress.opened(result)
        for problem, config in rows:
            progress.begun(problem)
            row = worker.row(problem, config)
            result = replace(result, rows=(*result.rows, row))
            progress.measured(result)
            if worker.lost:
                return replace(result, stopped=worker.lost)
    except KeyboardInterrupt:
        result = replace(result, stopped="interrupt")
    finally:
        worker.close()
    return result


class _Worker:
    """The process that owns the device; a fresh one follows where it ends."""

    def __init__(
        self,
        info: DeviceInfo,
        grades: tuple[Grade, ...],
        store: Path | None,
        seconds: float,
        turn_seconds: float,
    ) -> None:
        self._info, self._grades = info, grades
        self._seconds, self._turn_seconds = seconds, turn_seconds
        self._store = absolute("store", store) if store else None
        self._setting = Setting((), ())
        self._child: Child | None = None
        self._ends = 0
        self.lost = ""
        """Why no more shapes can be timed; empty while they can."""

    def open(self) -> Setting:
        """Start the process and open the device. Raises TuningError."""
        self._child = Child()
        try:
            self._setting = self._child.ask(("set_up", self._info, self._grades), OPEN_LIMIT_S)
        except (ChildDiedError, TilewrightError, MemoryError) as error:
            raise TuningError(f"the device cannot be opened: {one_line(error)}") from error
        return self._setting

    def row(self, problem: Problem, config: Config | None) -> BenchRow:
        """One shape, whatever becomes of it; `config` is timed in place of what the store holds."""
        limit_s = ROW_LIMIT_S + 10 * self._seconds + 100 * self._turn_seconds
        begun = time.monotonic()
        try:
            if self._child is None:
                self.open()
            assert self._child is not None
            asked = problem, self._setting.rivals, self._store, self._seconds, self._turn_seconds, config
            row: BenchRow = self._child.ask(("contest", *asked), limit_s)
        except ChildDiedError as error:
            late = time.monotonic() - begun >= limit_s
            row = BenchRow(problem, status=Status.TIMEOUT if late else Status.CRASHED, reason=one_line(error))
        except TuningError as error:
            row = BenchRow(problem, status=Status.LOST_DEVICE, reason=one_line(error))
        except (TilewrightError, MemoryError) as error:
            row = BenchRow(problem, status=status_of(error), reason=one_line(error))
        if config and not row.config:
            row = replace(row, config=str(config))
        if row.status in (Status.TIMEOUT, Status.CRASHED, Status.LOST_DEVICE):
            self.close()
            self._ends += 1
            if self._ends >= MAX_RESTARTS:
                self.lost = f"the measuring process ended {self._ends} times in a row, last: {row.reason}"
        else:
            self._ends = 0
        return row

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.end()
            self._child = None
