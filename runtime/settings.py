"""What the user's environment decides: the one place where environment variables are read."""

import os
from pathlib import Path

import platformdirs

from ..codegen.errors import absolute, check, check_path

STORE_VARIABLE = "TILEWRIGHT_STORE"
"""Folder of tuned records and trial histories."""
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
"""Folder of compiled kernels and templates; can be deleted at any time."""

FIRST_USE_VARIABLE = "TILEWRIGHT_FIRST_USE"
"""What happens at the first use of a shape that was not tuned: `predict` (the default) or `measure`."""
FIRST_USES = ("predict", "measure")

VENDOR_VARIABLE = "TILEWRIGHT_VENDOR"
"""Whether products go to the vendor's library where it is known to be faster: `auto` (the default) or `never`."""
VENDORS = ("auto", "never")


def vendor() -> str:
    """TILEWRIGHT_VENDOR, one of VENDORS. Raises ConfigError for anything else."""
    return _one_of(VENDOR_VARIABLE, VENDORS)


def first_use() -> str:
    """TILEWRIGHT_FIRST_USE, one of FIRST_USES. Raises ConfigError for anything else."""
    return _one_of(FIRST_USE_VARIABLE, FIRST_USES)


def store_folder() -> Path:
    """Where records are kept: TILEWRIGHT_STORE, else the user's data folder. Not made here.
    Raises ConfigError for a folder of a user who is not there."""
    return _folder(STORE_VARIABLE) or platformdirs.user_data_path("tilewright", appauthor=False)


def cache_folder() -> Path:
    """Where compiled kernels are kept: TILEWRIGHT_CACHE, else the user's cache folder. Not made here.
    Raises ConfigError for a folder of a user who is not there."""
    return _folder(CACHE_VARIABLE) or platformdirs.user_cache_path("tilewright", appauthor=False)


def _one_of(variable: str, known: tuple[str, ...]) -> str:
    value = os.environ.get(variable, "") or known[0]
    check(value in known, f"{variable} must be {' or '.join(known)}, got {value!r}")
    return value


def _folder(variable: str) -> Path | None:
    folder = check_path(variable, os.environ.get(variable) or None)
    return absolute(variable, folder) if folder else None
