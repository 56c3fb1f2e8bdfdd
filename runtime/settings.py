"""Settings from environment variables, which are read here alone."""

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
"""Treatment of a shape that was not tuned, at its first use: `predict` (the default) or `measure`."""
FirstUse = Literal["predict", "measure"]
FIRST_USES: tuple[FirstUse, ...] = ("predict", "measure")

VENDOR_VARIABLE = "TILEWRIGHT_VENDOR"
"""Whether the vendor's library computes the products for which it is faster: `auto` (the default) or `never`."""
Vendor = Literal["auto", "never"]
VENDORS: tuple[Vendor, ...] = ("auto", "never")

CXX_VARIABLE, CC_VARIABLE = "CXX", "CC"
"""Compilers of C++ and C with their arguments, as in a shell; they take precedence over compilers on PATH."""


def vendor(argument: str | None = None) -> str:
    """One of VENDORS: the argument `vendor` of a call, else TILEWRIGHT_VENDOR. Raises ConfigError for another text."""
    return _one_of("vendor", argument, VENDOR_VARIABLE, VENDORS)


def first_use(argument: str | None = None) -> str:
    """One of FIRST_USES: the argument `first_use` of a call, else TILEWRIGHT_FIRST_USE. Raises ConfigError for another
    text."""
    return _one_of("first_use", argument, FIRST_USE_VARIABLE, FIRST_USES)


def compiler(variable: str) -> str:
    """The value of CXX or CC without blanks around it; empty if it is not set."""
    return os.environ.get(variable, "").strip()


def completed_line() -> tuple[str, str]:
    """The line up to the cursor that bash completes, and the characters at which bash splits words."""
    return os.environ.get("COMP_LINE", ""), os.environ.get("COMP_WORDBREAKS", "")


def compiler_environment(folder: str) -> dict[str, str]:
    """The environment of a compiler, whose temporary files go to `folder`: a full or missing /tmp then does no harm,
    nor does an end by a time limit. Without a PATH, the compiler finds its tools where Python finds the compiler."""
    return {"PATH": os.defpath, **os.environ, "TMPDIR": folder}


def store_folder() -> Path | None:
    """Folder of records: TILEWRIGHT_STORE, else the user's data folder; None for a user without a home. The folder is
    not made. Raises ConfigError for the home of an unknown user."""
    return _folder(STORE_VARIABLE) or _of_user(platformdirs.user_data_path)


def cache_folder() -> Path | None:
    """Folder of compiled kernels: TILEWRIGHT_CACHE, else the user's cache folder; None for a user without a home. The
    folder is not made. Raises ConfigError for the home of an unknown user."""
    return _folder(CACHE_VARIABLE) or _of_user(platformdirs.user_cache_path)


def _one_of(name: str, argument: str | None, variable: str, choices: tuple[str, ...]) -> str:
    if argument is not None:
        check(argument in choices, f"{name} must be {' or '.join(map(repr, choices))}, got {argument!r}")
        return argument
    value = os.environ.get(variable, "") or choices[0]
    check(value in choices, f"{variable} must be {' or '.join(choices)}, got {value!r}")
    return value


def _folder(variable: str) -> Path | None:
    folder = check_path(variable, os.environ.get(variable) or None)
    return absolute(variable, folder) if folder else None


def _of_user(folder_of: Callable[..., Path]) -> Path | None:
    """The package's folder among those of the user's programs. Without a home, platformdirs raises RuntimeError, or in
    old versions returns a folder relative to the current one."""
    try:
        folder = folder_of("tilewright", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
