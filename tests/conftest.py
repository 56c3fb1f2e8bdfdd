"""Fixtures that every test gets: folders of its own, so that no test sees or touches the user's."""

import os
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

import pytest
from commands import Run, caller
from quick import compiled, precompiled
from tilewright.runtime.device import host_compiler, launcher
from tilewright.runtime.product import kernel


class _PlainRoot:
    """The checkout is the package `tilewright`; pytest would import it under the name of its folder, if it can."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_PlainRoot())
    for mark in ("leaks_references", "thread_unsafe", "valgrind_error"):  # NumPy's own tests, of which some run here
        config.addinivalue_line("markers", f"{mark}: a mark of NumPy's tests")
    # Hundreds of short processes load NumPy, whose BLAS would start threads in each and have them wait in a loop.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts jobs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup does: processes of tests would inherit it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need NVRTC are skipped where CuPy is missing, unless `-m` names them: then they fail."""
    if item.get_closest_marker("nvrtc") and "nvrtc" not in item.config.option.markexpr:
        pytest.importorskip("cupy")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, modules that hold no such test are not imported."""
    if not _is_fast(config) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    return not any(word in text for word in ("pytest.mark.fast", "Conformance)")) or None


def _is_fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "fast"


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test marked `fast` that starts a process, such as a compiler, fails. Launches and the ranker's trees have no
    extension in C, which would be compiled."""
    if request.node.get_closest_marker("fast"):

        def refused(*given: object, **named: object) -> None:
            pytest.fail("a test marked fast starts no process")  # past `except Exception`

        starts = (subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn"), (util, "spawnv_passfds")
        for owner, name in starts:
            monkeypatch.setattr(owner, name, refused)
        monkeypatch.setattr(launcher, "module", lambda: None)


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled kernels for the whole run: what one test compiled, the next one finds."""
    return run_folder(tmp_path_factory) / "cache"


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole run: what is written there, its other processes find."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what tests of the whole run build once."""
    return run_folder(tmp_path_factory) / "shared"


@pytest.fixture(scope="session", autouse=True)
def quick_headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The compiler reads the headers of every kernel once; processes that tests start read it as ever.

    With `-m fast` no compiler is started. Kernels that a test has compiled together are found by `prepare`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if _is_fast(request.config):
            yield
            return
        patch.setattr(kernel, "compile_cached", compiled)
        patch.setattr(host_compiler, "_HEADERS", precompiled(run_folder(tmp_path_factory) / "headers"))
        yield


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TILEWRIGHT_STORE is the test's own folder, TILEWRIGHT_CACHE the run's; TILEWRIGHT_VENDOR is never."""
    store = tmp_path / "store"
    monkeypatch.setenv("TILEWRIGHT_STORE", str(store))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(session_cache))
    monkeypatch.setenv("TILEWRIGHT_VENDOR", "never")  # products of the processor are by our kernels, not by NumPy
    yield store
    assert os.environ["TILEWRIGHT_STORE"] == str(store)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `tilewright` with arguments, in this process."""
    return caller(capsys)
