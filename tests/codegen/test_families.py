"""Parameters and constraints: what is refused, and what the reason says."""

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import FAMILIES, Family, complete, family_of, rejections, require
from tilewright.codegen.problem import DType, Problem
from variants import combinations

SM_90 = ARCHES["sm_90a"]
CUBE = Problem.parse("1024")


def reasons(text: str, problem: Problem = CUBE, arch: str = "sm_90a") -> list[str]:
    return list(rejections(problem, complete(Config.parse(text)), ARCHES[arch]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arch", ARCHES)
def test_defaults_serve_every_device_that_has_the_instructions(family: str, arch: str) -> None:
    refused = reasons(family, Problem.parse("1x2x3", "double"), arch)
    assert refused == [] or (family == "dmma" and "dmma.m16n8" not in ARCHES[arch].instructions)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_codes_and_names_are_unique(family: Family) -> None:
    assert len({parameter.name for parameter in family.parameters}) == len(family.parameters)
    assert len({parameter.code for parameter in family.parameters}) == len(family.parameters)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_is_allowed_stays_within_the_device(family: Family) -> None:
    for config in combinations(family):
        for dtype in DType:
            if not list(rejections(Problem.parse("1024", dtype), config, SM_90)):
                assert 1 <= family.threads(config) <= SM_90.max_threads_per_block
                assert family.smem_bytes(dtype, config) <= SM_90.smem_per_block_bytes
                assert family.registers(dtype, config) * family.threads(config) <= SM_90.registers_per_sm


def test_missing_values_become_the_defaults_in_order() -> None:
    config = complete(Config.parse("tiled:unroll=4"))
    assert str(config) == "tiled:tile_width=16,edge=bounds,skew=0,unroll=4"
    assert complete(config) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cutlass", "family must be one of naive, tiled.*, got 'cutlass'"),
        ("tiled:width=4", "tiled has the parameters tile_width, edge, skew, unroll, got 'width'"),
        ("tiled:tile_width=7", "tile_width must be one of 16, 4, 8, 32, got 7"),
        ("tiled:tile_width=wide", "tile_width must be one of .*, got 'wide'"),
        ("tiled:edge=guarded", "edge must be one of bounds, exact, pad, got 'guarded'"),
        ("tiled:edge=1", "edge must be one of .*, got 1"),
        ("tiled:unroll=4,unroll=4", "unroll is given twice"),
    ],
)
def test_unknown_or_mistyped_parameter_lists_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete(Config.parse(text))


def test_family_of_an_unknown_config_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="family must be one of naive, tiled"):
        family_of(Config("cutlass", ()))


@pytest.mark.parametrize("shape", ["33x32x32", "32x33x32", "32x32x33"])
def test_exact_edge_names_the_multiple(shape: str) -> None:
    (reason,) = reasons("tiled:tile_width=32,edge=exact", Problem.parse(shape))
    assert reason == "exact edges need m, n and k to be multiples of 32, 32, 32"


def test_exact_edge_of_the_naive_family_allows_any_depth() -> None:
    assert reasons("naive:block_m=4,block_n=8,edge=exact", Problem.parse("12x16x7")) == []
    (reason,) = reasons("naive:block_m=4,block_n=8,edge=exact", Problem.parse("12x15x7"))
    assert reason.endswith("multiples of 4, 8, 1")


@pytest.mark.parametrize("edge", ["bounds", "pad"])
def test_other_edges_serve_any_shape(edge: str) -> None:
    assert reasons(f"tiled:edge={edge}", Problem.parse("33x1x77")) == []


def test_exact_edge_serves_empty_problems() -> None:
    assert reasons("tiled:edge=exact", Problem(0, 0, 0)) == []


def test_too_many_threads_are_pruned_with_the_reason() -> None:
    assert "a block has at most as many threads as the device allows" in reasons("naive:block_m=32,block_n=64")


def test_unroll_above_the_tile_is_pruned_with_both_values() -> None:
    assert reasons("tiled:tile_width=4,unroll=8") == ["unroll 8 is at most tile_width 4"]


def test_grid_limit_is_pruned_with_the_reason() -> None:
    assert reasons("naive:block_m=1,block_n=1", Problem.parse("65536x65536x1")) == [
        "the grid has fewer than 2^31 blocks"
    ]


def test_require_names_config_problem_device_and_reason() -> None:
    config = complete(Config.parse("tiled:edge=exact"))
    with pytest.raises(ConfigError, match=r"tiled:.* cannot serve 1x1x1 float nn on sm_90a: exact edges need .* 16"):
        require(Problem(1, 1, 1), config, SM_90)


def test_every_reason_is_a_sentence_without_blanks_left_to_fill() -> None:
    for family in FAMILIES.values():
        config = complete(Config(family.name, ()))
        for constraint in family.constraints:
            assert "{" not in constraint.sentence(config)


def test_launch_covers_the_result() -> None:
    family = FAMILIES["tiled"]
    launch = family.launch(Problem.parse("33x17x5"), complete(Config("tiled", ())))
    assert launch.grid == (6, 1, 1)
    assert launch.block == (16, 16, 1)
    assert launch.threads == 256
    assert launch.static_smem_bytes == 2048
