"""cuBLAS through its C interface, with a workspace from the caller, so that its calls may be captured."""

import ctypes
from typing import Any

from ...codegen.batch import Strides
from ...codegen.errors import DeviceError, LaunchError, check
from ...codegen.problem import DType, Problem
from .protocol import Elements, Launcher

WORKSPACE_BYTES = 64 << 20
"""Size of a workspace; more than cuBLAS's default for Hopper."""
_DEFAULT_MATH = 0  # CUBLAS_DEFAULT_MATH: no TF32
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_FLOAT = 0  # CUDA_R_32F
_COMPUTE, _COMPUTE_TF32 = 68, 77  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
_TYPES = {Elements.TF32: (_FLOAT, _COMPUTE_TF32), Elements.HALF: (2, _COMPUTE), Elements.BFLOAT16: (14, _COMPUTE)}
_ADDRESS, _INT, _STEP = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SHAPE = _ADDRESS, *(_INT,) * 5, _ADDRESS
"""Types of the handle, the operations, the sizes and the address of a factor."""
_BATCHED = *_SHAPE, _ADDRESS, _INT, _STEP, _ADDRESS, _INT, _STEP, _ADDRESS, _ADDRESS, _INT, _STEP, _INT


class Cublas:
    """One handle of cuBLAS on one GPU, a Blas. Not safe between threads: the caller holds a lock."""

    workspace_bytes, complete = WORKSPACE_BYTES, False

    def __init__(self, library: Any, handle: int) -> None:
        """`library` is libcublas as ctypes loads it, `handle` a cublasHandle_t, which is set to IEEE arithmetic."""
        self._library, self._handle = library, handle
        self._place: tuple[int, int] | None = None
        """Stream and workspace of the handle."""
        product = *_SHAPE, _ADDRESS, _INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _INT
        library.cublasSgemm_v2.argtypes = library.cublasDgemm_v2.argtypes = product
        typed = *product[:8], _INT, _INT, _ADDRESS, _INT, _INT, _ADDRESS, _ADDRESS, _INT, _INT, _INT, _INT
        library.cublasGemmEx.argtypes = typed
        library.cublasSgemmStridedBatched.argtypes = library.cublasDgemmStridedBatched.argtypes = _BATCHED
        library.cublasSetStream_v2.argtypes = _ADDRESS, _ADDRESS
        library.cublasSetWorkspace_v2.argtypes = _ADDRESS, _ADDRESS, ctypes.c_size_t
        library.cublasSetMathMode.argtypes = _ADDRESS, _INT
        _ok(library.cublasSetMathMode(handle, _DEFAULT_MATH))

    def gemm(
        self, problem: Problem, lda: int, ldb: int, ldc: int, elements: Elements = Elements.OWN,
        strides: Strides | None = None,
    ) -> Launcher:  # fmt: skip
        library, single = self._library, problem.dtype is DType.FLOAT
        kind = ctypes.c_float if single else ctypes.c_double
        factor, factor_c = kind(), kind()
        at_factor_c = ctypes.addressof(factor_c)
        # cuBLAS counts in columns: it sees our row-major C as C^T = op(B)^T op(A)^T.
        shape = int(problem.trans_b), int(problem.trans_a), problem.n, problem.m, problem.k
        head = self._handle, *shape, ctypes.addressof(factor)
        # The number of calls, the bytes from the matrices of one call to those of the next, and the arguments of a call
        # that follow the addresses of A, B and C.
        calls, (next_a, next_b, next_c) = 1, (0, 0, 0)
        after: tuple[tuple[int, ...], ...]
        if strides is not None:
            check(elements is Elements.OWN, "cuBLAS multiplies batches in the problem's type alone", DeviceError)
            call = library.cublasSgemmStridedBatched if single else library.cublasDgemmStridedBatched
            calls = problem.batch // strides.inner
            next_a, next_b, next_c = (outer * problem.dtype.size_bytes for outer, _ in strides.steps)
            step_a, step_b, step_c = (step for _, step in strides.steps)
            after = (lda, step_a), (ldb, step_b), (ldc, step_c, strides.inner)
        elif elements is Elements.OWN:
            call = library.cublasSgemm_v2 if single else library.cublasDgemm_v2
            after = (lda,), (ldb,), (ldc,)
        else:
            call, (element, compute) = library.cublasGemmEx, _TYPES[elements]
            after = (element, lda), (element, ldb), (_FLOAT, ldc, compute, _DEFAULT_ALGORITHM)
        after_a, after_b, after_c = after

        def launch(stream: int, *values: Any) -> None:
            a, b, c, factor.value, factor_c.value, workspace = values
            if (stream, workspace) != self._place:
                self._move(stream, workspace)
            for _ in range(calls):
                status = call(*head, b, *after_b, a, *after_a, at_factor_c, c, *after_c)
                if status:
                    _ok(status)
                a, b, c = a + next_a, b + next_b, c + next_c

        return launch

    def _move(self, stream: int, workspace: int) -> None:
        """Set the stream and then the workspace, which setting the stream resets. Either call takes as long as passing
        a product's arguments."""
        self._place = None
        _ok(self._library.cublasSetStream_v2(self._handle, stream))
        _ok(self._library.cublasSetWorkspace_v2(self._handle, workspace, WORKSPACE_BYTES))
        self._place = stream, workspace


def _ok(status: int) -> None:
    check(status == 0, f"cuBLAS returned status {status}", LaunchError)
