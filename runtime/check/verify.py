"""Verification of a variant before it is timed: on poisoned output between canaries, against a far more accurate
reference computed by the device's array library."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.problem import NORMWISE_ROUNDINGS, DType, Grade, Problem
from ..device.protocol import Device, Launch, Operand
from ..store.record import Accuracy

_CANARY = 0xA5
_CANARY_BYTES = 4096
_POISON = 0xFF  # every byte set makes a NaN of either type
_WHOLE_FLOPS = {"host": 2e9, "cuda": 4e12}
"""Most operations of a product whose whole C is compared, by kind of device."""
_SAMPLED_ROWS = 64
"""Number of random rows that are compared of a larger product, besides those at tile edges."""
_SAMPLED_PRODUCTS = 64
"""Most random products of a batch that are compared, besides those near powers of two."""
_DRAWN = 2**20 - 3
"""Most numbers drawn for a matrix: a prime, so that the rows of a larger matrix are not copies of each other."""
_POISONED_BYTES = 2**22
"""Most bytes of the array of poison. Repeated copies of it fill C, for which an array library compiles no kernel."""


def gamma(count: int, unit_roundoff: float) -> float:
    """gamma_n = n u / (1 - n u): bound of n roundings one after the other."""
    return count * unit_roundoff / (1 - count * unit_roundoff)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying one variant."""

    accuracy: Accuracy
    """Largest error over its bound."""
    reason: str
    """Reason of a wrong result in one line, empty for a right one."""


def place(
    device: Device, problem: Problem, shape: tuple[int, int], trans: bool, rng: np.random.Generator
) -> tuple[Operand, NDArray[Any]]:
    """Place a random matrix in [-1, 1) on the device. Returns its operand, and the numbers that fill it row by row. A
    large matrix repeats them, and its rows begin at different numbers."""
    dtype, count = problem.dtype, math.prod(shape)
    # The device's memory comes first: where there is too little, no numbers are drawn in vain.
    buffer = device.allocate(count * dtype.size_bytes)
    drawn = max(1, min(count, _DRAWN))
    numbers: NDArray[Any] = rng.random(drawn, np.float32 if dtype is DType.FLOAT else np.float64) * 2 - 1
    _repeat(device.xp, numbers, buffer.array(dtype.numpy_name, (count,)))
    return Operand(buffer.pointer, *shape, max(1, shape[1]), trans, buffer), numbers


def place_all(
    device: Device, problem: Problem, shape: tuple[int, int], trans: bool, rng: np.random.Generator
) -> tuple[Operand, NDArray[Any]]:
    """Place the random matrices of all products of a batch, one after the other, as `place` does one."""
    rows, cols = shape
    return place(device, problem, (problem.batch * rows, cols), trans, rng)


def _of_product(numbers: NDArray[Any], product: int, shape: tuple[int, int]) -> NDArray[Any]:
    """The numbers that fill the matrix of one product of a batch, repeated."""
    size = math.prod(shape)
    return numbers.take(np.arange(min(size, numbers.size)) + product * size, mode="wrap") if product else numbers


def _references(
    xp: Any, problem: Problem, a: NDArray[Any], b: NDArray[Any], rng: np.random.Generator, whole: bool
) -> "list[_Reference]":
    """References of one product: one of all of C if `whole`, else one of some rows and one of some columns."""
    if whole:
        return [product(xp, problem, a, b, None, None)]
    rows = _sample(problem.m, rng, _SAMPLED_ROWS)
    return [product(xp, problem, a, b, rows, None), product(xp, problem, a, b, None, _edges(problem.n))]


def _repeat(xp: Any, block: Any, flat: Any) -> None:
    """Fill an array of the device by repeating the elements of a block."""
    block = xp.asarray(block)
    for start in range(0, flat.size, block.size):
        part = flat[start : start + block.size]
        xp.copyto(part, block[: part.size])


class Verifier:
    """Inputs and reference of one problem on one device; checks any number of variants against them.

    The bound of an element is |C^ - C| <= gamma_{k+2} |alpha| |A||B| + gamma_2 |beta||C| + (k+4) * smallest subnormal.
    Summing in any order with one rounding per operation cannot exceed it. Where accuracy is `normwise`, the first term
    is gamma_c |alpha| |a_i||b_j| with the Euclidean norms of a row of op(A) and a column of op(B), and c the larger of
    k + 2 and NORMWISE_ROUNDINGS. Else an error may take at most 4 / sqrt(k + 2) of the bound, as the data are random:
    with a k of 65536, a kernel that drops a thousand terms keeps the whole bound. NaN exceeds every bound. Only some
    products of a batch are compared, and rows are counted through the stack of all.
    """

    SCALARS = ((1.0, 0.0), (-0.5, 2.0))
    """alpha and beta of the two runs of a check, the first over poison. Powers of two keep the reference exact."""

    def __init__(
        self, device: Device, problem: Problem, seed: int = 1, reference: "Sequence[_Reference] | None" = None
    ) -> None:
        """`reference` takes the place of the product of A and B in comparisons."""
        self.device = device
        self.problem = problem
        self._most = 1.0 if problem.accuracy is Grade.NORMWISE else min(1.0, 4 / math.sqrt(problem.k + 2))
        rng = np.random.default_rng(seed)
        batch, shape = problem.batch, (problem.batch, problem.m, problem.n)
        self.a, a = place_all(device, problem, problem.stored_a, problem.trans_a, rng)
        self.b, b = place_all(device, problem, problem.stored_b, problem.trans_b, rng)
        rng = np.random.default_rng(seed + 1)
        c0: Any = place_all(device, problem, shape[1:], False, rng)[0].owner
        self._c0 = c0.array(problem.dtype.numpy_name, shape)
        whole = _WHOLE_FLOPS[device.info.selector.partition(":")[0]]
        if reference is not None:
            self._parts = [(0, part) for part in reference]
        else:
            one = replace(problem, batch=1)
            count = min(_SAMPLED_PRODUCTS, max(1, int(whole // max(1, one.flops))))
            self._parts = [
                (each, part)
                for each in (_sample(batch, rng, count) if batch > 1 else [0])
                for part in _references(
                    device.xp,
                    one,
                    _of_product(a, each, one.stored_a),
                    _of_product(b, each, one.stored_b),
                    rng,
                    one.flops <= whole,
                )
            ]
        # C lies between two canaries.
        size = math.prod(shape) * problem.dtype.size_bytes
        buffer = device.allocate(size + 2 * _CANARY_BYTES)
        self._whole = buffer.array("uint8", (size + 2 * _CANARY_BYTES,))
        self._c = buffer.array(problem.dtype.numpy_name, shape, _CANARY_BYTES)
        pointer = buffer.pointer + _CANARY_BYTES
        self._operand = Operand(pointer, batch * problem.m, problem.n, max(1, problem.n), False, buffer)
        patterns = (_CANARY, _CANARY_BYTES), (_POISON, max(1, min(size, _POISONED_BYTES)))
        self._canary, self._poison = (device.xp.asarray(np.full(count, byte, np.uint8)) for byte, count in patterns)

    def check(self, launch: Launch) -> Verdict:
        """Run a launch on poisoned output and compare the result. Raises LaunchError."""
        worst = Accuracy(0.0, -1, -1)
        for alpha, beta in self.SCALARS:
            xp = self.device.xp
            xp.copyto(self._whole[:_CANARY_BYTES], self._canary)
            xp.copyto(self._whole[-_CANARY_BYTES:], self._canary)
            if beta != 0:
                xp.copyto(self._c, self._c0)
            else:
                _repeat(xp, self._poison, self._whole[_CANARY_BYTES:-_CANARY_BYTES])
            launch(self.a, self.b, self._operand, alpha, beta)
            self.device.synchronize()
            accuracy = self._compare(self._c, alpha, beta)
            if not accuracy.worst <= worst.worst:
                worst = accuracy
            reason = self._reason(accuracy)
            if reason:
                return Verdict(accuracy, f"{reason} (alpha {alpha:g}, beta {beta:g})")
        return Verdict(worst, "")

    def _reason(self, accuracy: Accuracy) -> str:
        outside = self._whole[:_CANARY_BYTES].tobytes() + self._whole[-_CANARY_BYTES:].tobytes()
        if outside.strip(bytes([_CANARY])):
            return "wrote outside C"
        # Errors are NaN where C is. All of C is searched only if parts were not compared: CuPy compiles that kernel.
        whole = (len(self._parts) == 1 and self.problem.batch == 1) or not self._c.size
        largest = accuracy.worst if whole else float(abs(self._c).max())
        if not math.isfinite(largest):
            return "left elements of C unwritten, or made NaN of finite data"
        if not accuracy.worst <= self._most:
            random = f", of which random data need {self._most:.2g} at most," if accuracy.ok else ""
            return f"error {accuracy.worst:.3g} times its bound{random} at row {accuracy.row}, column {accuracy.col}"
        return ""

    def _compare(self, c: Any, alpha: float, beta: float) -> Accuracy:
        problem, (ratio_of, _) = self.problem, _fused(self.device.xp)
        u, least = problem.dtype.unit_roundoff, (problem.k + 4) * problem.dtype.smallest_subnormal
        roundings = max(problem.k + 2, NORMWISE_ROUNDINGS if problem.accuracy is Grade.NORMWISE else 0)
        worst = Accuracy(0.0, -1, -1)
        for each, part in self._parts:
            if part.high.size == 0:
                continue
            result, old = c[each][part.rows, part.cols], self._c0[each][part.rows, part.cols]
            bounds = abs(alpha) * gamma(roundings, u), abs(beta) * gamma(2, u), least
            ratio = ratio_of(result, old, part.high, part.low, part.magnitude, alpha, beta, *bounds)
            # argmax returns the place of a NaN if there is one.
            at = int(ratio.argmax())
            value = float(ratio.ravel()[at])
            if not value <= worst.worst:
                row, col = divmod(at, part.high.shape[1])
                row, col = _index(part.rows, row), _index(part.cols, col)
                worst = Accuracy(value, int(each) * problem.m + row, col)
        return worst


def compile_check(device: Device, problem: Problem) -> None:
    """Make the array library compile the operations of a comparison, which it does at their first use. Raises
    LaunchError."""
    small = replace(problem, m=3, n=5, k=7)
    with device.entered():
        zeros = device.xp.zeros((small.m, small.n))
        reference = _Reference(slice(None), slice(None), zeros, zeros, zeros)
        Verifier(device, small, reference=[reference]).check(lambda a, b, c, alpha, beta: None)


def _edges(size: int) -> NDArray[np.int64]:
    """Indices beside the first and last boundary of every tile that is a power of two."""
    near = {0, size - 1}
    for tile in (2**power for power in range(2, 9)):
        for boundary in (tile, size // tile * tile):
            near |= {boundary - 1, boundary}
    return np.array(sorted(index for index in near if 0 <= index < size), dtype=np.int64)


def _sample(size: int, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """`count` random indices and those at tile edges, or all indices where there are no more than `count`."""
    if size <= count:
        return np.arange(size)
    return np.union1d(rng.choice(size, count, replace=False), _edges(size))


@dataclass(frozen=True, slots=True)
class _Reference:
    """op(A) op(B) on some rows and columns of C, as the sum of two numbers, and |op(A)| |op(B)|."""

    rows: Any
    """Indices of the rows compared, or a slice of all."""
    cols: Any
    """Indices of the columns compared, or a slice of all."""
    high: Any
    """Leading part, float64."""
    low: Any
    """Remainder of the leading part, float64."""
    magnitude: Any
    """Scale of the error bounds, float64: |op(A)| |op(B)|, or where the problem's accuracy is `normwise` the products
    of the Euclidean norms of a row of op(A) and a column of op(B)."""


def _index(indices: Any, position: int) -> int:
    """Index in C of the row or column at a position of a reference."""
    return position if isinstance(indices, slice) else int(indices[position])


def product(
    xp: Any, problem: Problem, a: NDArray[Any], b: NDArray[Any],
    rows: NDArray[np.int64] | None, cols: NDArray[np.int64] | None,
) -> _Reference:  # fmt: skip
    """The reference of op(A) op(B) on some rows or some columns; None means all. a and b are numbers in [-1, 1), as
    `place` draws them, that fill the stored A and B row by row, repeated.

    Products of two floats are exact in double, so float needs one matrix product in double, whose error is some
    2^-29 of float's. Double goes by slices: each operand is split so that the products of its leading slices add
    without any rounding, whatever the order, and the rest is too small for its rounding to count
    (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication", 2012). Operations on single
    elements are carried out on the numbers, before they are repeated.
    """
    wide_a, matrix_a = _read(xp, a, problem.stored_a, problem.trans_a, rows, int(problem.trans_a))
    wide_b, matrix_b = _read(xp, b, problem.stored_b, problem.trans_b, cols, int(not problem.trans_b))
    at_rows, at_cols = (slice(None) if at is None else xp.asarray(at) for at in (rows, cols))
    if problem.accuracy is Grade.NORMWISE:
        op_a, op_b = matrix_a(wide_a), matrix_b(wide_b)
        magnitude = xp.sqrt((op_a * op_a).sum(1))[:, None] * xp.sqrt((op_b * op_b).sum(0))
        del op_a, op_b  # matrices may take most of the memory
    else:
        magnitude = matrix_a(abs(wide_a)) @ matrix_b(abs(wide_b))
    if problem.dtype is DType.FLOAT or problem.k == 0:
        high = matrix_a(wide_a) @ matrix_b(wide_b)
        return _Reference(at_rows, at_cols, high, xp.zeros_like(high), magnitude)
    bits = (53 - math.ceil(math.log2(problem.k))) // 2
    anchors = 2.0 ** (53 - bits), 2.0 ** (53 - 2 * bits)
    a1, a2, a3 = map(matrix_a, _slices(wide_a, *anchors))
    b1, b2, b3 = map(matrix_b, _slices(wide_b, *anchors))
    (_, added), high, low = _fused(xp), a1 @ b1, xp.zeros_like(magnitude)
    for one, other in ((a1, b2), (a2, b1), (a2, b2), (a1, b3), (a2, b3), (a3, matrix_b(wide_b))):
        high, low = added(high, low, one @ other)
    return _Reference(at_rows, at_cols, high, low, magnitude)


def _read(
    xp: Any, numbers: NDArray[Any], shape: tuple[int, int], trans: bool, indices: NDArray[np.int64] | None, axis: int
) -> tuple[NDArray[np.float64], Callable[[NDArray[Any]], Any]]:
    """Read a stored matrix that `numbers` fill, repeated, or its rows (axis 0) or columns (axis 1) at `indices`.
    Returns its numbers in double, and a function that makes op of the matrix of such numbers."""
    if indices is not None:
        rows, cols = map(np.arange, shape)
        rows, cols = (indices, cols) if axis == 0 else (rows, indices)
        numbers = numbers.take((rows[:, None] * shape[1] + cols).ravel(), mode="wrap")
        shape = len(rows), len(cols)

    def matrix(values: NDArray[Any]) -> Any:
        array = xp.empty(shape)
        _repeat(xp, values, array.ravel())
        return array.T if trans else array

    return numbers.astype(np.float64), matrix


def _slices(wide: NDArray[Any], coarse: float, fine: float) -> tuple[NDArray[Any], ...]:
    """Split numbers into their highest bits, the next ones and the rest. Adding and subtracting a large power of two
    rounds to a multiple of a small one."""
    first = (wide + coarse) - coarse
    rest = wide - first
    second = (rest + fine) - fine
    return first, second, rest - second


def two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y rounded, and the exact error of rounding (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@cache
def _fused(xp: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions of whole arrays: `ratio`, errors over their bounds, and `added`, numbers in two parts plus a term.
    If the array library can fuse, each is compiled to one kernel, which passes over memory once."""

    def ratio(
        result: Any, old: Any, high: Any, low: Any, magnitude: Any,
        alpha: float, beta: float, of_product: float, of_sum: float, least: float,
    ) -> Any:  # fmt: skip
        # alpha and beta are powers of two, so that a fused multiply-add gives the same result.
        total, lost = two_sum(alpha * high, beta * old)
        return xp.absolute((result - total) - (lost + alpha * low)) / (
            of_product * magnitude + of_sum * xp.absolute(old) + least
        )

    def added(high: Any, low: Any, term: Any) -> tuple[Any, Any]:
        total, lost = two_sum(high, term)
        return total, low + lost

    fuse = getattr(xp, "fuse", lambda function: function)
    return fuse(ratio), fuse(added)
