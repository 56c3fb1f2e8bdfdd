"""`tilewright.torch`: the op, its gradients and what compiles it, on the processor and, marked gpu, on a GPU."""

import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilewright
from counted import check_calls
from tilewright.codegen.errors import (
    ArgumentTypeError,
    DeviceError,
    DeviceMismatchError,
    LayoutError,
    ShapeError,
    TilewrightError,
)
from tilewright.runtime.device.detect import device_of
from tilewright.runtime.product import matmul as matmul_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    import tilewright.torch as tilewright_torch
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.func import functional_call, grad, jacrev, jvp, stack_module_state
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch_functions import BATCHED, TRANSFORMS, Inputs

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of its own parts

ROOT = Path(tilewright.__file__).resolve().parent
OP = torch.ops.tilewright.matmul
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1))[..., 1:-1, 3:-2],
    "stepped": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}
"""Layouts of a matrix or a stack in memory; kernels take the last one only as a copy."""
WAYS = {
    "tilewright.torch.matmul": tilewright_torch.matmul,
    "the op": lambda a, b, alpha=1.0: OP(a, b, alpha),
    "tilewright.matmul": tilewright.matmul,
}
RANKS = (
    ((5, 3, 4), (5, 4, 2)),
    ((2, 5, 3, 4), (4, 2)),
    ((3, 4), (5, 4, 2)),
    ((3, 4), (5, 4, 1)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((2, 5, 3, 4), (5, 4, 2)),
    ((2, 5, 3, 4), (2, 1, 4, 2)),
    ((2, 3, 2, 3, 4), (3, 1, 4, 2)),
    ((3, 4), (1, 4, 2)),
    ((4,), (4,)),
    ((4,), (2, 5, 4, 2)),
    ((5, 3, 4), (4,)),
)
"""Shapes of products of vectors and stacks, broadcast and not."""
EMPTY = (((0, 3, 4), (4, 2)), ((2, 0, 4), (2, 4, 2)), ((5, 3, 0), (0, 2)), ((0,), (0,)))


TRACED = {
    "real": ("grad", "jacrev", "jvp", "vmap of grad", "vmap of vjp", "vmap in chunks", "functionalize"),
    "fake": ("grad", "jacrev", "jvp", "vmap of grad", "vmap of vjp", "vmap in chunks", "functionalize"),
    "symbolic": ("jacrev",),
    "real, before dispatch": (),
}
"""Transforms that are traced as well, by the mode of tracing. torch 2.11 does not trace its own `jacfwd`, and before
dispatch it traces none."""


class Seen(TorchDispatchMode):  # type: ignore[misc]
    """Notes the ops that are run within it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class Products:
    """Tests of tensors on any device, which a subclass names."""

    device: str
    backend: str

    def whole(self, rows: int, cols: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
        """Whole numbers from -8 to 8, all sums of which are exact."""
        values = np.random.default_rng((seed, rows, cols)).integers(-8, 9, (rows, cols))
        return torch.tensor(values, dtype=dtype, device=self.device)

    def stack(self, *shape: int, seed: int = 0) -> Any:
        """A stack of such matrices, or such a vector, in double."""
        return self.whole(math.prod(shape[:-1]), shape[-1], torch.float64, seed).reshape(shape)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_opcheck(self, layout: str, dtype: Any) -> None:
        a, b = (LAYOUTS[layout](each) for each in (self.whole(5, 7, dtype), self.whole(7, 6, dtype)))
        torch.library.opcheck(OP.default, (a, b))
        tracked = a.detach().requires_grad_(), b.detach().requires_grad_()
        torch.library.opcheck(OP.default, (*tracked, 0.5))

    @pytest.mark.parametrize(("of_a", "of_b"), [((2, 5, 3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (5, 4, 2))])
    def test_opcheck_of_stacks(self, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
        torch.library.opcheck(OP.default, tuple(self.stack(*shape).requires_grad_() for shape in (of_a, of_b)))

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(("of_a", "of_b"), [*RANKS, *EMPTY])
    def test_any_rank_is_that_of_torch(self, of_a: tuple[int, ...], of_b: tuple[int, ...], way: str) -> None:
        operands = self.stack(*of_a).requires_grad_(), self.stack(*of_b).requires_grad_()
        got, expected = WAYS[way](*operands), torch.matmul(*operands)
        assert torch.equal(got, expected)
        grad = self.stack(1, got.numel()).reshape(got.shape)
        grads, expected_grads = (torch.autograd.grad(each, operands, grad) for each in (got, expected))
        assert [each.shape for each in grads] == [of_a, of_b]
        assert all(map(torch.equal, grads, expected_grads))

    @pytest.mark.parametrize(("of_a", "of_b"), [*RANKS, *EMPTY])
    def test_any_rank_in_every_layout(self, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
        for layout in LAYOUTS.values():
            a, b = (x if x.dim() == 1 else layout(x) for x in (self.stack(*of_a), self.stack(*of_b)))
            got = OP(a, b, 0.5)
            assert torch.equal(got, 0.5 * torch.matmul(a, b))
            with FakeTensorMode() as mode:
                fake = OP(mode.from_tensor(a), mode.from_tensor(b))
            assert (got.shape, got.stride()) == (fake.shape, fake.stride())
            assert got.is_contiguous()

    @pytest.mark.parametrize(("of_a", "of_b"), RANKS)
    def test_gradients_of_stacks_of_first_and_second_order(self, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
        a, b = (torch.randn(of, dtype=torch.float64, device=self.device, requires_grad=True) for of in (of_a, of_b))
        product = partial(tilewright_torch.matmul, alpha=0.5)
        checks = {"fast_mode": True, "check_batched_grad": True}
        assert torch.autograd.gradcheck(product, (a, b), check_forward_ad=True, **checks)
        assert torch.autograd.gradgradcheck(product, (a, b), check_fwd_over_rev=True, **checks)

    def test_a_gradient_sums_in_its_product_where_that_takes_less_memory(self, products: list[tuple[Any, Any]]) -> None:
        """Rows of a stack are rows of one product, without a copy; otherwise the products of the stack are summed."""
        for of_a, of_b, shapes in (
            ((2, 5, 3, 4), (4, 2), [((2, 5, 3, 2), (2, 4)), ((4, 30), (30, 2))]),
            ((2, 5, 3, 4), (2, 1, 4, 2), [((2, 5, 3, 2), (2, 1, 2, 4)), ((2, 4, 15), (2, 15, 2))]),
            ((5, 3, 4), (4,), [((5, 3, 1), (1, 4)), ((4, 15), (15, 1))]),
            ((3, 4), (5, 4, 1), [((3, 5), (5, 4)), ((4, 3), (5, 3, 1))]),
            ((3, 4), (5, 4, 7), [((5, 3, 7), (5, 7, 4)), ((4, 3), (5, 3, 7))]),
            ((2, 5, 3, 4), (5, 4, 2), [((2, 5, 3, 2), (5, 2, 4)), ((2, 5, 4, 3), (2, 5, 3, 2))]),
        ):
            a, b = self.stack(*of_a).requires_grad_(), self.stack(*of_b).requires_grad_()
            grad = self.stack(*torch.matmul(a, b).shape)
            result = tilewright_torch.matmul(a, b)
            products.clear()
            result.backward(grad)
            assert [(left.shape, right.shape) for left, right in products] == shapes
            (left, of_left), (of_right, right) = products
            assert {each.data_ptr() for each in (of_right, of_left)} == {a.data_ptr(), b.data_ptr()}
            assert {each.data_ptr() for each in (left, right)} == {grad.data_ptr()}

    def groups(self, ragged: str) -> tuple[Any, Any, Any]:
        """Operands of grouped products in double, and offsets of an empty group, two others and rows of none."""
        shapes = ((12, 5), (3, 5, 6)) if ragged == "m" else ((5, 12), (12, 6))
        a, b = (self.stack(*shape).requires_grad_() for shape in shapes)
        return a, b, torch.tensor([4, 4, 10], dtype=torch.int32, device=self.device)

    @pytest.mark.parametrize("ragged", ["m", "k"])
    def test_grouped_products_and_their_gradients(self, ragged: str) -> None:
        a, b, offsets = self.groups(ragged)
        products = partial(tilewright_torch.grouped_matmul, offsets=offsets, alpha=0.5)
        ends = [0, *offsets.tolist()]
        if ragged == "m":
            parts = [a[begin:end] @ b[i] for i, (begin, end) in enumerate(pairwise(ends))]
            expected = 0.5 * torch.cat([*parts, torch.zeros(2, 6, dtype=a.dtype, device=self.device)])
        else:
            expected = 0.5 * torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in pairwise(ends)])
        for way in (tilewright_torch.grouped_matmul, tilewright.grouped_matmul, torch.ops.tilewright.grouped_matmul):
            got = way(a, b, offsets, alpha=0.5)
            assert torch.equal(got, expected)
            grad = self.stack(1, got.numel()).reshape(got.shape)
            ours, theirs = (torch.autograd.grad(each, (a, b), grad, retain_graph=True) for each in (got, expected))
            assert all(map(torch.equal, ours, theirs))
        assert torch.autograd.gradcheck(products, (a, b), fast_mode=True)
        assert torch.autograd.gradgradcheck(products, (a, b), fast_mode=True)

    @pytest.mark.parametrize("ragged", ["m", "k"])
    @pytest.mark.parametrize("way", [tilewright_torch.grouped_matmul, tilewright.grouped_matmul])
    def test_grouped_products_are_transformed(self, ragged: str, way: Any) -> None:
        a, b, offsets = self.groups(ragged)
        a, b = a.detach(), b.detach()
        tangents, ends = (self.stack(*a.shape), self.stack(*b.shape)), [0, *offsets.tolist()]

        def ours(a: Any, b: Any) -> Any:
            return way(a, b, offsets)

        def reference(a: Any, b: Any) -> Any:
            if ragged == "k":
                return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in pairwise(ends)])
            parts = [a[begin:end] @ b[i] for i, (begin, end) in enumerate(pairwise(ends))]
            return torch.cat([*parts, a[10:] @ b[0] * 0])

        def cubed(f: Any) -> Any:
            return lambda a: f(a, b).pow(3).sum()

        transforms = {
            "jvp": lambda f: torch.func.jvp(f, (a, b), tangents)[1],
            "linearize": lambda f: torch.func.linearize(f, a, b)[1](*tangents),
            "vjp": lambda f: torch.func.vjp(f, a, b)[1](reference(*tangents))[1],
            "grad": lambda f: torch.func.grad(cubed(f))(a),
            "hessian": lambda f: torch.func.hessian(cubed(f))(a),
            "jacrev": lambda f: torch.func.jacrev(f, argnums=1)(a, b),
            "vmap": lambda f: torch.vmap(f, in_dims=(0, None))(torch.stack([a, 2 * a]), b),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it maps the op by a loop
            for name, transform in transforms.items():
                assert torch.allclose(transform(ours), transform(reference)), name
            mapped = torch.vmap(lambda ends: way(a, b, ends))(offsets.repeat(3, 1))
            assert torch.equal(mapped[2], ours(a, b))
        with forward_ad.dual_level():
            dual = way(forward_ad.make_dual(a, tangents[0]), b, offsets)
            assert torch.allclose(forward_ad.unpack_dual(dual).tangent, reference(tangents[0], b))

    def test_what_is_no_tensor_is_named(self) -> None:
        a, b, offsets = (each.detach() for each in self.groups("m"))
        advice = r"must be a torch.Tensor, got \w+: pass torch.as_tensor"
        for args in ((a, b, offsets.tolist()), (a, b, offsets.cpu().numpy()), (a, None, offsets), ([1.0], b, offsets)):
            with pytest.raises(ArgumentTypeError, match=advice):
                tilewright_torch.grouped_matmul(*args)
        for args in ((a, None), ([1.0], a), (a, b.cpu().numpy())):
            with pytest.raises(ArgumentTypeError, match=advice):
                tilewright_torch.matmul(*args)
        tracked = a.clone().requires_grad_()
        for args in ((tracked, b, offsets.cpu().numpy()), (a, b.cpu().numpy(), offsets)):
            of_libraries = r"a is a Tensor and (b|offsets) a ndarray: convert"
            with pytest.raises(
                (ArgumentTypeError, DeviceMismatchError), match=rf"{of_libraries}|a is on cuda:0, b on host: copy one"
            ):
                tilewright.grouped_matmul(*args)
        with pytest.raises(ArgumentTypeError, match="offsets must be on the processor or a GPU, got meta"):
            tilewright.grouped_matmul(a, b, offsets.to("meta"))

    @pytest.mark.parametrize("ragged", ["m", "k"])
    def test_grouped_products_are_traced(self, ragged: str) -> None:
        a, b, offsets = self.groups(ragged)
        torch.library.opcheck(torch.ops.tilewright.grouped_matmul.default, (a, b, offsets))
        compiled = torch.compile(
            lambda *x: 2 * tilewright_torch.grouped_matmul(*x), backend="aot_eager", fullgraph=True
        )
        got = compiled(a, b, offsets)
        assert torch.equal(got, 2 * tilewright_torch.grouped_matmul(a, b, offsets))
        (of_a,) = torch.autograd.grad(got.sum(), a)
        assert torch.equal(of_a, torch.autograd.grad(2 * tilewright_torch.grouped_matmul(a, b, offsets).sum(), a)[0])
        with FakeTensorMode() as mode:
            fake = tilewright_torch.grouped_matmul(*map(mode.from_tensor, (a, b, offsets)))
        assert (fake.shape, fake.stride()) == (got.shape, got.stride())

    def test_grouped_products_of_views(self) -> None:
        a, b, offsets = self.groups("m")
        expected = tilewright_torch.grouped_matmul(a, b, offsets)
        with torch.no_grad():
            for of_a in LAYOUTS.values():
                assert torch.equal(tilewright_torch.grouped_matmul(of_a(a), b, offsets), expected)
        with pytest.raises(ArgumentTypeError, match="offsets must be int32, got int64"):
            tilewright_torch.grouped_matmul(a.detach(), b.detach(), offsets.long())

    @pytest.mark.parametrize("way", WAYS)
    def test_results_and_their_layout(self, way: str) -> None:
        for dtype in (torch.float32, torch.float64):
            a, b = self.whole(5, 7, dtype), self.whole(7, 6, dtype)
            for of_a in LAYOUTS.values():
                for of_b in LAYOUTS.values():
                    left, right = of_a(a), of_b(b)
                    if way == "tilewright.matmul":  # it copies only where copy= says so
                        got = tilewright.matmul(left, right, alpha=0.5, copy="if-needed")
                    else:
                        got = WAYS[way](left, right, alpha=0.5)
                    assert (got.shape, got.stride(), got.dtype, got.device) == ((5, 6), (6, 1), dtype, a.device)
                    assert torch.equal(got, 0.5 * (a @ b))

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_fake_kernel_agrees_with_the_real_one(self, layout: str) -> None:
        a, b = (LAYOUTS[layout](each) for each in (self.whole(5, 7), self.whole(7, 6)))
        real = OP(a, b)
        with FakeTensorMode() as mode:
            fakes = mode.from_tensor(a), mode.from_tensor(b)
            for fake in (OP(*fakes), tilewright_torch.matmul(*fakes)):
                assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
                assert fake.device == real.device
        meta = OP(a.to("meta"), b.to("meta"))
        assert (meta.shape, meta.stride()) == (real.shape, real.stride())

    @pytest.mark.parametrize("way", WAYS)
    def test_gradients_of_first_and_second_order(self, way: str) -> None:
        a = torch.randn(4, 5, dtype=torch.float64, device=self.device, requires_grad=True)
        b = torch.randn(3, 5, dtype=torch.float64, device=self.device, requires_grad=True)

        def product(a: Any, b: Any) -> Any:
            return WAYS[way](a, b.t(), alpha=0.5)

        checks = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
        assert torch.autograd.gradcheck(product, (a, b), **checks)
        assert torch.autograd.gradgradcheck(product, (a, b), check_batched_grad=True, check_fwd_over_rev=True)
        assert torch.autograd.gradcheck(product, (a, b.detach()))

    @pytest.fixture
    def products(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
        """The operands with which the library is called."""
        operands: list[tuple[Any, Any]] = []
        product = tilewright._library.product

        def noted(a: Any, b: Any, *options: Any) -> Any:
            operands.append((a, b))
            return product(a, b, *options)

        monkeypatch.setattr(tilewright._library, "product", noted)
        return operands

    def test_only_required_gradients_are_computed(self, products: list[tuple[Any, Any]]) -> None:
        a, b = self.whole(5, 7), self.whole(7, 6)
        for left, right, backward in (
            (a, b.clone().requires_grad_(), [(7, 6, 5)]),
            (a.clone().requires_grad_(), b, [(5, 7, 6)]),
            (a.clone().requires_grad_(), b.clone().requires_grad_(), [(5, 7, 6), (7, 6, 5)]),
        ):
            products.clear()
            tilewright_torch.matmul(left, right).backward(self.whole(5, 6))
            assert [(*x.shape[:1], y.shape[1], x.shape[1]) for x, y in products] == [(5, 6, 7), *backward]

    def test_options_reach_every_product(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Accuracy and `vendor` reach the product and both gradients, however they are called."""
        seen: list[tuple[Any, ...]] = []
        product = tilewright._library.product

        def noted(*arguments: Any, **options: Any) -> Any:
            seen.append((arguments[5], arguments[8]))
            return product(*arguments, **options)

        monkeypatch.setattr(tilewright._library, "product", noted)
        for call in (
            lambda a, b: tilewright_torch.matmul(a, b, accuracy="normwise", vendor="never"),
            lambda a, b: OP(a, b, 1.0, "normwise", "never"),
            lambda a, b: tilewright.matmul(a, b, accuracy="normwise", vendor="never"),
            lambda a, b: torch.vmap(lambda *ab: OP(*ab, 1.0, "normwise", "never"))(a[None], b[None])[0],
            lambda a, b: torch.vmap(lambda a: tilewright.matmul(a, b, accuracy="normwise", vendor="never"))(a[None])[0],
            lambda a, b: torch.vmap(lambda a: OP(a, b, 1.0, "normwise", "never"))(a[None])[0],
            lambda a, b: torch.vmap(lambda b: OP(a, b, 1.0, "normwise", "never"))(b[None])[0],
            lambda a, b: jvp(lambda *operands: OP(*operands, 1.0, "normwise", "never"), (a, b), (a, b))[1],
        ):
            a, b = (self.whole(*shape).requires_grad_() for shape in ((5, 7), (7, 6)))
            seen.clear()
            call(a, b).backward(self.whole(5, 6))
            assert set(seen) == {("normwise", "never")}
            assert len(seen) >= 3

    @pytest.mark.parametrize("way", WAYS)
    def test_parameters_get_gradients(self, way: str) -> None:
        a, b = torch.nn.Parameter(self.whole(5, 7)), torch.nn.Parameter(self.whole(7, 6))
        grad = self.whole(5, 6)
        got = WAYS[way](a, b)
        assert type(got) is torch.Tensor
        assert got.requires_grad
        got.backward(grad)
        assert torch.equal(a.grad, grad @ b.detach().t())
        assert torch.equal(b.grad, a.detach().t() @ grad)
        with torch.no_grad():
            assert not WAYS[way](a, b).requires_grad
        with torch.inference_mode():
            assert torch.equal(WAYS[way](a, b), got)

    def test_gradients_lie_as_their_parameters(self) -> None:
        a, b, grad = self.whole(5, 7), self.whole(7, 6), self.whole(5, 6)
        for of_a in ("plain", "transposed"):
            for of_b in ("plain", "transposed"):
                left, right = LAYOUTS[of_a](a).requires_grad_(), LAYOUTS[of_b](b).requires_grad_()
                results = torch.autograd.grad(tilewright_torch.matmul(left, right, alpha=0.5), (left, right), grad)
                assert [each.stride() for each in results] == [left.stride(), right.stride()]
                assert torch.equal(results[0], 0.5 * (grad @ b.t()))
                assert torch.equal(results[1], 0.5 * (a.t() @ grad))

    def test_an_operand_that_was_overwritten_is_noticed(self) -> None:
        a, b = self.whole(5, 7).requires_grad_(), self.whole(7, 6)
        got = tilewright_torch.matmul(a, b)
        b.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            got.sum().backward()

    def test_the_direct_path_goes_past_the_dispatcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = self.whole(5, 7), self.whole(7, 6)
        with Seen() as seen:
            assert torch.equal(tilewright_torch.matmul(a, b), a @ b)
        assert "tilewright.matmul.default" in seen.ops
        monkeypatch.setattr(tilewright_torch, "_op", None)
        assert torch.equal(tilewright_torch.matmul(a, b), a @ b)
        with torch.no_grad():
            assert torch.equal(tilewright_torch.matmul(a.requires_grad_(), b), a @ b)
        tilewright_torch.matmul(a, b).sum().backward()
        assert torch.equal(a.grad, b.sum(1).expand(5, 7))

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiled_as_one_graph(self, dynamic: bool) -> None:
        def layer(a: Any, b: Any) -> Any:
            return torch.relu(tilewright_torch.matmul(a.sin(), b.t(), alpha=0.5)) + OP(a, b.t())

        compiled = torch.compile(layer, fullgraph=True, backend=self.backend, dynamic=dynamic)
        for m in (4, 9) if dynamic else (4,):
            a, b = self.whole(m, 7).requires_grad_(), self.whole(6, 7).requires_grad_()
            got, expected = compiled(a, b), layer(a, b)
            torch.testing.assert_close(got, expected)
            grad = self.whole(m, 6)
            results = torch.autograd.grad(got, (a, b), grad), torch.autograd.grad(expected, (a, b), grad)
            torch.testing.assert_close(*results)
            with torch.no_grad():
                torch.testing.assert_close(compiled(a, b), expected)

    def test_stacks_compiled_as_one_graph(self) -> None:
        def layer(a: Any, b: Any, rows: Any) -> Any:
            return tilewright_torch.matmul(torch.relu(tilewright_torch.matmul(a.sin(), b.mT)), rows)

        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True, backend=self.backend, dynamic=True)
        for count, m in ((2, 4), (3, 9)):
            operands = self.stack(count, 1, m, 7), self.stack(6, 7), self.stack(count, 5, 6, 3)
            operands = tuple(each.requires_grad_() for each in operands)
            got, expected = compiled(*operands), layer(*operands)
            torch.testing.assert_close(got, expected)
            grad = self.stack(*got.shape)
            results = [torch.autograd.grad(each, operands, grad) for each in (got, expected)]
            torch.testing.assert_close(*results)

    def test_exported(self) -> None:
        a, b = self.whole(5, 7), torch.nn.Linear(7, 6)
        network = tilewright_torch.Linear(7, 6).to(self.device)
        network.load_state_dict(b.state_dict())
        exported = torch.export.export(network, (a,))
        assert "torch.ops.tilewright.matmul.default" in exported.graph_module.code
        torch.testing.assert_close(exported.module()(a), network(a))

    def test_functional_transforms(self) -> None:
        a, b = self.whole(5, 7), self.whole(7, 6)
        of_a, of_b = torch.func.grad(lambda a, b: tilewright_torch.matmul(a, b).sum(), (0, 1))(a, b)
        assert torch.equal(of_a, b.sum(1).expand(5, 7))
        assert torch.equal(of_b, a.sum(0)[:, None].expand(7, 6))
        stack = torch.stack([a, 2 * a])
        assert torch.equal(torch.vmap(tilewright_torch.matmul, (0, None))(stack, b), stack @ b)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("name", BATCHED)
    def test_batched_gradients_are_those_of_mm(self, name: str, way: str) -> None:
        operands = self.operands()
        torch.testing.assert_close(BATCHED[name](WAYS[way], operands), BATCHED[name](torch.mm, operands))

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_transforms_are_those_of_mm(self, name: str, way: str) -> None:
        operands = self.operands()
        torch.testing.assert_close(TRANSFORMS[name](WAYS[way], operands), TRANSFORMS[name](torch.mm, operands))

    @pytest.mark.parametrize("mode", TRACED)
    def test_traces_hold_the_op(self, mode: str) -> None:
        """No operand becomes a constant while it is traced: the graph is right for other matrices."""
        tracing, _, before = mode.partition(", ")
        ways = [way for way in WAYS if tracing == "real" or way != "tilewright.matmul"]
        for way in ways:
            for name in TRACED[mode]:
                self.check_trace(partial(TRANSFORMS[name], WAYS[way]), partial(TRANSFORMS[name], torch.mm), tracing)
            product = partial(lambda way, x: WAYS[way](x.a, x.b), way)
            self.check_trace(product, lambda x: x.a @ x.b, tracing, pre_dispatch=bool(before))
            stacks = partial(lambda way, x: WAYS[way](x.stack_a, x.b) + WAYS[way](x.stack_a, x.stack_b), way)
            self.check_trace(stacks, lambda x: x.stack_a @ x.b + x.stack_a @ x.stack_b, tracing)

    def check_trace(self, function: Any, expected: Any, mode: str, **options: Any) -> None:
        fields = [vars(self.operands(seed)).values() for seed in (0, 1)]
        graph = make_fx(lambda *tensors: function(Inputs(*tensors)), tracing_mode=mode, **options)(*fields[0])
        assert OP.default in {node.target for node in graph.graph.nodes}
        torch.testing.assert_close(graph(*fields[1]), expected(Inputs(*fields[1])))

    @pytest.mark.parametrize("name", ["jacrev", "jvp", "vmap of grad", "dual"])
    def test_compiled_transforms(self, name: str) -> None:
        def dual(product: Any, x: Inputs) -> Any:
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(product(forward_ad.make_dual(x.a, 2 * x.a), x.b)).tangent

        function = TRANSFORMS.get(name, dual)
        torch.compiler.reset()
        compiled = torch.compile(partial(function, tilewright_torch.matmul), backend=self.backend, fullgraph=True)
        operands = self.operands()
        torch.testing.assert_close(compiled(operands), function(torch.mm, operands))

    @pytest.mark.parametrize("way", WAYS)
    def test_forward_mode(self, way: str) -> None:
        x = self.operands()
        with forward_ad.dual_level():
            a, b = forward_ad.make_dual(x.a, 2 * x.a), forward_ad.make_dual(x.b, 3 * x.b)
            for left, right in ((a, b), (a, x.b), (x.a, b)):
                got, expected = (forward_ad.unpack_dual(each(left, right)) for each in (WAYS[way], torch.mm))
                assert torch.equal(got.primal, expected.primal)
                assert torch.equal(got.tangent, expected.tangent)
            assert forward_ad.unpack_dual(WAYS[way](x.a, x.b)).tangent is None

    def test_gradients_for_each_sample(self) -> None:
        """Per-sample gradients are those of one network, and of several at once."""
        kinds = torch.nn.Linear, tilewright_torch.Linear
        nets = [[torch.nn.Sequential(kind(4, 3), torch.nn.Tanh(), kind(3, 2)) for kind in kinds] for _ in "abc"]
        samples, targets = self.whole(5, 4, torch.float64), self.whole(5, 2, torch.float64)
        for theirs, ours in nets:
            ours.load_state_dict(theirs.state_dict())
            theirs.to(samples), ours.to(samples)
        results = []
        for of_kind in zip(*nets, strict=True):
            first, parameters = of_kind[0], dict(of_kind[0].named_parameters())

            def loss(parameters: Any, sample: Any, target: Any, net: Any = first) -> Any:
                return (functional_call(net, parameters, (sample,)) - target).square().sum()

            per_sample = torch.vmap(grad(loss), (None, 0, 0), randomness="different")(parameters, samples, targets)
            stacked, _ = stack_module_state(of_kind)
            of_all = torch.vmap(lambda p, net=first: functional_call(net, p, (samples,)))(stacked)
            results.append((per_sample, of_all, torch.autograd.grad(of_all.square().sum(), list(stacked.values()))))
        torch.testing.assert_close(*results)

    def test_vmap_makes_one_product(self, products: list[tuple[Any, Any]]) -> None:
        x, row, many = self.operands(), self.stack(5, 4), self.stack(6, 5, 3, 4)
        for way in (tilewright_torch.matmul, OP):
            pairs = torch.vmap(torch.vmap(way, (None, 0)), (0, None))
            for function, a, b, shapes in (
                *((torch.vmap(way, dims), a, b, (a.shape, b.shape)) for dims, a, b in x.mapped),
                (torch.vmap(way, (0, None)), row, x.b, ((5, 4), (4, 2))),
                (torch.vmap(way, (None, 0)), x.a, row, ((3, 4), (4, 5))),
                (torch.vmap(way), row, row, ((5, 1, 4), (5, 4, 1))),
                (torch.vmap(way, (0, None)), many, x.stack_b, ((6, 5, 3, 4), (5, 4, 2))),
                (torch.vmap(way, (1, 0)), many, x.stack_b, ((5, 6, 3, 4), (5, 1, 4, 2))),
                (pairs, many, x.stack_b, ((6, 1, 5, 3, 4), (5, 1, 4, 2))),
            ):
                products.clear()
                function(a, b)
                assert [(a.shape, b.shape) for a, b in products] == [shapes]
        products.clear()
        jacrev(lambda a: tilewright_torch.matmul(a, x.b))(x.a)
        assert [(a.shape, b.shape) for a, b in products] == [((3, 4), (4, 2)), ((6, 3, 2), (2, 4))]

    @pytest.mark.parametrize(("of_a", "of_b"), [*RANKS, ((0, 3, 4), (4, 2))])
    def test_vmap_of_any_rank_is_that_of_torch(self, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
        a, b = self.stack(*of_a), self.stack(*of_b)
        for at in (0, -1):
            many_a, many_b = torch.stack([a, 2 * a, -a], at), torch.stack([b, 3 * b, -b], at)
            for dims, left, right in (((at, None), many_a, b), ((None, at), a, many_b), ((at, at), many_a, many_b)):
                got, expected = (torch.vmap(way, dims)(left, right) for way in (OP, torch.matmul))
                assert torch.equal(got, expected)
            got, expected = (
                torch.vmap(torch.vmap(way, (None, at)), (at, None))(many_a, many_b) for way in (OP, torch.matmul)
            )
            assert torch.equal(got, expected)

    @pytest.mark.parametrize("way", WAYS)
    def test_tensors_without_memory_are_what_torch_takes_them_for(self, way: str) -> None:
        x = self.operands()
        zeros = [torch._efficientzerotensor(each.shape, dtype=each.dtype, device=each.device) for each in (x.a, x.b)]
        negated = [torch._neg_view(each) for each in (x.a, x.b)]
        for _ in range(2):
            for others in (zeros, negated):
                for a, b in ((others[0], x.b), (x.a, others[1]), others):
                    assert torch.equal(WAYS[way](a, b), a @ b)
            wrapped = [torch._to_functional_tensor(each) for each in (x.a, x.b)]
            assert torch.equal(torch._from_functional_tensor(WAYS[way](*wrapped)), x.a @ x.b)
            assert torch.equal(WAYS[way](x.a, x.b), x.a @ x.b)  # from now on there is a plan

    def operands(self, seed: int = 0) -> Inputs:
        shapes = (3, 4), (4, 2), (5, 3, 4), (5, 4, 2), (6, 3, 2)
        return Inputs(*(self.stack(*shape, seed=seed) for shape in shapes))

    def test_views_that_only_torch_knows(self) -> None:
        a, row = self.whole(5, 5), self.whole(1, 5)
        negated = torch.complex(a, a).conj().imag
        assert negated.is_neg()
        assert not negated.is_contiguous()
        for way in (tilewright_torch.matmul, OP):
            assert torch.equal(way(negated, a), -a @ a)
            assert torch.equal(way(a, row.expand(5, 5)), a @ row.expand(5, 5))

    def test_empty_matrices(self) -> None:
        for m, n, k in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
            a, b = self.whole(m, k).requires_grad_(), self.whole(k, n).requires_grad_()
            got = tilewright_torch.matmul(a, b)
            assert torch.equal(got, torch.zeros(m, n, device=self.device))
            got.sum().backward()
            assert torch.equal(a.grad, torch.zeros_like(a))
            assert torch.equal(b.grad, torch.zeros_like(b))

    def test_what_is_no_product_is_refused(self) -> None:
        a, b = self.whole(5, 7), self.whole(7, 6)
        for way in (tilewright_torch.matmul, OP):
            with pytest.raises(ShapeError, match=r"^b must have a dimension at least"):
                way(a, b[0, 0])
            with pytest.raises(ShapeError, match=r"^a is a stack of shape \(2,\), b of \(3,\), which do not broadcast"):
                way(a.expand(2, 5, 7), b.expand(3, 7, 6))
            with pytest.raises(ShapeError, match="inner dimensions differ"):
                way(a, a)
            with pytest.raises(ArgumentTypeError, match="cast one of them first"):
                way(a, b.double())
            with pytest.raises(ArgumentTypeError, match="float16"):
                way(a.half(), b.half())
        with FakeTensorMode() as mode:
            left, right = mode.from_tensor(a), mode.from_tensor(b)
            for wrong, match in (
                ((left, right[0, 0]), r"a and b must have a dimension at least: a is \(5, 7\), b is \(\)"),
                ((left.expand(2, 5, 7), right.expand(3, 7, 6)), r"do not broadcast: a is \(2, 5, 7\), b is \(3, "),
                ((left, left), "inner dimensions differ"),
                ((left, right.double()), "cast one of them first"),
                ((left.half(), right.half()), "float32 or float64"),
            ):
                with pytest.raises(RuntimeError, match=match):
                    OP(*wrong)

    @pytest.mark.parametrize("bias", [True, False])
    def test_linear_is_that_of_torch(self, bias: bool) -> None:
        theirs = torch.nn.Linear(7, 6, bias, device=self.device, dtype=torch.float64)
        ours = tilewright_torch.Linear(7, 6, bias, device=self.device, dtype=torch.float64)
        ours.load_state_dict(theirs.state_dict())
        for shape in ((7,), (5, 7), (2, 3, 7), (2, 5, 3, 7), (0, 7), (2, 0, 7)):
            x = torch.randn(shape, dtype=torch.float64, device=self.device)
            got, expected = ours(x), theirs(x)
            torch.testing.assert_close(got, expected)
            for module, result in ((ours, got), (theirs, expected)):
                module.zero_grad()
                result.pow(2).sum().backward()
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad)

    def test_linear_copies_no_input_that_a_kernel_takes(self, products: list[tuple[Any, Any]]) -> None:
        layer, x = tilewright_torch.Linear(7, 6).to(self.device, torch.float64), self.stack(2, 5, 3, 7)
        for view in (x, x.transpose(0, 1), x[:, 1:4, ::2], x[..., 0, :], x.mT.contiguous().mT):
            products.clear()
            torch.testing.assert_close(layer(view), torch.nn.functional.linear(view, layer.weight, layer.bias))
            ((a, _),) = products
            assert (a.shape, a.stride(), a.data_ptr()) == (view.shape, view.stride(), view.data_ptr())


def test_a_factor_may_be_a_tensor_without_dimensions() -> None:
    a, b = torch.ones(4, 6), torch.ones(6, 5)
    for way in (tilewright_torch.matmul, tilewright.matmul):
        assert torch.equal(way(a, b, alpha=torch.tensor(0.5)), torch.full((4, 5), 3.0))
        assert torch.equal(way(a, b, alpha=np.array(0.5)), torch.full((4, 5), 3.0))
        message = "alpha requires a gradient, and products have none by their factors: pass alpha.detach()"
        with pytest.raises(ArgumentTypeError, match=re.escape(message)):
            way(a, b, alpha=torch.tensor(0.5, requires_grad=True))
        with pytest.raises(ArgumentTypeError, match=r"alpha must be a real number, got an array of shape \(1,\)"):
            way(a, b, alpha=torch.ones(1))
    tracked = a.clone().requires_grad_()
    tilewright.matmul(tracked, b, alpha=torch.tensor(0.5), beta=torch.tensor(0.0)).sum().backward()
    assert torch.equal(tracked.grad, torch.full((4, 6), 2.5))


def test_the_error_of_an_unknown_argument_names_the_function() -> None:
    a, b = torch.ones(4, 6), torch.ones(6, 5)
    message = "matmul() takes no argument out=, got an array of shape (4, 5): it takes"
    with pytest.raises(ArgumentTypeError, match=re.escape(message)):
        tilewright_torch.matmul(a, b, out=torch.ones(4, 5))
    with pytest.raises(ArgumentTypeError, match="a must be float32 or float64 in native byte order, got int64: conv"):
        tilewright.matmul(a.long(), b.long())


def test_linear_of_no_features_and_of_a_wrong_number() -> None:
    theirs, ours = torch.nn.Linear(0, 5), tilewright_torch.Linear(0, 5)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(torch.ones(2, 0)), theirs(torch.ones(2, 0)))
    for shape, sizes in (((2, 6), "2x6"), ((6,), r"\(6,\)"), ((0, 6), "0x6")):
        with pytest.raises(ShapeError, match=f"inner dimensions differ: a is {sizes}, b is 3x5"):
            tilewright_torch.Linear(3, 5)(torch.ones(shape))


CALLS = {"tilewright.torch.matmul": (27, 24), "the op": (26, 24), "tilewright.matmul": (14, 16)}
"""Numbers of calls of Python functions and of C functions that a warm product into a new tensor takes."""
TRACE_CALLS = 0 if hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag") else 2
"""Number of further calls of Python functions where torch.fx tells by a function whether it traces."""


def numbered(*shape: int) -> Any:
    """A tensor of whole numbers from -3 to 3."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) % 7 - 3


class TestProcessor(Products):
    device, backend = "cpu", "aot_eager"

    def test_a_factor_that_follows_from_a_dynamic_shape_stays_dynamic(self) -> None:
        def scaled(a: Any, b: Any) -> Any:
            return tilewright_torch.matmul(a, b, alpha=a.shape[-1] ** -0.5)

        torch._dynamo.reset()
        counter = CompileCounterWithBackend(self.backend)
        compiled = torch.compile(scaled, backend=counter, fullgraph=True, dynamic=True)
        for k in range(5, 17):
            a, b = torch.ones(3, k), torch.ones(k, 2)
            torch.testing.assert_close(compiled(a, b), a @ b * k**-0.5)
        assert counter.frame_count == 1
        graph = make_fx(scaled, tracing_mode="symbolic")(a, b)
        a, b = torch.ones(3, 4), torch.ones(4, 2)
        torch.testing.assert_close(graph(a, b), a @ b / 2)
        torch.testing.assert_close(torch.fx.symbolic_trace(scaled)(a, b), a @ b / 2)

    def test_a_factor_that_is_a_tensor_breaks_a_graph(self) -> None:
        torch._dynamo.reset()
        a, b, ends = torch.ones(3, 4), torch.ones(2, 4, 5), torch.tensor([1, 3], dtype=torch.int32)
        for product, expected in (
            (lambda alpha: tilewright_torch.matmul(a, b, alpha=alpha), 2 * a @ b),
            (lambda alpha: tilewright_torch.grouped_matmul(a, b, ends, alpha=alpha), 2 * a @ b[0]),
        ):
            assert torch.equal(torch.compile(product, backend=self.backend)(torch.tensor(2.0)), expected)

    def test_an_extent_that_depends_on_data(self) -> None:
        stack, kept = numbered(6, 4, 5).requires_grad_(), torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
        theirs, ours = torch.nn.Linear(5, 3), tilewright_torch.Linear(5, 3)
        ours.load_state_dict(theirs.state_dict())
        torch._dynamo.reset()
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(lambda a: ours(a[kept]) @ ours.weight, backend=self.backend, fullgraph=True)
            compiled(stack).sum().backward()
        gradient, stack.grad = stack.grad, None
        (theirs(stack[kept]) @ theirs.weight).sum().backward()
        torch.testing.assert_close(gradient, stack.grad)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)

    def test_compiled_autograd(self) -> None:
        a, b, ends = numbered(5, 4), numbered(2, 4, 3), torch.tensor([2, 5], dtype=torch.int32)
        for product in (lambda b: tilewright_torch.matmul(a, b), lambda b: tilewright_torch.grouped_matmul(a, b, ends)):
            gradients = []
            for compiles in (False, True):
                of = b.clone().requires_grad_()
                loss = product(of).square().sum()
                torch._dynamo.reset()
                with torch._dynamo.config.patch(compiled_autograd=compiles):
                    (torch.compile(loss.backward, backend=self.backend) if compiles else loss.backward)()
                gradients.append(of.grad)
            torch.testing.assert_close(*gradients)

    def test_groups_are_mapped_without_a_warning(self) -> None:
        a, b, ends = numbered(3, 5, 4), numbered(2, 4, 3), torch.tensor([2, 5], dtype=torch.int32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = torch.vmap(tilewright_torch.grouped_matmul, (0, None, None))(a, b, ends)
            torch.func.jacrev(tilewright_torch.grouped_matmul)(a[0], b, ends)
        assert torch.equal(result, torch.stack([tilewright_torch.grouped_matmul(each, b, ends) for each in a]))
        none = torch.vmap(tilewright_torch.grouped_matmul, (0, None, None))(a[:0], b, ends)
        assert none.shape == (0, 5, 3)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"offsets": None}, "offsets must be a torch.Tensor, got NoneType: pass torch.as_tensor"),
            ({"offsets": torch.ones(3, dtype=torch.int32)}, "a matrix for each"),
            ({"offsets": torch.ones((), dtype=torch.int32)}, "offsets must have one dimension"),
            ({"offsets": torch.ones(2)}, "offsets must be int32"),
            ({"a": torch.ones(5, 4).half(), "b": torch.ones(2, 4, 3).half()}, "float32 or float64"),
            ({"a": torch.ones(5, 4, device="meta")}, "on meta|got meta"),
        ],
    )
    def test_operands_that_are_no_groups(self, change: dict[str, Any], words: str) -> None:
        """Eager calls refuse them, and traces too."""
        operands = {"a": torch.ones(5, 4), "b": torch.ones(2, 4, 3), "offsets": torch.tensor([2, 5], dtype=torch.int32)}
        operands |= change
        with pytest.raises((RuntimeError, TilewrightError), match=words):
            tilewright_torch.grouped_matmul(**operands)
        if operands["offsets"] is not None:
            with FakeTensorMode() as mode, pytest.raises((RuntimeError, TilewrightError), match=words):
                tilewright_torch.grouped_matmul(**{name: mode.from_tensor(each) for name, each in operands.items()})

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.skipif(device_of("auto").info.selector != "host", reason="a GPU takes the processor's tensors")
    def test_a_warm_product_takes_so_many_calls(self, way: str) -> None:
        python, c = CALLS[way]
        for a in (self.whole(5, 7), self.whole(5, 7).expand(3, 5, 7)):
            check_calls(partial(WAYS[way], a, self.whole(7, 6)), (python + TRACE_CALLS, c))


@pytest.mark.gpu
class TestGpu(Products):
    device, backend = "cuda", "inductor"


def run(code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


def test_without_torch_the_error_says_what_to_install(tmp_path: Path) -> None:
    done = run("import sys; sys.modules['torch'] = None; import tilewright.torch", tmp_path)
    assert done.stderr.splitlines()[-1].startswith("ImportError: tilewright.torch needs PyTorch: pip install torch")


def test_the_library_does_not_import_torch(tmp_path: Path) -> None:
    code = """
import sys, numpy, tilewright
tilewright.matmul(numpy.ones((5, 7), 'f'), numpy.ones((7, 6), 'f'))
assert 'torch' not in sys.modules"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_checkout_on_the_path_does_not_hide_torch(tmp_path: Path) -> None:
    done = run(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import torch; print(torch.__version__)", tmp_path)
    assert done.stdout.strip() == torch.__version__, done.stderr


def test_a_call_that_raises_has_written_nothing() -> None:
    a, b, out = torch.ones(4, 4), torch.ones(4, 4), torch.zeros(4, 4)
    for written in (1, 2):  # the second finds the plan of the first
        tilewright.matmul(a, b, out=out)
        assert out._version == written
    for version, (target, alpha) in ((0, (a, 1.0)), (2, (out, "1"))):
        with pytest.raises((LayoutError, ArgumentTypeError)):
            tilewright.matmul(a, b, out=target, alpha=alpha)
        assert target._version == version


@pytest.mark.parametrize("name", ["matmul", "load", "torch"])
def test_a_tensor_without_memory_or_strides_is_refused_though_a_plan_exists(name: str) -> None:
    a, b = torch.ones(4, 6), torch.ones(6, 5)
    ways = {"matmul": tilewright.matmul, "load": tilewright.load(4, 5, 6), "torch": tilewright_torch.matmul}
    way: Any = ways[name]
    assert torch.equal(way(a, b), a @ b)
    layouts = a.to_sparse(), a.to_sparse_csr(), torch.nested.nested_tensor([a, a])
    for arguments, match in (
        ((a, b.to("meta")), "b on meta: copy one|b must be on the processor or a GPU, got meta"),
        *(((other, b), r"a must be a dense tensor, got layout (torch.sparse_.*: pass a.to_dense|nested: multiply its)")
          for other in layouts),
    ):  # fmt: skip
        with pytest.raises((ArgumentTypeError, DeviceMismatchError), match=match):
            way(*arguments)
    if name != "torch":
        way(a, b, out=torch.zeros(4, 5))
        with pytest.raises(ArgumentTypeError, match="out must be on the processor or a GPU, got meta"):
            way(a, b, out=torch.zeros(4, 5, device="meta"))


def test_a_loaded_kernel_refuses_what_autograd_tracks_from_the_first_call_on() -> None:
    kernel, a, b = tilewright.load(4, 5, 6, device="host"), torch.ones(4, 6, requires_grad=True), torch.ones(6, 5)
    for _ in range(2):
        with pytest.raises(ArgumentTypeError, match="autograd tracks a, b or out"):
            kernel(a, b)
        with torch.no_grad():
            assert torch.equal(kernel(a, b), a @ b)


def test_the_device_is_not_ignored_where_autograd_or_a_transform_tracks(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.ones(4, 6, requires_grad=True), torch.ones(6, 5)
    for _ in range(2):
        assert tilewright.matmul(a, b, device="auto").requires_grad
        for stack in (a[None], a.detach()[None]):
            assert torch.equal(torch.vmap(lambda a: tilewright.matmul(a, b, device="auto"))(stack)[0], a @ b)
            with pytest.raises(DeviceError, match="device cuda"):
                torch.vmap(lambda a: tilewright.matmul(a, b, device="cuda:99"))(stack)
        with pytest.raises(DeviceError, match="device cuda"):
            tilewright.matmul(a, b, device="cuda:99")
    monkeypatch.setattr(matmul_module, "_selector", lambda place, device: device or "cuda:0")
    with pytest.raises(DeviceMismatchError, match="so that their product is made on cuda:0, device is 'host'"):
        tilewright.matmul(a, b, device="host")


def test_a_loaded_kernel_refuses_forward_mode() -> None:
    kernel, a, b = tilewright.load(4, 5, 6, device="host"), torch.ones(4, 6), torch.ones(6, 5)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a)
        for _ in range(2):
            with pytest.raises(ArgumentTypeError, match="autograd tracks a, b or out"):
                kernel(dual, b)
            assert torch.equal(kernel(a, b), a @ b)


def freed(*shape: int) -> Any:
    """A tensor whose storage was freed."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("name", [*WAYS, "load"])
def test_a_tensor_without_memory_is_named(name: str) -> None:
    way: Any = WAYS.get(name) or tilewright.load(4, 5, 6, device="host")
    a, b, out = torch.ones(4, 6), torch.ones(6, 5), torch.zeros(4, 5)
    escaped: list[Any] = []
    torch.vmap(lambda a: (escaped.append(a), a)[1])(torch.ones(3, 4, 6))
    for _ in range(2):  # the second time there is a plan
        for match, arguments in (("^a has no memory", (freed(4, 6), b)), ("^b has no memory", (a, freed(6, 5)))):
            with pytest.raises(ArgumentTypeError, match=f"{match}: pass a tensor with memory, or within torch.func"):
                way(*arguments)
        assert torch.equal(way(a, b), a @ b)
        if name != "the op":
            with pytest.raises(ArgumentTypeError, match=r"^a (has no memory|is a tensor of a torch\.vmap that)"):
                way(escaped[0], b)
        if name in ("load", "tilewright.matmul"):
            with pytest.raises(ArgumentTypeError, match=r"^out has no memory"):
                way(a, b, out=freed(4, 5))
            with pytest.raises(ArgumentTypeError, match=r"^out has no memory"):
                torch.vmap(lambda out: way(a, b, out=out))(out[None])
            with pytest.raises(ArgumentTypeError, match=r"^a has no memory"):
                torch.vmap(lambda a: way(a, b, out=out))(a[None])
            way(a, b, out=out)
            with pytest.raises(ArgumentTypeError, match=r"^a has no memory"):
                torch.vmap(lambda a: way(a, b.numpy()))(a[None])


def test_a_loaded_kernel_refuses_what_transforms_and_traces_would_not_see() -> None:
    kernel, a, b = tilewright.load(4, 5, 6, device="host"), torch.ones(4, 6), torch.ones(6, 5)
    for _ in range(2):
        for transform, match in (
            (lambda: torch.vmap(kernel, (0, None))(a[None], b), "^a has no memory"),
            (lambda: torch.vmap(kernel, (None, 0))(a, b[None]), "^b has no memory"),
            (lambda: grad(lambda a: kernel(a, b).sum())(a), "^autograd tracks a, b or out"),
            (lambda: jvp(lambda a: kernel(a, b), (a,), (a,)), "^autograd tracks a, b or out"),
            (lambda: grad(lambda c: (kernel(a, b) * c).sum())(a @ b), "^the result has no memory"),
            (lambda: kernel(torch._neg_view(a), b), r"^a is a negated view: pass a\.resolve_neg"),
            (lambda: kernel(torch._efficientzerotensor((4, 6)), b), "^a has no memory"),
            (lambda: make_fx(lambda a: kernel(a, b))(a), "or this is traced: use tilewright.matmul"),
        ):
            with pytest.raises(ArgumentTypeError, match=match):
                transform()
        assert torch.equal(kernel(a, b), a @ b)


def test_a_fake_tensor_is_refused_with_the_call_that_takes_it() -> None:
    with FakeTensorMode() as mode:
        a, b = mode.from_tensor(torch.ones(4, 6)), mode.from_tensor(torch.ones(6, 5))
        with pytest.raises(ArgumentTypeError, match=r"^a .* FakeTensor: call tilewright\.torch\.matmul"):
            tilewright.matmul(a, b)
        assert tilewright_torch.matmul(a, b).shape == (4, 5)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_product_is_refused_within_vmap(way: str) -> None:
    a, b, stack = torch.ones(4, 6), torch.ones(6, 5), torch.ones(3, 4, 6)
    for dims, arguments, match in (
        ((0, None), (a[0], b), "a must have a dimension at least, got a number"),
        ((None, 0), (a, b[0]), "b must have a dimension at least, got a number"),
        ((0, None), (stack, b[0, 0]), "b must have a dimension at least, got an array"),
        ((0, 0), (stack.expand(2, 3, 4, 6), b.expand(2, 5, 6, 5)), "a is a stack of shape .*, which do not broadcast"),
        ((0, None), (stack, a), "inner dimensions differ"),
        ((0, None), (stack, b.double()), "cast one of them first"),
        ((0, 0), (stack.half(), stack.half()), "float16"),
    ):
        with pytest.raises((ShapeError, ArgumentTypeError), match=match):
            torch.vmap(WAYS[way], dims)(*arguments)


def test_writing_an_operand_that_autograd_needs_is_noticed() -> None:
    a, b = (torch.ones(4, 4, requires_grad=requires) for requires in (True, False))
    c = tilewright.matmul(a, b)
    with torch.no_grad():
        tilewright.matmul(torch.full((4, 4), 3.0), torch.eye(4), out=b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


def test_the_example_trains(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_torch.py"), "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(each) for each in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1 * losses[0]
    assert done.stdout.count("True") == 2


def test_the_guide_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs" / "torch.md").read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join(["import torch", "torch.set_default_device('cpu')", *blocks])
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^print\(.*  # (.*)$", code, re.MULTILINE)
