"""Entry points of the command line, and its ends: exit statuses and error lines."""

import contextlib
import errno
import io
import os
import sys
import traceback
import warnings
from typing import Any

import click

from ..codegen.errors import (
    ArgumentTypeError,
    ConfigError,
    DeviceError,
    LayoutError,
    ShapeError,
    TilewrightError,
    nearest_of,
)
from ..runtime.files import UNSEEN, OutputWarning
from .commands import commands, tune

BAD_INPUT = (ArgumentTypeError, ShapeError, LayoutError, ConfigError, DeviceError)
"""Errors for which the exit status is 2; it is 1 for all others."""


def main(arguments: list[str] | None = None) -> None:
    """Run `tilewright`. Exits with 2 for bad input, 1 for a failed run, 130 where it was interrupted."""
    _run(commands, "tilewright", (sys.argv[1:] if arguments is None else arguments) or ["--help"])


def main_tune(arguments: list[str] | None = None) -> None:
    """Run `tune`, which is `tilewright tune`."""
    _run(tune, "tune", sys.argv[1:] if arguments is None else arguments)


def _run(command: click.Command, name: str, arguments: list[str]) -> None:
    unwritten = []
    sys.stdout = sys.stdout or io.StringIO()  # standard output was closed: nobody reads it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # half a surrogate pair in a file or a path ends no command

    def show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        unwritten.extend([message] if issubclass(category, OutputWarning) else [])
        _complain(f"warning: {message}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            status = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        status = 130
        _complain("interrupted")
    except click.ClickException as error:
        status = 2
        _complain(_remedied(error))
    except Exception as error:
        number = error.errno if isinstance(error, OSError) and not error.filename else None
        unread = number in (errno.EPIPE, errno.EIO)
        if number in UNSEEN:
            # Nobody reads the output any longer, or its disk is full. Python would complain again when it flushes at
            # the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif "--debug" in arguments:
            from .tables import plain

            click.echo("\n".join(map(plain, traceback.format_exc().splitlines())), err=True)
        status = 2 if isinstance(error, BAD_INPUT) else 1
        if not unread:
            _complain(_words(error))
    sys.exit((status if isinstance(status, int) else 0) or int(bool(unwritten)))


def _words(error: Exception) -> str:
    if isinstance(error, TilewrightError):
        return str(error)
    if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
        return f"{error.filename or 'the output'}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where"


def _remedied(error: click.ClickException) -> str:
    """Message of click, with a remedy for an option that does not exist."""
    if not isinstance(error, click.NoSuchOption):
        return error.format_message()
    near = nearest_of(error.option_name, error.possibilities or ())
    return f"there is no option {error.option_name}{near or '; --help lists the options'}"


def _complain(message: str) -> None:
    from .tables import plain

    with contextlib.suppress(OSError):  # stderr may be closed
        click.echo(f"tilewright: {plain(' '.join(message.split()))}", err=True)
