"""Folders of the store and the cache, which are named without being created."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.runtime import settings
from tilewright.runtime.store.store import Store

FOLDERS = [
    (settings.STORE_VARIABLE, settings.store_folder, "XDG_DATA_HOME"),
    (settings.CACHE_VARIABLE, settings.cache_folder, "XDG_CACHE_HOME"),
]
BOTH = pytest.mark.parametrize(("variable", "folder", "xdg"), FOLDERS, ids=["store", "cache"])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A monkeypatch that is undone before other fixtures look at the environment."""
    with monkeypatch.context() as patch:
        yield patch


@BOTH
def test_the_variable_decides(
    variable: str, folder: Callable[[], Path], xdg: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv(xdg, str(tmp_path / "elsewhere"))
    environment.setenv(variable, str(tmp_path / "there"))
    assert folder() == tmp_path / "there"
    assert not folder().exists()


@BOTH
def test_a_relative_folder_and_a_tilde_become_absolute(
    variable: str, folder: Callable[[], Path], xdg: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.chdir(tmp_path)
    environment.setenv(variable, "here")
    assert folder() == tmp_path / "here"
    environment.setenv("HOME", str(tmp_path))
    environment.setenv(variable, "~/home")
    assert folder() == tmp_path / "home"
    environment.setenv(variable, "~nobody-of-this-name/x")
    with pytest.raises(ConfigError, match=f"{variable} begins with ~ and no user of this system, got '~nobody-of-"):
        folder()


@BOTH
def test_a_relative_folder_in_a_folder_that_is_gone(
    variable: str, folder: Callable[[], Path], xdg: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    environment.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    environment.setenv(variable, "here")
    with pytest.raises(ConfigError, match=f"^{variable} is 'here', in the current folder, which was deleted: give a "):
        folder()
    environment.setenv(variable, str(tmp_path))
    assert folder() == tmp_path


def test_a_relative_store_in_a_folder_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such a store would hold nothing, without a warning, and change with the working directory."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert Store(Path("rel")).root == tmp_path / "gone" / "rel"
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match=r"^store is 'rel', in the current folder, which was deleted: give a path"):
        Store(Path("rel"))


@BOTH
@pytest.mark.parametrize("empty", [True, False])
def test_unset_and_empty_mean_the_users_folder(
    variable: str, folder: Callable[[], Path], xdg: str, empty: bool, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if empty:
        environment.setenv(variable, "")
    else:
        environment.delenv(variable)
    if sys.platform == "linux":
        environment.setenv(xdg, str(tmp_path))
        assert folder() == tmp_path / "tilewright"
    assert folder().is_absolute()
    assert "tilewright" in folder().parts


@BOTH
def test_old_platformdirs_without_a_home(
    variable: str, folder: Callable[[], Path | None], xdg: str, environment: pytest.MonkeyPatch
) -> None:
    """Version 4.0 gives a folder named `~` in the current one; later versions raise RuntimeError."""
    environment.delenv(variable)
    for name in ("user_data_path", "user_cache_path"):
        environment.setattr(settings.platformdirs, name, lambda *arguments, **keywords: Path("~/x/tilewright"))
    assert folder() is None


def test_importing_makes_no_folder(tmp_path: Path) -> None:
    code = "import tilewright.runtime.settings, tilewright.runtime.store.store, tilewright.runtime.device.cache"
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop(settings.STORE_VARIABLE, None)
    environment.pop(settings.CACHE_VARIABLE, None)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []
