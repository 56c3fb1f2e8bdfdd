"""Bulk tensor copies: what their rules refuse, what they bring, and where searches try them."""

from dataclasses import replace

import pytest
from simt_space import SIMT, space
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.families import complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import TensorBox
from tilewright.tuner.search.candidates import read_spaces

SM_90 = ARCHES["sm_90a"]
PROBLEM = Problem.parse("4096x16x4096")
BULK = (
    "bulk=1,block_m=32,block_n=16,block_k=128,stages=4,cp_async=1,vec_a=4,vec_b=4,vec_c=4,a_k_inner=1,prefetch=1,"
    "slices=4"
)


def config(text: str = "") -> Config:
    values = dict(Config.parse(f"simt:{BULK}").values) | dict(Config.parse(f"simt:{text}").values if text else ())
    return complete(Config("simt", tuple(values.items())))


def reasons(text: str, problem: Problem = PROBLEM, arch: str = "sm_90a") -> list[str]:
    return list(rejections(problem, config(text), ARCHES[arch]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a_k_inner=0,vec_a=1", "bulk copies leave k innermost in tiles where it is innermost in memory"),
        ("block_k=16,slices=1", "block_k 16 of tiles with k innermost is a multiple of 128 bytes"),
        ("vec_b=2", "rows are aligned to 16 bytes for bulk copies: vec_a 4 and vec_b 2 are as wide"),
        ("cp_async=0,stages=2", "bulk copies take the place of those by cp.async"),
        ("apart=1", "bulk copies take the place of those by cp.async"),
        ("copy_groups=2", "bulk copies take the place of those by cp.async"),
        ("split_k=2,cluster=1", "bulk copies take the place of those by cp.async"),
        ("edge=pad", "bulk copies put zeros where a matrix ends: edge pad has no use for them"),
        (
            "block_m=40,thread_m=5",
            "tiles that come by bulk copies are for threads with powers of two, not 5 rows and 4",
        ),
        ("bulk=0,block_k=256,stages=2,slices=8,vec_c=1", "tiles of 256 steps of k are for bulk copies"),
    ],
)
def test_what_cannot_be_is_refused(text: str, reason: str) -> None:
    given = reasons(text)
    assert any(reason in each for each in given), given


def test_rows_have_to_be_aligned() -> None:
    for shape in ("4096x16x4095", "4096x15x4096"):
        assert any("divides the stored rows" in each for each in reasons("", Problem.parse(shape)))


@pytest.mark.parametrize("arch", list(ARCHES))
def test_devices_that_have_them(arch: str) -> None:
    has = arch in ("host", "sm_90a", "sm_100", "sm_120")
    assert ("the device has bulk tensor copies" in reasons("stages=2", arch=arch)) == (not has)


@pytest.mark.parametrize(
    ("trans", "dtype", "text", "boxes"),
    [
        ("nn", "float", "", (TensorBox(32, 32, True), TensorBox(128, 16, False))),
        ("nt", "float", "b_k_inner=1,vec_c=1", (TensorBox(32, 32, True), TensorBox(16, 32, True))),
        ("tn", "float", "a_k_inner=0", (TensorBox(128, 32, False), TensorBox(128, 16, False))),
        ("tt", "double", "a_k_inner=0,b_k_inner=1,block_k=64,vec_a=2,vec_b=2,vec_c=1",
         (TensorBox(64, 32, False), TensorBox(16, 16, True))),
        ("nn", "float", "bulk=0", ()),
    ],
)  # fmt: skip
def test_source_tells_what_copies_bring(trans: str, dtype: str, text: str, boxes: tuple[TensorBox, ...]) -> None:
    source = render(Problem.parse("4096x16x4096", dtype, trans), config(text), SM_90)
    assert source.boxes == boxes
    threads = SIMT.threads(config(text))
    assert source.launch.threads == threads == (160 if boxes else 128)
    assert ("const __grid_constant__ TensorMap map_b" in source.code) == bool(boxes)


def test_the_scalar_twin_copies_element_by_element_with_the_same_tiles_of_c() -> None:
    deep = config("block_k=256,stages=3,slices=8,vec_c=2")
    twin = SIMT.scalar(deep)
    assert list(rejections(PROBLEM, deep, SM_90)) == list(rejections(PROBLEM, twin, SM_90)) == []
    assert (twin["bulk"], twin["block_k"], twin["vec_a"], twin["vec_b"], twin["vec_c"]) == (0, 128, 1, 1, 1)
    assert SIMT.tile(twin)[:2] == SIMT.tile(deep)[:2]


@pytest.mark.parametrize(("shape", "tried"), [
    ("4096x16x4096", True), ("16x4096x4096", True), ("8x8192x8192", True),
    ("4096x16x4095", False), ("33x1024x1024", False), ("128x64x256", False),
])  # fmt: skip
def test_searches_try_them_for_narrow_results_with_aligned_rows(shape: str, tried: bool) -> None:
    problem = Problem.parse(shape)
    found = [each for each in space(problem)[0] if each["bulk"]]
    assert bool(found) == tried
    for each in found:
        assert 0.75 * 132 <= SIMT.blocks(problem, each) <= 132
        assert list(rejections(problem, SIMT.scalar(each), SM_90)) == []


@pytest.mark.parametrize("shape", ["4096x16x4096", "512"])
def test_what_else_is_tried_does_not_depend_on_them(shape: str) -> None:
    without = tuple(
        replace(choices, parameters=tuple(pair for pair in choices.parameters if pair[0] != "bulk"))
        for choices in read_spaces()
    )
    problem = Problem.parse(shape)
    others = [each for each in space(problem)[0] if not each["bulk"]]
    assert others == space(problem, spaces=without)[0]
    # Clusters, about which bulk copies have a rule of their own, are still those of two blocks alone.
    assert {each["split_k"] for each in others if each["cluster"]} <= {2}


def test_older_devices_and_the_processor_try_none() -> None:
    assert not any(each["bulk"] for arch in ("sm_80", "host") for each in space(PROBLEM, arch)[0])


def test_emitted_files_describe_both_operands_and_serve_rows_that_are_not_aligned() -> None:
    files = dict(emit(PROBLEM, config(), SM_90, "narrow").files)
    text = files["narrow.cu"]
    assert "tensor_map(&map_a, A, lda, m, k, 32, 32, true)" in text
    assert "tensor_map(&map_b, B, ldb, k, n, 128, 16, false)" in text
    assert "dim3(vectors ? 160 : 128)" in text
    assert "cudaErrorNotSupported" in files["narrow.h"]
    assert "CUDA 12.0 or newer" in files["narrow.h"]
    other = dict(emit(PROBLEM, config("bulk=0"), SM_90, "narrow").files)
    assert "tensor_map" not in other["narrow.cu"]
