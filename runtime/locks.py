"""Locks that a forked child has for itself, and that a call which interrupts their holder does not wait for.

A fork copies a lock that another thread holds, and the child has no thread that would ever release it. So each lock
of the package is made here, and one handler renews those in the child, with the state that was half-way under them.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from ..codegen.errors import LaunchError

T = TypeVar("T")


class Lock:
    """A lock of one thread at a time, held by `with lock.alone():`."""

    __slots__ = ("__weakref__", "_lock", "_renew", "acquire", "held", "release")

    def __init__(self, renew: Callable[[], object] | None = None) -> None:
        """`renew` is a method that brings what the lock guards into order, in a child that was forked while another
        thread held the lock. The lock does not keep the method's object alive."""
        lock: Any = threading.RLock()  # it knows its thread
        self._lock = lock
        self._renew = None if renew is None else weakref.WeakMethod(renew)
        self.acquire: Callable[..., bool] = lock.acquire
        """Waits for other threads."""
        self.release: Callable[[], None] = lock.release
        """Lets the next thread in."""
        self.held: Callable[[], bool] = lock._is_owned
        """Whether this thread holds the lock."""
        _locks.add(self)

    def alone(self) -> AbstractContextManager[Any]:
        """The lock, for `with`. Raises LaunchError where this thread holds it already, as in a signal handler or a
        finalizer: what it guards is half-way, and waiting would never end."""
        if self.held():
            text = "a signal handler or a finalizer called for what the interrupted call is just using"
            raise LaunchError(f"{text}: have it set a flag, and make the call after it")
        lock: AbstractContextManager[Any] = self._lock
        return lock

    def shared(self) -> AbstractContextManager[Any]:
        """The lock, for `with`, of a thread that may hold it already."""
        lock: AbstractContextManager[Any] = self._lock
        return lock

    def _forked(self) -> Callable[[], object] | None:
        """Renew the lock in a child where another thread of the parent held it; gives what is to be called then."""
        if self.acquire(blocking=False):
            self.release()
            return None
        self._lock._at_fork_reinit()
        return self._renew() if self._renew else None


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forked() -> None:
    # All locks first: what brings one's state into order may take another.
    for renew in [lock._forked() for lock in tuple(_locks)]:
        if renew is not None:
            renew()


os.register_at_fork(after_in_child=_forked)


class CachedProperty(functools.cached_property[T]):
    """The property of functools without the lock that it has in Python 3.11, which no child could renew."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
