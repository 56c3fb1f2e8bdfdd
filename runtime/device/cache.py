"""Cache of compiled kernels by kernel name, compiler and text, and of compiled templates."""

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
"""Number of the entries' format, which is part of their keys."""
_COUNTS = "registers", "frame_bytes", "smem_bytes"
"""Counts of a binary that an entry holds: None, or at least 0."""
_MAX_INFO_BYTES = 1 << 16
_MAX_IMAGE_BYTES = 1 << 28
_DIGEST_BYTES = 32
_BOUND_BYTES = 2 << 30
"""Bytes of all entries past which the least recently used ones are removed."""
_PRUNE_TO = 0.75
"""Share of the bound that pruning leaves, so that a full cache is not walked for each new entry."""
_PRUNE_SECONDS = 3600.0
"""Seconds from one pruning to the next."""
_STALE_SECONDS = 86400.0
"""Age in seconds at which files of a builder count as left by one that was killed."""
_STAMP = "pruned"
"""File whose time is that of the last pruning."""
_PROBE_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = "tilewright-"

_mark = ""
"""Part of the name of this process's private folder, by which its parent can remove the folder."""
_broken: set[Path | None] = set()
"""Caches that cannot be used, None for a user without a home. A warning was given of each."""


class CacheWarning(UserWarning):
    """The cache cannot be written: kernels are compiled again in every process."""


class _BadEntryError(Exception):
    """An entry is damaged, swapped, a link, or another user's."""


def entry_key(compiler: Compiler, source: KernelSource) -> str:
    """SHA-256 over all that a binary depends on, in hexadecimal."""
    parts = [_FORMAT, source.name, compiler.identity, compiler.suffix, source.digest]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def compile_cached(compiler: Compiler, source: KernelSource) -> Binary:
    """The binary of a source, and of its preparation: from the cache where it holds a sound one, else compiled and
    added to the cache.

    If the cache cannot be used, a CacheWarning says so once, and kernels are compiled into a private folder that is
    removed when the process ends. Raises CompileError and DeviceError as the compiler does; the latter also where no
    folder can be written.
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
        entry = _Entry(root, key, compiler, source)
        if root not in _broken:
            try:
                return entry.obtain()
            except OSError as error:
                _warn(root, f"the cache {root}", _cause(error))
        with contextlib.suppress(OSError):
            if (cached := entry.find()) is not None:
                return cached
    try:
        return _Entry(_private_root(os.getpid()), key, compiler, source).obtain()
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
class _Entry:
    """Place of one binary in one cache."""

    root: Path
    """Folder of the cache."""
    key: str
    """`entry_key` of `compiler` and `source`."""
    compiler: Compiler
    source: KernelSource

    @property
    def folder(self) -> Path:
        """Folder of `kernel.cu`, `kernel.<suffix>` and `info.json`; it is there whole or not at all."""
        return self.root / self.key[:2] / self.key

    def obtain(self) -> Binary:
        """The binary, compiled if the entry is missing. Raises CompileError, DeviceError; OSError where the cache
        cannot be used."""
        _make_private(self.root)
        _make_private(self.folder.parent)
        return self.find() or self._build()

    def find(self) -> Binary | None:
        """The binary; None for an entry that is missing, or that is not sound and is removed. Raises OSError."""
        try:
            binary = self._read()
        except FileNotFoundError:
            if os.path.lexists(self.folder):
                _discard(self.folder)
            return None
        except (_BadEntryError, NotPlainError):
            _discard(self.folder)
            return None
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # the least recently used entries are pruned first
        return binary

    def _read(self) -> Binary:
        """The binary. Raises _BadEntryError, NotPlainError, OSError."""
        owner = os.geteuid()
        facts = os.lstat(self.folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner or facts.st_mode & _OTHERS_WRITE:
            raise _BadEntryError("not a folder that only this user can write")
        text = read_plain(self.folder / "info.json", _MAX_INFO_BYTES, owner)
        image = read_plain(self.folder / f"kernel.{self.compiler.suffix}", _MAX_IMAGE_BYTES, owner)
        try:
            info: Any = json.loads(text)
            counts = [info[name] for name in _COUNTS]
            matches = info["key"] == self.key and info["sha256"] == hashlib.sha256(image).hexdigest()
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise _BadEntryError("info.json does not describe a binary") from error
        if not matches or not all(count is None or (type(count) is int and count >= 0) for count in counts):
            raise _BadEntryError("info.json describes another binary")
        return Binary(image, *counts)

    def _build(self) -> Binary:
        aside = Path(tempfile.mkdtemp(prefix=f".{self.key[:16]}-", dir=self.folder.parent))
        try:
            try:
                binary = self.compiler.build(self.source, str(aside))
            except CompileError:
                _probe(aside)  # on a full disk a compiler complains too, and it is not the kernel's fault
                raise
            info = {
                "key": self.key,
                "compiler": self.compiler.identity,
                **{name: getattr(binary, name) for name in _COUNTS},
                "sha256": hashlib.sha256(binary.image).hexdigest(),
            }
            (aside / "kernel.cu").write_bytes(self.source.code.encode())
            (aside / "info.json").write_bytes((json.dumps(info, indent=1) + "\n").encode())
            installed = self._install(aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        _prune_now_and_then(self.root)
        return installed or binary

    def _install(self, aside: Path) -> Binary | None:
        """Put the folder `aside` in place. Returns the binary of another builder where that was faster, else None."""
        for _ in range(3):
            try:
                os.rename(aside, self.folder)
                return None
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            if (binary := self.find()) is not None:
                return binary
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self.folder))


def _make_private(folder: Path) -> None:
    # Binaries of this folder are run: no other user may be able to add one, or to replace a folder of it.
    _refuse_links(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.stat()
    # In a sticky folder such as /tmp others cannot touch our files, unless they own the folder.
    sticky = bool(facts.st_mode & stat.S_ISVTX) and facts.st_uid == 0
    if not stat.S_ISDIR(facts.st_mode) or not (sticky or facts.st_uid == os.geteuid()):
        raise PermissionError(errno.EPERM, "not this user's folder", str(folder))
    if facts.st_mode & _OTHERS_WRITE and not sticky:
        folder.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)


def _refuse_links(folder: Path) -> None:
    """Raise PermissionError if the path has another user's link, which may lead to any folder of this user."""
    for part in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            facts = os.lstat(part)
            if stat.S_ISLNK(facts.st_mode) and facts.st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EPERM, "another user's link", str(part))


def _discard(path: Path) -> None:
    # The entry is renamed first, so that nobody finds half of it, and so that the target of a link stays.
    grave = Path(tempfile.mkdtemp(prefix=".discarded-", dir=path.parent))
    try:
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            os.rename(path, grave / path.name)
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def _probe(folder: Path) -> None:
    """Raise OSError unless the disk has room for a binary."""
    write_whole(folder / "probe", bytes(_PROBE_BYTES))


def mark_private(mark: str) -> None:
    """Put a mark into the name of this process's private folder, which the process leaves if it is killed."""
    global _mark
    _mark = mark


def remove_private(mark: str) -> None:
    """Remove the private folders with a mark, which a killed process left."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}{mark}-*"):
        shutil.rmtree(root, ignore_errors=True)


@functools.cache
def _private_root(process: int) -> Path:
    """A private folder of the process with this number. A forked child makes one of its own, and does not remove its
    parent's."""
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
        stamp.touch()  # first, so that only one of many builders prunes
        _prune(root, _BOUND_BYTES)


def _prune(root: Path, bound_bytes: int) -> None:
    """Remove what killed builders left and, past the bound, the least recently used entries."""
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
    """Remove the compiled kernels with these names from the cache, or all kernels. Returns how many were removed.
    Raises ConfigError for a cache that cannot be named."""
    root, removed = settings.cache_folder(), 0
    for path in _inside(root) if root else ():
        if not path.name.startswith(".") and (names is None or _kernel_of(path) in names):
            with contextlib.suppress(OSError):
                _discard(path)
                removed += 1
    return removed


def _kernel_of(entry: Path) -> str:
    """Name of the kernel that an entry holds, from the first line of its text; empty where it cannot be read."""
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
    """Compiled templates in the cache's folder `templates`: compiling them anew would take most of the time that a
    process needs for its first kernel. A template that cannot be read or written is compiled, without a warning."""

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """The template's name and path, which need not be UTF-8 as they have to be in Jinja's own key."""
        return repr((name, filename))

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load a template, unless its file is missing, damaged or another user's."""
        with contextlib.suppress(OSError, NotPlainError, ConfigError):
            if file := self._file(bucket):
                data = read_plain(file, _MAX_IMAGE_BYTES, os.geteuid())
                digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
                if digest == hashlib.sha256(code).digest():
                    bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write a template, whole or not at all."""
        with contextlib.suppress(OSError, ConfigError):
            if file := self._file(bucket):
                code = bucket.bytecode_to_string()
                for folder in (file.parent.parent, file.parent):
                    _make_private(folder)
                write_whole(file, hashlib.sha256(code).digest() + code)

    @staticmethod
    def _file(bucket: Bucket) -> Path | None:
        """File of a template, by its text and the versions of Jinja and Python; None without a cache. Raises
        ConfigError."""
        made_of = bucket.key, bucket.checksum, jinja2.__version__, sys.version
        root = settings.cache_folder()
        return root / "templates" / hashlib.sha256(repr(made_of).encode()).hexdigest() if root else None


environment().bytecode_cache = _Templates()
