"""What the user's environment decides: the one place where environment variables are read."""

import os
from pathlib import Path

import platformdirs

STORE_VARIABLE = "TILEWRIGHT_STORE"
"""Folder of tuned records and trial histories."""
CACHE_VARIABLE = "TILEWRIGHT_CACHE"
"""Folder of compiled kernels; can be deleted at any time."""


def store_folder() -> Path:
    """Where records are kept: TILEWRIGHT_STORE, else the user's data folder. Not made here."""
    return _folder(STORE_VARIABLE) or platformdirs.user_data_path("tilewright", appauthor=False)


def cache_folder() -> Path:
    """Where compiled kernels are kept: TILEWRIGHT_CACHE, else the user's cache folder. Not made here."""
    return _folder(CACHE_VARIABLE) or platformdirs.user_cache_path("tilewright", appauthor=False)


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "")
    # Absolute, so that a later change of the working directory does not move it.
    return Path(os.path.expanduser(value)).absolute() if value else None
