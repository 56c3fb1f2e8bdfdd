"""Rendered text and reversible kernel names."""

import itertools
import re

import pytest
from jinja2 import UndefinedError
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.environment import environment, tidy
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import FAMILIES, Family, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import kernel_name, parse_kernel_name, render
from tilewright.codegen.source import KernelSource, identifier
from variants import combinations, dtypes, worth_trying

SM_90 = ARCHES["sm_90a"]
EDGES = ("exact", "bounds", "pad")
TRANS = ("nn", "nt", "tn", "tt")


def source(text: str, shape: str = "1024x768x512", dtype: str = "float", trans: str = "nn") -> KernelSource:
    return render(Problem.parse(shape, dtype, trans), Config.parse(text), SM_90)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_kernel_name_is_read_back_and_is_an_identifier(family: Family) -> None:
    names = set()
    configs = {*combinations(family, 500), *worth_trying(family, "sm_90a"), *worth_trying(family, "sm_120")}
    for config in configs:
        for dtype, trans in itertools.product(DType, TRANS):
            name = kernel_name(config, dtype, trans)
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
            # Longer than what a user may choose, within what every compiler takes; what cannot be may be longer.
            possible = not list(rejections(Problem(1024, 1024, 1024, dtype, *(t == "t" for t in trans)), config, SM_90))
            assert len(name) <= 127 or not possible
            assert parse_kernel_name(name) == (config, dtype, trans)
            names.add(name)
    assert len(names) == 8 * len(configs)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gemm",
        "gemm_tiled_f32_nn",
        "gemm_tiled_f16_nn_tw16_ebounds_s0_u8",
        "gemm_tiled_f32_xx_tw16_ebounds_s0_u8",
        "gemm_tiled_f32_nn_tw7_ebounds_s0_u8",
        "gemm_tiled_f32_nn_tw16_ebounds_s0_u8_frame",
        "gemm_tiled_f32_nn_tw16_ebounds_s0_u8\n",
        "../gemm_tiled_f32_nn_tw16_ebounds_s0_u8",
    ],
)
def test_other_names_are_not_read(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a tilewright kernel"):
        parse_kernel_name(name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("edge", EDGES)
def test_text_says_what_it_is_and_how_it_is_launched(family: str, edge: str) -> None:
    kernel = source(f"{family}:edge={edge}", dtype=dtypes(FAMILIES[family])[0].value)
    config, dtype, trans = parse_kernel_name(kernel.name)
    # A long config goes over several lines of the banner.
    said = re.sub(r"\n// +", " ", kernel.code)
    (written,) = re.findall(r'--config\s+"([^"]*)"', said)
    assert complete(Config.parse(written)) == config
    assert f"--dtype {dtype.value} --trans {trans}" in said
    assert kernel.code.startswith(f"// {kernel.name}\n")
    assert kernel.code.count('extern "C" __global__') == (2 if edge == "pad" else 1)
    assert f"({kernel.launch.block[0]}, {kernel.launch.block[1]}, 1): {kernel.launch.threads} threads" in kernel.code
    assert re.search(r"digest [0-9a-f]{16}\.", kernel.code)
    assert kernel.template in kernel.code
    assert "{{" not in kernel.code
    assert "{%" not in kernel.code
    assert (kernel.frame is not None) == (edge == "pad")
    assert kernel.multiples == (FAMILIES[family].multiples(config) if edge == "pad" else (1, 1, 1))


def test_same_input_gives_the_same_bytes_and_other_sizes_too() -> None:
    assert source("tiled").code == source("tiled").code == source("tiled", "7x8x9").code
    assert source("tiled").digest == source("tiled", "7x8x9").digest


def test_whatever_matters_changes_the_digest() -> None:
    kernels = [
        source("tiled"),
        source("tiled", trans="nt"),
        source("tiled", dtype="double"),
        source("tiled:unroll=4"),
    ]
    assert len({kernel.digest for kernel in kernels}) == 4
    assert len({kernel.name for kernel in kernels}) == 4


def test_config_that_cannot_serve_is_refused_before_rendering() -> None:
    with pytest.raises(ConfigError, match="multiples of 16, 16, 16"):
        source("tiled:edge=exact", "1000x1000x1000")


def test_constraints_become_static_asserts() -> None:
    code = source("tiled:tile_width=8,unroll=8").code
    assert 'static_assert(UNROLL <= TILE_WIDTH, "unroll 8 is at most tile_width 8");' in code
    assert "static_assert(THREADS <= 1024," in code


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_parameter_is_a_constant_with_its_meaning(family: Family) -> None:
    code = source(family.name, dtype=dtypes(family)[0].value).code
    config = complete(Config(family.name, ()))
    for parameter in family.parameters:
        if parameter.constant:
            constant = f"{parameter.name.upper()} *= {config[parameter.name]};"
            assert re.search(rf"constexpr int {constant} *// {re.escape(parameter.meaning)}\n", code)


def test_a_name_missing_from_a_template_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nowhere }}").render()


def test_tidy_removes_trailing_blanks_and_runs_of_empty_lines() -> None:
    assert tidy("\na  \n\n\n\nb\t\n\n") == "a\n\nb\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1a",
        "a b",
        "a-b",
        "a;b",
        "a\n",
        "../a",
        "é",
        "a" * 65,
        "int",
        "template",
        "co_await",
        "*/",
        "a//",
        '"',
    ],
)
def test_hostile_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="kernel must"):
        identifier(name, "kernel")


@pytest.mark.parametrize("name", ["a", "_", "gemm_2", "A" * 64])
def test_plain_identifier_passes(name: str) -> None:
    assert identifier(name) == name
