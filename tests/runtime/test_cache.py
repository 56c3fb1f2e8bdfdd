"""The cache of compiled kernels and templates: what it keeps, and which entries it refuses."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compilers import IMAGE, SOURCE, FakeCompiler, entry, leftovers
from quick import TYPICAL
from tilewright.codegen.environment import environment
from tilewright.codegen.errors import CompileError, DeviceError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime import settings
from tilewright.runtime.device import cache
from tilewright.runtime.device.cache import CacheWarning, compile_cached, entry_key


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own."""
    with monkeypatch.context() as patch:
        patch.setenv(settings.CACHE_VARIABLE, str(tmp_path / "cache"))
        yield tmp_path / "cache"


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


def test_a_kernel_is_compiled_once(root: Path, compiler: FakeCompiler) -> None:
    first = compile_cached(compiler, SOURCE)
    second = compile_cached(compiler, SOURCE)
    assert len(compiler.builds) == 1
    assert (first.seconds, second.seconds) == (1.5, 0.0)
    assert replace(first, seconds=0.0) == second
    assert (entry(root, compiler) / "kernel.bin").read_bytes() == second.image == IMAGE
    assert (second.registers, second.frame_bytes, second.smem_bytes) == (40, 8, None)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_another_users_cache_is_not_used(root: Path, compiler: FakeCompiler) -> None:
    compile_cached(compiler, SOURCE)
    os.chown(root, 4242, 4242)
    with pytest.warns(CacheWarning, match="not this user's folder"):
        binary = compile_cached(compiler, replace(SOURCE, code="// mine"))
    assert root not in Path(compiler.builds[-1]).parents
    assert binary.image == IMAGE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", [".", "kernel.bin", "info.json"])
def test_an_entry_owned_by_another_user_is_discarded(root: Path, compiler: FakeCompiler, what: str) -> None:
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


# ---- Templates that Jinja compiled ------------------------------------------------------------------------------


@pytest.fixture
def template_cache(root: Path) -> Iterator[Path]:
    """The test's cache, in which Jinja stores compiled templates."""
    yield root
    assert type(environment().bytecode_cache) is cache._Templates


def text() -> str:
    return render(Problem.parse("64x64x64"), parse("tiled:16"), TYPICAL["host"]).code


@pytest.fixture
def render_anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, int]]:
    """A function that renders as the next process would, and returns the text and the number of templates compiled."""
    compiled: list[str] = []
    real = environment()._compile

    def counted(source: str, filename: str) -> object:
        compiled.append(filename)
        return real(source, filename)

    monkeypatch.setattr(environment(), "_compile", counted)

    def rendered() -> tuple[str, int]:
        compiled.clear()
        assert environment().cache is not None
        environment().cache.clear()
        return text(), len(compiled)

    return rendered


def test_the_next_process_compiles_none(template_cache: Path, render_anew: Callable[[], tuple[str, int]]) -> None:
    first, count = render_anew()
    assert count > 3
    assert len(list((template_cache / "templates").iterdir())) == count
    assert (template_cache / "templates").stat().st_mode & 0o777 == 0o700
    assert render_anew() == (first, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes()[:40] + b"cos\nsystem\n" + file.read_bytes()[51:]),
        lambda file: (file.rename(f"{file}.real"), file.symlink_to(f"{file}.real")),
        lambda file: (file.unlink(), os.mkfifo(file)),
    ],
    ids=["empty", "short", "changed", "a link", "a pipe"],
)
def test_a_file_that_is_not_as_it_was_written_is_made_again(
    template_cache: Path, render_anew: Callable[[], tuple[str, int]], damage: Callable[[Path], object]
) -> None:
    first, _ = render_anew()
    damage(sorted((template_cache / "templates").iterdir())[0])
    assert render_anew() == (first, 1)
    assert render_anew() == (first, 0)


def test_another_users_file_is_not_run(
    template_cache: Path, render_anew: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, count = render_anew()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert render_anew() == (first, count)


@pytest.mark.parametrize("where", ["a file", "nobody's folder"])
def test_without_a_usable_cache_all_templates_are_compiled(
    template_cache: Path, render_anew: Callable[[], tuple[str, int]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "a file":
        template_cache.write_text("")
    else:
        monkeypatch.setenv(settings.CACHE_VARIABLE, "~nobody-of-that-name/cache")
    first, count = render_anew()
    assert render_anew() == (first, count)


def test_a_template_that_was_changed_is_compiled(
    render_anew: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    render_anew()
    loader = environment().loader
    assert loader is not None
    get_source = loader.get_source

    def changed(within: object, name: str) -> tuple[str, str | None, object]:
        source, file, current = get_source(environment(), name)
        return source + ("{# more #}" if name.startswith("tiled") else ""), file, current

    monkeypatch.setattr(loader, "get_source", changed)
    assert render_anew()[1] == 1
