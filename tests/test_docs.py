"""Generated pages are current, and figures are drawn so that every reader sees them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tilewright
from pages import reference_pages

pytestmark = pytest.mark.fast

ROOT = Path(tilewright.__file__).resolve().parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FIGURES = sorted((ROOT / "docs" / "assets").glob("*.svg"))
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", reference_pages())
def test_generated_pages_are_current(name: str) -> None:
    """`python tests/golden/regenerate.py` accepts a change."""
    assert (ROOT / name).read_text() == reference_pages()[name]


def test_every_figure_stands_in_a_page_with_words_for_who_cannot_see_it() -> None:
    shown = {}
    for page in PAGES:
        for words, target in IMAGE.findall(page.read_text()):
            assert (page.parent / target).is_file(), target
            shown[(page.parent / target).resolve()] = words
    assert {each for each in FIGURES if len(shown.get(each, "").split()) < 8} == set()


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_follow_light_and_dark_and_fetch_nothing(path: Path) -> None:
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert root.get("viewBox")
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|@font-face|url\((?!#)", text) == []
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', text)) <= {"none", "currentColor"}  # the rest is in one style
    assert len(text) < 12_000
