"""Early ends of a run: signals, a terminal that was closed, and too little time to measure anything."""

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
    """The reason that there is no winner: too little time, or the number of variants by status and the first reason."""
    causes = ", ".join(f"{count} {status}" for status, count in statuses)
    if {status for status, _ in statuses} <= {Status.TIMEOUT.value}:
        if stopped == "seconds":
            counts = f" ({causes})" if causes else ""
            few = f"{budget.seconds:g} s were too few to measure one variant of {problem} on {info.name}{counts}"
            return f"{few}: allow more (--seconds, --effort)"
        if causes:
            return f"every variant of {problem} takes too long on {info.name}: {causes}, limit {TRY_LIMIT_S:g} s"
    first = f"; {reason}" if reason else ""
    return f"no variant of {problem} works on {info.name}: {causes or 'none was tried'}{first}"


class Watched(Progress):
    """Progress that ends the run, as a signal does, where nobody can see its output any longer; a full disk only
    silences it."""

    def __init__(self, progress: Progress, interrupted: list[int]) -> None:
        self._progress, self._interrupted = progress, interrupted

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        with self._seen():
            self._progress.started(problem, device, variants, budget, resumed)

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        with self._seen():
            self._progress.resumed(problem, device, config, entry)

    def tried(self, tried: Tried, best: Record | None) -> None:
        with self._seen():
            self._progress.tried(tried, best)

    def duelling(self, configs: tuple[Config, ...]) -> None:
        with self._seen():
            self._progress.duelling(configs)

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """Turn the failure of an output that nobody sees into the end of the run."""
        try:
            yield
        except OSError as error:
            if error.errno not in UNSEEN:
                raise
            self._progress = Progress()
            self._interrupted += [signal.SIGHUP] * (error.errno != errno.ENOSPC)


@contextmanager
def noting_signals(numbers: list[int]) -> Iterator[None]:
    """Append the first signal that asks for the end to `numbers`; the second raises KeyboardInterrupt. SIGHUP stays
    ignored under nohup."""

    def note(number: int, frame: object) -> None:
        if numbers and number != signal.SIGHUP:  # a shell sends SIGHUP twice
            raise KeyboardInterrupt
        numbers.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [signal.SIGINT, signal.SIGTERM]
    handled += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
