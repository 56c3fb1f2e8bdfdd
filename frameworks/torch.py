"""Products in torch programs: the op `torch.ops.tilewright.matmul`, `matmul` and `Linear`. Only this needs torch.

The op has kernels for the processor and CUDA, a fake kernel for tracing and a gradient. Where nothing is traced
`matmul` goes past torch's dispatcher.
"""

import math
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    _HELP = "tilewright.torch needs PyTorch: pip install torch (https://pytorch.org/get-started has other builds)"
    raise ImportError(_HELP, name="torch") from error

from tilewright import _library

__all__ = ["Linear", "matmul"]

_ops = torch.library.Library("tilewright", "DEF")  # what it registers goes with it
_SCHEMA = "matmul(Tensor a, Tensor b, float alpha=1.0, str accuracy='ieee', str? vendor=None) -> Tensor"
_ops.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_op: Any = torch.ops.tilewright.matmul.default
_TYPES = (torch.Tensor, torch.nn.Parameter)


def matmul(a: Any, b: Any, *, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """alpha * a @ b by the tuned kernel for these shapes; gradients and `torch.compile` work.

    Rows that are padded, transposes and parts of larger tensors are used where they lie; strides that no kernel takes
    are copied. On a GPU the work is put on torch's current stream. The gradients of a and b are two products with
    shapes of their own, m x k x n and k x n x m (or their transposes, where a or b is one), so tune these too for
    training. They have gradients in turn.

    Args:
        a: m x k, float32 or float64, in the processor's memory or on a GPU.
        b: k x n, of the same dtype and in the same memory.
        alpha: factor of the product.
        accuracy: ieee, elementwise or normwise, as for `tilewright.load`; of the gradients too.
        vendor: auto or never, as for `tilewright.load`; of the gradients too.

    Returns:
        A new tensor, m x n, row by row.

    Raises:
        ShapeError, ArgumentTypeError, DeviceMismatchError: a and b do not fit; while tracing, torch raises its own.
        CaptureError: a shape's first product falls where a CUDA graph is captured: warm up, or call
            `tilewright.prepare`.
        TilewrightError: those that `tilewright.load` raises, at a shape's first product.
        NotImplementedError: differentiation in forward mode.
    """
    if torch.compiler.is_compiling():
        return _op(a, b, alpha, accuracy, vendor)
    if not _is_plain(a, b):
        transformed = torch._C._are_functorch_transforms_active()
        return _Transformed.apply(a, b, alpha, accuracy, vendor) if transformed else _op(a, b, alpha, accuracy, vendor)
    if _is_tracked(a, b):
        return _Product.apply(a, b, alpha, accuracy, vendor)
    return _product(a, b, alpha, accuracy, vendor)


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear` by `matmul`: the same arguments, parameters and state, float32 or float64."""

    def forward(self, input: Any) -> Any:  # noqa: A002
        """input @ weight.T + bias over the last dimension of an input of any rank."""
        result = matmul(input.reshape(math.prod(input.shape[:-1]), input.shape[-1]), self.weight.t())
        if self.bias is not None:
            result = result + self.bias
        return result.reshape(*input.shape[:-1], self.out_features)


def _is_plain(a: Any, b: Any) -> bool:
    """Whether these are tensors with memory, and nobody watches what is done with them."""
    return (
        type(a) in _TYPES
        and type(b) in _TYPES
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and not (a.is_neg() or b.is_neg() or a.is_meta)
    )


def _is_tracked(a: Any, b: Any) -> bool:
    """Whether autograd has to know of their product. In forward mode it then says that it cannot be had here."""
    wants = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return bool(wants or torch.autograd.forward_ad._current_level >= 0)


def _product(a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
    """What the op does for tensors of the processor and of CUDA."""
    return _library.product(a, b, None, alpha, 0.0, accuracy, None, "if-needed", vendor)


def _kernel(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    a, b = (each if type(each) in _TYPES else each.as_subclass(torch.Tensor) for each in (a, b))
    return _product(a, b, alpha, accuracy, vendor)


def _fake(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """A tensor of the shape, strides, dtype and device of the result."""
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: f"a and b must be two-dimensional: {a.shape}, {b.shape}")
    torch._check(a.shape[1] == b.shape[0], lambda: f"inner dimensions differ: {a.shape}, {b.shape}")
    torch._check(a.dtype == b.dtype, lambda: f"a is {a.dtype} and b is {b.dtype}: cast one of them first")
    wanted = torch.float32, torch.float64
    torch._check(a.dtype in wanted, lambda: f"a and b must be float32 or float64, got {a.dtype}")
    torch._check(a.device == b.device, lambda: f"a is on {a.device}, b on {b.device}")
    return a.new_empty((a.shape[0], b.shape[1]))


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The product and its gradients: dA = alpha dC B^T, dB = alpha A^T dC."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
        _save(ctx, a, b, alpha, accuracy, vendor)
        return _below_autograd(a, b, alpha, accuracy, vendor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None, None, None, None, None
        a, b = ctx.saved_tensors
        for_a, for_b, *_ = ctx.needs_input_grad
        of_a = of_b = None
        if for_a:
            of_a = _as_it_lies(a, grad, b.t(), ctx.alpha, ctx.accuracy, ctx.vendor)
        if for_b:
            of_b = _as_it_lies(b, a.t(), grad, ctx.alpha, ctx.accuracy, ctx.vendor)
        return of_a, of_b, None, None, None


class _Transformed(_Product):
    """The same within `torch.func.grad`, `vmap` and their like, which want it in this form. It is much slower."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:  # type: ignore[override]
        return _below_autograd(a, b, alpha, accuracy, vendor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, *inputs)


def _as_it_lies(like: Any, a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
    """The product of a and b, transposed in memory where `like` is: the gradient of a parameter is then not copied."""
    if like.stride(0) == 1 and like.stride(1) == like.shape[0]:
        return matmul(b.t(), a.t(), alpha=alpha, accuracy=accuracy, vendor=vendor).t()
    return matmul(a, b, alpha=alpha, accuracy=accuracy, vendor=vendor)


def _save(ctx: Any, a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> None:
    ctx.save_for_backward(a, b)
    ctx.set_materialize_grads(False)
    ctx.alpha, ctx.accuracy, ctx.vendor = alpha, accuracy, vendor


def _below_autograd(a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
    if _is_plain(a, b):
        return _product(a, b, alpha, accuracy, vendor)
    with torch._C._AutoDispatchBelowAutograd():
        return _op(a, b, alpha, accuracy, vendor)


def _with_gradient(a: Any, b: Any, alpha: float = 1.0, accuracy: str = "ieee", vendor: str | None = None) -> Any:
    """The op where autograd is asked. `torch.library.register_autograd` would do, and cost several launches a call."""
    if _is_tracked(a, b):
        return _Product.apply(a, b, alpha, accuracy, vendor)
    return _below_autograd(a, b, alpha, accuracy, vendor)


for _key in ("CPU", "CUDA"):
    _ops.impl("matmul", _kernel, _key)
_ops.impl("matmul", _with_gradient, "Autograd")
torch.library.register_fake("tilewright::matmul", _fake, lib=_ops)
