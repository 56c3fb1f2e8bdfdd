"""A product that the vendor's library makes in a kernel's place, where it is known to be the faster one."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..device.protocol import Device, Operand
from ..store.found import Found
from .kernel import Kernel, Product, Run
from .program import Program
from .scratch import Scratch


@dataclass(frozen=True, slots=True)
class Handover:
    """That the vendor's library is faster than what a look-up found, and by what that is known."""

    expected_us: float
    """Microseconds that its product is expected to take."""
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


Faster = Callable[[Kernel, Found, Callable[[], Operands] | None], Handover | None]
"""Tells where the vendor's library is faster than our kernel, by trying both if need be, on random operands where none
are given; None where it is not, or nobody knows."""


class Vendor:
    """The vendor's library on a device: one handle, with memory for each stream and graph, for products of all
    shapes."""

    def __init__(self, device: Device) -> None:
        self.device, self.blas = device, device.blas()
        self.lock = threading.Lock()
        """Held while a product is launched: a handle has one stream and one workspace at a time."""
        self.scratch = Scratch(device, (self.blas.workspace_bytes,), 0, lambda addresses: addresses)

    def set_aside(self, count: int) -> None:
        """Have memory ready for so many graphs. Raises LaunchError."""
        with self.lock:
            self.scratch.set_aside(count)

    def release(self) -> None:
        """Free the memory; graphs that hold products must not run any more."""
        with self.lock:
            self.scratch.release()

    @property
    def nbytes(self) -> int:
        """Device memory held, but for what the library itself takes."""
        return self.scratch.nbytes


_started: dict[int, Vendor] = {}
"""By the identity of their devices, which they keep."""
_starting = threading.Lock()


def vendor_of(device: Device) -> Vendor:
    """That of a device, started once. Raises DeviceError where it is missing."""
    with _starting:
        if id(device) not in _started:
            _started[id(device)] = Vendor(device)
        return _started[id(device)]


def started() -> tuple[Vendor, ...]:
    """Those of all devices."""
    return tuple(_started.values())


class VendorProduct(Product):
    """One problem by the vendor's library. A kernel of ours stands by for what the library may do
    otherwise than we promise: a product with alpha = 0, which must not read A and B, and one that is captured before
    one like it was launched, so that the library might have to load something."""

    def __init__(self, kernel: Kernel, vendor: Vendor) -> None:
        super().__init__(kernel.device, kernel.problem)
        self.kernel, self.vendor = kernel, vendor

    def laid(self, lda: int, ldb: int, ldc: int) -> "LaidVendor":
        return LaidVendor(self, (lda, ldb, ldc))

    def prepare_graphs(self, count: int) -> None:
        """As `Kernel.prepare_graphs`: graphs hold the kernel, or the library's product where one like it was made."""
        self.kernel.prepare_graphs(count)
        self.vendor.set_aside(count)

    def release(self) -> None:
        """As `Kernel.release`; the library's memory is that of all products."""
        self.kernel.release()

    @property
    def nbytes(self) -> int:
        """Device memory of the kernel that stands by; that of the library is shared by all its products."""
        return self.kernel.nbytes


class LaidVendor:
    """A product by the vendor's library of matrices with certain leading dimensions. Called as `Product.laid` says."""

    __slots__ = ("_lds", "_product", "_seen", "_standing_by", "masks", "program")

    def __init__(self, product: VendorProduct, lds: tuple[int, int, int]) -> None:
        self._product, self._lds = product, lds
        self._standing_by: Run | None = None
        self._seen = seen = set[int]()
        elements = product.problem.dtype.size_bytes - 1
        self.masks = elements, elements, elements
        """Bits of the addresses of A, B and C that are always 0."""
        vendor = product.vendor
        gemm = vendor.blas.gemm(product.problem, *lds)

        def launch(stream: int, *values: Any) -> None:
            gemm(stream, *values)
            seen.add(_like(*values))

        names = ("workspace",)
        steps = [(launch, ["a", "b", "c", "alpha", "beta", *names])]
        self.program = Program.of(vendor.lock, vendor.scratch.at, names, {}, steps)
        """What is launched for all but alpha = 0."""

    def __call__(self, stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float) -> None:
        if alpha != 0 and not (capturing and _like(a, b, c, alpha, beta) not in self._seen):
            self.program(stream, capturing, a, b, c, alpha, beta)
            return
        if self._standing_by is None:
            self._standing_by = self._product.kernel.laid(*self._lds)
        self._standing_by(stream, capturing, a, b, c, alpha, beta)


def _like(a: int, b: int, c: int, alpha: float, beta: float, workspace: int = 0) -> int:
    """A number for products that the library makes alike: by the alignment of the matrices, and whether C is read."""
    return (a & 255) << 17 | (b & 255) << 9 | (c & 255) << 1 | (beta != 0)
