"""The families naive and tiled: products on the host device and on a GPU, planted faults, and rules."""

from itertools import product

import pytest
from conformance import KernelConformance, ProductConformance, Refusal
from planted import Fault, Shape
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Edge

NAIVE_CONFIGS = {"guarded": "4x8,edge=bounds", "exact": "4x8,unroll=2", "padded": "2x16,edge=pad"}
TILED_CONFIGS = {
    "skew, guarded": "8,skew,unroll=8,edge=bounds",
    "exact": "8,unroll=4",
    "skew, padded": "8,skew,unroll=1,edge=pad",
    "large, guarded": "16,edge=bounds",
    "padded": "4,unroll=4,edge=pad",
}

# ---- Planted faults --------------------------------------------------------------------------------------------

SHARED = (
    Fault("sum not set", "Elem acc = 0;", "Elem acc;"),
    Fault("C read where beta is 0", "beta == Elem(0) ? alpha * product : ", ""),
    Fault("alpha ignored", "? alpha * product : alpha * product", "? alpha * product : product"),
    Fault("beta ignored", "beta * *c", "*c"),
    Fault("A and B read where alpha is 0", "alpha == Elem(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped",
          "const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb",
          "const Elem* __restrict__ matrix_a, int ldb, const Elem* __restrict__ matrix_b, int lda"),
    Fault("ld of C taken for n", "row * ldc", "row * n"),
    Fault("a CTA too few along a row", "tiles_n = unsigned(n - 1)", "tiles_n = unsigned(n - 4)"),
)  # fmt: skip

NAIVE = (
    *SHARED,
    Fault("guard lost", "if (kGuarded && (row >= m || col >= n)) return;", ""),
    Fault("guard of columns lost", "row >= m || col >= n", "row >= m"),
    Fault("guard of rows off by one", "row >= m ||", "row > m ||"),
    Fault("guard of columns off by one", "|| col >= n", "|| col > n"),
    Fault("a step of k too many", "p < depth", "p <= depth"),
    Fault("last step of k dropped", "p < depth", "p < depth - 1"),
    Fault("endless loop", "++p", "p += 0, --a, b -= ldb"),
    Fault("CTA's index off by one", "(blockIdx.x / tiles_n) * kBlockM", "(blockIdx.x / tiles_n) * kBlockM + 1"),
    Fault("transposition of A lost", "matrix_a + row;", "matrix_a + row * lda;", trans="tn"),
    Fault("transposition of B lost", "b += 1;", "b += ldb;", trans="nt"),
)  # fmt: skip
TILED = (
    *SHARED,
    Fault("first barrier missing", "a_step;\n        b += kTileWidth * b_step;\n        __syncthreads();",
          "a_step;\n        b += kTileWidth * b_step;"),
    Fault("second barrier missing", "b_tile[p][tx];\n        __syncthreads();", "b_tile[p][tx];"),
    Fault("early return before a barrier", "Elem acc = 0;", "Elem acc = 0; if (row >= m) return;"),
    Fault("barrier for some threads", "        __syncthreads();", "        if (a_inside) __syncthreads();"),
    Fault("guard of A lost", "!kGuarded || (a_inside && p0 + a_p < depth) ? *a : Elem(0)", "*a"),
    Fault("guard of B lost", "!kGuarded || (b_inside && p0 + b_p < depth) ? *b : Elem(0)", "*b"),
    Fault("guard along k lost", "a_inside && p0 + a_p < depth", "a_inside"),
    Fault("guard along k off by one", "p0 + b_p < depth", "p0 + b_p <= depth"),
    Fault("guard of rows of A off by one", "row0 + a_i < m", "row0 + a_i <= m"),
    Fault("guard of the store lost", "if (!kGuarded || (row < m && col < n))", ""),
    Fault("guard of stored rows off by one", "row < m && col", "row <= m && col"),
    Fault("guard of stored columns off by one", "&& col < n", "&& col <= n"),
    Fault("shared array a row short", "Elem b_tile[kTileWidth]", "Elem b_tile[kTileWidth - 1]"),
    Fault("shared array a column short", "a_tile[kTileWidth][kTileWidth]", "a_tile[kTileWidth][kTileWidth - 1]"),
    Fault("last phase dropped", "p0 < depth; p0", "p0 + kTileWidth < depth; p0"),
    Fault("endless loop", "p < kTileWidth; ++p", "p < kTileWidth; p += 0"),
    Fault("tile index off by one", "% tiles_n) * kTileWidth", "% tiles_n) * kTileWidth + 1"),
    Fault("transposition of A lost", "matrix_a + row0 + a_i +", "matrix_a + (row0 + a_i) * lda +", trans="tn"),
    Fault("transposition of B lost", "b_step = 1;", "b_step = ldb;", trans="nt"),
)  # fmt: skip


class Classic:
    """Tests of families with a parameter for edges, whose kernels are guarded, exact or padded."""

    turns = (
        (("float", "nn"), ("float", "tt"), ("double", "nt"), ("double", "tn")),
        (("float", "nt"), ("float", "tn"), ("double", "nn"), ("double", "tt")),
    )
    vectors = False
    unfaulted_trans = "nn", "tn", "nt"
    unfaulted_widths = (False,)
    fault_parts = 1
    cpu_limit_s = 2.0  # kernels that end take a twentieth of a second

    def sizes(self, tile: Shape, turn: int) -> list[Shape]:
        """Sizes around those of a tile, and 0."""
        m, n, k = tile
        return list(product(*(sorted({0, 1, 2, t - 1, t, t + 1, 2 * t + 3}) for t in (m, n, max(k, 3)))))

    def vector_sizes(self, edge: Edge, tile: Shape) -> list[Shape]:
        """Whole tiles for the exact instance; there are no vectors."""
        m, n, k = tile
        return list(product((0, 2 * m, 3 * m), (0, n, 2 * n), (0, k, 3 * k))) if edge is Edge.EXACT else []

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        """Three by three CTAs with ragged edges, whole tiles, and a single element."""
        return (11, 18, 7), (8, 16, 8), (1, 1, 1)


class Naive(Classic):
    family = "naive"
    configs = NAIVE_CONFIGS
    refused = (
        Refusal("32x64", "a CTA has at most as many threads as the device allows, not 2048"),
        Refusal("1x1", "the grid has fewer than 2^31 CTAs", "65536x65536x1"),
    )
    faults = NAIVE
    unfaulted = ("4x8,unroll=2",)


class Tiled(Classic):
    family = "tiled"
    configs = TILED_CONFIGS
    refused = (Refusal("4,unroll=8", "unroll 8 is at most tile_width 4"),)
    faults = TILED
    unfaulted = ("4,unroll=2",)


class TestNaive(Naive, KernelConformance):
    pass


class TestTiled(Tiled, KernelConformance):
    pass


@pytest.mark.gpu
class TestNaiveOnGpu(Naive, ProductConformance):
    selector = "cuda"


@pytest.mark.gpu
class TestTiledOnGpu(Tiled, ProductConformance):
    selector = "cuda"
