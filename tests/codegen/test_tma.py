"""TMA copies: what their rules refuse, what they bring, and what emitted files say of them."""

import pytest
from targets import TYPICAL
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.bundle import Served
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import TensorBox
from variants import changed, variant

pytestmark = pytest.mark.fast

SM_90 = TYPICAL["sm_90a"]
PROBLEM = Problem.parse("4096x16x4096")
TMA = variant("simt:32x16x128,load=tma,stages=4,k_inner_a=1,fragments=double,slices=4")
SHAPE = "the device has TMA, and a CTA in no cluster copies for all its slices"
ROWS = "TMA copies rows that are aligned to 16 bytes"
BOX = "a TMA box has at most 256 by 256 elements"


def reasons(config: Config, problem: Problem = PROBLEM, arch: str = "sm_90a") -> list[str]:
    return list(rejections(problem, config, TYPICAL[arch]))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"k_inner_a": 0}, BOX),
        ({"block_k": 16, "slices": 1}, BOX),
        ({"slice_barriers": 1}, SHAPE),
        ({"interleave": 2}, "interleave 2 is for cp.async"),
        ({"split_k": 2, "reduce": "cluster"}, SHAPE),
        ({"stream_k": 1}, SHAPE),
        ({"block_m": 40, "thread_m": 5}, SHAPE),
        ({"load": "cp_async", "block_k": 256, "stages": 2, "slices": 8}, "tiles of 256 steps of k are for"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, int | str], reason: str) -> None:
    given = reasons(changed(TMA, **values))
    assert any(reason in each for each in given), given


def test_rows_have_to_be_aligned() -> None:
    for shape in ("4096x16x4095", "4096x16x4094", "4096x15x4096", "4096x18x4096"):
        assert ROWS in reasons(TMA, Problem.parse(shape))
    assert reasons(TMA, Problem.parse("4095x20x4092")) == []


@pytest.mark.parametrize("arch", list(ARCHES))
def test_devices_that_have_it(arch: str) -> None:
    given = reasons(changed(TMA, stages=2), arch=arch)
    assert any(SHAPE in each for each in given) == (arch not in ("host", "sm_90a", "sm_100", "sm_120"))


@pytest.mark.parametrize(
    ("trans", "dtype", "values", "boxes"),
    [
        ("nn", "float", {}, (TensorBox(32, 32, True), TensorBox(128, 16, False))),
        ("nt", "float", {"k_inner_b": 1}, (TensorBox(32, 32, True), TensorBox(16, 32, True))),
        ("tn", "float", {"k_inner_a": 0}, (TensorBox(128, 32, False), TensorBox(128, 16, False))),
        ("tt", "double", {"k_inner_a": 0, "k_inner_b": 1, "block_k": 64},
         (TensorBox(64, 32, False), TensorBox(16, 16, True))),
        ("nn", "float", {"load": "cp_async"}, ()),
    ],
)  # fmt: skip
def test_what_a_copy_brings(trans: str, dtype: str, values: dict[str, int | str], boxes: tuple[TensorBox, ...]) -> None:
    problem, config = Problem.parse("4096x16x4096", dtype, trans), changed(TMA, **values)
    assert config.boxes(problem) == boxes
    assert config.launch_config(problem, 132).threads == config.threads == (160 if boxes else 128)
    code = render(problem, config, SM_90).code
    assert ("const __grid_constant__ TensorMap map_b" in code) == bool(boxes)


def test_the_unaligned_instance_copies_element_by_element_with_the_same_tiles_of_c() -> None:
    deep = changed(TMA, block_k=256, stages=3, slices=8)
    unaligned = fitted(PROBLEM, deep, SM_90, aligned=False)
    assert reasons(deep) == reasons(unaligned.config) == []
    assert unaligned.alignment == (1, 1, 1)
    assert [unaligned.config.get(name) for name in ("load", "block_k")] == ["cp_async", 128]
    assert unaligned.config.cta_tile[:2] == deep.cta_tile[:2]


def test_emitted_files_describe_both_operands_and_serve_rows_that_are_not_aligned() -> None:
    files = dict(emit(Served(PROBLEM, TMA, SM_90), "narrow").files)
    text = files["narrow.cu"]
    assert "{{32, 32}, {128, 16}}, {3, 0},  // padding, packing, split terms, boxes of the TMA" in text
    assert "{{0, 0}, {0, 0}}, {0, 0},  // padding, packing, split terms, boxes of the TMA" in text  # the general kernel
    other = dict(emit(Served(PROBLEM, changed(TMA, load="cp_async"), SM_90), "narrow").files)
    assert "tma_step" not in other["narrow.cu"]
