"""The command line. This module imports hardly anything, so that Ctrl-C ends the process from its first moment."""

import os
import signal
import sys

__all__ = ["main", "main_tune"]


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `tilewright`."""
    _start("main", arguments)


def main_tune(arguments: list[str] | None = None) -> None:
    """Entry point of `tune`, the same as `tilewright tune`."""
    _start("main_tune", arguments)


def _start(entry: str, arguments: list[str] | None) -> None:
    """Call an entry point of `app`. In a process of its own, signals that ask for the end raise KeyboardInterrupt, and
    none of them prints a traceback, from the first import to the last flush."""
    own = arguments is None
    handled = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if own and signal.getsignal(n) != signal.SIG_IGN
    ]
    try:
        for number in handled:
            signal.signal(number, _leave)  # an import may swallow KeyboardInterrupt, and there is nothing to lose
        from . import app

        for number in handled:
            signal.signal(number, signal.default_int_handler)
        getattr(app, entry)(arguments)
    except KeyboardInterrupt:  # a second signal, while `app` handled the first
        sys.exit(130)
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"tilewright: interrupted\n")
    os._exit(130)
