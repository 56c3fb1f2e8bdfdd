"""Packed operands on the host device: products, strides, what is not read, sanitizers and planted faults."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from planted import Planted, assert_caught
from products import SCALARS, TRANS, QuickDevice, check, guarded, sized
from quick import compile_together
from tilewright.codegen.problem import Problem
from tilewright.codegen.source import PACKED_BYTES, packed_ld
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.copied import Packing
from tilewright.runtime.product.kernel import prepare
from variants import variant

SLOW = pytest.mark.slow
CONFIGS = {
    "A and B": ("float", "simt:pack_a=1,pack_b=1,load=cp_async,stages=3,block_k=16"),
    "splits, slices": ("float", "simt:pack_a=1,pack_b=1,split_k=2,slices=2,block_k=16"),
    "A": ("double", "simt:pack_a=1,load=cp_async"),
    "B": ("float", "simt:pack_b=1"),
}


@pytest.mark.parametrize("name", [name if name == "A and B" else pytest.param(name, marks=SLOW) for name in CONFIGS])
def test_products_of_any_size_and_stride(name: str) -> None:
    dtype, text = CONFIGS[name]
    device, config = QuickDevice(), variant(text)
    whole = [Problem.parse("67x71x35", dtype, trans) for trans in TRANS]
    compile_together((problem, config) for problem in whole)
    for problem, size in product(whole, ((67, 71, 35), (1, 3, 5), (130, 64, 129), (5, 6, 0))):
        kernel = prepare(device, sized(problem, *size), config)
        for case, (alpha, beta) in enumerate(SCALARS[:3]):
            check(kernel, alpha, beta, (size[0] + case) % 3)


def test_copies_are_made_once_a_stream_and_used_again() -> None:
    kernel = prepare(HostDevice(), Problem.parse("33x34x35"), variant(CONFIGS["splits, slices"][1]))
    for seed in range(3):
        check(kernel, 1, 0, 0, seed)
    assert kernel._scratch is not None
    (held,) = kernel._scratch._streams.values()
    partial_tiles, copies, counters = held.buffers
    assert copies.nbytes == 4 * 35 * (64 + 64) + 128
    own = partial_tiles.nbytes + copies.nbytes + counters.nbytes
    assert kernel.binary.preparation is not None
    assert kernel.nbytes == len(kernel.binary.image) + len(kernel.binary.preparation.image) + own


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_are_aligned_wherever_their_memory_begins(name: str) -> None:
    dtype, text = CONFIGS[name]
    problem, function = Problem.parse("33x34x35", dtype), SimpleNamespace(bound=lambda *given: None)
    packing, size = Packing(problem, variant(text), function), problem.dtype.size_bytes  # type: ignore[arg-type]
    for begin in range(4096, 4096 + PACKED_BYTES, size):
        places = packing.addresses(begin)
        ends = *places[1:], begin + packing.nbytes
        assert places[0] >= begin
        for place, end in zip(places, ends, strict=True):
            assert place % PACKED_BYTES == 0
            assert end - place >= problem.k * packed_ld(problem.n, size) * size


@pytest.mark.parametrize("shape", ["33x34x35", "33x34x0"])
def test_nothing_is_packed_where_a_and_b_are_not_read(shape: str) -> None:
    device = HostDevice()
    kernel = prepare(device, Problem.parse(shape), variant(CONFIGS["splits, slices"][1]))
    problem = kernel.problem
    c = device.allocate(4 * problem.m * problem.n)
    c.array("float32", (problem.m, problem.n))[...] = 2
    nothing = Operand(0, problem.m, problem.k, max(1, problem.k), False, c)
    other = Operand(0, problem.k, problem.n, problem.n, False, c)
    kernel.launch(nothing, other, Operand(c.pointer, problem.m, problem.n, problem.n, False, c), 0.0, 0.5)
    assert kernel._scratch is not None
    for held in kernel._scratch._streams.values():
        _, copies, _ = held.buffers
        assert np.isnan(copies.array("float32", (copies.nbytes // 4,))).all()  # as it came
    assert (c.array("float32", (problem.m, problem.n)) == 1).all()


FAULTS = (
    ("not transposed", "turned[lane + c * kLanes][row + r * kRows] : part", "part[r][c] : part", "nn"),
    ("barrier missing", "= part[r][c];\n        }\n        __syncthreads();", "= part[r][c];\n        }", "nn"),
    ("a row too many written", "if (i < k && j < copy_ld)", "if (i < k + 1 && j < copy_ld)", "nt"),
    ("columns beyond the row written", "if (i < k && j < copy_ld)", "if (i < k)", "tn"),
    ("last row not written", "if (i < k && j < copy_ld)", "if (i < k - 1 && j < copy_ld)", "nn"),
    ("A copied for B", "blockIdx.x >= tiles_a", "blockIdx.x > tiles_a", "nn"),
    ("sizes swapped", "packed_ldb, n, k, blockIdx.x", "packed_ldb, k, n, blockIdx.x", "nn"),
)


def test_every_fault_is_caught_and_the_unfaulted_text_passes(tmp_path: Path) -> None:
    dtype, text = CONFIGS["A and B"]
    fits = {trans: guarded(variant(text), dtype, trans) for trans in TRANS}
    planted = [Planted(what, fits[trans], old, new, dtype, trans) for what, old, new, trans in FAULTS]
    planted += [Planted(f"unfaulted {trans}", fits[trans], "", "", dtype, trans) for trans in TRANS]
    assert_caught(planted, tmp_path)
