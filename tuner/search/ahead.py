"""A search in a thread of its own, which fits its model while the device measures."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from ...codegen.config import Config
from ...runtime.files import spared
from ...runtime.locks import one_thread
from ..recording.entry import Entry
from ..recording.journal import Journal
from .neighbourhood import Neighbourhood
from .outcomes import ExhaustedError, Outcomes

if TYPE_CHECKING:  # Optuna is slow to import
    from .study import Search


class Unrecorded:
    """A search by a neighbourhood alone, without a study: importing Optuna takes half a second."""

    def __init__(self, chooser: Neighbourhood) -> None:
        self._chooser, self._outcomes = chooser, Outcomes[Config]()

    @property
    def expected_gain(self) -> float | None:
        """Share of the best time that the next variants are expected to save; None while too few outcomes are known."""
        return self._chooser.expected_gain

    def ask(self) -> Config | None:
        """A config that was neither asked nor told before; None when there is none left."""
        try:
            with one_thread():  # a model's matrices are small, and compilers use the other cores
                config = self._chooser.choose(self._outcomes)
        except ExhaustedError:
            return None
        self._outcomes.begin(config, config)
        return config

    def tell(self, config: Config, time_us: float | None) -> None:
        """Add the time of a config in microseconds, None if it failed."""
        self._outcomes.end(config, config, None if time_us is None else math.log(time_us))


class AskAhead:
    """Keeps a few suggestions ready. Outcomes reach the model before its next suggestion, in the order they came.

    The model starts with the outcomes of earlier runs. `tell` writes an outcome into the journal, where there is one,
    before it returns. The search runs in the thread alone, the journal in the caller's.
    """

    DEPTH = 4
    """Number of suggestions that are kept ready: with more the model would lag further behind the outcomes."""

    def __init__(
        self,
        search: "Search[Config] | Unrecorded",
        journal: Journal | None = None,
        earlier: Mapping[Config, Entry] | None = None,
    ) -> None:
        self._search = search
        self._journal = journal
        self._outcomes = deque((config, entry.time_us) for config, entry in (earlier or {}).items())
        self._suggestions: deque[Future[Config | None]] = deque()
        self._thread = ThreadPoolExecutor(1, "sampler")

    @property
    def expected_gain(self) -> float | None:
        """Share of the best time that the next variants are expected to save; None where the sampler has none."""
        return self._search.expected_gain

    def tell(self, config: Config, entry: Entry) -> None:
        """Add the outcome of a config. A journal that cannot be written costs an OutputWarning: the search goes on."""
        if self._journal is not None:
            with spared(self._journal.path):
                self._journal.add(config, entry, entry.started)
        self._outcomes.append((config, entry.time_us))

    def ready(self) -> bool:
        """Whether `ask` answers at once."""
        self._fill()
        return self._suggestions[0].done()

    def ask(self) -> Config | None:
        """The next suggestion, after a wait; None when there is none left. Raises the errors of the search."""
        self._fill()
        config = self._suggestions.popleft().result()
        self._fill()
        return config

    def close(self) -> None:
        """End the thread, after the suggestion that is under way."""
        self._thread.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while len(self._suggestions) < self.DEPTH:
            self._suggestions.append(self._thread.submit(self._suggest))

    def _suggest(self) -> Config | None:
        while self._outcomes:
            self._search.tell(*self._outcomes.popleft())
        return self._search.ask()


class InOrder:
    """Suggests the configs that a user names, one after the other, without a sampler and without a journal."""

    expected_gain = None

    def __init__(self, configs: Iterable[Config]) -> None:
        self._configs = iter(configs)

    def tell(self, config: Config, entry: Entry) -> None:
        """Do nothing: no later config depends on an outcome."""

    def ready(self) -> bool:
        """True: `ask` answers at once."""
        return True

    def ask(self) -> Config | None:
        """The next config; None when there is none left."""
        return next(self._configs, None)

    def close(self) -> None:
        """Do nothing: there is no thread to end."""


Asker: TypeAlias = AskAhead | InOrder
"""Source of the configs that a run tries."""
