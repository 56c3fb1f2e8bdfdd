"""Files that are written whole, so that no reader meets half of one."""

import contextlib
import errno
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..codegen.emitted import written_aside
from ..codegen.errors import ConfigError, StoreError

UNSEEN = errno.EPIPE, errno.EIO, errno.ENOSPC
"""Errors of output that nobody can see: a pipe without a reader, a closed terminal, a full disk."""
STDOUT = Path("/dev/stdout")
"""Path of standard output."""

_DESCRIPTOR = re.compile(r"/dev/(?:(std(?:in|out|err))|fd/(\d{1,6}))|/proc/self/fd/(\d{1,6})")
_NAMED_STREAMS = ("stdin", "stdout", "stderr")
_MOST_RUNS = 5
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


class OutputWarning(UserWarning):
    """A file could not be written; nothing else is lost."""


def set_aside(path: Path, suffix: str) -> str:
    """Rename the file at `path` to a name that is not taken, and return the new name.

    The caller holds a lock of `path`, so that nobody takes the name meanwhile. Raises OSError.
    """
    number = 0
    while os.path.lexists(target := path.with_name(f"{path.name}{f'.{number}' if number else ''}.{suffix}")):
        number += 1
    os.rename(path, target)
    return target.name


def check_output(name: str, path: Path) -> None:
    """Raise ConfigError unless a file can be written at `path`, whose folder is made. Messages call the path `name`."""
    try:
        number = descriptor_of(path)
        if number is not None:
            import fcntl

            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "it is open for reading only")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _waits(path):
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a disk")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_special(path):
            written_aside(path.resolve(), b"").unlink()
    except (OSError, ValueError, RuntimeError) as error:  # the last two for a null byte, and for links in a circle
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} cannot be written: {path}: {reason}; name another file") from error


def write_output(path: Path, data: bytes) -> None:
    """Write `data` to a path that the user chose. A file is replaced in one step, also behind links. To a device or an
    open file of this process the data is appended. Raises OSError."""
    number = descriptor_of(path)
    if number == 1:
        sys.stdout.flush()
        stream = getattr(sys.stdout, "buffer", None)
        if stream is not None:  # else standard output is closed
            stream.write(data)
            stream.flush()
    elif number is not None:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(data)
    elif _is_special(path):
        path.write_bytes(data)
    else:
        write_whole(path.resolve(), data)


@contextlib.contextmanager
def spared(path: Path) -> Iterator[None]:
    """Return a context in which a failure to write the file at `path`, or a journal in this folder, becomes an
    OutputWarning."""
    try:
        yield
    except OSError as error:
        warnings.warn(f"cannot write {path}: {error.strerror or error}", OutputWarning, stacklevel=3)
    except StoreError as error:  # its text names the file
        warnings.warn(str(error), OutputWarning, stacklevel=3)


def in_lines(numbers: Sequence[int]) -> str:
    """Line numbers as text, at most the first five runs of them: `line 7`, `lines 2, 5-9, 12 and later ones`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        elif len(runs) < _MOST_RUNS:
            runs.append([number])
        else:
            break
    first = ", ".join("-".join(map(str, run)) for run in runs)
    more = " and later ones" if numbers and runs[-1][-1] != numbers[-1] else ""
    return f"line{'s' if len(numbers) > 1 else ''} {first}{more}"


def descriptor_of(path: Path) -> int | None:
    """Number of the open file of this process that a path such as `/dev/stdout` or `/dev/fd/3` names, else None."""
    match = _DESCRIPTOR.fullmatch(str(path))
    if match is None:
        return None
    return _NAMED_STREAMS.index(match[1]) if match[1] else int(match[2] or match[3])


def is_stream(path: Path) -> bool:
    """Whether a path is a device or an open file of this process, where a second text follows the first and does not
    replace it."""
    return descriptor_of(path) is not None or _is_special(path)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _waits(path: Path) -> bool:
    """Whether opening a path may wait for another process for ever, or may write over a disk."""
    mode = path.stat().st_mode if path.exists() else 0
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISBLK(mode)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step that survives a crash: readers see the old file or the new one.

    A link at `path` is replaced, never followed. Raises OSError, and leaves the old file then.
    """
    aside = written_aside(path, data)
    try:
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # The new name is on the disk only once its folder is. Some network file systems cannot write a folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
