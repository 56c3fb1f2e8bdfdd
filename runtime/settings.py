"""What the user's environment decides: the one place where environment variables are read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import platformdirs

from ..codegen.errors import absolute, check, check_path

STORE_VARIABLE = "TILEWRIGHT_STORE"
"""Folder of tuned records and trial histories."""
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
"""Folder of compiled kernels and templates; can be deleted at any time."""

FIRST_USE_VARIABLE = "TILEWRIGHT_FIRST_USE"
"""What happens at the first use of a shape that was not tuned: `predict` (the default) or `measure`."""
FirstUse = Literal["predict", "measure"]
FIRST_USES: tuple[FirstUse, ...] = ("predict", "measure")

VENDOR_VARIABLE = "TILEWRIGHT_VENDOR"
"""Whether products go to the vendor's library where it is known to be faster: `auto` (the default) or `never`."""
Vendor = Literal["auto", "never"]
VENDORS: tuple[Vendor, ...] = ("auto", "never")

CXX_VARIABLE, CC_VARIABLE = "CXX", "CC"
"""Compilers of C++ and C with their arguments, in the words of a shell; they come before those that are on PATH."""


def vendor() -> str:
    """TILEWRIGHT_VENDOR, one of VENDORS. Raises ConfigError for anything else."""
    return _one_of(VENDOR_VARIABLE, VENDORS)


def first_use() -> str:
    """TILEWRIGHT_FIRST_USE, one of FIRST_USES. Raises ConfigError for anything else."""
    return _one_of(FIRST_USE_VARIABLE, FIRST_USES)


def compiler(variable: str) -> str:
    """The value of CXX or CC without blanks around it; empty where it is unset."""
    return os.environ.get(variable, "").strip()


def completed_line() -> tuple[str, str]:
    """Line that bash asks to have completed, up to its cursor, and the characters at which bash parts words."""
    return os.environ.get("COMP_LINE", ""), os.environ.get("COMP_WORDBREAKS", "")


def compiler_environment(folder: str) -> dict[str, str]:
    """The environment of a compiler. Its own temporary files go to this folder: a full or missing /tmp, and an end by a
    time limit, then do no harm. Without a PATH it finds its assembler and linker as Python finds the compiler."""
    return {"PATH": os.defpath, **os.environ, "TMPDIR": folder}


def store_folder() -> Path | None:
    """Where records are kept: TILEWRIGHT_STORE, else the user's data folder; None for a user without a home. Not made
    here. Raises ConfigError for a folder of a user who is not there."""
    return _folder(STORE_VARIABLE) or _of_user(platformdirs.user_data_path)


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: TILEWRIGHT_CACHE, else the user's cache folder; None for a user without a home.
    Not made here. Raises ConfigError for a folder of a user who is not there."""
    return _folder(CACHE_VARIABLE) or _of_user(platformdirs.user_cache_path)


def _one_of(variable: str, known: tuple[str, ...]) -> str:
    value = os.environ.get(variable, "") or known[0]
    check(value in known, f"{variable} must be {' or '.join(known)}, got {value!r}")
    return value


def _folder(variable: str) -> Path | None:
    folder = check_path(variable, os.environ.get(variable) or None)
    return absolute(variable, folder) if folder else None


def _of_user(folder_of: Callable[..., Path]) -> Path | None:
    """The package's folder beside those of the user's other programs. Without a home, platformdirs raises RuntimeError,
    or gives a folder relative to the current one, as its old versions do."""
    try:
        folder = folder_of("tilewright", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
