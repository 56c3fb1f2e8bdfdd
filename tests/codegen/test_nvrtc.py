"""A sample of all variants, compiled to machine code for four generations: no GPU is needed for that."""

import random

import pytest
from nvrtc import TARGETS, Row, assert_as_predicted, variants
from targets import TYPICAL
from tilewright.codegen.families import families
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.elf import code_digest
from variants import instance_of, variant

VARIANTS = 50
"""Variants that are compiled for each target."""


def sample() -> list[Row]:
    """The same variants each time, as many of each family and the same for every target that has the instructions."""
    generator = random.Random(1)
    chosen = []
    for i, family in enumerate(families().values()):
        count = VARIANTS // len(families()) + (i < VARIANTS % len(families()))
        chosen += generator.sample(list(variants(family)), count)
    rows = [(text, target) for text in chosen for target in TARGETS]
    return [row for row in rows if is_offered(*row)]


def is_offered(text: str, target: str) -> bool:
    """Whether the target can hold the instance."""
    problem, fit = instance_of(text)
    return serves(fit.config, problem, TYPICAL[target])


# One test, so that tests spread over processes do not compile the sample more than once.
@pytest.mark.nvrtc
def test_compiled_variants_are_what_was_predicted() -> None:
    rows = sample()
    assert len(rows) > VARIANTS * (len(TARGETS) - 2)
    assert {instance_of(text)[1].config.family for text, _ in rows} == set(families())
    assert_as_predicted(rows)


@pytest.mark.nvrtc
def test_the_same_code_under_two_names_is_one() -> None:
    from tilewright.runtime.device.cuda import NvrtcCompiler

    def digest(text: str) -> str:
        source = render(Problem(32, 32, 32), variant(text), TYPICAL["sm_90a"])
        return code_digest(compile_cached(NvrtcCompiler("sm_90a"), source).image, source)

    # Where tiles divide the shape the guard is gone, and pad differs by the kernel that copies alone.
    assert digest("tiled:16,unroll=16") == digest("tiled:16,unroll=16")
    assert digest("tiled:16,unroll=16") != digest("tiled:16,unroll=1")
    assert digest("tiled:16") != digest("tiled:16,edge=pad")
