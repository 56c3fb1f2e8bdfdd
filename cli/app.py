"""The command line: its commands, its entry points, and how it ends when something goes wrong."""

import contextlib
import errno
import io
import os
import sys
import traceback
import warnings
from typing import Any

import click

from ..codegen.errors import ArgumentTypeError, ConfigError, DeviceError, LayoutError, ShapeError, TilewrightError
from ..runtime.files import OutputWarning
from ..tuner.ending import UNSEEN
from .bench import bench_command
from .devices import devices_command
from .emit import emit_command
from .explain import explain_command
from .forget import forget_command
from .report import report_command
from .show import show_command
from .tables import plain
from .tune import tune_command
from .worker import worker_command

BAD_INPUT = (ArgumentTypeError, ShapeError, LayoutError, ConfigError, DeviceError)
"""Answered with exit status 2; other failures with 1."""


class _Commands(click.Group):
    """What click would add to Ctrl-C is an empty line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.exceptions.Abort from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="tilewright")
def commands() -> None:
    """Generate, tune and run tiled CUDA matrix-multiplication kernels.

    Exit status: 0 done, 1 failed or a file not written, 2 bad input, 130 interrupted.
    """


_COMMANDS = (
    tune_command, emit_command, show_command, forget_command, explain_command, devices_command, bench_command,
    report_command, worker_command,
)  # fmt: skip
for _command in _COMMANDS:
    commands.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """`tilewright`. Exits with 2 for bad input, 1 for a failed run, 130 where it was interrupted."""
    _run((sys.argv[1:] if arguments is None else arguments) or ["--help"])


def main_tune(arguments: list[str] | None = None) -> None:
    """`tune`, the same as `tilewright tune`."""
    _run(["tune", *(sys.argv[1:] if arguments is None else arguments)])


def _run(given: list[str]) -> None:
    lost = []
    sys.stdout = sys.stdout or io.StringIO()  # it was closed: nobody wants to see anything
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # half a surrogate pair in a file or a path ends no command

    def told(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        lost.extend([message] if issubclass(category, OutputWarning) else [])
        _complain(f"warning: {message}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = told
            status = commands.main(given, prog_name="tilewright", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        status = 130
        _complain("interrupted")
    except click.ClickException as error:
        status = 2
        _complain(error.format_message())
    except Exception as error:
        why = error.errno if isinstance(error, OSError) and not error.filename else None
        gone = why in (errno.EPIPE, errno.EIO)
        if why in UNSEEN:
            # Whoever read the output has seen enough, its terminal was closed, or its disk is full. Python would
            # complain again when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif "--debug" in given:
            click.echo("\n".join(map(plain, traceback.format_exc().splitlines())), err=True)
        status = 2 if isinstance(error, BAD_INPUT) else 1
        if not gone:
            _complain(_words(error))
    sys.exit((status if isinstance(status, int) else 0) or int(bool(lost)))


def _words(error: Exception) -> str:
    if isinstance(error, TilewrightError):
        return str(error)
    if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
        return f"{error.filename or 'the output'}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where"


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody is there to be told
        click.echo(f"tilewright: {plain(' '.join(message.split()))}", err=True)
