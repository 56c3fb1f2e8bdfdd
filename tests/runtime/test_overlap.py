"""Kernels of a stream that overlap: the driver's structures, and on a GPU products that need each other."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tilewright.codegen.config import Config
from tilewright.codegen.families import complete
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime import launch
from tilewright.runtime.detect import choose, open_device
from tilewright.runtime.device import Operand
from tilewright.runtime.kernel import prepare
from tilewright.runtime.stopwatch import Stopwatch

CONFIGS = (
    "naive:edge=bounds",
    "tiled:edge=bounds",
    "tiled:edge=pad,tile_width=32",
    "simt:edge=bounds,cp_async=1,stages=3,slices=2",
    "simt:edge=exact,block_m=32,block_n=32,split_k=3",
    "simt:edge=bounds,block_m=16,block_n=32,lanes_m=4,split_k=12",
    "simt:edge=exact,block_m=32,block_n=32,split_k=4,slices=2,block_k=16,cluster=1",
    "skinny:edge=bounds,split_k=2",
    "dmma:edge=bounds",
    "dmma:edge=exact,split_k=2",
    "dmma:edge=bounds,split_k=3,cluster=1",
)


def test_the_structures_are_those_of_cuda_h() -> None:
    """Offsets as a C compiler gives them on a 64-bit machine."""
    assert ctypes.sizeof(launch._Attribute) == 72
    assert launch._Attribute.value.offset == 8
    assert [getattr(launch._Config, name).offset for name, _ in launch._Config._fields_] == [0, 12, 24, 32, 40, 48]


@pytest.mark.gpu
@pytest.mark.parametrize("text", CONFIGS)
def test_products_that_need_each_other(text: str) -> None:
    """X becomes P X again and again, P a permutation, in three buffers that take turns: a kernel that reads too early
    or writes too early leaves another order of rows."""
    device = open_device(choose("cuda").info)
    rows, cols, steps = 192, 192, 60
    dtype = DType.DOUBLE if text.startswith("dmma") else DType.FLOAT
    problem = Problem(rows, cols, rows, dtype)
    kernel = prepare(device, problem, complete(Config.parse(text)))
    rng = np.random.default_rng(3)
    order = rng.permutation(rows)
    xp = device.xp
    p = xp.asarray(np.eye(rows)[order], dtype=dtype.numpy_name)
    first = rng.integers(-99, 100, (rows, cols)).astype(dtype.numpy_name)
    buffers = [xp.asarray(first), xp.zeros((rows, cols), dtype.numpy_name), xp.zeros((rows, cols), dtype.numpy_name)]

    def operand(array: Any) -> Operand:
        return Operand(int(array.data.ptr), *array.shape, array.shape[1], False, array)

    def chain() -> None:
        for step in range(steps):
            kernel.launch(operand(p), operand(buffers[step % 3]), operand(buffers[(step + 1) % 3]))

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
    """A device and a processor whose clock the test moves."""

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
        """The device works `work_us`, and waits first for what the processor has not queued when the hold ends."""

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
