"""How a run ends before its time: signals, a terminal that was closed, and too little time to measure anything."""

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..codegen.config import Config
from ..codegen.errors import ShapeError
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import UNSEEN
from ..runtime.store.record import Record, Status
from .measure.evaluate import Tried
from .measure.pipeline import TRY_LIMIT_S
from .recording.entry import Entry
from .result import Progress
from .settings import Budget

HOST_GFLOPS = 16.0
"""10^9 operations a second that no kernel reaches on the processor, where one thread runs all of it."""


def check_time(problem: Problem, info: DeviceInfo, budget: Budget, try_limit_s: float) -> None:
    """Raise ShapeError where the device is known to be too slow: a variant is run once to be checked, then timed."""
    gflops = HOST_GFLOPS if info.arch.is_host else info.peak_gflops(problem.dtype)
    least_s = 2 * problem.flops / gflops / 1e9
    if least_s <= min(budget.seconds, try_limit_s):
        return
    slow = f"checking and timing one variant of {problem} takes at least {least_s:.2g} s on {info.name}"
    allowed = f"a variant may take {try_limit_s:g} s: the shape is too large for this device"
    if least_s <= try_limit_s:
        allowed = f"the run may take {budget.seconds:g} s: allow more (--seconds, --effort)"
    raise ShapeError(f"{slow}, and {allowed}")


def why_nothing(
    problem: Problem,
    info: DeviceInfo,
    budget: Budget,
    statuses: list[tuple[str, int]],
    stopped: str,
    reason: str = "",
) -> str:
    """Why there is no winner: that there was too little time, or the causes, counted, with the first reason."""
    causes = ", ".join(f"{count} {status}" for status, count in statuses)
    if {status for status, _ in statuses} <= {Status.TIMEOUT.value}:
        if stopped == "seconds":
            told = f" ({causes})" if causes else ""
            few = f"{budget.seconds:g} s were too few to measure one variant of {problem} on {info.name}{told}"
            return f"{few}: allow more (--seconds, --effort)"
        if causes:
            return f"every variant of {problem} takes too long on {info.name}: {causes}, limit {TRY_LIMIT_S:g} s"
    first = f"; {reason}" if reason else ""
    return f"no variant of {problem} works on {info.name}: {causes or 'none was tried'}{first}"


class Watched(Progress):
    """A progress; where whoever watched is gone, the run ends as by a signal, with what was found."""

    def __init__(self, told: Progress, interrupted: list[int]) -> None:
        self._told, self._interrupted = told, interrupted

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        with self._heard():
            self._told.started(problem, device, variants, budget, resumed)

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        with self._heard():
            self._told.resumed(problem, device, config, entry)

    def tried(self, tried: Tried, best: Record | None) -> None:
        with self._heard():
            self._told.tried(tried, best)

    def duelling(self, configs: tuple[Config, ...]) -> None:
        with self._heard():
            self._told.duelling(configs)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in UNSEEN:
                raise
            self._told = Progress()
            self._interrupted += [signal.SIGHUP] * (error.errno != errno.ENOSPC)


@contextmanager
def noting_signals(noted: list[int]) -> Iterator[None]:
    """Signals that ask for the end: noted the first time, obeyed at once the second; nohup's wish is kept."""

    def note(number: int, frame: object) -> None:
        if noted and number != signal.SIGHUP:  # which a shell sends again
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [signal.SIGINT, signal.SIGTERM]
    wanted += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
