"""Kernels on the processor: launches, barriers, warps, and what is refused."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from launches import launch
from numpy.typing import NDArray
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host import HostBuffer, HostDevice, HostFunction

ONE = (1, 1, 1)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def _build(device: HostDevice, folder: Path, code: str, name: str = "kernel") -> HostFunction:
    source = KernelSource(name, code)
    return device.load(device.compiler.build(source, str(folder)), name)


def _floats(device: HostDevice, count: int) -> tuple[HostBuffer, NDArray[Any]]:
    buffer = device.allocate(4 * count)
    return buffer, buffer.array("float32", (count,))


def _run(function: HostFunction, grid: int, block: int, *arguments: HostBuffer | np.generic, dynamic: int = 0) -> None:
    values = [np.uint64(a.pointer) if isinstance(a, HostBuffer) else a for a in arguments]
    launch(function, LaunchConfig((grid, 1, 1), (block, 1, 1), dynamic), values)


# ---- Launches --------------------------------------------------------------------------------------------------

INDICES = """
extern "C" __global__ void kernel(float* out)
{
    const int rank = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + rank] += block * 100 + rank;
}
"""


def test_every_thread_of_every_block_runs_once(device: HostDevice, tmp_path: Path) -> None:
    buffer, out = _floats(device, 30 * 24)
    out[:] = 0
    launch(_build(device, tmp_path, INDICES), LaunchConfig((2, 3, 5), (4, 3, 2)), [np.uint64(buffer.pointer)])
    assert out.tolist() == [block * 100 + rank for block in range(30) for rank in range(24)]


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1, 1, 1), (33, 32, 1), "at most 1024 threads"),
        ((1, 1, 1), (1, 1, 65), "block must lie within"),
        ((0, 1, 1), (1, 1, 1), "grid must lie within"),
        ((2**31, 1, 1), (1, 1, 1), "grid must lie within"),
        ((1, 65536, 1), (1, 1, 1), "grid must lie within"),
    ],
)
def test_limits_of_a_launch(
    device: HostDevice, tmp_path: Path, grid: tuple[int, int, int], block: tuple[int, int, int], message: str
) -> None:
    function = _build(device, tmp_path, INDICES)
    with pytest.raises(LaunchError, match=message):
        launch(function, LaunchConfig(grid, block), [np.uint64(0)])


def test_arguments_must_be_those_of_the_kernel(device: HostDevice, tmp_path: Path) -> None:
    function = _build(device, tmp_path, INDICES)
    with pytest.raises(LaunchError, match="another number of arguments"):
        _run(function, 1, 1)
    with pytest.raises(LaunchError, match="another size"):
        _run(function, 1, 1, np.int32(0))


def test_a_function_that_is_not_there(device: HostDevice, tmp_path: Path) -> None:
    source = KernelSource("kernel", INDICES)
    binary = device.compiler.build(source, str(tmp_path))
    assert binary.seconds > 0
    assert (tmp_path / "kernel.so").read_bytes() == binary.image
    with pytest.raises(LaunchError, match="other cannot be loaded"):
        device.load(binary, "other")


def test_a_library_does_nothing_at_exit(device: HostDevice, tmp_path: Path) -> None:
    """Destructors run while a daemon thread may be in a kernel: one that took its stacks away ended the process."""
    code = REVERSE.replace("__syncthreads", "tilewright_host::commit_copies(); __syncthreads")
    device.compiler.build(KernelSource("kernel", code), str(tmp_path))
    with (tmp_path / "kernel.so").open("rb") as file:
        destructors = ELFFile(file).get_section_by_name(".fini_array")
        assert destructors.data_size == 8  # what every library has


# ---- Barriers --------------------------------------------------------------------------------------------------

REVERSE = """
extern "C" __global__ void kernel(float* data, int rounds)
{
    __shared__ float tile[1024];
    const int last = blockDim.x - 1;
    float* mine = data + blockIdx.x * blockDim.x + threadIdx.x;
    for (int round = 0; round < rounds; ++round) {
        tile[threadIdx.x] = *mine;
        __syncthreads();
        *mine = tile[last - threadIdx.x] + 1;
        __syncthreads();
    }
}
"""


@pytest.mark.parametrize("switch", ["assembly", "ucontext"])
@pytest.mark.parametrize("block", [1, 2, 33, 256, 1024])
def test_barriers_hold(
    device: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, switch: str
) -> None:
    if switch == "ucontext":
        monkeypatch.setattr(host_compiler, "_FLAGS", (*host_compiler._FLAGS, "-DTILEWRIGHT_UCONTEXT"))
    function = _build(device, tmp_path, REVERSE)
    buffer, data = _floats(device, 3 * block)
    data[:] = np.arange(3 * block)
    for _ in range(2):
        _run(function, 3, block, buffer, np.int32(3))
    assert (data == np.arange(3 * block) + 6).all()  # an even number of reversals
    _run(function, 3, block, buffer, np.int32(1))
    assert (data.reshape(3, block) == np.arange(3 * block).reshape(3, block)[:, ::-1] + 7).all()


DIVERGENT = """
extern "C" __global__ void kernel(int how, int* reached)
{
    if (how == 1 && threadIdx.x < 5) return;
    if (how == 2 && threadIdx.x < 5) {
        __syncthreads();
    } else if (how == 3 && threadIdx.x == 0) {
        __syncwarp();
    } else {
        __syncthreads();
    }
    atomicAdd(reached, 1);
}
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (1, r"block \(0, 0, 0\): of 64 threads 59 wait at line 10, 5 have returned"),
        (2, r"threads wait at lines 6 and 10"),
        (3, r"63 wait at line 10, 0 have returned, 1 wait in a warp collective"),
    ],
)
def test_a_divergent_barrier_is_an_error_and_the_kernel_can_be_launched_again(
    device: HostDevice, tmp_path: Path, how: int, message: str
) -> None:
    function = _build(device, tmp_path, DIVERGENT)
    reached = device.allocate(4)
    count = reached.array("int32", (1,))
    count[:] = 0
    for _ in range(2):
        with pytest.raises(LaunchError, match=message):
            _run(function, 2, 64, np.int32(how), reached)
    assert count[0] == 0
    _run(function, 2, 64, np.int32(0), reached)
    assert count[0] == 128


def test_shared_memory_is_nan_at_the_start_of_every_block(device: HostDevice, tmp_path: Path) -> None:
    code = """
extern "C" __global__ void kernel(float* out)
{
    extern __shared__ __align__(16) float dynamic[];
    __shared__ float fixed[32];
    out[2 * blockIdx.x] = dynamic[threadIdx.x];
    out[2 * blockIdx.x + 1] = fixed[threadIdx.x];
    __syncthreads();
    dynamic[threadIdx.x] = fixed[threadIdx.x] = 1;
}
"""
    function = _build(device, tmp_path, code)
    buffer, out = _floats(device, 8)
    for _ in range(2):
        out[:] = 0
        _run(function, 4, 32, buffer, dynamic=128)
        assert np.isnan(out).all()


# ---- Warps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [32, 48, 96])
def test_shuffles(device: HostDevice, tmp_path: Path, block: int) -> None:
    code = """
extern "C" __global__ void kernel(float* out)
{
    const int t = threadIdx.x;
    out[t] = __shfl_xor_sync(0xffffffffu, float(t), 1);
    out[blockDim.x + t] = __shfl_sync(0xffffffffu, float(t), 5);
    out[2 * blockDim.x + t] = __shfl_sync(0xffffffffu, float(t), 1, 8);  // each eighth its own value
    // One half of each warp on its own.
    float sum = t;
    if (t % 32 < 16) {
        for (int by = 8; by; by /= 2) sum += __shfl_xor_sync(0x0000ffffu, sum, by);
    }
    out[3 * blockDim.x + t] = sum;
}
"""
    buffer, out = _floats(device, 4 * block)
    _run(_build(device, tmp_path, code), 1, block, buffer)
    xor, broadcast, eighths, sums = out.reshape(4, block)
    t = np.arange(block)
    assert (xor == t ^ 1).all()
    assert (eighths == t // 8 * 8 + 1).all()
    warp = t // 32 * 32
    assert (broadcast == warp + 5).all()
    assert (sums == np.where(t % 32 < 16, warp * 16 + 120, t)).all()


def test_a_shuffle_from_a_lane_that_takes_no_part_is_an_error(device: HostDevice, tmp_path: Path) -> None:
    code = """
extern "C" __global__ void kernel(float* out)
{
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 9);
}
"""
    function = _build(device, tmp_path, code)
    buffer, _ = _floats(device, 32)
    _run(function, 1, 32, buffer)
    with pytest.raises(LaunchError, match="reads lane 9, which takes no part"):
        _run(function, 1, 8, buffer)


def test_a_collective_gets_its_twin_from_warp_collective(device: HostDevice, tmp_path: Path) -> None:
    """As an mma does: each lane holds a row of A and a column of B, and all lanes see all of both."""
    code = """
struct Fragment { float row[4], col[4]; };
__device__ float product(const Fragment& mine, int i, int j)
{
    return tilewright_host::warp_collective(0xffffffffu, mine, [=](auto of) {
        float sum = 0;
        for (int p = 0; p < 4; ++p) sum += of(i).row[p] * of(j).col[p];
        return sum;
    });
}
extern "C" __global__ void kernel(float* out)
{
    const int t = threadIdx.x;
    Fragment mine;
    for (int p = 0; p < 4; ++p) { mine.row[p] = t + p; mine.col[p] = t - p; }
    for (int j = 0; j < 32; ++j) out[t * 32 + j] = product(mine, t, j);
}
"""
    buffer, out = _floats(device, 64 * 32)
    _run(_build(device, tmp_path, code), 1, 64, buffer)
    t, p = np.arange(64)[:, None], np.arange(4)
    rows, cols = t + p, t - p
    expected = [rows[half : half + 32] @ cols[half : half + 32].T for half in (0, 32)]
    assert (out.reshape(2, 32, 32) == np.array(expected)).all()


def test_kernels_compile_without_warnings(device: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_compiler, "_FLAGS", (*host_compiler._FLAGS, "-Wall", "-Wextra", "-Werror"))
    code = REVERSE.replace("    for (int round", "    #pragma unroll 2\n    for (int round")
    _build(device, tmp_path, code)


# ---- Two at once -----------------------------------------------------------------------------------------------


def test_launches_from_two_threads_take_turns(device: HostDevice, tmp_path: Path) -> None:
    function = _build(device, tmp_path, REVERSE)
    memories = [_floats(device, 4 * 64) for _ in range(2)]

    def work(buffer: HostBuffer) -> None:
        for _ in range(20):
            _run(function, 4, 64, buffer, np.int32(2))

    for _, data in memories:
        data[:] = 0
    threads = [threading.Thread(target=work, args=(buffer,)) for buffer, _ in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((data == 40).all() for _, data in memories)


def test_a_launch_takes_up_nothing_that_another_left(device: HostDevice, tmp_path: Path) -> None:
    """All launches work in the same memory, where threads have their queues of copies."""
    code = """
extern "C" __global__ void kernel(float* out, int starts)
{
    __shared__ float4 place;
    if (starts) {
        tilewright_host::copy_async(&place, out, 16);
    } else {
        place = make_float4(5, 5, 5, 5);
        tilewright_host::commit_copies();
        tilewright_host::wait_copies(0);
        out[0] = place.x;
    }
}
"""
    function = _build(device, tmp_path, code)
    buffer, out = _floats(device, 4)
    out[:] = 1
    _run(function, 1, 1, buffer, np.int32(1))
    _run(function, 1, 1, buffer, np.int32(0))
    assert out[0] == 5


def test_a_path_that_is_built_again_loads_the_new_kernel(device: HostDevice, tmp_path: Path) -> None:
    buffer, out = _floats(device, 1)
    functions = []
    for value in (1, 2):
        code = f'extern "C" __global__ void kernel(float* out) {{ *out = {value}; }}'
        functions.append(_build(device, tmp_path, code))
        _run(functions[-1], 1, 1, buffer)
        assert out[0] == value
    _run(functions[0], 1, 1, buffer)
    assert out[0] == 1
