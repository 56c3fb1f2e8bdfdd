"""Protocols of devices, their compilers, kernels and memory."""

import enum
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...codegen.batch import Strides
from ...codegen.problem import DType, Problem
from ...codegen.source import KernelSource, LaunchConfig, TensorBox
from ...codegen.target import Target
from ..locks import CachedProperty

if TYPE_CHECKING:  # NumPy takes long to import, and a list of devices needs none of it
    from numpy.typing import NDArray

DeviceName = Literal["auto", "host", "cuda"] | str
"""Selector of a device: auto, host, cuda, or cuda:N for one of several GPUs."""

ALIGNED_BYTES = 256
"""Bytes by whose multiples matrices lie apart that share an allocation. Allocations on a GPU are aligned to as many."""


def aligned_bytes(nbytes: int) -> int:
    """Bytes from a matrix of `nbytes` bytes to the next one in an allocation: all are aligned as the first one is."""
    return -(-nbytes // ALIGNED_BYTES) * ALIGNED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo(Target):
    """A target with a name: one device of this machine or of another. It can be sent to other processes."""

    name: str
    """Name from the driver, such as `NVIDIA H200`; the processor's begins with `host`."""
    selector: str
    """Selector of the device: `cuda:0` or `host`."""
    driver: str
    """Version of the driver, or of the operating system for the processor."""
    uuid: str = ""
    """UUID of the GPU, as CUDA_VISIBLE_DEVICES takes it; empty for the processor."""

    @property
    def key(self) -> str:
        """The name as lower-case words joined by `-`: names folders and records."""
        return self.key_of(self.name)

    @staticmethod
    @lru_cache(64)
    def key_of(name: str) -> str:
        """The key of a device's name; a key is its own key."""
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

    @property
    def complete(self) -> bool:
        """Whether every fact that a model needs is there: facts from a file or another machine may lack some."""
        counts = self.sm_count, self.memory_bytes, self.clock_mhz, self.bandwidth_gbs
        return min(counts) > 0 and bool(self.key)

    def peak_gflops(self, dtype: DType) -> float:
        """Peak rate of arithmetic by clock and lanes, in 10^9 operations a second; of double, also by tensor cores that
        compute in it."""
        double = max(self.arch.fma_per_cycle_double, self.arch.dmma_per_cycle)
        lanes = self.arch.fma_per_cycle_float if dtype is DType.FLOAT else double
        return 2 * lanes * self.sm_count * self.clock_mhz / 1e3


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled KernelSource."""

    image: bytes
    """Machine code: a cubin, or a shared library."""
    registers: int | None = None
    """Registers of a thread, None where they are unknown."""
    frame_bytes: int | None = None
    """Bytes of local memory of a thread: spilled registers, and arrays without registers."""
    smem_bytes: int | None = None
    """Bytes of static shared memory of a block."""
    seconds: float = 0.0
    """Seconds of compiling; 0 for a binary from the cache."""
    preparation: "Binary | None" = None
    """Binary of the source's preparation; None without a preparation, or where this binary contains it."""


class Compiler(Protocol):
    """Compiles text to machine code. It needs no device, and can be sent to other processes."""

    @property
    def suffix(self) -> str:
        """Ending of the binary's file: `cubin` or `so`."""

    @property
    def identity(self) -> str:
        """Compiler, version and flags. A binary depends on these and on the text alone."""

    def build(self, source: KernelSource, folder: str) -> Binary:
        """Compile into a file `kernel.<suffix>` in `folder`. Raises CompileError, DeviceError without a compiler."""


class Buffer(Protocol):
    """Memory of a device, freed with the object."""

    pointer: int
    """Address on the device."""
    nbytes: int
    """Size in bytes."""

    def array(self, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> Any:
        """A contiguous array of the device's array library (`Device.xp`) over this memory, sharing it."""


Launcher = Callable[..., None]
"""A kernel on one grid, called with a stream and the kernel's arguments, addresses as integers. Safe between threads.
Calling raises LaunchError."""


class Elements(enum.StrEnum):
    """Elements of A and B in a product of the vendor's library; C and all sums have the problem's type."""

    OWN = "own"
    """The problem's type."""
    TF32 = "tf32"
    """Floats that are rounded to 11 bits."""
    HALF = "half"
    """A and B are matrices of halves, C is float."""
    BFLOAT16 = "bfloat16"
    """A and B are matrices of bfloat16s, C is float."""


class Blas(Protocol):
    """A handle of the vendor's library. Not safe between threads: the caller holds a lock."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of a product's workspace; if it is 0, products may run at once in several threads."""

    @property
    def complete(self) -> bool:
        """Whether the library serves every product, also with m, n, k or alpha of 0, which must not read A and B."""

    def gemm(
        self, problem: Problem, lda: int, ldb: int, ldc: int, elements: Elements = Elements.OWN,
        strides: Strides | None = None,
    ) -> Launcher:  # fmt: skip
        """Return the launcher of a product of matrices with these leading dimensions in elements, or of a batch with
        these distances. Arithmetic is IEEE's where `elements` is OWN.

        The launcher takes a stream, the addresses of A, B and C, alpha, beta and the address of its workspace, if any.
        m, n, k and alpha are not 0 unless the library is `complete`.
        """


class Function(Protocol):
    """A loaded kernel."""

    def bound(self, launch: LaunchConfig, codes: str) -> Launcher:
        """Return the launcher of the kernel on a grid; `codes` are those of ParameterBlock. Raises LaunchError."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A two-dimensional array, as kernels take it."""

    pointer: int
    """Address of element (0, 0) on the device."""
    rows: int
    """Rows of the stored array, which is not transposed."""
    cols: int
    """Columns of the stored array."""
    ld: int
    """Leading dimension in elements."""
    trans: bool
    """Whether the operand is the transpose of the stored array."""
    owner: object
    """Object that keeps the memory alive."""


Launch = Callable[[Operand, Operand, Operand, float, float], None]
"""Launches one product: (a, b, c, alpha, beta)."""


class Device(Protocol):
    """A machine that runs kernels. `cuda` and `host` extend it; one conformance test class holds for both.

    Methods with a body suit a device without streams and graphs, on which work is done when a call returns.
    """

    xp: Any
    """The array library of its memory: the module numpy or cupy."""
    info: DeviceInfo
    """Facts about the device."""
    compiler: Compiler
    """Compiler of its kernels."""

    def entered(self) -> AbstractContextManager[Any]:
        """Return a context in which this is the array library's current device, to which memory and launches belong."""
        return nullcontext()

    def load(self, binary: Binary, name: str) -> Function:
        """Load the function `name` of a binary. Raises LaunchError if it cannot be loaded."""

    def current(self) -> int:
        """Number of the array library's current device in this thread."""
        return 0

    def allocate(self, nbytes: int, stream: int | None = None) -> Buffer:
        """Memory aligned to 16 bytes at least, contents undefined, for use on a stream, by default the current one.

        Raises LaunchError if there is too little.
        """

    def graph_memory(self, nbytes: int, zeroed: bool) -> Buffer:
        """Memory for a graph that is being captured, past the pool of the array library: no other work uses it until
        the buffer is dropped. Its bytes are 0 where `zeroed`, else undefined. Raises LaunchError if there is too
        little."""
        buffer = self.allocate(nbytes)
        if zeroed:
            self.zero(buffer, nbytes, 0)
        return buffer

    def end_of_graph(self, stream: int) -> Callable[[], bool]:
        """Return a test for whether the graph that a stream is captured into has ended, with its clones and instances.

        Raises LaunchError.
        """
        return lambda: False

    def zero(self, buffer: Buffer, nbytes: int, stream: int) -> None:
        """Clear the first bytes of a buffer, on a stream."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes between two addresses of the device, on a stream."""

    def to_numpy(self, array: Any) -> "NDArray[Any]":
        """Copy an array of `xp` to the processor's memory, once all before it on the stream is done."""

    def tensor_map(self, pointer: int, rows: int, cols: int, ld: int, dtype: DType, box: TensorBox) -> bytes:
        """Encode the tensor map of a stored matrix: 128 bytes, passed as an argument, that tell TMA copies where the
        matrix is and which box of it one copy brings.

        `pointer` and the rows lie at multiples of 16 bytes. Raises LaunchError.
        """

    def stream(self) -> int:
        """Handle of the caller's current stream; 0 where there are no streams."""
        return 0

    def capturing(self, stream: int) -> bool:
        """Whether work that is put on a stream now becomes part of a graph."""
        return False

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        """Return a context in which a stream of this device is the current one."""
        return nullcontext()

    def identity(self, stream: int, capturing: bool) -> tuple[int, int]:
        """A number for the graph that a stream is captured into, 0 where it is not, and one for the stream. Unlike a
        handle, the pair is never used again. Raises LaunchError."""
        return 0, 0

    def synchronize(self) -> None:
        """Wait for the current stream. Raises LaunchError for an error that a kernel left."""
        return

    def elapsed_us(self, run: Callable[[], None]) -> float:
        """Microseconds between two events around what `run` launches."""

    def capture(self, run: Callable[[], None], first: Callable[[], None] | None = None) -> Callable[[], None]:
        """Return what `run` launches as one graph where the device has graphs, else `run` itself.

        `first`, else `run`, is called before: memory that a first call allocates must not be part of the graph.
        """
        return run

    @property
    def vendor_name(self) -> str:
        """Name and version of the vendor's library. Raises DeviceError where it is missing."""

    def blas(self) -> Blas:
        """Start a handle of the vendor's library. Raises DeviceError where it is missing."""

    @CachedProperty
    def shared_blas(self) -> Blas:
        """The one handle of all products that `vendor` makes, as a handle has memory of its own and is never freed."""
        return self.blas()

    def vendor(self, problem: Problem, elements: Elements = Elements.OWN) -> Launch:
        """Return a launch of the vendor's library for a problem, for one thread at a time, with a workspace that is
        allocated once. Leading dimensions count elements of the operands' own types.

        Raises DeviceError where the library is missing, or cannot multiply in this way.
        """
        blas, launchers = self.shared_blas, dict[tuple[int, int, int], Launcher]()
        workspace = self.allocate(blas.workspace_bytes)
        dense = Strides.dense(problem) if problem.batch > 1 else None

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            lds = a.ld, b.ld, c.ld
            if lds not in launchers:
                launchers[lds] = blas.gemm(problem, *lds, elements, dense)
            with self.entered():
                launchers[lds](self.stream(), a.pointer, b.pointer, c.pointer, alpha, beta, workspace.pointer)

        return launch

    def clock_mhz(self) -> float | None:
        """Clock of the SMs now in MHz, None where it cannot be read."""
        return None

    def held_back(self) -> bool:
        """Whether the device lowers its clocks now for power or heat; False where that cannot be read."""
        return False
