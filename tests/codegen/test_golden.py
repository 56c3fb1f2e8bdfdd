"""The emitted text, byte for byte. `python tests/golden/regenerate.py` accepts a change."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "tests" / "golden" / "regenerate.py"))
FILES: dict[str, str] = SCRIPT["golden_files"]()


@pytest.mark.parametrize("name", FILES)
def test_text_is_the_golden_one(name: str) -> None:
    assert (ROOT / name).read_bytes().decode() == FILES[name]


def test_no_golden_file_is_left_over() -> None:
    assert SCRIPT["present"]() == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_text_is_plain(name: str) -> None:
    text = FILES[name]
    assert text.isascii()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text
    assert "\t" not in text
    lines = text.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    # A command stands on one line, to be copied.
    assert [line for line in lines if len(line) > 120 and "tilewright emit" not in line] == []
