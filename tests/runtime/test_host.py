"""The processor as a device: memory, facts, the vendor's library, and the compiler."""

import math
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tilewright.codegen.errors import CompileError, DeviceError, LaunchError
from tilewright.codegen.problem import Problem
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host import HostCompiler, HostDevice
from tilewright.runtime.device.protocol import Operand

SOURCE = KernelSource(
    "kernel",
    'extern "C" __global__ void kernel(float* out) { out[threadIdx.x] = 1; }',
)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


# ---- Memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 4, 100, 4096, 4097, 100_000])
def test_a_buffer_is_nan_and_ends_at_its_guard_page(device: HostDevice, nbytes: int) -> None:
    buffer = device.allocate(nbytes)
    end = buffer.pointer + nbytes
    assert buffer.nbytes == nbytes
    assert buffer.pointer % 16 == 0
    assert -end % 4096 < 16
    assert (buffer.array("uint8", (nbytes,)) == 0xFF).all()
    assert np.isnan(buffer.array("float32", (nbytes // 4,))).all()


def test_arrays_share_the_memory_and_keep_it_alive(device: HostDevice) -> None:
    buffer = device.allocate(4000)
    floats = buffer.array("float32", (1000,))
    floats[:] = np.arange(1000)
    part = buffer.array("float32", (2, 3), offset_bytes=8)
    del buffer, floats
    assert part.tolist() == [[2, 3, 4], [5, 6, 7]]


@pytest.mark.parametrize("offset", ["-4096", "nbytes"])
def test_touching_beside_a_buffer_ends_the_process(offset: str) -> None:
    program = (
        "import ctypes; from tilewright.runtime.device.host import HostDevice; nbytes = 64;"
        "buffer = HostDevice().allocate(nbytes); ctypes.string_at(buffer.pointer, nbytes); print('inside', flush=True);"
        f"ctypes.string_at(buffer.pointer + {offset}, 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "inside\n"
    assert done.returncode == -signal.SIGSEGV


def test_too_large_a_buffer_is_a_launch_error(device: HostDevice) -> None:
    with pytest.raises(LaunchError, match="no memory for a buffer of"):
        device.allocate(2**60)


def test_to_numpy_copies(device: HostDevice) -> None:
    array = device.allocate(16).array("float32", (4,))
    array[:] = -1
    copy = device.to_numpy(array)
    array[:] = 0
    assert (copy == -1).all()


# ---- The device ------------------------------------------------------------------------------------------------


def test_facts(device: HostDevice) -> None:
    info = device.info
    assert info.name.startswith("host ")
    assert info.selector == "host"
    assert info.arch.is_host
    assert info.sm_count >= 1
    assert math.isfinite(info.bandwidth_gbs)
    assert min(info.clock_mhz, info.memory_bytes, info.bandwidth_gbs) > 0
    assert device.info is info
    assert pickle.loads(pickle.dumps(info)) == info
    clock = device.clock_mhz()
    assert clock is None or clock > 0


def test_what_is_timed_runs_once(device: HostDevice) -> None:
    ran: list[int] = []
    assert device.elapsed_us(device.capture(lambda: ran.append(1))) > 0
    device.synchronize()
    assert ran == [1]


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 3), (0, 2), (0, 0), (1, 1)])
@pytest.mark.parametrize("trans", ["nn", "tt"])
@pytest.mark.parametrize("k", [0, 5])
def test_vendor_follows_the_rules_of_blas(device: HostDevice, alpha: float, beta: float, trans: str, k: int) -> None:
    problem = Problem.parse(f"3x4x{k}", "double", trans)
    rng = np.random.default_rng(1)
    shapes = (problem.stored_a, problem.stored_b, (problem.m, problem.n))
    buffers = [device.allocate(8 * rows * (cols + 2)) for rows, cols in shapes]
    padded = [buffer.array("float64", (rows, cols + 2)) for buffer, (rows, cols) in zip(buffers, shapes, strict=True)]
    views = [array[:, :-2] for array in padded]
    a, b, c = (
        Operand(buffer.pointer, rows, cols, cols + 2, trans, buffer)
        for buffer, (rows, cols), trans in zip(buffers, shapes, (problem.trans_a, problem.trans_b, False), strict=True)
    )
    for view, read in zip(views, (alpha, alpha, beta), strict=True):
        if read:  # what must not be read stays NaN
            view[:] = rng.integers(-8, 9, view.shape)
    expected = np.zeros((3, 4))
    if alpha:
        left, right = (view.T if trans == "tt" else view for view in views[:2])
        expected += alpha * (left @ right)
    if beta:
        expected += beta * views[2]
    run = device.vendor(problem)
    run(a, b, c, alpha, beta)
    assert np.array_equal(views[2], expected)
    assert np.isnan(padded[2][:, 4:]).all()


# ---- The compiler ----------------------------------------------------------------------------------------------


def test_no_compiler_is_a_device_error_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler.*install") as caught:
        HostCompiler().build(SOURCE, str(tmp_path))
    assert "\n" not in str(caught.value)
    with pytest.raises(DeviceError):
        _ = HostCompiler().identity


def test_what_does_not_compile_is_a_compile_error_with_a_log(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"kernel does not compile.*nonsense") as caught:
        HostCompiler().build(replace(SOURCE, code="void kernel() { nonsense; }"), str(tmp_path))
    assert "kernel.cu:1" in caught.value.log


def test_compiling_has_a_time_limit(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"longer than 0\.001 s"):
        HostCompiler(timeout_s=0.001).build(SOURCE, str(tmp_path))


def test_the_identity_holds_all_that_a_binary_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = HostCompiler().identity
    assert identity == HostCompiler().identity
    assert "-march=native" in identity
    assert host_compiler.cpu_facts()[0] in identity
    with monkeypatch.context() as patch:
        patch.setenv("CXX", f"'{host_compiler.cxx()[0]}' -DX=1")
        assert HostCompiler().identity != identity
    (tmp_path / "cuda_on_host.h").write_text("// another\n")
    monkeypatch.setattr(host_compiler, "_HEADERS", tmp_path)
    host_compiler._headers_digest.cache_clear()
    assert HostCompiler().identity != identity
    host_compiler._headers_digest.cache_clear()  # the tests that follow have the headers of the package


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_temporary_files_and_messages_of_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files go to the folder of the build, which is removed later, and messages may have any encoding."""
    build, seen = tmp_path / "build", tmp_path / "seen"
    build.mkdir()
    print_error = "printf 'd\\351p: error: x\\n' >&2"
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f"#!/bin/sh\necho $TMPDIR >{seen}\n{print_error}\nexit 7\n"))
    with pytest.raises(CompileError, match=r"^kernel does not compile for the processor: d\ufffdp: error: x$"):
        HostCompiler().build(SOURCE, str(build))
    assert seen.read_text() == f"{build}\n"


@pytest.mark.parametrize(("text", "error", "message"), [
    ("#!/bin/sh\nexit 7\n", CompileError, "kernel does not compile for the processor: {cxx} ended with 7"),
    ("#!/nowhere/sh\n", DeviceError, "cannot run the compiler {cxx}: No such file or directory"),
])  # fmt: skip
def test_a_compiler_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception], message: str
) -> None:
    cxx = script(tmp_path / "cxx", text)
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(error) as caught:
        HostCompiler().build(SOURCE, str(tmp_path))
    assert str(caught.value) == message.format(cxx=cxx)
