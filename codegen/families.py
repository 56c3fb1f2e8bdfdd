"""The kernel families: what each parameter means, what is allowed and why."""

import itertools
import math
from collections.abc import Iterator

from .arch import Arch
from .config import Config, Value
from .dmma import DMMA
from .errors import ConfigError, check
from .family import EDGE, FAMILIES, Constraint, Family, Parameter, family_in
from .problem import Problem
from .simt import SIMT
from .skinny import SKINNY

__all__ = [
    "FAMILIES",
    "Constraint",
    "Family",
    "Parameter",
    "canonical",
    "complete",
    "default_config",
    "family_of",
    "fitted",
    "rejections",
    "require",
]

MAX_GRID = 2**31 - 1
_MOST_TOLD = 40
"""Values of a parameter that a message lists."""


def _exact_fits(problem: Problem, config: Config, arch: Arch) -> bool:
    if config["edge"] != "exact":
        return True
    tile_m, tile_n, tile_k = family_in(config).multiples(config)
    return problem.m % tile_m == 0 and problem.n % tile_n == 0 and problem.k % tile_k == 0


COMMON: tuple[Constraint, ...] = (
    Constraint(
        "a block has at most as many threads as the device allows",
        lambda problem, config, arch: family_in(config).threads(config) <= arch.max_threads_per_block,
        "THREADS <= 1024",
    ),
    Constraint(
        "shared memory of a block stays within the device's limit",
        lambda problem, config, arch: family_in(config).smem_bytes(problem.dtype, config) <= arch.smem_per_block_bytes,
    ),
    Constraint(
        "registers of a thread stay within 255",
        lambda problem, config, arch: family_in(config).registers(problem.dtype, config) <= arch.registers_per_thread,
    ),
    Constraint(
        "registers of a block stay within the multiprocessor's",
        lambda problem, config, arch: (
            family_in(config).registers(problem.dtype, config) * family_in(config).threads(config)
            <= arch.registers_per_sm
        ),
    ),
    Constraint(
        "the grid has fewer than 2^31 blocks",
        lambda problem, config, arch: family_in(config).blocks(problem, config) <= MAX_GRID,
    ),
    Constraint("exact edges need m, n and k to be multiples of {multiples}", _exact_fits),
)
"""Rules that every family keeps."""

NAIVE = Family(
    name="naive",
    title="one thread an element of C, straight from global memory",
    template="naive.cu.jinja",
    parameters=(
        Parameter("block_m", "bm", (8, 1, 2, 4, 16, 32), "rows of C a block computes"),
        Parameter("block_n", "bn", (32, 1, 2, 4, 8, 16, 64, 128, 256), "columns of C a block computes"),
        EDGE,
        Parameter("unroll", "u", (4, 1, 2, 8, 16), "steps of k unrolled"),
    ),
    constraints=(),
    block=lambda config: (config.number("block_n"), config.number("block_m"), 1),
    tile=lambda config: (config.number("block_m"), config.number("block_n"), 1),
    smem_elements=lambda config: 0,
    # Two operands a step; the launch bounds hold the compiler to the registers that the block's threads can share.
    registers=lambda dtype, config: min(
        44 + 2 * config.number("unroll") * dtype.size_bytes // 4,
        65536 // (config.number("block_m") * config.number("block_n")),
    ),
    reuse=lambda config: (1, 1),
)

TILED = Family(
    name="tiled",
    title="square tiles of A and B in shared memory, one thread an element of C",
    template="tiled.cu.jinja",
    parameters=(
        Parameter("tile_width", "tw", (16, 4, 8, 32), "rows and columns of the tiles of A, B and C"),
        EDGE,
        Parameter("skew", "s", (0, 1), "unused elements after each row of a tile, against bank conflicts"),
        Parameter("unroll", "u", (8, 1, 2, 4, 16, 32), "steps of a phase's multiply loop unrolled"),
    ),
    constraints=(
        Constraint(
            "unroll {unroll} is at most tile_width {tile_width}",
            lambda problem, config, arch: config.number("unroll") <= config.number("tile_width"),
            "UNROLL <= TILE_WIDTH",
        ),
    ),
    block=lambda config: (config.number("tile_width"), config.number("tile_width"), 1),
    tile=lambda config: (config.number("tile_width"),) * 3,
    smem_elements=lambda config: (
        2 * config.number("tile_width") * (config.number("tile_width") + config.number("skew"))
    ),
    # Phases of the smallest tile are short enough for the compiler to unroll several of them.
    registers=lambda dtype, config: 72 if config.number("tile_width") == 4 else 48 + config.number("unroll") // 2,
    reuse=lambda config: (config.number("tile_width"),) * 2,
    smem_loads=lambda config: 1 + 1 / config.number("tile_width"),
)

FAMILIES.update({family.name: family for family in (NAIVE, TILED, SIMT, SKINNY, DMMA)})


def family_of(config: Config) -> Family:
    """The family of a config. Raises ConfigError listing the known ones."""
    check(config.family in FAMILIES, f"family must be one of {', '.join(FAMILIES)}, got {config.family!r}", ConfigError)
    return FAMILIES[config.family]


def complete(config: Config) -> Config:
    """The config with every parameter of its family, in order, defaults filled in.

    Raises ConfigError for an unknown family, parameter or value, listing the known ones.
    """
    family = family_of(config)
    known = {parameter.name: parameter for parameter in family.parameters}
    given: dict[str, Value] = {}
    for name, value in config.values:
        check(name in known, f"{family.name} has the parameters {', '.join(known)}, got {name!r}")
        check(name not in given, f"{name} is given twice")
        choices = known[name].choices
        allowed = any(type(value) is type(choice) and value == choice for choice in choices)
        check(allowed, f"{name} must be one of {_told(choices)}, got {value!r}")
        given[name] = value
    return Config(family.name, tuple((name, given.get(name, known[name].default)) for name in known))


def _told(choices: tuple[Value, ...]) -> str:
    if len(choices) > _MOST_TOLD and choices == tuple(range(len(choices))):
        return f"0 to {len(choices) - 1}"
    return ", ".join(map(str, choices))


def rejections(problem: Problem, config: Config, arch: Arch) -> Iterator[str]:
    """The reason of each constraint that the (complete) config breaks."""
    family = family_of(config)
    for constraint in (*family.constraints, *COMMON):
        if not constraint.holds(problem, config, arch):
            yield constraint.sentence(config)


def require(problem: Problem, config: Config, arch: Arch) -> None:
    """Raise ConfigError with the first reason for which the config cannot serve the problem."""
    for reason in rejections(problem, config, arch):
        raise ConfigError(f"{config} cannot serve {problem} on {arch.name}: {reason}")


_FOR_ROWS = ("pack_a", "pack_b", "staged_c")
"""What a config has for rows that are not aligned, or that run along k."""


def fitted(config: Config, problem: Problem, arch: Arch, edges: tuple[Value, ...]) -> Config | None:
    """The (complete) config as it serves a problem: with the first of `edges` and the widest vectors that do.

    The tiles stay. Operands are packed and sums pass through shared memory no more where that is hopeless for the
    problem. None where it cannot serve the problem.
    """
    parameters = family_of(config).parameters
    hopeless = {p.name: p.default for p in parameters if p.name in _FOR_ROWS and not p.worth(problem, config[p.name])}
    vectors = [parameter for parameter in parameters if parameter.name.startswith("vec")]
    widths = sorted(itertools.product(*(parameter.choices for parameter in vectors)), key=_together, reverse=True)
    for edge, chosen in itertools.product(dict.fromkeys(edges), widths):
        changed = {"edge": edge, **hopeless, **{vector.name: width for vector, width in zip(vectors, chosen)}}
        fit = Config(config.family, tuple((name, changed.get(name, value)) for name, value in config.values))
        if next(rejections(problem, fit, arch), None) is None:
            return fit
    return None


def _together(widths: tuple[Value, ...]) -> int:
    return math.prod(width for width in widths if isinstance(width, int))


def canonical(config: Config) -> tuple[int, ...]:
    """Sort key of a complete config: families in order, then each parameter's place among its choices."""
    family = family_of(config)
    places = (parameter.choices.index(config[parameter.name]) for parameter in family.parameters)
    return (list(FAMILIES).index(config.family), *places)


def default_config(problem: Problem, arch: Arch) -> Config:
    """A config that serves any problem on any device of the arch: what runs where nothing was tuned.

    Raises ConfigError if the grid limit stands in the way.
    """
    config = complete(Config("tiled", ()))
    require(problem, config, arch)
    return config
