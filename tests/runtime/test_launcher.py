"""Launches and calls in C and in Python: what the driver gets, errors, threads, and machines without a compiler."""

import ctypes
import gc
import math
import random
import struct
import subprocess
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counted import check_calls
from fake_driver import FakeArray, FakeDriver, FakeGpu, FakeKind, failed
from fake_vendor import FakeCublas
from tilewright.codegen.errors import (
    ArgumentTypeError,
    CaptureError,
    CompileError,
    LaunchError,
    LayoutError,
    ShapeError,
)
from tilewright.codegen.legality import fitted
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device import driver, launcher
from tilewright.runtime.device.cublas import Cublas
from tilewright.runtime.device.protocol import Binary, Launcher
from tilewright.runtime.product import kernel as kernel_module
from tilewright.runtime.product.arrays import View
from tilewright.runtime.product.kernel import Kernel, Laid
from tilewright.runtime.product.plan import CallPlan, ReadyKernel
from tilewright.runtime.product.stack import Stack, grouped
from tilewright.runtime.product.vendor import Vendor, VendorProduct
from variants import variant

HOW = LaunchConfig((10, 2, 3), (128, 2, 1), 1000)
VALUES: dict[str, list[Any]] = {
    "Q": [0, 1, 1 << 40, (1 << 63) + 5, (1 << 64) - 1],
    "i": [0, -1, 7, -(1 << 31), (1 << 31) - 1],
    "I": [0, 1, (1 << 31) + 3, (1 << 32) - 1],
    "f": [0.0, -0.0, 0.1, 1e-50, 1e300, -1e300, 3.4028235e38, 3.4028236e38, float("inf"), float("nan"), 5],
    "d": [0.0, -0.0, 0.1, 1e-320, 1e300, float("-inf"), float("nan"), 7],
    "m": [bytes(128), bytes(range(128)), b"MAP!" * 32],
}
"""Arguments by their codes; some are as large as their type can hold, or larger than a float can."""
BAD: dict[str, list[Any]] = {
    "Q": [-1, 1 << 64, 1.5, None],
    "i": [1 << 31, -(1 << 31) - 1, "1", None],
    "I": [-1, 1 << 32, 2.5],
    "f": ["0.5", None],
    "d": [None, b""],
    "m": [7, "MAP!" * 32],
}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(autouse=True)
def clean(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", lambda: fake.library)
    fake.answer()
    fake.library.wait_for_gate(0)
    fake.taken()


@pytest.fixture(params=["C", "Python"])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test that uses it runs with the extension and without."""
    use(request.param, monkeypatch)
    return str(request.param)


def use(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if language == "Python":
        monkeypatch.setattr(launcher, "module", lambda: None)
    elif launcher.module() is None:
        pytest.skip(f"no extension: {launcher.described()}")


def never() -> None:
    pytest.fail("the context was there")


def launch(fake: FakeDriver, codes: str, pdl: bool = True, enter: Callable[[], None] = never) -> Launcher:
    return driver.driver_launch(fake.function(codes), HOW, codes, pdl, enter, failed)


def expected(codes: str, values: list[Any]) -> bytes:
    parts = []
    for code, value in zip(codes, values, strict=True):
        if code == "m":
            parts.append(value)
        elif code == "f":
            parts.append(bytes(ctypes.c_float(value)))
        else:
            parts.append(struct.pack(f"={code}", value))
    return b"".join(parts)


class TestLaunch:
    def test_the_language_is_the_one_in_use(self, fake: FakeDriver, language: str) -> None:
        assert isinstance(launch(fake, "Q"), driver.DriverLaunch) == (language == "Python")

    def test_the_driver_gets_every_argument(self, fake: FakeDriver, language: str) -> None:
        rng = random.Random(1)
        for turn in range(300):
            codes = "".join(rng.choices("QiIfdm", k=rng.randint(1, 20)))
            values = [rng.choice(VALUES[code]) for code in codes]
            stream = rng.choice([0, 1, 2, 1 << 47])
            launch(fake, codes, pdl=turn % 2 == 0)(stream, *values)
            (seen,) = fake.taken()
            assert seen.arguments == expected(codes, values), codes
            assert (seen.function, seen.stream) == (fake.function(codes), stream)
            assert (seen.grid, seen.block, seen.smem_bytes) == (HOW.grid, HOW.block, 1000)
            assert seen.attribute == ((1, 6, 1) if turn % 2 == 0 else (0, 0, 0))

    def test_one_after_the_other(self, fake: FakeDriver, language: str) -> None:
        call = launch(fake, "Qifdm")
        for stream in (99, 0, 98):
            call(stream, stream, -stream, 0.5, 2.0, bytes([stream]) * 128)
        for seen, stream in zip(fake.taken(), (99, 0, 98), strict=True):
            assert seen.stream == stream
            assert seen.arguments == expected("Qifdm", [stream, -stream, 0.5, 2.0, bytes([stream]) * 128])

    @pytest.mark.parametrize("code", BAD)
    def test_what_does_not_fit_is_not_launched(self, fake: FakeDriver, language: str, code: str) -> None:
        call = launch(fake, f"Q{code}i")
        for bad in BAD[code]:
            with pytest.raises((TypeError, OverflowError, struct.error)):
                call(0, 1, bad, 2)
        with pytest.raises((TypeError, struct.error)):
            call(0, 1, VALUES[code][0])
        with pytest.raises((TypeError, struct.error)):
            call(0, 1, VALUES[code][0], 2, 3)
        assert fake.taken() == []
        call(0, 1, VALUES[code][0], 2)
        assert len(fake.taken()) == 1

    def test_as_many_arguments_as_a_driver_takes(self, fake: FakeDriver, language: str) -> None:
        codes = "Q" * 32 + "m" * 16
        values = [*range(32), *(bytes([i]) * 128 for i in range(16))]
        launch(fake, codes)(0, *values)
        assert fake.taken()[0].arguments == expected(codes, values)

    def test_a_status_is_raised(self, fake: FakeDriver, language: str) -> None:
        call = launch(fake, "i")
        for status in (1, 701, 719):
            fake.answer(status)
            with pytest.raises(LaunchError, match=f"status {status}"):
                call(0, 5)
        call(0, 5)

    def test_a_thread_without_a_context_gets_one(self, fake: FakeDriver, language: str) -> None:
        entered: list[int] = []
        call = launch(fake, "i", enter=lambda: entered.append(1))
        fake.answer(201, 0, 201, 201, 201)
        call(0, 5)
        assert entered == [1]
        assert [seen.arguments for seen in fake.taken()] == [expected("i", [5])] * 2
        with pytest.raises(LaunchError, match="201"):
            call(0, 5)
        assert entered == [1, 1]

        def refused() -> None:
            raise LaunchError("no context")

        with pytest.raises(LaunchError, match="no context"):
            launch(fake, "i", enter=refused)(0, 5)

    def test_threads_do_not_mix_their_arguments(self, fake: FakeDriver, language: str) -> None:
        call, before = launch(fake, "QiIdQ"), sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [
                threading.Thread(
                    target=lambda base: [call(x, x, -x, x, x, x) for x in range(base, base + 500)], args=(b,)
                )
                for b in range(0, 2000, 500)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        seen = fake.taken()
        assert sorted(each.stream for each in seen) == list(range(2000))
        for each in seen:
            x = each.stream
            assert each.arguments == expected("QiIdQ", [x, -x, x, x, x])

    def test_a_launch_that_waits_lets_others_run(self, fake: FakeDriver, language: str) -> None:
        """The driver may wait so for a full queue, which a function in Python has to empty."""
        call = launch(fake, "i")
        fake.library.wait_for_gate(1)
        timer = threading.Timer(0.05, fake.library.open_gate)
        timer.start()
        call(0, 5)
        timer.join()

    def test_no_reference_is_kept(self, fake: FakeDriver, language: str) -> None:
        class Owner:
            """An object with a launch that refers to it."""

            def failed(self, status: int) -> LaunchError:
                return LaunchError(str(status))

        owner = Owner()
        owner.launch = driver.driver_launch(fake.function("Q"), HOW, "Q", True, never, owner.failed)  # type: ignore[attr-defined]
        address = (1 << 40) + 1
        before = sys.getrefcount(address)
        for status in (0, 5) * 50:
            fake.answer(status)
            if status:
                with pytest.raises(LaunchError):
                    owner.launch(0, address)  # type: ignore[attr-defined]
            else:
                owner.launch(0, address)  # type: ignore[attr-defined]
        assert sys.getrefcount(address) == before
        gone = weakref.ref(owner)
        del owner
        gc.collect()
        assert gone() is None


def test_launches_that_no_driver_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use("C", monkeypatch)
    for codes in ("Qx", "Q" * 65, "m" * 33):
        with pytest.raises(ValueError, match="no launch takes arguments"):
            launcher.module().Launch(1, 2, (1, 1, 1), (1, 1, 1), 0, codes, True, never, failed)


CONFIGS = {
    "plain": ("120x96x64", "simt:64x64x16,thread=4x8"),
    "double": ("120x96x64:double", "dmma"),
    "split-K": ("35x700x2048", "simt:32x32x16,split_k=8"),
    "stream-K": ("640x1280x2560", "simt:stream_k=1"),
    "TMA": (
        "16x256x512",
        "simt:16x32x128,thread=4,lanes_m=4,slices=4,load=tma,stages=3,k_inner_a=1",
    ),
    "pack A": ("67x71x35", "simt:pack_a=1,load=cp_async"),
    "pack B": ("67x71x35", "simt:pack_b=1"),
    "pack both, split": ("67x71x35", "simt:pack_a=1,pack_b=1,split_k=2,slices=2,block_k=16"),
    "pad": ("67x71x35", "tiled:32,edge=pad"),
    "no k": ("67x71x0", "simt:pack_a=1,load=cp_async"),
    "nothing": ("0x71x35", "tiled:32"),
    "groups": ("120x96x64", "simt:64x64x16,thread=4x8"),
    "groups, stream-K": ("640x1280x512", "simt:stream_k=1"),
}
GROUPS = 3
"""Number of groups of the configs whose names begin with groups."""
A, B, OUT, OFFSETS = 1 << 30, 1 << 31, 1 << 32, 1 << 33


def view_of(address: int, shape: tuple[int, ...]) -> View:
    """An array of floats on the fake GPU, row by row."""
    strides = tuple(4 * math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return View(address, shape, strides, DType.FLOAT, "cuda:0")


def plain(problem: Problem) -> Stack:
    """The product of two matrices on the fake GPU."""
    shapes = (A, problem.stored_a), (B, problem.stored_b)
    return Stack(*(view_of(*each) for each in shapes), None, (problem.m, problem.n))


class Product:
    """A plan on the fake GPU, in the language that is in use."""

    def __init__(self, fake: FakeDriver, name: str, swapped: bool = False) -> None:
        shape, text = CONFIGS[name]
        shape, _, dtype = shape.partition(":")
        self.problem, self.gpu, self.kind = Problem.parse(shape, dtype or "float"), FakeGpu(fake), FakeKind()
        self.further, self.stack = list[FakeArray](), plain(self.problem.transposed if swapped else self.problem)
        if name.startswith("groups"):
            m, n, k = self.problem.m, self.problem.n, self.problem.k
            self.problem, self.further = replace(self.problem, batch=GROUPS, ragged="m"), [FakeArray(OFFSETS)]
            shapes = (A, (m, k)), (B, (GROUPS, k, n)), (OUT, (m, n))
            self.stack = grouped(*(view_of(address, each) for address, each in shapes), GROUPS)  # type: ignore[call-arg]
        config = variant(text)
        source = render(self.problem, config, self.gpu.info)
        fit = fitted(self.problem, config, self.gpu.info)
        ready = ReadyKernel(Kernel(self.gpu, self.problem, fit, source, Binary(b"")))
        self.ready = ready
        lds = [max(4, -(-cols // 4) * 4) for _, cols in (self.problem.stored_a, self.problem.stored_b)]
        lds_of_all: Any = *lds, self.problem.n
        kind: Any = self.kind
        self.plan = CallPlan(ready, kind, "cuda:0", lds_of_all, self.stack, never, swapped=swapped)
        self.call: Any = self.plan.quick()

    def __call__(self, a: int = A, b: int = B, out: int | None = OUT, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        self.out = None if out is None else FakeArray(out)
        return self.call(FakeArray(a), FakeArray(b), self.out, alpha, beta, *self.further)


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the fake GPU are never compiled."""
    monkeypatch.setattr(kernel_module, "compile_cached", lambda compiler, source: Binary(b""))


class Observed(Product):
    """A product that returns its calls of driver and array library, with numbers in place of its own addresses."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        error: Any = None
        try:
            result = super().__call__(*arguments, **keywords)
            assert result is self.out or self.out is None
        except (LaunchError, LayoutError, CaptureError, ShapeError, ArgumentTypeError) as caught:
            error = type(caught), str(caught)
        kernel = self.ready.kernel
        scratches = [each._scratch for each in (kernel, kernel._unaligned) if each and self.problem.m]
        sets = [each for scratch in scratches if scratch for each in scratch._streams.values()]
        sets += [lease.set for scratch in scratches if scratch for lease in scratch._graphs.values()]
        own = {address: (place, i) for place, each in enumerate(sets) for i, address in enumerate(each.arguments)}
        launches = []
        for seen in self.gpu.driver.taken():
            bytes_ = seen.arguments
            for address, number in own.items():
                bytes_ = bytes_.replace(struct.pack("=Q", address), repr(number).encode())
            launches.append((seen.grid, seen.block, seen.smem_bytes, seen.stream, seen.attribute, bytes_))
        written = len(self.kind.written)
        self.kind.written.clear()
        return launches, written, error


@pytest.mark.parametrize("language", ["C", "Python"])
@pytest.mark.parametrize("name", ["plain", "TMA", "split-K"])
def test_a_transposed_product_takes_b_for_a(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, language: str
) -> None:
    use(language, monkeypatch)
    usual, swapped = Observed(fake, name), Observed(fake, name, swapped=True)
    for a, b in ((A, B), (A + 4, B), (A, B + 4), (OUT + 64, B)):
        launches, written, error = swapped(a=b, b=a)
        expected = usual(a=a, b=b)
        if error is not None:
            error = error[0], error[1].replace("out overlaps b", "out overlaps a")
        assert (launches, written, error) == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_both_languages_call_the_driver_alike(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    results: dict[str, list[Any]] = {}
    for language in ("C", "Python"):
        with monkeypatch.context() as patch:
            use(language, patch)
            product = Observed(fake, name)
            rows = results[language] = []
            for stream in (0, 77, 0, 78):
                product.kind.current_stream = stream
                rows.append(product())
                rows.append(product(a=A + 4096, beta=0.5, alpha=-2.0))
            rows += [
                product(alpha=0.0),
                product(alpha=0, beta=2),
                product(alpha=1e300),
                product(alpha=float("nan")),
                product(alpha="1"),
                product(a=A + 4 * product.problem.dtype.size_bytes // 4),
                product(out=OUT + 8, b=B + 8),
                product(a=A + 1),
                product(out=OUT + 2),
                product(out=A),
                product(out=B + 64),
                product(out=OFFSETS + 4 * (GROUPS - 1)),
                product(out=None),
                product(out=None, beta=1.0),
            ]
            product.gpu.index = 1
            rows.append(product())
            product.gpu.index = 0
            product.gpu.captured = {5}
            product.kind.current_stream = 5
            rows += [product(), product()]
            product.kind.current_stream = 0
            fake.answer(701)
            rows.append(product())
            fake.answer(201)
            rows.append(product())
            rows.append(product.gpu.entries)
    for number, (ours, theirs) in enumerate(zip(results["C"], results["Python"], strict=True)):
        assert ours == theirs, number
    launches = [row[0] for row in results["C"][:8]]
    assert all(launches) == (name != "nothing")


CALLS = {
    ("C", "plain"): (8, 1),
    ("C", "split-K"): (10, 3),
    ("C", "groups"): (9, 1),
    ("Python", "plain"): (14, 3),
    ("Python", "split-K"): (18, 7),
    ("Python", "groups"): (15, 3),
}
"""Numbers of calls of Python functions and of C functions that a warm product takes once its plan is at hand. The fake
array library and GPU receive seven or eight of them; one call in C is theirs, which notes what was written."""


class TestCall:
    def test_the_usual_call_is_in_c(self, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        use("C", monkeypatch)
        products = [Product(fake, name) for name in ("split-K", "groups, stream-K")]
        monkeypatch.setattr(CallPlan, "__call__", lambda *arguments: pytest.fail("Python did it"))
        for product in products:
            product()
            assert len(fake.taken()) == 1

    @pytest.mark.parametrize("name", ["plain", "groups"])
    def test_a_plan_takes_so_many_arrays(self, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        use("C", monkeypatch)
        product = Product(fake, name)
        for further in ([FakeArray(OFFSETS)] * 2, product.further[1:]):
            if further != product.further:
                with pytest.raises(TypeError, match=f"this plan takes {5 + len(product.further)} arguments"):
                    product.call(FakeArray(A), FakeArray(B), FakeArray(OUT), 1.0, 0.0, *further)

    @pytest.mark.parametrize("name", ["plain", "split-K", "groups"])
    def test_a_warm_call_takes_so_many_calls(self, fake: FakeDriver, language: str, name: str) -> None:
        product = Product(fake, name)
        run = partial(product.call, FakeArray(A), FakeArray(B), FakeArray(OUT), 1.0, 0.0, *product.further)
        check_calls(run, CALLS[language, name], "fake_driver")

    @pytest.mark.parametrize("name", ["plain", "split-K", "TMA", "pack A"])
    def test_errors_leave_the_counter_of_versions_as_it_is(self, fake: FakeDriver, language: str, name: str) -> None:
        product = Product(fake, name)
        product()
        assert product.kind.written == [product.out]
        product.kind.written.clear()
        used = product.ready.used
        for error, arguments in (
            (LayoutError, {"out": A}),
            (LayoutError, {"out": B + 64}),
            (LayoutError, {"a": A + 1}),
            (LayoutError, {"out": OUT + 2}),
            (ArgumentTypeError, {"alpha": "1"}),
            (ShapeError, {"out": None, "beta": 1.0}),
        ):
            with pytest.raises(error):
                product(**arguments)  # type: ignore[arg-type]
        fake.answer(701)
        with pytest.raises(LaunchError):
            product()
        assert product.kind.written == []
        assert product.ready.used == used
        product()
        assert product.kind.written == [product.out]
        assert product.ready.used > used

    def test_the_lock_is_free_after_an_error(self, fake: FakeDriver, language: str) -> None:
        product = Product(fake, "pack both, split")
        product()
        fake.answer(0, 701)
        with pytest.raises(LaunchError, match="701"):
            product()
        assert not product.ready.kernel._lock.held()
        product()

    def test_a_call_that_interrupts_another_of_its_kernel_is_an_error(self, fake: FakeDriver, language: str) -> None:
        """A signal handler may make such a call between two launches that use the same memory."""
        product, plain = Product(fake, "pack both, split"), Product(fake, "plain")
        product()
        fake.taken()
        with product.ready.kernel._lock.alone():
            with pytest.raises(LaunchError, match="a signal handler or a finalizer called for what"):
                product()
            assert fake.taken() == []
            plain()
        product()
        assert len(fake.taken()) == 3

    def test_the_launches_of_a_product_go_together(self, fake: FakeDriver, language: str) -> None:
        """All products on one stream use the same copies of operands."""
        product, before = Product(fake, "pack both, split"), sys.getswitchinterval()
        product()
        fake.taken()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=lambda: [product() for _ in range(200)]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        seen = fake.taken()
        assert len(seen) == 1600
        assert [each.function for each in seen] == [seen[0].function, seen[1].function] * 800
        assert seen[0].function != seen[1].function

    def test_errors_of_the_arrays_come_through(self, fake: FakeDriver, language: str) -> None:
        class Broken(FakeKind):
            where = ""

            def pointer(self, array: FakeArray) -> int:
                if self.where == "pointer" and array.pointer == B:
                    raise RuntimeError("no pointer")
                return array.pointer

            def stream(self, index: int) -> int:
                if self.where == "stream":
                    raise RuntimeError("no stream")
                return 0

            def wrote(self, array: Any) -> None:
                if self.where == "wrote":
                    raise RuntimeError("no version")

        product, kind = Product(fake, "plain"), Broken()
        call: Any = CallPlan(product.ready, kind, "cuda:0", (64, 96, 96), product.stack, never).quick()  # type: ignore[arg-type]
        arrays = FakeArray(A), FakeArray(B), FakeArray(OUT)
        for kind.where in ("pointer", "stream", "wrote"):
            for a in (arrays[0], FakeArray(A + 4)):  # which is not aligned for the kernel's vectors
                with pytest.raises(RuntimeError, match="no "):
                    call(a, *arrays[1:], 1.0, 0.0)
        kind.where = ""
        assert call(*arrays, 1.0, 0.0) is arrays[2]

    @pytest.mark.parametrize("place", ["cuda:0", "host"])
    @pytest.mark.parametrize("raises", [False, True])
    def test_an_array_without_memory_is_named(self, fake: FakeDriver, language: str, raises: bool, place: str) -> None:
        class Storages(FakeKind):
            def pointer(self, array: FakeArray) -> int:
                if raises and not array.pointer:
                    raise RuntimeError("no storage")
                return array.pointer

        product = Product(fake, "plain")
        call: Any = CallPlan(product.ready, Storages(), place, (64, 96, 96), product.stack, never).quick()  # type: ignore[arg-type]
        for i, name in enumerate(("a", "b", "out")):
            arrays = [FakeArray(0 if i == j else address) for j, address in enumerate((A, B, OUT))]
            with pytest.raises(ArgumentTypeError, match=f"^{name} has no memory$"):
                call(*arrays, 1.0, 0.0)
        assert fake.taken() == []

    @pytest.mark.parametrize("name", ["TMA", "split-K", "groups, stream-K"])
    def test_no_reference_is_kept(self, fake: FakeDriver, language: str, name: str) -> None:
        product = Product(fake, name)
        arguments = FakeArray(A), FakeArray(B), FakeArray(OUT), 1.25, 0.5, *product.further
        product.call(*arguments)
        product.kind.written.clear()
        laid, scratch = product.plan._run, product.ready.kernel._scratch
        assert isinstance(laid, Laid)
        objects = [*arguments, *(made for _, maps in laid.program.maps for made in maps.values())]
        objects += [each.arguments for each in scratch._streams.values()] if scratch else []
        assert len(objects) > len(arguments)
        counts = [sys.getrefcount(each) for each in objects]
        for _ in range(100):
            product.call(*arguments)
            fake.answer(701)
            with pytest.raises(LaunchError):
                product.call(*arguments)
        product.kind.written.clear()
        assert [sys.getrefcount(each) for each in objects] == counts
        gone = weakref.ref(product.kind)
        del product, laid, scratch
        gc.collect()
        assert gone() is None


# ---- What a kernel launches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "read"), [(64, "abc"), (0, "c")])
def test_rows_that_are_no_whole_vectors_apart_get_the_unaligned_instance(fake: FakeDriver, k: int, read: str) -> None:
    """The host device forgives vectors that are not aligned, which a GPU does not."""
    problem, gpu = Problem(120, 96, k), FakeGpu(fake)
    fit = fitted(problem, variant("simt:64x64x16,thread=4x8"), gpu.info)
    source = render(problem, fit.config, gpu.info, fit)
    assert fit.alignment == (4, 4, 4)

    def is_wide(*lds: int) -> bool:
        kernel = Kernel(gpu, problem, fit, source, Binary(b""))
        kernel.laid(*lds)(0, False, A, B, OUT, 1.0, 0.0)
        return kernel._unaligned is None

    assert is_wide(64, 96, 96)
    for more in (1, 2, 3, 4):
        for name, lds in (("a", (64 + more, 96, 96)), ("b", (64, 96 + more, 96)), ("c", (64, 96, 96 + more))):
            assert is_wide(*lds) == (more == 4 or name not in read), lds


def test_unaligned_operands_are_captured_once_their_instance_is_compiled(fake: FakeDriver) -> None:
    laid = Product(fake, "plain").ready.kernel.laid(64, 96, 96)
    remedy = (
        "operands of 120x96x64 float nn do not lie at multiples of 16 bytes, and the kernel for such is not compiled "
        "yet: call it once with them before capturing"
    )
    for a, b, out in ((A + 4, B, OUT), (A, B + 8, OUT), (A, B, OUT + 12)):
        with pytest.raises(CaptureError, match=f"^{remedy}$"):
            laid(0, True, a, b, out, 1.0, 0.0)
    laid(0, True, A, B, OUT, 1.0, 0.0)
    laid(0, False, A + 4, B, OUT, 1.0, 0.0)
    laid(0, True, A, B + 8, OUT, 1.0, 0.0)
    assert len(fake.taken()) == 3


@pytest.mark.parametrize("name", ["plain", "double", "TMA", "pack both, split", "split-K"])
def test_the_instance_for_unaligned_operands_needs_no_other(fake: FakeDriver, name: str) -> None:
    shape, text = CONFIGS[name]
    shape, _, dtype = shape.partition(":")
    problem, config, gpu = Problem.parse(shape, dtype or "float"), variant(text), FakeGpu(fake)
    kernel = kernel_module.prepare(gpu, problem, config, aligned=False)
    assert (kernel.config, kernel.fit.alignment) == (config.unaligned, (1, 1, 1))
    size = problem.dtype.size_bytes
    laid = kernel.laid(problem.k + 1, problem.n + 1, problem.n + 1)
    for a, b, out in ((A + size, B, OUT), (A, B + size, OUT), (A, B, OUT + size)):
        laid(0, False, a, b, out, 1.0, 0.0)
    assert kernel._unaligned is None


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_what_does_not_count_is_not_padded(fake: FakeDriver, alpha: float, beta: float) -> None:
    """A and B are copied in by one launch where alpha is not 0, and C by another where beta is not."""
    product = Product(fake, "pad")
    product(alpha=alpha, beta=beta)
    first_arguments = [struct.unpack_from("=Q", seen.arguments)[0] for seen in fake.taken()]
    assert [A in first_arguments, OUT in first_arguments] == [alpha != 0, beta != 0]
    assert len(first_arguments) == 2 + (alpha != 0) + (beta != 0)


# ---- Trees: test_ranker.py checks what they predict --------------------------------------------------------------


def tree_arguments(**others: Any) -> list[Any]:
    """Arguments for three trees of two questions about four features of five rows, some of them replaced."""
    usual = {
        "columns": np.zeros((4, 5), np.float32),
        "rows": np.arange(5),
        "questions": np.zeros((3, 2), np.int32),
        "borders": np.zeros((3, 2), np.float32),
        "leaves": np.ones((3, 4), np.int32),
        "sums": np.full(5, np.nan),
        "unit": 0.5,
    }
    return list((usual | others).values())


def test_trees_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    use("C", monkeypatch)
    arguments = tree_arguments()
    launcher.module().trees(*arguments)
    assert list(arguments[-2]) == [1.5] * 5


@pytest.mark.parametrize("others", [
    {"rows": np.array([0, 1, 2, 3, 5])},
    {"rows": np.array([0, 1, 2, 3, -1])},
    {"rows": np.arange(4)},
    {"rows": np.arange(5, dtype=np.int32)},
    {"rows": np.arange(5.0)},
    {"rows": np.arange(10)[::2]},
    {"questions": np.full((3, 2), 4, np.int32)},
    {"questions": np.full((3, 2), -1, np.int32)},
    {"questions": np.zeros((3, 2), np.int64)},
    {"questions": np.zeros((3, 2), np.uint32)},
    {"questions": np.zeros((3, 1), np.int32)},
    {"questions": np.zeros((4, 2), np.int32)},
    {"questions": np.zeros(6, np.int32)},
    {"questions": np.zeros((3, 9), np.int32), "borders": np.zeros((3, 9), "f4"), "leaves": np.ones((3, 512), "i4")},
    {"borders": np.zeros((2, 2), np.float32)},
    {"borders": np.zeros((3, 2))},
    {"borders": np.zeros((3, 2), ">f4")},
    {"leaves": np.ones((3, 3), np.int32)},
    {"leaves": np.ones((2, 4), np.int32)},
    {"columns": np.zeros((4, 5))},
    {"columns": np.zeros((5, 4), np.float32).T},
    {"columns": np.zeros((129, 5), np.float32)},
    {"sums": np.zeros(4)},
    {"sums": np.zeros(5, np.float32)},
    {"sums": np.zeros((5, 1))},
], ids=lambda others: "-".join(f"{name}{value.shape}{value.dtype}" for name, value in others.items()))  # fmt: skip
def test_buffers_that_do_not_belong_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]
) -> None:
    use("C", monkeypatch)
    arguments = tree_arguments(**others)
    counts = [sys.getrefcount(each) for each in arguments]
    with pytest.raises(ValueError, match=r"belong together|contiguous"):
        launcher.module().trees(*arguments)
    assert [sys.getrefcount(each) for each in arguments] == counts


def test_what_is_no_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use("C", monkeypatch)
    fixed = np.zeros(5)
    fixed.flags.writeable = False
    for others in ({"columns": None}, {"sums": fixed}, {"unit": "1"}, {"more": 1}):
        with pytest.raises((TypeError, ValueError)):
            launcher.module().trees(*tree_arguments(**others))


# ---- How the extension is made -----------------------------------------------------------------------------------


def test_the_vendors_library_is_a_usual_call_too(fake: FakeDriver, language: str) -> None:
    """The library multiplies into an array that exists, in C as in Python; our kernel serves alpha = 0 and captures."""
    product = Product(fake, "plain")
    gpu, library = product.gpu, FakeCublas()
    gpu.blas = lambda: Cublas(library, 1)  # type: ignore[method-assign]
    own: Any = SimpleNamespace(device=gpu, problem=product.problem, kernel=product.ready.kernel)
    served = VendorProduct(own, Vendor(gpu))
    plan = CallPlan(ReadyKernel(served), product.kind, "cuda:0", (64, 96, 96), product.stack, never)  # type: ignore[arg-type]
    call: Any = plan.quick()
    assert (call is plan) == (language == "Python")
    rng = np.random.default_rng(3)
    longer, b = (rng.integers(-8, 9, shape).astype("f4") for shape in ((121, 64), (64, 96)))
    a = longer[:120]  # the row left out is for an A that begins 64 bytes later, as C may lie right behind
    c = np.full((120, 96), np.nan, "f4")
    arrays = [FakeArray(each.ctypes.data) for each in (a, b, c)]
    assert call(*arrays, 1.0, 0.0) is arrays[2]
    assert np.array_equal(c, a @ b)
    product.kind.current_stream = 7
    call(*arrays, 2.0, -1.0)
    assert np.array_equal(c, a @ b)
    first, second = library.products
    assert (first[0], second[0]) == (0, 7)
    assert first[1] != second[1]  # memory of its own for each stream
    assert fake.taken() == []
    gpu.captured = {7}
    call(*arrays, 1.0, 0.0)  # a product with beta = 0 was launched before
    assert len(library.products) == 3
    assert library.products[2][1] not in (first[1], second[1])
    call(FakeArray(arrays[0].pointer + 64), *arrays[1:], 1.0, 0.0)
    assert (len(library.products), len(fake.taken())) == (3, 1)
    gpu.captured = set()
    call(*arrays, 0.0, 1.0)
    assert (len(library.products), len(fake.taken())) == (3, 1)
    with pytest.raises(LayoutError, match="out overlaps a"):
        call(arrays[0], arrays[1], arrays[0], 1.0, 0.0)
    assert product.kind.written == [arrays[2]] * 5


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, while no extension is in the process or in the cache."""
    launcher._extension.cache_clear()
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    launcher._extension.cache_clear()


def compilers(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """Make this script `cc`, which is then the only program on PATH."""
    monkeypatch.delenv("CC", raising=False)
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    if script is not None:
        (place / "cc").write_text(f"#!/bin/sh\n{script}\n")
        (place / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(place))


class TestMaking:
    def test_it_is_compiled_once(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use("C", monkeypatch)
        launcher._extension.cache_clear()
        built: list[str] = []

        def refused(command: Any, name: str, *arguments: Any) -> Any:
            built.append(name)
            raise CompileError("compiled again")

        monkeypatch.setattr(launcher, "compiled", refused)
        assert launcher.described().startswith("C, ")
        assert built == []
        launcher._extension.cache_clear()
        monkeypatch.setattr(launcher, "_FLAGS", (*launcher._FLAGS, "-g"))  # such a build is not in the cache
        assert launcher.described() == "Python (compiled again)"
        assert built == ["tilewright_launcher"]

    def test_processes_at_once(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use("C", monkeypatch)
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(fresh / "other"))
        program = f"import sys; sys.path[:] = {sys.path!r}\nfrom tilewright.runtime.device import launcher\n"
        command = [sys.executable, "-c", program + "print(launcher.module().Call, launcher.described())"]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        outputs = {each.communicate(timeout=120)[0] for each in running}
        assert outputs == {f"<class 'tilewright_launcher.Call'> {launcher.described()}\n"}
        assert len(list((fresh / "other").rglob("kernel.so"))) == 1

    @pytest.mark.parametrize(("script", "reason"), [
        (None, "no C compiler: install one, or name it by CC"),
        ("echo 'cc: error: broken' >&2; exit 1", "does not compile for the processor: cc: error: broken"),
        ("exit 0", "No such file"),
        ("while [ $# -gt 1 ]; do [ $1 = -o ] && echo rubbish > $2; shift; done", "file too short"),
    ])  # fmt: skip
    def test_without_a_compiler_that_works(
        self, fresh: Path, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
    ) -> None:
        compilers(fresh, monkeypatch, script)
        assert launcher.module() is None
        assert launcher.described().startswith("Python (")
        assert reason in launcher.described()
        launch(fake, "Q")(0, 7)
        assert fake.taken()[0].arguments == expected("Q", [7])

    def test_without_the_headers_of_python(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(fresh))
        assert launcher.module() is None
        assert "Python.h" in launcher.described()

    def test_the_identity_names_the_binary_interface_of_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = launcher.ExtensionCompiler().identity
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "cpython-399")
        assert launcher.ExtensionCompiler().identity == one.rpartition("; ")[0] + "; cpython-399"

    def test_no_warnings(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use("C", monkeypatch)
        launcher._extension.cache_clear()
        monkeypatch.setattr(launcher, "_FLAGS", (*launcher._FLAGS, "-Wall", "-Wextra", "-Werror"))
        assert launcher.described().startswith("C, ")


def test_a_compiler_error_says_what_it_was(tmp_path: Path) -> None:
    from tilewright.codegen.source import KernelSource

    with pytest.raises(CompileError, match="broken does not compile"):
        launcher.ExtensionCompiler().build(KernelSource("broken", "int f( {"), str(tmp_path))
