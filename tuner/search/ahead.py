"""A search in a thread of its own, so that its model is fitted while the device measures, kept in a journal."""

import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

from ...codegen.errors import StoreError
from ...runtime.files import OutputWarning
from ..recording.entry import Entry
from .journal import Journal
from .space import Point, Space

if TYPE_CHECKING:  # only then: Optuna is slow to import
    from .study import Search


class AskAhead:
    """Keeps a few suggestions ready. Outcomes reach the model before its next suggestion, in the order told.

    It starts with what the journal holds, and an outcome is in the journal before `tell` returns. Everything that
    touches the search runs in the thread; the journal belongs to the caller.
    """

    DEPTH = 4
    """Suggestions kept ready: more would be older than they need be."""

    def __init__(self, search: "Search", journal: Journal) -> None:
        self._search = search
        self._journal = journal
        self._started: dict[Point, datetime] = {}
        self._told = deque(journal.history)
        self._suggestions: deque[Future[Point | None]] = deque()
        self._thread = ThreadPoolExecutor(1, "sampler")

    def tell(self, point: Point, entry: Entry) -> None:
        """The outcome at a point. A journal that cannot be written costs an OutputWarning: the search goes on."""
        try:
            self._journal.add(point, entry, self._started.pop(point, datetime.now()))
        except StoreError as error:
            warnings.warn(str(error), OutputWarning, stacklevel=2)
        self._told.append((point, entry.time_us))

    def ready(self) -> bool:
        """Whether `ask` answers at once."""
        self._fill()
        return self._suggestions[0].done()

    def ask(self) -> Point | None:
        """The next suggestion, waiting for it; None when there is none left. Raises what the search does."""
        self._fill()
        point = self._suggestions.popleft().result()
        self._fill()
        if point is not None:
            self._started[point] = datetime.now()
        return point

    def close(self) -> None:
        """End the thread, once it has finished the suggestion it is on."""
        self._thread.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while len(self._suggestions) < self.DEPTH:
            self._suggestions.append(self._thread.submit(self._suggest))

    def _suggest(self) -> Point | None:
        while self._told:
            self._search.tell(*self._told.popleft())
        return self._search.ask()


class InOrder:
    """The points of a space one after the other, for variants that a user names: no sampler, and nothing is kept."""

    def __init__(self, space: Space) -> None:
        self._points = iter(space.points)

    def tell(self, point: Point, entry: Entry) -> None:
        """Nothing follows from it."""

    def ready(self) -> bool:
        """Always."""
        return True

    def ask(self) -> Point | None:
        """The next point; None when there is none left."""
        return next(self._points, None)

    def close(self) -> None:
        """Nothing to end."""
