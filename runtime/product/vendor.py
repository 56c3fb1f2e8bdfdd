"""Products by the vendor's library, where it is faster than our kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...codegen.batch import Strides
from ...codegen.problem import Problem
from ..device.protocol import Device, Operand
from ..locks import Lock
from ..store.lookup import LookupResult
from .kernel import Kernel, Product, prepare
from .program import Program
from .scratch import Scratch
from .stack import Run


@dataclass(frozen=True, slots=True)
class VendorFallback:
    """Decision that the vendor's library serves in place of our kernel, because it is faster."""

    expected_us: float | None
    """Expected microseconds of its product; None where it was not measured."""
    regret: float | None
    """Largest ratio of that time to the best kernel's, for nine of ten shapes; None where it is unknown."""
    why: str
    """Reason of the decision, in a few words."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands on which a kernel and the library may be timed."""

    abc: tuple[Operand, Operand, Operand]
    """A, B and C on the device; C is overwritten."""
    stream: int
    """Stream on which the operands were produced."""


class OwnKernel:
    """Our kernel for a look-up, compiled at its first use, which may never come where the vendor's library serves."""

    def __init__(
        self, device: Device, problem: Problem, looked_up: LookupResult, checked: Callable[[LookupResult], LookupResult]
    ) -> None:
        """`checked` returns a look-up whose record works with today's driver and compiler."""
        self.device, self.problem = device, problem
        self.looked_up = looked_up
        """Result of the look-up."""
        self.compiled: Kernel | None = None
        """The kernel, None until it is used."""
        self._checked = checked

    @property
    def kernel(self) -> Kernel:
        """The kernel. Raises ConfigError, CompileError, DeviceError or LaunchError."""
        if self.compiled is None:
            self.looked_up = self._checked(self.looked_up)
            self.compiled = prepare(self.device, self.problem, self.looked_up.config)
        return self.compiled


Faster = Callable[[OwnKernel, Callable[[], Operands] | None], VendorFallback | None]
"""Decides whether the vendor's library is faster than our kernel, by timing both if need be, on random operands where
none are passed. Returns None where it is not, or where that is unknown."""


class Vendor:
    """The vendor's library on a device: one handle, with memory for each stream and graph, for products of all
    shapes."""

    def __init__(self, device: Device) -> None:
        self.device, self.blas = device, device.blas()
        self.lock = Lock()
        """Lock of launches: a handle has one stream and one workspace at a time."""
        sizes = (self.blas.workspace_bytes,) if self.blas.workspace_bytes else ()
        self.scratch = Scratch(device, sizes, 0, lambda addresses: addresses)

    def set_aside(self, count: int) -> None:
        """Make memory ready for `count` graphs. Raises LaunchError."""
        with self.lock.alone():
            self.scratch.set_aside(count)

    def release(self) -> None:
        """Free the memory; graphs that hold products must not run any more."""
        with self.lock.alone():
            self.scratch.release()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held, without the library's own."""
        return self.scratch.nbytes


_started: dict[int, Vendor] = {}
"""Libraries by the identity of their devices, which they hold."""
_starting = Lock()


def vendor_of(device: Device) -> Vendor:
    """The vendor's library on a device, started once. Raises DeviceError where it is missing."""
    with _starting.alone():
        if id(device) not in _started:
            _started[id(device)] = Vendor(device)
        return _started[id(device)]


def started() -> tuple[Vendor, ...]:
    """The libraries that were started, one for each device."""
    return tuple(_started.values())


class VendorProduct(Product):
    """One problem by the vendor's library.

    Our kernel stands by for a library that is not `complete`. It computes products with alpha = 0, which must not read
    A and B, and products captured before a like one was launched, for which the library might have to load a kernel.
    """

    def __init__(self, own: OwnKernel, vendor: Vendor) -> None:
        super().__init__(own.device, own.problem)
        self._own, self.vendor = own, vendor
        if not vendor.blas.complete:
            _ = self.kernel  # it cannot be compiled while a graph is captured

    @property
    def kernel(self) -> Kernel:
        """Our kernel, which stands by."""
        return self._own.kernel

    def laid(self, lda: int, ldb: int, ldc: int, strides: Strides | None = None) -> "LaidVendor":
        return LaidVendor(self, (lda, ldb, ldc), strides or self.dense)

    def prepare_graphs(self, count: int) -> None:
        """Make memory ready for `count` graphs: they hold our kernel, or the library's product where a like one was
        launched before. Raises LaunchError."""
        if self._own.compiled:
            self._own.compiled.prepare_graphs(count)
        self.vendor.set_aside(count)

    def release(self) -> None:
        """Free the memory of our kernel; the library's memory belongs to all its products."""
        if self._own.compiled:
            self._own.compiled.release()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory of our kernel; the library's memory belongs to all its products."""
        return self._own.compiled.nbytes if self._own.compiled else 0


class LaidVendor:
    """A product by the vendor's library of matrices with certain leading dimensions and distances: a Run."""

    __slots__ = ("_complete", "_layout", "_product", "_seen", "_standing_by", "masks", "program")

    def __init__(self, product: VendorProduct, lds: tuple[int, int, int], strides: Strides | None) -> None:
        self._product, self._layout = product, (*lds, strides)
        self._standing_by: Run | None = None
        self._seen = seen = set[int]()
        mask = product.problem.dtype.size_bytes - 1
        self.masks = mask, mask, mask
        """Bits of the addresses of A, B and C that must be 0."""
        vendor = product.vendor
        self._complete = vendor.blas.complete
        gemm = vendor.blas.gemm(product.problem, *lds, strides=self._layout[3])

        def launch(stream: int, *values: Any) -> None:
            gemm(stream, *values)
            seen.add(_like(*values))

        names = ("workspace",) if vendor.blas.workspace_bytes else ()
        steps = [(launch, ["a", "b", "c", "alpha", "beta", *names])]
        self.program = Program.of(vendor.lock, vendor.scratch.at, names, {}, steps)
        """Launches for every alpha but 0."""

    def __call__(self, stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float) -> None:
        serves = alpha != 0 or self._complete
        if serves and not (capturing and _like(a, b, c, alpha, beta) not in self._seen):
            self.program(stream, capturing, a, b, c, alpha, beta)
            return
        if self._standing_by is None:
            self._standing_by = self._product.kernel.laid(*self._layout)
        self._standing_by(stream, capturing, a, b, c, alpha, beta)


def _like(a: int, b: int, c: int, alpha: float, beta: float, workspace: int = 0) -> int:
    """A number for products that the library computes alike, by the alignment of the matrices and whether C is read."""
    return (a & 255) << 17 | (b & 255) << 9 | (c & 255) << 1 | (beta != 0)
