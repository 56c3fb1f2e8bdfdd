"""State between calls: plans by layout, kernels by use, memory for streams and graphs; arrays of any kind."""

import ctypes
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tilewright
from multiplied import in_threads
from numpy.typing import NDArray
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import ArgumentTypeError, LayoutError, ShapeError, TilewrightError
from tilewright.runtime.device.detect import device_of
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product import arrays as arrays_module
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.product import plan as plan_module
from tilewright.runtime.product import torch_pool
from tilewright.runtime.product.kernel import Kernel
from tilewright.runtime.product.plan import CallPlan
from tilewright.runtime.product.scratch import Scratch


def whole(rows: int, cols: int, dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols)).astype(dtype)


@pytest.fixture(autouse=True)
def clear() -> None:
    tilewright.clear()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[CallPlan]:
    """A list of every plan that is made."""
    made: list[CallPlan] = []
    make = CallPlan.__init__

    def noted(self: CallPlan, *arguments: Any, **keywords: Any) -> None:
        made.append(self)
        make(self, *arguments, **keywords)

    monkeypatch.setattr(CallPlan, "__init__", noted)
    return made


def product(a: Any, b: Any, **options: Any) -> Any:
    return tilewright.matmul(a, b, device="host", **options)


class TestPlans:
    def test_one_plan_for_each_layout(self, planned: list[CallPlan]) -> None:
        a, b, board = whole(20, 12), whole(12, 16), np.zeros((20, 30), "float32")
        for _ in range(3):
            assert np.array_equal(product(a, b), a @ b)
            assert np.array_equal(product(a, b, out=board[:, 3:19]), a @ b)
            assert np.array_equal(product(np.asfortranarray(a), b), a @ b)
        assert len(planned) == 3
        assert len(tilewright._library._kernels) == 2  # as stored, and A transposed

    def test_one_plan_for_all_copies_and_arrays_of_other_kinds(self, planned: list[CallPlan]) -> None:
        x, b = whole(8, 16), whole(8, 6)
        kernel = tilewright.load(8, 6, 8, device="host")
        for way in (product, kernel):
            planned.clear()
            for _ in range(3):
                assert np.array_equal(way(x[:, ::2], b, copy="if-needed"), x[:, ::2] @ b)
                assert np.array_equal(way(Exported(np.ascontiguousarray(x[:, 8:])), b), x[:, 8:] @ b)
            assert len(planned) == 1

    def test_what_a_plan_skips_is_checked_again(self) -> None:
        """The arrays of a later call have the layout of the first, and faults of their own."""
        a, b, out = whole(8, 8), whole(8, 8), np.zeros((8, 8), "float32")
        product(a, b, out=out)
        locked = np.zeros((8, 8), "float32")
        locked.flags.writeable = False
        askew = np.zeros(8 * 8 * 4 + 1, np.uint8)[1:].view("float32").reshape(8, 8)
        for arguments, error, text in (
            ((a, b, a), LayoutError, "out overlaps a"),
            ((a, b, b), LayoutError, "out overlaps b"),
            ((a, b, locked), LayoutError, "out is read-only"),
            ((askew, b, out), LayoutError, "a starts at address"),
            ((a, b, askew), LayoutError, "out starts at address"),
            ((a.astype("float64"), b, out), ArgumentTypeError, "a is float64 and b is float32"),
            ((a[:7], b, out), ShapeError, "out must be 7x8"),
        ):
            with pytest.raises(error, match=text):
                product(*arguments[:2], out=arguments[2])
        product(a, b)
        with pytest.raises(ShapeError, match="beta is 2"):
            product(a, b, beta=2)
        with pytest.raises(ArgumentTypeError, match="alpha must be a real number, got None"):
            product(a, b, alpha=None)
        kernel = tilewright.load(8, 8, 8, device="host")
        kernel(a, b)
        for way in (product, kernel):
            with pytest.raises(ArgumentTypeError, match="copy must be 'never' or 'if-needed', got 'always'"):
                way(a, b, copy="always")
        assert np.array_equal(product(a, b), a @ b)

    @pytest.mark.parametrize("out", [True, False], ids=["with out", "without out"])
    @pytest.mark.parametrize("library", ["NumPy", "CuPy", "torch"])
    def test_all_that_distinguishes_calls_is_in_their_key(self, library: str, out: bool) -> None:
        kind, array = KINDS[library]
        count = 3 if out else 2

        def key(*changed: dict[str, Any]) -> Any:
            arrays = [array(**changes) for changes in changed]
            return kind.key(*arrays, *[None] * (3 - count))

        keys = [key(*[{}] * count)]
        for place in range(count):
            for change in ({"shape": (5, 6)}, {"strides": (4, 24)}, {"dtype": "int32"}):
                changed: list[dict[str, Any]] = [{}] * count
                changed[place] = change
                keys.append(key(*changed))
        if library != "NumPy":
            keys.append(key(*[{"device": 1}] * count))
            assert key(*[{}] * (count - 1), {"device": 1}) is None
        assert None not in keys
        assert len(set(keys)) == len(keys)
        assert key(*[{}] * count) == keys[0]

    @pytest.mark.parametrize("option", [{"device": "cuda:99"}, {"accuracy": "low"}, {"vendor": "low"}])
    def test_options_of_a_later_call_count(self, option: dict[str, Any]) -> None:
        a, b = whole(8, 8), whole(8, 8)
        product(a, b)
        with pytest.raises(TilewrightError, match=f"^{next(iter(option))} "):
            tilewright.matmul(a, b, **{"device": "host", **option})

    def test_factors_past_the_range_of_float_are_infinite(self) -> None:
        ones = np.ones((4, 4), "float32")
        assert np.isposinf(product(ones, ones, alpha=1e300)).all()
        assert np.isneginf(product(ones, ones, alpha=-1e300)).all()

    def test_the_number_of_plans_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_module, "_MAX_PLANS", 3)
        board, b = whole(8, 60), whole(8, 8)
        for width in range(8, 20):
            a = np.ascontiguousarray(board[:, :width])[:, :8]
            assert np.array_equal(product(a, b), a @ b)
            assert len(tilewright._library._plans._plans) <= 3

    def test_the_kernel_that_was_used_longest_ago_goes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matmul_module, "_MAX_KERNELS", 2)
        b = whole(8, 8)
        for m in (3, 4, 3, 5):
            product(whole(m, 8), b)
        assert sorted(problem.m for problem, _ in tilewright._library._kernels) == [3, 5]

    def test_a_kernel_that_a_graph_holds_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matmul_module, "_MAX_KERNELS", 1)
        b = whole(8, 8)
        product(whole(3, 8), b)
        next(iter(tilewright._library._kernels.values())).captured = True
        product(whole(4, 8), b)
        product(whole(5, 8), b)
        assert 3 in (problem.m for problem, _ in tilewright._library._kernels)

    def test_threads_with_differing_shapes(self) -> None:
        def work(seed: int) -> None:
            for turn in range(60):
                m, n, k = 8 + (seed + turn) % 3, 8 + turn % 2, 9
                a, b = whole(m, k, seed=seed), whole(k, n, seed=turn)
                assert np.array_equal(product(a, b), a @ b)

        in_threads(work, range(4))


class Elsewhere:
    """A stand-in for an array of CuPy or torch, with the attributes that a key reads."""

    def __init__(
        self, shape: tuple[int, int] = (6, 6), strides: tuple[int, int] = (24, 4), dtype: str = "float32",
        device: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self.data, self._c_contiguous = SimpleNamespace(device_id=device), strides == (4 * shape[1], 4)

    def stride(self) -> tuple[int, int]:
        return self.strides

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return 0


def here(shape: tuple[int, int] = (6, 6), strides: tuple[int, int] = (24, 4), dtype: str = "float32") -> NDArray[Any]:
    """A NumPy array of this layout."""
    return np.ndarray(shape, dtype, bytearray(6 * 24), strides=strides)


NO_TRACE = SimpleNamespace(_is_fx_tracing_flag=False)
GPU: Any = SimpleNamespace(
    ndarray=Elsewhere, cuda=SimpleNamespace(get_current_stream=None),
    Tensor=Elsewhere, nn=SimpleNamespace(Parameter=Elsewhere), _C=None,
    autograd=SimpleNamespace(graph=SimpleNamespace(increment_version=None)),
    fx=SimpleNamespace(_symbolic_trace=NO_TRACE),
)  # fmt: skip
"""Stand-in for CuPy and torch, with the names that keys need."""
KINDS: dict[str, tuple[arrays_module.Kind, Any]] = {
    "NumPy": (arrays_module.KINDS[np.ndarray], here),
    "CuPy": (arrays_module._CuPy(GPU), Elsewhere),
    "torch": (arrays_module._Torch(GPU), Elsewhere),
}


class TestMemory:
    def test_prepared_shapes_are_ready_and_counted(self, planned: list[CallPlan]) -> None:
        before = tilewright.memory()
        tilewright.prepare("9x10x11", (4, 5, 6), tilewright.Problem(3, 3, 3, "double"), device="host", trans="tn")
        kernels = tilewright._library._kernels
        assert [problem.trans for problem, _ in kernels] == ["tn", "tn", "nn"]
        assert tilewright.memory().kernels >= before.kernels + 3
        assert tilewright.memory().bytes > 0
        prepared = list(kernels.values())
        a, b = whole(11, 9), whole(11, 10)
        assert np.array_equal(product(a.T, b), a.T @ b)
        assert list(kernels.values()) == prepared
        tilewright.clear()
        assert not kernels
        assert np.array_equal(product(a.T, b), a.T @ b)

    def test_a_device_has_one_kernel_however_it_is_called(self) -> None:
        tilewright.prepare("9x10x11", device="host")
        a, b = whole(9, 11), whole(11, 10)
        for device in (None, "auto", device_of("auto").info.selector):
            assert np.array_equal(tilewright.matmul(a, b, device=device), a @ b)
        selectors = {selector for _, (selector, _) in tilewright._library._kernels}
        assert selectors == {"host", device_of("auto").info.selector}

    @pytest.mark.parametrize("shape", [5, (1, 2), "1x2", None, (1.5, 2, 3)])
    def test_arguments_that_name_no_shape(self, shape: Any) -> None:
        with pytest.raises((ArgumentTypeError, ShapeError)):
            tilewright.prepare(shape, device="host")

    @pytest.mark.parametrize("graphs", [-1, True, 10**30, 1.0, "1"])
    def test_graphs_must_be_a_number(self, graphs: Any) -> None:
        kernel = tilewright.load(4, 4, 4, device="host")
        for prepare in (kernel.prepare, lambda graphs: tilewright.prepare("4x4x4", device="host", graphs=graphs)):
            with pytest.raises(ArgumentTypeError, match=f"whole number from 0 to 65536, got {graphs!r}"):
                prepare(graphs)


class FakeGpu(HostDevice):
    """The host's memory, with graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.ended = 0, set[int]()

    @property
    def info(self) -> Any:
        return replace(super().info, arch=ARCHES["sm_90a"], selector="cuda:0")

    def identity(self, stream: int, capturing: bool) -> tuple[int, int]:
        return self.graph if capturing else 0, stream

    def end_of_graph(self, stream: int) -> Callable[[], bool]:
        graph = self.graph
        return lambda: graph in self.ended


class TestScratch:
    """Memory of streams and graphs, on a GPU whose memory is the processor's."""

    @pytest.fixture
    def device(self) -> FakeGpu:
        return FakeGpu()

    @pytest.fixture
    def scratch(self, device: FakeGpu) -> Scratch:
        """Memory of one buffer of 64 bytes and 32 bytes of counters; kernels get both addresses."""
        return Scratch(device, (64,), 32, lambda at: at)

    def test_each_stream_and_each_graph_has_its_own(self, device: FakeGpu, scratch: Scratch) -> None:
        sets = [scratch.at(1, False), scratch.at(2, False)]
        for graph in range(20):  # nothing is prepared
            device.graph = graph
            sets += [scratch.at(1, True), scratch.at(2, True)]
            assert sets[-2:] == [scratch.at(1, True), scratch.at(2, True)]
        assert scratch.at(1, False) == sets[0]
        assert len({address for each in sets for address in each}) == 2 * len(sets)
        assert scratch.nbytes == 96 * len(sets)
        scratch.release()
        assert scratch.nbytes == 0

    def test_counters_begin_at_0(self, device: FakeGpu, scratch: Scratch) -> None:
        scratch.set_aside(1)
        for graph in (0, 1):
            device.graph = graph
            for at in (scratch.at(1, False), scratch.at(1, True)):
                assert bytes((ctypes.c_char * 32).from_address(at[-1])) == bytes(32)

    def test_memory_of_a_graph_goes_with_it(self, device: FakeGpu, scratch: Scratch) -> None:
        for device.graph in (1, 2):
            scratch.at(0, True)
        assert scratch.nbytes == 96 * 2
        device.ended.add(1)
        assert scratch.nbytes == 96
        device.ended.add(2)
        device.graph = 3
        scratch.at(0, True)
        assert scratch.nbytes == 96

    def test_what_was_prepared_is_taken_first_and_comes_back(self, device: FakeGpu, scratch: Scratch) -> None:
        scratch.set_aside(2)
        allocated = scratch.nbytes
        for device.graph in (1, 2):
            scratch.at(0, True)
        assert scratch.nbytes == allocated == 96 * 2
        device.ended.add(1)
        device.graph = 3
        scratch.at(0, True)
        assert scratch.nbytes == allocated
        device.graph = 4
        scratch.at(0, True)
        assert scratch.nbytes == 96 * 3

    def test_memory_of_streams_is_bounded(self) -> None:
        scratch = Scratch(FakeGpu(), (64,), 0, lambda at: at)
        first = scratch.at(0, False)
        for stream in range(1, 40):
            scratch.at(0, False)
            scratch.at(stream, False)
        assert scratch.nbytes == 64 * 16
        assert scratch.at(0, False) is first  # the others were used longer ago


class Block:
    """A tensor of torch's allocator."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.nbytes, self.data_ptr = nbytes, lambda: pointer


class FakeTorch:
    """torch as `torch_pool` sees it: its allocator takes memory from a graph's own pool or from the common one."""

    uint8 = "uint8"

    def __init__(self, private: bool) -> None:
        self.cuda, self.private, self.streams = self, private, list[int]()
        self.memory = np.zeros(1 << 16, np.uint8)
        self.live = weakref.WeakSet[Any]()

    def is_initialized(self) -> bool:
        return True

    def ExternalStream(self, stream: int, device: int) -> int:  # noqa: N802
        return stream

    def stream(self, stream: int) -> AbstractContextManager[Any]:
        self.streams.append(stream)
        return nullcontext()

    def empty(self, nbytes: int, dtype: str, device: str) -> Any:
        assert (dtype, device) == ("uint8", "cuda:0")
        block = Block(self.memory.ctypes.data + sum(each.nbytes for each in self.live), nbytes)
        self.live.add(block)
        return block

    def memory_snapshot(self) -> list[dict[str, Any]]:
        segment = {"device": 0, "address": self.memory.ctypes.data, "total_size": self.memory.nbytes}
        return [{**segment, "segment_pool_id": (0, 1) if self.private else (0, 0)}]


class TestTorchPool:
    """Memory of graphs that torch captures."""

    @pytest.mark.parametrize("private", [True, False])
    def test_torch_allocates_what_kernels_write_and_the_driver_their_counters(
        self, private: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch, device = FakeTorch(private), FakeGpu()
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(torch_pool, "_pools", {})
        scratch = Scratch(device, (64, 128), 32, lambda at: at)
        begin, end = torch.memory.ctypes.data, torch.memory.ctypes.data + torch.memory.nbytes
        device.graph = 5
        first, again = scratch.at(3, True), scratch.at(3, True)
        assert not torch.live  # freed with the call: later work on the stream may have it
        assert [begin <= address < end for address in first] == [private, private, False]
        assert first == again
        assert len(set(first)) == 3
        assert set(torch.streams) == {3}
        assert scratch.nbytes == (32 if private else 64 + 128 + 32)
        device.graph = 6
        assert scratch.at(3, True)[-1] != first[-1]  # counters are a graph's own
        assert torch_pool._pools == {"cuda:0": (6, private)}


class TestCopies:
    @pytest.mark.parametrize("view", [
        lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x[:, ::2], lambda x: np.broadcast_to(x[:1], x.shape),
    ])  # fmt: skip
    def test_strides_that_no_kernel_takes(self, view: Any) -> None:
        x = whole(8, 8)
        a = view(x)
        b = whole(a.shape[1], 6)
        with pytest.raises(LayoutError, match=r"pass copy='if-needed'"):
            product(a, b)
        for _ in range(2):
            assert np.array_equal(product(a, b, copy="if-needed"), a @ b)

    def test_an_array_at_an_odd_address_though_a_plan_exists(self) -> None:
        a, b, c = whole(8, 6), whole(6, 5), whole(8, 5)
        odd_a, odd_out = (np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape) for x in (a, c))
        odd_a[...] = a
        kernel = tilewright.load(8, 5, 6, device="host")
        for way in (product, kernel):
            assert np.array_equal(way(a, b), a @ b)
            assert np.array_equal(way(a, b, out=np.zeros_like(c)), a @ b)
            assert np.array_equal(way(odd_a, b, copy="if-needed"), a @ b)
            odd_out[...] = c
            assert np.array_equal(way(a, b, out=odd_out, beta=2, copy="if-needed"), a @ b + 2 * c)
            board = whole(8, 8)
            with pytest.raises(LayoutError, match="out overlaps a"):
                way(board[:, :6], b, out=board[:, :5], copy="if-needed")

    def test_an_out_with_steps(self) -> None:
        a, b, board = whole(6, 7), whole(7, 5), whole(12, 10)
        expected = board.copy()
        expected[::2, ::-2] = a @ b + 2 * board[::2, ::-2]
        out = board[::2, ::-2]
        assert product(a, b, out=out, beta=2, copy="if-needed") is out
        assert np.array_equal(board, expected)

    def test_an_out_that_cannot_hold_the_result_is_not_written(self) -> None:
        a, b = whole(6, 7), whole(7, 5)
        stepped = whole(6, 10)[:, ::2]
        stepped.flags.writeable = False
        row, windows = whole(1, 6)[:, :5], np.lib.stride_tricks.sliding_window_view(whole(1, 10)[0], 5, writeable=True)
        for out, message in (
            (stepped, "out is read-only"),
            (np.broadcast_to(row, (6, 5)), "out is read-only"),
            (np.lib.stride_tricks.as_strided(row, (6, 5), (0, 4)), "elements that share memory: 6 of them lie 0 bytes"),
            (windows, "out has elements that share memory"),
            (np.lib.stride_tricks.as_strided(row, (6, 5), (4, 0)), "elements that share memory: 5 of them lie 0 bytes"),
        ):
            before = out.copy()
            for copy in ("if-needed", "never"):
                with pytest.raises(LayoutError, match=message):
                    product(a, b, out=out, copy=copy)
            assert np.array_equal(out, before)
        empty = np.lib.stride_tricks.as_strided(row, (0, 5), (0, 0))
        assert product(a[:0], b, out=empty) is empty

    def test_a_loaded_kernel_copies_transposed_views(self) -> None:
        a, b = whole(7, 6), whole(7, 5)
        kernel = tilewright.load(6, 5, 7, device="host")
        with pytest.raises(LayoutError):
            kernel(a.T, b)
        assert np.array_equal(kernel(a.T, b, copy="if-needed"), a.T @ b)

    def test_views_that_a_kernel_takes_are_not_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        laid = Kernel.laid

        def spied(kernel: Kernel, *lds: int) -> Any:
            run = laid(kernel, *lds)

            def spy(stream: int, capturing: bool, *arguments: Any) -> None:
                seen.extend(arguments[:3])
                run(stream, capturing, *arguments)

            return spy

        monkeypatch.setattr(Kernel, "laid", spied)
        a, b, out = whole(9, 8).T, whole(9, 20)[:, 3:9], np.zeros((8, 6), "float32")
        product(a, b, out=out, copy="if-needed")
        assert seen == [array.ctypes.data for array in (a, b, out)]


class Exported:
    """An array of another library, that others see through DLPack."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Pinned(Exported):
    """An array in memory of the processor that CUDA has pinned (kDLCUDAHost)."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0


class WithNamespace(Exported):
    def __array_namespace__(self) -> Any:
        class Namespace:
            @staticmethod
            def from_dlpack(array: Any) -> "WithNamespace":
                return WithNamespace(np.from_dlpack(array))

        return Namespace


class TestOtherKinds:
    @pytest.mark.parametrize("kind", [Exported, Pinned])
    def test_arrays_with_dlpack_alone(self, kind: type[Exported]) -> None:
        a, b = whole(6, 7), whole(7, 5)
        got = product(kind(a), kind(b))
        assert type(got) is np.ndarray
        assert np.array_equal(got, a @ b)

    def test_the_result_is_of_the_kind_of_a(self) -> None:
        a, b = whole(6, 7), whole(7, 5)
        got = product(WithNamespace(a), b)
        assert type(got) is WithNamespace
        assert np.array_equal(got.array, a @ b)
        number = product(WithNamespace(a[0]), b[:, 0])
        assert type(number) is WithNamespace
        assert (number.array.shape, number.array) == ((), a[0] @ b[:, 0])

    def test_an_array_of_another_library_may_be_out(self) -> None:
        a, b, c = whole(6, 7), whole(7, 5), np.zeros((6, 5), "float32")
        target = Exported(c)
        assert product(a, b, out=target) is target
        assert np.array_equal(c, a @ b)

    def test_arrays_in_files(self, tmp_path: Path) -> None:
        a, b = whole(6, 7), whole(7, 5)
        mapped = np.memmap(tmp_path / "a", "float32", "w+", shape=a.shape)
        mapped[...] = a
        assert np.array_equal(product(mapped, b), a @ b)

    @pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("f4"), "float", "f32"])
    def test_dtypes_by_their_names_and_types(self, dtype: Any) -> None:
        assert tilewright.load(3, 4, 5, dtype=dtype, device="host").problem.dtype.size_bytes == 4


def test_the_version() -> None:
    assert tilewright.__version__.count(".") == 2
