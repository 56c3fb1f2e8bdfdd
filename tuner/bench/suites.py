"""Lists of shapes: the files of benchmarks/suites/, and the user's own."""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from ...codegen.errors import ConfigError, check
from ...codegen.problem import Problem
from ...runtime.files import read_named

_MOST_BYTES = 1 << 20


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
    data = read_named("suite", file, _MOST_BYTES) if isinstance(file, Path) else file.read_bytes()
    try:
        shapes = tomllib.loads(data.decode()).get("shapes", [])
        good = isinstance(shapes, list) and bool(shapes) and all(isinstance(shape, str) for shape in shapes)
        check(good, 'it wants a list of shapes, such as shapes = ["1024x768x512", "100"]')
        for shape in shapes:
            Problem.parse(shape)
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, no shape, an absurd number, too deep
        raise ConfigError(f"suite {name}: {error}") from error
    return tuple(shapes)
