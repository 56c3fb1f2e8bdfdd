"""cuBLAS in Python: what `runtime/device/cublas.py` calls of it, for matrices in the processor's memory."""

import ctypes
from typing import Any

import numpy as np
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.cublas import Cublas
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Device, Elements
from tilewright.runtime.product.vendor import OwnKernel, VendorFallback

_ELEMENTS = {0: np.float32, 2: np.float16, 14: np.uint16}  # by cudaDataType; the bits of bfloat16s


class _Function:
    """A function of a library that ctypes loaded, whose `argtypes` can be set."""

    argtypes: Any = None

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, *given: Any) -> int:
        assert self.argtypes is not None
        passed = [kind(value).value or 0 for kind, value in zip(self.argtypes, given, strict=True)]
        assert passed == list(given)  # ctypes cuts an address to fit an int
        return int(self._body(*given) or 0)


class FakeCublas:
    """The library, with one handle; products count in columns, as the real one's do."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        """The status that each product returns."""
        self.products: list[tuple[int, ...]] = []
        """Stream, workspace and m, n and k of each."""
        self.stream = self.workspace = 0
        self.math_mode = -1
        self.cublasSetMathMode = _Function(lambda handle, mode: setattr(self, "math_mode", mode))
        self.cublasSetStream_v2 = _Function(self._set_stream)
        self.cublasSetWorkspace_v2 = _Function(self._set_workspace)
        self.cublasSgemm_v2 = _Function(lambda *given: self._gemm(np.float32, ctypes.c_float, *given))
        self.cublasDgemm_v2 = _Function(lambda *given: self._gemm(np.float64, ctypes.c_double, *given))
        self.cublasGemmEx = _Function(self._gemm_ex)
        self.kinds: list[int] = []
        """Types of the operands of typed products."""

    def _set_stream(self, handle: int, stream: int) -> None:
        self.stream, self.workspace = stream, 0  # as the real one: its own workspace, which may be allocated

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
        given = handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
        return self._gemm(np.float32, ctypes.c_float, *given, element=_ELEMENTS[a_type])

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
            found = matrix(address, rows, cols, ld, element or dtype)
            bfloat16 = found.dtype == np.uint16
            return (found.astype(np.uint32) << 16).view(np.float32) if bfloat16 else found.astype(dtype)

        left = numbers(a, k, m, lda).T if trans_a else numbers(a, m, k, lda)
        right = numbers(b, n, k, ldb).T if trans_b else numbers(b, k, n, ldb)
        out = matrix(c, m, n, ldc, dtype)
        factor, factor_c = (dtype(scalar.from_address(each).value) for each in (alpha, beta))
        assert factor != 0
        with np.errstate(all="ignore"):
            out[...] = factor * (left @ right) + (factor_c * out if factor_c != 0 else 0)
        return self.status


class VendorHost(HostDevice):
    """The processor with such a library, as a GPU has one; streams are captured where a test says so."""

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
    """That the library is faster wherever there is something to multiply."""
    works = min(own.problem.m, own.problem.n, own.problem.k) > 0
    return VendorFallback(12.5, 1.25, "a test") if works else None
