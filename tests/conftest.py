"""Fixtures of all tests. Each test has folders of its own, so that no test reads or changes those of the user."""

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
    """Collects the root as a plain folder. Pytest would import it as a package under the name of the folder."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_PlainRoot())
    for mark in ("leaks_references", "thread_unsafe", "valgrind_error"):  # some of NumPy's own tests run here
        config.addinivalue_line("markers", f"{mark}: a mark of NumPy's tests")
    # Hundreds of short processes load NumPy, whose BLAS would start threads in each that wait in a loop.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores it for jobs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup ignores it, which processes of tests would inherit
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need NVRTC where CuPy is missing. Where `-m` names them, they fail instead."""
    if item.get_closest_marker("nvrtc") and "nvrtc" not in item.config.option.markexpr:
        pytest.importorskip("cupy")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, do not import modules without fast tests."""
    if not _is_fast(config) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    return not any(word in text for word in ("pytest.mark.fast", "Conformance)")) or None


def _is_fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "fast"


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test marked `fast` that starts a process, such as a compiler. Launches and the trees of the ranker do
    without the extension in C, which would be compiled."""
    if request.node.get_closest_marker("fast"):

        def refused(*args: object, **kwargs: object) -> None:
            pytest.fail("a test marked fast starts no process")  # `except Exception` does not catch this

        starts = (subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn"), (util, "spawnv_passfds")
        for owner, name in starts:
            monkeypatch.setattr(owner, name, refused)
        monkeypatch.setattr(launcher, "module", lambda: None)


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of compiled kernels that all tests of the run share."""
    return run_folder(tmp_path_factory) / "cache"


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that all processes of the run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for programs that one test builds for all tests of the run."""
    return run_folder(tmp_path_factory) / "shared"


@pytest.fixture(scope="session", autouse=True)
def quick_headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Precompile the headers of kernels, and let `prepare` use kernels that a test compiled together.

    Processes that tests start read the headers themselves. With `-m fast` no compiler is started.
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
    """Set TILEWRIGHT_STORE to a folder of the test, TILEWRIGHT_CACHE to that of the run, TILEWRIGHT_VENDOR to never."""
    store = tmp_path / "store"
    monkeypatch.setenv("TILEWRIGHT_STORE", str(store))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(session_cache))
    monkeypatch.setenv("TILEWRIGHT_VENDOR", "never")  # our kernels compute products on the processor, not NumPy
    yield store
    assert os.environ["TILEWRIGHT_STORE"] == str(store)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `tilewright` with arguments, in this process."""
    return caller(capsys)
