"""Limit of the loaded linear-algebra libraries to one thread."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ..locks import Lock

_lock = Lock()
"""Lock of the process's limit to one thread."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread within a `with` block.

    Threads take turns with such blocks: the limit belongs to the process, and the end of one thread's block would
    restore a limit that another thread had set.
    """
    from threadpoolctl import ThreadpoolController  # few programs time NumPy

    nested = _lock.held()
    with _lock.shared(), nullcontext() if nested else ThreadpoolController().limit(limits=1):
        yield
