"""Operands that are packed before the product: where they may be, where a search tries it, and what the text says."""

import re

import pytest
from stored import INFO
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import complete, fitted, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.tiling import alignment, scalar
from tilewright.tuner.search.candidates import candidates
from tilewright.tuner.search.model import estimate_us
from variants import settled

SIMT = "simt:cp_async=1,stages=3,vec_a=4,vec_b=4,pack_a=1,pack_b=1"
DMMA = "dmma:vec_a=2,vec_b=2,pack_a=1,pack_b=1"


def reasons(text: str, shape: str = "65x67x35", dtype: str = "float", trans: str = "nn") -> list[str]:
    return list(rejections(Problem.parse(shape, dtype, trans), complete(Config.parse(text)), ARCHES["sm_90a"]))


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_packed_operands_take_wide_vectors_whatever_their_rows(trans: str) -> None:
    assert reasons(SIMT, trans=trans) == []
    assert reasons(DMMA, dtype="double", trans=trans) == []
    assert reasons(SIMT.replace("pack_b=1", "pack_b=0"), trans=trans) != []


def test_packed_and_padded_exclude_each_other() -> None:
    assert reasons(f"{SIMT},edge=pad") == ["operands are padded or packed, not both: edge pad"]


def test_k_is_not_innermost_in_tiles_of_a_packed_operand() -> None:
    (reason,) = reasons("simt:cp_async=1,vec_a=4,pack_a=1,a_k_inner=1,block_k=16")
    assert reason == "k is innermost in the tiles of A only if stored rows of A run along k"


def test_packed_operands_ask_for_no_alignment() -> None:
    config = complete(Config.parse(f"{SIMT},vec_c=2"))
    assert alignment(config) == (1, 1, 2)
    twin = scalar(config)
    assert (twin["vec_a"], twin["vec_b"], twin["vec_c"]) == (4, 4, 1)
    half = scalar(complete(Config.parse("simt:vec_a=4,vec_b=4,pack_a=1")))
    assert (half["vec_a"], half["vec_b"]) == (4, 1)


def test_the_kernel_reads_copies_as_they_are_packed() -> None:
    for trans in ("nn", "tt"):
        source = render(Problem.parse("65x67x35", "float", trans), Config.parse(SIMT), ARCHES["sm_90a"])
        assert source.pack == f"{source.name}_pack"
        assert source.packs == (True, True)
        assert f"{source.pack}(" in source.code
        assert re.search(r"bool TRANS_A += true;", source.code)
        assert re.search(r"bool TRANS_B += false;", source.code)
    plain = render(Problem.parse("64"), Config.parse("simt"), ARCHES["sm_90a"])
    assert (plain.pack, plain.packs) == (None, (False, False))
    assert "_pack" not in plain.code


@pytest.mark.parametrize(
    ("shape", "packs", "vectors"), [("2051", 1, (4, 4)), ("1020x1024x1024", 0, (1, 4)), ("515x513x1025", 0, (1, 1))]
)
def test_a_winner_packs_no_more_where_that_is_hopeless(shape: str, packs: int, vectors: tuple[int, int]) -> None:
    winner = complete(Config.parse(f"{SIMT},block_m=64,block_n=64,staged_c=1"))
    fit = fitted(winner, Problem.parse(shape), ARCHES["sm_90a"], ("exact", "bounds"))
    assert fit is not None
    assert (fit["pack_a"], fit["pack_b"]) == (packs, packs)
    assert (fit["vec_a"], fit["vec_b"]) == vectors
    assert (fit["block_m"], fit["edge"]) == (64, "bounds")


def test_rows_of_copies_begin_at_multiples_of_128_bytes() -> None:
    source = render(Problem.parse("65x67x35"), Config.parse(SIMT), ARCHES["sm_90a"])
    assert [source.packed_ld(extent, 4) for extent in (1, 32, 33, 2047)] == [32, 32, 64, 2048]
    assert [source.packed_ld(extent, 8) for extent in (1, 16, 17)] == [16, 16, 32]


@pytest.mark.parametrize(
    ("shape", "dtype", "trans", "tried"),
    [
        ("2047", "float", "nn", {(0, 0), (1, 1)}),
        ("2047", "double", "nt", {(0, 0), (1, 1)}),
        ("2048x2047x2048", "double", "nn", {(0, 0), (0, 1)}),
        ("4096", "float", "nn", {(0, 0), (1, 0)}),
        ("4096", "float", "tn", {(0, 0)}),
        ("4096", "double", "nn", {(0, 0)}),
        ("1023x769x511", "float", "nn", {(0, 0)}),
        ("1024x768x512", "float", "nn", {(0, 0)}),
    ],
)
def test_searches_pack_what_is_not_aligned_or_must_be_turned_where_it_is_used_often(
    shape: str, dtype: str, trans: str, tried: set[tuple[int, int]]
) -> None:
    large = candidates(Problem.parse(shape, dtype, trans), INFO, settled("simt", "dmma", split_k=(1, 2))).configs
    assert {(config["pack_a"], config["pack_b"]) for config in large} == tried
    for config in large:
        for operand in "ab":
            assert not config[f"pack_{operand}"] or config[f"vec_{operand}"] == (4 if dtype == "float" else 2)


def test_the_model_counts_what_packing_costs_and_gains() -> None:
    packed, plain = (complete(Config.parse(f"simt:cp_async=1,{each}")) for each in (
        "pack_a=1,pack_b=1,vec_a=4,vec_b=4", "vec_a=1,vec_b=1"))  # fmt: skip
    large, small = Problem.parse("4097"), Problem.parse("129")
    assert estimate_us(large, packed, INFO) < estimate_us(large, plain, INFO)
    assert estimate_us(small, packed, INFO) > estimate_us(small, plain, INFO) + 1
