"""Locks between processes. After a second of waiting, a warning names the file and its holder."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..codegen.errors import StoreError

LOCK_SECONDS = 30.0
"""Seconds for which a writer of the store waits for another one."""
_SILENT_SECONDS = 1.0
"""Seconds of waiting before the warning."""
_PROC = Path("/proc")


@contextlib.contextmanager
def file_lock(path: Path, seconds: float, poll_seconds: float = 0.05) -> Iterator[None]:
    """Hold the lock of a file in a `with` block. The system frees it when its holder is killed. Raises
    filelock.Timeout, an OSError, where another process holds it for `seconds`."""
    lock = FileLock(path, poll_interval=poll_seconds)
    silent_seconds = min(_SILENT_SECONDS, seconds)
    try:
        lock.acquire(timeout=silent_seconds)
    except Timeout:
        if seconds <= silent_seconds:
            raise
        warnings.warn(f"waiting up to {seconds:g} s for {path}, which {_holder(path)} holds", stacklevel=5)
        lock.acquire(timeout=seconds - silent_seconds)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def writing(action: str, path: Path, lock: Path, poll_seconds: float = 0.05) -> Iterator[None]:
    """Hold the lock of a file of the store in a `with` block that does something to the file; the folders of both are
    made. Raises StoreError for an OSError within, in one line that begins with the `action`, such as `write`."""
    try:
        for folder in (path.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(lock, LOCK_SECONDS, poll_seconds):
            yield
    except OSError as error:
        locked = "another process holds its lock; try again when it has ended"
        reason = locked if isinstance(error, Timeout) else error.strerror or error
        raise StoreError(f"cannot {action} {path}: {reason}") from error


def _holder(path: Path) -> str:
    """Description of the process that holds the lock of a file, by what Linux lists."""
    with contextlib.suppress(OSError, ValueError):
        facts = os.stat(path)
        inode = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
        for line in (_PROC / "locks").read_text().splitlines():
            words = line.split()
            if inode in words and "->" not in words:  # a waiting process has an arrow
                pid = int(words[words.index(inode) - 1])
                return f"process {pid} ({(_PROC / str(pid) / 'comm').read_text().strip()})"
    return "another process"
