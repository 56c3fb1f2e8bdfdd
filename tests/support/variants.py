"""Configs of a family: all combinations where they are few, else a sample that is the same each time."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config, Value
from tilewright.codegen.families import FAMILIES, Family, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.tiling import registers_held_to
from tilewright.tuner.search.candidates import Choices, read_spaces
from tilewright.tuner.search.legal import combine

FEW = 5000
"""Combinations up to which all are taken."""
MANY = 40
"""Values of a parameter above which they are hardly told apart."""


def combinations(family: Family, count: int = FEW) -> Iterator[Config]:
    """Combinations of the family's choices, the impossible ones too."""
    names = [parameter.name for parameter in family.parameters]
    choices = [parameter.choices for parameter in family.parameters]
    rows: Iterator[tuple[int | str, ...]] = itertools.product(*choices)
    if math.prod(map(len, choices)) > FEW:
        generator = random.Random(1)
        # Of many values the default has half: few others go with most of what else there is.
        dealt = [values if len(values) <= MANY else (values[0],) * len(values) + values for values in choices]
        rows = (tuple(generator.choice(values) for values in dealt) for _ in range(count))
    for values in rows:
        yield Config(family.name, tuple(zip(names, values, strict=True)))


def dtypes(family: Family) -> list[DType]:
    """The types that the family computes in where a device has all it asks for."""
    config = complete(Config(family.name, ()))
    return [dtype for dtype in DType if not list(rejections(Problem(1, 1, 1, dtype), config, ARCHES["host"]))]


def worth_trying(family: Family, arch: str, count: int = 300) -> list[Config]:
    """A sample of what the shipped space holds for a cube of 1024, or for 16 rows where it has nothing for that, in
    double, which float can hold too."""
    (chosen,) = (entry for entry in read_spaces() if entry.family == family.name)
    for m in (1024, 16):
        configs, _ = combine(Problem(m, 1024, 1024, DType.DOUBLE), ARCHES[arch], family, dict(chosen.parameters))
        if configs:
            break
    return random.Random(1).sample(configs, min(count, len(configs)))


def settled(*families: str, **values: tuple[Value, ...]) -> tuple[Choices, ...]:
    """The shipped spaces of some families with few values for what has no part in which tiles, vectors and ways to
    share them out are tried, unless values are given: a fraction of the configs to list."""
    fixed: dict[str, tuple[Value, ...]] = {"group_m": (1, 8), "min_blocks": (1,), "warm_l2": (0,), **values}
    return tuple(
        replace(choices, parameters=tuple((name, fixed.get(name, given)) for name, given in choices.parameters))
        for choices in read_spaces()
        if choices.family in families
    )


_WAITING = {"split_k": 1, "copy_groups": 1, "stream_k": 0}
"""Parameters of simt, and the value above which a thread needs more before and after its main loop."""


def most_spilled_bytes(config: Config, target: str, dtype: str) -> int:
    """What the compiler may put away of a variant that is offered: next to nothing."""
    if config.family == "skinny" and config.number("count") >= 16:
        return 96  # many short rows leave 128 registers, or take all there are: a few words wait in the main loop
    if config.family not in ("simt", "dmma"):
        return 0
    if config.family == "simt" and config["bulk"] == 1 and target == "sm_120":
        return 8  # no register: the argument of what the compiler calls for sm_120 to check a tensor copy's target
    full = FAMILIES[config.family].registers(DType.parse(dtype), config) == registers_held_to(config)
    if config.family == "dmma":  # of a thread that takes all registers two pairs of words between two main loops
        if full and config.number("stream_k") > 0:  # and which parts a block has, outside of the main loop too
            return 64
        return 16 if full and config.number("persistent") > 1 else 0
    # Of a thread that takes all registers what blocks that share out k, or where copies go, need only at the end waits
    # in memory during the main loop: one or two pairs of words, written before it and read after it. So does a pair of
    # a thread of 128 sums for sm_100.
    if full and any(config.number(name) > least for name, least in _WAITING.items()):
        return 16
    return 8 if target == "sm_100" and config.number("thread_m") * config.number("thread_n") >= 128 else 0
