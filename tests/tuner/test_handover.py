"""The vendor fallback, decided by a record, else by timing both at first use, with a fake cuBLAS."""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_vendor import VendorHost
from multiplied import whole
from search_spaces import H200
from stored import make
from tilewright.codegen.errors import DeviceError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.timing import Timer
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import ALIGNED_BYTES, aligned_bytes
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.product.arguments import operand_of
from tilewright.runtime.product.kernel import Kernel, prepare
from tilewright.runtime.product.matmul import Library
from tilewright.runtime.product.vendor import Operands, OwnKernel, VendorFallback
from tilewright.runtime.store.lookup import LookupResult
from tilewright.runtime.store.record import Accuracy
from tilewright.tuner.choose import fallback
from tilewright.tuner.choose.fallback import by_record, by_timing, faster
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.first_use import measured

PROBLEM = Problem.parse("30x50x7")
CONFIG = parse("tiled:8")
PREDICTED = LookupResult(CONFIG, "predicted", expected_us=20.0, regret=1.5)


def on_gpu(device: HostDevice) -> Kernel:
    """A kernel whose device says that it is a GPU."""
    kernel = prepare(device, PROBLEM, CONFIG)
    kernel.device = SimpleNamespace(  # type: ignore[assignment]
        info=H200, entered=device.entered, capturing=device.capturing, stream=device.stream, xp=device.xp,
        allocate=device.allocate,
    )  # fmt: skip
    return kernel


def own(kernel: Kernel, lookup: LookupResult = PREDICTED) -> OwnKernel:
    """The kernel of a call that a look-up chose."""
    chosen = OwnKernel(kernel.device, kernel.problem, lookup, lambda lookup: lookup)
    chosen.compiled = kernel
    return chosen


def test_a_record_without_a_ratio_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its duel was too noisy, so that both are timed as for a shape that was not tuned."""
    monkeypatch.setattr(fallback, "by_timing", lambda kernel, lookup, operands: VendorFallback(9.0, None, "a test"))
    handover = faster(own(on_gpu(HostDevice()), recorded(None)))
    assert handover is not None
    assert handover.why == "a test"


def fake_rounds(monkeypatch: pytest.MonkeyPatch, theirs: Sequence[float], ours: Sequence[float]) -> list[list[Any]]:
    """Let timing return these microseconds; returns the count, contenders and inputs of each timing."""
    timings: list[list[Any]] = []

    def rounds(self: Timer, contenders: Mapping[str, Callable[..., None]], count: int, **_: float) -> Any:
        timings.append([count, contenders, self._inputs])
        return {"vendor": list(theirs), "ours": list(ours)}, None

    monkeypatch.setattr(Timer, "rounds", rounds)
    return timings


def operands() -> Operands:
    a, b, c = whole(30, 7), whole(7, 50), np.zeros((30, 50), "f4")
    return Operands(tuple(operand_of(name, each, False) for name, each in zip("abc", (a, b, c))), 0)  # type: ignore[arg-type]


def recorded(ratio: float | None, **changes: Any) -> LookupResult:
    return LookupResult(CONFIG, "exact", replace(make(10.0, PROBLEM, CONFIG, H200.key), ratio_vendor=ratio, **changes))


@pytest.mark.parametrize(("ratio", "changes", "handed"), [
    (0.9, {}, True),
    (0.9, {"ratio_interval": (0.8, 0.95), "vendor_us": 8.9}, True),
    (0.9, {"ratio_interval": (0.8, 1.01)}, False),  # the rounds leave it open
    (0.994, {}, True),
    (0.996, {}, False),  # a tie
    (1.2, {}, False),
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=1.5)}, False),  # the library was wrong
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=math.nan)}, False),
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=0.5)}, True),
])  # fmt: skip
def test_by_a_record(
    ratio: float | None, changes: dict[str, Any], handed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "by_timing", lambda *arguments: pytest.fail("timed, though there is a record"))
    handover = faster(own(on_gpu(HostDevice()), recorded(ratio, **changes)))
    assert handover == by_record(recorded(ratio, **changes))
    assert (handover is not None) == handed
    if handover is not None:
        assert handover.expected_us == pytest.approx(changes.get("vendor_us", 10.0 * (ratio or 0)))
        assert handover.regret == 1.0
        assert "the record of this product" in handover.why


@pytest.mark.parametrize(("theirs", "handed"), [
    ([8.0, 9.0, 9.5, 8.0, 9.0, 9.0, 8.0, 9.5, 9.0], True),
    ([8.0, 9.0, 9.5, 8.0, 9.0, 9.0, 8.0, 10.1, 9.0], True),  # ours is ahead in one round
    ([8.0, 9.0, 10.1, 8.0, 9.0, 9.0, 8.0, 10.1, 9.0], False),  # in two
    ([9.97] * 9, False),  # a tie
    ([20.0] * 9, False),
])  # fmt: skip
def test_by_timing_both(theirs: list[float], handed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = VendorHost()
    timings, timed_operands = fake_rounds(monkeypatch, theirs, [10.0] * 9), operands()
    handover = by_timing(prepare(device, PROBLEM, CONFIG), PREDICTED, timed_operands)
    ((count, contenders, inputs),) = timings
    assert (count, set(contenders), inputs) == (9, {"ours", "vendor"}, [timed_operands.abc])
    assert len(device.library.products) == 1  # its kernel is loaded before
    assert (handover is not None) == handed
    if handover is not None:
        assert (handover.expected_us, handover.regret) == (9.0, 1.5 * 0.9)
        assert handover.why == "timing both at first use: 9 us for the 10 of ours"


def test_operands_that_a_cache_would_hold_are_copied_and_rotated_over(monkeypatch: pytest.MonkeyPatch) -> None:
    device, timed_operands = VendorHost(), operands()
    timings, kernel = fake_rounds(monkeypatch, [20.0] * 5, [10.0] * 5), prepare(device, PROBLEM, CONFIG)

    def timed_with_cache(nbytes: int) -> list[Any]:
        monkeypatch.setattr(device, "info", replace(device.info, l2_bytes=nbytes))
        by_timing(kernel, PREDICTED, timed_operands)
        inputs: list[Any] = timings.pop()[2]
        return inputs

    sets = timed_with_cache(3 * PROBLEM.bytes)
    assert len(sets) == 8  # 2.5 times as much, rounded up
    assert sets[0] == timed_operands.abc
    assert len({each.pointer for one in sets for each in one}) == 24
    for a, b, c in sets[1:]:
        for copy, original in ((a, timed_operands.abc[0]), (b, timed_operands.abc[1])):
            assert replace(copy, pointer=original.pointer, owner=original.owner) == original
            nbytes = original.rows * original.ld * 4
            assert ctypes.string_at(copy.pointer, nbytes) == ctypes.string_at(original.pointer, nbytes)
        assert (c.rows, c.cols, c.ld) == (30, 50, 50)
    assert 30 * 50 * 4 % ALIGNED_BYTES, "sets without gaps would not be aligned"
    for one, other in pairwise(sets):
        assert all((there.pointer - here.pointer) % ALIGNED_BYTES == 0 for here, there in zip(one, other))
    assert len(timed_with_cache(52 * PROBLEM.bytes)) == 1  # 130 sets, and a cache may well hold them
    for limit, count in ((7 * PROBLEM.bytes, 8), (7 * PROBLEM.bytes - 1, 1)):  # views may have much between their rows
        with monkeypatch.context() as limited:
            limited.setattr(fallback, "_MOST_BYTES", limit)
            assert len(timed_with_cache(3 * PROBLEM.bytes)) == count
    allocate = HostDevice.allocate

    def full(self: HostDevice, nbytes: int, stream: int | None = None) -> Any:
        step = aligned_bytes(PROBLEM.m * PROBLEM.n * 4)
        if 7 * step <= nbytes < 8 * step:
            raise LaunchError("no memory is left")
        return allocate(self, nbytes, stream)

    monkeypatch.setattr(HostDevice, "allocate", full)
    assert timed_with_cache(3 * PROBLEM.bytes) == [timed_operands.abc]


def test_the_regret_of_a_handover_follows_from_that_of_the_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rounds(monkeypatch, [5.0] * 5, [10.0] * 5)
    for regret, expected in ((None, None), (1.2, 1.0), (3.0, 1.5)):
        handover = by_timing(prepare(VendorHost(), PROBLEM, CONFIG), replace(PREDICTED, regret=regret), operands())
        assert handover is not None
        assert handover.regret == expected


def test_a_slow_library_is_really_timed_and_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    device = VendorHost()
    original = type(device.library.cublasSgemm_v2).__call__

    def waits(self: Any, *arguments: Any) -> Any:
        import time

        time.sleep(0.02)
        return original(self, *arguments)

    monkeypatch.setattr(type(device.library.cublasSgemm_v2), "__call__", waits)
    timed_operands = operands()
    a, b, c = (each.owner for each in timed_operands.abc)
    assert by_timing(prepare(device, PROBLEM, CONFIG), PREDICTED, timed_operands) is None
    assert len(device.library.products) >= 5
    assert np.array_equal(c, a @ b)


def test_long_products_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = fake_rounds(monkeypatch, [20.0], [10.0])
    kernel = prepare(VendorHost(), PROBLEM, CONFIG)
    monkeypatch.setattr(fallback, "_LONG_FLOPS", PROBLEM.flops)
    by_timing(kernel, PREDICTED, operands())
    assert [each[0] for each in timings] == [2]


def test_nothing_is_handed_over_where_nothing_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing needs work, memory, the library, and a stream that captures no graph."""
    device, calls = VendorHost(), list[Operands]()
    kernel = on_gpu(device)

    def fails(error: Exception) -> Callable[..., None]:
        def timed(kernel: Kernel, lookup: LookupResult, timed_operands: Operands) -> None:
            calls.append(timed_operands)
            raise error

        return timed

    empty, large = on_gpu(device), on_gpu(device)
    empty.problem, large.problem = replace(PROBLEM, k=0), Problem(2**14, 2**14, 1)
    for error in (DeviceError("no library"), LaunchError("status 13"), MemoryError(), RuntimeError("torch: no memory")):
        monkeypatch.setattr(fallback, "by_timing", fails(error))
        assert faster(own(kernel)) is None
        assert faster(own(empty)) is None
        assert faster(own(large)) is None
        device.captured = True
        assert faster(own(kernel)) is None
        device.captured = False
    assert len(calls) == 4
    for a, b, c in (call.abc for call in calls):  # random operands of the problem's sizes
        assert [(x.rows, x.cols, x.ld) for x in (a, b, c)] == [(30, 7, 7), (7, 50, 50), (30, 50, 50)]


class TestMatmul:
    """The operands of a call, on which both are timed."""

    @pytest.mark.parametrize("turned", [False, True])
    def test_its_own_operands_where_they_lie(self, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        device, calls = VendorHost(), list[Operands]()
        monkeypatch.setattr(matmul_module, "device_of", lambda selector: device)
        for kind in {type(each) for each in matmul_module.KINDS.values()}:
            monkeypatch.setattr(kind, "stream", staticmethod(lambda index: 7), raising=False)
            view = kind.view
            monkeypatch.setattr(kind, "view", lambda *a, view=view: replace(view(*a), place="cuda:0"))

        def noted(own: OwnKernel, operands: Any) -> None:
            calls.append(operands())

        library = Library(look_up, measured, lambda *arguments: None, noted)
        a, b = whole(9, 8), whole(8, 7)
        if turned:
            a, b = np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T
        board = np.zeros((9, 10), "f4")
        library.matmul(a, b, out=board[:, :7], vendor="auto")
        library.matmul(a, b, vendor="auto")
        assert len(calls) == 1
        x, y, c = calls[0].abc
        assert (x.pointer, y.pointer) == (a.ctypes.data, b.ctypes.data)
        assert (x.ld, y.ld, x.trans, y.trans) == ((9, 8, True, True) if turned else (8, 7, False, False))
        assert (c.rows, c.cols, c.ld) == (9, 7, 7)
        assert c.pointer not in range(board.ctypes.data, board.ctypes.data + board.nbytes)  # C may have to be read
        assert calls[0].stream == 7
