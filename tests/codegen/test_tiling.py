"""What families share that compute tiles of C."""

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.tiling import GROUPS_PAY, registers_for, scalar, widest
from tilewright.tuner.search.legal import may_hold


@pytest.mark.parametrize(
    ("threads", "blocks", "registers"),
    [(32, 1, 255), (128, 2, 255), (128, 3, 168), (96, 3, 168), (192, 2, 168), (256, 2, 128), (160, 1, 255)],
)
def test_registers_go_to_warps_of_four_schedulers(threads: int, blocks: int, registers: int) -> None:
    """As NVRTC holds a kernel to them: nine warps take as many as twelve."""
    assert registers_for(threads, blocks) == registers


def test_blocks_of_three_warps_are_refused_where_they_would_spill() -> None:
    config = complete(Config.parse("dmma:block_m=64,block_n=96,warp_m=64,warp_n=32,prefetch=1,min_blocks=3"))
    reasons = list(rejections(Problem.parse("1024", "double"), config, ARCHES["sm_90a"]))
    assert reasons == ["registers of 3 blocks fit on a multiprocessor"]


@pytest.mark.parametrize(
    ("n", "dtype", "width"), [(64, "float", 4), (62, "float", 2), (63, "float", 1), (64, "double", 2)]
)
def test_the_widest_vector(n: int, dtype: str, width: int) -> None:
    assert widest(Problem.parse(f"64x{n}x64", dtype), "b") == width


@pytest.mark.parametrize("text", ["simt:vec_a=4,vec_b=2,vec_c=4", "dmma:vec_a=2,vec_b=2", "skinny:vec=4"])
def test_a_scalar_twin_differs_in_vectors_alone(text: str) -> None:
    config = complete(Config.parse(text))
    changed = {name for name, value in scalar(config).values if value != config[name]}
    assert changed == {part.partition("=")[0] for part in text.partition(":")[2].split(",")}


def test_a_few_values_break_only_the_rules_that_they_decide() -> None:
    problem, arch, simt = Problem.parse("4096"), ARCHES["sm_90a"], FAMILIES["simt"]
    assert may_hold(problem, arch, simt, simt.advice, {})
    assert may_hold(problem, arch, simt, simt.advice, {"block_m": 128, "block_n": 128})
    assert not may_hold(problem, arch, simt, simt.advice, {"block_m": 256, "block_n": 32})
    assert not may_hold(Problem.parse("4096", "double"), arch, simt, simt.advice, {})


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [
        ("1024x1024x64", "double", {1}),  # 256 tiles, and caches hold all of A and B
        ("128x12288x4096", "double", {1, 4}),  # 384 tiles: two that share 2 MB of B would else run far apart
        ("8192x64x4096", "double", {1}),  # one column of tiles
        ("256x32768x4096", "float", {4}),  # 2048 tiles in 4 rows
        ("8192x8192x64", "float", {4, 8, 16}),
    ],
)
def test_tiles_are_grouped_where_it_can_make_a_difference(shape: str, dtype: str, groups: set[int]) -> None:
    problem, arch = Problem.parse(shape, dtype), ARCHES["sm_90a"]
    configs = (complete(Config.parse(f"dmma:group_m={group}")) for group in (1, 4, 8, 16))
    assert {config["group_m"] for config in configs if GROUPS_PAY.holds(problem, config, arch)} == groups
