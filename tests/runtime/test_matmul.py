"""The library: products of arrays as a user calls them, on the host device and, marked gpu, on a GPU."""

import threading
from typing import Any

import numpy as np
import pytest
import tilewright
from numpy.typing import NDArray
from tilewright.codegen.errors import DeviceMismatchError
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.product.kernel import Kernel
from tilewright.runtime.product.plan import Kept

DTYPES = ("float32", "float64")


def whole(rows: int, cols: int, dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    """Whole numbers from -8 to 8: every sum of theirs is exact, so results must be equal to the last bit."""
    return np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols)).astype(dtype)


@pytest.fixture(autouse=True)
def kernels() -> dict[Any, Kept]:
    """No kernels kept from another test, whose store was another."""
    tilewright.clear()
    return tilewright._library._kernels


class Products:
    """What holds wherever the arrays lie and the kernels run; a subclass says where that is."""

    device: str | None = None

    def put(self, array: NDArray[Any]) -> Any:
        """The array as a user has it."""
        return array

    def back(self, array: Any) -> NDArray[Any]:
        """As NumPy sees it."""
        return np.asarray(array)

    def product(self, a: Any, b: Any, **options: Any) -> Any:
        return tilewright.matmul(a, b, device=self.device, **options)

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
        """A row, a column and every other element of one: each is a matrix with one dimension of 1."""
        x, b, c = whole(20, 24), whole(20, 9), whole(20, 12)
        for view in (lambda y: y[:, 3:4].T, lambda y: y.T[5:6], lambda y: y[::1, 2:3].T):
            assert np.array_equal(self.back(self.product(view(self.put(x)), self.put(b))), view(x) @ b)
        assert np.array_equal(self.back(self.product(self.put(x)[3:4, ::2], self.put(c)[:12])), x[3:4, ::2] @ c[:12])

    def test_out_may_be_part_of_a_larger_array(self) -> None:
        a, b, board = whole(13, 11), whole(11, 12), whole(20, 30)
        wanted = board.copy()
        wanted[4:17, 9:21] = a @ b + 3 * board[4:17, 9:21]
        target = self.put(board.copy())
        self.product(self.put(a), self.put(b), out=target[4:17, 9:21], beta=3)
        assert np.array_equal(self.back(target), wanted)

    def test_out_may_interleave_with_an_operand_in_one_array(self) -> None:
        board, b = whole(16, 40), whole(12, 9)
        wanted = board[:, 3:15] @ b
        target = self.put(board.copy())
        self.product(target[:, 3:15], self.put(b), out=target[:, 15:24])
        assert np.array_equal(self.back(target)[:, 15:24], wanted)
        assert np.array_equal(self.back(target)[:, :15], board[:, :15])

    def test_the_loaded_kernel_takes_operands_as_stored(self) -> None:
        a, b = whole(14, 23, "float64"), whole(22, 14, "float64")  # k x m and n x k
        kernel = tilewright.load(23, 22, 14, dtype="double", trans_a=True, trans_b=True, device=self.device or "auto")
        out = self.put(np.zeros((23, 22)))
        assert kernel(self.put(a), self.put(b), out=out, alpha=2) is out
        assert np.array_equal(self.back(out), 2 * a.T @ b.T)


class TestHost(Products):
    """NumPy arrays on the host device."""

    device = "host"

    def test_a_view_is_used_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[int, ...]] = []
        laid = Kernel.laid

        def spied(kernel: Kernel, *lds: int) -> Any:
            run = laid(kernel, *lds)

            def spy(stream: int, capturing: bool, *given: Any) -> None:
                seen.append((*lds, *given[:3]))
                run(stream, capturing, *given)

            return spy

        monkeypatch.setattr(Kernel, "laid", spied)
        x, y, z = whole(30, 40), whole(50, 60), whole(30, 60)
        a, b, out = x.T[4:20, 3:18], y[2:17, 1:24], z[5:21, 7:30]
        self.product(a, b, out=out)
        assert seen == [(40, 60, 60, *(array.ctypes.data for array in (a, b, out)))]
        assert np.array_equal(out, a @ b)

    def test_threads_get_their_own_results(self, kernels: dict[Any, Kept]) -> None:
        shapes = [(20 + i % 3, 24, 16 + i % 2) for i in range(8)]
        wrong: list[object] = []

        def work(seed: int, shape: tuple[int, int, int]) -> None:
            m, n, k = shape
            try:
                for turn in range(10):
                    a, b = whole(m, k, seed=seed + 100 * turn), whole(k, n, seed=seed)
                    if not np.array_equal(tilewright.matmul(a, b, device="host"), a @ b):
                        wrong.append((seed, turn))
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i, shape)) for i, shape in enumerate(shapes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(kernels) == len(set(shapes))

    def test_kernels_kept_ready_are_bounded(self, kernels: dict[Any, Kept], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matmul_module, "_MAX_KERNELS", 2)
        for m in (3, 4, 5, 3):
            a, b = whole(m, 4), whole(4, 5)
            assert np.array_equal(self.product(a, b), a @ b)
        assert [problem.m for problem, _ in kernels] == [5, 3]


def cupy_or_skip() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.gpu
class TestNumpyOnGpu(Products):
    """NumPy arrays, copied to the GPU and the result back."""

    device = "cuda"

    def test_only_what_is_asked_for_comes_back(self) -> None:
        a, b, board = whole(13, 11), whole(11, 12), whole(20, 30)
        before = board.copy()
        self.product(a[:, ::-1][:, ::-1], b, out=board[4:17, 9:21])
        assert np.array_equal(board[4:17, 9:21], a @ b)
        before[4:17, 9:21] = board[4:17, 9:21]
        assert np.array_equal(board, before)

    def test_a_kernel_of_the_other_gpu(self) -> None:
        if cupy_or_skip().cuda.runtime.getDeviceCount() < 2:
            pytest.skip("needs two GPUs")
        a, b = whole(33, 19), whole(19, 21)
        assert np.array_equal(tilewright.matmul(a, b, device="cuda:1"), a @ b)


@pytest.mark.gpu
class TestCupy(Products):
    """CuPy arrays where they are."""

    def put(self, array: NDArray[Any]) -> Any:
        return cupy_or_skip().asarray(array)

    def back(self, array: Any) -> NDArray[Any]:
        copied: NDArray[Any] = cupy_or_skip().asnumpy(array)
        return copied

    def test_the_work_goes_to_the_current_stream(self) -> None:
        """Captured into a graph on the stream, it has not run until the graph does."""
        cupy = cupy_or_skip()
        a, b = self.put(whole(64, 48)), self.put(whole(48, 80))
        out = cupy.zeros((64, 80), "float32")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            tilewright.matmul(a, b, out=out)
            wanted = self.back(out)
            out[...] = 0
            stream.synchronize()
            stream.begin_capture()
            tilewright.matmul(a, b, out=out)
            graph = stream.end_capture()
            assert not self.back(out).any()
            graph.launch(stream)
            stream.synchronize()
        assert np.array_equal(self.back(out), wanted)
        assert wanted.any()

    def test_a_view_is_used_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        monkeypatch.setattr(Kernel, "laid", lambda *lds: lambda stream, capturing, *given: seen.extend(given[:3]))
        x, y = self.put(whole(30, 40)), self.put(whole(50, 60))
        a, b = x.T[4:20, 3:18], y[2:17, 1:24]
        out = tilewright.matmul(a, b)
        assert seen == [array.data.ptr for array in (a, b, out)]

    def test_arrays_of_another_place_are_refused(self) -> None:
        a, b = whole(4, 5), whole(5, 6)
        with pytest.raises(DeviceMismatchError, match=r"a is on cuda:0, b on host"):
            tilewright.matmul(self.put(a), b)
        with pytest.raises(DeviceMismatchError, match=r"on cuda:0, the kernel on host"):
            tilewright.load(4, 6, 5, device="host")(self.put(a), self.put(b))

    def test_two_gpus(self) -> None:
        cupy = cupy_or_skip()
        if cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("needs two GPUs")
        a, b = whole(33, 19), whole(19, 21)
        with cupy.cuda.Device(1):
            there = cupy.asarray(a), cupy.asarray(b)
        got = tilewright.matmul(*there)  # while GPU 0 is CuPy's current one
        assert got.device.id == 1
        assert np.array_equal(self.back(got), a @ b)
        with pytest.raises(DeviceMismatchError, match=r"on cuda:1, the kernel on cuda:0"):
            tilewright.load(33, 21, 19, device="cuda:0")(*there)
        with pytest.raises(DeviceMismatchError, match=r"a is on cuda:1, b on cuda:0"):
            tilewright.matmul(there[0], self.put(b))
