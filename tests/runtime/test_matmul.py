"""The library: products of arrays as users and LAPACK call them, on the host device and, marked gpu, on a GPU."""

import itertools
from typing import Any

import numpy as np
import pytest
import tilewright
from multiplied import Products, in_threads, whole
from numpy.typing import NDArray
from tilewright.codegen.errors import DeviceMismatchError
from tilewright.codegen.problem import DType
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.product.kernel import Kernel
from tilewright.runtime.product.plan import ReadyKernel


@pytest.fixture(autouse=True)
def kernels() -> dict[Any, ReadyKernel]:
    """The library's kernels, which are cleared first, as another test had another store."""
    tilewright.clear()
    return tilewright._library._kernels


class TestHost(Products):
    """NumPy arrays on the host device."""

    device = "host"

    def test_a_view_is_used_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[int, ...]] = []
        laid = Kernel.laid

        def spied(kernel: Kernel, *layout: Any) -> Any:
            run = laid(kernel, *layout)

            def spy(stream: int, capturing: bool, *arguments: Any) -> None:
                seen.append((*layout[:3], *arguments[:3]))
                run(stream, capturing, *arguments)

            return spy

        monkeypatch.setattr(Kernel, "laid", spied)
        x, y, z = whole(30, 40), whole(50, 60), whole(30, 60)
        a, b, out = x.T[4:20, 3:18], y[2:17, 1:24], z[5:21, 7:30]
        self.product(a, b, out=out)
        assert seen == [(40, 60, 60, *(array.ctypes.data for array in (a, b, out)))]
        assert np.array_equal(out, a @ b)

    def test_threads_get_their_own_results(self, kernels: dict[Any, ReadyKernel]) -> None:
        shapes = [(20 + i % 3, 24, 16 + i % 2) for i in range(8)]

        def work(seed: int) -> None:
            m, n, k = shapes[seed]
            for turn in range(10):
                a, b = whole(m, k, seed=seed + 100 * turn), whole(k, n, seed=seed)
                assert np.array_equal(tilewright.matmul(a, b, device="host"), a @ b)

        in_threads(work, range(len(shapes)))
        assert len(kernels) == len(set(shapes))

    def test_kernels_kept_ready_are_bounded(
        self, kernels: dict[Any, ReadyKernel], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(matmul_module, "_MAX_KERNELS", 2)
        for m in (3, 4, 5, 3):
            a, b = whole(m, 4), whole(4, 5)
            assert np.array_equal(self.product(a, b), a @ b)
        assert [problem.m for problem, _ in kernels] == [5, 3]


def cupy_or_skip() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.gpu
class TestNumpyOnGpu(Products):
    """NumPy arrays, which are copied to the GPU, and the result back."""

    device = "cuda"

    def test_only_the_part_that_out_names_comes_back(self) -> None:
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
    """CuPy arrays, which are not copied."""

    def put(self, array: NDArray[Any]) -> Any:
        return cupy_or_skip().asarray(array)

    def back(self, array: Any) -> NDArray[Any]:
        copied: NDArray[Any] = cupy_or_skip().asnumpy(array)
        return copied

    def test_the_work_goes_to_the_current_stream(self) -> None:
        """A product that is captured into a graph on the stream runs when the graph does."""
        cupy = cupy_or_skip()
        a, b = self.put(whole(64, 48)), self.put(whole(48, 80))
        out = cupy.zeros((64, 80), "float32")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            tilewright.matmul(a, b, out=out)
            expected = self.back(out)
            out[...] = 0
            stream.synchronize()
            stream.begin_capture()
            tilewright.matmul(a, b, out=out)
            graph = stream.end_capture()
            assert not self.back(out).any()
            graph.launch(stream)
            stream.synchronize()
        assert np.array_equal(self.back(out), expected)
        assert expected.any()

    def test_a_view_is_used_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        monkeypatch.setattr(Kernel, "laid", lambda *lds: lambda stream, capturing, *args: seen.extend(args[:3]))
        x, y = self.put(whole(30, 40)), self.put(whole(50, 60))
        a, b = x.T[4:20, 3:18], y[2:17, 1:24]
        out = tilewright.matmul(a, b, vendor="never")  # a contest with cuBLAS would call it many times
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


# ---- Calls as LAPACK's level-3 BLAS testers make them -----------------------------------------------------------


SIZES = (0, 1, 2, 3, 5, 9)
"""Values of M, N and K of the testers' standard input."""
ALPHAS, BETAS = (0.0, 1.0, 0.7), (0.0, 1.0, 1.3)
ROGUE = -1e10
"""The testers' value for elements that belong to no matrix."""
THRESHOLD = 16.0
"""Largest ratio of the error to its bound that passes."""


def stored(rows: int, cols: int, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """A column-major array with one row more than its matrix, whose leading dimension is rows + 1."""
    memory = np.full((cols, rows + 1), ROGUE, dtype)
    memory[:, :rows] = rng.uniform(-0.5, 0.5, (cols, rows))
    return memory.T


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
def test_gemm_passes_the_tester(dtype: DType, trans: str) -> None:
    rng, name = np.random.default_rng(7), dtype.numpy_name
    for m, n, k in itertools.product(SIZES, repeat=3):
        a = stored(*((k, m) if trans[0] == "t" else (m, k)), name, rng)
        b = stored(*((n, k) if trans[1] == "t" else (k, n)), name, rng)
        c = stored(m, n, name, rng)
        inner_a, inner_b = a[:-1].T if trans[0] == "t" else a[:-1], b[:-1].T if trans[1] == "t" else b[:-1]
        wide_a, wide_b = inner_a.astype("longdouble"), inner_b.astype("longdouble")
        for alpha, beta in itertools.product(ALPHAS, BETAS):
            result = c.copy(order="F")
            out = result[:-1]
            assert tilewright.matmul(inner_a, inner_b, out=out, alpha=alpha, beta=beta, device="host") is out
            exact = alpha * (wide_a @ wide_b) + beta * c[:-1]
            bound = abs(alpha) * (abs(wide_a) @ abs(wide_b)) + abs(beta) * abs(c[:-1])
            assert (abs(out - exact) <= THRESHOLD * 2 * dtype.unit_roundoff * bound).all(), (m, n, k, alpha, beta)
            assert (result[-1] == ROGUE).all()
