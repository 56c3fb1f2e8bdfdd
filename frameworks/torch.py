"""Products in torch programs: the ops of `torch.ops.tilewright`, `matmul`, `grouped_matmul` and `Linear`.

Only this file needs torch.

Both ops have a kernel, a fake kernel for tracing, gradients in both modes, and a rule for `torch.vmap`: one product of
stacks, and for `grouped_matmul` a call for each place of the mapped dimension. The functions bypass torch's
dispatcher unless their tensors are traced or transformed.
"""

import math
from itertools import takewhile
from typing import Any, Never, SupportsFloat

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    _HELP = "tilewright.torch needs PyTorch: pip install torch (https://pytorch.org/get-started has other builds)"
    raise ImportError(_HELP, name="torch") from error

from tilewright import _library
from tilewright.codegen.errors import ArgumentTypeError, NotInMemoryError, ShapeError, check
from tilewright.codegen.problem import GradeLike
from tilewright.runtime.product.arguments import check_place, number, refuse
from tilewright.runtime.product.arrays import trace_flag_of
from tilewright.runtime.settings import Vendor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

__all__ = ["Linear", "grouped_matmul", "matmul"]

_ops = torch.library.Library("tilewright", "DEF")  # it must live as long as its op
_SCHEMA = "matmul(Tensor a, Tensor b, Scalar alpha=1.0, str accuracy='ieee', str? vendor=None) -> Tensor"
_ops.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_op: Any = torch.ops.tilewright.matmul.default
_GROUPED = "grouped_matmul(Tensor a, Tensor b, Tensor offsets, Scalar alpha=1.0, str accuracy='ieee') -> Tensor"
_ops.define(_GROUPED, tags=(torch.Tag.pt2_compliant_tag,))
_grouped_op: Any = torch.ops.tilewright.grouped_matmul.default
_is_like_subclass = torch._C._dispatch_isTensorSubclassLike
_TYPES = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.fx.Proxy)
"""Types of numbers that a trace knows by their symbols."""
_NUMBERS = (int, float, *_SYMBOLIC)
"""Types of numbers in compiled graphs."""
_trace = trace_flag_of(torch)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *more: Never, alpha: SupportsFloat = 1.0, accuracy: GradeLike = "ieee",
    vendor: Vendor | None = None, **unknown: Never,
) -> torch.Tensor:  # fmt: skip
    """alpha * a @ b by the tuned kernel for these shapes, for tensors of any rank as `torch.matmul` has it; gradients,
    `torch.func` and `torch.compile` work.

    Padded rows, transposes, parts of larger tensors and tensors that are broadcast are used in place; tensors with
    strides that no kernel takes are copied. On a GPU the work is put on torch's current stream. The gradients of a and
    b are two products with shapes of their own, m x k x n and k x n x m (or their transposes, where a or b is one), so
    tune these too for training. They have gradients in turn.

    Args:
        a: m x k, or a stack of such matrices, or a vector of k elements; float32 or float64, in the processor's memory
            or on a GPU.
        b: k x n, or a stack of such matrices, or a vector of k elements; of the same dtype and in the same memory.
            Dimensions before the last two broadcast.
        alpha: factor of the product, a number or a 0-d array; one on a GPU is copied to the processor, which waits for
            the GPU.
        accuracy: ieee, elementwise or normwise, as for `tilewright.load`; it holds for the gradients too.
        vendor: auto or never, as for `tilewright.load`; it holds for the gradients too.

    Returns:
        A new tensor, m x n or a stack of such matrices, row by row; a vector gives it no dimension.

    Raises:
        ShapeError, ArgumentTypeError, DeviceMismatchError: a and b do not fit; while tracing, torch raises its own.
        CaptureError: a shape's first product falls where a CUDA graph is captured: warm up, or call
            `tilewright.prepare`.
        TilewrightError: every error of `tilewright.load`, at a shape's first product.
    """
    if more or unknown:
        refuse(matmul, more, unknown)
    if torch.compiler.is_compiling():
        return _op(a, b, _compiled_factor(alpha), accuracy, vendor)
    if type(alpha) is not float:
        alpha = _factor(alpha)
    if not _is_plain(a, b):
        _check_tensors(a=a, b=b)
        return _op(a, b, alpha, accuracy, vendor)
    if _is_tracked(a, b):
        return _apply(a, b, alpha, accuracy, vendor)
    return _product(a, b, alpha, accuracy, vendor)


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, *more: Never, alpha: SupportsFloat = 1.0,
    accuracy: GradeLike = "ieee", **unknown: Never,
) -> torch.Tensor:  # fmt: skip
    """Products of groups of rows in one launch, as `tilewright.grouped_matmul` has them; gradients, `torch.func` and
    `torch.compile` work.

    The gradients are grouped products of the same offsets: of groups of rows for a, and for b one product for each
    group, or the other way round. Tensors with strides that no kernel takes are copied. On a GPU offsets are read by
    the kernel alone, and the call may be captured.

    Args:
        a: rows x k, or m x rows where b is a matrix; float32 or float64, in the processor's memory or on a GPU.
        b: groups x k x n, or rows x n; of the same dtype and in the same memory.
        offsets: int32, the end of each group in rising order, in the same memory. Rows from the last one on belong to
            no group; such rows of the result are 0.
        alpha: factor of the products, a number or a 0-d array.
        accuracy: ieee, elementwise or normwise, as for `tilewright.load`; it holds for the gradients too.

    Returns:
        A new tensor, rows x n, or groups x m x n where b is a matrix.

    Raises:
        TilewrightError: every error of `tilewright.grouped_matmul`; while tracing, torch raises its own.
    """
    if more or unknown:
        refuse(grouped_matmul, more, unknown)
    if torch.compiler.is_compiling():
        return _grouped_op(a, b, offsets, _compiled_factor(alpha), accuracy)
    if type(alpha) is not float:
        alpha = _factor(alpha)
    if not (type(offsets) in _TYPES and _is_plain(a, b)):
        _check_tensors(a=a, b=b, offsets=offsets)
        return _grouped_op(a, b, offsets, alpha, accuracy)
    if _is_tracked(a, b):
        return _apply_groups(a, b, offsets, alpha, accuracy)
    return _groups(a, b, offsets, alpha, accuracy)


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear` by `matmul`: the same arguments, parameters and state, float32 or float64."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """input @ weight.T + bias over the last dimension of an input of any rank."""
        result = matmul(input, self.weight.t(), alpha=1.0)
        return result if self.bias is None else result + self.bias


def _factor(alpha: Any) -> float:
    """alpha as a float; a number that a trace knows by its symbol stays one."""
    symbol: float = alpha
    return symbol if isinstance(alpha, _SYMBOLIC) else number("alpha", alpha)


def _compiled_factor(alpha: Any) -> float:
    """alpha as a number of a compiled graph; an array without dimensions ends the graph before it."""
    factor: float = alpha if isinstance(alpha, _NUMBERS) else alpha.item()
    return factor


def _is_plain(a: Any, b: Any) -> bool:
    """Whether these are tensors on the processor or on CUDA whose products autograd alone may have to record."""
    return (
        type(a) in _TYPES
        and type(b) in _TYPES
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and not _trace._is_fx_tracing_flag
        and not (_is_like_subclass(a) or _is_like_subclass(b))
    )


def _check_tensors(**tensors: Any) -> None:
    """Raise ArgumentTypeError for an argument that is no tensor, or that is one of a `torch.vmap` that has ended."""
    for name, each in tensors.items():
        proxy = _trace._is_fx_tracing_flag
        text = f"{name} must be a torch.Tensor, got {type(each).__name__}: pass torch.as_tensor({name})"
        check(proxy or isinstance(each, torch.Tensor), text, ArgumentTypeError)
        escaped = (
            isinstance(each, torch.Tensor)
            and torch._C._functorch.is_batchedtensor(each)
            and torch._C._functorch.maybe_get_level(each) > torch._C._functorch.get_dynamic_layer_stack_depth()
        )
        text = f"{name} is a tensor of a torch.vmap that has ended: have the function that is mapped return it"
        check(not escaped, text, ArgumentTypeError)


def _is_tracked(a: Any, b: Any) -> bool:
    """Whether autograd has to record the product of a and b."""
    wants = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return bool(wants or forward_ad._current_level >= 0)


def _product(a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
    """The product below autograd. Tensors whose elements are not in their memory go through torch's dispatcher."""
    try:
        return _library.product(a, b, None, alpha, 0.0, accuracy, None, "if-needed", vendor)
    except NotInMemoryError:
        pass
    with torch._C._AutoDispatchBelowAutograd():
        return _op(a, b, alpha, accuracy, vendor)


def _kernel(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """The op for tensors of every device and layout. Raises an error that names a tensor which cannot be multiplied."""
    a, b = (each if type(each) in _TYPES else each.as_subclass(torch.Tensor) for each in (a, b))
    return _library.product(a, b, None, alpha, 0.0, accuracy, None, "if-needed", vendor)


def _fake(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """A tensor of the shape, strides, dtype and device of the result."""
    shapes = f"a is {tuple(a.shape)}, b is {tuple(b.shape)}"
    torch._check(a.dim() > 0 and b.dim() > 0, lambda: f"a and b must have a dimension at least: {shapes}")
    torch._check(a.shape[-1] == b.shape[-2:][0], lambda: f"inner dimensions differ: {shapes}")
    torch._check(a.dtype == b.dtype, lambda: f"a is {a.dtype} and b is {b.dtype}: cast one of them first")
    torch._check(a.dtype in _DTYPES, lambda: f"a and b must be float32 or float64, got {a.dtype}")
    check_place("a", a.device, "b", b.device)
    try:
        stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError as error:
        raise RuntimeError(f"the dimensions before the last two do not broadcast: {shapes}") from error
    return a.new_empty((*stack, *a.shape[-2:-1], *b.shape[1:][-1:]))


def _grouped_kernel(a: Any, b: Any, offsets: Any, alpha: float = 1.0, accuracy: str = "ieee") -> Any:
    """The op `grouped_matmul` for tensors of every device and layout."""
    a, b, offsets = (each if type(each) in _TYPES else each.as_subclass(torch.Tensor) for each in (a, b, offsets))
    return _library.grouped(a, b, offsets, None, alpha, 0.0, accuracy, None, "if-needed")


def _groups(a: Any, b: Any, offsets: Any, alpha: float, accuracy: str) -> Any:
    """The grouped products below autograd, as `_product` makes a product."""
    try:
        return _grouped_kernel(a, b, offsets, alpha, accuracy)
    except NotInMemoryError:
        pass
    with torch._C._AutoDispatchBelowAutograd():
        return _grouped_op(a, b, offsets, alpha, accuracy)


def _grouped_fake(a: Any, b: Any, offsets: Any, alpha: float = 1.0, accuracy: str = "ieee") -> Any:
    """A tensor of the shape, strides, dtype and device of the result of grouped products."""
    shapes = f"a is {tuple(a.shape)}, b is {tuple(b.shape)}"
    torch._check(a.dim() == 2 and b.dim() in (2, 3), lambda: f"a must have 2 and b 2 or 3 dimensions: {shapes}")
    torch._check(a.shape[1] == b.shape[-2], lambda: f"inner dimensions differ: {shapes}")
    torch._check(a.dtype == b.dtype, lambda: f"a is {a.dtype} and b is {b.dtype}: cast one of them first")
    torch._check(a.dtype in _DTYPES, lambda: f"a and b must be float32 or float64, got {a.dtype}")
    torch._check(offsets.dtype == torch.int32, lambda: f"offsets must be int32, got {offsets.dtype}")
    text = "offsets must have one dimension, with an element for each group"
    torch._check(offsets.dim() == 1, lambda: f"{text}, got shape {tuple(offsets.shape)}")
    own = b.dim() == 2 or b.shape[0] == offsets.shape[0]
    torch._check(own, lambda: f"b must have a matrix for each offset: {shapes}, offsets are {tuple(offsets.shape)}")
    check_place("a", a.device, "b", b.device)
    check_place("a", a.device, "offsets", offsets.device)
    groups = (offsets.shape[0],) if b.dim() == 2 else ()
    return a.new_empty((*groups, a.shape[0], b.shape[-1]))


def _below(modes: tuple[bool, bool], op: Any, *arguments: Any) -> Any:
    """An op below autograd, with gradients and forward gradients on or off as `modes` says."""
    grad, forward = modes
    below = torch._C._AutoDispatchBelowAutograd()
    with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(forward), below:
        return op(*arguments)


def _forward_gradient(ctx: Any, product: Any, of_a: Any, of_b: Any) -> Any:
    """The forward gradient of a product of a and b, or of groups of them, from those of a and b; either may be None."""
    # torch turns forward gradients off here, which outer levels of a transform need.
    with forward_ad._set_fwd_grad_enabled(True):
        a, b, *offsets = (torch._VF._unpack_dual(each, level=0)[0] for each in ctx.saved_tensors)
        terms = [product(of_a, b, *offsets, **ctx.options)] if of_a is not None else []
        terms += [product(a, of_b, *offsets, **ctx.options)] if of_b is not None else []
        return sum(terms[1:], terms[0])


class _EveryLevel(_SingleLevelFunction):  # type: ignore[misc]
    """An autograd function that the dispatcher calls once for each level of torch.func's transforms.
    `torch.autograd.Function` refuses that, and its base class does not."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


class _Product(_EveryLevel):
    """The product and its gradients: dA = alpha dC B^T, dB = alpha A^T dC, forward dC = alpha (dA B + A dB). The
    gradient of an operand that was broadcast is a sum of such products.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None,
        modes: tuple[bool, bool] | None = None,
    ) -> Any:  # fmt: skip
        """`modes`, for tensors that are not plain, tells whether gradients and forward gradients are on: torch turns
        both off here, and outer levels of a transform need them."""
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        ctx.set_materialize_grads(False)
        ctx.options = {"alpha": alpha, "accuracy": accuracy, "vendor": vendor}
        if modes is None:
            return _product(a, b, alpha, accuracy, vendor)
        return _below(modes, _op, a, b, alpha, accuracy, vendor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_a = of_b = None
        if grad is not None:
            a, b = ctx.saved_tensors
            for_a, for_b, *_ = ctx.needs_input_grad
            left, right = a, b  # vectors become matrices of one row or column
            if b.dim() == 1:
                right, grad = b[:, None], grad[..., None]
            if a.dim() == 1:
                left, grad = a[None], grad[..., None, :]
            of_a = _gradient(a, grad.mT, right.mT, ctx.options) if for_a else None
            of_b = _gradient(b, left, grad, ctx.options) if for_b else None
        return of_a, of_b, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, of_a: Any, of_b: Any, *_: Any) -> Any:
        return _forward_gradient(ctx, matmul, of_a, of_b)


class _Groups(_EveryLevel):
    """Grouped products and their gradients, grouped products with the same offsets. It is called as `_Product` is."""

    @staticmethod
    def forward(
        ctx: Any, a: Any, b: Any, offsets: Any, alpha: float, accuracy: str, modes: tuple[bool, bool] | None = None
    ) -> Any:
        ctx.save_for_backward(a, b, offsets)
        ctx.save_for_forward(a, b, offsets)
        ctx.set_materialize_grads(False)
        ctx.options = {"alpha": alpha, "accuracy": accuracy}
        if modes is None:
            return _groups(a, b, offsets, alpha, accuracy)
        return _below(modes, _grouped_op, a, b, offsets, alpha, accuracy)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_a = of_b = None
        if grad is not None:
            a, b, offsets = ctx.saved_tensors
            for_a, for_b, *_ = ctx.needs_input_grad
            if for_a and b.dim() == 3:
                of_a = grouped_matmul(grad, b.mT, offsets, **ctx.options)
            elif for_a:
                of_a = grouped_matmul(b, grad.mT, offsets, **ctx.options).mT
            of_b = grouped_matmul(a.mT, grad, offsets, **ctx.options) if for_b else None
        return of_a, of_b, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, of_a: Any, of_b: Any, *_: Any) -> Any:
        return _forward_gradient(ctx, grouped_matmul, of_a, of_b)


_apply: Any = _Product.apply
_apply_groups: Any = _Groups.apply


def _gradient(like: Any, left: Any, right: Any, options: dict[str, Any]) -> Any:
    """left^T right, summed over the dimensions along which the operand `like` was broadcast.

    The innermost of these dimensions count as rows of left and right, unless the copies that this needs take more
    memory than a product for each matrix.
    """
    if left.dim() == right.dim() == like.dim() == 2:
        return _as_it_lies(like, left, right, options)
    shared, rank = sorted((left.dim() - 2, right.dim() - 2))
    own = [*[1] * rank, *like.shape[:-2]][::-1]  # the innermost first
    folded = len([*takewhile(_is_one, own[:shared])])
    if folded:
        copied = sum(each.shape[-1] for each in (left, right) if not _lies_evenly(each, folded))
        folded = folded if copied * left.shape[-2] <= left.shape[-1] * right.shape[-1] else 0
        rows = math.prod(left.shape[-2 - folded : -1])
        left, right = (each.reshape(*each.shape[: -2 - folded], rows, each.shape[-1]) for each in (left, right))
    result = _as_it_lies(like, left, right, options)
    extents = enumerate(own[folded:rank])
    summed = [-3 - i for i, extent in extents if _is_one(extent) and not _is_one(result.shape[-3 - i])]
    return (result.sum(summed) if summed else result).reshape(like.shape)


def _is_one(extent: Any) -> bool:
    """Whether an extent is 1; False where a trace does not know it."""
    if type(extent) is int:
        return extent == 1
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(extent == 1))


def _as_it_lies(like: Any, left: Any, right: Any, options: dict[str, Any]) -> Any:
    """left^T right, transposed in memory where `like` is, so that a parameter's gradient is not copied."""
    if like.dim() > 1 and like.stride(-2) == 1 and like.stride(-1) == like.shape[-2]:
        return matmul(right.mT, left, **options).mT
    return matmul(left.mT, right, **options)


def _lies_evenly(stack: Any, count: int) -> bool:
    """Whether all rows along the `count` innermost dimensions of a stack follow each other at one distance."""
    return all(stack.stride(i) == stack.stride(i + 1) * stack.shape[i + 1] for i in range(-2 - count, -2))


def _with_gradient(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """The op at the dispatcher's level of autograd; `torch.library.register_autograd` takes several times as long."""
    if _is_plain(a, b):
        return (_apply if _is_tracked(a, b) else _product)(a, b, alpha, accuracy, vendor)
    return _transformed(_apply, a, b, alpha, accuracy, vendor)


def _grouped_with_gradient(a: Any, b: Any, offsets: Any, alpha: float = 1.0, accuracy: str = "ieee") -> Any:
    """The op `grouped_matmul` at the dispatcher's level of autograd."""
    if type(offsets) in _TYPES and _is_plain(a, b):
        return (_apply_groups if _is_tracked(a, b) else _groups)(a, b, offsets, alpha, accuracy)
    return _transformed(_apply_groups, a, b, offsets, alpha, accuracy)


def _transformed(apply: Any, *arguments: Any) -> Any:
    """The result of `apply` for tensors that are not plain."""
    modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    with enable_single_level_autograd_function():
        return apply(*arguments, modes)


def _batched(
    info: Any, dims: tuple[int | None, ...], a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee",
    vendor: str | None = None,
) -> tuple[Any, int]:  # fmt: skip
    """The op within `torch.vmap`: one product of stacks, with the mapped dimension as the first of a stack, or as the
    rows or columns of a matrix where vectors are mapped alone.

    `dims` are the mapped dimensions of a and b. Returns the results and their mapped dimension.
    """
    options = alpha, accuracy, vendor
    for name, each, dim in zip("ab", (a, b), dims):
        text = f"{name} must have a dimension at least, got a number for each place of the mapped dimension"
        check(dim is None or each.dim() > 1, text, ShapeError)
    a, b = (each if dim is None else each.movedim(dim, 0) for each, dim in zip((a, b), dims))
    if dims[1] is None and a.dim() == 2:
        result = _op(a, b, *options)
        return result, max(0, result.dim() - 2)
    if dims[0] is None and b.dim() == 2:
        result = _op(a, b.t(), *options)
        return result, result.dim() - 1
    row, col = dims[0] is not None and a.dim() == 2, dims[1] is not None and b.dim() == 2
    a, b = a.unsqueeze(1) if row else a, b.unsqueeze(2) if col else b
    rank = max(each.dim() + (dim is None) for each, dim in zip((a, b), dims))
    a, b = (
        each if dim is None else each.unflatten(0, (info.batch_size, *[1] * (rank - each.dim())))
        for each, dim in zip((a, b), dims)
    )
    return _op(a, b, *options).squeeze([-2] * row + [-1] * col), 0


def _batched_groups(
    info: Any, dims: tuple[int | None, ...], a: Any, b: Any, offsets: Any, alpha: float = 1.0, accuracy: str = "ieee"
) -> tuple[Any, int]:
    """The op `grouped_matmul` within `torch.vmap`: a call for each place of the mapped dimension.

    `dims` are the mapped dimensions of a, b and offsets. Returns the results and their mapped dimension.
    """
    operands = [
        [each] * info.batch_size if dim is None else each.unbind(dim) for each, dim in zip((a, b, offsets), dims)
    ]
    results = [_grouped_op(*each, alpha, accuracy) for each in zip(*operands)]
    if results:
        return torch.stack(results), 0
    a, b, offsets = (
        each if dim is None else each.new_empty(each.movedim(dim, 0).shape[1:])
        for each, dim in zip((a, b, offsets), dims)
    )
    return a.new_empty((0, *_grouped_fake(a, b, offsets).shape)), 0


_ops.impl("matmul", _kernel, "CompositeExplicitAutograd")
_ops.impl("matmul", _with_gradient, "Autograd")
torch.library.register_vmap("tilewright::matmul", _batched, lib=_ops)
torch.library.register_fake("tilewright::matmul", _fake, lib=_ops)
_ops.impl("grouped_matmul", _grouped_kernel, "CompositeExplicitAutograd")
_ops.impl("grouped_matmul", _grouped_with_gradient, "Autograd")
torch.library.register_vmap("tilewright::grouped_matmul", _batched_groups, lib=_ops)
torch.library.register_fake("tilewright::grouped_matmul", _grouped_fake, lib=_ops)
