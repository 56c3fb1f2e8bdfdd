"""Families and their rules: configs that are refused, reasons, and launches."""

import pytest
from quick import TYPICAL
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import default_config, families, parse
from tilewright.codegen.fit import nearest_fit
from tilewright.codegen.legality import rejections, require, rules_of, serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.target import Target
from variants import coarse, combinations

pytestmark = pytest.mark.fast

SM_90 = TYPICAL["sm_90a"]
CUBE = Problem.parse("1024")


def reasons(text: str, problem: Problem = CUBE, arch: str = "sm_90a") -> list[str]:
    return list(rejections(problem, parse(text), TYPICAL[arch]))


@pytest.mark.parametrize("target", TYPICAL.values(), ids=TYPICAL)
def test_the_default_config_serves_any_problem(target: Target) -> None:
    for problem in (Problem.parse("1x2x3"), Problem.parse("1023x769x511", "double", "tt")):
        assert str(default_config(problem, target)) == "tiled:16"


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_legal_configs_stay_within_the_limits_of_the_device(family: type[Config]) -> None:
    for config in combinations(family):
        for dtype in DType:
            if serves(config, coarse(Problem.parse("1024", dtype)), SM_90):
                assert 1 <= config.threads <= SM_90.arch.max_threads_per_block
                assert config.smem_bytes(dtype) <= SM_90.arch.smem_per_block_bytes


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_registers_are_no_more_than_a_thread_and_a_cta_can_have(family: type[Config]) -> None:
    """Illegal configs have launch bounds too, which limit the compiler to these registers."""
    least = min(arch.registers_per_sm for arch in ARCHES.values())
    for config in combinations(family):
        for dtype in DType:
            registers = config.registers(nearest_fit(Problem.parse("1024", dtype), config), dtype)
            assert registers <= 255
            assert registers * config.threads <= least


@pytest.mark.parametrize("edge", ["fit", "bounds", "pad"])
def test_every_edge_serves_any_shape(edge: str) -> None:
    assert reasons(f"tiled:16,edge={edge}", Problem.parse("33x1x77")) == []


@pytest.mark.parametrize(
    ("text", "shape", "reason"),
    [
        ("simt:64x64x16,persistent=2", "1024", "the work is shared out by none, split_k, stream_k"),
        ("simt:64x64x16,stream_k=8", "1024", "parts 8 suits stream_k"),
        ("skinny:4x4x4,split_k=2,reduce=cluster", "1024", "CTAs that share a tile of C add up in the workspace"),
        ("simt:16x16x8,thread=2,lanes_m=4,stream_k=1", "2147483647x64x16384",
         "CTAs that share out k count fewer than 2^32 tiles of k, of all tiles of C"),
    ],
)  # fmt: skip
def test_a_reason_names_the_broken_rule(text: str, shape: str, reason: str) -> None:
    assert reasons(text, Problem.parse(shape)) == [reason]


@pytest.mark.parametrize("split", ["stream_k=2", "split_k=4"])
def test_the_workspaces_of_all_products_of_a_batch_are_limited(split: str) -> None:
    text = f"dmma:16x16x8,warp=16,fragments=single,{split}"
    each = parse(text).workspace_bytes(Problem.parse("11x11x11", "double"), SM_90.sm_count)
    most = 2**30 // each
    assert reasons(text, Problem.parse("11x11x11", "double", batch=most)) == []
    too_many = Problem.parse("11x11x11", "double", batch=most + 1)
    assert reasons(text, too_many) == ["the workspaces of a batch take at most 1 GiB"]


def test_require_names_config_problem_device_and_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"dmma:64x64x16 cannot serve 1x1x1 float nn on sm_90a; required: the tensor cores multiply"
    ):
        require(Problem(1, 1, 1), parse("dmma:64x64x16"), SM_90)


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_every_reason_is_a_sentence_without_placeholders(family: type[Config]) -> None:
    for rule in rules_of(family):
        assert "{" not in rule.reason.format(c=family())
        assert "{" not in rule.title


@pytest.mark.parametrize(
    ("text", "shape", "ctas", "threads", "smem_bytes", "workspace_bytes"),
    [
        ("tiled:16", "33x17x5", 6, 256, 2048, 0),
        ("simt:64x64x8,split_k=4", "130x64x512", 3 * 4, 64, None, 3 * (4 * 64 * 64 * 4 + 4)),
        ("simt:64x64x8,stream_k=2", "640x640x512", 2 * 7 + 98 - 98 % 14, 64, None, None),
    ],
)
def test_launch_covers_the_result(
    text: str, shape: str, ctas: int, threads: int, smem_bytes: int | None, workspace_bytes: int | None
) -> None:
    config, problem = parse(text), Problem.parse(shape)
    launch = config.launch_config(problem, 7)
    assert launch.grid == (ctas, 1, 1)
    assert launch.threads == threads
    assert smem_bytes in (None, launch.static_smem_bytes)
    assert workspace_bytes in (None, config.workspace_bytes(problem, 7))


@pytest.mark.parametrize("batch", [1, 65_535, 65_536, 70_000, 131_070, 131_071, 2**31 - 1])
def test_the_products_of_a_batch_fill_a_grid(batch: int) -> None:
    x, y, z = parse("naive:8x32").launch_config(Problem(4, 4, 4, batch=batch), 7).grid
    assert (x, max(y, z) < 65_536) == (1, True)
    assert 0 <= y * z - batch < z == -(-batch // 65_535)


@pytest.mark.parametrize(
    ("shape", "ctas"), [("64", 7), ("448x64x64", 14), ("512x64x64", 14), ("832x64x64", 14), ("896x64x64", 21)]
)
def test_stream_k_shares_the_tiles_that_do_not_fill_a_wave(shape: str, ctas: int) -> None:
    """Seven CTAs on seven SMs share these tiles. Each whole wave of tiles before them has CTAs of its own."""
    config, problem = parse("simt:64x64x8,stream_k=1"), Problem.parse(shape)
    assert config.ctas_along_x(problem, 7) == ctas
    assert config.workspace_bytes(problem, 7) == 7 * (2 * 64 * 64 * 4 + 4)
