"""Matrix products of NumPy, CuPy and torch arrays: `load`, `matmul` and what keeps their kernels ready."""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, SupportsFloat, SupportsIndex

from ...codegen.arch import Arch, arch_named
from ...codegen.bundle import Served
from ...codegen.config import Config
from ...codegen.emit import Layout, emit
from ...codegen.emitted import Emitted
from ...codegen.errors import (
    ArgumentTypeError,
    DeviceError,
    DeviceMismatchError,
    NotInMemoryError,
    check,
    check_path,
    check_type,
)
from ...codegen.families import parse
from ...codegen.problem import DTypeLike, GradeLike, Problem, Shape, Sizes, Trans
from .. import settings
from ..device.detect import device_of
from ..device.known import of_arch, typical
from ..device.protocol import Device, DeviceInfo, DeviceName, Operand
from ..locks import Lock
from ..store.lookup import LookupResult, Ranking
from ..store.store import Store
from .arguments import called, check_graphs, check_offsets, laid_out, number, problem_of, refuse, transpose_of
from .arrays import KINDS, A, Copy, Kind, View, as_array, kind_of
from .gemm import Gemm, MeasureShape, load_on, refuse_capture
from .kernel import Kernel
from .plan import CallPlan, CallPlans, Inside, ReadyKernel, first_call
from .stack import Stack, grouped, stacked
from .vendor import Faster, Operands, OwnKernel, VendorFallback, VendorProduct, started

_SECONDS = 2.0
"""Seconds spent on measuring a shape at its first use."""
_MAX_KERNELS = 256
"""Most kernels that `matmul` keeps ready, as each holds a library or module open."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that the library holds on the devices."""

    kernels: int
    """Number of loaded kernels, including those of `load` that are in use."""
    bytes: int
    """Bytes of machine code and of the memory that launches work in."""


Measure = Callable[[Device, Problem, Store, LookupResult, float], LookupResult]
"""Measures a shape that was not tuned, for a number of seconds."""

Differentiable = Callable[..., Any]
"""Multiplies tensors that autograd, a transform or a trace must see: a, b, alpha, accuracy and vendor, and the offsets
of groups, if any."""


class Library:
    """`load` and `matmul`, and the functions that choose kernels for shapes that were not tuned. Keeps the kernels of
    `matmul` ready."""

    def __init__(self, ranking: Ranking, measure: Measure, differentiable: Differentiable, faster: Faster) -> None:
        """`differentiable` multiplies tensors that torch's autograd tracks."""
        self._ranking, self._measure, self._differentiable, self._faster = ranking, measure, differentiable, faster
        self._kernels: dict[tuple[Problem, tuple[str, str]], ReadyKernel] = {}
        """Kernels by problem, and by the selector of their device and `auto` or `never`."""
        self._in_graphs: list[ReadyKernel] = []
        """Kernels that graphs hold, and that measured ones have replaced."""
        self._plans = CallPlans()
        self._loaded: weakref.WeakSet[Kernel | VendorProduct] = weakref.WeakSet()
        self._lock = Lock()

    @called("tilewright.load")
    def load(
        self,
        shape: Shape | SupportsIndex | None = None,
        n: SupportsIndex | None = None,
        k: SupportsIndex | None = None,
        *more: Never,
        dtype: DTypeLike | None = None,
        trans: Trans | None = None,
        trans_a: bool | None = None,
        trans_b: bool | None = None,
        accuracy: GradeLike | None = None,
        device: DeviceName = "auto",
        store: Path | str | None = None,
        first_use: settings.FirstUse | None = None,
        seconds: float = _SECONDS,
        vendor: settings.Vendor | None = None,
        m: SupportsIndex | None = None,
        batch: SupportsIndex | None = None,
        **unknown: Never,
    ) -> Gemm:
        """Load the store's kernel for a shape, ready to be called: `load("1024x768x512")`.

        Its config is the one tuned for exactly this shape (`.origin` is `exact`), else `predicted`: the config of a
        near shape, else on a GPU the one that a model of measurements for other shapes expects to be the fastest, else
        the config of the nearest shape; else it is the `default`. If the vendor's library is faster, it serves
        (`vendor`). A record of another driver or compiler, or of another text of the kernel, is verified against the
        reference first. A CUDA graph in which the kernel was captured needs the kernel: keep it as long.

        Args:
            shape: "1024x768x512" (M x N x K), "1024" for a cube, (m, n, k), or a Problem, which has dtype, transposes
                and accuracy of its own. `load(m, n, k)`, also by these names, does the same.
            n: columns of C, where `shape` is m, the rows of C.
            k: inner dimension, where `shape` is m.
            dtype: float or double, or a type of that name of NumPy, CuPy or torch (float32, float64); None for float.
            trans: nn, nt, tn or tt: which of A and B are stored transposed; None for nn.
            trans_a: whether A is stored k x m, in place of `trans`.
            trans_b: whether B is stored n x k, in place of `trans`.
            accuracy: ieee, or for float elementwise or normwise, which allow kernels on the tensor cores
                (docs/accuracy.md); None for ieee.
            device: auto (the first GPU, else the processor), cuda, cuda:N or host.
            store: folder of records; None for that of the user.
            first_use: `measure` has some likely kernels compiled, verified and timed where the shape was not tuned,
                and keeps the fastest in the store; the caller waits. `predict` does not. None for what
                TILEWRIGHT_FIRST_USE says, else `predict`.
            seconds: about how long measuring may take.
            vendor: `auto` hands the product to the vendor's library where that is faster than our kernel. On a GPU a
                record decides, or without one a timing of both for some milliseconds. On the processor NumPy serves,
                unless exactly this shape was tuned there. `never` does not. None for what TILEWRIGHT_VENDOR says, else
                `auto`.
            m: rows of C, in place of `shape`, where n and k are given too.
            batch: products of the shape that one call computes, of stacks of matrices; None for one.

        Raises:
            ArgumentTypeError: `shape` is no shape, a dimension that is no integer, another dtype, an unknown argument.
            ShapeError: a text that is no shape, a dimension below 0 or above 2^31 - 1.
            ConfigError: an unknown first_use or vendor, seconds that are not positive, an accuracy that the dtype does
                not have, a shape that no kernel serves, arguments that contradict each other.
            DeviceError: no such device, or what it needs is missing.
            CompileError, LaunchError, StoreError: compiling, loading or reading the store failed.
        """
        if more or unknown:
            refuse(Library.load, more, unknown)
        flags = {"trans_a": trans_a, "trans_b": trans_b}
        problem = Problem.parse(_one_shape(shape, m, n, k), dtype, trans, accuracy, **flags, batch=batch)
        opened = device_of(device)
        measure = self._first_use(first_use, seconds)
        fallback = self._fallback(settings.vendor(vendor))
        records = Store(check_path("store", store))
        return load_on(opened, problem, records, self._ranking, measure, fallback, self._note)

    def _note(self, product: Kernel | VendorProduct) -> None:
        """Add a product to the loaded ones."""
        with self._lock.alone():
            self._loaded.add(product)

    @called("tilewright.matmul")
    def matmul(
        self, a: A, b: A, *more: Never, out: A | None = None, alpha: SupportsFloat = 1.0, beta: SupportsFloat = 0.0,
        accuracy: GradeLike = "ieee", device: DeviceName | None = None, copy: Copy = "never",
        vendor: settings.Vendor | None = None, **unknown: Never,
    ) -> A:  # fmt: skip
        """alpha * a @ b + beta * out by the tuned kernel for these shapes, which is looked up and compiled once.

        Products of arrays on a GPU run there, on the current stream of their library. Views with padded rows and
        transposed views are used in place; for an `out` by columns the kernel of C^T = B^T A^T runs. torch's autograd,
        transforms and traces record products of their tensors.

        Args:
            a: (..., m, k), or (k,) as a row; float32 or float64, of NumPy, CuPy or torch, or anything with
                `__cuda_array_interface__` or `__dlpack__`.
            b: (..., k, n), or (k,) as a column; of the same dtype and in the same memory. The dimensions before the
                last two broadcast with those of a, without a copy.
            out: (..., m, n), the shape of the result, without m where a is a vector and without n where b is. Its
                matrices lie row by row or column by column. With beta other than 0 it is C, and has to be given.
            alpha: factor of the product, a number or a 0-d array. With 0, a and b are not read. A 0-d array on a GPU is
                copied to the processor at each call, which waits for the GPU and cannot be captured.
            beta: factor of C, in the same way. With 0, what `out` held is not read.
            accuracy: ieee, elementwise or normwise, as for `load`.
            device: auto, cuda, cuda:N or host, for arrays in the processor's memory.
            copy: `never`, or `if-needed`, which copies arrays with negative strides, and matrices whose columns lie
                apart or whose rows overlap.
            vendor: auto or never, as for `load`.

        Returns:
            `out` if given, else a new array of a's kind in the shape of the result, row by row; a scalar for two
            vectors.

        Raises:
            TilewrightError: every error of calling a loaded kernel and of `tilewright.load`.
        """
        if more or unknown:
            refuse(Library.matmul, more, unknown)
        kind = KINDS.get(type(a)) or kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        try:
            plan = self._plans.find((device, accuracy, vendor, key))
        except TypeError:  # one of them has no hash
            plan = None
        result: A
        try:
            if plan is None or copy != "never":
                result = self.product(a, b, out, alpha, beta, accuracy, device, copy, vendor, track=True)
            elif plan.tracks is not None and plan.tracks(a, b, out):
                result = self._tracked(a, b, out, alpha, beta, accuracy, device, vendor)
            else:
                result = plan(a, b, out, alpha, beta)
        except NotInMemoryError:
            if out is not None or kind_of(b) is not kind:
                raise
            result = self._tracked(a, b, out, alpha, beta, accuracy, device, vendor)
        return result

    def product(
        self, a: Any, b: Any, out: Any, alpha: SupportsFloat, beta: SupportsFloat, accuracy: str,
        device: str | None, copy: str, vendor: str | None = None, track: bool = False,
    ) -> Any:  # fmt: skip
        """The product of `matmul`; without `track` autograd does not record it."""
        for name, value in (("device", device), ("accuracy", accuracy), ("vendor", vendor)):
            check(isinstance(value, Hashable), f"{name} must be text, got {value!r}", ArgumentTypeError)
        kind = kind_of(a)
        key = None if kind is None else kind.key(a, b, out)
        if track and kind is not None and key is not None and kind.tracked(a, b, out):
            return self._tracked(a, b, out, alpha, beta, accuracy, device, vendor)
        plan = None if key is None else self._plans.find((device, accuracy, vendor, key))

        def inside(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
            return self.product(a, b, c, alpha, beta, accuracy, None, "never", vendor)

        def make_plan(kind: Kind, key: Hashable, a: View, b: View, out: View | None, like: Any) -> CallPlan:
            return self._planned(lambda: stacked(a, b, out), (device, accuracy, vendor, key), kind, like, inside)

        return first_call(a, b, out, alpha, beta, copy, plan, make_plan, transposes=True)

    def _planned(
        self, stack_of: Callable[[], Stack], words: tuple[Any, ...], kind: Kind, like: Any, inside: Inside
    ) -> CallPlan:
        """The plan of a product, made and stored where there is none.

        `words` are device, accuracy, vendor and the key of the arrays, which is None where no plan can be stored.
        `like` is the first array itself.
        """
        *_, key = words
        plan = None if key is None else self._plans.find(words)
        if plan is not None:  # there is one for the copies, or for arrays of another kind
            return plan
        device, accuracy, vendor, _ = words
        stack = stack_of()
        place = stack.a.place
        problem = problem_of(stack.a, stack.b, accuracy, stack.batch, stack.ragged)
        trans = problem.trans_a, problem.trans_b
        stored_a, stored_b = (transpose_of(view) if trans else view for view, trans in zip((stack.a, stack.b), trans))
        problem, stored, lds, swapped = laid_out(problem, stored_a, stored_b, stack.out, stack.dims)
        trans = trans[::-1] if swapped else trans
        where = _selector(place, device), settings.vendor(vendor)

        def operands() -> Operands:
            c = kind.empty(like, (problem.m, problem.n))
            matrices = (
                Operand(stored[0].pointer, *problem.stored_a, lds[0], problem.trans_a, stack.a),
                Operand(stored[1].pointer, *problem.stored_b, lds[1], problem.trans_b, stack.b),
                Operand(kind.pointer(c), problem.m, problem.n, problem.n, False, c),
            )
            return Operands(matrices, kind.stream(int(place.partition(":")[2])))

        timed = place != "host" and problem.batch == 1 and not problem.ragged
        ready = self._ready(problem, where, kind, operands=operands if timed else None)
        plan = CallPlan(ready, kind, place, lds, stack, inside, trans, swapped)
        with self._lock.alone():
            if key is not None and self._kernels.get((problem, where)) is ready:  # not removed meanwhile
                self._plans.keep(words, ready, plan)
        return plan

    @called("tilewright.grouped_matmul")
    def grouped_matmul(
        self, a: A, b: A, offsets: Any, *more: Never, out: A | None = None, alpha: SupportsFloat = 1.0,
        beta: SupportsFloat = 0.0, accuracy: GradeLike = "ieee", device: DeviceName | None = None, copy: Copy = "never",
        **unknown: Never,
    ) -> A:  # fmt: skip
        """Products of groups of rows in one launch, alpha * a @ b + beta * out for each group.

        Where b is a stack of matrices, the rows of a are divided into groups, each multiplied by a matrix of its own:
        `out[begin:end] = a[begin:end] @ b[i]`. Where b is a matrix, the columns of a and the rows of b are divided, and
        each group has a result of its own: `out[i] = a[:, begin:end] @ b[begin:end]`, as the gradient of such stacks.
        Group i ends before offsets[i], where the next one begins. A group may be empty. Rows from the last offset on
        belong to no group; such rows of the result are beta * out.

        Offsets stay where they are: those of arrays on a GPU are read by the kernel there, so that the call may be
        captured and they may change between replays. Offsets on a GPU are not checked: if they decrease, results are
        wrong, but nothing outside `out` is written. torch's autograd and traces record products of their tensors.

        Args:
            a: rows x k, or m x rows where b is a matrix; float32 or float64, of NumPy, CuPy or torch, or anything with
                `__cuda_array_interface__` or `__dlpack__`. Transposed views are used in place.
            b: groups x k x n, or rows x n; of the same dtype and in the same memory.
            offsets: one int32 for each group, of the same library and in the same memory.
            out: rows x n, or groups x m x n, written row by row; with beta other than 0 it has to be given.
            alpha: factor of the products, a number or a 0-d array.
            beta: factor of what `out` held, in the same way.
            accuracy: ieee, elementwise or normwise, as for `load`.
            device: auto, cuda, cuda:N or host, for arrays in the processor's memory.
            copy: `never`, or `if-needed`, as for `matmul`; offsets are never copied.

        Returns:
            `out` if given, else a new array of a's kind, row by row.

        Raises:
            ShapeError: shapes that do not fit, or offsets in the processor's memory that are negative, decrease or
                exceed `rows`.
            TilewrightError: every error of `tilewright.matmul`.
        """
        if more or unknown:
            refuse(Library.grouped_matmul, more, unknown)
        result: A
        try:
            result = self.grouped(a, b, offsets, out, alpha, beta, accuracy, device, copy, track=True)
        except NotInMemoryError:
            if out is not None or len({kind_of(each) for each in (a, b, offsets)}) > 1:
                raise
            result = self._tracked(a, b, out, alpha, beta, accuracy, device, None, offsets)
        return result

    def grouped(
        self, a: Any, b: Any, offsets: Any, out: Any, alpha: SupportsFloat, beta: SupportsFloat, accuracy: str,
        device: str | None, copy: str, track: bool = False,
    ) -> Any:  # fmt: skip
        """The products of `grouped_matmul`; without `track` autograd does not record them."""
        for name, value in (("device", device), ("accuracy", accuracy)):
            check(isinstance(value, Hashable), f"{name} must be text, got {value!r}", ArgumentTypeError)
        kind = KINDS.get(type(a)) or kind_of(a)
        key = None if kind is None else _with_offsets(kind, kind.key(a, b, out), offsets)
        if track and kind is not None and key is not None and kind.tracked(a, b, out):
            return self._tracked(a, b, out, alpha, beta, accuracy, device, None, offsets)
        plan = None if key is None else self._plans.find((device, accuracy, "never", key))
        if plan is not None and copy == "never":
            return plan(a, b, out, alpha, beta, offsets)
        first, second, offsets = as_array("a", a), as_array("b", b), as_array("offsets", offsets, "int32")
        check_offsets(offsets, first)
        if len(second.shape) == 3 and second.shape[0] == len(offsets) == 0 and first.shape[1:] == second.shape[1:2]:
            # No row belongs to a group: the product has no steps of k.
            empty = first[:, :0], second.reshape(0, second.shape[2])
            return self.product(*empty, out, alpha, beta, accuracy, device, copy, "never")

        def inside(a: Any, b: Any, c: Any, alpha: float, beta: float, offsets: Any) -> Any:
            return self.grouped(a, b, offsets, c, alpha, beta, accuracy, None, "never")

        def make_plan(kind: Kind, key: Hashable, a: View, b: View, out: View | None, like: Any) -> CallPlan:
            words = device, accuracy, "never", _with_offsets(kind, key, offsets)
            return self._planned(lambda: grouped(a, b, out, len(offsets)), words, kind, like, inside)

        return first_call(a, b, out, alpha, beta, copy, plan, make_plan, transposes=True, further=(offsets,))

    @called("tilewright.prepare")
    def prepare(
        self,
        *shapes: Shape,
        dtype: DTypeLike | None = None,
        trans: Trans | None = None,
        trans_a: bool | None = None,
        trans_b: bool | None = None,
        accuracy: GradeLike | None = None,
        device: DeviceName = "auto",
        graphs: int = 1,
        measure: bool = False,
        seconds: float = _SECONDS,
        vendor: settings.Vendor | None = None,
        batch: SupportsIndex | None = None,
        **unknown: Never,
    ) -> None:
        """Make `matmul` of these shapes ready, so that it may be captured: nothing is compiled then, and the first
        `graphs` graphs allocate nothing.

        Args:
            shapes: each "1024x768x512", "1024" for a cube, (m, n, k), or a Problem, which has dtype, transposes and
                accuracy of its own.
            dtype: as for `load`.
            trans: nn, nt, tn or tt: which of A and B are stored transposed; None for nn.
            trans_a: whether A is stored k x m, in place of `trans`.
            trans_b: whether B is stored n x k, in place of `trans`.
            accuracy: ieee, elementwise or normwise, as for `load`.
            device: auto, cuda, cuda:N or host.
            graphs: number of graphs, from 0 to 65,536, for which memory is set aside. A kernel that needs memory to
                work in gets a set for each, held until `clear`; further graphs allocate theirs.
            measure: whether shapes that were not tuned are measured, as by `load` with first_use="measure", also if
                they were used before.
            seconds: about how long measuring may take for each shape.
            vendor: auto or never, as for `load`, and as `matmul` will be called.
            batch: products of each shape that one call computes; None for one.

        Raises:
            TilewrightError: every error of `tilewright.load`.
        """
        if unknown:
            refuse(Library.prepare, (), unknown)
        problems = Problem.parse_all(
            shapes, dtype=dtype, trans=trans, accuracy=accuracy, trans_a=trans_a, trans_b=trans_b, batch=batch
        )
        check_graphs(graphs)
        opened = device_of(device)
        where = opened.info.selector, settings.vendor(vendor)
        for problem in problems:
            first_use = self._first_use("measure" if measure else None, seconds)
            with opened.entered():
                self._ready(problem, where, None, first_use).kernel.prepare_graphs(graphs)

    @called("tilewright.emit")
    def emit(
        self,
        served: Served | str | Sizes | Problem | Sequence[Served | Shape],
        name: str | None = None,
        layout: Layout | None = None,
        options: str = "",
        *more: Never,
        dtype: DTypeLike | None = None,
        trans: Trans | None = None,
        trans_a: bool | None = None,
        trans_b: bool | None = None,
        accuracy: GradeLike | None = None,
        batch: SupportsIndex | None = None,
        config: Config | str | None = None,
        arch: Arch | str | None = None,
        device: DeviceName = "auto",
        store: Path | str | None = None,
        **unknown: Never,
    ) -> Emitted:
        """The kernels of some shapes as `<name>.cu` and `<name>.h`, with what else `layout` asks for:
        `emit("1024x768x512", arch="sm_90a").write(folder)`.

        The functions have C linkage and serve every shape: the kernel that was chosen for the nearest shape runs.

        Args:
            served: one shape or a sequence of them, each "1024x768x512", "1024" for a cube, (m, n, k), a Problem, or a
                Served, which has a kernel and an architecture of its own. The store gives the kernels of the others.
            name: name of the functions and files; None for a name made of the product: `gemm_f32_nn_1024x768x512`.
            layout: which files to make; None for these two, with functions for batches where a shape has a batch.
            options: further options of the command that writes the files again, for their banner.
            dtype: as for `load`.
            trans: nn, nt, tn or tt: which of A and B are stored transposed; None for nn.
            trans_a: whether A is stored k x m, in place of `trans`.
            trans_b: whether B is stored n x k, in place of `trans`.
            accuracy: ieee, elementwise or normwise, as for `load`.
            batch: products of one call that kernels are chosen for; None for one.
            config: the variant for shapes that are no Served, such as "tiled:32", in place of what the store gives.
            arch: architecture of the GPU that the shapes are for, such as "sm_90a"; its device with the most records
                counts. None for that of `device`.
            device: auto, cuda or cuda:N, the GPU of this machine that the shapes are for; ignored with `arch`.
            store: folder of records; None for that of the user.

        Returns:
            Filenames and texts; `.write(folder)` writes them.

        Raises:
            ConfigError: a name that C, C++, the C library, other systems or the files themselves use; a config that
                cannot serve its problem, or that was chosen for the processor; a shape that comes twice; arguments that
                contradict each other.
            ArgumentTypeError, ShapeError: arguments of other types, a `served` that is no shape.
            DeviceError: there is no GPU here, and `arch` names none.
        """
        if more or unknown:
            refuse(Library.emit, more, unknown)
        records = Store(check_path("store", store))
        if store is not None:
            options = f"{options} --store {_quoted(records.root)}".strip()
        shapes = [*_each(served)]
        problems = Problem.parse_all(
            [each.problem if isinstance(each, Served) else each for each in shapes],
            dtype=dtype, trans=trans, accuracy=accuracy, trans_a=trans_a, trans_b=trans_b, batch=batch,
        )  # fmt: skip
        if layout is None:
            layout = Layout(batched=any(problem.batch > 1 for problem in problems))
        check_type("layout", layout, Layout, "a Layout")
        variant = parse(config) if isinstance(config, str) else config
        row = arch_named(arch) if isinstance(arch, str) else arch
        target: DeviceInfo | None = None
        products = []
        alone = all(isinstance(each, Served) for each in shapes)
        for each, problem in zip(shapes, problems):
            if isinstance(each, Served):
                words = ("config", variant, each.config), ("arch", row, each.target.arch)
                for word, value, own in words if alone else ():
                    text = f"{word} is {_name(value)}, and the Served {problem} beside it has {_name(own)}"
                    check(value is None or value == own, f"{text}: leave {word} out")
                products.append(each)
                continue
            target = target or _target(row, device, records)
            if variant is None:
                products.append(records.served(target, problem, self._ranking, layout.batched))
            else:
                products.append(Served(problem, variant, target))
        return emit(products, name, layout, options)

    def _tracked(
        self, a: Any, b: Any, out: Any, alpha: SupportsFloat, beta: SupportsFloat, accuracy: str,
        device: str | None, vendor: str | None, *offsets: Any,
    ) -> Any:  # fmt: skip
        """A product, or products of groups with these offsets, that torch's autograd, transforms and traces record."""
        text = "autograd tracks a, b or out, or this is traced: leave out and beta away, or use torch.no_grad()"
        check(out is None and number("beta", beta) == 0, text, ArgumentTypeError)
        if device is not None:  # the op takes no device
            place = KINDS[type(a)].place(a)
            default = _selector(place, None)
            reason = "autograd tracks a or b, or this is traced"
            text = f"{reason}, so that their product is made on {default}, device is {device!r}"
            check(_selector(place, device) == default, text, DeviceMismatchError)
        return self._differentiable(a, b, alpha, accuracy, vendor, *offsets)

    @called("tilewright.memory")
    def memory(self) -> Memory:
        """Memory that the kernels of `matmul`, `prepare` and `load` hold on their devices."""
        with self._lock.alone():
            kernels = list(self._loaded)
        return Memory(len(kernels), sum(each.nbytes for each in (*kernels, *started())))

    @called("tilewright.clear")
    def clear(self) -> None:
        """Let the kernels of `matmul` go, and free the memory that those of `load` work in.

        CUDA graphs in which they were captured must not be launched any more.
        """
        with self._lock.alone():
            self._kernels.clear()
            self._in_graphs.clear()
            self._plans = CallPlans()
            loaded = list(self._loaded)
        for each in (*loaded, *started()):
            each.release()

    def _first_use(self, first_use: str | None, seconds: float) -> MeasureShape | None:
        """The function that measures a shape that was not tuned, None for `predict`."""
        chosen = settings.first_use(first_use)
        check_type("seconds", seconds, (int, float), "a number")
        check(0 < seconds < 1e9, f"seconds must be positive and below 10^9, got {seconds}")
        if chosen != "measure":
            return None
        return lambda device, problem, store, looked_up: self._measure(device, problem, store, looked_up, seconds)

    def _fallback(
        self, vendor: str, operands: Callable[[], Operands] | None = None
    ) -> Callable[[OwnKernel], VendorFallback | None] | None:
        """The function that decides whether the vendor's library serves, None where it must not."""
        return (lambda own: self._faster(own, operands)) if vendor == "auto" else None

    def _ready(
        self, problem: Problem, where: tuple[str, str], kind: Kind | None, measure: MeasureShape | None = None,
        operands: Callable[[], Operands] | None = None,
    ) -> ReadyKernel:  # fmt: skip
        """The kernel for a problem, which is loaded if it is missing, or if it has to be measured and was not."""

        def loaded() -> ReadyKernel | None:
            ready = self._kernels.get((problem, where))
            enough = measure is None or min(problem.m, problem.n, problem.k) == 0
            return ready if ready is not None and (enough or ready.tuned) else None

        ready = loaded()
        if ready is not None:
            return ready
        with self._lock.alone():
            ready = loaded()  # another thread may have loaded it meanwhile
            if ready is None:
                unmeasured = self._kernels.get((problem, where))
                ready = self._kernels[problem, where] = self._new(problem, *where, kind, measure, operands)
                if unmeasured is not None:
                    self._plans.drop(unmeasured)
                    self._in_graphs += [unmeasured] * unmeasured.captured
            return ready

    def _new(
        self, problem: Problem, selector: str, vendor: str, kind: Kind | None, measure: MeasureShape | None,
        operands: Callable[[], Operands] | None,
    ) -> ReadyKernel:  # fmt: skip
        device = device_of(selector)
        if kind is not None:
            call = "grouped_matmul once" if problem.ragged else f"prepare('{problem.shape}', ...)"
            refuse_capture(device, kind, problem, f"call tilewright.{call} before")
        measure = measure or self._first_use(None, _SECONDS)
        fallback = self._fallback(vendor, operands)
        ready = load_on(device, problem, Store(), self._ranking, measure, fallback, self._loaded.add)._ready
        free = [key for key, each in self._kernels.items() if not each.captured]
        if len(self._kernels) >= _MAX_KERNELS and free:
            self._plans.drop(self._kernels.pop(min(free, key=lambda key: self._kernels[key].used)))
        return ready


def _with_offsets(kind: Kind, key: Hashable | None, offsets: Any) -> Hashable | None:
    """The key of a product's arrays with that of the offsets of its groups; None where there is none, or where the
    offsets are of another kind."""
    if key is None or KINDS.get(type(offsets)) is not kind:
        return None
    return key, kind.key(offsets, offsets, None)


def _selector(place: str, device: str | None) -> str:
    """Selector of the device for arrays in a memory, `host` or `cuda:N`, as `prepare` spells it."""
    if place == "host":
        return device_of("auto" if device is None else device).info.selector
    if device not in (None, "auto", place) and not (device == "cuda" and place == "cuda:0"):
        raise DeviceMismatchError(f"the arrays are on {place}, device is {device!r}")
    return place


def _one_shape(shape: Any, m: Any, n: Any, k: Any) -> Any:
    """The shape that `load` is called with, as one argument or three numbers. Raises ArgumentTypeError, ConfigError."""

    def words(sizes: dict[str, Any]) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in sizes.items() if value is not None)
        return f" beside {text}" * bool(text)

    remedy = "pass one shape, such as '1024x768x512', or all of m, n and k"
    if isinstance(shape, str | Problem | Sequence) or (shape is not None and m is not None):
        beside = words({"m": m, "n": n, "k": k})
        check(not beside, f"shape is {shape!r}{beside}: {remedy}")
        return shape
    sizes = {"m": shape if m is None else m, "n": n, "k": k}
    missing = " and ".join(name for name, value in sizes.items() if value is None)
    check(not missing, f"{missing} must be given{words(sizes)}: {remedy}", ArgumentTypeError)
    return tuple(sizes.values())


def _each(served: Any) -> Iterator[Any]:
    """The shapes of an argument, which may be one shape or a sequence of them."""
    one = isinstance(served, str | Served | Problem) or not isinstance(served, Sequence)
    if one or (served and not any(isinstance(each, str | Served | Problem | Sequence) for each in served)):
        yield served  # three numbers are one shape
    else:
        yield from served


def _name(value: Any) -> str:
    """Text for an Arch or a Config."""
    return value.name if isinstance(value, Arch) else str(value)


def _quoted(path: Path) -> str:
    """A path quoted for the shell, in a comment of C."""
    import shlex  # only emitted files need it

    return "".join(letter if letter.isprintable() else "?" for letter in shlex.quote(path.as_posix()))


def _target(arch: Arch | None, device: str, records: Store) -> DeviceInfo:
    """The GPU that shapes are emitted for. Raises ConfigError and DeviceError."""
    if arch is None:
        info = device_of(device).info
        remedy = "name one by arch=, such as arch='sm_90a'"
        check(not info.arch.is_host, f"device is {device!r}, and there is no GPU to emit for: {remedy}", DeviceError)
        return info
    check(not arch.is_host, "arch must be a GPU's, got 'host': kernels for the processor are not emitted")
    recorded = of_arch(arch, Counter(record.device for record in records.records()))
    return recorded[0] if recorded else typical(arch)
