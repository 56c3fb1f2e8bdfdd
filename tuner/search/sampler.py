"""What a search has to be able to do, and the two searches that need no model."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ...codegen.errors import check
from .space import Mask, Point, Space

__all__ = ["START", "BaseSampler", "ExhaustiveSampler", "RandomSampler", "Sampler", "Trials"]

Trials = tuple[tuple[Point, float | None], ...]
"""Points and their times in microseconds in the order they were told; None for one that failed."""

START = 10
"""Points spread over the space before a model is asked; TPE has more, our own process fewer."""


class Sampler(Protocol):
    """A search by ask and tell. Several points may be asked before one is told."""

    @property
    def history(self) -> Trials:
        """Everything told so far, an earlier run of the same study included."""

    def ask(self) -> Point | None:
        """A valid point that was neither asked nor told before; None when there is none left."""

    def tell(self, point: Point, time_us: float | None, *, status: str = "", reason: str = "") -> None:
        """The outcome at a point: its time, or None when it failed, with a word and a sentence on why."""

    def seed(self, points: Iterable[Point]) -> None:
        """First guesses, handed out before anything else; known and invalid ones are passed over."""

    def ready(self) -> bool:
        """Whether `ask` would answer at once."""

    def close(self) -> None:
        """Nothing more will be asked; what was told is kept."""


class BaseSampler:
    """Keeps what was seen, what is pending and what was told; a subclass only chooses."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.unseen: Mask = np.ones(len(space), dtype=np.bool_)
        self.pending: list[Point] = []
        self.random = np.random.default_rng(seed)
        self._left = len(space)
        self._queue: deque[Point] = deque()
        self._history: list[tuple[Point, float | None]] = []

    @property
    def history(self) -> Trials:
        return tuple(self._history)

    def seed(self, points: Iterable[Point]) -> None:
        self._queue.extend(point for point in points if point in self.space)

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def ask(self) -> Point | None:
        point = self._queued()
        if point is None and self._left:
            point = self.choose()
        if point is not None:
            self._mark(point)
            self.pending.append(point)
        return point

    def tell(self, point: Point, time_us: float | None, *, status: str = "", reason: str = "") -> None:
        """The outcome at a point. One that was never asked counts as seen from now on."""
        check(time_us is None or time_us > 0, f"a time must be positive, got {time_us}")
        self._mark(point)
        if point in self.pending:
            self.pending.remove(point)
        self._history.append((point, time_us))
        self.learn(point, time_us)

    def choose(self) -> Point:
        """An unseen valid point; called only while there is one."""
        raise NotImplementedError

    def learn(self, point: Point, time_us: float | None) -> None:
        """Take an outcome into the model, if there is one."""

    def follow(self, other: "BaseSampler") -> None:
        """From now on know what the other search knows, to choose for it; only the other is asked and told."""
        self.unseen, self.pending, self._history = other.unseen, other.pending, other._history

    def spread(self) -> Point:
        """The one of some random unseen points that is farthest from all seen ones."""
        rows = self.random.permutation(np.flatnonzero(self.unseen))[:256]
        seen = np.flatnonzero(~self.unseen)[:256]
        if not seen.size:
            return self.space.points[int(rows[0])]
        gaps = np.stack([self.space.distances(self.space.points[int(row)], rows) for row in seen])
        return self.space.points[int(rows[np.argmax(gaps.min(axis=0))])]

    def _queued(self) -> Point | None:
        while self._queue:
            point = self._queue.popleft()
            if self.unseen[self.space.index(point)]:
                return point
        return None

    def _mark(self, point: Point) -> None:
        row = self.space.index(point)
        self._left -= int(self.unseen[row])
        self.unseen[row] = False


class RandomSampler(BaseSampler):
    """Any unseen point, each as likely as the others."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self._order = iter(self.random.permutation(len(space)))

    def choose(self) -> Point:
        return self.space.points[next(int(row) for row in self._order if self.unseen[row])]


class ExhaustiveSampler(BaseSampler):
    """Every point in the order of the space."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space, seed)
        self._order = iter(range(len(space)))

    def choose(self) -> Point:
        return self.space.points[next(row for row in self._order if self.unseen[row])]
