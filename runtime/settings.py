"""What the user's environment decides: the one place where environment variables are read."""

import os
from pathlib import Path

import platformdirs

from ..codegen.errors import check, check_path

STORE_VARIABLE = "TILEWRIGHT_STORE"
"""Folder of tuned records and trial histories."""
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
"""Folder of compiled kernels; can be deleted at any time."""

FIRST_USE_VARIABLE = "TILEWRIGHT_FIRST_USE"
"""What happens at the first use of a shape that was not tuned: `predict` (the default) or `measure`."""
FIRST_USES = ("predict", "measure")


def first_use() -> str:
    """TILEWRIGHT_FIRST_USE, one of FIRST_USES. Raises ConfigError for anything else."""
    value = os.environ.get(FIRST_USE_VARIABLE, "") or FIRST_USES[0]
    check(value in FIRST_USES, f"{FIRST_USE_VARIABLE} must be {' or '.join(FIRST_USES)}, got {value!r}")
    return value


def store_folder() -> Path:
    """Where records are kept: TILEWRIGHT_STORE, else the user's data folder. Not made here.
    Raises ConfigError for a folder of a user who is not there."""
    return _folder(STORE_VARIABLE) or platformdirs.user_data_path("tilewright", appauthor=False)


def cache_folder() -> Path:
    """Where compiled kernels are kept: TILEWRIGHT_CACHE, else the user's cache folder. Not made here.
    Raises ConfigError for a folder of a user who is not there."""
    return _folder(CACHE_VARIABLE) or platformdirs.user_cache_path("tilewright", appauthor=False)


def _folder(variable: str) -> Path | None:
    folder = check_path(variable, os.environ.get(variable) or None)
    # Absolute, so that a later change of the working directory does not move it.
    return folder.absolute() if folder else None
