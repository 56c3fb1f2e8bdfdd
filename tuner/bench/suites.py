"""Lists of shapes to time: the files of benchmarks/suites/."""

import tomllib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from ...codegen.errors import ConfigError, check


@dataclass(frozen=True, slots=True)
class Suite:
    """Shapes that are timed together."""

    name: str
    title: str
    shapes: tuple[str, ...]
    """Each as `MxNxK`, in the order in which they are timed."""


def _folder() -> Traversable:
    return resources.files(__package__.partition(".")[0]).joinpath("benchmarks", "suites")


def suite_names() -> tuple[str, ...]:
    """Every suite that is known, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def suite_named(name: str) -> Suite:
    """The suite called `name`. Raises ConfigError listing the known ones, or saying what is wrong with its file."""
    known = suite_names()
    check(name in known, f"suite must be one of {', '.join(known)}, got {name!r}")
    return parse_suite(name, _folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def parse_suite(name: str, text: str) -> Suite:
    """A suite from the text of its file. Raises ConfigError."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"suite {name}: {error}") from error
    title, shapes = found.get("title"), found.get("shapes")
    wrong = f"suite {name}: it wants a title, a string, and shapes, a list of strings, and nothing else"
    if found.keys() != {"title", "shapes"} or not isinstance(title, str) or not isinstance(shapes, list):
        raise ConfigError(wrong)
    check(bool(shapes) and all(isinstance(shape, str) for shape in shapes), wrong)
    return Suite(name, title, tuple(shapes))
