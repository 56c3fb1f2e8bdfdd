"""Compiled kernels kept by what they were made of: kernel name, compiler and text; and compiled templates."""

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

from ...codegen.environment import environment
from ...codegen.errors import CompileError, ConfigError, DeviceError
from ...codegen.reading import NotPlainError, read_plain
from ...codegen.source import KernelSource
from .. import settings
from ..files import write_whole
from .protocol import Binary, Compiler

_FORMAT = 1
_MAX_INFO_BYTES = 1 << 16
_MAX_IMAGE_BYTES = 1 << 28
_DIGEST_BYTES = 32
_BOUND_BYTES = 2 << 30
_PRUNE_TO = 0.75  # of the bound, so that a full cache is not walked for each new entry
_PRUNE_SECONDS = 3600.0
_STALE_SECONDS = 86400.0
_STAMP = "pruned"
_PROBE_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_PRIVATE = "tilewright-"

_mark = ""  # of a process whose parent removes what it leaves
_broken: set[Path | None] = set()  # caches that could not be written, None without a home; each is warned of once


class CacheWarning(UserWarning):
    """The cache cannot be written: kernels are compiled again in every process."""


class _BadEntryError(Exception):
    """Not what a compiler put there: damaged, swapped, a link, or another user's."""


def entry_key(compiler: Compiler, source: KernelSource) -> str:
    """SHA-256 over all that a binary depends on, in hexadecimal."""
    parts = [_FORMAT, source.name, compiler.identity, compiler.suffix, source.digest]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def compile_cached(compiler: Compiler, source: KernelSource) -> Binary:
    """The binary of a source, and of its preparation: from the cache where it is there and sound, else compiled and put
    there.

    A cache that cannot be used costs a CacheWarning, once, and compiling into a private folder that goes with
    the process. Raises what the compiler raises: CompileError, DeviceError; the latter also where there is
    nowhere to write at all.
    """
    if source.preparation is not None:
        first = compile_cached(compiler, source.preparation)
        binary = compile_cached(compiler, replace(source, preparation=None))
        return replace(binary, seconds=binary.seconds + first.seconds, preparation=first)
    root = settings.cache_folder()
    key = entry_key(compiler, source)
    if root is None:
        _warn(None, "the cache", "this user has no home folder")
    else:
        place = _Place(root, key, compiler, source)
        if root not in _broken:
            try:
                return place.obtain()
            except OSError as error:
                _warn(root, f"the cache {root}", _cause(error))
        with contextlib.suppress(OSError, _BadEntryError):
            if (found := place.find()) is not None:
                return found
    try:
        return _Place(_private_root(os.getpid()), key, compiler, source).obtain()
    except OSError as error:
        remedy = f"TMPDIR or {settings.CACHE_VARIABLE} names another folder"
        raise DeviceError(f"nowhere to compile {source.name}: {_cause(error)}; {remedy}") from error


def _warn(root: Path | None, name: str, cause: str) -> None:
    """Warn of a cache that cannot be used, once a process."""
    if root not in _broken:
        _broken.add(root)
        remedy = f"{settings.CACHE_VARIABLE} names another folder"
        warnings.warn(f"cannot use {name} ({cause}): every process compiles anew; {remedy}", CacheWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one binary lies in one cache."""

    root: Path
    """Folder of the cache."""
    key: str
    """`entry_key` of the next two."""
    compiler: Compiler
    """What makes it."""
    source: KernelSource
    """What it is made of."""

    @property
    def folder(self) -> Path:
        """`kernel.cu`, `kernel.<suffix>` and `info.json`; there whole or not at all."""
        return self.root / self.key[:2] / self.key

    @property
    def image(self) -> Path:
        return self.folder / f"kernel.{self.compiler.suffix}"

    def obtain(self) -> Binary:
        """Raises CompileError, DeviceError; OSError where the cache cannot be used."""
        _make_private(self.root)
        _make_private(self.folder.parent)
        try:
            if (found := self.find()) is not None:
                return found
        except _BadEntryError:
            _discard(self.folder)
        return self._build()

    def find(self) -> Binary | None:
        """The binary if it is here. Raises _BadEntryError, OSError."""
        owner = os.geteuid()
        try:
            facts = os.lstat(self.folder)
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner or facts.st_mode & _OTHERS_WRITE:
                raise _BadEntryError("not a folder that only this user can write")
            info = read_plain(self.folder / "info.json", _MAX_INFO_BYTES, owner)
            image = read_plain(self.image, _MAX_IMAGE_BYTES, owner)
        except FileNotFoundError as error:
            if os.path.lexists(self.folder):
                raise _BadEntryError("a file is missing") from error
            return None
        except NotPlainError as error:
            raise _BadEntryError(str(error)) from error
        binary = _binary(info, self.key, image)
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # what is used is pruned last
        return binary

    def _build(self) -> Binary:
        aside = Path(tempfile.mkdtemp(prefix=f".{self.key[:16]}-", dir=self.folder.parent))
        try:
            try:
                binary = self.compiler.build(self.source, str(aside))
            except CompileError:
                _probe(aside)  # on a full disk a compiler complains too, and it is not the kernel's fault
                raise
            (aside / "kernel.cu").write_bytes(self.source.code.encode())
            (aside / "info.json").write_bytes(_info(self.key, self.compiler, binary))
            installed = self._install(aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        _prune_now_and_then(self.root)
        return installed or binary

    def _install(self, aside: Path) -> Binary | None:
        """The binary that another builder of the key put here meanwhile, None if `aside` is now in place."""
        for _ in range(3):
            try:
                os.rename(aside, self.folder)
                return None
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            try:
                if (found := self.find()) is not None:
                    return found
            except _BadEntryError:
                _discard(self.folder)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self.folder))


def _info(key: str, compiler: Compiler, binary: Binary) -> bytes:
    info = {
        "key": key,
        "compiler": compiler.identity,
        "registers": binary.registers,
        "frame_bytes": binary.frame_bytes,
        "smem_bytes": binary.smem_bytes,
        "sha256": hashlib.sha256(binary.image).hexdigest(),
    }
    return (json.dumps(info, indent=1) + "\n").encode()


def _binary(data: bytes, key: str, image: bytes) -> Binary:
    try:
        info: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _BadEntryError("info.json is not JSON") from error
    if not isinstance(info, dict) or info.get("key") != key:
        raise _BadEntryError("an entry of another key")
    if info.get("sha256") != hashlib.sha256(image).hexdigest():
        raise _BadEntryError("the binary is not the one that was compiled")
    counts = [info.get(name) for name in ("registers", "frame_bytes", "smem_bytes")]
    if not all(count is None or (type(count) is int and count >= 0) for count in counts):
        raise _BadEntryError("info.json has wrong types")
    registers, frame_bytes, smem_bytes = counts
    return Binary(image, registers, frame_bytes, smem_bytes)


def _make_private(folder: Path) -> None:
    # A binary from here is run: nobody else may be able to put one in, or to replace a folder of it.
    _refuse_links(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.stat()
    # /tmp: others can add names and not touch ours; but who owns a sticky folder can.
    sticky = bool(facts.st_mode & stat.S_ISVTX) and facts.st_uid == 0
    if not stat.S_ISDIR(facts.st_mode) or not (sticky or facts.st_uid == os.geteuid()):
        raise PermissionError(errno.EPERM, "not this user's folder", str(folder))
    if facts.st_mode & _OTHERS_WRITE and not sticky:
        folder.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)


def _refuse_links(folder: Path) -> None:
    """Raise PermissionError where another user's link leads there: it may lead to any folder of this user's."""
    for part in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            facts = os.lstat(part)
            if stat.S_ISLNK(facts.st_mode) and facts.st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EPERM, "another user's link", str(part))


def _discard(path: Path) -> None:
    # Renamed first: nobody finds a half-deleted entry, and a link goes without what it points to.
    grave = Path(tempfile.mkdtemp(prefix=".discarded-", dir=path.parent))
    try:
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            os.rename(path, grave / path.name)
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def _probe(folder: Path) -> None:
    with (folder / "probe").open("wb") as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def mark_private(mark: str) -> None:
    """Put a mark into the name of the private folder of this process, which may be killed before it removes it."""
    global _mark
    _mark = mark


def remove_private(mark: str) -> None:
    """Remove the private folders with a mark, which its process left."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}{mark}-*"):
        shutil.rmtree(root, ignore_errors=True)


@functools.cache
def _private_root(process: int) -> Path:
    """Made once a process, and by its number: a forked child must not take its parent's away at its end."""
    root = Path(tempfile.mkdtemp(prefix=f"{_PRIVATE}{_mark}-" if _mark else _PRIVATE))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return root


def _prune_now_and_then(root: Path) -> None:
    stamp = root / _STAMP
    with contextlib.suppress(OSError):
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _PRUNE_SECONDS:
            return
        stamp.touch()  # first, so that of many builders one prunes
        _prune(root, _BOUND_BYTES)


def _prune(root: Path, bound_bytes: int) -> None:
    """Remove what killed builders left and, past the bound, the entries that were used longest ago."""
    entries = []
    for path in _inside(root):
        facts = path.stat(follow_symlinks=False)
        if path.name.startswith("."):
            if time.time() - facts.st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISDIR(facts.st_mode):
            entries.append((facts.st_mtime, sum(file.lstat().st_size for file in path.iterdir()), path))
    total = sum(size for _, size, _ in entries)
    if total <= bound_bytes:
        return
    for _, size, path in sorted(entries):
        if total <= bound_bytes * _PRUNE_TO:
            return
        _discard(path)
        total -= size


def remove_kernels(names: Collection[str] | None = None) -> int:
    """Remove the compiled kernels of these names from the cache, whatever compiled them, or all; how many they were.
    Raises ConfigError for a cache that cannot be named."""
    root, removed = settings.cache_folder(), 0
    for path in _inside(root) if root else ():
        if not path.name.startswith(".") and (names is None or _kernel_of(path) in names):
            with contextlib.suppress(OSError):
                _discard(path)
                removed += 1
    return removed


def _kernel_of(entry: Path) -> str:
    """The name of the kernel that an entry holds, which its text begins with; empty where it cannot be read."""
    with contextlib.suppress(OSError, NotPlainError):
        head, _, _ = read_plain(entry / "kernel.cu", _MAX_IMAGE_BYTES, os.geteuid()).partition(b"\n")
        return head.removeprefix(b"// ").decode(errors="replace")
    return ""


def _inside(root: Path) -> Iterator[Path]:
    for folder in root.glob("[0-9a-f][0-9a-f]"):
        if folder.is_dir() and not folder.is_symlink():
            yield from folder.iterdir()


def _cause(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)


class _Templates(BytecodeCache):
    """Templates as Jinja compiled them, in the cache's folder `templates`: compiling them anew is most of what a
    process takes up to its first kernel. One that cannot be read or written is compiled, without a word."""

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """The template's name and path, which need not be UTF-8 as they have to be in Jinja's own key."""
        return repr((name, filename))

    def load_bytecode(self, bucket: Bucket) -> None:
        """Nothing where there is none that this user wrote whole."""
        with contextlib.suppress(OSError, NotPlainError, ConfigError):
            if file := self._file(bucket):
                data = read_plain(file, _MAX_IMAGE_BYTES, os.geteuid())
                digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
                if digest == hashlib.sha256(code).digest():
                    bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Written whole or not at all."""
        with contextlib.suppress(OSError, ConfigError):
            if file := self._file(bucket):
                code = bucket.bytecode_to_string()
                for folder in (file.parent.parent, file.parent):
                    _make_private(folder)
                write_whole(file, hashlib.sha256(code).digest() + code)

    @staticmethod
    def _file(bucket: Bucket) -> Path | None:
        """For one template, text of it and version of Jinja and Python; None without a cache. Raises ConfigError."""
        made_of = bucket.key, bucket.checksum, jinja2.__version__, sys.version
        root = settings.cache_folder()
        return root / "templates" / hashlib.sha256(repr(made_of).encode()).hexdigest() if root else None


environment().bytecode_cache = _Templates()
