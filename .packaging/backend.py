"""The build backend: setuptools, on a folder of links that lays the checkout out as a package.

The checkout is the package, so no folder above it holds the package and nothing else. `.package/tilewright` is such a
place: one link for each module and room of the checkout. An editable install is a path entry to `.package`, which type
checkers and editors follow as the interpreter does, and a file that is added to a room is there at once. The folder is
hidden, so that tools that walk the checkout do not meet the same files twice, and only what changed is linked again, so
that a second build does not disturb a program that runs. `build/README.md` is the README for an index: its relative
links lead to the source's address.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403  (the hooks)

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?=[^)\s]+\))")
"""The place before a relative link's target in Markdown."""


def modules() -> list[Path]:
    """Files and rooms of the checkout that the package consists of, and what `__init__.py` looks for in frameworks/."""
    rooms = (each.parent for each in ROOT.glob("*/__init__.py"))
    return [*ROOT.glob("*.py"), ROOT / "py.typed", ROOT / "benchmarks", *rooms, *ROOT.glob("frameworks/*.py")]


def link(package: Path) -> None:
    """Make `package` a folder of links to the modules; links that are right already stay."""
    package.mkdir(parents=True, exist_ok=True)
    targets = {each.name: os.path.relpath(each, package) for each in modules()}
    for entry in package.iterdir():
        if entry.is_symlink() and targets.get(entry.name) == os.readlink(entry):
            del targets[entry.name]
        elif entry.is_symlink():
            entry.unlink()
    for name, target in targets.items():
        (package / name).symlink_to(target)


def absolute(text: str, source: str) -> str:
    """Markdown of the checkout's root whose relative links lead to files at the source's address."""
    return LINK.sub(f"{source}/blob/HEAD/", text)


def prepare() -> None:
    """Make what pyproject.toml refers to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    link(ROOT / ".package" / project["name"])
    readme = ROOT / "build" / "README.md"
    readme.parent.mkdir(exist_ok=True)
    text = (ROOT / "README.md").read_text("utf-8")
    readme.write_text(absolute(text, project["urls"]["Source"]), "utf-8")


prepare()  # each hook runs in a process of its own, and reads pyproject.toml
