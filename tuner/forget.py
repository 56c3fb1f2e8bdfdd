"""Removal of the user's own records, journals and compiled kernels of some problems."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import TilewrightError
from ..codegen.problem import Problem
from ..codegen.render import kernel_name
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from .recording.journal import problem_of, read_journal, remove_journal, studies
from .recording.points import config_of


@dataclass(frozen=True, slots=True)
class Holdings:
    """The user's own records and journals in a store."""

    store: Store
    records: tuple[Record, ...] = ()
    journals: tuple[tuple[Path, str, Problem], ...] = ()
    """File, device key and problem of each journal."""

    @classmethod
    def of(cls, store: Store, takes: Callable[[str, Problem], bool]) -> "Holdings":
        """The holdings of a store for the device keys and problems that a selection takes."""
        records = tuple(record for record in store.both()[0] if takes(record.device, record.problem))
        return cls(store, records, tuple(each for each in _journals(store.root / "trials") if takes(*each[1:])))

    @property
    def problems(self) -> list[tuple[str, Problem]]:
        """Device keys and problems of all records and journals, each pair once."""
        recorded = [(record.device, record.problem) for record in self.records]
        return list(dict.fromkeys([*recorded, *((device, problem) for _, device, problem in self.journals)]))

    def removed(self) -> "Holdings":
        """Remove all, each file under its own lock, and return the removed holdings. Raises StoreError where a file
        cannot be removed."""
        records = tuple(each for each in self.records if self.store.forget(each.device, each.problem))
        return Holdings(self.store, records, tuple(each for each in self.journals if remove_journal(each[0])))

    def kernels(self) -> set[str]:
        """Names of the kernels of all variants in the records and journals, aligned or not; other shapes share them."""
        return {
            kernel_name(each, problem.dtype, problem.trans)
            for problem, config in self._variants()
            for each in (config, config.unaligned)
        }

    def _variants(self) -> Iterator[tuple[Problem, Config]]:
        for record in self.records:
            yield record.problem, record.config
        for path, _, problem in self.journals:
            with contextlib.suppress(TilewrightError):  # a damaged journal names no variants
                recording = read_journal(path)
                yield from ((problem, config_of(recording.values(point))) for point in recording.entries)


def _journals(folder: Path) -> Iterator[tuple[Path, str, Problem]]:
    for study, paths in studies(folder).items():
        with contextlib.suppress(TilewrightError, ValueError, TypeError):  # the study may be of another program
            problem, device = problem_of(study)
            yield from ((path, device, problem) for path in sorted(paths))
