"""Programmatic dependent launch (PDL): the driver's structures, and on a GPU products that need each other."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from products import on_device
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.source import TensorBox
from tilewright.runtime.device import driver as launch
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.stopwatch import Stopwatch
from tilewright.runtime.product.kernel import prepare
from variants import variant

EXACT, GUARDED, SCALAR = 192, 196, 197
"""A size that tiles divide, one that they do not divide, and one whose rows are no whole vectors either."""
CONFIGS = (
    ("naive", SCALAR),
    ("tiled", SCALAR),
    ("naive:edge=bounds", EXACT),
    ("tiled:32,edge=pad", SCALAR),
    ("simt:load=cp_async,stages=3,slices=2", SCALAR),
    ("simt:block_m=32,block_n=32,split_k=3", EXACT),
    ("simt:block_m=16,block_n=32,lanes_m=4,split_k=32", SCALAR),
    ("simt:32x32x16,split_k=4,slices=2,reduce=cluster", EXACT),
    ("skinny:split_k=2", SCALAR),
    ("dmma", SCALAR),
    ("dmma:split_k=2", EXACT),
    ("dmma:split_k=3,reduce=cluster", GUARDED),
    ("simt:block_m=32,block_n=32,load=cp_async,stages=3,l2_prefetch=1", EXACT),
    ("simt:32x16x64,load=tma,stages=3,k_inner_a=1,slices=2", GUARDED),
    ("simt:32x32x32,load=tma,stages=2,k_inner_a=1,split_k=3", EXACT),
    ("simt:stream_k=1", GUARDED),
    ("dmma:l2_prefetch=1", GUARDED),
)


def test_the_structures_are_those_of_cuda_h() -> None:
    """Offsets as a C compiler gives them on a 64-bit machine."""
    assert ctypes.sizeof(launch._Attribute) == 72
    assert launch._Attribute.value.offset == 8
    assert [getattr(launch._Config, name).offset for name, _ in launch._Config._fields_] == [0, 12, 24, 32, 40, 48]


def _offset(reference: Any) -> int:
    """The offset that byref() got as its second argument. The address must be a multiple of 64, as for the driver."""
    start = ctypes.cast(reference, ctypes.c_void_p).value
    assert start is not None
    assert start % 64 == 0
    return start - ctypes.addressof(reference._obj)


class FakeDriver:
    """A driver that writes a mark in place of a tensor map."""

    def __init__(self) -> None:
        self.status, self.seen = 0, list[Any]()
        self.cuTensorMapEncodeTiled = self._encode  # the driver's name

    def _encode(self, to: Any, *args: Any) -> int:
        """Write a mark and note the arguments."""
        ctypes.memmove(ctypes.addressof(to._obj) + _offset(to), b"MAP!" * 32, 128)
        self.seen.append([list(each) if hasattr(each, "__len__") else getattr(each, "value", each) for each in args])
        return self.status


@pytest.mark.parametrize(("dtype", "code", "size"), [(DType.FLOAT, 7, 4), (DType.DOUBLE, 8, 8)])
def test_a_tensor_map_has_rows_and_box(monkeypatch: pytest.MonkeyPatch, dtype: DType, code: int, size: int) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(launch, "_driver", lambda: driver)
    for swizzled in (False, True):
        made = launch.encoded_map(4096, 100, 60, 64, dtype, TensorBox(32, 16, swizzled))
        assert made == b"MAP!" * 32
        arguments = [code, 2, 4096, [60, 100], [64 * size], [16, 32], [1, 1], 0, 3 if swizzled else 0, 2, 0]
        assert driver.seen.pop() == arguments
    driver.status = 1
    with pytest.raises(LaunchError, match="cuTensorMapEncodeTiled returned 1 for 100 rows of 60, 61 apart"):
        launch.encoded_map(4096, 100, 60, 61, dtype, TensorBox(32, 16, True))


@pytest.mark.gpu
@pytest.mark.parametrize(("text", "size"), CONFIGS)
def test_products_that_need_each_other(text: str, size: int) -> None:
    """X becomes P X again and again, where P is a permutation, in three buffers that take turns. A kernel that reads or
    writes too early leaves another order of rows."""
    device = open_device(choose("cuda"))
    rows, cols, steps = size, size, 60
    dtype = DType.DOUBLE if text.startswith("dmma") else DType.FLOAT
    problem = Problem(rows, cols, rows, dtype)
    kernel = prepare(device, problem, variant(text))
    rng = np.random.default_rng(3)
    order = rng.permutation(rows)
    xp = device.xp
    p = xp.asarray(np.eye(rows)[order], dtype=dtype.numpy_name)
    first = rng.integers(-99, 100, (rows, cols)).astype(dtype.numpy_name)
    buffers = [xp.asarray(first), xp.zeros((rows, cols), dtype.numpy_name), xp.zeros((rows, cols), dtype.numpy_name)]

    def chain() -> None:
        for step in range(steps):
            kernel.launch(*map(on_device, (p, buffers[step % 3], buffers[(step + 1) % 3])))

    expected = first
    for _ in range(steps):
        expected = expected[order]
    chain()
    device.synchronize()
    assert np.array_equal(device.to_numpy(buffers[steps % 3]), expected)
    replay = device.capture(chain, first=lambda: None)
    for _ in range(3):
        before = device.to_numpy(buffers[0])
        replay()
        device.synchronize()
        for _ in range(steps):
            before = before[order]
        assert np.array_equal(device.to_numpy(buffers[steps % 3]), before)


class FakeDevice:
    """A device and a processor with a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queueing_us: list[float]) -> None:
        self.now_us, self.queueing_us, self.held_us, self.runs = 0.0, queueing_us, [0.0], 0
        monkeypatch.setattr("time.perf_counter", lambda: self.now_us / 1e6)

    def hold(self, us: float) -> None:
        self.held_us.append(us)

    def run(self) -> None:
        self.now_us += self.queueing_us[min(self.runs, len(self.queueing_us) - 1)]
        self.runs += 1

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def stopwatch(self, work_us: float) -> Callable[[], float]:
        """A function that times a run. The device works for `work_us`, and waits for the processor after its hold."""

        def between(start: object, end: object) -> float:
            return work_us + max(0.0, self.queueing_us[min(self.runs, len(self.queueing_us)) - 1] - self.held_us[-1])

        watch = Stopwatch(self.hold, self, self, between)
        return lambda: watch.elapsed_us(self.run)


class TestStopwatch:
    def test_a_processor_in_time_is_timed_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(monkeypatch, [20.0])
        assert device.stopwatch(100.0)() == 100.0
        assert device.runs == 1

    def test_a_delay_of_the_processor_is_not_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(monkeypatch, [700.0, 30.0])
        assert device.stopwatch(100.0)() == 100.0
        assert device.held_us == [0.0, 50.0, 100.0]  # no longer than needed for the next time

    def test_the_hold_follows_the_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(monkeypatch, [400.0])
        elapsed = device.stopwatch(100.0)
        assert [elapsed(), elapsed(), elapsed()] == [100.0] * 3
        assert device.held_us == pytest.approx([0.0, 50.0, 100.0, 200.0, 400.0, 800.0, 800.0])

    def test_it_ends_where_the_processor_is_too_slow_for_any_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(monkeypatch, [1e6])
        assert device.stopwatch(100.0)() == pytest.approx(100.0 + 1e6 - 20e3)

    def test_long_work_is_not_repeated_for_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(monkeypatch, [60.0])
        assert device.stopwatch(20e3)() == pytest.approx(20e3 + 10)
        assert device.runs == 1
