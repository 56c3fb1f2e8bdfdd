"""The user's own records, journals and compiled kernels of some problems, and their removal."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..codegen.config import Config
from ..codegen.errors import TilewrightError
from ..codegen.problem import Problem
from ..codegen.render import kernel_name
from ..runtime.device.cache import remove_kernels
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from .recording.journal import problem_of, read_journal, remove_journal, studies
from .recording.points import config_of


@dataclass(frozen=True, slots=True)
class Holdings:
    """Records and journals of a store, none of which ships."""

    store: Store
    records: tuple[Record, ...] = ()
    journals: tuple[tuple[Path, str, Problem], ...] = ()
    """Their files, and of which device and problem each is."""
    kernels: int = 0
    """Number of compiled kernels that were removed with them."""

    @classmethod
    def of(cls, store: Store, wanted: Callable[[str, Problem], bool]) -> "Holdings":
        """All that the store holds of the devices, by their keys, and problems that are wanted."""
        records = tuple(record for record in store.both()[0] if wanted(record.device, record.problem))
        return cls(store, records, tuple(each for each in _journals(store.root / "trials") if wanted(*each[1:])))

    @property
    def problems(self) -> list[tuple[str, Problem]]:
        """Keys of devices and problems, each once."""
        recorded = [(record.device, record.problem) for record in self.records]
        return list(dict.fromkeys([*recorded, *((device, problem) for _, device, problem in self.journals)]))

    def removed(self, kernels: bool = False) -> "Holdings":
        """Remove all, each file under its own lock, and return those that are gone; with `kernels` also the compiled
        kernels of all variants that the records and journals name, which other shapes may share and which are compiled
        again where they are needed. Raises StoreError where a file cannot be removed."""
        names = {
            kernel_name(each, problem.dtype, problem.trans)
            for problem, config in (self._variants() if kernels else ())
            for each in (config, config.unaligned)
        }
        records = tuple(each for each in self.records if self.store.forget(each.device, each.problem))
        journals = tuple(each for each in self.journals if remove_journal(each[0]))
        return Holdings(self.store, records, journals, remove_kernels(names) if names else 0)

    def _variants(self) -> Iterator[tuple[Problem, Config]]:
        for record in self.records:
            yield record.problem, record.config
        for path, _, problem in self.journals:
            with contextlib.suppress(TilewrightError):  # damaged: nobody can tell what was tried
                recording = read_journal(path)
                for point in recording.entries:
                    with contextlib.suppress(TilewrightError):  # of a family that is gone
                        yield problem, config_of(recording.values(point))


def _journals(folder: Path) -> Iterator[tuple[Path, str, Problem]]:
    for study, paths in studies(folder).items():
        with contextlib.suppress(TilewrightError, ValueError, TypeError):  # no problem of ours
            problem, device = problem_of(study)
            yield from ((path, device, problem) for path in sorted(paths))
