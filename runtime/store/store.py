"""The best record of each device and problem: the user's own on disk, over those that ship with the package."""

import contextlib
import itertools
import os
import re
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

from filelock import Timeout

from ... import configs
from ...codegen.config import Config
from ...codegen.errors import ConfigError, StoreError, StoreVersionError, absolute, check
from ...codegen.families import default_config
from ...codegen.legality import serves
from ...codegen.problem import Grade, Problem, Shape
from ...codegen.reading import NotPlainError, read_plain
from .. import settings
from ..device.protocol import DeviceInfo
from ..files import TEMPORARY_SUFFIX, set_aside, write_whole
from ..locks import CachedProperty
from .codec import beginning_of, dumps, key_digest, loads, of_line
from .found import Found, Ranking
from .record import FIRST_USE, Record, Status

_MAX_BYTES = 1 << 20
_LOCK_SECONDS = 30.0
SHIPPED = ".jsonl"
"""Ending of a file of records that ship, one of a device."""
_RECORD_FILE = re.compile(r"[0-9a-f]{64}\.json")
_SETTLED_NS = 1_000_000_000
"""A file that was changed within this of being read may change again with the same time."""
_GPUS_DIFFER = 1.1
"""GPUs of one kind differ by less: the power that each takes for the same work decides its clock."""
_read_before: dict[Path, tuple[tuple[int, ...], Record]] = {}
"""Records by their file, with what tells whether that is still the same."""
_packaged: dict[str, "_Shipped"] = {}
"""What ships with the package, by its folder."""
_Layers: TypeAlias = tuple[tuple[Record, ...], tuple[Record, ...]]
_merged: tuple[object, "_Shipped | None", _Layers, tuple[Record, ...]] = None, None, ((), ()), ()
"""What tells whether the user's own records are those that were last merged, and with which that ship; both layers, and
what came of them."""


class StoreWarning(UserWarning):
    """A record was passed over: damaged and set aside, unreadable, or written for another version."""


class _DamagedError(Exception):
    """The file is not a record that any version wrote."""


class Store:
    """Records of tuned kernels in two layers: files under `root`, and those shipped in `configs/tuned/`.

    One file per device and problem, named by the digest of both. Readers take no lock; a file is replaced
    whole. Nothing is made on disk before the first record is kept, or make() called.
    """

    def __init__(self, root: Path | None = None, shipped: Traversable | None = None) -> None:
        self._root = settings.store_folder() if root is None else absolute("store", root)
        self._tuned = resources.files(configs) / "tuned" if shipped is None else shipped
        made = _Shipped(self._tuned)
        self._shipped = _packaged.setdefault(str(self._tuned), made) if shipped is None else made

    @property
    def root(self) -> Path:
        """Folder of the user's own records. Raises StoreError for a user without a home, who has none."""
        if self._root is None:
            remedy = f"name one by --store or {settings.STORE_VARIABLE}"
            raise StoreError(f"this user has no home folder, and so no folder for records: {remedy}")
        return self._root

    def make(self) -> None:
        """Make the folder if it is not there. Raises StoreError where that cannot be."""
        root = self.root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"--store or {settings.STORE_VARIABLE} names another folder"
            raise StoreError(f"cannot write {root}: {error.strerror or error}; {remedy}") from error

    def best(self, device_key: str, problem: Problem) -> Record | None:
        """The record for exactly this device and problem: the user's own, or where that was not tuned or takes over 10%
        longer, the one that ships.

        A damaged file is set aside as `*.corrupt`, one that cannot be read is passed over, each with a
        StoreWarning. Raises StoreVersionError for a file that a newer tilewright wrote.
        """
        own = self._own(self._path(device_key, problem)) if self._root else None
        shipped = self._shipped.best(device_key, problem)
        return _counts(own, shipped) if own and shipped else own or shipped

    def records(self) -> Iterator[Record]:
        """The best record of every device and problem, sorted.

        Files that cannot be used are treated as in `best`, but a newer tilewright's costs only a StoreWarning.
        """
        yield from self._merge(None)

    def layers(self) -> _Layers:
        """The same in two: those that are the user's own, then those that ship with the package, each sorted."""
        own, shipped = self.both()
        found, mine = _best_of(own, shipped), set(map(id, own))
        return tuple(r for r in found if id(r) in mine), tuple(r for r in found if id(r) not in mine)

    def both(self) -> _Layers:
        """All records of both layers, the user's own first."""
        return tuple(self._own_records()), self._shipped.records

    def _all(self) -> tuple[Record, ...]:
        """What `records` gives; from memory where no record was written since, as a look-up asks for it at each unknown
        shape. A record is replaced whole, which changes the times of its folder: while these stay no file is looked
        at."""
        if self._root is None:
            return self._merge(None)
        begun_ns, folder = time.time_ns(), self._root / "records"
        same: object = None
        try:
            facts = os.stat(folder)
            if begun_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
                same = str(folder), facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns
        except FileNotFoundError:
            same = str(folder)
        except OSError:
            pass  # reading tells why
        known, shipped, _, found = _merged
        return found if same and same == known and shipped is self._shipped else self._merge(same)

    def _merge(self, same: object) -> tuple[Record, ...]:
        global _merged
        given = self.both()
        _, _, known, found = _merged
        if list(map(id, itertools.chain(*given))) != list(map(id, itertools.chain(*known))):
            found = _best_of(*given)
        _merged = same, self._shipped, given, found
        return found

    def lookup(self, info: DeviceInfo, problem: Problem, ranking: Ranking) -> Found:
        """How to run a problem: as tuned for it, or for the same product in a finer accuracy where that is faster, else
        what the ranking makes of the other records, else the default.

        Raises StoreVersionError as `best` does, and ConfigError where not even the default will do.
        """
        exact = self.best(info.key, problem)
        if exact is not None and serves(exact.config, problem, info):
            finer = [grade for grade in Grade if grade.keeps(problem.accuracy) and grade is not problem.accuracy]
            records = [self.best(info.key, replace(problem, accuracy=grade)) for grade in finer]
            usable = [record for record in records if record and serves(record.config, problem, info)]
            fastest = min((exact, *usable), key=lambda record: record.median_us)
            return Found(fastest.config, "exact", fastest)
        ranked = ranking(problem, info, self._all())
        return ranked or Found(default_config(problem, info), "default")

    def keep(self, record: Record, *, beaten: Collection[Config] = (), replace: bool = False) -> bool:
        """Store a record if it beats the user's own for its device and problem; True if it was written.

        A lower median beats, and so does a newer record of the same config. `beaten` are configs that were compared
        with this one, or cannot run: they give way whatever their times. `replace` lets any record win. A record that
        is not ok is never stored. A file of an older format, or of a config that this version does not know, is set
        aside as `*.unknown`, with a StoreWarning.
        Raises StoreError in one line where the folder cannot be written, StoreVersionError for a newer tilewright's
        file and ConfigError for an unknown config; what was stored before is then still there.
        """
        if record.status is not Status.OK:
            return False
        record = loads(dumps(record))  # what could not be read again is never written
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
        """Remove the user's own record of a device and problem; False where there is none. What ships stays.

        `problem` may be "1024x768x512" or three numbers, for a product in float without transposes. Raises StoreError
        in one line where it cannot be removed.
        """
        path = self._path(device_key, Problem.parse(problem))
        if not os.path.lexists(path):
            return False  # nothing is made on disk
        with self._locked(path), _one_line("remove", path):
            _sweep(path)
            try:
                path.unlink()
            except FileNotFoundError:  # another process was quicker
                return False
        return True

    def _path(self, device_key: str, problem: Problem) -> Path:
        return self.root.joinpath("records", f"{key_digest(device_key, problem)}.json")

    def _own(self, path: Path) -> Record | None:
        # A reader's way: whatever is wrong with the file, go on without it.
        try:
            return _read(path)
        except _DamagedError as error:
            return self._set_damaged_aside(path, error)
        except StoreVersionError:
            raise
        except (ConfigError, StoreError) as error:
            if isinstance(error, StoreError) and not os.access(path.parent, os.R_OK | os.X_OK):
                _warn(self._unreadable(error))  # in the words of a listing: of one fault users are told once
                return None
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

    def _set_damaged_aside(self, path: Path, error: _DamagedError) -> Record | None:
        # Under the lock and after another look: a writer may have put a good record there meanwhile.
        try:
            with self._locked(path):
                return self._reread(path)
        except StoreVersionError:
            raise
        except ConfigError as unknown:
            _warn(f"{path}: {unknown}; passed over")
            return None
        except StoreError as failure:
            _warn(f"{path} is damaged ({error}) and stays where it is: {failure}")
            return None

    def _reread(self, path: Path) -> Record | None:
        # A writer's way, under the lock: a damaged file is moved away, never overwritten.
        try:
            return _read(path)
        except _DamagedError as error:
            _warn(f"{path} is damaged ({error}); set aside as {set_aside(path, 'corrupt')}")
        return None

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        from ..file_lock import file_lock  # a product waits for no import of what only a writer needs

        locks = self.root / "locks"
        with _one_line("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            locks.mkdir(exist_ok=True)
            with file_lock(locks / f"{path.stem}.lock", _LOCK_SECONDS, poll_seconds=0.01):
                yield


class _Shipped:
    """Records of a folder that ships, read once: nobody writes there."""

    def __init__(self, tuned: Traversable) -> None:
        self._tuned = tuned
        self._by_device: dict[str, dict[Problem, Record]] = {}
        self._alone: dict[tuple[str, Problem], Record | None] = {}

    def of(self, device_key: str) -> Mapping[Problem, Record]:
        """The best record of each problem on a device."""
        if device_key not in self._by_device:
            found: dict[Problem, Record] = {}
            for record in sorted(_read_shipped(self._tuned, device_key), key=lambda record: record.median_us):
                found.setdefault(record.problem, record)
            self._by_device[device_key] = found
        return self._by_device[device_key]

    def best(self, device_key: str, problem: Problem) -> Record | None:
        """The best record of a problem on a device. Where not all were read yet its own lines are."""
        if device_key in self._by_device:
            return self.of(device_key).get(problem)
        key = device_key, problem
        if key not in self._alone:
            own = _read_shipped(self._tuned, device_key, beginning_of(problem))
            self._alone[key] = min(own, key=lambda record: record.median_us, default=None)
        return self._alone[key]

    @CachedProperty
    def records(self) -> tuple[Record, ...]:
        """Records of all devices."""
        keys = [each.name.removesuffix(SHIPPED) for each in _children(self._tuned) if each.name.endswith(SHIPPED)]
        return tuple(record for key in keys for record in self.of(key).values())


def _read(path: Path) -> Record | None:
    """A file's record, from memory where the file is what it was.

    Raises _DamagedError, StoreVersionError, ConfigError for a config of another version, StoreError.
    """
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        _read_before.pop(path, None)
        return None
    except OSError:
        facts = None  # reading tells why
    same = facts and (facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
    before = _read_before.get(path)
    if before is not None and before[0] == same:
        return before[1]
    begun_ns = time.time_ns()
    record = _read_anew(path)
    if facts and same and record is not None and begun_ns - max(same[1:3]) > _SETTLED_NS:
        _read_before[path] = same, record
    return record


def _read_anew(path: Path) -> Record | None:
    """Raises as `_read`."""
    try:
        with _one_line("read", path):
            data = read_plain(path, _MAX_BYTES)
    except NotPlainError as error:
        raise _DamagedError(str(error)) from error
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    try:
        record = loads(data)
    except StoreVersionError as error:
        raise StoreVersionError(f"{path} was {error}") from error
    except StoreError as error:
        raise _DamagedError(str(error)) from error
    good = record.status is Status.OK and path.stem == key_digest(record.device, record.problem)
    if not good:
        raise _DamagedError("not the record that its name says")
    return record


def _read_shipped(tuned: Traversable, device_key: str, beginning: bytes = b"") -> Iterator[Record]:
    """The records that ship for a device, a line each of its file; of lines that begin so."""
    # Names are compared, not joined: a key is no path.
    for file in (child for child in _children(tuned) if child.name == f"{device_key}{SHIPPED}"):
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            _warn(f"{file}: {error.strerror or error}; passed over")
            continue
        for number, line in enumerate(lines, 1):
            if not line.startswith(beginning):
                continue
            try:
                record = of_line(line)
                check(record.status is Status.OK and record.device == device_key, "of another device", StoreError)
            except (ConfigError, StoreError) as error:
                _warn(f"{file}, line {number}: {error}; passed over")
                continue
            yield record


def _children(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda child: child.name) if folder.is_dir() else []


def _sweep(path: Path) -> None:
    # What a killed writer of this record left. Under its lock no other writer is at work on it.
    for stale in path.parent.glob(f".{path.name}.*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            stale.unlink()


@contextlib.contextmanager
def _one_line(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except Timeout as error:
        raise StoreError(
            f"cannot {verb} {path}: another process holds its lock; try again when it has ended"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot {verb} {path}: {error.strerror or error}") from error


def _counts(own: Record, shipped: Record) -> Record:
    """Which of both counts: the user's own, which met the other one in its duel, unless what ships is so much faster
    that it came with a later version. A little faster it may be by the GPU that it was measured on."""
    if own.effort != FIRST_USE and own.median_us <= _GPUS_DIFFER * shipped.median_us:
        return own
    return min(own, shipped, key=lambda record: record.median_us)


def _best_of(own: Iterable[Record], shipped: Iterable[Record]) -> tuple[Record, ...]:
    """The record that counts of every device and problem, sorted."""
    found = {(record.device, record.problem): record for record in own}
    for record in shipped:
        key = record.device, record.problem
        found[key] = _counts(found[key], record) if key in found else record
    return tuple(sorted(found.values(), key=_order))


def _order(record: Record) -> tuple[str, str, int, int, int]:
    problem = record.problem
    return record.device, problem.kind, problem.m, problem.n, problem.k


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=1)  # from one line, so that Python shows it once
