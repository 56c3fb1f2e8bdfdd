"""Stand-ins for the vendor's libraries, as far as they are used. They multiply by NumPy the memory at the pointers."""

import ctypes
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.cublas import Cublas
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Device, Elements
from tilewright.runtime.product.vendor import OwnKernel, VendorFallback

# ---- cuBLAS: the functions that `runtime/device/cublas.py` calls ------------------------------------------------


_ELEMENTS = {0: np.float32, 2: np.float16, 14: np.uint16}  # by cudaDataType; uint16 holds the bits of a bfloat16


class _Function:
    """A function of a library that ctypes loaded, whose `argtypes` can be set."""

    argtypes: Any = None

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, *args: Any) -> int:
        assert self.argtypes is not None
        passed = [kind(value).value or 0 for kind, value in zip(self.argtypes, args, strict=True)]
        assert passed == list(args)  # ctypes cuts an address to fit an int
        return int(self._body(*args) or 0)


class FakeCublas:
    """The library, with one handle. Matrices are column-major, as in the real one."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        """Status that each product returns."""
        self.products: list[tuple[int, ...]] = []
        """Stream, workspace, m, n and k of each product."""
        self.stream = self.workspace = 0
        self.math_mode = -1
        self.cublasSetMathMode = _Function(lambda handle, mode: setattr(self, "math_mode", mode))
        self.cublasSetStream_v2 = _Function(self._set_stream)
        self.cublasSetWorkspace_v2 = _Function(self._set_workspace)
        self.cublasSgemm_v2 = _Function(lambda *args: self._gemm(np.float32, ctypes.c_float, *args))
        self.cublasDgemm_v2 = _Function(lambda *args: self._gemm(np.float64, ctypes.c_double, *args))
        self.cublasSgemmStridedBatched = _Function(lambda *args: self._batched(np.float32, ctypes.c_float, *args))
        self.cublasDgemmStridedBatched = _Function(lambda *args: self._batched(np.float64, ctypes.c_double, *args))
        self.cublasGemmEx = _Function(self._gemm_ex)
        self.batches: list[int] = []
        """Number of products of each call for a batch."""
        self.kinds: list[int] = []
        """Operand types of the calls of cublasGemmEx."""

    def _set_stream(self, handle: int, stream: int) -> None:
        self.stream, self.workspace = stream, 0  # the real library falls back to a workspace of its own too

    def _set_workspace(self, handle: int, workspace: int, nbytes: int) -> None:
        assert nbytes == Cublas.workspace_bytes
        self.workspace = workspace

    def _gemm_ex(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, a_type: int, lda: int, b: int,
        b_type: int, ldb: int, beta: int, c: int, c_type: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        assert (a_type, c_type, algorithm) == (b_type, 0, -1)
        assert compute == (77 if a_type == 0 else 68)
        self.kinds.append(a_type)
        args = handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
        return self._gemm(np.float32, ctypes.c_float, *args, element=_ELEMENTS[a_type])

    def _batched(
        self, dtype: Any, scalar: Any, handle: int, trans_a: int, trans_b: int, m: int, n: int, k: int, alpha: int,
        a: int, lda: int, step_a: int, b: int, ldb: int, step_b: int, beta: int, c: int, ldc: int, step_c: int,
        count: int,
    ) -> int:  # fmt: skip
        self.batches.append(count)
        head, size = (handle, trans_a, trans_b, m, n, k, alpha), np.dtype(dtype).itemsize
        for i in range(count):
            at_a, at_b, at_c = (at + i * step * size for at, step in ((a, step_a), (b, step_b), (c, step_c)))
            self._gemm(dtype, scalar, *head, at_a, lda, at_b, ldb, beta, at_c, ldc)
        return self.status

    def _gemm(
        self, dtype: Any, scalar: Any, handle: int, trans_a: int, trans_b: int, m: int, n: int, k: int, alpha: int,
        a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int, element: Any = None,
    ) -> int:  # fmt: skip
        assert self.workspace
        assert min(m, n, k) > 0
        self.products.append((self.stream, self.workspace, m, n, k))

        def matrix(address: int, rows: int, cols: int, ld: int, kind: Any) -> Any:
            assert ld >= rows
            size = np.dtype(kind).itemsize
            memory = (ctypes.c_char * (((cols - 1) * ld + rows) * size)).from_address(address)
            return np.ndarray((rows, cols), kind, memory, strides=(size, ld * size))

        def numbers(address: int, rows: int, cols: int, ld: int) -> Any:
            stored = matrix(address, rows, cols, ld, element or dtype)
            bfloat16 = stored.dtype == np.uint16
            return (stored.astype(np.uint32) << 16).view(np.float32) if bfloat16 else stored.astype(dtype)

        left = numbers(a, k, m, lda).T if trans_a else numbers(a, m, k, lda)
        right = numbers(b, n, k, ldb).T if trans_b else numbers(b, k, n, ldb)
        out = matrix(c, m, n, ldc, dtype)
        factor, factor_c = (dtype(scalar.from_address(each).value) for each in (alpha, beta))
        assert factor != 0
        with np.errstate(all="ignore"):
            out[...] = factor * (left @ right) + (factor_c * out if factor_c != 0 else 0)
        return self.status


class VendorHost(HostDevice):
    """The processor with the vendor's library of a GPU; streams are captured where a test sets `captured`."""

    def __init__(self, status: int = 0) -> None:
        super().__init__()
        self.library, self.captured = FakeCublas(status), False

    def blas(self) -> Cublas:
        return Cublas(self.library, 1)

    def vendor(self, problem: Problem, elements: Elements = Elements.OWN) -> Any:
        return Device.vendor(self, problem, elements)

    def capturing(self, stream: int) -> bool:
        return self.captured


def always(own: OwnKernel, operands: Any) -> VendorFallback | None:
    """A fallback that takes every product of which no dimension is zero."""
    works = min(own.problem.m, own.problem.n, own.problem.k) > 0
    return VendorFallback(12.5, 1.25, "a test") if works else None


# ---- cuBLASLt: nvmath-python's bindings -------------------------------------------------------------------------


WORKSPACE = 32 << 20


class FakeError(Exception):
    """The error that the bindings raise."""


class FakeLt:
    """The library, with four heuristics: one is right, one fails at launch, one is refused, one needs more memory."""

    cuBLASLtError = FakeError  # noqa: N815 - the name in the bindings
    MatmulDescAttribute = SimpleNamespace(TRANSA=3, TRANSB=4)
    MatmulPreferenceAttribute = SimpleNamespace(
        MAX_WORKSPACE_BYTES=1, MIN_ALIGNMENT_A_BYTES=5, MIN_ALIGNMENT_B_BYTES=6, MIN_ALIGNMENT_C_BYTES=7,
        MIN_ALIGNMENT_D_BYTES=8,
    )  # fmt: skip
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self.alive: dict[int, Any] = {}
        self.preferences: dict[int, int] = {}
        self.ran: list[int] = []

    def _new(self, content: Any) -> int:
        number = next(self._next)
        self.alive[number] = content
        return number

    def _end(self, number: int) -> None:
        del self.alive[number]

    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _end

    def get_version(self) -> int:
        return 131000

    def create(self) -> int:
        return self._new("handle")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) in ((68, 0), (70, 1))
        return self._new({"dtype": np.float64 if scale else np.float32, 3: 0, 4: 0})

    def matrix_layout_create(self, element: int, rows: int, cols: int, ld: int) -> int:
        assert ld >= rows
        return self._new((rows, cols, ld))

    def matmul_preference_create(self) -> int:
        return self._new("preference")

    def get_matmul_desc_attribute_dtype(self, attribute: int) -> Any:
        return np.int32

    def get_matmul_preference_attribute_dtype(self, attribute: int) -> Any:
        return np.uint64 if attribute == 1 else np.uint32

    def matmul_desc_set_attribute(self, desc: int, attribute: int, pointer: int, size: int) -> None:
        assert size == 4
        self.alive[desc][attribute] = ctypes.c_int32.from_address(pointer).value

    def matmul_preference_set_attribute(self, preference: int, attribute: int, pointer: int, size: int) -> None:
        kind = {4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
        self.preferences[attribute] = kind.from_address(pointer).value

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, most: int, results: int,
        count: int,
    ) -> None:  # fmt: skip
        assert self.alive[preference] == "preference"
        size = most * self.matmul_heuristic_result_dtype.itemsize
        heuristics = np.frombuffer((ctypes.c_char * size).from_address(results), self.matmul_heuristic_result_dtype)
        heuristics["algo"]["data_"][:4, 0] = (7, 13, 20, 21)
        heuristics["state"][:4] = (0, 0, 15, 0)
        heuristics["workspace_size"][3] = WORKSPACE + 1
        ctypes.c_int32.from_address(count).value = 4

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, left: int, b: int, right: int, beta: int, c: int, cs: int,
        d: int, ds: int, algo: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        number = ctypes.c_uint64.from_address(algo).value
        self.ran.append(number)
        if number != 7:
            raise FakeError("not supported")
        assert (size, c, cs) == (WORKSPACE, d, ds)
        settings = self.alive[desc]
        dtype = np.dtype(settings["dtype"])

        def column_major(pointer: int, layout: int) -> Any:
            rows, cols, ld = self.alive[layout]
            memory = (ctypes.c_char * (((cols - 1) * ld + rows) * dtype.itemsize)).from_address(pointer)
            flat = np.frombuffer(memory, dtype)
            return np.lib.stride_tricks.as_strided(flat, (rows, cols), (flat.itemsize, ld * flat.itemsize))

        def scalar(pointer: int) -> Any:
            kind = ctypes.c_double if dtype == np.float64 else ctypes.c_float
            return kind.from_address(pointer).value

        x, y, out = column_major(a, left), column_major(b, right), column_major(d, ds)
        product = scalar(alpha) * ((x.T if settings[3] else x) @ (y.T if settings[4] else y))
        out[:] = product + scalar(beta) * out if scalar(beta) else product


def install(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    """Let `from nvmath.bindings import cublas, cublasLt` import the stand-in."""
    fake = FakeLt()
    package, bindings = ModuleType("nvmath"), ModuleType("nvmath.bindings")
    package.__spec__ = SimpleNamespace(name="nvmath")  # type: ignore[assignment]
    bindings.cublasLt = fake  # type: ignore[attr-defined]
    kinds = SimpleNamespace(COMPUTE_32F=68, COMPUTE_64F=70)
    bindings.cublas = SimpleNamespace(ComputeType=kinds)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvmath", package)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    return fake
