"""Types of options: each reads a value from its text, or raises an error that says what is wrong with it.

They are functions and `click.Path`s: `click.ParamType` can be subscripted only from click 8.4 on.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..codegen.errors import ConfigError, absolute, check, check_path
from ..runtime.files import STDOUT, check_output, descriptor_of

if TYPE_CHECKING:
    from ..codegen.config import Config

_MOST_WORKERS = 1024
_AT_STDOUT = "tilewright.at_stdout"
"""Key of a context's `meta` for the option whose text goes to standard output."""


class PathValue(click.Path):
    """A path, in which `~` is a home; the empty path is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = check_path(_name(param), str(value))
        if path is not None and not (ctx is not None and ctx.resilient_parsing):
            absolute(_name(param), path)
        return super().convert(str(path), param, ctx)


class OutputFile(PathValue):
    """A file to be written, in a folder that exists, checked before there is anything to write. `-` is standard output,
    to which nothing else is written then, as `is_stdout_taken` says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path: Path = super().convert(STDOUT if str(value) == "-" else value, param, ctx)
        if ctx is not None and ctx.resilient_parsing:
            return path  # a completion writes nothing
        name = _name(param)
        folder = absolute(name, path).parent
        check(folder.is_dir(), f"{name} {path}: there is no folder {folder}; make it, or name another file")
        check_output(name, path)
        if ctx is not None and descriptor_of(path) == 1:
            ctx.meta[_AT_STDOUT] = name
        return path


def is_stdout_taken() -> bool:
    """Whether an option of the running command writes a file to standard output; all else goes to stderr then."""
    context = click.get_current_context(silent=True)
    return context is not None and _AT_STDOUT in context.meta


def number(
    kind: type[int] | type[float], low: float, high: float = math.inf, *, above: bool = False
) -> Callable[[Any], Any]:
    """A type of numbers from `low` to `high`; with `above` they must be greater than `low`."""
    noun = "whole number" if kind is int else "number"
    limits = f"above {low:,}" if above else f"of {low:,} or more"
    limits += f" and of {high:,} at most" if high < math.inf else ""

    def read(value: Any) -> Any:
        try:
            result = kind(value)
        except (ValueError, OverflowError):
            result = None
        if result is None or not low <= result <= high or (above and result == low):
            raise click.BadParameter(f"{str(value)!r} is not a {noun} {limits}")
        return result

    return read


def sizes(text: str) -> range:
    """A type of sizes: one number, or START:STOP:STEP with both ends included."""
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}):(\d{1,10}))?", text)
    start, stop, step = (int(group or match[1]) for group in match.groups()) if match else (0, 0, 0)
    if not 0 < start <= stop or step < 1:
        raise click.BadParameter(f"{text!r} is not START:STOP:STEP, such as 256:4096:256, or one number from 1 on")
    return range(start, stop + 1, step)


def workers(value: Any) -> int:
    """A type of numbers of workers; 0 stands for `auto`, which is one for each GPU."""
    if value in ("auto", 0):
        return 0
    if not str(value).isdecimal() or not 1 <= int(value) <= _MOST_WORKERS:
        raise click.BadParameter(f"{value!r} is not auto or a number from 1 to {_MOST_WORKERS}")
    return int(value)


def variant(value: Any) -> "Config":
    """A type of configs, written `family:tile,name=value,...`."""
    from ..codegen.families import parse

    try:
        return parse(str(value))
    except ConfigError as error:
        raise click.UsageError(f"--{error}") from error


def _name(param: click.Parameter | None) -> str:
    """Longest name of an option, as `--output` of `-o`."""
    return max(param.opts, key=len) if param is not None else "the path"
