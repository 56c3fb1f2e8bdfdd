"""The command line: its commands, its entry points, and how it ends when something goes wrong."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import click

from ..codegen.errors import ArgumentTypeError, ConfigError, DeviceError, LayoutError, ShapeError, TilewrightError
from . import options
from .bench import bench_command
from .devices import devices_command
from .emit import emit_command
from .explain import explain_command
from .report import report_command
from .show import show_command
from .tables import plain
from .tune import tune_command

BAD_INPUT = (ArgumentTypeError, ShapeError, LayoutError, ConfigError, DeviceError)
"""Answered with exit status 2; other failures with 1."""


@click.group(context_settings=options.CONTEXT)
@click.version_option(package_name="tilewright")
def commands() -> None:
    """Generate, tune and run tiled CUDA matrix-multiplication kernels.

    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """


_COMMANDS = (
    tune_command, emit_command, show_command, explain_command, devices_command, bench_command, report_command,
)  # fmt: skip
for _command in _COMMANDS:
    commands.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `tilewright`. Exits with 2 for bad input, 1 for a failed run, 130 where it was interrupted."""
    _run(lambda given: commands.main(given or ["--help"], prog_name="tilewright", standalone_mode=False), arguments)


def main_tune(arguments: list[str] | None = None) -> None:
    """Entry point of `tune`, the same as `tilewright tune`."""
    _run(lambda given: tune_command.main(given, prog_name="tune", standalone_mode=False), arguments)


def _run(command: Callable[[list[str]], Any], arguments: list[str] | None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *place: _complain(f"warning: {message}")
            status = command(given)
    except (click.exceptions.Abort, KeyboardInterrupt):
        status = 130
        _complain("interrupted")
    except click.ClickException as error:
        status = 2
        _complain(error.format_message())
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception as error:
        if "--debug" in given:
            traceback.print_exc()
        status = 2 if isinstance(error, BAD_INPUT) else 1
        _complain(_words(error))
    sys.exit(status if isinstance(status, int) else 0)


def _words(error: Exception) -> str:
    if isinstance(error, TilewrightError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where"


def _complain(message: str) -> None:
    click.echo(f"tilewright: {plain(' '.join(message.split()))}", err=True)
