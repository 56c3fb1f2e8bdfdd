"""Emitted files: their digests, and how a new version replaces them and no other file."""

import contextlib
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from .errors import check
from .reading import NotPlainError, read_plain

TEMPORARY_SUFFIX = ".tmp"
"""Ending of a file that is still being written, or that a killed writer left."""
_PLACEHOLDER = "@file digest@"
_MARK = re.compile(r"^(?://|#) Written by tilewright, file digest ([0-9a-f]{16})\.", re.MULTILINE)
_NAME = re.compile(r"^(?://|#) +tilewright emit .*--name (\w+)", re.MULTILINE)
_FILENAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.(?:cu|cuh|h|txt|pc\.in)")
_MOST_BYTES = 64 << 20
"""Most bytes of a file that may be an emitted one: four times the size of a bundle of all shipped records."""
_MARK_WITHIN = 1000
"""Letters from the start of a file in which its mark is looked for."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The files that serve kernels to C and C++. Raises ConfigError for a filename that no emitted file has."""

    files: tuple[tuple[str, str], ...]
    """Filenames and texts, the one with the functions first, then its header."""

    def __post_init__(self) -> None:
        for filename, _ in self.files:
            check(bool(_FILENAME.fullmatch(filename)), f"not the name of an emitted file: {filename!r}")

    def write(self, folder: Path, overwrite: bool = False) -> tuple[Path, ...]:
        """Write the files into `folder`, which is made if need be, and return their paths.

        Raises ConfigError, with nothing written, if a file there is not tilewright's, was edited since or belongs to a
        bundle with another name, unless `overwrite`. Raises OSError, which names the file, if one cannot be written;
        all files are then as they were, unless a file cannot be replaced after others were.
        """
        paths = tuple(folder / filename for filename, _ in self.files)
        for path, (_, new) in zip(paths, self.files, strict=True):
            check(not path.is_dir(), f"{path} is a folder")
            if not overwrite and (path.exists() or path.is_symlink()):
                text = _untouched(path)
                remedy = "not overwritten without overwrite (--overwrite)"
                check(bool(text), f"{path} is not tilewright's or was edited since: {remedy}")
                owner = _bundle_of(text)
                check(owner == _bundle_of(new), f"{path} is of {owner}: {remedy}; give each bundle a folder")
        folder.mkdir(parents=True, exist_ok=True)
        temporaries: list[Path] = []
        try:
            for path, (_, text) in zip(paths, self.files, strict=True):
                temporaries.append(written_aside(path, text.encode()))
            for path, temporary in zip(paths, temporaries, strict=True):
                os.replace(temporary, path)  # a link there is replaced, never followed
        finally:
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)
        return paths


def sealed(text: str) -> str:
    """A file's text with its digest filled in."""
    return text.replace(_PLACEHOLDER, _digest(text), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _untouched(path: Path) -> str:
    """The text of the file at `path` if tilewright wrote it and nobody changed it since; else empty, as for a link."""
    try:
        text = read_plain(path, _MOST_BYTES).decode().replace("\r\n", "\n")  # a checkout may have made CRLF
    except (NotPlainError, UnicodeDecodeError):
        return ""
    mark = _MARK.search(text, 0, _MARK_WITHIN)
    same = mark is not None and mark[1] == _digest(text[: mark.start(1)] + _PLACEHOLDER + text[mark.end(1) :])
    return text if same else ""


def _bundle_of(text: str) -> str:
    """The name of the bundle that a file belongs to; empty where it names none."""
    command = _NAME.search(text)
    return command[1] if command else ""


def written_aside(path: Path, data: bytes) -> Path:
    """Write `data` to a new file beside `path`, sync it to the disk and return its path; the caller renames it. Raises
    OSError, which names `path`, and then leaves no file."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return aside
