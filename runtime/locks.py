"""Locks that are renewed in a forked child, and that raise in a call which interrupts their holder.

A fork copies a lock that another thread holds, and the child has no thread that would ever release it. So each lock
of the package is made here, and one handler renews held locks in the child, and the state that they guard. Threads take
turns by such a lock too where they limit linear algebra to one thread.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from ..codegen.errors import LaunchError

T = TypeVar("T")


class Lock:
    """A lock for one thread at a time, held by `with lock.alone():`."""

    __slots__ = ("__weakref__", "_lock", "_renew", "acquire", "held", "release")

    def __init__(self, renew: Callable[[], object] | None = None) -> None:
        """`renew` is a method that resets the guarded state in a child that was forked while another thread held the
        lock. The lock does not keep the method's object alive."""
        lock: Any = threading.RLock()  # it has an owner, which `held` needs
        self._lock = lock
        self._renew = None if renew is None else weakref.WeakMethod(renew)
        self.acquire: Callable[..., bool] = lock.acquire
        """Acquires the lock, once other threads have released it."""
        self.release: Callable[[], None] = lock.release
        """Releases the lock."""
        self.held: Callable[[], bool] = lock._is_owned
        """Returns whether this thread holds the lock."""
        _locks.add(self)

    def alone(self) -> AbstractContextManager[Any]:
        """Return the lock for a `with` statement. Raises LaunchError where this thread holds it already, as in a signal
        handler or a finalizer: the guarded state is incomplete, and waiting would never end."""
        if self.held():
            text = "a signal handler or a finalizer called for what the interrupted call is just using"
            raise LaunchError(f"{text}: have it set a flag, and make the call after it")
        lock: AbstractContextManager[Any] = self._lock
        return lock

    def shared(self) -> AbstractContextManager[Any]:
        """Return the lock for a `with` statement in a thread that may hold it already."""
        lock: AbstractContextManager[Any] = self._lock
        return lock

    def _forked(self) -> Callable[[], object] | None:
        """Renew the lock in a child if another thread of the parent held it. Returns the function that resets the
        guarded state, if any."""
        if self.acquire(blocking=False):
            self.release()
            return None
        self._lock._at_fork_reinit()
        return self._renew() if self._renew else None


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forked() -> None:
    # All locks are renewed first: a function that resets a state may take another lock.
    for renew in [lock._forked() for lock in tuple(_locks)]:
        if renew is not None:
            renew()


os.register_at_fork(after_in_child=_forked)


class CachedProperty(functools.cached_property[T]):
    """The cached_property of functools, without the lock of Python 3.11, which a forked child could not renew."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


_one_thread = Lock()
"""Lock of the process's limit to one thread."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread within a `with` block.

    Threads take turns with such blocks: the limit belongs to the process, and the end of one thread's block would
    restore a limit that another thread had set.
    """
    from threadpoolctl import ThreadpoolController  # few programs time NumPy

    nested = _one_thread.held()
    with _one_thread.shared(), nullcontext() if nested else ThreadpoolController().limit(limits=1):
        yield
