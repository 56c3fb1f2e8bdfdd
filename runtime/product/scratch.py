"""Working memory of a kernel's launches: partial sums, counters, copies of operands."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..device.protocol import Buffer, Device

_MOST_STREAMS = 16
"""Most streams whose memory a kernel keeps; past it the set of the least recently used stream is freed."""

ArgumentsOf = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Returns the arguments of launches from the addresses of a set's buffers, those of the counters last."""


@dataclass(frozen=True, slots=True)
class Set:
    """The buffers of launches that follow each other."""

    buffers: tuple[Buffer, ...]
    arguments: tuple[int, ...]
    """Arguments by which kernels find the buffers; empty where the set holds the counters alone."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A set that belongs to a graph until the graph has ended."""

    set: Set
    ended: Callable[[], bool]
    """Returns whether the graph, its clones and its instances are destroyed."""
    prepared: bool
    """Whether `set_aside` made the set, which serves another graph after this one."""


class Scratch:
    """Buffers of one kernel: a set for each stream, and one for each stream of each graph that captures the kernel, as
    graphs may run at once.

    A graph takes a set that `set_aside` prepared. Without one, torch's allocator gives memory from the graph's own pool
    where torch captures, and the driver gives memory for the life of the graph where another library captures. Counters
    are never in torch's pool, whose blocks serve other kernels of the graph: every kernel leaves its counters 0, so
    they are 0 at each replay. Not safe between threads: the caller holds a lock.
    """

    def __init__(self, device: Device, sizes: tuple[int, ...], counter_bytes: int, addresses: ArgumentsOf) -> None:
        """`sizes` are the bytes of buffers with any contents. The counters, `counter_bytes` in all, are 0 before the
        first launch."""
        self._device, self._sizes, self._counter_bytes, self._addresses = device, sizes, counter_bytes, addresses
        self._streams: OrderedDict[int, Set] = OrderedDict()
        self._graphs: dict[tuple[int, int], Lease] = {}
        self._aside: list[Set] = []

    def at(self, stream: int, capturing: bool) -> tuple[int, ...]:
        """The arguments for a launch on a stream. Raises LaunchError where there is too little memory."""
        if capturing:
            return self._in_graph(stream)
        _, key = self._device.identity(stream, False)
        current = self._streams.get(key)
        if current is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.popitem(last=False)
            current = self._streams[key] = self._pooled(stream)
        elif len(self._streams) > 1:
            self._streams.move_to_end(key)
        return current.arguments

    def _in_graph(self, stream: int) -> tuple[int, ...]:
        from .torch_pool import torch_pool  # few programs capture graphs

        graph, _ = key = self._device.identity(stream, True)
        lease, pool = self._graphs.get(key), None
        if lease is None or not lease.set.arguments:
            pool = None if self._aside and lease is None else torch_pool(self._device, stream, graph)
        if lease is None:
            self._end_leases()
            lease = self._graphs[key] = self._leased(stream, pool is not None)
        if lease.set.arguments:
            return lease.set.arguments
        assert pool is not None
        # The pool gives a block that is free again only to work that is put on this stream later.
        blocks = [pool(size) for size in self._sizes]
        return self._addresses((*(block.data_ptr() for block in blocks), *(b.pointer for b in lease.set.buffers)))

    def _leased(self, stream: int, pooled: bool) -> Lease:
        ended = self._device.end_of_graph(stream)
        if self._aside:
            return Lease(self._aside.pop(), ended, True)
        sizes = () if pooled else self._sizes
        buffers = tuple(self._device.graph_memory(size, False) for size in sizes)
        if self._counter_bytes:
            buffers += (self._device.graph_memory(self._counter_bytes, True),)
        arguments = () if pooled else self._addresses(tuple(buffer.pointer for buffer in buffers))
        return Lease(Set(buffers, arguments), ended, False)

    def _end_leases(self) -> None:
        """Take back the sets of graphs that have ended: prepared ones serve again, the others are freed."""
        ended = {key: lease for key, lease in self._graphs.items() if lease.ended()}
        self._graphs = {key: lease for key, lease in self._graphs.items() if key not in ended}
        self._aside += [lease.set for lease in ended.values() if lease.prepared]

    def set_aside(self, count: int) -> None:
        """Make sets ready, so that `count` graphs are captured without allocating."""
        stream = self._device.stream()
        self._end_leases()
        while len(self._aside) < count:
            self._aside.append(self._pooled(stream))
        self._device.synchronize()  # a graph may run on any stream

    def _pooled(self, stream: int) -> Set:
        """A set in the array library's memory, for work on a stream."""
        buffers = tuple(self._device.allocate(size, stream) for size in self._sizes)
        if self._counter_bytes:
            counters = self._device.allocate(self._counter_bytes, stream)
            self._device.zero(counters, self._counter_bytes, stream)
            buffers += (counters,)
        return Set(buffers, self._addresses(tuple(buffer.pointer for buffer in buffers)))

    def release(self) -> None:
        """Free all sets; graphs that were captured must not run any more."""
        self._streams.clear()
        self._graphs.clear()
        self._aside.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held, without torch's pools. The sets of graphs that have ended are freed first."""
        self._end_leases()
        sets = [*self._streams.values(), *(lease.set for lease in self._graphs.values()), *self._aside]
        return sum(buffer.nbytes for each in sets for buffer in each.buffers)
