"""Fixtures that every test gets: folders of its own, so that no test sees or touches the user's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


class _PlainRoot:
    """The checkout is the package `tilewright`; pytest would import it under the name of its folder, if it can."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_PlainRoot())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts jobs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
