"""Fixtures that every test gets: folders of its own, so that no test sees or touches the user's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled kernels for the whole run: what one test compiled, the next one finds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TILEWRIGHT_STORE is the test's own folder, TILEWRIGHT_CACHE the run's."""
    store = tmp_path / "store"
    monkeypatch.setenv("TILEWRIGHT_STORE", str(store))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(session_cache))
    yield store
    assert os.environ["TILEWRIGHT_STORE"] == str(store)
