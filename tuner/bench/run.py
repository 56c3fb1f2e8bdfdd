"""Timing of lists of shapes beside other libraries: one worker process, and a row for each shape."""

import datetime
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ...codegen.config import Config
from ...codegen.errors import TilewrightError, TuningError, absolute
from ...codegen.problem import Grade, Problem
from ...runtime.device.detect import choose
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Status
from ..measure.child import Child, ChildDiedError
from ..measure.evaluate import one_line, status_of
from ..measure.pipeline import MAX_RESTARTS, OPEN_LIMIT_S
from ..plan import check_work
from ..settings import BENCH_SECONDS
from .rows import BenchResult, BenchRow, Setting

ROW_LIMIT_S = 180.0
"""Seconds that a shape may take beyond ten times its rounds' seconds and a hundred times a turn's seconds."""


class BenchProgress(Protocol):
    """Listener that a bench calls as it goes on."""

    def opened(self, result: BenchResult) -> None:
        """Called once, before the first shape."""

    def begun(self, problem: Problem) -> None:
        """Called before each shape."""

    def measured(self, result: BenchResult) -> None:
        """Called after each shape; the last of `result.rows` is its row."""


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
    """Time the stored config of each problem, or each of `configs`, beside the vendor's libraries, interleaved in one
    process.

    Batches alternate; with `turn_seconds` each contender runs for that long in its turn, at its own clock. A shape
    that fails, or ends its process, has a row that says so. Ctrl-C ends the run with the rows that are done.
    Raises ShapeError for a problem with nothing to time, DeviceError for a device that is not there or whose memory a
    problem exceeds, and TuningError for one that cannot be opened.
    """
    info = choose(device)
    for problem in problems:
        check_work(problem, "time", info)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rows = list(itertools.product(problems, configs or (None,)))
    result = BenchResult(info, Setting((), ()), date, len(rows), turn_seconds=turn_seconds)
    grades = tuple(dict.fromkeys(problem.accuracy for problem in problems))
    worker = _Worker(info, grades, absolute("store", store) if store else None, seconds, turn_seconds)
    try:
        worker.open()
        result = replace(result, setting=worker.setting)
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


@dataclass(slots=True)
class _Worker:
    """The process that owns the device; where it ends, a fresh one follows."""

    info: DeviceInfo
    grades: tuple[Grade, ...]
    store: Path | None
    seconds: float
    turn_seconds: float
    child: Child | None = None
    setting: Setting = Setting((), ())
    ends: int = 0
    """Number of processes that ended one after another, without a row in between."""
    lost: str = ""
    """Reason that no more shapes can be timed; empty while they can."""

    def open(self) -> Child:
        """Start the process and open the device. Raises TuningError."""
        self.child = Child()
        try:
            self.setting = self.child.ask(("set_up", self.info, self.grades), OPEN_LIMIT_S)
        except (ChildDiedError, TilewrightError, MemoryError) as error:
            raise TuningError(f"the device cannot be opened: {one_line(error)}") from error
        return self.child

    def row(self, problem: Problem, config: Config | None) -> BenchRow:
        """The row of one shape, whether it can be timed or not; `config` is timed in place of the stored one."""
        limit_s = ROW_LIMIT_S + 10 * self.seconds + 100 * self.turn_seconds
        begun = time.monotonic()
        try:
            child = self.child or self.open()
            arguments = problem, self.setting.rivals, self.store, self.seconds, self.turn_seconds, config
            row: BenchRow = child.ask(("contest", *arguments), limit_s)
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
            self.ends += 1
            if self.ends >= MAX_RESTARTS:
                self.lost = f"the measuring process ended {self.ends} times in a row, last: {row.reason}"
        else:
            self.ends = 0
        return row

    def close(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.end()
            self.child = None
