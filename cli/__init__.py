"""The command line."""

from .app import main, main_tune

__all__ = ["main", "main_tune"]
