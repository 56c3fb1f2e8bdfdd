"""Operands that are packed before the product: where they may be, and what the text says."""

import re

import pytest
from targets import TYPICAL
from tilewright.codegen.legality import fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import packed_ld
from variants import variant

pytestmark = pytest.mark.fast

SIMT = "simt:load=cp_async,stages=3,pack_a=1,pack_b=1"


def reasons(text: str, shape: str = "65x67x35", dtype: str = "float", trans: str = "nn") -> list[str]:
    return list(rejections(Problem.parse(shape, dtype, trans), variant(text), TYPICAL["sm_90a"]))


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_packed_operands_take_wide_vectors_whatever_their_rows(trans: str) -> None:
    problem = Problem.parse("65x67x35", trans=trans)
    for text, widths in ((SIMT, (4, 4, 1)), (SIMT.replace("pack_b=1", "pack_b=0"), (4, 1, 1))):
        fit = fitted(problem, variant(text), TYPICAL["sm_90a"])
        assert (fit.vec_a, fit.vec_b, fit.vec_c) == widths


def test_k_is_not_innermost_in_tiles_of_a_packed_operand() -> None:
    (reason,) = reasons("simt:load=cp_async,pack_a=1,k_inner_a=1,block_k=16")
    assert reason == "k is innermost in the tiles of an operand only if its stored rows run along k"


def test_packed_operands_ask_for_no_alignment() -> None:
    problem = Problem.parse("65x66x35")
    assert fitted(problem, variant(SIMT), TYPICAL["sm_90a"]).alignment == (1, 1, 2)
    for text, widths in ((SIMT, (4, 4, 1)), ("simt:load=cp_async,stages=3,pack_a=1", (4, 1, 1))):
        unaligned = fitted(problem, variant(text), TYPICAL["sm_90a"], aligned=False)
        assert (unaligned.vec_a, unaligned.vec_b, unaligned.vec_c) == widths
        assert unaligned.alignment == (1, 1, 1)


def test_the_kernel_reads_copies_as_they_are_packed() -> None:
    texts = set()
    for trans in ("nn", "tt"):
        source = render(Problem.parse("65x67x35", "float", trans), variant(SIMT), TYPICAL["sm_90a"])
        assert source.preparation is not None
        assert source.preparation.name == f"pack_ab_f32_{trans}"
        assert f"{source.preparation.name}(" in source.preparation.code
        assert source.preparation.name in source.code  # the banner names it
        texts |= set(re.findall(r"using Tile[AB] = .*", source.code))
    assert len(texts) == 2  # one for A and one for B, however they are stored
    plain = render(Problem.parse("64"), variant("simt:"), TYPICAL["sm_90a"])
    assert plain.preparation is None
    assert "pack" not in plain.code


def test_rows_of_copies_begin_at_multiples_of_128_bytes() -> None:
    assert [packed_ld(extent, 4) for extent in (1, 32, 33, 2047)] == [32, 32, 64, 2048]
    assert [packed_ld(extent, 8) for extent in (1, 16, 17)] == [16, 16, 32]
