"""The files of benchmarks/suites/."""

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.problem import Problem
from tilewright.tuner.bench.suites import parse_suite, suite_named, suite_names


def test_the_public_one_has_its_shapes() -> None:
    shapes = suite_named("public").shapes
    assert len(shapes) == len(set(shapes)) == 26
    assert shapes[0] == "1024x768x512"
    assert {"1x4096x4096", "64x64x65536", "65536x64x64", "3072x1500x1024"} < set(shapes)


@pytest.mark.parametrize("name", suite_names())
def test_each_can_be_read(name: str) -> None:
    suite = suite_named(name)
    assert suite.title
    assert all(Problem.parse(shape).shape == shape for shape in suite.shapes)


def test_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"suite must be one of public, small, got '../x'"):
        suite_named("../x")


@pytest.mark.parametrize("text", ["shapes = [", 'title = "x"', 'title = "x"\nshapes = []', 'title = "x"\nshapes = [3]'])
def test_a_damaged_one_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="suite mine: "):
        parse_suite("mine", text)
