"""Float products of split terms as one fused Triton kernel with plain loads, which any special kernel has to beat.

Needs torch and Triton. Sizes are multiples of 128, and operands are split beforehand.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

SCHEMES = {"normwise": (torch.float16, 2, 64, 3), "elementwise": (torch.bfloat16, 3, 32, 4)}
"""By accuracy: type and number of terms, k of a tile, which is also the promotion interval, and stages."""
TILE, WARPS, GROUP = 128, 8, 8


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, row_scales, col_scales, m, n, k,
    TERMS: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C in float from terms of A, TERMS x m x k, and of B, TERMS x k x n. Tiles go down GROUP rows, then right."""
    tiles_m, tiles_n, tile = m // TILE, n // TILE, tl.program_id(0)
    first_tile = tile // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first_tile, GROUP)
    rows = (first_tile + tile % (GROUP * tiles_n) % height) * TILE + tl.arange(0, TILE)
    cols = tile % (GROUP * tiles_n) // height * TILE + tl.arange(0, TILE)
    steps = tl.arange(0, BLOCK_K)
    a = a_ptr + rows[:, None] * k + steps[None, :]
    b = b_ptr + steps[:, None] * n + cols[None, :]
    sums = tl.zeros((TILE, TILE), tl.float32)
    for _ in range(0, k, BLOCK_K):
        a0, a1, b0, b1 = tl.load(a), tl.load(a + m * k), tl.load(b), tl.load(b + k * n)
        if TERMS == 3:
            a2, b2 = tl.load(a + 2 * m * k), tl.load(b + 2 * k * n)
            partial = tl.dot(a2, b0)
            partial = tl.dot(a0, b2, partial)
            partial = tl.dot(a1, b1, partial)
            partial = tl.dot(a1, b0, partial)
        else:
            partial = tl.dot(a1, b0)
        partial = tl.dot(a0, b1, partial)
        partial = tl.dot(a0, b0, partial)
        sums += partial  # float additions outside the tensor cores
        a += BLOCK_K
        b += BLOCK_K * n
    sums = sums * tl.load(row_scales + rows)[:, None] * tl.load(col_scales + cols)[None, :]
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], sums)


def split(x: Any, along: int, accuracy: str) -> tuple[Any, Any]:
    """The terms of a matrix, and the factors that undo its scales. Halves are scaled by a power of two for each row or
    column, along the axis `along` of k."""
    kind, count, _, _ = SCHEMES[accuracy]
    largest = x.abs().amax(along, keepdim=True)
    power = (
        15 - torch.frexp(largest).exponent if kind is torch.float16 else torch.zeros_like(largest, dtype=torch.int32)
    )
    rest, terms = torch.ldexp(x, power), []
    for _ in range(count):
        terms.append(rest.to(kind))
        rest = rest - terms[-1].float()
    return torch.stack(terms), torch.ldexp(torch.ones_like(largest), -power).flatten()


def fused(a: Any, b: Any, c: Any, accuracy: str, stream: Callable[[], int]) -> Callable[[], None]:
    """A function that launches the product of two float matrices of CuPy or torch into a third. Their terms are made
    now. `stream` gives the handle of the stream to launch on."""
    a, b, c = (torch.as_tensor(each, device="cuda") for each in (a, b, c))
    _, count, block_k, stages = SCHEMES[accuracy]
    (m, k), n = a.shape, b.shape[1]
    if m % TILE or n % TILE or k % block_k:
        raise ValueError(f"m, n and k must be multiples of {TILE}, {TILE} and {block_k}, got {m}, {n} and {k}")
    (terms_a, row_scales), (terms_b, col_scales) = split(a, 1, accuracy), split(b, 0, accuracy)
    torch.cuda.synchronize()

    def launch() -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream())):
            product[(m // TILE * (n // TILE),)](
                terms_a, terms_b, c, row_scales, col_scales, m, n, k,
                TERMS=count, TILE=TILE, BLOCK_K=block_k, GROUP=GROUP, num_warps=WARPS, num_stages=stages,
            )  # fmt: skip

    return launch
