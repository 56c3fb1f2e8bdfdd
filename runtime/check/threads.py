"""The libraries of linear algebra that a process has loaded, on one thread for as long as that is wanted."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ..locks import Lock


class _Limit:
    """The limit of the process to one thread."""

    def __init__(self) -> None:
        self.lock = Lock(self.forget)
        self.depth = 0
        """How many blocks within each other want it."""

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self.depth = 0


_limit = _Limit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread.

    Threads that want it take turns: the limit is the process's, and each would restore what it met, which may be the
    limit of another one.
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
