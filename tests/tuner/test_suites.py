"""The files of benchmarks/suites/."""

import os
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.problem import Problem
from tilewright.tuner.bench.suites import suite_names, suite_shapes


def test_the_public_one_has_its_shapes() -> None:
    shapes = suite_shapes("public")
    assert len(shapes) == len(set(shapes)) == 26
    assert shapes[0] == "1024x768x512"
    assert {"1x4096x4096", "64x64x65536", "65536x64x64", "3072x1500x1024"} < set(shapes)


@pytest.mark.parametrize("name", suite_names())
def test_each_can_be_read(name: str) -> None:
    shapes = suite_shapes(name)
    assert shapes
    assert all(Problem.parse(shape).shape == shape for shape in shapes)


def test_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"suite must be a file ending in .toml or one of public, small, got '../x'"):
        suite_shapes("../x")


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('shapes = ["3x4x5", "6"]')
    assert suite_shapes(str(tmp_path / "mine.toml")) == ("3x4x5", "6")


BROKEN = [
    "shapes = [",
    'title = "x"',
    "shapes = []",
    "shapes = [3]",
    "shapes = 3",
    'shapes = ["3x"]',
    'shapes = ["99999999999"]',
    "shapes = [1" + "0" * 5000 + "]",
    "shapes = " + "[" * 5000,
    "\x00",
]


@pytest.mark.parametrize("text", [*BROKEN, None])
def test_a_file_that_will_not_do_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"suite .*mine.toml: ") as caught:
        suite_shapes(str(tmp_path / "mine.toml"))
    assert "\n" not in str(caught.value)


def test_a_pipe_is_no_suite(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r"suite .*mine.toml: not a regular file"):
        suite_shapes(str(tmp_path / "mine.toml"))
