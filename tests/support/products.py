"""Products run on a device with everything around the operands poisoned, and exact references for them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.config import Config
from tilewright.codegen.families import complete, family_of
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.protocol import Device, Operand
from tilewright.runtime.product.kernel import Kernel

GUARD_ROWS = 3


def numpy_dtype(problem: Problem) -> Any:
    return np.float32 if problem.dtype is DType.FLOAT else np.float64


def integers(problem: Problem, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A, B (as stored) and C of small whole numbers: every sum is exact in the type, so results must be equal."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(problem)
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    a, b, c = (rng.integers(-8, 9, shape).astype(kind) for shape in shapes)
    return a, b, c


def exact(
    problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float, beta: float
) -> NDArray[Any]:
    """What whole-number operands give, for alpha and beta that are multiples of a half."""
    op_a = (a.T if problem.trans_a else a).astype(np.int64)
    op_b = (b.T if problem.trans_b else b).astype(np.int64)
    doubled = int(2 * alpha) * (op_a @ op_b)
    if beta:
        doubled = doubled + int(2 * beta) * c.astype(np.int64)
    return (doubled / 2).astype(numpy_dtype(problem))


def poisoned(device: Device, problem: Problem, array: NDArray[Any], extra: int, trans: bool) -> tuple[Operand, Any]:
    """The array on the device, `extra` elements of NaN after each row and rows of NaN before and after it."""
    rows, cols = array.shape
    ld = max(1, cols + extra)
    size = problem.dtype.size_bytes
    whole_shape = (rows + 2 * GUARD_ROWS, ld)
    buffer = device.allocate(whole_shape[0] * ld * size)
    whole = buffer.array(problem.dtype.numpy_name, whole_shape)
    whole[...] = np.nan
    if array.size:
        whole[GUARD_ROWS : GUARD_ROWS + rows, :cols] = device.xp.asarray(array)
    return Operand(buffer.pointer + GUARD_ROWS * ld * size, rows, cols, ld, trans, buffer), whole


def run(
    device: Device,
    kernel: Kernel,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    alpha: float,
    beta: float,
    extra: int = 0,
) -> NDArray[Any]:
    """C as the kernel leaves it; fails if anything around C was written. C starts as NaN where beta is 0."""
    problem = kernel.problem
    a_operand, _ = poisoned(device, problem, a, extra, problem.trans_a)
    b_operand, _ = poisoned(device, problem, b, extra, problem.trans_b)
    start = c if beta else np.full_like(c, np.nan)
    c_operand, whole = poisoned(device, problem, start, extra, False)
    kernel.launch(a_operand, b_operand, c_operand, alpha, beta)
    device.synchronize()
    after = device.to_numpy(whole)
    inside = np.zeros(after.shape, dtype=bool)
    inside[GUARD_ROWS : GUARD_ROWS + problem.m, : problem.n] = True
    assert np.isnan(after[~inside]).all(), "wrote outside C"
    return after[GUARD_ROWS : GUARD_ROWS + problem.m, : problem.n]


def on_device(array: Any) -> Operand:
    """A matrix in a CuPy array, as a kernel takes it."""
    return Operand(int(array.data.ptr), *array.shape, array.shape[1], False, array)


def resized(source: KernelSource, config: Config, problem: Problem) -> KernelSource:
    """What `render` gives for another size: the text is the same, as tests of rendering make sure."""
    family, config = family_of(config), complete(config)
    launch, workspace_bytes = family.launch(problem, config), family.workspace_bytes(problem, config)
    return replace(source, launch=launch, workspace_bytes=workspace_bytes)


def prepared(kernel: Kernel, problem: Problem) -> Kernel:
    """What `prepare` gives for another size, loaded anew."""
    source = resized(kernel.source, kernel.config, problem)
    return Kernel(kernel.device, problem, kernel.config, source, kernel.binary)


def sized(problem: Problem, m: int, n: int, k: int) -> Problem:
    return replace(problem, m=m, n=n, k=k)
