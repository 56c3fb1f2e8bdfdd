"""Faults planted in the rendered text of naive and tiled: the host device under sanitizers must catch every one."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from planted import Planted, assert_caught
from tilewright.codegen.fit import Fit
from variants import variant

CONFIGS = {"naive": "naive:4x8,unroll=2", "tiled": "tiled:4,unroll=2"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text that makes the kernel wrong."""

    name: str
    old: str
    new: str
    trans: str = "nn"
    dtypes: tuple[str, ...] = ("float",)


SHAPES = ((11, 18, 7), (8, 16, 8), (1, 1, 1))
"""Three by three CTAs with ragged edges, whole tiles, and a single element."""
BOTH = ("float", "double")
CPU_LIMIT_S = 2.0
"""A program that is not endless takes a twentieth of a second here."""

SHARED = (
    Fault("sum not set", "Elem acc = 0;", "Elem acc;", dtypes=BOTH),
    Fault("C read where beta is 0", "beta == Elem(0) ? alpha * product : ", "", dtypes=BOTH),
    Fault("alpha ignored", "? alpha * product : alpha * product", "? alpha * product : product"),
    Fault("beta ignored", "beta * *c", "*c"),
    Fault("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped",
          "const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
          "const Elem* __restrict__ matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda"),
    Fault("ld of C taken for n", "row * ldc", "row * n"),
    Fault("a CTA too few along a row", "tiles_n = unsigned(n - 1)", "tiles_n = unsigned(n - 4)"),
)  # fmt: skip

FAULTS = {
    "naive": (
        *SHARED,
        Fault("guard lost", "if (kGuarded && (row >= m || col >= n)) return;", "", dtypes=BOTH),
        Fault("guard of columns lost", "row >= m || col >= n", "row >= m"),
        Fault("guard of rows off by one", "row >= m ||", "row > m ||"),
        Fault("guard of columns off by one", "|| col >= n", "|| col > n"),
        Fault("a step of k too many", "p < depth", "p <= depth", dtypes=BOTH),
        Fault("last step of k dropped", "p < depth", "p < depth - 1"),
        Fault("endless loop", "++p", "p += 0, --a, b -= ldb"),
        Fault("CTA's index off by one", "(blockIdx.x / tiles_n) * kBlockM", "(blockIdx.x / tiles_n) * kBlockM + 1"),
        Fault("transposition of A lost", "matrix_a + row;", "matrix_a + row * lda;", "tn"),
        Fault("transposition of B lost", "b += 1;", "b += ldb;", "nt"),
    ),
    "tiled": (
        *SHARED,
        Fault("first barrier missing", "a_step;\n        b += kTileWidth * b_step;\n        __syncthreads();",
              "a_step;\n        b += kTileWidth * b_step;", dtypes=BOTH),
        Fault("second barrier missing", "b_tile[p][tx];\n        __syncthreads();", "b_tile[p][tx];", dtypes=BOTH),
        Fault("early return before a barrier", "Elem acc = 0;", "Elem acc = 0; if (row >= m) return;", dtypes=BOTH),
        Fault("barrier for some threads", "        __syncthreads();", "        if (a_inside) __syncthreads();"),
        Fault("guard of A lost", "!kGuarded || (a_inside && p0 + a_p < depth) ? *a : Elem(0)", "*a"),
        Fault("guard of B lost", "!kGuarded || (b_inside && p0 + b_p < depth) ? *b : Elem(0)", "*b"),
        Fault("guard along k lost", "a_inside && p0 + a_p < depth", "a_inside"),
        Fault("guard along k off by one", "p0 + b_p < depth", "p0 + b_p <= depth"),
        Fault("guard of rows of A off by one", "row0 + a_i < m", "row0 + a_i <= m"),
        Fault("guard of the store lost", "if (!kGuarded || (row < m && col < n))", ""),
        Fault("guard of stored rows off by one", "row < m && col", "row <= m && col"),
        Fault("guard of stored columns off by one", "&& col < n", "&& col <= n"),
        Fault("shared array a row short", "Elem b_tile[kTileWidth]", "Elem b_tile[kTileWidth - 1]", dtypes=BOTH),
        Fault("shared array a column short", "a_tile[kTileWidth][kTileWidth]", "a_tile[kTileWidth][kTileWidth - 1]"),
        Fault("last phase dropped", "p0 < depth; p0", "p0 + kTileWidth < depth; p0"),
        Fault("endless loop", "p < kTileWidth; ++p", "p < kTileWidth; p += 0"),
        Fault("tile index off by one", "% tiles_n) * kTileWidth", "% tiles_n) * kTileWidth + 1"),
        Fault("transposition of A lost", "matrix_a + row0 + a_i +", "matrix_a + (row0 + a_i) * lda +", "tn"),
        Fault("transposition of B lost", "b_step = 1;", "b_step = ldb;", "nt"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAULTS)
def test_every_fault_is_caught_and_the_unfaulted_text_passes(family: str, tmp_path: Path) -> None:
    fit = Fit(variant(CONFIGS[family]))
    planted = [
        Planted(f"{fault.name} {dtype}", fit, fault.old, fault.new, dtype, fault.trans, SHAPES, cpu_limit_s=CPU_LIMIT_S)
        for fault in FAULTS[family]
        for dtype in fault.dtypes
    ]
    for dtype, trans in product(BOTH, ("nn", "tn", "nt")):
        planted.append(Planted(f"unfaulted {dtype} {trans}", fit, "", "", dtype, trans, SHAPES))
    assert_caught(planted, tmp_path)
