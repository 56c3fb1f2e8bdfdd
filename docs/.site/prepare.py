"""Makes the folder from which the site is built: build/site/docs, and build/site/source for the Python reference.

    python docs/.site/prepare.py && mkdocs serve

A page links to other files of the checkout as a reader of the checkout wants it, `../examples/library.py`. On the site
such a file is a page too: Markdown as it is, source in a block of code, a folder as its README.md. Two reports of what
was measured are made as well. Any builder of sites can read the result: nothing here knows one.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda", ".h": "cpp", ".toml": "toml", ".txt": "cmake"}
_AS_THEY_ARE = {".svg", ".png", ".gz"}
_ALONE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages of the checkout that the site has whether a page links to them or not."""
_NO_PACKAGE = {"build", "docs", "site", "tests"}
"""Folders of the checkout that are no part of the package; the first one holds what this file makes."""
_REPORTS = {
    "report/tuning.html": ("nvidia-h200", "--recording", "recordings/float-1024x768x512.json.gz"),
    "report/bench.html": ("nvidia-h100-80gb-hbm3", "--bench", "float32.json", "--bench", "float64.json"),
}
"""Pages that `tilewright report` makes: the folder of _RESULTS where it runs, and its arguments."""
_RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    """Write both folders anew."""
    shutil.rmtree(SITE, ignore_errors=True)
    source = SITE / "source" / "tilewright"  # the package under its own name, whatever the checkout's folder is called
    source.mkdir(parents=True)
    for entry in (*ROOT.glob("[!.]*"), *ROOT.glob("frameworks/*.py")):  # as `__init__.py` has it
        if entry.name not in _NO_PACKAGE:
            os.symlink(entry, source / entry.name)
    pages = [path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file() and ".site" not in path.parts]
    waiting = [path.relative_to(ROOT).as_posix() for path in pages] + list(_ALONE)
    written: set[str] = set()
    while waiting:
        target = waiting.pop()
        if target not in written:
            written.add(target)
            waiting += _write(target)
    _write_reports(source.parent)


def _write(target: str) -> list[str]:
    """Write the page of a file of the checkout, and return the files that it links to."""
    path, place = ROOT / target, SITE / "docs" / _on_site(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.name.endswith(".source.md"):
        head = f"---\nsearch: {{ exclude: true }}\n---\n\n# {path.name}\n\n`{target}` of the checkout:\n"
        place.write_text(f"{head}\n```{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}```\n")
        return []
    if path.suffix != ".md":
        shutil.copyfile(path, place)
        return []
    text, links = path.read_text(), list[str]()

    def linked(match: re.Match[str]) -> str:
        to = _target(target, match[2])
        if to is None:
            return match[0]
        links.append(to)
        link = posixpath.relpath(_on_site(to), posixpath.dirname(_on_site(target)) or ".")
        return f"{match[1]}{link}{match[3] or ''}"

    text = _LINK.sub(linked, text)
    for uri in _REPORTS if target == "docs/report.md" else ():
        text = text.replace(f"`{uri}`", f"[{uri}]({uri})")
    place.write_text(text)
    return links


def _write_reports(package: Path) -> None:
    """Reports of what was measured, made in a folder where the files have the names that a reader may give."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    for uri, (folder, *arguments) in _REPORTS.items():
        place = SITE / "docs" / uri
        place.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tilewright", "report", *arguments, "-o", str(place)]
        subprocess.run(command, cwd=_RESULTS / folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def _target(page: str, link: str) -> str | None:
    """The file of the checkout that a link of a page leads to, if it does; a folder as its README.md."""
    if ":" in link or link.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _on_site(target: str) -> str:
    """Place of a file of the checkout on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target == "README.md":
        return "index.md"
    return target if Path(target).suffix in {".md", *_AS_THEY_ARE} else f"{target}.source.md"


if __name__ == "__main__":
    main()
