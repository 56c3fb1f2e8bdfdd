"""Products of the vendor's library keep the rules of ours, with a stand-in for it and, marked gpu, the real one."""

import gc
import importlib.util
import math
import os
from dataclasses import replace
from typing import Any

import fake_vendor
import numpy as np
import pytest
import tilewright
from fake_vendor import FakeCublas, VendorHost, always
from multiplied import Products, in_threads, whole
from numpy.typing import NDArray
from products import TRANS
from stored import make
from tilewright.codegen.errors import ArgumentTypeError, ConfigError, DeviceError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device import cublaslt
from tilewright.runtime.device.cublas import Cublas
from tilewright.runtime.device.cublaslt import CublasLt, cublaslt_name
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.host import HostDevice, NumpyBlas
from tilewright.runtime.device.protocol import Elements
from tilewright.runtime.product import kernel as kernel_module
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.product.matmul import Library
from tilewright.runtime.product.vendor import LaidVendor, VendorProduct
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.bench.concatenated import SCHEMES, Concatenated
from tilewright.tuner.choose.fallback import faster
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.first_use import measured


@pytest.fixture(autouse=True)
def vendor_of_tests(own_folders: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """TILEWRIGHT_VENDOR as other tests have it. Here it is unset: the library serves where it is faster."""
    value = os.environ["TILEWRIGHT_VENDOR"]
    monkeypatch.delenv("TILEWRIGHT_VENDOR")
    return value


def library() -> Library:
    return Library(look_up, measured, lambda *arguments: None, always)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> VendorHost:
    """The device that every selector opens."""
    host = VendorHost()
    monkeypatch.setattr(matmul_module, "device_of", lambda selector: host)
    return host


class TestFake(Products):
    """The tests of all products, on a stand-in for the library."""

    device = "host"

    @pytest.fixture(autouse=True)
    def own(self, device: VendorHost) -> None:
        self.library, self.host = library(), device

    def product(self, a: Any, b: Any, **options: Any) -> Any:
        return self.library.matmul(a, b, **options)

    def loaded(self, m: int, n: int, k: int, **options: Any) -> Any:
        return self.library.load(m, n, k, **options)

    def test_the_loaded_kernel_takes_operands_as_stored(self) -> None:
        a, b = whole(14, 23, "float64"), whole(22, 14, "float64")
        kernel = self.library.load(23, 22, 14, dtype="double", trans_a=True, trans_b=True)
        out = np.zeros((23, 22))
        assert kernel(a, b, out=out, alpha=2) is out
        assert np.array_equal(out, 2 * a.T @ b.T)
        assert len(self.host.library.products) == 1

    def test_it_is_the_library_that_multiplies(self) -> None:
        a, b = whole(9, 8), whole(8, 7)
        self.product(a, b)
        assert [each[2:] for each in self.host.library.products] == [(7, 9, 8)]
        self.product(a, b, out=np.zeros((9, 7), "f4"), alpha=0, beta=1)  # ours: it must not read a and b
        self.product(a, b, vendor="never")
        assert len(self.host.library.products) == 1
        assert self.host.library.math_mode == 0  # no TF32


class TestLoaded:
    """Facts that a loaded kernel states."""

    def test_of_itself(self, device: VendorHost) -> None:
        kernel = library().load(20, 24, 16)
        assert (kernel.origin, kernel.expected_us, kernel.regret) == ("vendor", 12.5, 1.25)
        assert "(default; the vendor's library, by a test)" in repr(kernel)
        ours = library().load(20, 24, 16, vendor="never")
        assert (ours.origin, ours.config, ours.vendor) == ("default", kernel.config, "")
        assert "vendor" not in repr(ours)

    def test_the_variable_and_bad_input(self, device: VendorHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWRIGHT_VENDOR", "never")
        assert library().load(20, 24, 16).origin == "default"
        assert library().load(20, 24, 16, vendor="auto").origin == "vendor"
        monkeypatch.setenv("TILEWRIGHT_VENDOR", "yes")
        with pytest.raises(ConfigError, match="TILEWRIGHT_VENDOR must be auto or never, got 'yes'"):
            library().load(20, 24, 16)
        a, b = whole(4, 5), whole(5, 6)
        for call in (
            lambda: library().load(4, 6, 5, vendor="cublas"),
            lambda: library().matmul(a, b, vendor="cublas"),
            lambda: library().prepare("4x6x5", vendor="cublas"),
        ):
            with pytest.raises(ConfigError, match="vendor must be 'auto' or 'never', got 'cublas'"):
                call()

    def test_where_there_is_no_library_ours_serves_and_says_so(
        self, device: VendorHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(self: VendorHost) -> Any:
            raise DeviceError("cuBLAS cannot be loaded (no such file)")

        monkeypatch.setattr(VendorHost, "blas", missing)
        kernel = library().load(20, 24, 16)
        assert (kernel.origin, kernel.expected_us) == ("default", None)
        assert (
            kernel.vendor
            == "not the vendor's library, which is faster by a test: cuBLAS cannot be loaded (no such file)"
        )
        assert kernel.vendor in repr(kernel)
        a, b = whole(20, 16), whole(16, 24)
        assert np.array_equal(library().matmul(a, b), a @ b)

    def test_what_is_emitted_is_ours(self, device: VendorHost) -> None:
        with pytest.raises(ConfigError, match="was chosen for the processor"):
            library().load(20, 24, 16).emit("my_gemm")


class TestNumpy(Products):
    """The tests of all products, by NumPy as the library of the processor: nothing is compiled."""

    device = "host"

    @pytest.fixture(autouse=True)
    def no_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def compiled(*arguments: Any) -> Any:
            raise AssertionError("a kernel was compiled")

        tilewright.clear()
        monkeypatch.setattr(kernel_module, "compile_cached", compiled)

    def test_a_kernel_says_so(self) -> None:
        kernel = tilewright.load(20, 24, 16, device="host")
        assert (kernel.origin, kernel.expected_us, kernel.regret) == ("vendor", None, None)
        assert "the vendor's library, by rule: on the processor NumPy is faster than CUDA text" in repr(kernel)
        assert "__global__" in kernel.source
        with pytest.raises(AssertionError, match="a kernel was compiled"):
            tilewright.load(20, 24, 16, device="host", vendor="never")

    def test_a_shape_that_was_tuned_runs_its_kernel(self) -> None:
        problem, device = Problem(20, 24, 16), open_device(choose("host"))
        config = parse("tiled:8")
        versions = versions_of(device.info, device.compiler)
        Store().keep(replace(make(10.0, problem, config, device.info.key), versions=versions), replace=True)
        with pytest.raises(AssertionError, match="a kernel was compiled"):
            tilewright.load(20, 24, 16, device="host")
        assert tilewright.load(24, 20, 16, device="host").origin == "vendor"


def test_tests_of_the_processor_are_of_our_kernels(vendor_of_tests: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of conftest holds; without it, products would be NumPy's and right whatever our kernels do."""
    monkeypatch.setenv("TILEWRIGHT_VENDOR", vendor_of_tests)
    monkeypatch.setattr(NumpyBlas, "gemm", lambda *arguments: pytest.fail("NumPy multiplied"))
    tilewright.clear()
    a, b = whole(9, 8), whole(8, 7)
    assert np.array_equal(tilewright.matmul(a, b, device="host"), a @ b)
    assert tilewright.load(9, 7, 8, device="host").origin == "default"


class TestCaptured:
    """Graphs hold the library's product if one like it was launched before, and otherwise ours."""

    def test_one_like_it_has_to_be_launched_before(self, device: VendorHost) -> None:
        a, b, out, board = whole(9, 8), whole(8, 7), np.zeros((9, 7), "f4"), np.zeros(9 * 7 + 1, "f4")
        product = library().load(9, 7, 8)._ready.kernel
        product.prepare_graphs(1)
        run = product.laid(8, 7, 7)

        def launch(capturing: bool, c: Any, beta: float = 0.0) -> None:
            run(0, capturing, a.ctypes.data, b.ctypes.data, c.ctypes.data, 1.0, beta)

        launch(True, out)
        assert device.library.products == []
        assert np.array_equal(out, a @ b)
        launch(False, out)
        launch(True, out)
        assert len(device.library.products) == 2
        launch(True, out, beta=1.0)  # reads C
        launch(True, board[1:])  # has another alignment
        assert len(device.library.products) == 2
        assert np.array_equal(out, 2 * (a @ b))
        assert np.array_equal(board[1:].reshape(9, 7), a @ b)

    def test_graphs_have_memory_of_their_own(self, device: VendorHost, monkeypatch: pytest.MonkeyPatch) -> None:
        graph = [0]
        monkeypatch.setattr(
            VendorHost, "identity", lambda self, stream, capturing: (graph[0] if capturing else 0, stream)
        )
        own = library()
        kernel = own.load(9, 7, 8)
        a, b, out = whole(9, 8), whole(8, 7), np.zeros((9, 7), "f4")
        kernel(a, b, out=out)
        own.prepare((9, 7, 8), graphs=2)
        run = kernel._ready.kernel.laid(8, 7, 7)
        at = (each.ctypes.data for each in (a, b, out))
        arguments = *at, 1.0, 0.0
        run(0, False, *arguments)
        for graph[0] in (1, 1, 2):
            run(0, True, *arguments)
        places = [each[1] for each in device.library.products[-3:]]
        assert places[0] == places[1] != places[2]
        assert device.library.products[-4][1] not in places
        assert own.memory().bytes >= 3 * Cublas.workspace_bytes
        graph[0] = 3  # no memory was prepared for it
        run(0, True, *arguments)
        assert device.library.products[-1][1] not in (*places, device.library.products[-5][1])
        assert np.array_equal(out, a @ b)
        own.clear()
        assert own.memory().bytes < Cublas.workspace_bytes


def test_threads_take_turns_with_the_handle(device: VendorHost) -> None:
    own = library()

    def work(seed: int) -> None:
        for turn in range(40):
            m, n, k = 8 + (seed + turn) % 3, 8 + turn % 2, 9
            a, b = whole(m, k, seed=seed), whole(k, n, seed=turn)
            assert np.array_equal(own.matmul(a, b, alpha=float(1 + seed)), (1 + seed) * (a @ b))

    in_threads(work, range(4))
    assert len(device.library.products) == 160


def test_an_error_of_the_library_is_one_line(device: VendorHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(device.library.cublasSgemm_v2), "__call__", lambda self, *arguments: 13)
    with pytest.raises(LaunchError, match="cuBLAS returned status 13"):
        library().matmul(whole(4, 5), whole(5, 6))


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_how_it_is_called(dtype: str, trans: str) -> None:
    """Arrays lie row by row, may be padded and transposed; the stand-in reads them by columns, as cuBLAS does."""
    problem = Problem(5, 7, 6, dtype, trans[0] == "t", trans[1] == "t")
    numpy_type, fake = problem.dtype.numpy_name, FakeCublas()
    a, b = (whole(*shape, numpy_type) for shape in (problem.stored_a, problem.stored_b))
    c = whole(5, 7, numpy_type)
    boards = [np.full((array.shape[0], array.shape[1] + 3), 99, numpy_type) for array in (a, b, c)]
    for board, array in zip(boards, (a, b, c)):
        board[:, : array.shape[1]] = array
    launch = Cublas(fake, 1).gemm(problem, *(board.shape[1] for board in boards))
    launch(7, *(board.ctypes.data for board in boards), 2.0, -1.0, 4096)
    left, right = (array.T if each == "t" else array for array, each in zip((a, b), trans))
    assert np.array_equal(boards[2][:, :7], 2 * left @ right - c)
    assert (boards[2][:, 7:] == 99).all()
    assert fake.products == [(7, 4096, 7, 5, 6)]


def test_a_product_of_the_library_has_the_interface_of_a_kernel(device: VendorHost) -> None:
    product = library().load(9, 7, 8)._ready.kernel
    assert isinstance(product, VendorProduct)
    assert isinstance(product.laid(8, 7, 7), LaidVendor)
    assert product.laid(8, 7, 7).masks == (3, 3, 3)
    with pytest.raises(ArgumentTypeError):
        library().matmul(whole(4, 5), [[1.0]])


def cupy_or_skip() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.gpu
class TestCupy(Products):
    """The tests of all products, for CuPy's arrays by cuBLAS."""

    device = "cuda"

    @pytest.fixture(autouse=True)
    def own(self) -> None:
        self.library = library()

    def put(self, array: NDArray[Any]) -> Any:
        return cupy_or_skip().asarray(array)

    def back(self, array: Any) -> NDArray[Any]:
        copied: NDArray[Any] = cupy_or_skip().asnumpy(array)
        return copied

    def test_the_loaded_kernel_takes_operands_as_stored(self) -> None:
        a, b = whole(14, 23, "float64"), whole(22, 14, "float64")  # k x m and n x k
        kernel = self.library.load(23, 22, 14, dtype="double", trans_a=True, trans_b=True, device="cuda")
        assert kernel.origin == "vendor"
        assert np.array_equal(self.back(kernel(self.put(a), self.put(b), alpha=2)), 2 * a.T @ b.T)

    def product(self, a: Any, b: Any, **options: Any) -> Any:
        return self.library.matmul(a, b, **options)

    def test_a_view_is_used_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        monkeypatch.setattr(LaidVendor, "__call__", lambda self, stream, capturing, *args: seen.extend(args[:3]))
        x, y = self.put(whole(30, 40)), self.put(whole(50, 60))
        a, b = x.T[4:20, 3:18], y[2:17, 1:24]
        out = self.product(a, b)
        assert seen == [array.data.ptr for array in (a, b, out)]

    def test_it_is_cublas(self) -> None:
        kernel = self.library.load(256, 192, 128, device="cuda")
        assert kernel.origin == "vendor"
        a, b = self.put(whole(256, 128)), self.put(whole(128, 192))
        assert np.array_equal(self.back(kernel(a, b)), self.back(a) @ self.back(b))

    @pytest.mark.parametrize("trans", [False, True])
    def test_timed_beside_ours_on_the_callers_stream(self, trans: bool) -> None:
        """The shape has no record, so both are timed, which changes neither the operands nor C."""
        cupy, own = cupy_or_skip(), Library(look_up, measured, lambda *arguments: None, faster)
        own.clear()  # the library's memory too, whichever test used it
        a, b = self.put(whole(333, 217)), self.put(whole(217, 1291))
        if trans:
            a, b = cupy.ascontiguousarray(a.T).T, cupy.ascontiguousarray(b.T).T
        out = self.put(whole(333, 1291))
        expected = self.back(a) @ self.back(b) + self.back(out)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            own.matmul(a, b, out=out, beta=1.0)
            stream.synchronize()
        assert np.array_equal(self.back(out), expected)
        loaded = own.load(333, 1291, 217, trans_a=trans, trans_b=trans, device="cuda")
        assert loaded.origin in {"predicted", "vendor"}
        assert (own.memory().bytes >= Cublas.workspace_bytes) == (loaded.origin == "vendor")  # timing leaves none
        own.clear()
        assert own.memory().bytes < Cublas.workspace_bytes

    def test_products_that_are_timed_share_a_handle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each product has memory of its own, and the handle stays."""
        from tilewright.runtime.device import cuda

        made, device = list[Any](), open_device(choose("cuda"))
        make = cuda._cublas
        monkeypatch.setattr(cuda, "_cublas", lambda: made.append(make()) or made[-1])
        for size in (64, 96):
            problem = Problem(size, size, size)
            assert Verifier(device, problem).check(device.vendor(problem)).reason == ""
        assert len(made) <= 1

    def test_captured_without_a_product_before(self) -> None:
        """Our kernel is captured, and the library's own memory is not touched."""
        cupy = cupy_or_skip()
        self.library.prepare((96, 80, 64), device="cuda", graphs=2)
        a, b, out = self.put(whole(96, 64)), self.put(whole(64, 80)), cupy.zeros((96, 80), "float32")
        cupy.cuda.Device().synchronize()  # the stream does not wait for earlier copies
        stream = cupy.cuda.Stream(non_blocking=True)
        graphs = []
        with stream:
            for beta in (0.0, 1.0):
                stream.synchronize()
                stream.begin_capture()
                self.product(a, b, out=out, beta=beta)
                graphs.append(stream.end_capture())
            for graph in graphs:
                graph.launch(stream)
            stream.synchronize()
        assert np.array_equal(self.back(out), 2 * (self.back(a) @ self.back(b)))

    @pytest.mark.parametrize("shape", [(1000, 1000, 1000), (35, 700, 2048), (16, 4096, 4096), (2040, 830, 3)])
    def test_graphs_of_the_library_run_at_once(self, shape: tuple[int, int, int]) -> None:
        """Split-K of cuBLAS works in its workspace: two graphs on two streams must not share it."""
        cupy = cupy_or_skip()
        m, n, k = shape
        a, b = self.put(whole(m, k)), self.put(whole(k, n))
        self.library.prepare(shape, device="cuda", graphs=2)
        outs = [cupy.zeros((m, n), "float32") for _ in range(2)]
        streams, graphs = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], []
        for stream, out in zip(streams, outs):
            with stream:
                self.product(a, b, out=out)
                stream.synchronize()
                stream.begin_capture()
                self.product(a, b, out=out)
                graphs.append(stream.end_capture())
        expected = whole(m, k).astype("float64") @ whole(k, n)
        for _ in range(20):
            for out in outs:
                out.fill(0)
            cupy.cuda.Device().synchronize()
            for stream, graph in zip(streams, graphs):
                graph.launch(stream)
            cupy.cuda.Device().synchronize()
            assert all(np.array_equal(self.back(out), expected) for out in outs)

    def test_threads_with_streams_of_their_own(self) -> None:
        cupy = cupy_or_skip()

        def work(seed: int) -> None:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for turn in range(50):
                    m, n, k = 64 + 16 * ((seed + turn) % 3), 96, 2048 + 64 * (turn % 2)
                    a, b = whole(m, k, seed=seed), whole(k, n, seed=turn)
                    got = self.product(self.put(a), self.put(b))
                    stream.synchronize()
                    assert np.array_equal(self.back(got), a @ b)

        in_threads(work, range(4))

    def test_a_call_takes_no_longer_than_cupys_own(self) -> None:
        """The processor's time until a call returns is compared; the device has little to do."""
        import time

        cupy = cupy_or_skip()
        a, b = self.put(whole(128, 128)), self.put(whole(128, 128))
        out = cupy.empty((128, 128), "float32")
        calls = self.library.matmul, cupy.matmul
        times: list[list[float]] = [[], []]
        for _ in range(30):  # in turn: the processor's clock changes
            for call, taken in zip(calls, times):
                begin = time.perf_counter()
                for _ in range(100):
                    call(a, b, out=out)
                taken.append((time.perf_counter() - begin) * 1e4)
                cupy.cuda.Device().synchronize()
        assert min(times[0]) <= min(times[1])


# ---- How cuBLAS is called, on a stand-in that computes with NumPy where the pointers point ----------------------


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_row_major_product_is_right(dtype: str, trans: str) -> None:
    device, problem = VendorHost(), Problem.parse("5x7x3", dtype, trans)
    assert Verifier(device, problem).check(device.vendor(problem)).reason == ""
    assert len(device.library.products) == 2
    assert not device.library.kinds


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_batch_is_one_call(dtype: str, trans: str) -> None:
    device, problem = VendorHost(), Problem.parse("5x7x3", dtype, trans, batch=4)
    assert Verifier(device, problem).check(device.vendor(problem)).reason == ""
    assert device.library.batches == [problem.batch, problem.batch]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stack_of_two_dimensions_is_a_call_for_each_place_in_the_first(device: VendorHost, dtype: str) -> None:
    a, b, out = (
        whole(math.prod(shape[:-1]), shape[-1], dtype).reshape(shape)
        for shape in ((3, 1, 2, 4), (3, 5, 4, 6), (3, 10, 2, 6))
    )
    every_second, before = out[:, ::2], out.copy()
    expected = 2 * (a @ b) - every_second
    assert library().matmul(a, b, out=every_second, alpha=2.0, beta=-1.0) is every_second
    assert np.array_equal(every_second, expected)
    assert np.array_equal(out[:, 1::2], before[:, 1::2])
    assert device.library.batches == [5, 5, 5]


@pytest.mark.parametrize("trans", TRANS)
def test_tf32_is_named_by_its_kind_of_arithmetic(trans: str) -> None:
    device, problem = VendorHost(), Problem.parse("5x7x3", "float", trans)
    assert Verifier(device, problem).check(device.vendor(problem, Elements.TF32)).reason == ""
    assert set(device.library.kinds) == {0}


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize(("grade", "kind"), [(Grade.NORMWISE, 2), (Grade.ELEMENTWISE, 14)])
def test_the_long_product_of_terms_is_right(grade: Grade, kind: int, trans: str) -> None:
    assert set(SCHEMES) == {Grade.NORMWISE, Grade.ELEMENTWISE}
    device, problem = VendorHost(), Problem.parse("37x21x45", "float", trans, grade)
    assert Verifier(device, problem).check(Concatenated(device, problem, grade).launch).reason == ""
    assert set(device.library.kinds) == {kind}


def test_a_failure_is_raised() -> None:
    device, problem = VendorHost(13), Problem(4, 4, 4)
    with pytest.raises(LaunchError, match="cuBLAS returned status 13"):
        Verifier(device, problem).check(device.vendor(problem))


# ---- cuBLASLt's rows and columns, transposes and failures, on a stand-in for its bindings; the real one on a GPU


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_vendor.FakeLt:
    return fake_vendor.install(monkeypatch)


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_row_major_product_of_cublaslt_is_right(fake: fake_vendor.FakeLt, dtype: str, trans: str) -> None:
    device, problem = HostDevice(), Problem.parse("5x7x3", dtype, trans)
    first, second = CublasLt(device, problem).launches()
    verdict = Verifier(device, problem).check(first)
    assert verdict.reason == ""
    with pytest.raises(LaunchError, match="cuBLASLt: not supported"):
        Verifier(device, problem).check(second)


def test_heuristics_that_cannot_run_are_left_out(fake: fake_vendor.FakeLt) -> None:
    assert len(CublasLt(HostDevice(), Problem(4, 4, 4)).launches()) == 2
    assert fake.ran == []


def test_cublaslt_may_assume_its_default_alignment(fake: fake_vendor.FakeLt) -> None:
    CublasLt(HostDevice(), Problem(64, 3, 2))  # B has 24 bytes, and input sets begin at multiples of 256 bytes
    assert fake.preferences == {1: 32 << 20}


def test_the_objects_of_cublaslt_are_destroyed(fake: fake_vendor.FakeLt) -> None:
    launches = CublasLt(HostDevice(), Problem(4, 4, 4)).launches()
    assert len(fake.alive) == 6
    del launches
    gc.collect()
    assert fake.alive == {}


def test_the_name_of_cublaslt_has_its_version(fake: fake_vendor.FakeLt) -> None:
    assert cublaslt_name() == "cuBLASLt 13.10.0"


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: None if name == "nvmath" else find(name))
    with pytest.raises(
        DeviceError, match=r"nvmath-python is not installed; get it with pip install 'tilewright\[lt\]'$"
    ):
        cublaslt_name()


@pytest.mark.gpu
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_real_cublaslt_is_right(dtype: str, trans: str) -> None:
    pytest.importorskip("nvmath")
    device, problem = open_device(choose("cuda")), Problem.parse("100x72x33", dtype, trans)
    verifier = Verifier(device, problem)
    launches = CublasLt(device, problem).launches()
    assert launches
    assert [verifier.check(launch).reason for launch in launches] == [""] * len(launches)
