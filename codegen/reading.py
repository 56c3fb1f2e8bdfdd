"""The reader of files that others may have put there: it reads regular files alone, up to a limit of bytes."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import ConfigError

_PIECE_BYTES = 1 << 20


class NotPlainError(Exception):
    """A link, a folder, a device, a file too large, or another user's."""


@contextlib.contextmanager
def opened_plain(path: Path, owner: int | None = None, follow: bool = False) -> Iterator[BinaryIO]:
    """A regular file, open for reading; a symbolic link is not followed, unless `follow`.

    Raises NotPlainError for anything else, and for a file of another user than `owner` unless that is None. Raises
    OSError where the file cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    extra_flags = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra_flags))  # noqa: SIM115
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotPlainError("not a regular file") from error
        raise
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError("not a regular file")
        if owner is not None and status.st_uid != owner:
            raise NotPlainError("another user's file")
        yield file


def read_plain(path: Path, limit_bytes: int, owner: int | None = None, follow: bool = False) -> bytes:
    """The bytes of a file of at most `limit_bytes`. Raises as `opened_plain`, and NotPlainError for a larger one."""
    with opened_plain(path, owner, follow) as file:
        data = bytearray()
        if os.fstat(file.fileno()).st_size <= limit_bytes:
            # One `read` would take memory for the whole limit. The file may grow after its size was read.
            while len(data) <= limit_bytes and (piece := file.read(min(_PIECE_BYTES, limit_bytes + 1 - len(data)))):
                data += piece
            if len(data) <= limit_bytes:
                return bytes(data)
    raise NotPlainError(f"larger than {limit_bytes} bytes")


def reason_of(error: Exception) -> str:
    """Reason in plain words why a text could not be parsed, where the parser's own message would not help."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 text, from byte {error.start} on"
    return str(error)


def read_named(what: str, path: Path, limit_bytes: int) -> bytes:
    """The bytes of a file that a user named. Raises ConfigError, which names it, where it cannot be read."""
    try:
        return read_plain(path, limit_bytes, follow=True)
    except (NotPlainError, OSError, ValueError) as error:  # a null byte in a path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the {what} {path}: {reason}; name another file") from error
