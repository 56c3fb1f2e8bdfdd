"""Device memory that launches of a kernel work in: partial sums, counters, copies of operands."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ...codegen.errors import CaptureError
from ..device.protocol import Buffer, Device

_MOST_STREAMS = 16
"""Streams whose memory a kernel keeps; past this that of the stream used longest ago goes."""

Buffers = tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What launches on one stream work in."""

    buffers: Buffers
    """The memory."""
    addresses: tuple[int, ...]
    """What kernels are told of it."""


class Scratch:
    """Buffers of one kernel: a set for each stream, and one for each stream of a graph that the kernel is captured in,
    as graphs may run at once. Not safe between threads: who asks holds a lock."""

    def __init__(
        self, device: Device, sizes: tuple[int, ...], zeroed: int, addresses: Callable[[Buffers], tuple[int, ...]],
        graphs: float = math.inf,
    ) -> None:  # fmt: skip
        """`sizes` are bytes of each buffer; of the first, `zeroed` bytes are 0 before its first use. `addresses` gives
        what kernels are told of a set. For more than so many `graphs` sets are aside only where that is asked for."""
        self._most_graphs = graphs
        self._device, self._sizes, self._zeroed, self._addresses = device, sizes, zeroed, addresses
        self._streams: OrderedDict[int, Held] = OrderedDict()
        self._graphs: dict[tuple[int, int], Held] = {}
        self._aside: list[Held] = []

    def at(self, stream: int, capturing: bool) -> tuple[int, ...]:
        """The addresses for a launch on a stream. Raises CaptureError where a graph needs some and none are aside."""
        key = self._device.identity(stream, capturing)
        if capturing:
            if key not in self._graphs:
                if not self._aside:
                    text = "a graph being captured needs memory of its own, and all that was set aside for graphs is"
                    raise CaptureError(f"{text} in use: call tilewright.prepare(shape, graphs=...) before capturing")
                self._graphs[key] = self._aside.pop()
            return self._graphs[key].addresses
        if not self._aside and len(self._graphs) < self._most_graphs and not self._device.info.arch.is_host:
            self.set_aside(1)
        found = self._streams.get(key[1])
        if found is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.popitem(last=False)
            found = self._streams[key[1]] = self._made(stream)
        elif len(self._streams) > 1:
            self._streams.move_to_end(key[1])
        return found.addresses

    def set_aside(self, count: int) -> None:
        """Have buffers ready for so many graphs: while one is captured nothing can be allocated."""
        stream = self._device.stream()
        while len(self._aside) < count:
            self._aside.append(self._made(stream))
        if self._zeroed:
            self._device.synchronize()  # a graph may run on any stream

    def _made(self, stream: int) -> Held:
        made = tuple(self._device.allocate(size, stream) for size in self._sizes)
        if self._zeroed:
            self._device.zero(made[0], self._zeroed, stream)
        return Held(made, self._addresses(made))

    def release(self) -> None:
        """Free all of it; graphs that were captured must not run any more."""
        self._streams.clear()
        self._graphs.clear()
        self._aside.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(self._sizes) * (len(self._streams) + len(self._graphs) + len(self._aside))
