"""Early ends of a run: signals, a terminal that was closed, and too little time to measure anything."""

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ..codegen.errors import ShapeError
from ..codegen.problem import Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import UNSEEN
from ..runtime.store.record import Status
from .measure.pipeline import TRY_LIMIT_S
from .settings import Budget

L = TypeVar("L")

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


class _Watched:
    """Listener that calls another one until nobody can see its output."""

    def __init__(self, listener: object, interrupted: list[int]) -> None:
        self._listener, self._interrupted, self._seen = listener, interrupted, True

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._listener, name)

        def call(*arguments: Any) -> None:
            try:
                if self._seen:
                    method(*arguments)
            except OSError as error:
                if error.errno not in UNSEEN:
                    raise
                self._seen = False
                self._interrupted += [signal.SIGHUP] * (error.errno != errno.ENOSPC)

        return call


def watched(listener: L, interrupted: list[int]) -> L:
    """A listener that ends the run, as a signal does, where nobody can see its output any longer; a full disk only
    silences it."""
    return cast(L, _Watched(listener, interrupted))


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
