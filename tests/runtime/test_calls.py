"""Function calls of a warm product on the processor, counted without a compiler or another process."""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tilewright
from counted import check_calls
from tilewright.runtime.device.host import HostDevice, HostFunction
from tilewright.runtime.device.protocol import Binary
from tilewright.runtime.locks import Lock
from tilewright.runtime.product import kernel

pytestmark = pytest.mark.fast


class IdleFunction(HostFunction):
    """A kernel without code: it is launched like any other, and does nothing."""

    def __init__(self, binary: Binary, name: str) -> None:
        self.name, self.lock, self.thread_bytes = name, Lock(), mmap.PAGESIZE
        self.entry = ctypes.CDLL(None).sched_yield  # a C function without arguments: it ignores the launch's
        self.entry.restype = None


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of the processor are neither compiled nor executed, and none is left loaded for other tests."""
    monkeypatch.setattr(kernel, "compile_cached", lambda compiler, source: Binary(b""))
    monkeypatch.setattr(HostDevice, "load", lambda device, binary, name: IdleFunction(binary, name))
    tilewright.clear()
    yield
    tilewright.clear()


CALLS = {
    "matmul": (14, 8),
    "load": (14, 8),
    "matmul, new array": (16, 9),
    "load, new array": (16, 9),
    "beneath the torch op": (25, 12),
    "grouped_matmul": (28, 12),
}
"""Numbers of calls of Python functions and of C functions that a warm product takes, by entry point."""


@pytest.fixture
def ways() -> dict[str, Callable[[], Any]]:
    """Products of the same arrays, each by another entry point."""
    a, b, out = np.ones((8, 7), "f4"), np.ones((7, 6), "f4"), np.zeros((8, 6), "f4")
    loaded, options = tilewright.load(8, 6, 7, device="host"), (None, 1.0, 0.0, "ieee", "host", "if-needed", None)
    groups = np.ones((2, 7, 6), "f4"), np.array([3, 8], "i4")
    return {
        "grouped_matmul": partial(tilewright.grouped_matmul, a, *groups, out=out, device="host"),
        "matmul": partial(tilewright.matmul, a, b, out=out, device="host"),
        "load": partial(loaded, a, b, out=out),
        "matmul, new array": partial(tilewright.matmul, a, b, device="host"),
        "load, new array": partial(loaded, a, b),
        "beneath the torch op": partial(tilewright._library.product, a, b, *options),
    }


@pytest.mark.parametrize("way", CALLS)
def test_a_warm_product_takes_so_many_calls(ways: dict[str, Callable[[], Any]], way: str) -> None:
    check_calls(ways[way], CALLS[way])
