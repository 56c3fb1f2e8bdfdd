"""Kernels on the processor: launches, barriers, warps, clusters, twins of instructions, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from multiplied import in_threads
from numpy.typing import NDArray
from products import launch
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.cache import compile_cached
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
    """Destructors run while a daemon thread may be in a kernel; one that freed its stacks would end the process."""
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
    """As in an mma, each lane holds a row of A and a column of B, and all lanes see all of both."""
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
    in_threads(work, [buffer for buffer, _ in memories])
    assert all((data == 40).all() for _, data in memories)


def test_a_launch_inherits_nothing_of_an_earlier_one(device: HostDevice, tmp_path: Path) -> None:
    """All launches use the same memory, in which threads have their queues of copies."""
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


# ---- Barriers by number: groups of a block's threads that wait for their own alone ------------------------------


# Groups of `count` threads reverse their parts of the data at barriers of their own, later groups more often.
GROUPS = """
extern "C" __global__ void kernel(float* data, int count, int how)
{
    __shared__ float tile[1024];
    const int group = threadIdx.x / count, first = group * count, rank = threadIdx.x - first;
    float* mine = data + blockIdx.x * blockDim.x + threadIdx.x;
    if (how == 1 && threadIdx.x == 70) return;
    if (how == 2 && group == 1) __syncthreads();
    for (int round = 0; round < 1 + 2 * group; ++round) {
        tile[threadIdx.x] = *mine;
        tilewright_host::sync_named(1 + group, how == 3 && group ? 2 * count : count);
        *mine = tile[first + count - 1 - rank] + 1;
        tilewright_host::sync_named(1 + group, count);
    }
    __syncthreads();
}
"""


@pytest.mark.parametrize("switch", ["assembly", "ucontext"])
@pytest.mark.parametrize("count", [32, 64, 96])
def test_groups_of_threads_wait_for_their_own_alone(
    device: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, switch: str
) -> None:
    if switch == "ucontext":
        monkeypatch.setattr(host_compiler, "_FLAGS", (*host_compiler._FLAGS, "-DTILEWRIGHT_UCONTEXT"))
    function = _build(device, tmp_path, GROUPS)
    buffer, data = _floats(device, 3 * 4 * count)
    for _ in range(2):
        data[:] = np.arange(3 * 4 * count)
        _run(function, 3, 4 * count, buffer, np.int32(count), np.int32(0))
        turned = np.arange(3 * 4 * count).reshape(3, 4, count)[..., ::-1] + np.array([1, 3, 5, 7])[:, None]
        assert (data.reshape(3, 4, count) == turned).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (1, r"block \(0, 0, 0\): of 192 threads 128 wait at line \d+, 63 wait at barriers by number, 1 have"),
        (2, r"threads wait at lines 8 and 15"),
        (3, r"of 192 threads 64 wait at line \d+, 128 wait at barriers by number, 0 have"),
    ],
)
def test_a_barrier_that_some_of_a_group_miss_is_an_error_and_the_kernel_can_be_launched_again(
    device: HostDevice, tmp_path: Path, how: int, message: str
) -> None:
    function = _build(device, tmp_path, GROUPS)
    buffer, data = _floats(device, 2 * 192)
    data[:] = 0
    for _ in range(2):
        with pytest.raises(LaunchError, match=message):
            _run(function, 2, 192, buffer, np.int32(64), np.int32(how))
    data[:] = 0
    _run(function, 2, 192, buffer, np.int32(64), np.int32(0))
    assert (data.reshape(2, 3, 64) == np.array([1, 3, 5])[:, None]).all()


# ---- Clusters: blocks that run together and read each other's shared memory -------------------------------------


# Every thread copies the mirrored element of all blocks of its cluster, from static and dynamic shared memory.
GATHER = """
constexpr int BLOCKS = 4;
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(64) kernel(float* out, int how)
{
    __shared__ float fixed[64];
    extern __shared__ __align__(16) float dynamic[];
    const int t = threadIdx.x;
    if (how == 3 && blockIdx.x % BLOCKS == 2 && t == 5) return;
    fixed[t] = 100 * blockIdx.x + t;
    dynamic[t] = -fixed[t];
    if (how != 1) {
        tilewright_host::arrive_cluster();
        tilewright_host::wait_cluster();
    }
    __syncthreads();
    for (int rank = 0; rank < BLOCKS; ++rank) {
        float* to = out + ((blockIdx.x * BLOCKS + rank) * 64 + t) * 2;
        to[0] = tilewright_host::peer(fixed, rank)[63 - t];
        to[1] = tilewright_host::peer(dynamic, rank)[63 - t];
    }
    if (how != 2) {
        tilewright_host::arrive_cluster();
        tilewright_host::wait_cluster();
    }
}
"""


def gather(function: HostFunction, how: int, blocks: int = 8) -> np.ndarray:
    device = HostDevice()
    buffer = device.allocate(blocks * 4 * 64 * 2 * 4)
    config = LaunchConfig((blocks, 1, 1), (64, 1, 1), 64 * 4)
    launch(function, config, [np.uint64(buffer.pointer), np.int32(how)])
    return np.array(buffer.array("float32", (blocks, 4, 64, 2)))


@pytest.fixture
def function(tmp_path: Path) -> HostFunction:
    device = HostDevice()
    source = KernelSource("kernel", GATHER)
    return device.load(device.compiler.build(source, str(tmp_path)), "kernel")


def expected() -> np.ndarray:
    block, rank, thread = np.ogrid[:8, :4, :64]
    values = 100 * (block // 4 * 4 + rank) + 63 - thread
    return np.stack((values, -values), axis=-1)


def test_blocks_of_a_cluster_read_each_other(function: HostFunction) -> None:
    for _ in range(2):
        assert (gather(function, 0) == expected()).all()


@pytest.mark.parametrize("how", [1, 2])
def test_without_a_barrier_before_or_after_they_read_nan(function: HostFunction, how: int) -> None:
    values = gather(function, how)
    assert np.isnan(values).any()
    assert (gather(function, 0) == expected()).all()


def test_a_thread_that_leaves_a_cluster_alone_is_an_error(function: HostFunction) -> None:
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"divergent barrier in block .*wait in a warp collective or for the cl"):
            gather(function, 3)
    assert (gather(function, 0) == expected()).all()


def test_a_grid_is_made_of_whole_clusters(function: HostFunction) -> None:
    with pytest.raises(LaunchError, match="whole clusters"):
        gather(function, 0, blocks=6)


# ---- Twins of the tensor cores' conversions and sums ------------------------------------------------------------


SUM_TF32 = """
extern "C" __global__ void add_tf32(const unsigned* a, const unsigned* b, const float* start, float* out, int n)
{
    for (int i = 0; i < n; ++i) out[i] = tilewright_host::cut_off_sum_tf32(start[i], a + 8 * i, b + 8 * i);
}
"""
CONVERT = """
extern "C" __global__ void convert(const float* x, unsigned short* out, float* back, int n)
{
    for (int i = 0; i < n; ++i) {
        out[i] = tilewright_host::to_half(x[i]);
        out[n + i] = tilewright_host::to_bfloat(x[i]);
        back[i] = tilewright_host::from_half(out[i]);
        back[n + i] = tilewright_host::from_bfloat(out[n + i]);
    }
}
"""
SUM = """
extern "C" __global__ void add(const float* a, const float* b, const float* start, float* out, int n)
{
    for (int i = 0; i < n; ++i) {
        tilewright_host::Scaled x[16], y[16];
        for (int p = 0; p < 16; ++p) {
            x[p] = tilewright_host::scaled(a[16 * i + p]);
            y[p] = tilewright_host::scaled(b[16 * i + p]);
        }
        out[i] = tilewright_host::cut_off_sum(start[i], x, y);
    }
}
"""


def launched(name: str, code: str, codes: str, outputs: tuple[NDArray[Any], ...], *inputs: NDArray[Any]) -> None:
    device = HostDevice()
    source = KernelSource(name, code)
    launch = device.load(compile_cached(device.compiler, source), name)
    arrays = *inputs, *outputs
    bound = launch.bound(LaunchConfig((1, 1, 1), (1, 1, 1)), codes)
    bound(0, *(array.ctypes.data for array in arrays), len(inputs[-1]))


def test_conversions_round_to_nearest_even_in_every_range() -> None:
    rng = np.random.default_rng(1)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    ties = (halves[:-1].astype(np.float64) + halves[1:]) / 2
    x = np.concatenate([
        rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32), halves, ties.astype(np.float32),
        np.ldexp(rng.standard_normal(20_000), rng.integers(-30, 18, 20_000)).astype(np.float32),
    ])  # fmt: skip
    x = np.ascontiguousarray(x[np.isfinite(x)])
    out, back = np.empty(2 * len(x), np.uint16), np.empty(2 * len(x), np.float32)
    launched("convert", CONVERT, "QQQi", (out, back), x)
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float16)
    assert np.array_equal(out[: len(x)], rounded.view(np.uint16))
    assert np.array_equal(back[: len(x)], rounded.astype(np.float32))
    bits = x.view(np.uint32).astype(np.uint64)
    bfloats = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert np.array_equal(out[len(x) :], bfloats)
    assert np.array_equal(back[len(x) :], (bfloats.astype(np.uint32) << 16).view(np.float32))


def test_sums_are_cut_off_at_25_fraction_bits_then_at_23() -> None:
    def summed(start: float, *products: tuple[float, float]) -> float:
        a, b, out = np.zeros(16, np.float32), np.zeros(16, np.float32), np.empty(1, np.float32)
        for p, (x, y) in enumerate(products):
            a[p], b[p] = x, y
        # The kernel takes its count from the last input.
        launched("add", SUM, "QQQQi", (out,), a, b, np.array([start], np.float32))
        return float(out[0])

    tiny = 2.0**-13
    assert summed(1.0, (tiny, tiny * 0.5)) == 1.0  # 2^-27 is beyond the 25th bit
    assert summed(1.0, *[(tiny, tiny * 0.5)] * 16) == 1.0  # also when there are many
    assert summed(1.0, *[(tiny, tiny * 2)] * 4) == 1 + 2.0**-23  # 2^-25 is kept, and four of them are a bit of a float
    assert summed(1.0, *[(tiny, tiny * 2)] * 7) == 1 + 2.0**-23  # toward zero
    assert summed(-1.0, *[(-tiny, tiny * 2)] * 7) == -1 - 2.0**-23
    assert summed(0.0, (3.0, 5.0), (-2.0, 7.5)) == 0.0
    assert summed(0.0, (2.0**-24, 2.0**-24)) == 2.0**-48
    assert summed(2.0**-149) == 2.0**-149


def test_sums_of_tf32_take_the_upper_bits_and_overflow_to_infinity() -> None:
    def summed(start: float, *products: tuple[float, float]) -> float:
        a, b, out = np.zeros(8, np.float32), np.zeros(8, np.float32), np.empty(1, np.float32)
        for p, (x, y) in enumerate(products):
            a[p], b[p] = x, y
        launched("add_tf32", SUM_TF32, "QQQQi", (out,), a, b, np.array([start], np.float32))
        return float(out[0])

    assert summed(0.0, (1 + 2.0**-10, 1.0)) == 1 + 2.0**-10
    assert summed(0.0, (1 + 2.0**-11, 1.0)) == 1.0  # 10 fraction bits are kept
    assert summed(0.0, (1.0, -(2 - 2.0**-23))) == -(2 - 2.0**-10)  # toward zero
    assert summed(1.0, (2.0**-13, 2.0**-14)) == 1.0
    assert summed(1.0, *[(2.0**-13, 2.0**-12)] * 7) == 1 + 2.0**-23
    assert summed(0.0, (2.0**-130, 2.0**100)) == 2.0**-30  # subnormal numbers count
    assert summed(0.0, (2.0**-137, 2.0**100)) == 0.0  # but for their low bits
    assert summed(0.0, (2.0**100, 2.0**100)) == np.inf
    assert summed(-np.inf, (1.0, 1.0)) == -np.inf
    assert summed(0.0, (2.0**100, 2.0**100), (-(2.0**100), 2.0**100)) == 0.0  # exact before it is rounded
    for x, y in ((np.inf, 0.0), (np.nan, 1.0)):
        assert np.isnan(summed(0.0, (x, y)))
    assert np.isnan(summed(np.inf, (-np.inf, 1.0)))
