"""Faults planted in the rendered text: the host device under sanitizers must catch every one.

Run as a program, this file is the child process that has the sanitizers loaded; it forks once for each kernel, so
that a crash or an endless loop ends only that one.
"""

import json
import re
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planted import BROKEN, REFUSED, RIGHT, WRONG, built, judge, judged
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.families import family_of
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import parse_kernel_name, render
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device.host import HostDevice, HostFunction
from tilewright.runtime.device.protocol import Binary

CONFIGS = {"naive": "naive:block_m=4,block_n=8,unroll=2", "tiled": "tiled:tile_width=4,unroll=2"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text that makes the kernel wrong."""

    name: str
    old: str
    new: str
    trans: str = "nn"
    dtypes: tuple[str, ...] = ("float",)

    def plant(self, source: KernelSource) -> KernelSource:
        assert self.old in source.code, f"{self.name}: {self.old!r} is not in the text"
        code = source.code.replace(self.old, self.new, 1)
        assert _without_comments(code) != _without_comments(source.code), f"{self.name} changes no code"
        return replace(source, code=code)


def _without_comments(code: str) -> str:
    return re.sub(r"//.*", "", code)


BOTH = ("float", "double")

SHARED = (
    Fault("sum not set", "T sum = 0;", "T sum;", dtypes=BOTH),
    Fault("C read where beta is 0", "beta == T(0) ? alpha * product : ", "", dtypes=BOTH),
    Fault("alpha ignored", "? alpha * product : alpha * product", "? alpha * product : product"),
    Fault("beta ignored", "beta * *c", "*c"),
    Fault("A and B read where alpha is 0", "alpha == T(0) ? 0 : k", "k"),
    Fault("ld of A and B swapped", "const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb",
          "const T* __restrict__ A, int ldb, const T* __restrict__ B, int lda"),
    Fault("ld of C taken for n", "row * ldc", "row * n"),
    Fault("a block too few along a row", "blocks_n = unsigned(n - 1)", "blocks_n = unsigned(n - 4)"),
)  # fmt: skip

FAULTS = {
    "naive": (
        *SHARED,
        Fault("guard lost", "if (GUARD && (row >= m || col >= n)) return;", "", dtypes=BOTH),
        Fault("guard of columns lost", "row >= m || col >= n", "row >= m"),
        Fault("guard of rows off by one", "row >= m ||", "row > m ||"),
        Fault("guard of columns off by one", "|| col >= n", "|| col > n"),
        Fault("a step of k too many", "p < depth", "p <= depth", dtypes=BOTH),
        Fault("last step of k dropped", "p < depth", "p < depth - 1"),
        Fault("endless loop", "++p", "p += 0, a -= a_step, b -= b_step"),
        Fault("block index off by one", "(blockIdx.x / blocks_n) * BLOCK_M", "(blockIdx.x / blocks_n) * BLOCK_M + 1"),
        Fault("transposition of A lost", "A + (TRANS_A ? row : row * lda)", "A + row * lda", "tn"),
        Fault("transposition of B lost", "b_step = TRANS_B ? 1 : ldb", "b_step = ldb", "nt"),
    ),
    "tiled": (
        *SHARED,
        Fault("first barrier missing", "a_step;\n        b += TILE_WIDTH * b_step;\n        __syncthreads();",
              "a_step;\n        b += TILE_WIDTH * b_step;", dtypes=BOTH),
        Fault("second barrier missing", "        }\n        __syncthreads();", "        }", dtypes=BOTH),
        Fault("early return before a barrier", "T sum = 0;", "T sum = 0; if (row >= m) return;", dtypes=BOTH),
        Fault("barrier for some threads", "        __syncthreads();", "        if (a_inside) __syncthreads();"),
        Fault("guard of A lost", "a_inside && (!GUARD || p0 + a_p < depth) ? *a : T(0)", "*a"),
        Fault("guard of B lost", "b_inside && (!GUARD || p0 + b_p < depth) ? *b : T(0)", "*b"),
        Fault("guard along k lost", "a_inside && (!GUARD || p0 + a_p < depth)", "a_inside"),
        Fault("guard along k off by one", "p0 + b_p < depth", "p0 + b_p <= depth"),
        Fault("guard of rows of A off by one", "row0 + a_i < m", "row0 + a_i <= m"),
        Fault("guard of the store lost", "if (!GUARD || (row < m && col < n))", ""),
        Fault("guard of stored rows off by one", "row < m && col", "row <= m && col"),
        Fault("guard of stored columns off by one", "&& col < n", "&& col <= n"),
        Fault("shared array a row short", "T b_tile[TILE_WIDTH]", "T b_tile[TILE_WIDTH - 1]", dtypes=BOTH),
        Fault("shared array a column short", "T a_tile[TILE_WIDTH][TILE_WIDTH + SKEW]",
              "T a_tile[TILE_WIDTH][TILE_WIDTH + SKEW - 1]"),
        Fault("last phase dropped", "p0 < depth; p0", "p0 + TILE_WIDTH < depth; p0"),
        Fault("endless loop", "p < TILE_WIDTH; ++p", "p < TILE_WIDTH; p += 0"),
        Fault("tile index off by one", "% blocks_n) * TILE_WIDTH", "% blocks_n) * TILE_WIDTH + 1"),
        Fault("transposition of A lost", "A + (TRANS_A ? row0 + a_i :", "A + (!TRANS_A ? row0 + a_i :", "tn"),
        Fault("transposition of B lost", "b_step = TRANS_B ? 1 : ldb", "b_step = ldb", "nt"),
    ),
}  # fmt: skip


def _source(family: str, dtype: str, trans: str) -> KernelSource:
    return render(Problem.parse("1", dtype, trans), Config.parse(CONFIGS[family]), ARCHES["host"])


@pytest.mark.parametrize(("family", "dtype"), list(product(CONFIGS, BOTH)))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(family: str, dtype: str, tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS[family] if dtype in fault.dtypes]
    kernels = {f"unfaulted {trans}": _source(family, dtype, trans) for trans in ("nn", "tn", "nt")}
    kernels |= {fault.name: fault.plant(_source(family, dtype, fault.trans)) for fault in faults}
    outcomes = _check_all(kernels, tmp_path)
    right = {name for name, outcome in outcomes.items() if outcome == RIGHT}
    assert right == {name for name in kernels if name.startswith("unfaulted")}, outcomes
    assert BROKEN not in outcomes.values(), outcomes


def test_there_are_at_least_eight_faults_a_family() -> None:
    assert all(len({fault.name for fault in faults}) >= 8 for faults in FAULTS.values())


def _check_all(kernels: dict[str, KernelSource], folder: Path) -> dict[str, int]:
    """Exit code of each kernel's check, negative for a signal."""
    paths = built(list(kernels.values()), folder)
    jobs = [
        (title, source.name, number, path)
        for number, ((title, source), path) in enumerate(zip(kernels.items(), paths, strict=True))
    ]
    return judged(Path(__file__), jobs)


# ---- In the child ----------------------------------------------------------------------------------------------


def _matrix(
    device: HostDevice, shape: tuple[int, int], skip: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any], int, object]:
    """A matrix that ends where its buffer does, `skip` elements between rows: all memory, matrix, pointer, owner."""
    rows, cols = shape
    ld = cols + skip
    front = 2 * ld
    count = front + (rows - 1) * ld + cols
    buffer = device.allocate(count * dtype.itemsize)
    memory = buffer.array(dtype.name, (count,))
    strides = (ld * dtype.itemsize, dtype.itemsize)
    matrix: NDArray[Any] = np.ndarray(shape, dtype, memory, front * dtype.itemsize, strides)
    return memory, matrix, buffer.pointer + front * dtype.itemsize, buffer


def _wrong(
    device: HostDevice, function: HostFunction, launch: LaunchConfig, problem: Problem,
    alpha: float, beta: float, skip: int,
) -> str:  # fmt: skip
    """Why the result is wrong, empty where it is right. Integers, so every bit must agree; all else is NaN poison."""
    dtype = np.dtype(problem.dtype.numpy_name)
    rng = np.random.default_rng(problem.m)
    a_all, a, a_pointer, _a = _matrix(device, problem.stored_a, skip, dtype)
    b_all, b, b_pointer, _b = _matrix(device, problem.stored_b, 2 * skip, dtype)
    c_all, c, c_pointer, _c = _matrix(device, (problem.m, problem.n), 3 * skip, dtype)
    wanted = np.zeros(c.shape)
    if alpha:
        for matrix in (a, b):
            matrix[:] = rng.integers(1, 9, matrix.shape)
        left, right = (x.astype(np.int64) for x in (a.T if problem.trans_a else a, b.T if problem.trans_b else b))
        wanted += alpha * (left @ right)
    if beta:
        c[:] = rng.integers(1, 9, c.shape)
        wanted += beta * c
    before = [memory.tobytes() for memory in (a_all, b_all)]
    expected = c_all.copy()
    np.ndarray(c.shape, dtype, expected, c_pointer - _pointer(c_all), c.strides)[:] = wanted

    i, t = np.int32, dtype.type
    function.launch(launch, (
        np.uint64(a_pointer), i(problem.stored_a[1] + skip), np.uint64(b_pointer), i(problem.stored_b[1] + 2 * skip),
        np.uint64(c_pointer), i(problem.n + 3 * skip), i(problem.m), i(problem.n), i(problem.k), t(alpha), t(beta),
    ))  # fmt: skip
    if [memory.tobytes() for memory in (a_all, b_all)] != before:
        return "wrote to A or B"
    return "" if c_all.tobytes() == expected.tobytes() else "C, or what lies beside it, is wrong"


def _pointer(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _check(name: str, number: int, path: str) -> int:
    config, dtype, trans = parse_kernel_name(name)
    # Aligned to one element, so that every matrix ends where the guard page begins.
    device = HostDevice(sanitize=True, alignment=dtype.size_bytes)
    function = device.load(Binary(Path(path).read_bytes(), path), f"{name}_{number}")
    # Three by three blocks with ragged edges, whole tiles, and a single element.
    for m, n, k in ((11, 18, 7), (8, 16, 8), (1, 1, 1)):
        for (alpha, beta), skip in product(((1, 0), (2, 3), (0, 2), (0, 0)), (0, 1)):
            problem = Problem.parse(f"{m}x{n}x{k}", dtype, trans)
            launch = family_of(config).launch(problem, config)
            try:
                reason = _wrong(device, function, launch, problem, alpha, beta, skip)
            except LaunchError as error:
                print(f"{problem}: {error}", file=sys.stderr)
                return REFUSED
            if reason:
                print(f"{problem}: {reason}", file=sys.stderr)
                return WRONG
    return RIGHT


if __name__ == "__main__":
    judge(_check, json.load(sys.stdin))
