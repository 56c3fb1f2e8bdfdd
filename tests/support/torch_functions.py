"""Functions of `torch.autograd` and `torch.func` that are applied to a product and, to compare, to `torch.mm`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, linearize, vjp


@dataclass(frozen=True)
class Inputs:
    """The arguments of a function of a product."""

    a: Any
    b: Any
    stack_a: Any
    """Five matrices like a."""
    stack_b: Any
    """Five matrices like b."""
    grads: Any
    """Six matrices like the product."""

    def tracked(self) -> tuple[Any, Any]:
        """Copies of a and b that require gradients."""
        return self.a.clone().requires_grad_(), self.b.clone().requires_grad_()

    @property
    def mapped(self) -> list[tuple[tuple[int | None, int | None], Any, Any]]:
        """Arguments of `torch.vmap` with stacks for a, for b and for both."""
        return [
            ((0, None), self.stack_a, self.b), ((None, 0), self.a, self.stack_b), ((0, 0), self.stack_a, self.stack_b),
        ]  # fmt: skip


Function = Callable[[Any, Inputs], Any]
"""A function that applies torch to a product and its arguments."""


def cubes(product: Any) -> Callable[[Any, Any], Any]:
    """A function whose results are numbers and whose second derivatives differ from 0."""
    return lambda a, b: product(a, b).pow(3).sum()


def of_transposes(product: Any, x: Inputs) -> Any:
    a, b = x.tracked()
    left, right = (each.detach().t().contiguous().requires_grad_() for each in (a, b))
    return torch.autograd.grad(product(left.t(), right.t()), (left, right), x.grads, is_grads_batched=True)


def with_graph(product: Any, x: Inputs) -> Any:
    a, b = x.tracked()
    batched = torch.autograd.grad(product(a, b), (a, b), x.grads, is_grads_batched=True, create_graph=True)
    return batched, torch.autograd.grad(sum(each.pow(3).sum() for each in batched), (a, b))


def of_a_gradient(product: Any, x: Inputs) -> Any:
    a, b = x.tracked()
    (of_a,) = torch.autograd.grad(product(a, b), a, x.grads[0], create_graph=True)
    return torch.autograd.grad(of_a, b, torch.ones(6, 3, 4).to(x.a), is_grads_batched=True)


def of_a_jacobian(product: Any, x: Inputs) -> Any:
    a, b = x.tracked()
    jacobians = jacobian(product, (a, b), create_graph=True, vectorize=True)
    return torch.autograd.grad(sum(each.pow(2).sum() for each in jacobians), (a, b))


def compiled_gradient(product: Any, x: Inputs) -> Any:
    a, b = x.tracked()
    result = torch.compile(product, backend="aot_eager")(a, b)
    return torch.autograd.grad(result, (a, b), x.grads, is_grads_batched=True)


BATCHED: dict[str, Function] = {
    "grad": lambda product, x: torch.autograd.grad(
        product(*(inputs := x.tracked())), inputs, x.grads, is_grads_batched=True
    ),
    "of transposes": of_transposes,
    "with a graph": with_graph,
    "of a gradient": of_a_gradient,
    "compiled": compiled_gradient,
    "jacobian": lambda product, x: jacobian(product, (x.a, x.b), vectorize=True),
    "jacobian, forward mode": lambda product, x: jacobian(product, (x.a, x.b), vectorize=True, strategy="forward-mode"),
    "of a jacobian": of_a_jacobian,
    "hessian": lambda product, x: hessian(cubes(product), (x.a, x.b), vectorize=True),
    "hessian, forward mode": lambda product, x: hessian(
        cubes(product), (x.a, x.b), vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
}
"""Functions of `torch.autograd` that take batched gradients, by name."""


def mapped_along_all(product: Any, x: Inputs) -> Any:
    results = []
    for of_a, of_b in ((0, 0), (1, -1), (2, 1), (-1, None), (1, None), (None, 1), (None, 2)):
        a = x.a if of_a is None else x.stack_a.movedim(0, of_a)
        b = x.b if of_b is None else x.stack_b.movedim(0, of_b)
        results += [torch.vmap(product, (of_a, of_b), out_dims)(a, b) for out_dims in (0, 1, -1)]
    return results


def mapped_with_random_numbers(product: Any, x: Inputs) -> Any:
    def noisy(a: Any) -> Any:
        return product(a, torch.randn(4, 2, dtype=a.dtype, device=a.device))

    results = []
    for randomness in ("same", "different"):
        torch.manual_seed(1)
        results.append(torch.vmap(noisy, randomness=randomness)(x.stack_a))
    return results


def mapped_twice(product: Any, x: Inputs) -> Any:
    once = torch.vmap(product, (0, None))
    pairs = x.stack_a.expand(2, 5, 3, 4), x.stack_b.expand(2, 5, 4, 2)
    return [
        torch.vmap(once, (None, 0))(x.stack_a, x.stack_b),
        torch.vmap(torch.vmap(product, (None, 0)), (0, None))(x.stack_a, x.stack_b),
        torch.vmap(once, (0, None))(pairs[0], x.b),
        torch.vmap(torch.vmap(product))(*pairs),
        torch.vmap(lambda a: torch.vmap(lambda b: product(a, b))(x.stack_b))(x.stack_a),
    ]


def mapped_empty(product: Any, x: Inputs) -> Any:
    def like(*shape: int) -> Any:
        return x.a.new_zeros(shape)

    stacks = [
        ((0, None), like(2, 0, 4), x.b), ((0, None), like(2, 3, 0), like(0, 2)), ((0, 0), like(2, 3, 0), like(2, 0, 5)),
        ((None, 0), like(0, 4), like(2, 4, 3)), ((0, None), like(0, 3, 4), x.b), ((0, 0), like(0, 3, 4), like(0, 4, 2)),
    ]  # fmt: skip
    return [torch.vmap(product, dims)(a, b) for dims, a, b in stacks]


def in_place(product: Any, x: Inputs) -> Any:
    def function(a: Any, b: Any) -> Any:
        result = product(a, b)
        result.add_(1)
        result[0] *= 2
        return result.square()

    a, b = x.tracked()
    results = [jacrev(function, (0, 1))(x.a, x.b), jacfwd(function, (0, 1))(x.a, x.b)]
    for dims, left, right in x.mapped:
        a, b = (each.clone().requires_grad_() for each in (left, right))
        results.append(torch.autograd.grad(torch.vmap(function, dims)(a, b).sum(), (a, b)))
    constant = grad(lambda c: product(x.a, x.b).add_(c).square().sum())(x.grads[0])
    return [*results, constant]


def captured(product: Any, x: Inputs) -> Any:
    """Gradients with respect to a value that a transformed function captures."""
    a, b = x.tracked()
    inner = grad(lambda left: product(left, b).pow(3).sum())(x.a)
    outer = vjp(lambda scale: product(a, b) * scale, x.grads[0])[0]
    stacked = torch.vmap(lambda left: product(left, b).pow(3).sum())(x.stack_a)
    return [torch.autograd.grad(each.sum(), b, retain_graph=True) for each in (inner, outer, stacked)]


def after_its_end(product: Any, x: Inputs) -> Any:
    """A pullback that is called and differentiated after its transform has ended."""
    b, cotangent = x.b.clone().requires_grad_(), x.grads[0].clone().requires_grad_()
    _, pullback = vjp(lambda a: product(a, b), x.a)
    (result,) = pullback(cotangent)
    return result, torch.autograd.grad(result.square().sum(), (b, cotangent))


def gradients_turned_off(product: Any, x: Inputs) -> Any:
    def constant(a: Any) -> Any:
        with torch.no_grad():
            result = product(a, x.b)
        return (result * a.sum()).sum()

    def without_tangent(a: Any) -> Any:
        with forward_ad._set_fwd_grad_enabled(False):
            result = product(a, x.b)
        return result * a.sum()

    def pushed(a: Any) -> Any:
        return jvp(constant, (a,), (a,))[1]

    twice = jvp(lambda a: jvp(without_tangent, (a,), (a,))[1], (x.a,), (x.a,))
    return grad(constant)(x.a), grad(pushed)(x.a), jvp(without_tangent, (x.a,), (x.a,)), twice


def functionalized(product: Any, x: Inputs) -> Any:
    def function(a: Any, b: Any) -> Any:
        return product(a, b).add_(1)

    inside = torch.vmap(functionalize(function), (0, None))(x.stack_a, x.b)
    outside = functionalize(torch.vmap(function, (0, None)))(x.stack_a, x.b)
    return functionalize(function)(x.a, x.b), inside, outside


TRANSFORMS: dict[str, Function] = {
    "grad": lambda product, x: grad(cubes(product), (0, 1))(x.a, x.b),
    "grad of grad": lambda product, x: grad(lambda b: grad(cubes(product))(x.a, b).square().sum())(x.b),
    "vjp": lambda product, x: vjp(product, x.a, x.b)[1](x.grads[0]),
    "vmap of vjp": lambda product, x: torch.vmap(vjp(product, x.a, x.b)[1])(x.grads),
    "vmap of vmap of vjp": lambda product, x: torch.vmap(torch.vmap(vjp(product, x.a, x.b)[1]))(
        x.grads.reshape(2, 3, 3, 2)
    ),
    "jacrev": lambda product, x: jacrev(product, (0, 1))(x.a, x.b),
    "jacrev in chunks": lambda product, x: [jacrev(product, (0, 1), chunk_size=n)(x.a, x.b) for n in (1, 4)],
    "jacfwd": lambda product, x: jacfwd(product, (0, 1))(x.a, x.b),
    "hessian": lambda product, x: torch.func.hessian(cubes(product), (0, 1))(x.a, x.b),
    "jacrev of jacrev": lambda product, x: jacrev(jacrev(cubes(product), (0, 1)), (0, 1))(x.a, x.b),
    "jacrev of jacfwd": lambda product, x: jacrev(jacfwd(cubes(product), (0, 1)), (0, 1))(x.a, x.b),
    "jacfwd of jacfwd": lambda product, x: jacfwd(jacfwd(cubes(product), (0, 1)), (0, 1))(x.a, x.b),
    "jvp": lambda product, x: jvp(product, (x.a, x.b), (2 * x.a, 3 * x.b)),
    "jvp of one": lambda product, x: [
        jvp(lambda a: product(a, x.b), (x.a,), (x.a,)), jvp(lambda b: product(x.a, b), (x.b,), (x.b,)),
    ],
    "linearize": lambda product, x: linearize(product, x.a, x.b)[1](2 * x.a, 3 * x.b),
    "vmap of grad": lambda product, x: [torch.vmap(grad(cubes(product), (0, 1)), d)(a, b) for d, a, b in x.mapped],
    "grad of vmap": lambda product, x: [
        grad(lambda a, b: torch.vmap(product, d)(a, b).pow(3).sum(), (0, 1))(a, b)  # noqa: B023
        for d, a, b in x.mapped
    ],
    "vmap of jvp": lambda product, x: torch.vmap(lambda a: jvp(lambda a: product(a, x.b), (a,), (a,)))(x.stack_a),
    "jvp of vmap": lambda product, x: jvp(torch.vmap(product), (x.stack_a, x.stack_b), (x.stack_a, x.stack_b)),
    "vmap along all dimensions": mapped_along_all,
    "vmap in chunks": lambda product, x: torch.vmap(product, chunk_size=2)(x.stack_a, x.stack_b),
    "vmap with random numbers": mapped_with_random_numbers,
    "vmap of vmap": mapped_twice,
    "vmap of nothing": mapped_empty,
    "vmap of what is not mapped": lambda product, x: torch.vmap(lambda a: a + product(x.a, x.b).sum())(x.stack_a),
    "in place": in_place,
    "captured": captured,
    "after its end": after_its_end,
    "gradients turned off": gradients_turned_off,
    "functionalize": functionalized,
}  # fmt: skip
"""Transforms of `torch.func` by name."""
