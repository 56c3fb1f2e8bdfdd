"""The kinds of arrays that products take: NumPy's, CuPy's, torch's, and arrays that share memory with one of them.

CuPy and torch are never imported here: a caller with an array of theirs has imported them.
"""

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from ...codegen.errors import ArgumentTypeError, NotInMemoryError, TilewrightError, check
from ...codegen.problem import DType
from ..device.detect import device_of


class Array(Protocol):
    """An array of NumPy, CuPy, torch or another library, for type checkers."""

    @property
    def shape(self) -> Any:
        """Dimensions."""

    @property
    def dtype(self) -> Any:
        """Type of the elements."""


A = TypeVar("A", bound=Array)
"""Kind of the operands and of the result."""
Copy = Literal["never", "if-needed"]
"""Whether arrays in layouts that no kernel takes are copied."""

_WANTED = "must be a NumPy, CuPy or torch array"
_OF_NUMPY = {np.dtype(dtype.numpy_name): dtype for dtype in DType}
"""Types of elements by NumPy's dtypes, in native byte order."""


@dataclass(frozen=True, slots=True)
class View:
    """The layout of an array in memory."""

    pointer: int
    """Address of the first element."""
    shape: tuple[int, ...]
    """Dimensions."""
    strides: tuple[int, ...]
    """Bytes from an element to the next along each dimension."""
    dtype: DType
    """Type of the elements."""
    place: str
    """The memory that the array is in: `host` or `cuda:N`."""
    writable: bool = True
    """Whether the array may be written."""


class Kind(Protocol):
    """A library of arrays. The definitions here suit one without autograd and GPUs."""

    autograd: bool = False
    """Whether the library records products for gradients."""
    pointer: Callable[[Any], int]
    """Returns the address of an array's first element."""
    stream: Callable[[int], int]
    """Returns the library's current stream on the GPU of a number."""

    def tracked(self, a: Any, b: Any, out: Any) -> bool:
        """Whether autograd or a trace has to record the product of a and b in out."""
        return False

    def key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        """Everything about three arrays but their addresses; None where they are not all of this kind. `out` may be
        None."""

    def view(self, name: str, array: Any) -> View:
        """The layout of an array, which messages call `name`. Raises ArgumentTypeError."""

    def check_memory(self, name: str, array: Any) -> None:
        """Raise ArgumentTypeError unless the elements of an array, which messages call `name`, are in its memory."""
        return

    def place(self, array: Any) -> str:
        """The memory that an array is in, as `View.place`."""

    def is_dense(self, array: Any) -> bool:
        """Whether an array lies without gaps, row by row."""
        return bool(array.flags.c_contiguous)

    def captures(self, array: Any) -> bool:
        """Whether an array lies on a GPU whose current stream is captured, so that nothing of it can be read."""
        return False

    def wrote(self, array: Any) -> None:
        """Tell autograd that the elements of an array have changed."""
        return

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        """A new array of the type of `like`, and in the same memory."""

    def scalar(self, array: Any) -> Any:
        """The product of two vectors, from a new array without dimensions."""
        return array

    def copied(self, array: Any) -> Any:
        """A copy that lies row by row."""

    def assign(self, target: Any, source: Any) -> None:
        """Copy all elements."""
        target[...] = source

    def numpy(self, array: Any) -> Any:
        """An array in the processor's memory as NumPy sees it, not copied."""
        return array


class _NumPy(Kind):
    def key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if type(b) is not np.ndarray:
            return None
        if out is None:
            return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype
        if type(out) is not np.ndarray or not out.flags.writeable:
            return None
        return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, out.shape, out.strides, out.dtype

    def view(self, name: str, array: Any) -> View:
        dtype = _dtype(name, array.dtype)
        return View(self.pointer(array), array.shape, array.strides, dtype, "host", array.flags.writeable)

    def place(self, array: Any) -> str:
        return "host"

    def pointer(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def stream(self, index: int) -> int:
        return 0

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, like.dtype)

    def scalar(self, array: Any) -> Any:
        return array[()]

    def copied(self, array: Any) -> Any:
        return np.array(array, order="C")


class _CuPy(Kind):
    def __init__(self, module: Any) -> None:
        self._cupy, self._array = module, module.ndarray
        self._current_stream = module.cuda.get_current_stream
        self.pointer: Callable[[Any], int] = attrgetter("data.ptr")

    def key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if type(b) is not self._array:
            return None
        place = a.data.device_id
        if b.data.device_id != place:
            return None
        # Strides take longer to read, and the shape determines those of a contiguous array.
        of_a, of_b = a._c_contiguous or a.strides, b._c_contiguous or b.strides
        if out is None:
            return place, a.shape, of_a, a.dtype, b.shape, of_b, b.dtype
        if type(out) is not self._array or out.data.device_id != place:
            return None
        of_out = out._c_contiguous or out.strides
        return place, a.shape, of_a, a.dtype, b.shape, of_b, b.dtype, out.shape, of_out, out.dtype

    def view(self, name: str, array: Any) -> View:
        dtype = _dtype(name, array.dtype)
        return View(self.pointer(array), array.shape, array.strides, dtype, self.place(array))

    def place(self, array: Any) -> str:
        return f"cuda:{array.data.device_id}"

    def stream(self, index: int) -> int:
        stream: int = self._current_stream().ptr
        return stream

    def captures(self, array: Any) -> bool:
        with array.device:
            return bool(self._current_stream().is_capturing())

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self._cupy.empty(shape, like.dtype)

    def copied(self, array: Any) -> Any:
        with array.device:
            return self._cupy.array(array, order="C")

    def assign(self, target: Any, source: Any) -> None:
        with target.device:
            target[...] = source


class _TraceFlag:
    """Has the attribute `_is_fx_tracing_flag`, which torch.fx sets while it traces a program."""

    def __init__(self, is_tracing: Callable[[], bool]) -> None:
        self._is_tracing = is_tracing

    @property
    def _is_fx_tracing_flag(self) -> bool:
        return self._is_tracing()


def trace_flag_of(torch: Any) -> Any:
    """An object whose `_is_fx_tracing_flag` tells whether torch.fx traces a program. Up to torch 2.13 a module of
    torch.fx has that attribute, and reading it costs no call."""
    module = torch.fx._symbolic_trace
    return module if hasattr(module, "_is_fx_tracing_flag") else _TraceFlag(module.is_fx_symbolic_tracing)


class _Torch(Kind):
    autograd = True

    def __init__(self, module: Any) -> None:
        self._torch, self._types = module, (module.Tensor, module.nn.Parameter)
        self._increment = module.autograd.graph.increment_version
        self._trace = trace_flag_of(module)
        self.pointer: Callable[[Any], int] = module.Tensor.data_ptr
        self.stream: Callable[[int], int] = getattr(module._C, "_cuda_getCurrentRawStream", lambda index: 0)

    def key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        place = a.device  # not get_device(), which takes a tensor without memory for one of the processor
        if type(b) not in self._types or b.device != place or a.is_neg() or b.is_neg():
            return None
        try:
            if out is None:
                return place, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype
            if type(out) not in self._types or out.device != place or out.is_neg():
                return None
            return place, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, out.shape, out.stride(), out.dtype
        except RuntimeError:  # a layout without shape or strides, which `view` reports
            return None

    def view(self, name: str, array: Any) -> View:
        self.check_memory(name, array)
        dtype = _dtype(name, array.dtype)
        strides = tuple(step * dtype.size_bytes for step in array.stride())
        return View(array.data_ptr(), tuple(array.shape), strides, dtype, self.place(array))

    def check_memory(self, name: str, array: Any) -> None:
        layout, device = "nested" if array.is_nested else str(array.layout), array.device
        advice = f"multiply its parts {name}.unbind()" if array.is_nested else f"pass {name}.to_dense()"
        check(
            layout == "torch.strided",
            f"{name} must be a dense tensor, got layout {layout}: {advice}",
            ArgumentTypeError,
        )
        on_host_or_gpu = device.type in ("cpu", "cuda")
        check(on_host_or_gpu, f"{name} must be on the processor or a GPU, got {device}", ArgumentTypeError)
        check(not array.is_neg(), f"{name} is a negated view: pass {name}.resolve_neg()", NotInMemoryError)
        try:
            address = array.data_ptr()
        except RuntimeError:  # torch's, of a tensor without storage
            address = None
        if address is None or (address == 0 and array.numel()):
            advice = "pass a tensor with memory, or within torch.func and traces call tilewright.torch.matmul"
            raise NotInMemoryError(f"{name} has no memory: {advice}")

    def place(self, array: Any) -> str:
        device = array.device
        return "host" if device.type == "cpu" else f"cuda:{device.index}"

    def is_dense(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def captures(self, array: Any) -> bool:
        if array.device.type != "cuda":
            return False
        with self._torch.cuda.device(array.device):
            return bool(self._torch.cuda.is_current_stream_capturing())

    def wrote(self, array: Any) -> None:
        if not array.is_inference():
            self._increment(array)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self._torch.empty(shape, dtype=like.dtype, device=like.device)

    def copied(self, array: Any) -> Any:
        return array.detach().clone(memory_format=self._torch.contiguous_format)

    def assign(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def numpy(self, array: Any) -> Any:
        return array.detach().numpy()

    def tracked(self, a: Any, b: Any, out: Any) -> bool:
        if self._trace._is_fx_tracing_flag:  # a product that is not recorded becomes a constant of the trace
            return True
        wants = a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)
        if wants and self._torch.is_grad_enabled():
            return True
        forward = self._torch.autograd.forward_ad
        if forward._current_level < 0:
            return False
        return self._torch._C._are_functorch_transforms_active() or any(
            forward.unpack_dual(each).tangent is not None for each in (a, b, out) if each is not None
        )


KINDS: dict[type, Kind] = {np.ndarray: _NumPy()}
"""Kinds by the type of their arrays. A type of CuPy or torch is added when the first such array is passed."""


def kind_of(array: Any) -> Kind | None:
    """The library of an array, None where it is neither NumPy nor CuPy nor torch."""
    kind = KINDS.get(type(array))
    if kind is None:
        cupy: Any = sys.modules.get("cupy")
        torch: Any = sys.modules.get("torch")
        if type(array) is getattr(cupy, "ndarray", ()):
            kind = KINDS[type(array)] = _CuPy(cupy)
        elif hasattr(torch, "nn") and type(array) in (torch.Tensor, torch.nn.Parameter):
            kind = KINDS[torch.Tensor] = KINDS[torch.nn.Parameter] = _Torch(torch)
    return kind


def as_array(name: str, array: Any, dtype: str = "float32") -> Any:
    """The array itself where it is one of NumPy, CuPy or torch, else the same memory as a NumPy or CuPy array. Messages
    name `dtype`.

    Raises ArgumentTypeError for what is no array, and for subclasses whose meaning would be lost.
    """
    if kind_of(array) is not None:
        return array
    typename = type(array).__name__
    if isinstance(array, np.memmap):
        return array.view(np.ndarray)
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{name} is a masked array, whose mask would be lost: pass {name}.filled(...)")
    if isinstance(array, np.ndarray):
        raise ArgumentTypeError(f"{name} {_WANTED}, got its subclass {typename}: pass np.asarray({name})")
    if isinstance(array, getattr(sys.modules.get("torch"), "Tensor", ())):
        advice = f"call tilewright.torch.matmul, or pass {name}.as_subclass(torch.Tensor)"
        raise ArgumentTypeError(f"{name} {_WANTED}, got its subclass {typename}: {advice}")
    if isinstance(array, getattr(sys.modules.get("cupy"), "ndarray", ())):
        raise ArgumentTypeError(f"{name} {_WANTED}, got its subclass {typename}: pass {name}.view(cupy.ndarray)")
    try:
        if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            on_host = int(array.__dlpack_device__()[0]) in (1, 3)  # kDLCPU, kDLCUDAHost
            return np.from_dlpack(array) if on_host else device_of("cuda").xp.from_dlpack(array)
        if hasattr(array, "__cuda_array_interface__"):
            return device_of("cuda").xp.asarray(array)
    except TilewrightError:
        raise
    except Exception as error:  # other libraries raise errors of many types
        reason = " ".join(str(error).split())
        raise ArgumentTypeError(
            f"{name}, a {typename}, cannot be read through its array interface: {reason}"
        ) from error
    hint = "" if isinstance(array, type) else f": pass np.asarray({name}, dtype='{dtype}') or another array"
    raise ArgumentTypeError(f"{name} {_WANTED}, got {typename}{hint}")


def in_library_of(like: Any, result: Any) -> Any:
    """The result as an array of the library that `like` belongs to, where `like` names it by `__array_namespace__`."""
    if kind_of(like) is not None or not hasattr(like, "__array_namespace__"):
        return result
    namespace = like.__array_namespace__()
    if isinstance(result, np.generic):  # the product of two vectors, which has no __dlpack__
        result = np.asarray(result)
    return namespace.from_dlpack(result) if hasattr(namespace, "from_dlpack") else result


def _dtype(name: str, dtype: Any) -> DType:
    if isinstance(dtype, np.dtype) and dtype in _OF_NUMPY:  # spelling it imports a module, too late as Python ends
        return _OF_NUMPY[dtype]
    try:
        return DType.parse(dtype)
    except ArgumentTypeError as error:
        native = getattr(dtype, "isnative", True)
        text = str(dtype).removeprefix("torch.") if native else dtype.str
        remedy = "convert it before, nothing is cast"
        raise ArgumentTypeError(
            f"{name} must be float32 or float64 in native byte order, got {text}: {remedy}"
        ) from error
