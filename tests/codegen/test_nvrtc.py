"""A sample of all variants, compiled to machine code for four generations: no GPU is needed for that."""

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from nvrtc import TARGETS, Row, assert_as_predicted
from search_spaces import tried
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import families, parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.tuner.search.legal import may_hold
from tilewright.tuner.search.policies import policy_of
from variants import FEW, coarse, combinations, dtypes

VARIANTS = 50
"""Variants that are compiled for each target."""


def listed(family: type[Config]) -> list[Config]:
    """A sample of what a search tries in double, which float can hold too, if the family has it."""
    dtype = dtypes(family)[-1].value
    problem = coarse(Problem.parse("16x1024x1024" if family.family == "skinny" else "1024", dtype))
    configs = tried(problem, targets_of(family)[-1], family.family, min_ctas=(1, 2), l2_prefetch=(0, 1))
    return random.Random(1).sample(configs, min(300, len(configs)))


def targets_of(family: type[Config]) -> list[str]:
    """The targets that have the instructions."""
    if family().accuracy is not Grade.IEEE:
        return [target for target in TARGETS if serves(family(), coarse(Problem.parse("1024")), ARCHES[target])]
    return [target for target in TARGETS if target != "sm_80" or not family.tensor_cores]


def variants(family: type[Config]) -> Iterator[tuple[str, str, str]]:
    """Every config that all targets can hold that have the instructions, with each dtype and transposition."""
    small = math.prod(len(leaf.choices) for leaf in family.leaves()) <= FEW
    targets = targets_of(family)
    for config in combinations(family) if small else listed(family):
        for dtype, trans in itertools.product(DType, ("nn", "nt", "tn", "tt")):
            problem = coarse(Problem.parse("1024", dtype, trans))
            if all(serves(config, problem, ARCHES[target]) for target in targets):
                yield str(config), dtype.value, trans


def sample() -> list[Row]:
    """The same variants each time, as many of each family and the same for every target that has the instructions."""
    generator = random.Random(1)
    chosen = []
    for i, family in enumerate(families().values()):
        count = VARIANTS // len(families()) + (i < VARIANTS % len(families()))
        chosen += generator.sample(list(variants(family)), count)
    rows = [(*variant, target) for variant in chosen for target in TARGETS]
    return [row for row in rows if is_offered(*row)]


def is_offered(text: str, dtype: str, trans: str, target: str) -> bool:
    """Whether the target can hold the variant, and its family is for this type there."""
    config, problem, arch = parse(text), coarse(Problem.parse("1024", dtype, trans)), ARCHES[target]
    advice = policy_of(config.family).advice
    return serves(config, problem, arch) and may_hold(problem, arch, type(config), advice, {})


# One test, so that tests spread over processes do not compile the sample more than once.
def test_compiled_variants_are_what_was_predicted() -> None:
    pytest.importorskip("cupy")
    rows = sample()
    assert len(rows) > VARIANTS * (len(TARGETS) - 2)
    assert {parse(text).family for text, *_ in rows} == set(families())
    assert_as_predicted(rows)
