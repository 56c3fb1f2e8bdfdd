"""Packed operands on the host device: products, strides, what is not read, sanitizers and planted faults."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from planted import RIGHT, Planted, outcomes
from products import exact, integers, run
from tilewright.codegen.config import Config
from tilewright.codegen.families import complete
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.product.kernel import prepare

SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0))
"""alpha and beta."""
CONFIGS = {
    "simt": ("float", "simt:pack_a=1,pack_b=1,vec_a=4,vec_b=4,cp_async=1,stages=3,block_k=16"),
    "simt, last tiles split": ("float", "simt:pack_a=1,pack_b=1,vec_a=4,vec_b=2,split_k=2,tail=2,slices=2,block_k=16"),
    "simt, A": ("double", "simt:pack_a=1,vec_a=2,cp_async=1"),
    "simt, B": ("float", "simt:pack_b=1,vec_b=4"),
    "dmma": ("double", "dmma:pack_a=1,pack_b=1,vec_a=2,vec_b=2"),
    "dmma, A": ("double", "dmma:pack_a=1,vec_a=2,prefetch=2"),
    "dmma, B": ("double", "dmma:pack_b=1,vec_b=2"),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_products_of_any_size_and_stride(name: str, trans: str) -> None:
    dtype, text = CONFIGS[name]
    device, config = HostDevice(), complete(Config.parse(text))
    for case, (shape, scalars) in enumerate(product(("67x71x35", "1x3x5", "130x64x129", "5x6x0"), SCALARS)):
        problem = Problem.parse(shape, dtype, trans)
        kernel = prepare(device, problem, config)
        a, b, c = integers(problem, case)
        got = run(device, kernel, a, b, c, *scalars, extra=case % 3)
        assert np.array_equal(got, exact(problem, a, b, c, *scalars)), (shape, scalars)


def test_copies_are_made_once_a_stream_and_used_again() -> None:
    device = HostDevice()
    kernel = prepare(device, Problem.parse("33x34x35"), Config.parse(CONFIGS["simt"][1]))
    for seed in range(3):
        a, b, c = integers(kernel.problem, seed)
        assert np.array_equal(run(device, kernel, a, b, c, 1, 0), exact(kernel.problem, a, b, c, 1, 0))
    (buffer,) = kernel._copies.values()
    assert buffer.nbytes == 4 * 35 * (64 + 64) + 128


@pytest.mark.parametrize("shape", ["33x34x35", "33x34x0"])
def test_nothing_is_packed_where_a_and_b_are_not_read(shape: str) -> None:
    device = HostDevice()
    kernel = prepare(device, Problem.parse(shape), Config.parse(CONFIGS["simt"][1]))
    problem = kernel.problem
    c = device.allocate(4 * problem.m * problem.n)
    c.array("float32", (problem.m, problem.n))[...] = 2
    nothing = Operand(0, problem.m, problem.k, max(1, problem.k), False, c)
    other = Operand(0, problem.k, problem.n, problem.n, False, c)
    kernel.launch(nothing, other, Operand(c.pointer, problem.m, problem.n, problem.n, False, c), 0.0, 0.5)
    assert not kernel._copies
    assert (c.array("float32", (problem.m, problem.n)) == 1).all()


FAULTS = (
    ("not turned", "TURN ? turned[lane + c * LANES][row + r * ROWS] : part", "TURN ? part[r][c] : part", "nn"),
    ("barrier missing", "= part[r][c];\n        }\n        __syncthreads();", "= part[r][c];\n        }", "nn"),
    ("a row too many written", "if (i < k && j < copy_ld)", "if (i < k + 1 && j < copy_ld)", "nt"),
    ("columns beyond the row written", "if (i < k && j < copy_ld)", "if (i < k)", "tn"),
    ("last row not written", "if (i < k && j < copy_ld)", "if (i < k - 1 && j < copy_ld)", "nn"),
    ("A copied for B", "blockIdx.x >= tiles_a", "blockIdx.x > tiles_a", "nn"),
    ("sizes swapped", "packed_ldb, n, k, blockIdx.x", "packed_ldb, k, n, blockIdx.x", "nn"),
)


@pytest.mark.parametrize("name", ["simt", "dmma"])
def test_every_fault_is_caught_and_the_unfaulted_text_passes(name: str, tmp_path: Path) -> None:
    dtype, text = CONFIGS[name]
    config = complete(Config.parse(text))
    planted = [Planted(what, config, old, new, dtype, trans) for what, old, new, trans in FAULTS]
    whole = [Planted(f"unfaulted {trans}", config, "", "", dtype, trans) for trans in ("nn", "nt", "tn", "tt")]
    found = outcomes([*planted, *whole], tmp_path)
    assert {each for each, outcome in found.items() if outcome == RIGHT} == {each.name for each in whole}, found
