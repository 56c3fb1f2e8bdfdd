"""Bad arguments raise errors that name the argument and its value, before any work is begun."""

import contextlib
import re
import sys
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tilewright
from quick import TYPICAL
from tilewright.codegen.errors import (
    ArgumentTypeError,
    CaptureError,
    ConfigError,
    DeviceError,
    DeviceMismatchError,
    LayoutError,
    ShapeError,
)
from tilewright.codegen.families import parse
from tilewright.runtime.product import arrays as arrays_module
from tilewright.runtime.product import kernel as kernel_module
from tilewright.runtime.product import matmul as matmul_module

F32, F64 = np.float32, np.float64
A, B = np.ones((4, 6), F32), np.ones((6, 5), F32)
BOARD, SQUARE = np.ones((20, 20), F32), np.ones((5, 5), F32)
NATIVE = "must be float32 or float64 in native byte order"
SIDE_BY_SIDE = "must have its columns side by side: the stride along a row is"
APART = "must have rows 6 to 2^31-1 whole elements apart"
windows = np.lib.stride_tricks.sliding_window_view


class GpuArray:
    """An array of another device, with the attributes of a CuPy array that the checks read."""

    dtype = np.dtype(F32)
    _c_contiguous = True

    def __init__(self, index: int, shape: tuple[int, int] = (4, 6)) -> None:
        self.data = SimpleNamespace(ptr=4096, device_id=index)
        self.shape, self.strides = shape, (4 * shape[1], 4)


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes GpuArray the class of CuPy's arrays, whether CuPy is installed or not."""
    module = SimpleNamespace(ndarray=GpuArray, cuda=SimpleNamespace(get_current_stream=None))
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, module))
    monkeypatch.setattr(arrays_module, "KINDS", dict(arrays_module.KINDS))


def read_only(shape: tuple[int, int]) -> Any:
    array = np.zeros(shape, F32)
    array.flags.writeable = False
    return array


def misaligned() -> Any:
    return np.zeros(4 * 6 * 4 + 1, np.uint8)[1:].view(F32).reshape(4, 6)


def huge_pitch() -> Any:
    return np.lib.stride_tricks.as_strided(np.ones(6, F32), (4, 6), (2**33, 4))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up, rendered or compiled for bad input."""

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("work was begun")

    tilewright.clear()
    monkeypatch.setattr(matmul_module, "device_of", fail)
    monkeypatch.setattr(kernel_module, "render", fail)
    monkeypatch.setattr(kernel_module, "compile_cached", fail)


Case = tuple[Any, Any, dict[str, Any], type[Exception], str]
# fmt: off
SHAPES: dict[str, Case] = {
    "inner dimensions": (A, np.ones((7, 5), F32), {}, ShapeError, "inner dimensions differ: a is 4x6, b is 7x5"),
    "no dimension": (np.float32(1), B, {}, ArgumentTypeError, "a must be a NumPy, CuPy or torch array"),
    "stacks": (np.ones((2, 4, 6), F32), np.ones((3, 6, 5), F32), {}, ShapeError, "which do not broadcast"),
    "out": (A, B, {"out": np.zeros((5, 4), F32)}, ShapeError, "out must be 4x5, got shape (5, 4)"),
    "flat out": (A, B, {"out": np.zeros(20, F32)}, ShapeError, "out must be 4x5, got shape (20,)"),
    "beta without out": (A, B, {"beta": 0.5}, ShapeError, "beta is 0.5, so out must be given"),
}
TYPES: dict[str, Case] = {
    "a list": ([[1.0]], B, {}, ArgumentTypeError, "a must be a NumPy, CuPy or torch array, got list"),
    "nothing": (A, None, {}, ArgumentTypeError, "b must be a NumPy, CuPy or torch array, got NoneType"),
    "a masked array": (np.ma.masked_equal(A, 0), B, {}, ArgumentTypeError, "a is a masked array, whose mask would be"),
    "a matrix": (
        A,
        B.view(np.matrix),
        {},
        ArgumentTypeError,
        "b must be a NumPy, CuPy or torch array, got its subclass matrix",
    ),
    "how to copy": (A, B, {"copy": True}, ArgumentTypeError, "copy must be 'never' or 'if-needed', got True"),
    "list as out": (A, B, {"out": [0.0]}, ArgumentTypeError, "out must be a NumPy, CuPy or torch array, got list"),
    "mixed": (A, B.astype(F64), {}, ArgumentTypeError, "a is float32 and b is float64"),
    "integers": (A.astype("<i8"), B, {}, ArgumentTypeError, f"a {NATIVE}, got int64: convert it"),
    "half": (A, B.astype("<f2"), {}, ArgumentTypeError, f"b {NATIVE}, got float16: convert it"),
    "foreign order": (A.astype(">f4"), B.astype(">f4"), {}, ArgumentTypeError, f"a {NATIVE}, got >f4"),
    "out": (A, B, {"out": np.zeros((4, 5))}, ArgumentTypeError, "out must be float32, got float64"),
    "foreign out": (A, B, {"out": np.zeros((4, 5), ">f4")}, ArgumentTypeError, f"out {NATIVE}, got >f4"),
    "an unknown accuracy": (
        A, B, {"accuracy": "fast"}, ArgumentTypeError,
        "accuracy must be ieee (the default), elementwise, or normwise (the fastest), got 'fast'",
    ),
    "nearly an accuracy": (A, B, {"accuracy": "normwse"}, ArgumentTypeError, "got 'normwse'; did you mean 'normwise'?"),
    "axes": (
        A, B, {"axes": [(0, 1)]}, ArgumentTypeError,
        "tilewright.matmul() takes no argument axes=, got [(0, 1)]: np.matmul's axes= is not taken: transpose",
    ),
    "a transpose": (A, B, {"trans_a": True}, ArgumentTypeError, "takes no argument trans_a=, got True: transpose the"),
    "nearly alpha": (
        A, B, {"alhpa": 2}, ArgumentTypeError,
        "got 2: it takes out, alpha, beta, accuracy, device, copy, vendor; did you mean 'alpha'?",
    ),
    "a list as accuracy": (A, B, {"accuracy": []}, ArgumentTypeError, "accuracy must be text, got []"),
    "a list as vendor": (A, B, {"vendor": []}, ArgumentTypeError, "vendor must be text, got []"),
    "alpha as text": (A, B, {"alpha": "2"}, ArgumentTypeError, "alpha must be a real number, got '2'"),
    "complex beta": (A, B, {"beta": 1j}, ArgumentTypeError, "beta must be a real number, got 1j"),
    "an array as alpha": (
        A, B, {"alpha": np.ones((2, 3))}, ArgumentTypeError,
        "alpha must be a real number, got an array of shape (2, 3): pass a float, or an array without dimensions",
    ),
    "an array of one as beta": (
        A, B, {"beta": np.ones(1), "out": np.ones((4, 5), F32)}, ArgumentTypeError,
        "beta must be a real number, got an array of shape (1,): pass a float",
    ),
    "a complex array without dimensions": (
        A, B, {"alpha": np.array(1j)}, ArgumentTypeError, "alpha must be a real number, got array(0.+1.j): pass a",
    ),
    "text in an array without dimensions": (
        A, B, {"alpha": np.array("2")}, ArgumentTypeError, "alpha must be a real number, got array('2'",
    ),
    "long text as alpha": (A, B, {"alpha": "2" * 999}, ArgumentTypeError, f"got '{'2' * 59}...: pass a float"),
    "huge alpha": (A, B, {"alpha": 10**400}, ArgumentTypeError, "alpha must be a number that a double can hold"),
}
LAYOUTS: dict[str, Case] = {
    "read-only out": (A, B, {"out": read_only((4, 5))}, LayoutError, "out is read-only"),
    "out neither by rows nor by columns": (
        A, B, {"out": np.zeros((5, 8), F32)[:, ::2].T}, LayoutError, f"out {SIDE_BY_SIDE} 32 bytes, not 4",
    ),
    "out by columns too close": (
        A, B, {"out": np.lib.stride_tricks.as_strided(np.zeros(20, F32), (4, 5), (4, 12))}, LayoutError,
        "out has elements that share memory: 5 of them lie 12 bytes apart",
    ),
    "every other column": (BOARD[:4, :12:2], B, {}, LayoutError, f"a {SIDE_BY_SIDE} 8 bytes, not 4"),
    "columns backwards": (A, B[:, ::-1], {}, LayoutError, f"b {SIDE_BY_SIDE} -4 bytes, not 4"),
    "rows backwards": (A[::-1], B, {}, LayoutError, f"a {APART}, got a stride of -24 bytes"),
    "one row repeated": (np.broadcast_to(A[:1], (4, 6)), B, {}, LayoutError, f"a {APART}"),
    "one column repeated": (A, np.broadcast_to(B[:, :1], (6, 5)), {}, LayoutError, f"b {SIDE_BY_SIDE} 0 bytes"),
    "rows that overlap": (windows(BOARD[0], 6)[:4], B, {}, LayoutError, f"a {APART}"),
    "pitch over 2^31": (huge_pitch(), B, {}, LayoutError, f"a {APART}, got a stride of 8589934592 bytes"),
    "rows half an element off": (
        np.zeros(4, "6f4,u2")["f0"],
        B,
        {},
        LayoutError,
        f"a {APART}, got a stride of 26 bytes",
    ),
    "half an element off": (misaligned(), B, {}, LayoutError, "a starts at address 0x"),
    "out is a": (SQUARE, B[:5, :5], {"out": SQUARE}, LayoutError, "out overlaps a"),
    "out is part of b": (A, BOARD[:6, :5], {"out": BOARD[3:7, 2:7]}, LayoutError, "out overlaps b"),
    "out between rows of b": (A, BOARD[:6, :5], {"out": BOARD[1:8:2, 4:9]}, LayoutError, "out overlaps b"),
    "out is a row of b": (A[:1], BOARD[:6, :5], {"out": BOARD[2:3, 1:6]}, LayoutError, "out overlaps b"),
}
# fmt: on
CASES = {
    f"{kind}: {name}": case
    for kind, cases in zip(("shape", "type", "layout"), (SHAPES, TYPES, LAYOUTS))
    for name, case in cases.items()
}  # fmt: skip


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", CASES)
def test_arrays_that_make_no_product(name: str) -> None:
    a, b, options, error, message = CASES[name]
    with pytest.raises(error, match=re.escape(message)) as caught:
        tilewright.matmul(a, b, device="host", **options)
    assert isinstance(caught.value, TypeError if error is ArgumentTypeError else ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["shape: out", "type: out", "layout: read-only out", "type: alpha as text"])
def test_a_loaded_kernel_says_the_same(name: str) -> None:
    _, _, options, error, message = CASES[name]
    kernel = tilewright.load(4, 5, 6, device="host")
    with pytest.raises(error, match=re.escape(message)):
        kernel(A, B, **options)
    with pytest.raises(ShapeError, match=re.escape("a must be 4x6, got shape (6, 5)")):
        kernel(B, A)
    with pytest.raises(LayoutError, match=re.escape(f"a {SIDE_BY_SIDE} 16 bytes")):
        kernel(np.ones((6, 4), F32).T, B)  # a transposed view is another problem: load it with trans_a


@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 8, 2), slice(2, 3)])
def test_out_beside_an_operand_in_one_array_is_no_overlap(rows: slice) -> None:
    board = np.ones((20, 20), F32)
    out = board[rows, 5:10]
    assert tilewright.matmul(A[: out.shape[0]], board[:6, :5], out=out, device="host") is out
    assert (out == 6).all()


@pytest.mark.usefixtures("no_work", "fake_cupy")
class TestArraysOfAnotherDevice:
    """Arrays that claim to lie on a GPU, and whose memory is never touched."""

    def test_arrays_of_two_places(self) -> None:
        for a, b, places in (
            (GpuArray(0), GpuArray(1, (6, 5)), "a is on cuda:0, b on cuda:1"),
            (A, GpuArray(1, (6, 5)), "a is on host, b on cuda:1"),
            (GpuArray(2), B, "a is on cuda:2, b on host"),
        ):
            with pytest.raises(DeviceMismatchError, match=f"{places}: copy one of them to the other's device"):
                tilewright.matmul(a, b)

    @pytest.mark.parametrize("device", ["host", "cuda", "cuda:0", "cuda:2"])
    def test_a_device_that_is_not_theirs(self, device: str) -> None:
        with pytest.raises(DeviceMismatchError, match=f"the arrays are on cuda:1, device is '{device}'"):
            tilewright.matmul(GpuArray(1), GpuArray(1, (6, 5)), device=device)


@pytest.mark.usefixtures("fake_cupy")
class TestFactorsOnAGpu:
    """0-d arrays of a GPU as alpha and beta."""

    class Factor(GpuArray):
        """A factor that counts its copies to the processor."""

        copies = 0

        def __init__(self, capturing: bool) -> None:
            super().__init__(0, (0, 0))
            self.shape = ()  # type: ignore[assignment]
            self.device = contextlib.nullcontext()
            self.current_stream = lambda: SimpleNamespace(is_capturing=lambda: capturing)

        def item(self) -> float:
            self.copies += 1
            return 0.5

    @pytest.fixture
    def factor(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def new(capturing: bool) -> Any:
            array = self.Factor(capturing)
            cuda = SimpleNamespace(get_current_stream=array.current_stream)
            monkeypatch.setitem(sys.modules, "cupy", cast(Any, SimpleNamespace(ndarray=self.Factor, cuda=cuda)))
            return array

        return new

    def test_one_is_copied_to_the_processor_once_a_call(self, factor: Any) -> None:
        alpha = factor(False)
        assert (tilewright.matmul(A, B, alpha=alpha, device="host") == 3).all()
        assert (tilewright.load(4, 5, 6, device="host")(A, B, alpha=alpha) == 3).all()
        assert alpha.copies == 2

    def test_none_is_copied_while_a_graph_is_captured(self, factor: Any) -> None:
        beta = factor(True)
        message = "beta lies on a GPU, and cannot be copied to the processor while a graph is captured: pass float("
        with pytest.raises(CaptureError, match=re.escape(message)):
            tilewright.matmul(A, B, out=np.ones((4, 5), F32), beta=beta, device="host")
        assert beta.copies == 0


@pytest.mark.parametrize("half", [np.array(0.5), np.array(0.5, F32), np.float16(0.5), Fraction(1, 2)], ids=repr)
def test_an_array_without_dimensions_is_a_number(half: Any) -> None:
    kernel, two = tilewright.load(4, 5, 6, device="host"), np.array(2)
    for product in (partial(tilewright.matmul, device="host"), kernel):
        assert (product(A, B, alpha=half) == 3).all()
        assert (product(A, B, out=np.ones((4, 5), F32), alpha=two, beta=half) == 12.5).all()
        assert (product(A, B, alpha=np.array(1.0), beta=np.array(0)) == 6).all()


@pytest.mark.usefixtures("fake_cupy")
def test_gpu_arrays_for_a_kernel_of_the_host() -> None:
    kernel = tilewright.load(4, 5, 6, device="host")
    with pytest.raises(DeviceMismatchError, match="a, b and out are on cuda:0, the kernel on host"):
        kernel(GpuArray(0), GpuArray(0, (6, 5)))


@pytest.mark.parametrize(
    ("sizes", "options", "error", "message"),
    [
        ((-1, 2, 3), {}, ShapeError, "m must be in 0..2^31-1, got -1"),
        ((1, 2**31, 3), {}, ShapeError, "n must be in 0..2^31-1, got 2147483648"),
        ((1, 2, True), {}, ArgumentTypeError, "k must be an integer, got True"),
        ((1, 2.0, 3), {}, ArgumentTypeError, "n must be an integer, got 2.0"),
        (("1", 2, 3), {}, ConfigError, "shape is '1' beside n=2, k=3: pass one shape, such as '1024x768x512', or all"),
        ((1, 2, 3), {"dtype": "half"}, ArgumentTypeError, "dtype must be float or double, got 'half'"),
        ((1, 2, 3), {"dtype": float}, ArgumentTypeError, "got <class 'float'>: Python's float has 64 bits, which is"),
        ((1, 2, 3), {"dtype": np.int64}, ArgumentTypeError, "dtype must be float or double, got int64"),
        ((1, 2, 3), {"dtype": np.dtype("<i8")}, ArgumentTypeError, "dtype must be float or double, got int64"),
        ((1, 2, 3), {"store": 5}, ArgumentTypeError, "store must be a path, got 5"),
        ((1, 2, 3), {"trans_a": 1}, ArgumentTypeError, "trans_a must be True or False, got 1"),
        ((1, 2, 3), {"device": "gpu"}, DeviceError, "device must be auto, cuda, cuda:N or host, got 'gpu'"),
        ((1, 2, 3), {"device": "cpu"}, DeviceError, "got 'cpu': the processor is 'host', a GPU 'cuda' or 'cuda:1'"),
        ((2**31 - 1, 2**31 - 1, 1), {"device": "host"}, ConfigError, "required: the grid has fewer than 2^31 CTAs"),
    ],
)
def test_kernels_that_cannot_be_loaded(
    sizes: tuple[Any, Any, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        tilewright.load(*sizes, **options)


def test_a_machine_without_a_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler and found none: install one, such as `apt"):
        tilewright.load(1, 2, 3, device="host")


def test_a_gpu_that_was_asked_for_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.device.nvml.gpu_count", lambda: 0)
    for call in (lambda: tilewright.load(1, 2, 3, device="cuda"), lambda: tilewright.matmul(A, B, device="cuda:3")):
        with pytest.raises(DeviceError, match="device cuda: "):
            call()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: tilewright.tune(8), "shape must be 'MxNxK', (m, n, k) or a Problem, got 8"),
    (lambda: tilewright.tune(EIGHT, trials="5"), "trials must be a whole number, got '5'"),
    (lambda: tilewright.tune(EIGHT, seconds=True), "seconds must be a number, got True"),
    (lambda: tilewright.tune(EIGHT, store=5), "store must be a path, got 5"),
    (lambda: tilewright.tune(EIGHT, record=5), "record must be a path, got 5"),
    (lambda: tilewright.tune(EIGHT, sampler=5), "sampler must be a name, got 5"),
    (lambda: tilewright.tune(EIGHT, keep="5"), "keep must be a whole number, got '5'"),
    (lambda: tilewright.tune(EIGHT, seed=1.5), "seed must be a whole number, got 1.5"),
    (lambda: tilewright.tune(EIGHT, effort=["quick"]), "effort must be a name, got ['quick']"),
    (lambda: tilewright.tune(EIGHT, progress=print), "progress must be a Progress, got <built-in function print>"),
    (lambda: tilewright.tune(EIGHT, device=5), "device must be auto, cuda, cuda:N or host, got 5"),
    (lambda: tilewright.matmul(A, B, device=[]), "device must be text, got []"),
    (lambda: tilewright.load(8, 8, 8, device=[]), "device must be auto, cuda, cuda:N or host, got []"),
    (lambda: tilewright.prepare("8", device=5), "device must be auto, cuda, cuda:N or host, got 5"),
    (lambda: tilewright.Served(EIGHT, "simt", None), "config must be a Config, such as load(...).config, got 'simt'"),
    (lambda: tilewright.emit(8, arch="sm_80"), "shape must be 'MxNxK', (m, n, k) or a Problem, got 8"),
    (lambda: tilewright.emit(EIGHT, layout="split", arch="sm_80"), "layout must be a Layout, got 'split'"),
    (lambda: tilewright.load(8, 8, 8, device="host").emit(5), "name must be text, got 5"),
])  # fmt: skip
def test_arguments_of_other_types(call: Any, message: str) -> None:
    with pytest.raises((ArgumentTypeError, DeviceError), match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: tilewright.matmul(A, B, A), "tilewright.matmul() takes out and what follows by name, got an array"),
    (lambda: tilewright.matmul(A), "tilewright.matmul() missing 1 required positional argument: 'b'"),
    (lambda: tilewright.load(8, 8, 8, "double"), "tilewright.load() takes dtype and what follows by name, got 'dou"),
    (lambda: tilewright.load("8", dytpe="double"), "tilewright.load() takes no argument dytpe=, got 'double': it"),
    (lambda: tilewright.load(8, 8, 8, device="host")(A, B, A), "the kernel of tilewright.load() takes out and what"),
    (lambda: tilewright.load(8, 8, 8, device="host")(A, B, axes=0), "tilewright.load() takes no argument axes=, got"),
    (lambda: tilewright.load(8, 8, 8, device="host")(A), "the kernel of tilewright.load() missing 1 required"),
    (lambda: tilewright.prepare("8", graph=1), "tilewright.prepare() takes no argument graph=, got 1: it takes dtype"),
    (lambda: tilewright.emit("8", architecture="sm_80"), "tilewright.emit() takes no argument architecture=, got 'sm"),
    (lambda: tilewright.tune("8", trial=1), "tune() got an unexpected keyword argument 'trial'"),
    (lambda: tilewright.memory(all=1), "tilewright.memory() got an unexpected keyword argument 'all'"),
    (lambda: tilewright.clear(all=1), "tilewright.clear() got an unexpected keyword argument 'all'"),
])  # fmt: skip
def test_arguments_that_do_not_exist(call: Any, message: str) -> None:
    """The error names the public function, and no class within the library."""
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        call()
    assert "Library" not in str(caught.value)
    assert "Gemm" not in str(caught.value)


@pytest.mark.parametrize(("options", "message"), [
    ({"keep": 0}, "keep must be positive, got 0"),
    ({"seconds": 10**400}, "seconds must be positive and below 10^9, got 1000"),
    ({"store": ""}, "store must be a path, got ''"),
    ({"store": "a\0b"}, r"store must be a path, got 'a\x00b'"),
    ({"record": "~nobody-of-this-name/x"}, "record begins with ~ and no user of this system, got '~nobody-of-"),
    ({"record": "/proc/none/x"}, "record cannot be written: /proc/none/x: "),
    ({"spaces": "/nowhere"}, "spaces cannot be read: /nowhere: No such file or directory"),
])  # fmt: skip
def test_arguments_of_impossible_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        tilewright.tune(EIGHT, device="host", **options)


def test_texts_that_would_leave_their_comment_are_not_emitted() -> None:
    arch = TYPICAL["sm_80"]
    for origin in ("tuned on a\nint evil;", "tuned on a\\", "tuned on \x1b[2J"):
        with pytest.raises(ConfigError, match="origin must be one line without a backslash"):
            tilewright.Served(EIGHT, parse("tiled:8"), arch, origin=origin)
    served = tilewright.Served(EIGHT, parse("tiled:8"), arch)
    with pytest.raises(ConfigError, match="options must be one line without a backslash"):
        tilewright.emit(served, options="--device-key a\nint evil;")


EIGHT = tilewright.Problem(8, 8, 8)
