"""No fault of the cache stops a compile; many builders at once, and the bound on its size."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compilers import IMAGE, SOURCE, FakeCompiler, entry, leftovers
from tilewright.codegen.errors import CompileError, DeviceError
from tilewright.codegen.source import KernelSource
from tilewright.runtime import settings
from tilewright.runtime.device import cache
from tilewright.runtime.device.cache import CacheWarning, compile_cached
from tilewright.runtime.device.protocol import Binary


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own."""
    with monkeypatch.context() as patch:
        patch.setenv(settings.CACHE_VARIABLE, str(tmp_path / "cache"))
        yield tmp_path / "cache"


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


# --- caches that cannot be written -----------------------------------------------------------------------------


def _refusing(code: int, root: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(path: Any, *rest: Any, **more: Any) -> Any:
        if root in Path(os.fspath(path)).parents and not Path(path).exists():
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **more)

    return refuse


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_cache_that_cannot_be_written_costs_one_warning(
    root: Path, compiler: FakeCompiler, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = compile_cached(compiler, SOURCE)
    other = replace(SOURCE, code=f"// other {code}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", _refusing(code, root, os.mkdir))
        with pytest.warns(CacheWarning) as caught:
            binary = compile_cached(compiler, other)
        assert len(caught) == 1
        assert str(root) in str(caught[0].message)
        assert os.strerror(code) in str(caught[0].message)
        assert binary.image == IMAGE
        assert root not in Path(compiler.builds[-1]).parents
        # Later calls do not warn: they use the entries of the cache, and what was compiled aside.
        assert compile_cached(compiler, SOURCE) == replace(cached, seconds=0.0)
        assert compile_cached(compiler, other) == replace(binary, seconds=0.0)
        assert len(compiler.builds) == 2
    assert leftovers(root) == []


@pytest.mark.parametrize("at", ["kernel.bin", "info.json"])
def test_a_disk_that_fills_up_while_writing(
    root: Path, compiler: FakeCompiler, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes

    def fill(path: Path, data: bytes) -> int:
        if path.name == at and root in path.parents:
            real(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill)
        with pytest.warns(CacheWarning, match="No space left"):
            assert compile_cached(compiler, replace(SOURCE, code=f"// {at}")).image == IMAGE
    assert leftovers(root) == []
    assert not any(path.is_file() for path in root.rglob("*"))


def test_a_compiler_that_fails_for_a_full_disk_runs_again_elsewhere(
    root: Path, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compiler.build

    def build(source: KernelSource, folder: str) -> Binary:
        if root in Path(folder).parents:
            raise CompileError("ld: final link failed: No space left on device")
        return real(source, folder)

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "build", build)
        patch.setattr(cache, "_probe", full)
        with pytest.warns(CacheWarning):
            assert compile_cached(compiler, replace(SOURCE, code="// full")).image == IMAGE


def test_nowhere_to_write_is_one_line(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.warns(CacheWarning),
        pytest.raises(DeviceError, match=r"nowhere to compile gemm: No space left.*; TMPDIR or TILEWRIGHT_C") as caught,
    ):
        compile_cached(compiler, SOURCE)
    assert "\n" not in str(caught.value)


def test_a_cache_that_is_a_file(root: Path, compiler: FakeCompiler) -> None:
    root.write_text("x")
    with pytest.warns(CacheWarning):
        assert compile_cached(compiler, replace(SOURCE, code="// file")).image == IMAGE
    assert root.read_text() == "x"


@pytest.mark.parametrize("mode", [0o1777, 0o1755, 0o777, 0o700], ids=oct)
def test_a_folder_of_another_user_is_no_cache_though_it_is_sticky(
    root: Path, compiler: FakeCompiler, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    root.chmod(mode)
    if os.geteuid() == 0:
        os.chown(root, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="not this user's folder"):
        binary = compile_cached(compiler, replace(SOURCE, code=f"// of another {mode}"))
    assert binary.image == IMAGE
    assert root not in Path(compiler.builds[-1]).parents
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("below", ["", "cache"])
def test_another_users_link_leads_to_no_cache(
    root: Path, compiler: FakeCompiler, below: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a link may lead to one's own home, whose mode would change."""
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    home.chmod(0o775)
    link.symlink_to(home)
    if os.geteuid() == 0:
        os.chown(link, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: link.lstat().st_uid + 1)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(link / below))
    with pytest.warns(CacheWarning, match=f"another user's link: {link}"):
        binary = compile_cached(compiler, replace(SOURCE, code=f"// by a link {below}"))
    assert binary.image == IMAGE
    assert (list(home.iterdir()), home.stat().st_mode & 0o777) == ([], 0o775)


def test_ones_own_link_leads_to_a_cache(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "link" / "cache"))
    compile_cached(compiler, SOURCE)
    assert (tmp_path / "there" / "cache").is_dir()


def test_a_sticky_folder_of_the_systems_is_a_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder such as /tmp others can add names, but cannot touch ours."""
    root.mkdir(mode=0o700)
    root.chmod(0o1777)
    system = SimpleNamespace(st_mode=root.stat().st_mode, st_uid=0)
    monkeypatch.setattr(Path, "stat", lambda self, **options: system)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    cache._make_private(root)
    system.st_uid = 54321
    with pytest.raises(PermissionError):
        cache._make_private(root)


def test_what_a_killed_process_left_is_removed_by_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("tilewright-abc-1", "tilewright-abc-2", "tilewright-abcd-1", "tilewright-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.so").write_text("")
    cache.remove_private("abc")
    assert sorted(path.name for path in tmp_path.glob("tilewright-*")) == ["tilewright-abcd-1", "tilewright-x"]


def test_the_private_folder_goes_with_the_process(root: Path) -> None:
    root.write_text("x")
    code = """
import warnings
from tilewright.runtime.device.cache import _private_root
import os
print(_private_root(os.getpid()))
if os.fork() == 0:
    raise SystemExit  # a child's end leaves its parent's folder
os.wait()
assert _private_root(os.getpid()).is_dir()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    folder = Path(done.stdout.split()[0])
    assert folder.name.startswith("tilewright-")
    assert not folder.exists()


# --- many builders, and a bound --------------------------------------------------------------------------------


def test_builders_of_the_same_kernel_at_once(root: Path) -> None:
    barrier = threading.Barrier(8)

    class Slow(FakeCompiler):
        def build(self, source: KernelSource, folder: str) -> Binary:
            barrier.wait(10)  # all have found nothing before the first is done
            return super().build(source, folder)

    compiler = Slow()
    with ThreadPoolExecutor(8) as pool:
        binaries = list(pool.map(lambda _: compile_cached(compiler, SOURCE), range(8)))
    assert len(compiler.builds) == 8
    assert {binary.image for binary in binaries} == {IMAGE}
    assert (entry(root, compiler) / "kernel.bin").read_bytes() == IMAGE
    assert leftovers(root) == []
    assert compile_cached(FakeCompiler(), SOURCE).image == IMAGE


def test_a_bad_entry_that_appears_meanwhile_is_replaced(root: Path) -> None:
    class Racing(FakeCompiler):
        def build(self, source: KernelSource, folder: str) -> Binary:
            entry(root, self).mkdir()
            (entry(root, self) / "info.json").write_text("{}")
            return super().build(source, folder)

    compile_cached(Racing(), SOURCE)
    quiet = FakeCompiler()
    assert compile_cached(quiet, SOURCE).image == IMAGE
    assert quiet.builds == []


def _fill(root: Path, compiler: FakeCompiler, count: int) -> list[Path]:
    folders = []
    for number in range(count):
        source = replace(SOURCE, code=f"// {number}")
        compile_cached(compiler, source)
        folders.append(entry(root, compiler, source))
        os.utime(folders[-1], (1e9 + number, 1e9 + number))
    return folders


def test_past_the_bound_the_oldest_go_first(root: Path, compiler: FakeCompiler) -> None:
    folders = _fill(root, compiler, 8)
    compile_cached(compiler, replace(SOURCE, code="// 0"))  # used again: now the youngest
    size = max(sum(path.stat().st_size for path in folder.iterdir()) for folder in folders)
    cache._prune(root, 8 * size)
    assert all(folder.exists() for folder in folders)
    cache._prune(root, 6 * size)
    assert [folder.exists() for folder in folders] == [True, False, False, False, False, True, True, True]
    assert leftovers(root) == []


def test_what_killed_builders_left_is_removed_after_a_day(root: Path, compiler: FakeCompiler) -> None:
    _fill(root, compiler, 1)
    old, young = root / "ab" / ".old", root / "ab" / ".young"
    for path in (old, young):
        path.mkdir(parents=True)
        (path / "kernel.cu").write_text("x")
    os.utime(old, (1e9, 1e9))
    cache._prune(root, 1 << 30)
    assert not old.exists()
    assert young.exists()


def test_pruning_happens_now_and_then(root: Path, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[Path] = []
    monkeypatch.setattr(cache, "_prune", lambda root, bound: pruned.append(root))
    _fill(root, compiler, 3)
    assert pruned == [root]
    two_hours_ago = time.time() - 7200
    os.utime(root / "pruned", (two_hours_ago, two_hours_ago))
    compile_cached(compiler, replace(SOURCE, code="// more"))
    assert pruned == [root, root]
    compile_cached(compiler, replace(SOURCE, code="// more"))
    assert pruned == [root, root]
