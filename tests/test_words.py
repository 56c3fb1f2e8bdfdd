"""Sentences of docstrings, comments, help, templates and pages begin with words that stand alone.

A reader meets a sentence without the sentence before it: in a tooltip, in a search, in a screen of help. So no sentence
begins with a word that needs a noun from elsewhere.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tilewright
from tilewright.cli.commands import commands
from weight import PRODUCT

pytestmark = pytest.mark.fast

ROOT = Path(tilewright.__file__).resolve().parent
BEGINNINGS = (
    r"Of\b(?! (?:all |the )?\[?\d)",  # a share of a number stands alone: "Of 60 shapes seven are slower"
    r"That of\b",
    r"Those\b(?! \w+(?:s|en)\b)",  # "Those shapes" has its noun
    r"Whose\b",
    r"So (?:few|many|much)\b",
    r"What\b(?!.*\?$)",
    r"The same\b(?! (?!as\b|for\b|in\b|by\b|with\b|to\b|of\b|on\b|at\b|is\b|was\b|that\b|and\b|but\b)[a-z])",
)
"""Patterns that no sentence begins with. A question may begin with "What"."""
EXCEPTIONS: tuple[str, ...] = ()
"""Beginnings of sentences that are allowed all the same, at most ten."""
ROOMS = {*PRODUCT, "benchmarks", "docs", "examples", "tests"}
OFFENDING = re.compile("|".join(BEGINNINGS))
SENTENCE = re.compile(r"(?<=[.!?:]) +(?=[A-Z])")
WRITTEN = ("tests/golden/", "examples/cpp/my_gemm/", "docs/reference/commands.md", "docs/reference/parameters.md")
"""Beginnings of paths of generated files. The code that writes them is checked instead."""

Text = tuple[int, str]
"""A line of a file, and the prose that begins there."""


def files(*suffixes: str) -> list[Path]:
    """Files of the checkout with these suffixes, without generated ones."""
    inside = [path for room in ROOMS for path in (ROOT / room).rglob("*.*")]
    paths = [path for path in (*ROOT.glob("*.*"), *inside) if path.suffix in suffixes and path.is_file()]
    return sorted(path for path in paths if not path.relative_to(ROOT).as_posix().startswith(WRITTEN))


def docstrings(text: str) -> Iterator[Text]:
    """Strings that are statements: docstrings, and descriptions below constants and fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value.value):
                yield node.lineno, paragraph


def comments(text: str) -> Iterator[Text]:
    """Comments, of which neighbouring lines count as one."""
    blocks: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            words, row = token.string.lstrip("# "), token.start[0]
            alone = not token.line[: token.start[1]].strip()
            if alone and blocks and blocks[-1][1] == row - 1:
                first, _, before = blocks.pop()
                blocks.append((first, row, f"{before} {words}"))
            else:
                blocks.append((row, row if alone else -1, words))
    return ((first, words) for first, _, words in blocks)


def template_comments(text: str) -> Iterator[Text]:
    """Comments of Jinja, C and C++ in a template or a header."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        comment = re.search(r"(?:^|\s)//+ ?(.*)", lines[at])
        words, first = (comment[1] if comment else ""), at
        while comment and at + 1 < len(lines) and (more := re.match(r"\s*//+ ?(.*)", lines[at + 1])):
            words, at = f"{words} {more[1]}", at + 1
        if comment:
            yield first + 1, words
        at += 1
    for block in re.finditer(r"\{#-?(.*?)-?#\}|/\*(.*?)\*/", text, re.DOTALL):
        yield text.count("\n", 0, block.start()) + 1, re.sub(r"\n\s*\*", "\n", block[1] or block[2] or "")


def page_prose(text: str) -> Iterator[Text]:
    """Paragraphs and list items of a page, without headings, tables and code."""
    blanked = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    line, unit, first = 0, "", 0
    for line, words in enumerate([*blanked.splitlines(), ""], 1):
        begins = re.match(r"\s*(?:[-*]|\d+\.) ", words)
        if unit and (begins or not words.strip() or words.startswith(("#", "|"))):
            yield first, unit
            unit = ""
        if words.strip() and not words.startswith(("#", "|", "    ", "![", "<!--", "---")):
            first = first if unit else line
            unit += " " + re.sub(r"^\s*(?:[-*]|\d+\.) ", "", words)


def sentences(text: str) -> list[str]:
    plain = re.sub(r"^\s*\*\*[^*]+[.:]\*\*", "", text)  # a heading at the beginning of a paragraph
    plain = " ".join(plain.replace("**", "").split())
    return [each for each in SENTENCE.split(plain) if OFFENDING.match(each) and not each.startswith(EXCEPTIONS)]


def offenders(path: Path, texts: Iterator[Text]) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    return [f"{name}:{line}: {each[:80]}" for line, text in texts for each in sentences(text)]


@pytest.mark.parametrize(
    ("suffixes", "reader"),
    [
        ((".py",), docstrings),
        ((".py",), comments),
        ((".jinja", ".h", ".c", ".cu"), template_comments),
        ((".md",), page_prose),
    ],
    ids=["docstrings", "comments", "templates", "pages"],
)
def test_sentences_stand_alone(suffixes: tuple[str, ...], reader: Callable[[str], Iterator[Text]]) -> None:
    wrong = [each for path in files(*suffixes) for each in offenders(path, reader(path.read_text()))]
    assert not wrong, f"{len(wrong)} sentences begin with a word that needs another:\n" + "\n".join(wrong)


def test_help_stands_alone() -> None:
    wrong = []
    for name, command in {"tilewright": commands, **commands.commands}.items():
        texts = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
        wrong += [f"{name}: {each}" for text in texts for part in text.split("\n\n") for each in sentences(part)]
    assert not wrong, "\n".join(wrong)


def test_the_list_of_exceptions_stays_short() -> None:
    assert len(EXCEPTIONS) <= 10


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("What is known of a variant.", 1),
        ("What is known?", 0),
        ("Of 60 shapes seven are slower.", 0),
        ("**What follows.** Tuning gains.", 0),
        ("One line. Of these the first.", 1),
        ("Those of the host.", 1),
        ("Those shapes are known.", 0),
        ("The same for doubles.", 1),
        ("The same kernel serves.", 0),
        ("Offsets of a tile. Whatever it is.", 0),
    ],
)
def test_the_patterns_match_incomplete_sentences(text: str, count: int) -> None:
    assert len(sentences(text)) == count
