"""CUDA graphs of kernels that have memory of their own: many graphs, on streams, as children, and freed memory."""

import ctypes
import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilewright
from stored import make
from tilewright.codegen.errors import CaptureError
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import device_of
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from variants import variant

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    import tilewright.torch as tilewright_torch

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # torch warns of its own parts

KERNELS = {
    "split-K": ("35x700x2048", "simt:32x32x16,split_k=8"),
    "stream-K": ("640x1280x2560", "simt:stream_k=1"),
    "packed": ("267x271x335", "simt:pack_a=1,load=cp_async"),
    "padded": ("267x271x335", "tiled:32,edge=pad"),
    "plain": ("128x96x64", "simt:64x32x16,thread=4x4"),
}
SLACK = 1 << 20
"""Bytes of device memory by which free memory may differ after graphs have ended."""


def whole(rows: int, cols: int, seed: int) -> Any:
    """Whole numbers from -8 to 8 on the GPU, all sums of which are exact."""
    values = np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols))
    return torch.tensor(values, dtype=torch.float32, device="cuda")


def shape_of(name: str) -> tuple[int, int, int]:
    problem = Problem.parse(KERNELS[name][0])
    return problem.m, problem.n, problem.k


@pytest.fixture
def use() -> Callable[[str], None]:
    """A function that stores a record by which one of KERNELS serves its shape."""

    def chosen(name: str) -> None:
        shape, text = KERNELS[name]
        device = device_of("cuda")
        record = make(1.0, Problem.parse(shape), variant(text), device.info.key)
        object.__setattr__(record, "versions", versions_of(device.info, device.compiler))
        Store().keep(record, replace=True)
        tilewright.clear()

    return chosen


class Ways:
    """Entry points for one product of torch tensors."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.loaded = tilewright.load(m, n, k, device="cuda")

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        tilewright.matmul(a, b, out=out)

    def load(self, a: Any, b: Any, out: Any) -> None:
        self.loaded(a, b, out=out)

    def op(self, a: Any, b: Any, out: Any) -> None:
        out.copy_(torch.ops.tilewright.matmul(a, b))


class Captured:
    """One graph of two products of one shape, on two streams of torch."""

    def __init__(self, way: Callable[[Any, Any, Any], None], shape: tuple[int, int, int], seed: int) -> None:
        m, n, k = shape
        self.operands = [(whole(m, k, seed + i), whole(k, n, seed + i)) for i in (0, 1)]
        self.results = [torch.full((m, n), torch.nan, device="cuda") for _ in (0, 1)]
        self.graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            way(*self.operands[0], self.results[0])
            with torch.cuda.stream(side):
                way(*self.operands[1], self.results[1])
            main.wait_stream(side)

    def replay(self) -> None:
        self.graph.replay()

    def right(self) -> bool:
        pairs = zip(self.operands, self.results, strict=True)
        return all(torch.equal(c.double(), a.double() @ b.double()) for (a, b), c in pairs)

    def spoil(self) -> None:
        for result in self.results:
            result.fill_(torch.nan)


class CapturedByCupy(Captured):
    """One graph of a product of CuPy arrays, which CuPy captures."""

    def __init__(self, shape: tuple[int, int, int], seed: int) -> None:
        m, n, k = shape
        self.operands = [(whole(m, k, seed), whole(k, n, seed))]
        self.results = [torch.full((m, n), torch.nan, device="cuda")]
        torch.cuda.synchronize()
        a, b, c = map(cupy.asarray, (*self.operands[0], self.results[0]))
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            tilewright.matmul(a, b, out=c)
            self.graph = stream.end_capture()

    def replay(self) -> None:
        self.graph.launch(cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream))


def free_bytes() -> int:
    """Free device memory after torch, CuPy and tilewright have freed what they can."""
    gc.collect()
    torch.cuda.synchronize()
    tilewright.memory()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    free: int = torch.cuda.mem_get_info()[0]
    return free


def check_twenty(ways: Ways, shape: tuple[int, int, int]) -> None:
    """Capture twenty graphs, replay them on two streams in turn, and check every result."""
    graphs = [Captured(getattr(ways, way), shape, 10 * i) for i, way in enumerate(("matmul", "load", "op"))]
    graphs += [CapturedByCupy(shape, 50 + i) for i in (0, 1)]
    graphs += [Captured(ways.matmul, shape, 60 + i) for i in range(15)]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(3):
        for each in graphs:
            each.spoil()
        torch.cuda.synchronize()
        for _ in range(10):
            for i, each in enumerate(graphs):
                with torch.cuda.stream(streams[i % 2]):
                    each.replay()
        torch.cuda.synchronize()
        assert all(each.right() for each in graphs)


@pytest.mark.parametrize("name", KERNELS)
def test_twenty_graphs(name: str, use: Callable[[str], None]) -> None:
    """Nothing is prepared beyond one product by each entry point. The driver keeps memory of its first graphs for
    later ones; the memory of further graphs is freed with them."""
    use(name)
    shape = m, n, k = shape_of(name)
    ways, out = Ways(m, n, k), torch.empty((m, n), device="cuda")
    for way in (ways.matmul, ways.load, ways.op):
        way(whole(m, k, 0), whole(k, n, 0), out)
    check_twenty(ways, shape)
    before = free_bytes()
    check_twenty(ways, shape)
    assert free_bytes() >= before - SLACK


def test_prepared_graphs_allocate_nothing(use: Callable[[str], None]) -> None:
    use("split-K")
    m, n, k = shape_of("split-K")
    kernel = tilewright.load(m, n, k, device="cuda")
    a, b, out = whole(m, k, 1), whole(k, n, 1), torch.empty((m, n), device="cuda")
    kernel(a, b, out=out)
    kernel.prepare(graphs=3)
    bytes_before = tilewright.memory().bytes
    graphs = []
    for _ in range(3):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            kernel(a, b, out=out)
    assert tilewright.memory().bytes == bytes_before
    for graph in graphs:
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out.double(), a.double() @ b.double())


@pytest.mark.parametrize("name", KERNELS)
def test_child_graphs_and_two_instances(name: str, use: Callable[[str], None]) -> None:
    """A graph within another one and two instances of one graph are launched again and again."""
    use(name)
    shape = m, n, k = shape_of(name)
    tilewright.matmul(whole(m, k, 0), whole(k, n, 0))
    captured, driver = CapturedByCupy(shape, 3), ctypes.CDLL("libcuda.so.1")
    graph, parent, node = ctypes.c_void_p(captured.graph.graph), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuGraphCreate(ctypes.byref(parent), 0) == 0
    for _ in range(2):
        last = ctypes.byref(node) if node else None
        after = (ctypes.c_void_p * 1)(node) if last else None
        child = ctypes.c_void_p()
        assert driver.cuGraphAddChildGraphNode(ctypes.byref(child), parent, after, int(bool(last)), graph) == 0
        node = child
    instances = []
    for each in (graph, graph, parent):
        instance = ctypes.c_void_p()
        assert driver.cuGraphInstantiateWithFlags(ctypes.byref(instance), each, ctypes.c_ulonglong(0)) == 0
        instances.append(instance)
    del captured.graph  # its memory must outlive it: instances and clones remain
    gc.collect()
    tilewright.memory()
    other = CapturedByCupy(shape, 4)
    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(5):
        for instance in instances:
            captured.spoil()
            other.spoil()
            assert driver.cuGraphLaunch(instance, ctypes.c_void_p(stream)) == 0
            other.replay()
            torch.cuda.synchronize()
            assert captured.right()
            assert other.right()
    for instance in instances:
        driver.cuGraphExecDestroy(instance)
    driver.cuGraphDestroy(parent)


def test_a_transposed_out_is_captured() -> None:
    m, n, k = shape_of("split-K")
    a, b, out = whole(m, k, 1), whole(k, n, 1), torch.empty((n, m), device="cuda").t()
    kernel = tilewright.load(m, n, k, device="cuda")
    remedy = "call the kernel once with such an `out` before"
    with pytest.raises(CaptureError, match=remedy), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernel(a, b, out=out)
    for way in (kernel, tilewright.matmul):
        way(a, b, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            way(a, b, out=out)
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out.double(), a.double() @ b.double())


def test_a_network_that_trains_with_less_overhead() -> None:
    torch.manual_seed(0)
    x = whole(48, 2048, 0) / 64

    def network(linear: Any) -> Any:
        return torch.nn.Sequential(linear(2048, 35), torch.nn.Tanh(), linear(35, 8)).cuda()

    model, plain = network(tilewright_torch.Linear), network(torch.nn.Linear)
    plain.load_state_dict(model.state_dict())
    losses: list[list[float]] = []
    for net in (torch.compile(model, mode="reduce-overhead"), plain):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        row: list[float] = []
        for _ in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            loss = net(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row.append(float(loss))
        losses.append(row)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_factor_on_the_gpu_is_refused_while_a_graph_is_captured() -> None:
    a, b, out = whole(16, 8, 0), whole(8, 24, 1), torch.zeros(16, 24, device="cuda")
    alpha = torch.tensor(2.0, device="cuda")
    tilewright.matmul(a, b, out=out, alpha=alpha)
    assert torch.equal(out, 2 * (a @ b))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match=r"alpha lies on a GPU, and cannot be .* captured: pass float\(alpha\)"):
            tilewright.matmul(a, b, out=out, alpha=alpha)
        tilewright.matmul(a, b, out=out, alpha=torch.tensor(3.0))
    graph.replay()
    assert torch.equal(out, 3 * (a @ b))
    left, right = cupy.asarray(a), cupy.asarray(b)
    factor = cupy.array(2.0)
    assert bool((tilewright.matmul(left, right, alpha=factor) == 2 * (left @ right)).all())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="alpha lies on a GPU"):
            tilewright.matmul(left, right, alpha=factor)
        stream.end_capture()
