"""Files read and written whole, so that no reader ever meets half of one."""

import contextlib
import errno
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..codegen.errors import ConfigError, StoreError

TEMPORARY_SUFFIX = ".tmp"
"""Ending of a file that is still being written, or that a killed writer left."""

_MOST_RUNS = 5
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


class OutputWarning(UserWarning):
    """A file that was asked for could not be written; nothing else is lost."""


def set_aside(path: Path, suffix: str) -> str:
    """Rename what is at `path` to a new name, which is returned: never over what was set aside before.

    To be called under a lock of `path`, so that nobody takes the name in between. Raises OSError.
    """
    number = 0
    while os.path.lexists(target := path.with_name(f"{path.name}{f'.{number}' if number else ''}.{suffix}")):
        number += 1
    os.rename(path, target)
    return target.name


def check_output(name: str, path: Path) -> None:
    """Raise ConfigError unless a file can be written at `path`, whose folder is made; `name` is the argument's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_special(path):
            temporary, descriptor = _opened_beside(path.resolve())
            os.close(descriptor)
            temporary.unlink()
    except (OSError, ValueError, RuntimeError) as error:  # of a null byte, of links that go in circles
        raise ConfigError(f"{name} cannot be written: {path}: {getattr(error, 'strerror', None) or error}") from error


def write_output(path: Path, data: bytes) -> None:
    """Put `data` where a user wants it: in one step, through links, and into a device or pipe too. Raises OSError."""
    if _is_special(path):
        path.write_bytes(data)
    else:
        write_whole(path.resolve(), data)


@contextlib.contextmanager
def spared(path: Path) -> Iterator[None]:
    """Where the file at `path` cannot be written, an OutputWarning says so and the rest goes on without it."""
    try:
        yield
    except (OSError, StoreError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        warnings.warn(f"cannot write {path}: {reason}", OutputWarning, stacklevel=3)


def in_lines(numbers: Sequence[int]) -> str:
    """Line numbers in words, the first ones: `line 7`, `lines 2, 5-9, 12 and later ones`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        elif len(runs) < _MOST_RUNS:
            runs.append([number])
        else:
            break
    told = ", ".join("-".join(map(str, run)) for run in runs)
    more = " and later ones" if numbers and runs[-1][-1] != numbers[-1] else ""
    return f"line{'s' if len(numbers) > 1 else ''} {told}{more}"


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step that survives a crash: other readers see the old file or the new one.

    What is at `path` is replaced, never followed. Raises OSError; the old file is untouched then.
    """
    temporary, descriptor = _opened_beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _opened_beside(path: Path) -> tuple[Path, int]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _sync_folder(folder: Path) -> None:
    # The new name is safe on the disk only once its folder is. Some network file systems cannot do it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
