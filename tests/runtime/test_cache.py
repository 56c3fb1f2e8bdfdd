"""The cache of compiled kernels: what it keeps, what it refuses, and that no fault of it ever stops a compile."""

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tilewright.codegen.errors import CompileError, DeviceError
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime import cache, settings
from tilewright.runtime.cache import CacheWarning, compile_cached, entry_key
from tilewright.runtime.device import Binary

SOURCE = KernelSource("gemm", "// text", LaunchConfig((1, 1, 1), (32, 1, 1)), "naive.cu.jinja")
IMAGE = b"\x7fELF" + bytes(range(256))


@dataclass
class FakeCompiler:
    """Counts what it is asked for."""

    identity: str = "fake 1.0 -O2"
    suffix: str = "bin"
    error: Exception | None = None
    builds: list[str] = field(default_factory=list)

    def build(self, source: KernelSource, folder: str) -> Binary:
        self.builds.append(folder)
        if self.error is not None:
            raise self.error
        path = Path(folder, f"kernel.{self.suffix}")
        path.write_bytes(IMAGE)
        return Binary(IMAGE, str(path), registers=40, spill_bytes=8, smem_bytes=None, seconds=1.5)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own."""
    with monkeypatch.context() as patch:
        patch.setenv(settings.CACHE_VARIABLE, str(tmp_path / "cache"))
        yield tmp_path / "cache"


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


def entry(root: Path, compiler: FakeCompiler, source: KernelSource = SOURCE) -> Path:
    key = entry_key(compiler, source)
    return root / key[:2] / key


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob(".*")]


def test_a_second_time_it_is_not_compiled(root: Path, compiler: FakeCompiler) -> None:
    first = compile_cached(compiler, SOURCE)
    second = compile_cached(compiler, SOURCE)
    assert len(compiler.builds) == 1
    assert (first.seconds, second.seconds) == (1.5, 0.0)
    assert replace(first, seconds=0.0) == second
    assert Path(second.path).read_bytes() == second.image == IMAGE
    assert (second.registers, second.spill_bytes, second.smem_bytes) == (40, 8, None)


def test_an_entry_is_a_folder_a_person_can_read(root: Path, compiler: FakeCompiler) -> None:
    compile_cached(compiler, SOURCE)
    folder = entry(root, compiler)
    assert sorted(path.name for path in folder.iterdir()) == ["info.json", "kernel.bin", "kernel.cu"]
    assert (folder / "kernel.cu").read_text() == SOURCE.code
    info = json.loads((folder / "info.json").read_text())
    assert info["sha256"] == hashlib.sha256(IMAGE).hexdigest()
    assert info["compiler"] == compiler.identity
    assert leftovers(root) == []


def test_only_the_user_may_look_inside(root: Path, compiler: FakeCompiler) -> None:
    compile_cached(compiler, SOURCE)
    for folder in (root, entry(root, compiler).parent, entry(root, compiler)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_everything_a_binary_depends_on_is_in_the_key(compiler: FakeCompiler) -> None:
    keys = {
        entry_key(compiler, SOURCE),
        entry_key(compiler, replace(SOURCE, name="other")),
        entry_key(compiler, replace(SOURCE, code="// other")),
        entry_key(replace(compiler, identity="fake 1.1 -O2"), SOURCE),
        entry_key(replace(compiler, suffix="so"), SOURCE),
    }
    assert len(keys) == 5
    assert entry_key(compiler, SOURCE) == entry_key(
        compiler, replace(SOURCE, launch=LaunchConfig((2, 1, 1), (8, 1, 1)))
    )


@pytest.mark.parametrize("error", [CompileError("does not compile"), DeviceError("no compiler")])
def test_what_the_compiler_raises_is_raised_and_nothing_stays(
    root: Path, compiler: FakeCompiler, error: Exception
) -> None:
    compiler.error = error
    with pytest.raises(type(error)):
        compile_cached(compiler, SOURCE)
    assert len(compiler.builds) == 1
    assert leftovers(root) == []
    assert not entry(root, compiler).exists()


# --- entries that are not what they should be ------------------------------------------------------------------


def _write(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def _info(**changes: Any) -> Callable[[Path], None]:
    return _write("info.json", lambda data: json.dumps({**json.loads(data), **changes}).encode())


def _linked(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        outside = folder.parents[2] / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return damage


def _linked_folder(folder: Path) -> None:
    outside = folder.parents[2] / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)


def _file(folder: Path) -> None:
    folder.rename(folder.parents[2] / "outside")
    folder.write_text("a file")


def _emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _piped(folder: Path) -> None:
    (folder / "kernel.bin").unlink()
    os.mkfifo(folder / "kernel.bin")


DAMAGE = {
    "swapped binary": _write("kernel.bin", lambda data: b"\x7fELF evil"),
    "one bit flipped": _write("kernel.bin", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "truncated binary": _write("kernel.bin", lambda data: data[:50]),
    "empty binary": _write("kernel.bin", lambda data: b""),
    "truncated info": _write("info.json", lambda data: data[:20]),
    "deep info": _write("info.json", lambda data: b"[" * 60_000),
    "huge info": _write("info.json", lambda data: data + b" " * (1 << 16)),
    "info of another type": _write("info.json", lambda data: b"[]"),
    "info of another entry": _info(key="0" * 64),
    "wrong types": _info(registers="40"),
    "negative registers": _info(registers=-1),
    "linked binary": _linked("kernel.bin"),
    "linked info": _linked("info.json"),
    "linked folder": _linked_folder,
    "file for a folder": _file,
    "empty folder": _emptied,
    "pipe for a binary": _piped,
    "no binary": lambda folder: (folder / "kernel.bin").unlink(),
    "others may write": lambda folder: folder.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_entry_is_discarded_and_made_again(root: Path, compiler: FakeCompiler, damage: str) -> None:
    compile_cached(compiler, SOURCE)
    DAMAGE[damage](entry(root, compiler))
    outside = {path: path.stat().st_mtime_ns for path in (root.parent / "outside").rglob("*")}
    assert compile_cached(compiler, SOURCE).image == IMAGE
    assert len(compiler.builds) == 2
    assert not entry(root, compiler).is_symlink()
    assert leftovers(root) == []
    assert compile_cached(compiler, SOURCE).image == IMAGE
    assert len(compiler.builds) == 2
    assert outside == {path: path.stat().st_mtime_ns for path in (root.parent / "outside").rglob("*")}


def test_another_users_entry_is_not_run(root: Path, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cached(compiler, SOURCE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)
        with pytest.warns(CacheWarning, match="not this user's folder"):
            again = compile_cached(compiler, SOURCE)
    assert len(compiler.builds) == 2
    assert root not in Path(again.path).parents
    assert entry(root, compiler).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", [".", "kernel.bin", "info.json"])
def test_an_entry_given_by_another_user_is_discarded(root: Path, compiler: FakeCompiler, what: str) -> None:
    compile_cached(compiler, SOURCE)
    os.chown(entry(root, compiler) / what, 4242, 4242)
    compile_cached(compiler, SOURCE)
    assert len(compiler.builds) == 2
    assert entry(root, compiler).stat().st_uid == 0


def test_a_folder_that_others_may_write_is_closed_to_them(root: Path, compiler: FakeCompiler) -> None:
    root.mkdir()
    root.chmod(0o775)
    compile_cached(compiler, SOURCE)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def test_a_shared_temporary_folder_is_left_as_it_is(root: Path, compiler: FakeCompiler) -> None:
    root.mkdir()
    root.chmod(0o1777)
    compile_cached(compiler, SOURCE)
    assert stat.S_IMODE(root.stat().st_mode) == 0o1777
    assert stat.S_IMODE(entry(root, compiler).parent.stat().st_mode) == 0o700


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
    kept = compile_cached(compiler, SOURCE)
    other = replace(SOURCE, code=f"// other {code}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", _refusing(code, root, os.mkdir))
        with pytest.warns(CacheWarning) as caught:
            binary = compile_cached(compiler, other)
        assert len(caught) == 1
        assert str(root) in str(caught[0].message)
        assert os.strerror(code) in str(caught[0].message)
        assert Path(binary.path).read_bytes() == IMAGE
        assert root not in Path(binary.path).parents
        # From here on in silence; what the cache has is still used, and so is what was compiled aside.
        assert compile_cached(compiler, SOURCE) == replace(kept, seconds=0.0)
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


def test_a_compiler_that_fails_for_a_full_disk_is_asked_again_elsewhere(
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
        pytest.raises(DeviceError, match="nowhere to compile gemm: No space left") as caught,
    ):
        compile_cached(compiler, SOURCE)
    assert "\n" not in str(caught.value)


def test_a_cache_that_is_a_file(root: Path, compiler: FakeCompiler) -> None:
    root.write_text("x")
    with pytest.warns(CacheWarning):
        assert compile_cached(compiler, replace(SOURCE, code="// file")).image == IMAGE
    assert root.read_text() == "x"


def test_the_private_folder_goes_with_the_process(root: Path) -> None:
    root.write_text("x")
    code = """
import warnings
from tilewright.runtime.cache import _private_root
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
    assert {(binary.image, binary.path) for binary in binaries} == {(IMAGE, str(entry(root, compiler) / "kernel.bin"))}
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
