"""The configs worth trying for one problem on one device: configs/spaces/*.toml, pruned by the constraints."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from ...codegen.config import Config, Value
from ...codegen.errors import ConfigError, check
from ...codegen.families import FAMILIES, complete
from ...codegen.problem import Problem
from ...codegen.stream import STREAM_K
from ...runtime.device.protocol import DeviceInfo
from .legal import combine
from .pruned import pays
from .space import Dimension, Point, Space

__all__ = ["Candidates", "Choices", "candidates", "read_spaces", "with_atomics"]

ABSENT = "absent"
FAMILY = "family"


@dataclass(frozen=True, slots=True)
class Choices:
    """One file: a family and the values of its parameters to combine."""

    family: str
    """Name of the family."""
    parameters: tuple[tuple[str, tuple[Value, ...]], ...]
    """Parameter names and values; those of stream_k count the multiprocessors of a device."""

    def on(self, info: DeviceInfo) -> dict[str, tuple[Value, ...]]:
        """The values as they are on a device."""
        values = dict(self.parameters)
        if STREAM_K.name in values:
            blocks = (info.sm_count * each for each in values[STREAM_K.name] if isinstance(each, int))
            values[STREAM_K.name] = tuple(each for each in blocks if each in STREAM_K.choices)
        return values


def read_spaces(folder: Path | None = None) -> tuple[Choices, ...]:
    """The space files of a folder, those that ship with the package if None. Raises ConfigError naming the file."""
    root = folder or resources.files(__package__.partition(".")[0]).joinpath("configs/spaces")
    files = sorted((f for f in root.iterdir() if f.name.endswith(".toml")), key=lambda file: file.name)
    check(bool(files), f"no space files (*.toml) in {root}")
    return tuple(_read(file.name, file.read_text("utf-8")) for file in files)


def with_atomics(spaces: tuple[Choices, ...]) -> tuple[Choices, ...]:
    """The same spaces, and where blocks share out k also with sums that are added by atomics: the families that can."""
    return tuple(
        replace(choices, parameters=(*(pair for pair in choices.parameters if pair[0] != "atomic"), ("atomic", (0, 1))))
        if any(parameter.name == "atomic" for parameter in FAMILIES[choices.family].parameters)
        else choices
        for choices in spaces
    )


def _read(name: str, text: str) -> Choices:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
    family, parameters = document.get("family"), document.get("parameters")
    check(family in FAMILIES, f"{name}: family must be one of {', '.join(FAMILIES)}, got {family!r}")
    check(isinstance(parameters, dict), f"{name}: needs a table [parameters]")
    assert isinstance(parameters, dict)
    assert isinstance(family, str)
    for key, choices in parameters.items():
        check(isinstance(choices, list) and bool(choices), f"{name}: {key} must be a list of values")
        for choice in choices:
            complete(Config(family, ((key, choice),)))
    return Choices(family, tuple((key, tuple(choices)) for key, choices in parameters.items()))


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is left after pruning."""

    space: Space
    """The valid points."""
    configs: tuple[Config, ...]
    """The config of each point, in the space's order."""
    pruned: tuple[tuple[str, int], ...]
    """Each reason for which configs were pruned, and how many, most first."""

    def config_at(self, point: Point) -> Config:
        """The config of a point."""
        return self.configs[self.space.index(point)]

    def point_of(self, config: Config) -> Point | None:
        """The point of a config, None if it is not among the candidates."""
        values = {FAMILY: config.family, **dict(config.values)}
        try:
            point = self.space.point_of({d.name: values.get(d.name, ABSENT) for d in self.space.dimensions})
        except ConfigError:
            return None
        return point if point in self.space else None


def candidates(
    problem: Problem, info: DeviceInfo, spaces: tuple[Choices, ...], known: Sequence[Config] = ()
) -> Candidates:
    """All configs of the spaces that the constraints, the families' advice and the device allow, and those that are
    known to be good, whatever is advised. Raises ConfigError.

    Families share dimensions whose parameters have one name; a parameter that a family lacks is `absent`.
    """
    kept: list[Config] = []
    reasons: Counter[str] = Counter()
    for choices in spaces:
        family, values = FAMILIES[choices.family], choices.on(info)
        configs, why = combine(problem, info.arch, family, values, pays(problem, info, family, values))
        kept += configs
        reasons += why
    listed = set(kept) if known else set()
    kept += [config for config in dict.fromkeys(known) if config not in listed]
    check(bool(kept), f"no config serves {problem} on {info.arch.name}: " + "; ".join(reasons))
    columns = _columns(kept)
    dimensions = _dimensions(columns)
    index = [{choice: place for place, choice in enumerate(d.choices)} for d in dimensions]
    points = zip(*(map(place.__getitem__, columns[d.name]) for d, place in zip(dimensions, index)))
    return Candidates(Space(tuple(dimensions), tuple(points)), tuple(kept), tuple(reasons.most_common()))


def _columns(configs: list[Config]) -> dict[str, list[Value]]:
    """The families of the configs, and their values of each parameter that any of them has: lists are long."""
    blocks = [list(listed) for _, listed in groupby(configs, key=attrgetter("family"))]
    names = dict.fromkeys(name for block in blocks for name, _ in block[0].values)
    columns: dict[str, list[Value]] = {name: [] for name in (FAMILY, *names)}
    for block in blocks:
        own = {column[0][0]: [value for _, value in column] for column in zip(*(config.values for config in block))}
        own[FAMILY] = [block[0].family] * len(block)
        for name in columns:
            columns[name] += own.get(name, [ABSENT] * len(block))
    return columns


def _dimensions(columns: Mapping[str, Sequence[Value]]) -> list[Dimension]:
    dimensions = []
    for name, values in columns.items():
        present = set(values) - {ABSENT}
        if name == FAMILY:
            ordered: list[Value] = [family for family in FAMILIES if family in present]
        else:
            ordered = sorted(present, key=lambda value: (isinstance(value, str), value))
        dimensions.append(Dimension(name, (*((ABSENT,) if ABSENT in values else ()), *ordered)))
    return dimensions
