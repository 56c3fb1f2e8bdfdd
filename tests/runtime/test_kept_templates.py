"""Templates that Jinja compiled are kept in the cache, and only what this user wrote whole is run from there."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from targets import TYPICAL
from tilewright.codegen.environment import environment
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime import settings
from tilewright.runtime.device import cache


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own."""
    with monkeypatch.context() as patch:
        patch.setenv(settings.CACHE_VARIABLE, str(tmp_path / "cache"))
        yield tmp_path / "cache"
    assert type(environment().bytecode_cache) is cache._Templates


def text() -> str:
    return render(Problem.parse("64x64x64"), parse("tiled:16"), TYPICAL["host"]).code


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, int]]:
    """A function that renders as the next process would: the text, and how many templates it compiled."""
    compiled: list[str] = []
    made = environment()._compile

    def noted(source: str, filename: str) -> object:
        compiled.append(filename)
        return made(source, filename)

    monkeypatch.setattr(environment(), "_compile", noted)

    def rendered() -> tuple[str, int]:
        compiled.clear()
        assert environment().cache is not None
        environment().cache.clear()
        return text(), len(compiled)

    return rendered


def test_the_next_process_compiles_none(root: Path, anew: Callable[[], tuple[str, int]]) -> None:
    first, count = anew()
    assert count > 3
    assert len(list((root / "templates").iterdir())) == count
    assert (root / "templates").stat().st_mode & 0o777 == 0o700
    assert anew() == (first, 0)


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
    root: Path, anew: Callable[[], tuple[str, int]], damage: Callable[[Path], object]
) -> None:
    first, _ = anew()
    damage(sorted((root / "templates").iterdir())[0])
    assert anew() == (first, 1)
    assert anew() == (first, 0)


def test_another_users_file_is_not_run(
    root: Path, anew: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, count = anew()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert anew() == (first, count)


@pytest.mark.parametrize("where", ["a file", "nobody's folder"])
def test_where_nothing_can_be_kept_all_is_compiled(
    root: Path, anew: Callable[[], tuple[str, int]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "a file":
        root.write_text("")
    else:
        monkeypatch.setenv(settings.CACHE_VARIABLE, "~nobody-of-that-name/cache")
    first, count = anew()
    assert anew() == (first, count)


def test_a_template_that_was_changed_is_compiled(
    anew: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    anew()
    loader = environment().loader
    assert loader is not None
    found = loader.get_source

    def changed(within: object, name: str) -> tuple[str, str | None, object]:
        source, file, current = found(environment(), name)
        return source + ("{# more #}" if name.startswith("tiled") else ""), file, current

    monkeypatch.setattr(loader, "get_source", changed)
    assert anew()[1] == 1
