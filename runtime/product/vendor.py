"""A product that the vendor's library makes in a kernel's place, where it is known to be the faster one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...codegen.problem import Problem
from ..device.protocol import Device, Operand
from ..locks import Lock
from ..store.found import Found
from .kernel import Kernel, Product, Run, prepare
from .program import Program
from .scratch import Scratch


@dataclass(frozen=True, slots=True)
class Handover:
    """That the vendor's library is faster than what a look-up found, and by what that is known."""

    expected_us: float | None
    """Microseconds that its product is expected to take; None where nobody measured."""
    regret: float | None
    """How many times the best kernel's time that is at most, for nine of ten shapes; None where nobody knows."""
    why: str
    """What says so, in a few words."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What a kernel and the library may be tried on."""

    each: tuple[Operand, Operand, Operand]
    """A, B and C on the device, of which C is overwritten."""
    stream: int
    """Whose work on them it is that comes before."""


class OwnKernel:
    """Our kernel for a look-up, compiled when it is first used: where the vendor's library serves it may never be."""

    def __init__(self, device: Device, problem: Problem, found: Found, checked: Callable[[Found], Found]) -> None:
        """`checked` gives a look-up whose record works with today's driver and compiler."""
        self.device, self.problem = device, problem
        self.found = found
        """The look-up."""
        self.compiled: Kernel | None = None
        """The kernel, where it was used."""
        self._checked = checked

    @property
    def kernel(self) -> Kernel:
        """The kernel. Raises ConfigError, CompileError, DeviceError or LaunchError."""
        if self.compiled is None:
            self.found = self._checked(self.found)
            self.compiled = prepare(self.device, self.problem, self.found.config)
        return self.compiled


Faster = Callable[[OwnKernel, Callable[[], Operands] | None], Handover | None]
"""Tells where the vendor's library is faster than our kernel, by timing both if need be, on random operands where none
are passed; None where it is not, or nobody knows."""


class Vendor:
    """The vendor's library on a device: one handle, with memory for each stream and graph, for products of all
    shapes."""

    def __init__(self, device: Device) -> None:
        self.device, self.blas = device, device.blas()
        self.lock = Lock()
        """Held while a product is launched: a handle has one stream and one workspace at a time."""
        sizes = (self.blas.workspace_bytes,) if self.blas.workspace_bytes else ()
        self.scratch = Scratch(device, sizes, 0, lambda addresses: addresses)

    def set_aside(self, count: int) -> None:
        """Have memory ready for so many graphs. Raises LaunchError."""
        with self.lock.alone():
            self.scratch.set_aside(count)

    def release(self) -> None:
        """Free the memory; graphs that hold products must not run any more."""
        with self.lock.alone():
            self.scratch.release()

    @property
    def nbytes(self) -> int:
        """Device memory held, but for what the library itself takes."""
        return self.scratch.nbytes


_started: dict[int, Vendor] = {}
"""By the identity of their devices, which they keep."""
_starting = Lock()


def vendor_of(device: Device) -> Vendor:
    """That of a device, started once. Raises DeviceError where it is missing."""
    with _starting.alone():
        if id(device) not in _started:
            _started[id(device)] = Vendor(device)
        return _started[id(device)]


def started() -> tuple[Vendor, ...]:
    """Those of all devices."""
    return tuple(_started.values())


class VendorProduct(Product):
    """One problem by the vendor's library.

    A kernel of ours stands by for what a library that is not `complete` may do otherwise than we promise: a product
    with alpha = 0, which must not read A and B, and one that is captured before one like it was launched, so that the
    library might have to load something."""

    def __init__(self, own: OwnKernel, vendor: Vendor) -> None:
        super().__init__(own.device, own.problem)
        self._own, self.vendor = own, vendor
        if not vendor.blas.complete:
            _ = self.kernel  # it cannot be compiled while a graph is captured

    @property
    def kernel(self) -> Kernel:
        """Ours, which stands by."""
        return self._own.kernel

    def laid(self, lda: int, ldb: int, ldc: int) -> "LaidVendor":
        return LaidVendor(self, (lda, ldb, ldc))

    def prepare_graphs(self, count: int) -> None:
        """As `Kernel.prepare_graphs`: graphs hold the kernel, or the library's product where one like it was made."""
        if self._own.compiled:
            self._own.compiled.prepare_graphs(count)
        self.vendor.set_aside(count)

    def release(self) -> None:
        """As `Kernel.release`; the library's memory is that of all products."""
        if self._own.compiled:
            self._own.compiled.release()

    @property
    def nbytes(self) -> int:
        """Device memory of the kernel that stands by; that of the library is shared by all its products."""
        return self._own.compiled.nbytes if self._own.compiled else 0


class LaidVendor:
    """A product by the vendor's library of matrices with certain leading dimensions. Called as `Product.laid` says."""

    __slots__ = ("_complete", "_lds", "_product", "_seen", "_standing_by", "masks", "program")

    def __init__(self, product: VendorProduct, lds: tuple[int, int, int]) -> None:
        self._product, self._lds = product, lds
        self._standing_by: Run | None = None
        self._seen = seen = set[int]()
        elements = product.problem.dtype.size_bytes - 1
        self.masks = elements, elements, elements
        """Bits of the addresses of A, B and C that are always 0."""
        vendor = product.vendor
        self._complete = vendor.blas.complete
        gemm = vendor.blas.gemm(product.problem, *lds)

        def launch(stream: int, *values: Any) -> None:
            gemm(stream, *values)
            seen.add(_like(*values))

        names = ("workspace",) if vendor.blas.workspace_bytes else ()
        steps = [(launch, ["a", "b", "c", "alpha", "beta", *names])]
        self.program = Program.of(vendor.lock, vendor.scratch.at, names, {}, steps)
        """What is launched for all but alpha = 0."""

    def __call__(self, stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float) -> None:
        serves = alpha != 0 or self._complete
        if serves and not (capturing and _like(a, b, c, alpha, beta) not in self._seen):
            self.program(stream, capturing, a, b, c, alpha, beta)
            return
        if self._standing_by is None:
            self._standing_by = self._product.kernel.laid(*self._lds)
        self._standing_by(stream, capturing, a, b, c, alpha, beta)


def _like(a: int, b: int, c: int, alpha: float, beta: float, workspace: int = 0) -> int:
    """A number for products that the library makes alike: by the alignment of the matrices, and whether C is read."""
    return (a & 255) << 17 | (b & 255) << 9 | (c & 255) << 1 | (beta != 0)
