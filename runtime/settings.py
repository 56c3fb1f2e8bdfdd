"""What the user's environment decides: the one place where environment variables are read."""

import os
from pathlib import Path

import platformdirs

from ..codegen.errors import check_path

STORE_VARIABLE = "TILEWRIGHT_STORE"
"""Folder of tuned records and trial histories."""
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
"""Folder of compiled kernels; can be deleted at any time."""


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
