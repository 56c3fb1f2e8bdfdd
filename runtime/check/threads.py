"""Limit of the loaded linear-algebra libraries to one thread."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ..locks import Lock


class _Limit:
    """State of the process's limit to one thread."""

    def __init__(self) -> None:
        self.lock = Lock(self.forget)
        self.depth = 0
        """Number of nested blocks under the limit."""

    def forget(self) -> None:
        """Reset the state in a forked child."""
        self.depth = 0


_limit = _Limit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread within a `with` block.

    Threads take turns with such blocks: the limit belongs to the process, and the end of one thread's block would
    restore a limit that another thread had set.
    """
    from threadpoolctl import ThreadpoolController  # few programs time NumPy

    _limit.lock.acquire()
    _limit.depth += 1
    try:
        with ThreadpoolController().limit(limits=1) if _limit.depth == 1 else nullcontext():
            yield
    finally:
        _limit.depth -= 1
        _limit.lock.release()
