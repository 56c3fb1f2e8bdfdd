"""Configs by the names of their fields, and samples of a family's configs, which are the same in each run."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from quick import TYPICAL
from search_spaces import sampled
from tilewright.codegen.config import Config
from tilewright.codegen.families import families, family_named, parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge, Leaf, Value
from tilewright.codegen.legality import rejections
from tilewright.codegen.mechanisms.blocked import registers_held_to
from tilewright.codegen.mechanisms.split import proposed_parts
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.codegen.text import values_of

_MODES = {"split_k": 1, "stream_k": 0, "persistent": 1}
"""Ways to share out the work, with the number of parts at which the work is not shared out."""


PLAIN: dict[str, dict[str, Value]] = {
    "simt": {"block_k": 8, "thread_m": 4, "thread_n": 4, "load": "registers", "stages": 2, "fragments": "single"},
    "dmma": {"fragments": "single"},
}
"""Values by family from which tests start, where the default is already an optimisation."""


def variant(text: str, **changes: Value) -> Config:
    """The plainest config with the values of the text and the changes, `variant("simt:128x64x8,stages=2", slices=2)`.
    One of `split_k`, `stream_k` and `persistent` says how work is shared out, and its value in how many parts."""
    name, _, rest = text.partition(":")
    family = family_named(name)
    values = values_of(rest, dict(family.joined))
    return changed(family.of({**PLAIN.get(name, {}), **values}), **changes)


def changed(config: Config, **changes: Value) -> Config:
    """The config with other plain values of some fields."""
    values = dict(config.values)
    for name, value in changes.items():
        if name not in _MODES:
            values[name] = value
        elif value != _MODES[name]:
            values |= {"mode": name, "parts": value}
        elif values["mode"] == name:
            values |= {"mode": "none", "parts": 1}
    return type(config).of(values)


def field(config: Config, name: str) -> Any:
    """The plain value of a config's field; for `split_k`, `stream_k` and `persistent`, the number of parts."""
    values = dict(config.values)
    if name in _MODES:
        return values["parts"] if values["mode"] == name else _MODES[name]
    return values[name]


def cta_tile(config: Config) -> tuple[int, int, int]:
    """Rows, columns and steps of k that a CTA computes at a time."""
    return config.cta_tile


FEW = 5000
"""Number of combinations up to which `combinations` yields all."""


def proposed(leaf: Leaf) -> tuple[Any, ...]:
    """Values of a parameter that searches try on a device of 132 SMs."""
    return proposed_parts(132) if isinstance(leaf.choices, range) else tuple(leaf.choices)


def combinations(family: type[Config], count: int = FEW) -> Iterator[Config]:
    """Combinations of the values of a family's parameters, illegal ones too: all, or `count` drawn ones."""
    names = [leaf.name for leaf in family.leaves()]
    choices = [proposed(leaf) for leaf in family.leaves()]
    rows: Iterator[tuple[Any, ...]] = itertools.product(*choices)
    if math.prod(map(len, choices)) > FEW:
        generator = random.Random(1)
        # Few of the many numbers of parts suit a mode, so that the default is drawn half of the time.
        weighted = [(leaf.default,) * len(each) + each for leaf, each in zip(family.leaves(), choices)]
        rows = (tuple(generator.choice(values) for values in weighted) for _ in range(count))
    for values in rows:
        yield family.build(dict(zip(names, values, strict=True)))


def dtypes(family: type[Config]) -> list[DType]:
    """Types in which the family computes on a device that has all its instructions."""
    return [
        dtype for dtype in DType if not list(rejections(coarse(Problem(1, 1, 1, dtype)), family(), TYPICAL["sm_90a"]))
    ]


def product_families() -> dict[str, type[Config]]:
    """Families that serve single products, by name. A family may serve batches alone."""
    return {name: family for name, family in families().items() if dtypes(family)}


WHOLE, RAGGED, ODD = "1024x768x512", "1020x764x516", "1021x767x509"
"""Shapes whose sides default tiles divide, whose rows vectors divide but tiles do not, and whose rows are odd."""


def edges(name: str) -> list[tuple[str, str]]:
    """Texts of a family's configs and shapes: a pair for each way in which its kernels treat edges of matrices."""
    pairs = [(f"{name}:", WHOLE), (f"{name}:", RAGGED)]
    pads = any(leaf.name == "edge" for leaf in family_named(name).leaves())
    return [*pairs, (f"{name}:edge=pad", RAGGED)] if pads else pairs


def instance_text(problem: Problem, fit: Fit) -> str:
    """Text of an instance, which `instance_of` reads back: `float nn exact 4x4x4 simt:64x64x16`."""
    widths = f"{fit.vec_a}x{fit.vec_b}x{fit.vec_c}"
    return f"{problem.dtype.value} {problem.trans} {fit.edge} {widths} {fit.config}"


def instance_of(text: str) -> tuple[Problem, Fit]:
    """The instance of a text, and a large problem of its type and transposes."""
    dtype, trans, edge, widths, config = text.split(" ", 4)
    vec_a, vec_b, vec_c = map(int, widths.split("x"))
    return coarse(Problem.parse("1024", dtype, trans)), Fit(parse(config), Edge(edge), vec_a, vec_b, vec_c)


def instances(config: Config, dtype: str, trans: str) -> list[str]:
    """Texts of a config's instances with the widest vectors, for a problem of whole tiles and for one whose rows are
    only whole vectors."""
    problems = [coarse(Problem.parse(shape, dtype, trans)) for shape in ("1024", "1020x1012x1004")]
    pairs = [(problem, config.fit(problem)) for problem in problems]
    return list(dict.fromkeys(instance_text(problem, fit) for problem, fit in pairs if fit))


def one_each(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """The rows, with the text of an instance in place of config, type and transposes: the first or second in turn."""
    result = []
    for number, (config, dtype, trans, *more) in enumerate(rows):
        texts = instances(parse(config), dtype, trans)
        result.append((texts[number % len(texts)], *more))
    return result


def coarse(problem: Problem) -> Problem:
    """The problem with the coarsest accuracy of its type, which every family serves."""
    return replace(problem, accuracy=Grade.NORMWISE) if problem.dtype is DType.FLOAT else problem


def worth_trying(family: type[Config], arch: str, count: int = 300) -> list[Config]:
    """A sample of the configs of a family that searches try on a target."""
    configs = sampled(family.family, arch)
    return random.Random(1).sample(configs, min(count, len(configs)))


def most_spilled_bytes(fit: Fit, target: str, dtype: DType, nvrtc: tuple[int, ...]) -> int:
    """Bytes that this version of NVRTC may spill in an instance that searches try: next to nothing."""
    config: Any = fit.config
    if config.family == "skinny" and config.tile.block_short >= 8:
        # Tiles of many short rows have 128 registers, or take all registers. They spill a few words in the main loop.
        return 96 if config.tile.block_short >= 16 else 16 if registers_held_to(config) == 128 else 0
    if config.family == "wgmma":
        # One pair of words, where k is not innermost in B, no terms can hold its elements and all registers are taken.
        return 8
    full = config.registers(fit, dtype) == registers_held_to(config)
    if config.family == "tf32x3":
        if not (full and nvrtc > (13, 0)):
            return 0
        # A thread with as much of C as it can hold spills operands that it reads ahead, with more than two steps of k.
        deep = config.tile.accumulators >= 64 and config.tile.block_k > 16 * config.tile.slices
        bytes_ = {"sm_80": 8, "sm_100": 16, "sm_120": 48} if deep else {"sm_120": 8}
        # A CTA of the last wave also spills the numbers of its parts, outside of the main loop.
        return max(bytes_.get(target, 0), 16 if config.stream_ctas_per_sm and config.pipeline.interleave > 1 else 0)
    if config.family not in ("simt", "dmma"):
        return 0
    if config.producer_threads and target == "sm_120":
        return 8  # an argument of the function that checks the target of a TMA copy on sm_120
    if config.family == "dmma":  # two pairs of words between two main loops, where all registers are taken
        if full and config.stream_ctas_per_sm:  # also the numbers of a CTA's parts, outside of the main loop
            return 168 if config.cta_tile[0] == 80 else 64
        if config.persistent_tiles > 1:
            return (40 if target == "sm_100" else 16) if full else 0
        return 8 if full and (target == "sm_100" or config.split_ctas > 1) else 0
    # A thread that takes all registers spills words that it needs only after the main loop, to share out k or to copy:
    # one or two pairs, written before the loop and read after it. For sm_100 a thread of 128 accumulators spills one.
    if full and (config.split_ctas > 1 or config.stream_ctas_per_sm or config.pipeline.interleave > 1):
        both = config.split_ctas > 1 and config.pipeline.interleave > 1
        if both and config.pipeline.interleave > 2:
            return {"sm_100": 48, "sm_120": 72}.get(target, 56)
        if config.stream_ctas_per_sm and config.tile.slices > 1:  # also the part of a tile that a slice has
            return {"sm_80": 88}.get(target, 48)
        return {"sm_80": 56, "sm_100": 32}.get(target, 24) if both else 16
    return 8 if target == "sm_100" and config.tile.accumulators >= 128 else 0
