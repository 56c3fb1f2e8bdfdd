"""Tests of products for arrays of any library on any device."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import pytest
import tilewright
from numpy.typing import NDArray

DTYPES = ("float32", "float64")
T = TypeVar("T")


def whole(rows: int, cols: int, dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    """Whole numbers from -8 to 8: all sums are exact, so that results must be equal to the last bit."""
    return np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols)).astype(dtype)


def in_threads(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Call a function for each item in a thread of its own, all at once. Raises its first exception."""
    start = Barrier(len(items))

    def started(item: T) -> None:
        start.wait()  # otherwise a thread that is done would take the item of another
        work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        list(pool.map(started, items))


class Products:
    """Tests of products; a subclass sets the device and the library of the arrays."""

    device: str | None = None

    def put(self, array: NDArray[Any]) -> Any:
        """The array as the library and the device of the test hold it."""
        return array

    def back(self, array: Any) -> NDArray[Any]:
        """The same array as a NumPy array."""
        return np.asarray(array)

    def product(self, a: Any, b: Any, **options: Any) -> Any:
        return tilewright.matmul(a, b, device=self.device, **options)

    def loaded(self, m: int, n: int, k: int, **options: Any) -> Any:
        return tilewright.load(m, n, k, device=self.device or "auto", **options)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_plain_and_transposed_operands(self, dtype: str) -> None:
        a, b = whole(33, 19, dtype), whole(19, 21, dtype)
        for left in (self.put(a), self.put(np.ascontiguousarray(a.T)).T):
            for right in (self.put(b), self.put(np.ascontiguousarray(b.T)).T):
                got = self.product(left, right)
                assert got.dtype == a.dtype
                assert type(got) is type(left)
                assert np.array_equal(self.back(got), a @ b)

    def test_submatrices_and_padded_rows(self) -> None:
        a, b = whole(40, 50), whole(60, 45)
        views = ((slice(3, 20), slice(5, 29)), (slice(0, 24), slice(7, 18))), ((slice(0, 48, 2), slice(1, 31)),) * 2
        for of_a, of_b in views:
            b_rows = slice(of_b[0].start, of_b[0].start + a[of_a].shape[1])
            got = self.product(self.put(a)[of_a], self.put(b)[b_rows, of_b[1]])
            assert np.array_equal(self.back(got), a[of_a] @ b[b_rows, of_b[1]])

    def test_alpha_and_beta(self) -> None:
        a, b, c = whole(17, 18), whole(18, 19), whole(17, 19)
        for alpha, beta in ((1, 0), (0.5, 0.0), (1.0, 1.0), (np.float32(-2), 0.5), (0.0, 2.0), (0.0, 0.0)):
            out = self.put(c.copy())
            assert self.product(self.put(a), self.put(b), out=out, alpha=alpha, beta=beta) is out
            assert np.array_equal(self.back(out), alpha * (a @ b) + beta * c)

    def test_factors_that_float_cannot_hold(self) -> None:
        """Factors are rounded as IEEE 754 says, but never from another number to 0, with which C would not be read."""
        a, b, c = whole(5, 6), whole(6, 7), np.full((5, 7), np.inf, "float32")
        for beta in (1e-60, -1e-60):
            out = self.put(c.copy())
            self.product(self.put(a), self.put(b), out=out, beta=beta)
            assert np.array_equal(self.back(out), np.sign(beta) * c)
            out = self.put(np.ones_like(c))
            self.product(self.put(a), self.put(b), out=out, beta=beta)
            assert (abs(self.back(out) - a @ b) <= 2.0**-149).all()
        infinite = self.put(np.where(a == 0, a, np.copysign(np.inf, a)).astype("float32"))
        ones = self.put(np.ones_like(b))
        one, other = (self.back(self.product(infinite, ones, alpha=alpha)) for alpha in (1.0, 1e-60))
        assert np.array_equal(one, other, equal_nan=True)
        assert np.isinf(self.back(self.product(self.put(np.ones_like(a)), ones, alpha=1e39))).all()
        doubles = self.product(*(self.put(each.astype("float64")) for each in (a, b)), alpha=1e-60)
        assert np.array_equal(self.back(doubles), 1e-60 * (a @ b).astype("float64"))

    def test_beta_zero_never_reads_out_and_alpha_zero_never_reads_operands(self) -> None:
        a, b, nan = whole(9, 8), whole(8, 7), np.full((9, 7), np.nan, "float32")
        assert np.array_equal(self.back(self.product(self.put(a), self.put(b), out=self.put(nan))), a @ b)
        bad_a, bad_b, c = np.full_like(a, np.nan), np.full_like(b, np.inf), whole(9, 7)
        out = self.product(self.put(bad_a), self.put(bad_b), out=self.put(c.copy()), alpha=0, beta=2)
        assert np.array_equal(self.back(out), 2 * c)

    def test_nan_in_an_operand_reaches_its_row(self) -> None:
        a = whole(9, 8)
        a[4, 3] = np.nan
        got = self.back(self.product(self.put(a), self.put(whole(8, 7))))
        assert np.isnan(got[4]).all()
        assert np.isfinite(np.delete(got, 4, axis=0)).all()

    def test_zero_sizes(self) -> None:
        for m, n, k in ((0, 5, 4), (5, 0, 4), (0, 0, 0), (0, 5, 0)):
            got = self.product(self.put(whole(m, k)), self.put(whole(k, n)))
            assert got.shape == (m, n)
        a, b, c = whole(5, 0), whole(0, 6), whole(5, 6)
        assert not self.back(self.product(self.put(a), self.put(b))).any()
        out = self.product(self.put(a), self.put(b), out=self.put(c.copy()), beta=-1.0)
        assert np.array_equal(self.back(out), -c)

    def test_shapes_that_are_one_wide(self) -> None:
        for m, n, k in ((1, 1, 1), (1, 30, 20), (30, 1, 20), (30, 20, 1), (1, 1, 40), (1, 40, 1), (40, 1, 1)):
            a, b = whole(m, k), whole(k, n)
            assert np.array_equal(self.back(self.product(self.put(a), self.put(b))), a @ b)

    def test_vectors_cut_out_of_a_matrix(self) -> None:
        """A row, a column, and every other element of a row are matrices with a dimension of 1."""
        x, b, c = whole(20, 24), whole(20, 9), whole(20, 12)
        for view in (lambda y: y[:, 3:4].T, lambda y: y.T[5:6], lambda y: y[::1, 2:3].T):
            assert np.array_equal(self.back(self.product(view(self.put(x)), self.put(b))), view(x) @ b)
        assert np.array_equal(self.back(self.product(self.put(x)[3:4, ::2], self.put(c)[:12])), x[3:4, ::2] @ c[:12])

    def test_out_may_be_part_of_a_larger_array(self) -> None:
        a, b, board = whole(13, 11), whole(11, 12), whole(20, 30)
        expected = board.copy()
        expected[4:17, 9:21] = a @ b + 3 * board[4:17, 9:21]
        target = self.put(board.copy())
        self.product(self.put(a), self.put(b), out=target[4:17, 9:21], beta=3)
        assert np.array_equal(self.back(target), expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_out_by_columns(self, dtype: str) -> None:
        """`out` is a transposed view of part of an array. C may have a single row, whose elements then lie apart.
        Operands are plain and transposed."""
        for m, n, k in ((13, 12, 11), (1, 9, 17), (64, 1, 5), (5, 7, 0)):
            a, b, board = whole(m, k, dtype), whole(k, n, dtype), whole(n + 5, m + 6, dtype)
            within = (slice(2, n + 2), slice(3, m + 3))
            for left in (self.put(a), self.put(np.ascontiguousarray(a.T)).T):
                for right in (self.put(b), self.put(np.ascontiguousarray(b.T)).T):
                    for alpha, beta in ((1, 0), (0.5, 2.0), (0, -1.0)):
                        expected, target = board.copy(), self.put(board.copy())
                        expected[within] = (alpha * (a @ b) + beta * board[within].T).T
                        out = target[within].T
                        for copy in ("never", "if-needed"):
                            target[...] = self.put(board.copy())
                            assert self.product(left, right, out=out, alpha=alpha, beta=beta, copy=copy) is out
                            assert np.array_equal(self.back(target), expected)

    def test_out_by_columns_of_a_loaded_kernel(self) -> None:
        a, b, board = whole(14, 23, "float64"), whole(14, 22, "float64"), whole(22, 30, "float64")  # k x m, k x n
        kernel = self.loaded(23, 22, 14, dtype="double", trans_a=True)
        target = self.put(board.copy())
        out = target[:, 4:27].T
        expected = a.T @ b + 3 * board[:, 4:27].T
        for _ in range(2):
            target[...] = self.put(board.copy())
            assert kernel(self.put(a), self.put(b), out=out, beta=3) is out
            assert np.array_equal(self.back(out), expected)
        assert np.array_equal(self.back(target)[:, :4], board[:, :4])
        plain = self.put(np.zeros((23, 22)))
        assert np.array_equal(self.back(kernel(self.put(a), self.put(b), out=plain)), a.T @ b)

    def test_out_may_interleave_with_an_operand_in_one_array(self) -> None:
        board, b = whole(16, 40), whole(12, 9)
        expected = board[:, 3:15] @ b
        target = self.put(board.copy())
        self.product(target[:, 3:15], self.put(b), out=target[:, 15:24])
        assert np.array_equal(self.back(target)[:, 15:24], expected)
        assert np.array_equal(self.back(target)[:, :15], board[:, :15])

    def test_the_loaded_kernel_takes_operands_as_stored(self) -> None:
        a, b = whole(14, 23, "float64"), whole(22, 14, "float64")  # k x m and n x k
        kernel = tilewright.load(23, 22, 14, dtype="double", trans_a=True, trans_b=True, device=self.device or "auto")
        out = self.put(np.zeros((23, 22)))
        assert kernel(self.put(a), self.put(b), out=out, alpha=2) is out
        assert np.array_equal(self.back(out), 2 * a.T @ b.T)
