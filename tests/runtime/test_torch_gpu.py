"""torch on a GPU: graphs, streams and devices. Tests that hold on the processor too are in test_torch.py."""

import warnings
from typing import Any

import numpy as np
import pytest
import tilewright
from tilewright.codegen.errors import CaptureError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    import tilewright.torch as tilewright_torch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # torch warns of its own parts

SPLIT = 16, 4096, 4096
"""m, n, k of a product that is split along k, and so needs a workspace."""
CYCLES = 20_000_000
"""Cycles of the GPU's clock, some 10 ms, for which a stream stands still; what does not wait for it reads too early."""
WAYS = {
    "tilewright.matmul": tilewright.matmul,
    "tilewright.torch.matmul": tilewright_torch.matmul,
    "the op": torch.ops.tilewright.matmul,
}
each_way = pytest.mark.parametrize("way", WAYS)


def whole(rows: int, cols: int, seed: int = 0, device: str = "cuda") -> Any:
    """Whole numbers from -8 to 8, all sums of which are exact."""
    values = np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols))
    return torch.tensor(values, dtype=torch.float32, device=device)


def right(a: Any, b: Any, got: Any) -> bool:
    return torch.equal(got.double(), a.double() @ b.double())


@each_way
@pytest.mark.parametrize("shape", [(128, 96, 64), (37, 53, 29), SPLIT], ids=str)
def test_a_captured_product_is_replayed(shape: tuple[int, int, int], way: str) -> None:
    m, n, k = shape
    a, b = whole(m, k), whole(k, n)
    WAYS[way](a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = WAYS[way](a, b)
    for seed in (1, 2, 3):
        a.copy_(whole(m, k, seed))
        b.copy_(whole(k, n, seed))
        c.fill_(torch.nan)
        graph.replay()
        assert right(a, b, c)


@each_way
def test_what_was_not_prepared_is_not_captured(way: str) -> None:
    a, b = whole(41, 43), whole(43, 47)
    tilewright.clear()
    with pytest.raises(CaptureError, match=r"tilewright\.prepare"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        WAYS[way](a, b)
    tilewright.prepare((41, 47, 43), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = WAYS[way](a, b)
    graph.replay()
    assert right(a, b, c)


def test_graphs_at_once_do_not_share_their_memory() -> None:
    m, n, k = SPLIT
    tilewright.prepare(SPLIT, device="cuda", graphs=2)
    operands = [(whole(m, k, seed), whole(k, n, seed)) for seed in (1, 2)]
    graphs, results = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()], []
    for graph, (a, b) in zip(graphs, operands, strict=True):
        tilewright.matmul(a, b)
        with torch.cuda.graph(graph):
            results.append(tilewright.matmul(a, b))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for _ in range(20):
        for result in results:
            result.fill_(torch.nan)
        torch.cuda.synchronize()
        for _ in range(50):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for (a, b), result in zip(operands, results, strict=True):
            assert right(a, b, result)


def test_a_graph_and_eager_products_at_once() -> None:
    m, n, k = SPLIT
    a, b, other = whole(m, k, 1), whole(k, n, 1), whole(m, k, 2)
    tilewright.matmul(a, b)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        c = tilewright.matmul(a, b)
    torch.cuda.synchronize()
    eager = []
    for _ in range(50):
        with torch.cuda.stream(stream):
            graph.replay()
        eager.append(tilewright.matmul(other, b))
    torch.cuda.synchronize()
    assert right(a, b, c)
    assert all(right(other, b, each) for each in eager)


def network() -> Any:
    torch.manual_seed(0)
    layers = tilewright_torch.Linear(32, 64), torch.nn.Tanh(), tilewright_torch.Linear(64, 8)
    return torch.nn.Sequential(*layers).cuda()


def test_a_network_captured_with_its_gradients() -> None:
    plain, x = network(), whole(48, 32) / 8
    graphed = torch.cuda.make_graphed_callables(network(), (torch.zeros_like(x),))
    for scale in (1.0, 0.5):
        results = []
        for module in (plain, graphed):
            module.zero_grad()
            got = module(scale * x)
            got.pow(2).sum().backward()
            results.append([got.detach().clone(), *(each.grad.clone() for each in module.parameters())])
        torch.testing.assert_close(*results)


def test_compiled_with_less_overhead() -> None:
    plain, x = network(), whole(48, 32) / 8
    compiled = torch.compile(plain, fullgraph=True, mode="reduce-overhead")
    for scale in (1.0, 0.5, 0.25, 2.0):  # the second call warms up, the third captures
        plain.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(scale * x)
        got.pow(2).sum().backward()
        results = [got.detach().clone(), *(each.grad.clone() for each in plain.parameters())]
        plain.zero_grad()
        expected = plain(scale * x)
        expected.pow(2).sum().backward()
        torch.testing.assert_close(results, [expected.detach(), *(each.grad for each in plain.parameters())])


@each_way
@pytest.mark.parametrize("shape", [(128, 96, 64), SPLIT], ids=str)
def test_work_is_put_on_the_current_stream(shape: tuple[int, int, int], way: str) -> None:
    m, n, k = shape
    first, second, b = whole(m, k, 1), whole(m, k, 2), whole(k, n)
    a = first.clone()
    WAYS[way](a, b)
    torch.cuda.synchronize()
    for _ in range(3):
        a.copy_(first)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            a.copy_(second)
            c = WAYS[way](a, b)  # on another stream it would read the first
        stream.synchronize()
        assert right(second, b, c)


def test_gradients_are_computed_on_the_stream_of_the_product() -> None:
    a, b, grad = whole(48, 32).requires_grad_(), whole(32, 64).requires_grad_(), whole(48, 64)
    tilewright_torch.matmul(a, b).backward(grad)
    a.grad = b.grad = None
    stream = torch.cuda.Stream()
    late = torch.zeros_like(grad)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        c = tilewright_torch.matmul(a, b)
        torch.cuda._sleep(CYCLES)
        late.copy_(grad)
        c.backward(late)
    stream.synchronize()
    assert torch.equal(a.grad, grad @ b.detach().t())
    assert torch.equal(b.grad, a.detach().t() @ grad)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@each_way
def test_two_devices(way: str) -> None:
    with torch.cuda.device(0):
        for index in (1, 0, 1):
            device = f"cuda:{index}"
            a, b = whole(37, 29, index, device).requires_grad_(), whole(29, 53, index, device)
            c = WAYS[way](a, b)
            assert c.device == torch.device(device)
            assert right(a.detach(), b, c.detach())
            c.sum().backward()
            assert torch.equal(a.grad, b.sum(1).expand(37, 29))
            assert torch.cuda.current_device() == 0
        with pytest.raises(ValueError, match="cuda:1"):
            WAYS[way](whole(37, 29), whole(29, 53, device="cuda:1"))
