"""Pages that the site has beyond docs/: files of the checkout that docs/ links to, the package's source, two reports.

A page links to other files of the checkout as a reader of the checkout wants it, `../examples/library.py`. On the site
such a file is a page too: Markdown as it is, source in a block of code, a folder as its README.md.
"""

import os
import posixpath
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda", ".h": "cpp", ".toml": "toml", ".txt": "cmake"}
_CODE_IN_CELL = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)|(?<=<code>)[^<]+(?=</code></td>)")
_AS_THEY_ARE = {".svg", ".png", ".gz"}
_REPORTS = {
    "report/tuning.html": ("--recording", "recordings/float-1024x768x512.json.gz"),
    "report/bench.html": ("--bench", "float32.json", "--bench", "float64.json"),
}
"""Pages that `tilewright report` makes for the site, and the files that they are made from."""
_MEASURED = "benchmarks/results/nvidia-h200"
_source: tempfile.TemporaryDirectory[str] | None = None


@event_priority(100)  # before mkdocstrings reads its own config
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Tell mkdocstrings where the package is: the checkout, under the package's name whatever its folder is called."""
    global _source
    _source = tempfile.TemporaryDirectory()
    package = Path(_source.name, "tilewright")
    package.mkdir()
    for entry in (*_root(config).glob("[!.]*"), *_root(config).glob("frameworks/*.py")):  # as `__init__.py` has it
        os.symlink(entry, package / entry.name)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_source.name]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and those that these link to in turn."""
    for file in [each for each in files if each.is_documentation_page()]:
        _add_linked(_in_checkout(file.src_uri, config), files, config)
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        _add(page, files, config)
    for uri, page in _reports(config).items():
        files.append(File.generated(config, uri, abs_src_path=str(page)))
    return files


def _reports(config: MkDocsConfig) -> dict[str, Path]:
    """Reports of what was measured, in a folder where the files have the names that a reader may give."""
    assert _source is not None
    folder = Path(_source.name, "reports")
    folder.mkdir()
    for entry in (_root(config) / _MEASURED).iterdir():
        os.symlink(entry, folder / entry.name)
    environment = {**os.environ, "PYTHONPATH": _source.name}
    for uri, arguments in _REPORTS.items():
        command = [sys.executable, "-m", "tilewright", "report", *arguments, "-o", Path(uri).name]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {uri: folder / Path(uri).name for uri in _REPORTS}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the checkout has them, turned into those of the site."""
    here = page.file.src_uri
    at = _in_checkout(here, config)

    def linked(match: re.Match[str]) -> str:
        target = _target(at, match[2], config)
        if target is None:
            return match[0]
        link = posixpath.relpath(_on_site(target, config), posixpath.dirname(here) or ".")
        return f"{match[1]}{link}{match[3] or ''}"

    for uri in _REPORTS if here == "report.md" else ():
        markdown = markdown.replace(f"`{uri}`", f"[{uri}]({uri})")
    return _LINK.sub(linked, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Configs in tables may break after each comma."""
    return _CODE_IN_CELL.sub(lambda match: match[0].replace(",", ",<wbr>"), html)


def on_shutdown() -> None:
    """Remove what on_config made."""
    if _source is not None:
        _source.cleanup()


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _in_checkout(src_uri: str, config: MkDocsConfig) -> str:
    """Where a page lies, from the root of the checkout."""
    inside = f"{Path(config.docs_dir).name}/{src_uri}"
    return inside if (_root(config) / inside).exists() else src_uri.removesuffix(".source.md")


def _target(at: str, link: str, config: MkDocsConfig) -> str | None:
    """The file of the checkout that a link of the page at `at` leads to, if it does; a folder as its README.md."""
    if ":" in link or link.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(at), link))
    root = _root(config)
    if (root / path).is_dir() and (root / path / "README.md").exists():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (root / path).is_file() else None


def _on_site(target: str, config: MkDocsConfig) -> str:
    """Where a file of the checkout lies on the site."""
    docs = f"{Path(config.docs_dir).name}/"
    if target.startswith(docs):
        return target.removeprefix(docs)
    if target == "README.md":
        return "index.md"
    return target if Path(target).suffix in {".md", *_AS_THEY_ARE} else f"{target}.source.md"


def _add_linked(at: str, files: Files, config: MkDocsConfig) -> None:
    for _, link, _ in _LINK.findall((_root(config) / at).read_text()):
        target = _target(at, link, config)
        if target is not None:
            _add(target, files, config)


def _add(target: str, files: Files, config: MkDocsConfig) -> None:
    uri, path = _on_site(target, config), _root(config) / target
    if files.get_file_from_path(uri) is not None:
        return
    if not uri.endswith(".source.md"):
        files.append(_unlisted(File.generated(config, uri, abs_src_path=str(path))))
        if uri.endswith(".md"):
            _add_linked(target, files, config)
        return
    language = _LANGUAGES.get(path.suffix, "text")
    head = f"---\nsearch: {{ exclude: true }}\n---\n\n# {path.name}\n\n`{target}` of the checkout:\n"
    text = f"{head}\n```{language}\n{path.read_text()}```\n"
    files.append(_unlisted(File.generated(config, uri, content=text)))


def _unlisted(file: File) -> File:
    """A page that the navigation may leave out."""
    file.inclusion = InclusionLevel.NOT_IN_NAV
    return file
