"""Plans of calls: the work that remains for arrays whose shapes, strides and types were checked before."""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ...codegen.errors import ArgumentTypeError, LayoutError, ShapeError, check
from ...codegen.problem import DType
from ..device import launcher
from .arguments import (
    check_apart,
    check_non_decreasing,
    check_place,
    check_start,
    check_written,
    is_transposed,
    leading,
    names_of,
    number,
    transpose_of,
)
from .arrays import Kind, View, as_array, in_library_of, kind_of
from .kernel import Kernel, Laid
from .stack import Stack, matrix_of, repeated
from .vendor import LaidVendor, VendorProduct

_MAX_PLANS = 64
"""Most plans of one kernel, each for one layout of its arrays."""

_ONE: tuple[tuple[int, ...], ...] = ((0, 0, 0),)
"""Bytes from the operands to the first matrices of each launch, where there is one launch."""
_turn = itertools.count().__next__


class ReadyKernel:
    """A loaded kernel that calls can use, and its last use."""

    __slots__ = ("captured", "kernel", "tuned", "used")

    def __init__(self, kernel: Kernel | VendorProduct, tuned: bool = False) -> None:
        self.kernel = kernel
        self.tuned = tuned
        """Whether there is a record of exactly its shape."""
        self.captured = False
        """Whether a graph holds the kernel, which must then stay loaded."""
        self.touch()

    def touch(self) -> None:
        """Note that the kernel is used now."""
        self.used = _turn()
        """Turn of the last use: the kernel with the lowest one is the least recently used."""


Inside = Callable[..., Any]
"""Multiplies two arrays of a device's array library: a, b, C or None, alpha and beta, and further arrays of a call."""


class CallPlan:
    """Plan for calls of one kernel with arrays of one kind and one layout."""

    __slots__ = (
        "_device", "_dims", "_index", "_inside", "_kind", "_lds", "_least", "_odd", "_pointer", "_ready", "_run",
        "_shape", "_size", "_span_a", "_span_b", "_span_c", "_span_further", "_stream", "_swapped", "_transposed",
        "tracks",
    )  # fmt: skip

    def __init__(
        self, ready: ReadyKernel, kind: Kind, place: str, lds: tuple[int, int, int],
        stack: Stack, inside: Inside, transposed: tuple[bool, bool] = (False, False), swapped: bool = False,
    ) -> None:  # fmt: skip
        """`stack` is the caller's product, and `inside` multiplies arrays of the library of the kernel's device.
        `transposed` says whether the kernel's stored A and B are the transposes of the arrays. With `swapped` the
        kernel computes the transpose of the caller's product: its A is `b`, its B is `a`, and its C `out` transposed.
        """
        kernel = ready.kernel
        self.tracks = kind.tracked if kind.autograd else None
        """Tells whether autograd has to record a product of three arrays; None for arrays without autograd."""
        self._ready, self._kind, self._device = ready, kind, kernel.device
        self._pointer, self._stream, self._inside = kind.pointer, kind.stream, inside
        stack = stack.transposed if swapped else stack
        self._shape, self._dims, offsets = stack.shape, stack.dims, stack.offsets
        run = kernel.laid(*lds, stack.strides)
        self._run = run if offsets == _ONE else repeated(run, offsets)
        self._index = None if place == "host" else int(place.partition(":")[2])
        """Number of the arrays' GPU, None for the processor's memory."""
        self._transposed, self._swapped = transposed, swapped
        problem, self._size, self._lds = kernel.problem, kernel.problem.dtype.size_bytes, lds
        self._odd = self._size - 1
        self._least = 0.0 if problem.dtype is DType.DOUBLE else problem.dtype.smallest_subnormal
        """Least magnitude of a factor other than 0. A smaller one is rounded to it, as 0 would leave out C, or A and
        B."""
        shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        stacks = [sum((extent - 1) * step[i] for extent, step in self._dims) for i in range(3)]
        self._span_a, self._span_b, self._span_c = (
            ((rows - 1) * ld + cols) * self._size + far if rows and cols and offsets else 0
            for (rows, cols), ld, far in zip(shapes, lds, stacks)
        )
        self._span_further = 4 * problem.batch if problem.ragged else 0
        """Bytes of the offsets of groups; 0 where a call has no further array."""

    def quick(self) -> "CallPlan":
        """The plan with its usual call in C, where the extension is loaded and the arrays lie on a GPU."""
        laid, extension = self._run, None if self._index is None else launcher.module()
        if extension is None or not isinstance(laid, Laid | LaidVendor):
            return self
        device, program = self._device, laid.program.exchanged() if self._swapped else laid.program
        lock = program.lock
        turns = (lock.held, lock.acquire, lock.release) if program.shared else (None, None, None)
        place = device.current, self._index, self._stream, device.capturing, self._pointer
        after = self._ready.touch, None if self.tracks is None else self._kind.wrote
        work = *turns, program.addresses, program.maps, program.constants, program.steps
        order = (1, 0, 2) if self._swapped else (0, 1, 2)
        spans = self._span_a, self._span_b, self._span_c
        bounds = [[each[i] for i in order] for each in (spans, laid.masks)]
        objects = self, self.tracks, *place, *after, *work
        call: CallPlan = extension.Call(objects, *map(tuple, bounds), self._span_further)
        return call

    def __call__(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, *further: Any) -> Any:
        """The product. `further` has the offsets of a ragged batch, if it is one. The plan checks that offsets in the
        processor's memory are non-decreasing.

        Raises ArgumentTypeError, ShapeError, LayoutError, LaunchError.
        """
        if type(alpha) is not float:
            alpha = number("alpha", alpha)
        if type(beta) is not float:
            beta = number("beta", beta)
        least = self._least
        if -least < alpha < least and alpha:
            alpha = math.copysign(least, alpha)
        if -least < beta < least and beta:
            beta = math.copysign(least, beta)
        index, device = self._index, self._device
        if index is None:
            for offsets in further:
                self._kind.check_memory("offsets", offsets)
                problem = self._ready.kernel.problem
                check_non_decreasing(
                    self._kind.numpy(offsets).tolist(), problem.m if problem.ragged == "m" else problem.k
                )
            if device.info.arch.is_host:
                return self._here(0, False, a, b, out, alpha, beta, *further)
            with device.entered():
                return self._through_device(a, b, out, alpha, beta, *further)
        if device.current() == index:
            stream = self._stream(index)
            return self._here(stream, device.capturing(stream), a, b, out, alpha, beta, *further)
        with device.entered():
            stream = self._stream(index)
            return self._here(stream, device.capturing(stream), a, b, out, alpha, beta, *further)

    def _here(
        self, stream: int, capturing: bool, a: Any, b: Any, out: Any, alpha: float, beta: float, *further: Any
    ) -> Any:
        """The product of arrays in the kernel's memory."""
        pointer, c = self._pointer, self._new_result(a, beta) if out is None else out
        if self._swapped:
            a, b = b, a
        try:
            at_a, at_b, at_c, *at_further = pointer(a), pointer(b), pointer(c), *map(pointer, further)
        except RuntimeError:  # torch's, of a tensor without storage
            self._check_memory(a, b, c, out, *further)
            raise
        if not (at_a and at_b and at_c):
            self._check_memory(a, b, c, out)
        end_c = at_c + self._span_c
        if (at_a < end_c and at_c < at_a + self._span_a) or (at_b < end_c and at_c < at_b + self._span_b):
            problem, names = self._ready.kernel.problem, names_of(self._swapped)
            check_apart(problem, (at_a, at_b, at_c), self._lds, names, self._dims)
        for at in at_further:
            if at < end_c and at_c < at + self._span_further:
                raise LayoutError("out overlaps offsets: pass another, or leave it away")
        if (at_a | at_b | at_c) & self._odd:
            self._check_elements(at_a, at_b, at_c)
        if capturing:
            self._ready.captured = True
        self._run(stream, capturing, at_a, at_b, at_c, alpha, beta, *at_further)
        self._ready.touch()
        if out is not None and self.tracks is not None:
            self._kind.wrote(out)
        return c if out is not None or self._shape else self._kind.scalar(c)

    def _through_device(self, a: Any, b: Any, out: Any, alpha: float, beta: float, *further: Any) -> Any:
        """The product of arrays in the processor's memory by a kernel on a GPU: copied in, launched, copied out."""
        result = self._new_result(a, beta) if out is None else out
        if self._dims or len(self._shape) != 2:
            return self._stack_through_device(a, b, out, result, alpha, beta, *further)
        pointer, problem = self._kind.pointer, self._ready.kernel.problem
        if self._swapped:
            a, b = b, a
        if self.tracks is not None:  # only torch has arrays without memory
            self._check_memory(a, b, result, out)
        if out is not None:
            check_apart(problem, (pointer(a), pointer(b), pointer(out)), self._lds, names_of(self._swapped))
        xp = self._device.xp
        host_a, host_b, host_c = (
            self._kind.numpy(array).T if transposed else self._kind.numpy(array)
            for array, transposed in zip((a, b, result), (*self._transposed, self._swapped))
        )
        copies = xp.asarray(host_a, order="C"), xp.asarray(host_b, order="C")
        if not host_c.size:
            return result
        c = xp.asarray(host_c, order="C") if beta != 0 else xp.empty(host_c.shape, host_c.dtype)
        at_a, at_b, at_c = (int(array.data.ptr) for array in (*copies, c))
        lda, ldb, ldc = (max(1, cols) for _, cols in (problem.stored_a, problem.stored_b, host_c.shape))
        stream = self._device.stream()
        run = self._ready.kernel.laid(lda, ldb, ldc)
        run(stream, self._device.capturing(stream), at_a, at_b, at_c, alpha, beta)
        host_c[...] = self._device.to_numpy(c)
        self._ready.touch()
        if out is not None:
            self._kind.wrote(out)
        return result

    def _new_result(self, like: Any, beta: float) -> Any:
        if beta != 0:
            raise ShapeError(f"beta is {beta!r}, so out must be given: it is C")
        return self._kind.empty(like, self._shape)

    def _stack_through_device(
        self, a: Any, b: Any, out: Any, result: Any, alpha: float, beta: float, *further: Any
    ) -> Any:
        """The product of stacks or vectors in the processor's memory, multiplied as arrays on the device."""
        kind, device = self._kind, self._device
        for name, array in (("a", a), ("b", b), ("out", result)):
            kind.view(name, array)
        device_a, device_b, c, *others = (device.xp.asarray(kind.numpy(each)) for each in (a, b, result, *further))
        product = self._inside(device_a, device_b, c if beta else None, alpha, beta, *others)
        kind.numpy(result)[...] = device.to_numpy(product)
        kind.wrote(result)
        return result if out is not None or self._shape else kind.scalar(result)

    def _check_memory(self, a: Any, b: Any, c: Any, out: Any, *further: Any) -> None:
        """Raise NotInMemoryError unless A, B and C of the kernel, and offsets, have memory, or no elements."""
        name_a, name_b, _ = names_of(self._swapped)
        for name, array in ((name_a, a), (name_b, b), ("the result" if out is None else "out", c)):
            self._kind.view(name, array)
        for array in further:
            self._kind.check_memory("offsets", array)

    def _check_elements(self, *pointers: int) -> None:
        for name, pointer, span in zip(names_of(self._swapped), pointers, (self._span_a, self._span_b, self._span_c)):
            if span:
                check_start(name, pointer, self._size)


class CallPlans:
    """CallPlans by everything that they depend on. Reading needs no lock."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, CallPlan] = {}
        self._keys: dict[int, list[Hashable]] = {}
        self.find = self._plans.get

    def keep(self, key: Hashable, ready: ReadyKernel, plan: CallPlan) -> None:
        """Add a plan, under the caller's lock."""
        if len(self._keys.get(id(ready), ())) >= _MAX_PLANS:
            self.drop(ready)
        self._keys.setdefault(id(ready), []).append(key)
        self._plans[key] = plan.quick()

    def drop(self, ready: ReadyKernel) -> None:
        """Remove the plans of a kernel, under the caller's lock."""
        for key in self._keys.pop(id(ready), ()):
            self._plans.pop(key, None)


MakePlan = Callable[[Kind, Hashable | None, View, View, View | None, Any], CallPlan]
"""Makes the plan for three arrays, from their kind, their key, their views and the first array itself. The key is None
where the plan cannot be stored."""


def first_call(
    a: Any, b: Any, out: Any, alpha: Any, beta: Any, copy: str, plan: CallPlan | None, make_plan: MakePlan,
    transposes: bool = False, further: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """A product without a stored plan, or of copies: the arrays are checked, converted and, as `copy` says, copied.

    `plan` is the stored one, if any, and `make_plan` makes another. `transposes` says whether transposed operands are
    used as they lie, as `out` always is. `further` are further arrays of the plan's calls.
    """
    check(copy in ("never", "if-needed"), f"copy must be 'never' or 'if-needed', got {copy!r}", ArgumentTypeError)
    if plan is not None:
        try:
            return plan(a, b, out, alpha, beta, *further)
        except LayoutError:  # a plan holds for a layout, of which addresses are no part
            if copy == "never":
                raise
    alpha, beta = number("alpha", alpha), number("beta", beta)
    check(beta == 0 or out is not None, f"beta is {beta!r}, so out must be given: it is C", ShapeError)
    arrays = {"a": as_array("a", a), "b": as_array("b", b)} | ({} if out is None else {"out": as_array("out", out)})
    views, kind = dict[str, View](), kind_of(arrays["a"])
    assert kind is not None
    for name, array in arrays.items():
        own = kind_of(array)
        assert own is not None
        views[name] = own.view(name, array)
        check_place("a", views["a"].place, name, views[name].place)
        text = f"a is a {type(a).__name__} and {name} a {type(array).__name__}: convert one of them"
        check(own is kind, text, ArgumentTypeError)
    callers_out = arrays.get("out")
    if copy == "if-needed":
        for name, view in views.items():
            if not _takes(name, view, transposes or name == "out"):
                if name == "out":
                    check_written(view)  # the result is copied there
                arrays[name] = kind.copied(arrays[name])
                views[name] = kind.view(name, arrays[name])
    target = arrays.get("out")
    key = kind.key(arrays["a"], arrays["b"], target)
    plan = make_plan(kind, key, views["a"], views["b"], views.get("out"), arrays["a"])
    result = plan(arrays["a"], arrays["b"], target, alpha, beta, *further)
    if out is None:
        return in_library_of(a, result)
    if target is not callers_out:
        kind.assign(callers_out, target)
    return out


def _takes(name: str, view: View, transposes: bool) -> bool:
    """Whether a kernel takes the layout of an operand, transposed or not."""
    if any(step < 0 or step % view.dtype.size_bytes for step in view.strides):
        return False
    matrix = matrix_of(view)
    try:
        leading(name, transpose_of(matrix) if transposes and is_transposed(matrix) else matrix)
    except LayoutError:
        return False
    return True
