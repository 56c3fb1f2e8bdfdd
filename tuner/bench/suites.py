"""Lists of shapes: the files of benchmarks/suites/, and the user's own."""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from ...codegen.errors import ConfigError, check


def _folder() -> Traversable:
    return resources.files(__package__.partition(".")[0]).joinpath("benchmarks", "suites")


def suite_names() -> tuple[str, ...]:
    """Every suite that ships, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def suite_shapes(name: str) -> tuple[str, ...]:
    """The shapes of a suite, each as `MxNxK`, in order: of the one called `name`, or of the file `name`, which ends in
    `.toml`. Raises ConfigError listing the known ones, or saying what is wrong with the file."""
    file: Traversable = Path(name)
    if not name.endswith(".toml"):
        known = suite_names()
        check(name in known, f"suite must be a file ending in .toml or one of {', '.join(known)}, got {name!r}")
        file = _folder().joinpath(f"{name}.toml")
    try:
        shapes = tomllib.loads(file.read_text(encoding="utf-8")).get("shapes", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"suite {name}: {error}") from error
    good = isinstance(shapes, list) and bool(shapes) and all(isinstance(shape, str) for shape in shapes)
    check(good, f'suite {name}: it wants a list of shapes, such as shapes = ["1024x768x512", "100"]')
    return tuple(shapes)
