"""Files read and written whole, so that no reader ever meets half of one."""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Ending of a file that is still being written, or that a killed writer left."""

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


class NotPlainError(Exception):
    """A link, a folder, a device, a file too large, or another user's."""


def read_plain(path: Path, limit_bytes: int, owner: int | None = None) -> bytes:
    """The bytes of a regular file of at most `limit_bytes`; a symbolic link is not followed.

    Raises NotPlainError for anything else, and where `owner` is given for another user's file; OSError where
    it cannot be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotPlainError("not a regular file") from error
        raise
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise NotPlainError("not a regular file")
        if owner is not None and facts.st_uid != owner:
            raise NotPlainError("another user's file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise NotPlainError(f"larger than {limit_bytes} bytes")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step that survives a crash: other readers see the old file or the new one.

    What is at `path` is replaced, never followed. Raises OSError; the old file is untouched then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
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
