"""Products on a device, with NaN in all memory around the operands, and exact results to compare with."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quick import TYPICAL, QuickCompiler, compiled, together
from tilewright.codegen.batch import Strides
from tilewright.codegen.config import Config
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device.host import HostDevice, HostFunction, host_info
from tilewright.runtime.device.protocol import Binary, Device, DeviceInfo, Function, Operand
from tilewright.runtime.product.kernel import Kernel

GUARD_ROWS = 3
TRANS = ("nn", "nt", "tn", "tt")
SCALARS = ((1.0, 0.0), (-0.5, 2.0), (0.0, 3.0), (1.5, 1.0))
"""Pairs of alpha and beta."""


class QuickDevice(HostDevice):
    """The host device with a number of SMs of choice. It loads a kernel once for all sizes."""

    def __init__(self, sanitize: bool = False, alignment: int = 16, sm_count: int = 1) -> None:
        super().__init__(alignment)
        if sanitize:
            self.compiler = QuickCompiler(sanitize=True)
        self._loaded: dict[tuple[bytes, str], HostFunction] = {}
        self._sm_count = sm_count

    @cached_property
    def info(self) -> DeviceInfo:
        return replace(host_info(), sm_count=self._sm_count)

    def load(self, binary: Binary, name: str) -> HostFunction:
        key = (binary.image, name)
        if key not in self._loaded:
            self._loaded[key] = super().load(binary, name)
        return self._loaded[key]


def in_the_norm(product: NDArray[Any], c: NDArray[Any]) -> float:
    """The Frobenius norm of the error over that of the product."""
    return float(np.linalg.norm(c - product) / np.linalg.norm(product))


def numpy_dtype(problem: Problem) -> Any:
    return np.float32 if problem.dtype is DType.FLOAT else np.float64


def integers(problem: Problem, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A and B as stored, and C, of small whole numbers: all sums are exact in the type, and results must be equal."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(problem)
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    a, b, c = (rng.integers(-8, 9, shape).astype(kind) for shape in shapes)
    return a, b, c


def exact(
    problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float, beta: float
) -> NDArray[Any]:
    """The exact result for operands of whole numbers, and alpha and beta that are multiples of a half."""
    op_a = (a.T if problem.trans_a else a).astype(np.int64)
    op_b = (b.T if problem.trans_b else b).astype(np.int64)
    doubled = int(2 * alpha) * (op_a @ op_b)
    if beta:
        doubled = doubled + int(2 * beta) * c.astype(np.int64)
    return (doubled / 2).astype(numpy_dtype(problem))


def poisoned(
    device: Device, problem: Problem, array: NDArray[Any], extra: int, trans: bool, behind: int = 0
) -> tuple[Operand, Any]:
    """The array on the device, with `extra` elements of NaN after each row and rows of NaN before the first. Memory
    ends with the last element of the array, or `behind` rows of NaN later."""
    rows, cols = array.shape
    ld = max(1, cols + extra)
    size, start = problem.dtype.size_bytes, GUARD_ROWS * ld
    count = start + (rows + behind) * ld - (0 if behind else ld - cols)
    buffer = device.allocate(count * size)
    whole = buffer.array(problem.dtype.numpy_name, (count,))
    whole[...] = np.nan
    if array.size:
        inside = device.xp.lib.stride_tricks.as_strided(whole[start:], array.shape, (ld * size, size))
        inside[...] = device.xp.asarray(array)
    return Operand(buffer.pointer + start * size, rows, cols, ld, trans, buffer), whole


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
    """C after the kernel ran. Fails if memory around C was written. C starts as NaN where beta is 0."""
    problem = kernel.problem
    a_operand, _ = poisoned(device, problem, a, extra, problem.trans_a)
    b_operand, _ = poisoned(device, problem, b, extra, problem.trans_b)
    start = c if beta else np.full_like(c, np.nan)
    c_operand, whole = poisoned(device, problem, start, extra, False, GUARD_ROWS)
    kernel.launch(a_operand, b_operand, c_operand, alpha, beta)
    device.synchronize()
    after = device.to_numpy(whole).reshape(-1, c_operand.ld)
    inside = np.zeros(after.shape, dtype=bool)
    inside[GUARD_ROWS : GUARD_ROWS + problem.m, : problem.n] = True
    assert np.isnan(after[~inside]).all(), "wrote outside C"
    return after[GUARD_ROWS : GUARD_ROWS + problem.m, : problem.n]


def check(kernel: Kernel, alpha: float, beta: float, extra: int, seed: int = 1) -> None:
    """Run the kernel on whole numbers. Every bit has to be right."""
    a, b, c = integers(kernel.problem, seed)
    got = run(kernel.device, kernel, a, b, c, alpha, beta, extra)
    expected = exact(kernel.problem, a, b, c, alpha, beta)
    assert np.array_equal(got, expected), (str(kernel.config), kernel.problem, alpha, beta, extra)


def check_batch(kernel: Kernel, alpha: float, beta: float, gap: int = 3) -> None:
    """Run a batch on whole numbers, with an outer dimension of 2. A is the same along the inner dimension, and B along
    the outer. `gap` rows of NaN follow each matrix, and `gap` elements each row. Every bit has to be right."""
    problem, xp = kernel.problem, kernel.device.xp
    one, inner = replace(problem, batch=1), problem.batch // 2
    operands = [integers(one, seed) for seed in range(problem.batch)]

    def laid(matrices: list[NDArray[Any]]) -> Any:
        rows, cols = matrices[0].shape
        whole = np.full((len(matrices), rows + gap, cols + gap), np.nan, matrices[0].dtype)
        whole[:, :rows, :cols] = matrices
        return xp.asarray(whole)

    a, b = laid([operands[0][0], operands[1][0]]), laid([each[1] for each in operands[:inner]])
    c = laid([each[2] if beta else np.full_like(each[2], np.nan) for each in operands])
    step_a, step_b, step_c = (math.prod(whole.shape[1:]) for whole in (a, b, c))
    strides = Strides(inner, (step_a, 0), (0, step_b), (inner * step_c, step_c))
    pointers = (whole.data.ptr if hasattr(whole.data, "ptr") else whole.ctypes.data for whole in (a, b, c))
    with kernel.device.entered():
        kernel.laid(*(whole.shape[2] for whole in (a, b, c)), strides)(0, False, *pointers, alpha, beta)
        got = kernel.device.to_numpy(c)
    for place, (_, _, before) in enumerate(operands):
        expected = exact(one, operands[place // inner][0], operands[place % inner][1], before, alpha, beta)
        assert np.array_equal(got[place, : one.m, : one.n], expected), (str(kernel.config), problem, place, alpha, beta)
    got[:, : one.m, : one.n] = np.nan
    assert np.isnan(got).all(), "wrote outside C"


def check_groups(kernel: Kernel, ends: Sequence[int], alpha: float, beta: float, gap: int = 3) -> None:
    """Run a ragged batch on whole numbers, with groups that end at `ends`. `gap` rows of NaN follow each matrix, and
    `gap` elements each row. Operands are NaN where they must not be read. Every bit has to be right."""
    problem, xp = kernel.problem, kernel.device.xp
    one, along_k = replace(problem, batch=1, ragged=""), problem.ragged == "k"
    operands = [integers(one, seed) for seed in range(problem.batch)]
    behind = slice(max([0, *ends]), None)  # the part along m or k that no group reads

    def laid(matrices: list[NDArray[Any]]) -> Any:
        rows, cols = matrices[0].shape
        whole = np.full((len(matrices), rows + gap, cols + gap), np.nan, matrices[0].dtype)
        whole[:, :rows, :cols] = matrices
        return xp.asarray(whole)

    a, b = operands[0][0].copy(), [each[1].copy() for each in (operands[:1] if along_k else operands)]
    c = [each[2] for each in (operands if along_k else operands[:1])]
    if along_k:
        (a.T if problem.trans_a else a)[:, behind] = np.nan
        (b[0].T if problem.trans_b else b[0])[behind] = np.nan
    else:
        (a.T if problem.trans_a else a)[behind] = np.nan
    if alpha == 0:
        a, b = np.full_like(a, np.nan), [np.full_like(each, np.nan) for each in b]
    whole_c = laid(c if beta else [np.full_like(each, np.nan) for each in c])
    arrays = laid([a]), laid(b), whole_c
    step_b, step_c = (math.prod(whole.shape[1:]) for whole in arrays[1:])
    strides = Strides(problem.batch, (0, 0), (0, 0 if along_k else step_b), (0, step_c if along_k else 0))
    offsets = xp.asarray(np.array(ends, np.int32))
    pointers = [x.data.ptr if hasattr(x.data, "ptr") else x.ctypes.data for x in (*arrays, offsets)]
    with kernel.device.entered():
        launch = kernel.laid(*(whole.shape[2] for whole in arrays), strides)
        launch(0, False, *pointers[:3], alpha, beta, pointers[3])
        got = kernel.device.to_numpy(whole_c)
    begins, (a, first_b, _) = [0, *ends[:-1]], operands[0]
    if not along_k:
        begins, ends = [*begins, ends[-1]], [*ends, problem.m]
    for place, (begin, end) in enumerate(zip(begins, ends)):
        rows, here = slice(begin, end), c[place if along_k else 0]
        if along_k:
            part = replace(one, k=end - begin)
            of_a = a[rows] if problem.trans_a else a[:, rows]
            of_b = first_b[:, rows] if problem.trans_b else first_b[rows]
            result, before = got[place, : one.m, : one.n], here
        else:
            part = replace(one, m=end - begin)
            of_a = a[:, rows] if problem.trans_a else a[rows]
            of_b = operands[place][1] if place < problem.batch else np.zeros_like(first_b)
            result, before = got[0, rows, : one.n], here[rows]
        expected = exact(part, of_a, of_b, before, alpha, beta)
        assert np.array_equal(result, expected), (str(kernel.config), problem, place, alpha, beta)
    got[:, : one.m, : one.n] = np.nan
    assert np.isnan(got).all(), "wrote outside C"


def check_sizes(kernels: Sequence[Kernel], sizes: Iterable[Sequence[int]], extras: Sequence[int] = (0, 1, 7)) -> None:
    """Check each size with one of the kernels, in turn. Alpha, beta and the strides change in turn too."""
    for case, size in enumerate(sizes):
        kernel = kernels[case % len(kernels)]
        turn = case // len(kernels)
        check(prepared(kernel, sized(kernel.problem, *size)), *SCALARS[turn % 4], extras[turn % len(extras)])


def check_askew(alignment: int, prepare: Callable[[Device], Kernel]) -> Kernel:
    """Let each operand in turn begin one element after an aligned address. Returns the kernel that was launched."""
    device = QuickDevice(alignment=alignment)
    kernel = prepare(device)
    a, b, c = integers(kernel.problem, 1)
    size, name, wide = a.itemsize, a.dtype.name, 16 // a.itemsize
    for askew in range(3):
        operands, arrays = [], []
        for place, array in enumerate((a, b, c)):
            memory = device.allocate(size * (array.size + wide + 1))
            skip = (-(memory.pointer // size) % wide) + (1 if place == askew else 0)
            flat = memory.array(name, (array.size + wide + 1,))[skip : skip + array.size]
            flat[:] = array.ravel()
            arrays.append(flat.reshape(array.shape))
            operands.append(Operand(memory.pointer + size * skip, *array.shape, array.shape[1], False, memory))
        kernel.launch(*operands)
        assert np.array_equal(arrays[2], exact(kernel.problem, a, b, c, 1, 0))
    return kernel


def bits(kernel: Kernel, alpha: float = 1.0) -> bytes:
    """Bits of the kernel's result for random operands, which are the same in each call."""
    rng, kind, problem = np.random.default_rng(1), numpy_dtype(kernel.problem), kernel.problem
    a, b, c = (rng.random(s).astype(kind) for s in (problem.stored_a, problem.stored_b, (problem.m, problem.n)))
    return run(kernel.device, kernel, a, b, c, alpha, 0.0).tobytes()  # else compilers may round alpha * sum first


def on_device(array: Any) -> Operand:
    """A matrix in a CuPy array, as a kernel takes it."""
    return Operand(int(array.data.ptr), *array.shape, array.shape[1], False, array)


def prepared(kernel: Kernel, problem: Problem) -> Kernel:
    """The same instance for another size. Its text does not change with the size, as tests of rendering make sure."""
    return Kernel(kernel.device, problem, kernel.fit, kernel.source, kernel.binary)


def guarded(config: Config, dtype: str = "float", trans: str = "nn", wide: bool = False) -> Fit:
    """The instance of a config that serves products of any size: with `wide`, for aligned rows and with the widest
    vectors, else for any alignment."""
    fit = config.fit(Problem.parse("64x64x512", dtype, trans, config.accuracy), aligned=wide)
    assert fit is not None
    return fit if fit.edge is Edge.PAD else replace(fit, edge=Edge.BOUNDS)


def instance(device: Device, problem: Problem, fit: Fit) -> Kernel:
    """A kernel of this instance, which may differ from the one that the problem would get."""
    source = render(problem, fit.config, device.info, fit)
    return Kernel(device, problem, fit, source, compiled(device.compiler, source))


def sized(problem: Problem, m: int, n: int, k: int) -> Problem:
    return replace(problem, m=m, n=n, k=k)


# ---- Operands that kernels of terms multiply exactly, though every term and every power of two counts -----------


Floats = NDArray[np.float32]
RANGES = ((2**17, 1), (1, 2**17), (2**9, 2**9))
"""Largest whole numbers of A and of B, which need three terms of A, three of B, or two of each. Sums of up to 60
products stay below 2^24 and are exact."""


def scaled_integers(problem: Problem, which: int, seed: int = 1) -> tuple[Floats, Floats, Floats, NDArray[np.float64]]:
    """A and B as stored, C, and the exact op(A) op(B). Elements are whole numbers, times a power of two for each row of
    op(A) and each column of op(B). A row of op(A) is 0 but for its first 59 elements and its last."""
    rng = np.random.default_rng(seed)
    most_a, most_b = RANGES[which % len(RANGES)]
    m, n, k = problem.m, problem.n, problem.k
    a = rng.integers(-most_a, most_a + 1, (m, k)).astype(np.float64)
    b = rng.integers(-most_b, most_b + 1, (k, n)).astype(np.float64)
    zero = slice(59, max(59, k - 1))
    a[:, zero] = 0
    rows, cols = 2.0 ** rng.integers(-30, 31, (m, 1)), 2.0 ** rng.integers(-20, 21, (1, n))
    c = rng.integers(-9, 10, (m, n)) * rows * cols
    wide = (a @ b) * rows * cols
    a, b = a * rows, b * cols
    stored: tuple[Any, ...] = (a.T if problem.trans_a else a), (b.T if problem.trans_b else b), c
    one, other, third = (np.ascontiguousarray(each, np.float32) for each in stored)
    return one, other, third, wide


def with_infinity(problem: Problem, seed: int = 1) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Operands with infinity in a row of op(A) and NaN in a column of op(B), and their product in IEEE arithmetic."""
    a, b, _, _ = scaled_integers(problem, 1, seed)
    op_a, op_b = (a.T if problem.trans_a else a), (b.T if problem.trans_b else b)
    op_a[problem.m // 2, problem.k - 1] = np.inf
    op_b[0, problem.n // 3] = np.nan
    with np.errstate(invalid="ignore"):
        return a, b, op_a.astype(np.float64) @ op_b.astype(np.float64)


# ---- Launches of a loaded function ------------------------------------------------------------------------------


_CODES = {"L": "Q", "i": "i", "I": "I", "f": "f", "d": "d", "V": "m"}


def launch(function: Function, how: LaunchConfig, arguments: Sequence[np.generic], stream: int = 0) -> None:
    """Launch the function once on a stream."""
    codes = "".join(_CODES[argument.dtype.char] for argument in arguments)
    values = [argument.tobytes() if argument.dtype.char == "V" else argument.item() for argument in arguments]
    function.bound(how, codes)(stream, *values)


_PROBE = """
extern "C" __global__ void NAME(Elem* out)
{
    __shared__ __align__(16) Elem tile[kStage];
    for (int i = threadIdx.x; i < kStage; i += 32) tile[i] = i;
    __syncthreads();
    const Elem* from[TileA::kBases];
    TileA::find(from, tile, 0, 0, threadIdx.x);
    for (int p = 0; p < kBlockK; p += kStep) {
        Elem fragment[kLaneK];
        TileA::read(fragment, from, 0, p, 1);
        for (int e = 0; e < kLaneK; ++e) out[threadIdx.x * kBlockK / 4 + p / 4 + e] = fragment[e];
    }
}
"""


def places_read(problems: Sequence[Problem], configs: Sequence[Config], folder: Path) -> list[NDArray[np.int64]]:
    """For each config, the indices in shared memory from which each of 32 lanes reads its fragments of A. A probe after
    the emitted text fills shared memory with its own indices."""
    device, probes = HostDevice(), []
    for number, (problem, config) in enumerate(zip(problems, configs, strict=True)):
        source = render(problem, config, TYPICAL["host"], guarded(config, problem.dtype.value, problem.trans))
        name = f"places_{number}"
        probes.append(replace(source, name=name, code=source.code + _PROBE.replace("NAME", name)))
    binary = QuickCompiler().build(together(probes), str(folder))
    places = []
    for probe, problem, config in zip(probes, problems, configs, strict=True):
        shape = 32, config.cta_tile[2] // 4
        memory = device.allocate(math.prod(shape) * problem.dtype.size_bytes)
        how = LaunchConfig((1, 1, 1), (32, 1, 1))
        launch(device.load(binary, probe.name), how, [np.uint64(memory.pointer)])
        read = memory.array(problem.dtype.numpy_name, shape).astype(int)
        assert len(set(read.ravel())) == read.size
        places.append(read)
    return places
