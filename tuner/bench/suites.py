"""Lists of shapes to time: the files of benchmarks/suites/."""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable

from ...codegen.errors import check


def _folder() -> Traversable:
    return resources.files(__package__.partition(".")[0]).joinpath("benchmarks", "suites")


def suite_names() -> tuple[str, ...]:
    """Every suite that is known, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def suite_shapes(name: str) -> tuple[str, ...]:
    """The shapes of the suite called `name`, each as `MxNxK`, in the order in which they are timed. Raises ConfigError
    listing the known ones."""
    known = suite_names()
    check(name in known, f"suite must be one of {', '.join(known)}, got {name!r}")
    return tuple(tomllib.loads(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))["shapes"])
