"""The configs that a search may try for one problem on one device: configs of configs/spaces/*.toml that can run.

A small family's space is listed whole, a larger one near the shortlist: a search of such a space finds its best configs
there (docs/tuning.md).
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ...codegen.config import Config
from ...codegen.errors import ConfigError, ShapeError, check
from ...codegen.families import families, family_named
from ...codegen.leaf import Leaf
from ...codegen.legality import rejections, serves
from ...codegen.listing import legal_configs
from ...codegen.mechanisms.split import FILLING, filling_parts
from ...codegen.reading import read_named, reason_of
from ...codegen.target import Target
from ..choose.forecast import Forecast
from ..recording.points import space_of
from .neighbours import neighbours
from .space import Space

MOST_BYTES = 1 << 20
"""Bytes of the largest space file."""
MOST_LISTED = 20_000
"""Configs of the largest family that is listed whole."""
_EXPANDED = 8
"""Configs of the shortlist whose neighbours are listed."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The space of one file: a family and the values of its parameters to combine."""

    family: str
    parameters: tuple[tuple[str, tuple[Any, ...]], ...]
    """Parameter names and typed values, simple ones first; `filling` stands for split counts that fill a device."""

    def on(self, target: Target) -> dict[str, tuple[Any, ...]]:
        """The values of each parameter for a device."""
        filling = filling_parts(target.sm_count)
        return {
            name: tuple(dict.fromkeys(each for value in values for each in (filling if value == FILLING else (value,))))
            for name, values in self.parameters
        }


def read_spaces(folder: Path | None = None) -> tuple[Choices, ...]:
    """The spaces of a folder's files. For None the files of the package, and all choices of families without a file.
    Raises ConfigError, which names the file."""
    shipped = resources.files(__package__.partition(".")[0]).joinpath("configs/spaces")
    try:
        files = sorted(
            (f for f in (folder or shipped).iterdir() if f.name.endswith(".toml")), key=lambda file: file.name
        )
    except OSError as error:
        raise ConfigError(f"spaces cannot be read: {folder}: {error.strerror}") from error
    check(bool(files), f"spaces must be a folder of files ending in .toml, got {str(folder)!r}, which has none")
    spaces = tuple(map(_read, files))
    if folder is not None:
        return spaces
    others = families().keys() - {choices.family for choices in spaces}
    kinds = (kind for name, kind in families().items() if name in others)
    whole = (Choices(kind.family, tuple((leaf.name, tuple(leaf.choices)) for leaf in kind.leaves())) for kind in kinds)
    return (*spaces, *whole)


def _read(file: Traversable) -> Choices:
    data = read_named("space", file, MOST_BYTES) if isinstance(file, Path) else file.read_bytes()
    try:
        document = tomllib.loads(data.decode())
        family, parameters = document.get("family"), document.get("parameters")
        check(isinstance(family, str), f"family must be a name, got {family!r:.60}")
        kind = family_named(str(family))
        if not isinstance(parameters, dict):
            raise ConfigError("it needs a table [parameters]")
        for key, values in parameters.items():
            check(isinstance(values, list) and bool(values), f"{key} must be a list of values")
        typed = ((key, tuple(dict.fromkeys(_typed(kind.leaf(key), values)))) for key, values in parameters.items())
        return Choices(kind.family, tuple(typed))
    except (ValueError, RecursionError) as error:  # also no UTF-8, no TOML, nested too deep
        raise ConfigError(f"space {file}: {reason_of(error)}") from error


def _typed(leaf: Leaf, values: Iterable[object]) -> Iterator[Any]:
    for value in values:
        yield FILLING if value == FILLING and leaf.name == "parts" else leaf.typed(value)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The configs that a search of listed variants may try, as points of a space."""

    space: Space
    configs: tuple[Config, ...]
    """Config of each point, in the space's order."""
    pruned: tuple[tuple[str, int], ...]
    """Reasons that configs of wholly listed families cannot run, each with its number of configs, most first."""


def candidates(
    forecast: Forecast,
    spaces: tuple[Choices, ...],
    shortlist: Sequence[Config] = (),
    also: Sequence[Config] = (),
) -> Candidates:
    """The configs of the spaces that can run, and all configs of `also`. A small space gives all its configs, a larger
    one the configs of the shortlist and neighbours of the first ones, within its values. Raises ShapeError where there
    is none.

    Families share dimensions whose parameters have one name; a parameter that a family lacks is `absent`.
    """
    problem, info = forecast.problem, forecast.info
    configs: list[Config] = []
    reasons: Counter[str] = Counter()
    for choices in spaces:
        kind, values = family_named(choices.family), choices.on(info)
        listed = legal_configs(problem, info, kind, values, MOST_LISTED)
        if listed is None:
            near = list(_near(forecast, choices, [config for config in shortlist if type(config) is kind]))
            reasons.update(() if near else rejections(problem, kind(), info))
            configs += near
        else:
            configs += listed[0]
            reasons += listed[1]
    allowed = tuple(dict.fromkeys((*configs, *also)))
    nothing = f"no config serves {problem} on {info.arch.name}; required: {'; '.join(reasons)}"
    check(bool(allowed), nothing, ShapeError)  # other shapes of a suite may be served
    return Candidates(space_of(allowed), allowed, tuple(reasons.most_common()))


def _near(forecast: Forecast, choices: Choices, shortlist: Sequence[Config]) -> Iterator[Config]:
    """The configs of a shortlist and the family's default, moved to the nearest values of the space. Moved configs that
    can run come with neighbours of the first ones; where none can run, neighbours of the first ones come alone."""
    problem, info = forecast.problem, forecast.info
    values, default = choices.on(info), family_named(choices.family)()
    moved = dict.fromkeys(_moved(config, values) for config in (*shortlist, default))
    inside = [config for config in moved if serves(config, problem, info)]
    yield from inside
    for config in inside[:_EXPANDED] or [*moved][:_EXPANDED]:
        yield from forecast.ordered(neighbours(config, forecast, values, far=not inside))


def _moved(config: Config, values: Mapping[str, Sequence[Any]]) -> Config:
    """The config with each value that is not allowed moved to the nearest allowed one, a word to the first one."""
    moved: dict[str, Any] = {}
    for name, value in config.typed.items():
        allowed = values.get(name)
        if allowed and value not in allowed:
            moved[name] = allowed[0] if isinstance(value, str) else min(allowed, key=lambda each: abs(each - value))
    return config.changed(**moved) if moved else config
