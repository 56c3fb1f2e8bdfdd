"""Store of the best record of each device and problem: the user's own files, over those that ship with the package."""

import contextlib
import os
import re
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeAlias

from ... import configs
from ...codegen.bundle import Served
from ...codegen.config import Config
from ...codegen.emitted import TEMPORARY_SUFFIX
from ...codegen.errors import ConfigError, StoreError, StoreVersionError, absolute, check
from ...codegen.families import default_config
from ...codegen.legality import serves
from ...codegen.problem import Grade, Problem, Shape
from ...codegen.reading import NotPlainError, read_plain
from .. import settings
from ..device.protocol import DeviceInfo
from ..file_lock import writing
from ..files import set_aside, write_whole
from .codec import beginning_of, dumps, key_digest, loads, of_line
from .lookup import LookupResult, Ranking
from .record import FIRST_USE, Record, Status

_MAX_BYTES = 1 << 20
"""Most bytes of a record's file."""
_MOST_IN_MEMORY = 16384
"""Most records of the user's files that are held in memory."""
SHIPPED = ".jsonl"
"""Ending of the files of records that ship, one for each device."""
_RECORD_FILE = re.compile(r"[0-9a-f]{64}\.json")
_SETTLED_NS = 1_000_000_000
"""Nanoseconds after a change in which a file may change again and keep its time."""
_GPUS_DIFFER = 1.1
"""Ratio by which the times of two GPUs of one model may differ, as their power decides their clocks."""
_PACKAGED = Path(configs.__path__[0]) / "tuned"
"""Folder of the records that ship with the package."""
_shipped: dict[Path, dict[tuple[str, Problem], Record]] = {}
"""Best records that ship in a folder, by device and problem, once all were read."""
_Layers: TypeAlias = tuple[tuple[Record, ...], tuple[Record, ...]]
_merged: tuple[object, tuple[Record, ...]] = None, ()
"""State of both layers that were last merged, and the best records of both."""


class StoreWarning(UserWarning):
    """A record was passed over: damaged and set aside, unreadable, or written for another version."""


class _DamagedError(Exception):
    """The file is not a record that any version wrote."""


class Store:
    """Records of tuned kernels in two layers: files under `root`, and those shipped in `configs/tuned/`.

    A file holds the record of one device and problem, and is named by the digest of both. Readers take no lock; a file
    is replaced whole. Nothing is written to disk before the first record is kept, or make() called.
    """

    def __init__(self, root: Path | None = None, shipped: Path = _PACKAGED) -> None:
        self._root = settings.store_folder() if root is None else absolute("store", root)
        self._shipped = shipped

    @property
    def root(self) -> Path:
        """Folder of the user's own records. Raises StoreError for a user without a home, who has none."""
        if self._root is None:
            remedy = f"name one by --store or {settings.STORE_VARIABLE}"
            raise StoreError(f"this user has no home folder, and so no folder for records: {remedy}")
        return self._root

    def make(self) -> None:
        """Make the folder if it is missing. Raises StoreError."""
        root = self.root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"--store or {settings.STORE_VARIABLE} names another folder"
            raise StoreError(f"cannot write {root}: {error.strerror or error}; {remedy}") from error

    def best(self, device_key: str, problem: Problem) -> Record | None:
        """The record for exactly this device and problem: the user's own, unless the one that ships is faster and the
        user's was not tuned or takes over 10% longer.

        A damaged file is set aside as `*.corrupt`, one that cannot be read is passed over, each with a
        StoreWarning. Raises StoreVersionError for a file that a newer tilewright wrote.
        """
        own = self._own(self._path(device_key, problem)) if self._root else None
        shipped = _shipped_of(self._shipped, device_key, problem)
        return _better(own, shipped) if own and shipped else own or shipped

    def records(self) -> Iterator[Record]:
        """The best record of every device and problem, sorted.

        Files that cannot be used are treated as in `best`, but a file of a newer tilewright causes only a StoreWarning.
        """
        yield from _best_of(*self.both())

    def layers(self) -> _Layers:
        """The best records in two layers: the user's own, then those that ship with the package, each sorted."""
        own, shipped = self.both()
        best, mine = _best_of(own, shipped), set(map(id, own))
        return tuple(r for r in best if id(r) in mine), tuple(r for r in best if id(r) not in mine)

    def both(self) -> _Layers:
        """All records of both layers, the user's own first."""
        return tuple(self._own_records()), _all_shipped(self._shipped)

    def _all(self) -> tuple[Record, ...]:
        """The records of `records`, from memory if none was written since. Look-ups of unknown shapes need them.

        A record is replaced whole, which changes the times of its folder: while these stay, no file is read.
        """
        global _merged
        own = self._state()
        if own is None or (own, self._shipped) != _merged[0]:
            _merged = (own, self._shipped), _best_of(*self.both())
        return _merged[1]

    def _state(self) -> object:
        """A value that changes with the folder of the user's records; None if that has changed too recently to tell."""
        if self._root is None:
            return "no folder"
        begun_ns, folder = time.time_ns(), self._root / "records"
        try:
            facts = os.stat(folder)
        except OSError as error:
            return str(folder) if isinstance(error, FileNotFoundError) else None
        settled = begun_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS
        return (str(folder), facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns) if settled else None

    def lookup(self, info: DeviceInfo, problem: Problem, ranking: Ranking) -> LookupResult:
        """The kernel for a problem: the tuned one, or a faster one that was tuned for a finer accuracy; without a tuned
        one the choice of the ranking by all records, else the default.

        Raises StoreVersionError as `best` does, and ConfigError where not even the default serves.
        """
        exact = self.best(info.key, problem)
        if exact is not None and serves(exact.config, problem, info):
            finer = [grade for grade in Grade if grade.keeps(problem.accuracy) and grade is not problem.accuracy]
            records = [self.best(info.key, replace(problem, accuracy=grade)) for grade in finer]
            usable = [record for record in records if record and serves(record.config, problem, info)]
            fastest = min((exact, *usable), key=lambda record: record.median_us)
            return LookupResult(fastest.config, "exact", fastest)
        ranked = ranking(problem, info, self._all())
        return ranked or LookupResult(default_config(problem, info), "default")

    def served(self, info: DeviceInfo, problem: Problem, ranking: Ranking, batched: bool) -> Served:
        """The kernel for a problem as a bundle of emitted files takes it; if `batched`, it also serves batches. Raises
        as `lookup` does."""
        looked_up, pair = self.lookup(info, problem, ranking), replace(problem, batch=max(2, problem.batch))
        if batched and not serves(looked_up.config, pair, info):  # such as one that is fed by TMA
            looked_up = self.lookup(info, pair, ranking)
        return looked_up.served(problem, info)

    def keep(self, record: Record, *, beaten: Collection[Config] = (), replace: bool = False) -> bool:
        """Store a record if it beats the user's own for its device and problem; True if it was written.

        A lower median wins, and so does a newer record of the same config. `beaten` holds configs that were compared
        with this one, or cannot run: their records give way whatever their times. With `replace` any record wins. A
        record that is not ok is never stored. A file of an older format, or of a config that this version does not
        know, is set aside as `*.unknown`, with a StoreWarning.
        Raises StoreError in one line where the folder cannot be written, StoreVersionError for a newer tilewright's
        file and ConfigError for an unknown config; what was stored before is then still there.
        """
        if record.status is not Status.OK:
            return False
        record = loads(dumps(record))  # a record that could not be read again is never written
        data = dumps(record)
        if len(data) > _MAX_BYTES:
            raise StoreError(f"a record of {len(data)} bytes is too large to be kept")
        path = self._path(record.device, record.problem)
        with self._locked(path):
            old, unknown = None, False
            try:
                old = self._reread(path)
            except ConfigError:
                unknown = True
            gives_way = old is None or old.config in (record.config, *beaten) or record.median_us < old.median_us
            if not (replace or gives_way):
                return False
            aside = set_aside(path, "unknown") if unknown else ""
            _sweep(path)
            try:
                write_whole(path, data)
            except BaseException:
                if aside:
                    os.rename(path.with_name(aside), path)
                raise
            if aside:
                _warn(f"{path} held a record that this version does not read; set aside as {aside}")
        return True

    def forget(self, device_key: str, problem: Shape) -> bool:
        """Remove the user's own record of a device and problem; False where there is none. Shipped records stay.

        `problem` may be "1024x768x512" or three numbers, for a product in float without transposes. Raises StoreError
        in one line where it cannot be removed.
        """
        path = self._path(device_key, Problem.parse(problem))
        if not os.path.lexists(path):
            return False  # nothing is made on disk
        with self._locked(path, "remove"):
            _sweep(path)
            try:
                path.unlink()
            except FileNotFoundError:  # another process was quicker
                return False
        return True

    def _path(self, device_key: str, problem: Problem) -> Path:
        return self.root.joinpath("records", f"{key_digest(device_key, problem)}.json")

    def _own(self, path: Path) -> Record | None:
        """The record of a file, else None, with a StoreWarning for an unusable file. Raises StoreVersionError."""
        damage: _DamagedError | None = None
        try:
            try:
                return _read(path)
            except _DamagedError as error:
                damage = error
                with self._locked(path):  # a writer may have replaced it meanwhile
                    return self._reread(path)
        except StoreVersionError:
            raise
        except (ConfigError, StoreError) as error:
            if damage is not None and isinstance(error, StoreError):
                _warn(f"{path} is damaged ({damage}) and stays where it is: {error}")
            elif isinstance(error, StoreError) and not os.access(path.parent, os.R_OK | os.X_OK):
                _warn(self._unreadable(error))  # the text of a failed listing, so that Python shows one fault once
            else:
                _warn(f"{error}; passed over" if str(path) in str(error) else f"{path}: {error}; passed over")
            return None

    def _own_records(self) -> Iterator[Record]:
        if self._root is None:
            return
        try:
            names = sorted(name for name in os.listdir(self.root / "records") if _RECORD_FILE.fullmatch(name))
        except FileNotFoundError:
            return
        except OSError as error:
            _warn(self._unreadable(error))
            return
        for name in names:
            try:
                record = self._own(self.root / "records" / name)
            except StoreVersionError as error:
                _warn(f"{error}; passed over")
                continue
            if record is not None:
                yield record

    def _unreadable(self, error: Exception) -> str:
        reason = error if isinstance(error, OSError) else error.__cause__
        return f"cannot read {self.root}: {getattr(reason, 'strerror', None) or error}; passed over"

    def _reread(self, path: Path) -> Record | None:
        # A writer moves a damaged file away, under the lock, and never overwrites it.
        try:
            return _read(path)
        except _DamagedError as error:
            _warn(f"{path} is damaged ({error}); set aside as {set_aside(path, 'corrupt')}")
        return None

    def _locked(self, path: Path, action: str = "write") -> AbstractContextManager[None]:
        return writing(action, path, self.root / "locks" / f"{path.stem}.lock", poll_seconds=0.01)


def _shipped_of(folder: Path, device_key: str, problem: Problem) -> Record | None:
    """The best record that ships for a problem on a device. Until all records are needed, other lines stay unread."""
    if folder in _shipped:
        return _shipped[folder].get((device_key, problem))
    return _shipped_alone(folder, device_key, problem)


@cache
def _shipped_alone(folder: Path, device_key: str, problem: Problem) -> Record | None:
    records = _read_shipped(folder, device_key, beginning_of(problem))
    return min(records, key=lambda record: record.median_us, default=None)


def _all_shipped(folder: Path) -> tuple[Record, ...]:
    """The best record that ships for each problem and device."""
    if folder not in _shipped:
        files, best = folder.glob(f"*{SHIPPED}"), dict[tuple[str, Problem], Record]()
        records = [record for file in sorted(files) for record in _read_shipped(folder, file.stem)]
        for record in sorted(records, key=lambda record: record.median_us):
            best.setdefault((record.device, record.problem), record)
        _shipped[folder] = best
    return tuple(_shipped[folder].values())


def _read(path: Path) -> Record | None:
    """The record of a file, from memory where the file has not changed.

    Raises _DamagedError, StoreVersionError, ConfigError for a config of another version, StoreError.
    """
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return _read_anew(path)  # reading raises the reason
    if time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) <= _SETTLED_NS:
        return _read_anew(path)
    return _read_settled(path, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)


@lru_cache(_MOST_IN_MEMORY)
def _read_settled(path: Path, *state: int) -> Record | None:
    """The record of a file that has this inode, times in nanoseconds and size. Raises as `_read` does."""
    return _read_anew(path)


def _read_anew(path: Path) -> Record | None:
    """The record of a file; None where there is no file. Raises as `_read` does."""
    try:
        data = read_plain(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except NotPlainError as error:
        raise _DamagedError(str(error)) from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        record = loads(data)
    except StoreVersionError as error:
        raise StoreVersionError(f"{path} was {error}") from error
    except StoreError as error:
        raise _DamagedError(str(error)) from error
    if record.status is not Status.OK or path.stem != key_digest(record.device, record.problem):
        raise _DamagedError("not the record that its name says")
    return record


def _read_shipped(folder: Path, device_key: str, beginning: bytes = b"") -> Iterator[Record]:
    """The records that ship for a device, from the lines of its file that start with `beginning`."""
    # Names are compared, not joined: a key is no path.
    for file in (file for file in folder.glob(f"*{SHIPPED}") if file.stem == device_key):
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            _warn(f"{file}: {error.strerror or error}; passed over")
            continue
        for number, line in enumerate(lines, 1):
            try:
                if line.startswith(beginning):
                    record = of_line(line)
                    check(record.status is Status.OK and record.device == device_key, "of another device", StoreError)
                    yield record
            except (ConfigError, StoreError) as error:
                _warn(f"{file}, line {number}: {error}; passed over")


def _sweep(path: Path) -> None:
    # A killed writer of this record left them. Under the lock no other writer is at work.
    for stale in path.parent.glob(f".{path.name}.*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            stale.unlink()


def _better(own: Record, shipped: Record) -> Record:
    """The better of two records of one problem. A search compared the user's own with the one that ships, so that it
    stays unless the latter is so much faster that it came with a later version; the GPU explains less."""
    if own.effort != FIRST_USE and own.median_us <= _GPUS_DIFFER * shipped.median_us:
        return own
    return min(own, shipped, key=lambda record: record.median_us)


def _best_of(own: Iterable[Record], shipped: Iterable[Record]) -> tuple[Record, ...]:
    """The better record of every device and problem, sorted."""
    best = {(record.device, record.problem): record for record in own}
    for record in shipped:
        key = record.device, record.problem
        best[key] = _better(best[key], record) if key in best else record
    return tuple(sorted(best.values(), key=_order))


def _order(record: Record) -> tuple[str, str, int, int, int]:
    problem = record.problem
    return record.device, problem.kind, problem.m, problem.n, problem.k


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=1)  # from one line, so that Python shows it once
