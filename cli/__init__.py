"""The command line. This file imports next to nothing, so that Ctrl-C is heard from the first moment on."""

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
    """Call an entry point of `app`. Where the process is its own, signals that ask for the end are KeyboardInterrupt,
    and none of them is a traceback, from the first import to the last flush."""
    own = arguments is None
    asking = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if own and signal.getsignal(n) != signal.SIG_IGN
    ]
    try:
        for number in asking:
            signal.signal(number, _leave)  # an import that is interrupted may swallow it, and there is nothing to lose
        from . import app

        for number in asking:
            signal.signal(number, signal.default_int_handler)
        getattr(app, entry)(arguments)
    except KeyboardInterrupt:  # a second one, while the first was answered
        sys.exit(130)
    finally:
        for number in asking:
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"tilewright: interrupted\n")
    os._exit(130)
