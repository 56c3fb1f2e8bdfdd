"""The simt family: what its rules refuse, and what the compiler makes of it."""

import itertools
import random
from typing import Any

import pytest
from nvrtc import TARGETS, Row, assert_as_predicted
from search_spaces import tried
from targets import TYPICAL
from tilewright.codegen.families import parse
from tilewright.codegen.legality import fitted, rejections, serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from variants import changed, instance_of, one_each, variant

SM_90 = TYPICAL["sm_90a"]


def reasons(
    text: str, problem: str = "1024", dtype: str = "float", trans: str = "nn", arch: str = "sm_90a"
) -> list[str]:
    return list(rejections(Problem.parse(problem, dtype, trans), variant(f"simt:{text}"), TYPICAL[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "dtype", "trans", "reason"),
    [
        ("block_m=16,thread_m=4,lanes_m=8", "1024", "float", "nn", "block_m 16 is a multiple of the rows of a warp"),
        ("block_n=16,thread_n=8,lanes_m=8", "1024", "float", "nn", "block_n 16 is a multiple of the columns of a"),
        ("stages=3", "1024", "float", "nn", "tiles that pass through registers use two stages, not 3"),
        ("k_inner_a=1", "1024", "float", "tn", "k is innermost in the tiles of an operand only if its stored rows run"),
        ("k_inner_b=1", "1024", "float", "nn", "k is innermost in the tiles of an operand only if its stored rows run"),
        ("fragments=double,slices=4,block_k=8,k_inner_a=1", "1024", "float", "nn", "block_k 8 is whole steps for"),
        ("128x16x32,lanes_m=16,thread=8x8", "1024", "float", "nn", "copies"),
        ("256x128x32,thread=16x8", "1024", "float", "nn", "at most 2560"),
        ("thread=8x8,block_m=128,block_n=128,min_ctas=3", "1024", "float", "nn", "registers of 3"),
        ("block_m=40,thread_m=5,lanes_m=2", "1024", "float", "nn", "the rows of a warp, 10, and its columns, 64, are"),
        ("block_n=40,thread_n=5,lanes_m=16", "1024", "float", "nn", "its columns, 10, are whole vectors of 16 bytes"),
        ("thread_m=2,block_k=64,slices=16", "1024", "float", "nn", "the accumulators of a thread, 8, are as many"),
        ("thread=8x8,block_k=128,slices=2", "1024", "float", "nn", "a thread copies at most 32 elements"),
        ("min_ctas=8,block_m=128,block_n=128", "1024", "float", "nn", "threads and shared memory of 8 CTAs fit"),
        ("interleave=2", "1024", "float", "nn", "interleave 2 is for cp.async"),
        ("interleave=4,load=cp_async,fragments=double,block_k=8,slices=2", "1024", "float", "nn", "interleave 4 is"),
        ("interleave=4,32x32x16,thread=4x4,load=cp_async,stages=3,slices=4", "64", "float", "tn", "at most the copies"),
        ("slice_barriers=1", "1024", "float", "nn", "barriers of their own are for several slices"),
        ("32x32x64,slices=16,slice_barriers=1", "1024", "float", "nn", "at most 15 or of one warp each"),
        ("l2_prefetch=1,stream_k=1", "1024", "float", "nn", "and the CTA has one tile of C"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, problem: str, dtype: str, trans: str, reason: str) -> None:
    given = reasons(text, problem, dtype, trans)
    assert any(reason in each for each in given), given


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("load=cp_async", arch="sm_75") == ["the device has cp.async, which load cp_async needs"]


def test_slices_of_a_warp_have_barriers_without_numbers() -> None:
    sixteen = "16x32x64,thread=4x4,lanes_m=4,load=cp_async,stages=3,slices=16,slice_barriers=1"
    assert reasons(sixteen) == []
    code = render(Problem.parse("1024"), variant(f"simt:{sixteen}"), SM_90).code
    assert "__syncwarp();" in code
    assert "bar.sync" not in code


@pytest.mark.parametrize("k_inner", [0, 1])
def test_slices_with_barriers_of_their_own_have_rows_of_their_own_in_shared_memory(k_inner: int) -> None:
    problem = Problem.parse("256x128x512", trans="nt")
    shared = variant(f"simt:64x32x32,slices=2,stages=3,load=cp_async,k_inner_b={k_inner}")
    own = changed(shared, slice_barriers=1)
    tile_b = 32 * (32 + 4) if not k_inner else 2 * 32 * (16 + 4)
    assert own.smem_bytes(problem.dtype) == 4 * 3 * (32 * (64 + 4) + tile_b)
    assert shared.smem_bytes(problem.dtype) == 4 * 3 * (32 * (64 + 4) + 32 * (32 + 4))
    assert own.block == shared.block


def test_alignment_workspace_and_large_shared_memory() -> None:
    problem = Problem.parse("256x126x512")
    config = variant("simt:128x128x16,thread=8x8,load=cp_async,k_inner_a=1,stages=4,split_k=4")
    launch, code = config.launch_config(problem, 132), render(problem, config, SM_90).code
    assert fitted(problem, config, SM_90).alignment == (4, 2, 2)
    assert config.workspace_bytes(problem, 132) == 2 * 4 * 128 * 128 * 4 + 2 * 4
    assert launch.grid == (8, 1, 1)
    assert launch.static_smem_bytes == 0
    assert launch.dynamic_smem_bytes == 4 * (128 * (16 + 4) + 16 * (128 + 4)) * 4
    assert "Elem* __restrict__ workspace" in code
    assert "extern __shared__" in code


def test_a_shared_memory_epilogue_needs_room_for_a_row_of_each_thread() -> None:
    plain = variant("simt:64x128x8,thread=2x8")
    bytes_of = [changed(plain, shared=shared).smem_bytes(DType.FLOAT) for shared in (0, 1)]
    # 4 x 4 warps of 8 rows; each 32 wide and, so that four rows of a write meet in no bank, 8 spare.
    assert bytes_of == [2 * 8 * (64 + 4 + 128 + 4) * 4, 16 * 8 * (32 + 8) * 4]


# ---- What the compiler makes of it -----------------------------------------------------------------------------


ENDINGS = (
    ("128x256x16,thread=16x8,lanes_m=4,stages=3,load=cp_async,fragments=double,shared=1", "float"),
    ("64x64x16,thread=8x8,lanes_m=4,fragments=double,shared=1", "float"),
    ("64x32x16,thread=4x4,slices=4,split_k=4,shared=1", "double"),
    ("32x64x32,thread=8x8,lanes_m=4,fragments=double,slices=4,split_k=16", "float"),
)


def of(shape: str, dtype: str = "float", trans: str = "nn", target: str = "sm_90a") -> list[Any]:
    """The configs that a search tries for a problem."""
    return tried(Problem.parse(shape, dtype, trans), target)


def sample() -> list[Row]:
    """The same instances for every target that can run them, and some of each mechanism."""
    generator = random.Random(3)
    rows: list[tuple[str, str, str]] = []

    def add(count: int, configs: list[Any], dtype: str = "float", trans: str = "nn") -> None:
        chosen = generator.sample(configs, min(count, len(configs)))
        rows.extend((str(config), dtype, trans) for config in chosen)

    for trans, count in (("nn", 10), ("nt", 5), ("tn", 3)):
        problem = Problem.parse("1024", "float", trans)
        listed = of("1024", trans=trans, target="sm_120")
        add(count, [each for each in listed if serves(each, problem, TYPICAL["sm_80"])], trans=trans)
    add(6, of("1024", "double", target="sm_120"), "double")
    deep = [each for each in of("16x4096x4096") if each.tile.block_k > 32]
    for tma in (False, True):
        add(4, [each for each in deep if bool(each.producer_threads) == tma])
    add(4, [each for each in of("1024") if each.clustered])
    add(6, [each for each in of("512") if each.tile.slice_barriers])
    for shape in ("777", "33x2000x4000"):
        add(4, [each for each in of(shape) if each.tile.non_power_of_two])
    copied = [parse(text) for text, dtype, trans in rows if (dtype, trans) == ("float", "nn")]
    copied = [each for each in copied if each.pipeline.load == "cp_async"]
    rows += [(str(changed(each, interleave=groups)), "float", "nn") for groups, each in zip((2, 4) * 3, copied)]
    rows += [(str(variant(f"simt:{text}")), dtype, "nn") for text, dtype in ENDINGS]
    rows = [row for row in rows if serves(parse(row[0]), Problem.parse("1024", *row[1:]), SM_90)]
    found = list(itertools.product((instance for (instance,) in one_each(rows)), TARGETS))
    return [(text, target) for text, target in found if is_served(text, target)]


def is_served(text: str, target: str) -> bool:
    """Whether the target can hold the instance's config."""
    problem, fit = instance_of(text)
    return serves(fit.config, problem, TYPICAL[target])


@pytest.mark.nvrtc
@pytest.mark.slow
def test_nothing_spills_and_resources_are_as_predicted() -> None:
    rows = sample()
    assert len(rows) > 150
    assert_as_predicted(rows)
