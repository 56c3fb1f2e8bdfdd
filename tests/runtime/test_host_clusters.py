"""Clusters on the processor: blocks that run together and read each other's shared memory."""

from pathlib import Path

import numpy as np
import pytest
from launches import launch
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device.host import HostDevice, HostFunction

# Every thread writes what all blocks of its cluster wrote at its place: in static and in dynamic shared memory.
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
    found = gather(function, how)
    assert np.isnan(found).any()
    assert (gather(function, 0) == expected()).all()


def test_a_thread_that_leaves_a_cluster_alone_is_an_error(function: HostFunction) -> None:
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"divergent barrier in block .*wait in a warp collective or for the cl"):
            gather(function, 3)
    assert (gather(function, 0) == expected()).all()


def test_a_grid_is_made_of_whole_clusters(function: HostFunction) -> None:
    with pytest.raises(LaunchError, match="whole clusters"):
        gather(function, 0, blocks=6)
