"""Memory from torch's allocator while torch captures a CUDA graph."""

import sys
from collections.abc import Callable
from typing import Any

from ..device.protocol import Device

_pools: dict[str, tuple[int, bool]] = {}
"""By device, the number of its newest graph, and whether torch's allocator serves that graph from the graph's own pool.
"""


def torch_pool(device: Device, stream: int, graph: int) -> Callable[[int], Any] | None:
    """Return a function that allocates bytes, as a tensor, from the pool of the graph that a stream is captured into.

    None where torch is not imported, or where another library captures: torch's allocator then gives memory that
    products outside of the graph use as well. `graph` is the number that `Device.identity` gives.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    index = int(device.info.selector.partition(":")[2])

    def allocate(nbytes: int) -> Any:
        with cuda.stream(cuda.ExternalStream(stream, device=index)):
            return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")

    newest, private = _pools.get(device.info.selector, (None, False))
    if graph != newest:
        private = _is_private(cuda, index, allocate(1))
        _pools[device.info.selector] = graph, private
    return allocate if private else None


def _is_private(cuda: Any, index: int, block: Any) -> bool:
    """Whether a tensor lies in the private memory pool of a graph."""
    at = block.data_ptr()
    for segment in cuda.memory_snapshot():
        if segment["device"] == index and segment["address"] <= at < segment["address"] + segment["total_size"]:
            return tuple(segment["segment_pool_id"]) != (0, 0)
    return False
