"""The one way in which files are written: aside first, so that no reader meets half of one."""

import contextlib
import os
import secrets
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Ending of a file that is still being written, or that a killed writer left."""


def written_aside(path: Path, data: bytes) -> Path:
    """Write `data` to the disk in a new file beside `path`, which the caller renames, and return its path. Raises
    OSError, which names `path`, and leaves no file then."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return aside
