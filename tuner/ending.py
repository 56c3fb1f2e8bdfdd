"""Early ends of a run: signals, and a terminal or a reader of the output that is gone."""

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ..runtime.files import UNSEEN

L = TypeVar("L")


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
