"""Barriers by number on the processor: groups of a block's threads that wait for their own alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import launch
from numpy.typing import NDArray
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host import HostBuffer, HostDevice, HostFunction


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def _build(device: HostDevice, folder: Path, code: str) -> HostFunction:
    source = KernelSource("kernel", code)
    return device.load(device.compiler.build(source, str(folder)), "kernel")


def _floats(device: HostDevice, count: int) -> tuple[HostBuffer, NDArray[Any]]:
    buffer = device.allocate(4 * count)
    return buffer, buffer.array("float32", (count,))


def _run(function: HostFunction, grid: int, block: int, *arguments: HostBuffer | np.generic) -> None:
    values = [np.uint64(a.pointer) if isinstance(a, HostBuffer) else a for a in arguments]
    launch(function, LaunchConfig((grid, 1, 1), (block, 1, 1)), values)


# Groups of `count` threads turn their parts round at barriers of their own, the last ones most often.
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
