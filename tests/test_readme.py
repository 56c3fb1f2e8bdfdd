"""Commands, links, code and outputs in the documents work, generated pages are current, and figures have words."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import tilewright
from pages import reference_pages
from tilewright.cli import app as cli
from tilewright.codegen.families import parse

ROOT = Path(tilewright.__file__).resolve().parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(each for top in ("docs", "examples") for each in (ROOT / top).rglob("*.md"))])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PATH = re.compile(
    r"`((?:benchmarks|cli|codegen|configs|docs|examples|frameworks|runtime|templates|tests|tuner)/[\w./-]+)`"
)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)

FIRST = "pip install -e . && tune --shape 1024x768x512"
TESTS = "pip install -e '.[test]' && pytest -n auto"


def blocks(path: Path, language: str | None = None) -> list[str]:
    """Fenced and indented blocks of a document: all, or those in one language."""
    pairs = [(match[1], match[2] or match[3]) for match in FENCE.finditer(path.read_text())]
    return [text for marked, text in pairs if language in (None, marked)]


def shell_lines(path: Path) -> list[str]:
    return [line for block in blocks(path, "sh") for line in block.splitlines()]


def outside_code(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Anchors that a link may name in a document: its headings, in the form of the site and of a checkout."""
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each) for each in HEADING.findall(outside_code(path)))
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_readme_opens_with_the_two_commands() -> None:
    first, second, *_ = blocks(ROOT / "README.md")
    assert first.strip() == FIRST
    assert second.strip() == TESTS
    before, _, _ = (ROOT / "README.md").read_text().partition(FIRST)
    assert before.strip() == "# tilewright"


def test_continuous_integration_takes_its_command_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    assert TESTS not in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_in_the_documents_are_valid(path: Path) -> None:
    for line in shell_lines(path):
        words = shlex.split(line, comments=True)
        if not words or words[0] not in ("tune", "tilewright"):
            continue
        arguments = words[1:] if words[0] == "tilewright" else words
        command = cli.commands.commands[arguments[0]]
        with click.Context(cli.commands) as parent:
            command.make_context(arguments[0], arguments[1:], parent)  # raises for an unknown option


@pytest.mark.parametrize("path", [each for each in DOCUMENTS if each.name != "adding-a-family.md"], ids=name)
def test_files_of_the_project_exist(path: Path) -> None:
    """A path of the project leads to a file or folder; the page on families names files that a reader adds."""
    paths = PATH.findall(path.read_text())
    assert [each for each in paths if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(outside_code(path)):
        if not target.startswith("https://"):
            file = path.parent / target if target else path
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize(
    ("path", "begin", "command"),
    [
        (
            "docs/using.md",
            "1000x900x800 float nn on NVIDIA H200",
            "explain --shape 1000x900x800 --device-key nvidia-h200",
        ),
        ("docs/five-minutes.md", "shipped with tilewright: ", "show"),
        (
            "docs/accuracy.md",
            "nvidia-h100-80gb-hbm3, shipped with tilewright, normwise",
            "show --shape 1024x768x512 --accuracy normwise --shipped",
        ),
        (
            "docs/five-minutes.md",
            "wrote my_gemm/",
            "emit --shape 1024x768x512 --arch sm_90a --name my_gemm --main -o my_gemm",
        ),
    ],
)
def test_outputs_in_the_documents_are_current(path: str, begin: str, command: str, tmp_path: Path) -> None:
    (block,) = (each for each in blocks(ROOT / path, "text") if begin in each)
    assert command in (ROOT / path).read_text()
    lines = block[block.index(begin) :].removesuffix("...\n").splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    printed = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
    assert [line for line in lines if line not in printed] == []


@pytest.mark.parametrize(
    ("path", "begin"),
    [
        ("docs/accuracy.md", "ieee: "),
        ("docs/architecture.md", "dmma:64x64x16 -> "),
        ("docs/reference/python.md", "inner dimensions"),
    ],
)
def test_output_of_python_in_the_documents_is_current(path: str, begin: str, tmp_path: Path) -> None:
    fenced = [(match[1], match[2] or match[3]) for match in FENCE.finditer((ROOT / path).read_text())]
    ((code, shown),) = (
        (before, text)
        for (language, before), (_, text) in pairwise(fenced)
        if language == "python" and text.startswith(begin)
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == shown


def test_the_first_steps_print_what_the_page_shows(tmp_path: Path) -> None:
    """Times, winners and names of processors differ, but not the lines around them. A long name of a processor may
    break a line in two."""
    page = ROOT / "docs" / "five-minutes.md"
    assert {"tilewright devices", "tune --shape 64x48x32 --effort quick", "tilewright show"} <= {*shell_lines(page)}
    shown = [line for block in blocks(page, "text") for line in block.splitlines()]
    printed = []
    for command in ("devices", "tune --shape 64x48x32 --effort quick --trials 4", "show"):
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *command.split()],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed += [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]

    def form(line: str) -> str:
        line = re.sub(r"host(?: [^:]*|-\S*)(?=[:,])", "HOST", line)
        return re.sub(r"\d[\d,.]*", "#", line).partition("; best:")[0]

    starts = ("device  arch", "on the processor", "64x48x32 float nn on", "1/", "timing the best", "host-", "shipped")
    for begin in starts:
        (expected,) = (form(line) for line in shown if line.startswith(begin))
        broken = (f"{one} {other.lstrip()}" for one, other in pairwise(printed))
        assert expected in {form(line) for line in (*printed, *broken)}, printed


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_python_in_the_documents_runs(path: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(path, "python"))
    if code:
        command = [sys.executable, "-c", code.replace("1024", "102").replace("512", "51").replace("768", "76")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("library.py", ["added to what was there: True", "the same, transposed, twice, in a larger array: True"]),
        ("emit_kernel.py", ["out/my_gemm.cu: ", "out/my_gemm.h: ", "out/my_gemm_main.cu: "]),
        ("tune_from_python.py", ["the winner on ", "loaded from the store: "]),
    ],
)
def test_the_examples_run(script: str, words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout


RECORDINGS = {
    "variant": "float-1024x768x512",
    "variant at 16x4096x4096": "float-16x4096x4096",
    "variant in double": "double-1024x768x512",
}
"""Names of the recordings with the times of the tables in docs/classic-kernels.md, by the head of the first column."""


def test_times_of_the_classic_kernels_are_the_recorded_ones() -> None:
    folder = ROOT / "benchmarks" / "results" / "nvidia-h200" / "recordings"
    compared = 0
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / "classic-kernels.md").read_text(), re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        if head[0] not in RECORDINGS:
            continue
        recorded = json.loads(gzip.decompress((folder / f"{RECORDINGS[head[0]]}.json.gz").read_bytes()))["cache"]
        times = {}
        for trial in recorded.values():
            if trial["family"] in ("naive", "tiled"):
                names = ("block_m", "block_n", "tile_width", "skew", "unroll", "edge")
                values = ",".join(f"{each}={trial[each]}" for each in names if trial[each] != "absent")
                times[parse(f"{trial['family']}:{values}")] = trial["time"] * 1000
        for row in rows:
            for title, cell in zip(head[1:], row[1:]):
                edge = {"exact, us": "", "bounds, us": ",edge=bounds", "pad, us": ",edge=pad", "us": ""}.get(title)
                if edge is not None and row[0].startswith("`") and cell != "not legal":
                    text = row[0].strip("`")
                    # Tiles that do not divide the matrices are guarded, unless they are padded.
                    time = times.get(parse(text + edge)) or times[parse(text)]
                    assert cell == f"{time:.1f}", (row[0], title)
                    compared += 1
    assert compared > 50


# ---- Generated pages and figures --------------------------------------------------------------------------------


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FIGURES = sorted((ROOT / "docs" / "assets").glob("*.svg"))
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)")


@pytest.mark.fast
@pytest.mark.parametrize("name", reference_pages())
def test_generated_pages_are_current(name: str) -> None:
    """`python tests/golden/regenerate.py` accepts a change."""
    assert (ROOT / name).read_text() == reference_pages()[name]


@pytest.mark.fast
def test_every_figure_stands_in_a_page_with_words_for_readers_who_cannot_see_it() -> None:
    shown = {}
    for page in PAGES:
        for words, target in IMAGE.findall(page.read_text()):
            assert (page.parent / target).is_file(), target
            shown[(page.parent / target).resolve()] = words
    assert {each for each in FIGURES if len(shown.get(each, "").split()) < 8} == set()


@pytest.mark.fast
@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_follow_light_and_dark_and_fetch_nothing(path: Path) -> None:
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert root.get("viewBox")
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|@font-face|url\((?!#)", text) == []
    colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', text))
    assert colours <= {"none", "currentColor"}  # a style sheet has the others
    assert len(text) < 12_000
