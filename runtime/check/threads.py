"""The libraries of linear algebra that a process has loaded, on one thread for as long as that is wanted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

_lock = threading.RLock()
_depth = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread.

    Threads that want it take turns: the limit is the process's, and each would restore what it met, which may be the
    limit of another one.
    """
    from threadpoolctl import ThreadpoolController  # few programs time NumPy

    global _depth
    with _lock:
        _depth += 1
        try:
            with ThreadpoolController().limit(limits=1) if _depth == 1 else nullcontext():
                yield
        finally:
            _depth -= 1
