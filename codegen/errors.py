"""The errors a user can meet, and the checks that raise them."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import NoneType


class TilewrightError(Exception):
    """Base of every error that tilewright raises on purpose; its text is one line for a person."""


class ArgumentTypeError(TilewrightError, TypeError):
    """An argument of the wrong type: a dimension that is no integer, an unsupported or mixed dtype."""


class NotInMemoryError(ArgumentTypeError):
    """A tensor without an address, or whose values differ from the memory at its address: torch alone can read it."""


class ShapeError(TilewrightError, ValueError):
    """Operands whose dimensions do not make a product, or a shape that is out of range."""


class LayoutError(TilewrightError, ValueError):
    """A matrix that does not lie row by row (or column by column) in memory, is read-only, or overlaps another."""


class ConfigError(TilewrightError, ValueError):
    """A config that is unknown, mistyped, or cannot serve the problem or the device; a setting out of its range."""


class DeviceError(TilewrightError, RuntimeError):
    """Something the machine lacks: a compiler, a GPU, a package."""


class DeviceMismatchError(TilewrightError, ValueError):
    """An array that lies on another device than the kernel or the other arrays."""


class CompileError(TilewrightError, RuntimeError):
    """The compiler refused a kernel; `log` holds what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LaunchError(TilewrightError, RuntimeError):
    """A kernel could not be launched, or failed while running."""


class DeviceFaultError(LaunchError):
    """A kernel left the device in error: nothing more can run on it in this process."""


class CaptureError(LaunchError):
    """A stream is captured into a graph, and something would have to be compiled or allocated first."""


class StoreError(TilewrightError, RuntimeError):
    """The store cannot be read or written."""


class StoreVersionError(StoreError):
    """A record written by a newer tilewright; the file is left untouched."""


class TuningError(TilewrightError, RuntimeError):
    """No variant worked; the text counts the causes."""


def check(condition: bool, message: str, error: type[TilewrightError] = ConfigError) -> None:
    """Raise `error(message)` unless `condition` holds."""
    if not condition:
        raise error(message)


def check_type(name: str, value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """Raise ArgumentTypeError unless `value` is of these types; True and False are no numbers."""
    numbers = kinds is int or (isinstance(kinds, tuple) and int in kinds)
    if not isinstance(value, kinds) or (numbers and isinstance(value, bool)):
        raise ArgumentTypeError(f"{name} must be {what}, got {value!r}")


def check_path(name: str, value: object) -> Path | None:
    """The path that a caller passed, with `~` expanded; None for None. Raises ArgumentTypeError and ConfigError."""
    check_type(name, value, (Path, str, NoneType), "a path")
    if value is None:
        return None
    check(str(value) != "" and "\0" not in str(value), f"{name} must be a path, got {str(value)!r}")
    try:
        os.fsencode(str(value))
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} must be a path, got {str(value)!r}, which no file can be called") from error
    path = os.path.expanduser(str(value))
    check(not path.startswith("~"), f"{name} begins with ~ and no user of this system, got {str(value)!r}")
    return Path(path)


def absolute(name: str, path: Path) -> Path:
    """The absolute path, which stays the same when the working directory changes later. Raises ConfigError where the
    current folder was deleted."""
    try:
        return path.absolute()
    except OSError as error:
        text = f"{name} is {str(path)!r}, in the current folder, which was deleted"
        raise ConfigError(f"{text}: give a path from the root on, or change to another folder") from error


def check_comment(name: str, text: str) -> None:
    """Raise ConfigError for a text that would not stay within a comment of C: of several lines, or with a backslash."""
    check(text.isprintable() and "\\" not in text, f"{name} must be one line without a backslash, got {text!r}")


def nearest_of(value: object, words: Iterable[str]) -> str:
    """The end of a message about a value that is none of `words`: `; did you mean 'normwise'?`, or nothing where no
    word is near."""
    from difflib import get_close_matches  # for a message alone

    near = get_close_matches(str(value).lower(), list(words), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
