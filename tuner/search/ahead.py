"""A search in a thread of its own, so that its model is fitted while the device measures, kept in a journal."""

import threading
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from .journal import Journal
from .space import Point, Trials

if TYPE_CHECKING:  # only then: Optuna is slow to import
    from .study import Search


class AskAhead:
    """Keeps a few suggestions ready. Outcomes reach the model before its next suggestion, in the order told.

    It starts with what the journal holds, and an outcome is in the journal before `tell` returns. Everything that
    touches the search runs in the thread; `history` and the journal belong to the caller.
    """

    DEPTH = 4
    """Suggestions kept ready: more would be older than they need be."""

    def __init__(self, search: "Search", journal: Journal) -> None:
        self._search = search
        self._journal = journal
        self._started: dict[Point, datetime] = {}
        for point, time_us in journal.history:
            search.tell(point, time_us)
        self._history = list(search.history)
        self._changed = threading.Condition()
        self._told: deque[tuple[Point, float | None]] = deque()
        self._ready: deque[Point | None] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def history(self) -> Trials:
        """Everything told so far."""
        return tuple(self._history)

    def seed(self, points: Iterable[Point]) -> None:
        """First guesses; only before the first `ask`."""
        self._search.seed(points)

    def tell(self, point: Point, time_us: float | None, *, status: str = "", reason: str = "") -> None:
        """The outcome at a point: its time, or None when it failed, with a word and a sentence on why."""
        self._journal.add(point, time_us, self._started.pop(point, datetime.now()), status, reason)
        self._history.append((point, time_us))
        if self._thread is None:
            self._search.tell(point, time_us)
            return
        with self._changed:
            self._told.append((point, time_us))
            self._changed.notify_all()

    def ready(self) -> bool:
        """Whether `ask` answers at once."""
        self._start()
        with self._changed:
            return bool(self._ready) or self._error is not None

    def ask(self) -> Point | None:
        """The next suggestion, waiting for it; None when there is none left."""
        self._start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error)
            if self._error is not None:
                raise self._error
            point = self._ready[0]
            if point is not None:  # the end stays the end
                self._ready.popleft()
                self._started[point] = datetime.now()
            self._changed.notify_all()
            return point

    def close(self) -> None:
        """End the thread, once it has finished the suggestion it is on; every outcome told has reached the model."""
        if self._thread is not None:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            # Compile processes have the other cores; a model's matrices are small.
            with threadpool_limits(1):
                self._suggest()
        except BaseException as error:  # handed to the caller of ask
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _suggest(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._told or self._closed or len(self._ready) < self.DEPTH)
                told = list(self._told)
                self._told.clear()
                wanted = len(self._ready) < self.DEPTH
            for known, time_us in told:
                self._search.tell(known, time_us)
            if self._closed:
                return
            if not wanted:
                continue
            point = self._search.ask()
            with self._changed:
                self._ready.append(point)
                self._changed.notify_all()
                if point is None:
                    self._changed.wait_for(lambda: self._closed)
                    return
