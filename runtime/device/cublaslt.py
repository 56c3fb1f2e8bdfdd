"""cuBLASLt through nvmath-python, an extra: one launch for each kernel that its heuristic names."""

import importlib.util
import weakref
from typing import Any

import numpy as np

from ...codegen.errors import DeviceError, LaunchError, check
from ...codegen.problem import DType, Problem
from .protocol import Device, Launch, Operand

WORKSPACE_BYTES = 32 << 20
"""Size of the workspace, which is allocated once."""
HEURISTICS = 16
"""Most kernels that the heuristic names."""
_INSTALL = "pip install 'tilewright[lt]'"


def _bindings() -> tuple[Any, Any]:
    """nvmath's modules for cuBLASLt and for cuBLAS, which names the kinds of arithmetic. Raises DeviceError."""
    if importlib.util.find_spec("nvmath") is None:
        raise DeviceError(f"nvmath-python is not installed; get it with {_INSTALL}")
    try:
        from nvmath.bindings import cublas, cublasLt
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"nvmath-python cannot be loaded ({error}); get it with {_INSTALL}") from error
    return cublasLt, cublas


def cublaslt_name() -> str:
    """Name and version of cuBLASLt. Raises DeviceError where it or nvmath-python is missing."""
    lt, _ = _bindings()
    try:
        version = lt.get_version()
    except (lt.cuBLASLtError, RuntimeError, OSError) as error:
        raise DeviceError(f"cuBLASLt cannot be loaded: {error}") from error
    return f"cuBLASLt {version // 10000}.{version // 100 % 100}.{version % 100}"


class CublasLt:
    """A product by cuBLASLt in IEEE arithmetic (TF32 off), on matrices with contiguous rows.

    Raises DeviceError where cuBLASLt or nvmath-python is missing, LaunchError where it refuses the problem.
    """

    def __init__(self, device: Device, problem: Problem) -> None:
        self._lt, cublas = _bindings()
        self._device, self._problem = device, problem
        self._workspace = device.allocate(WORKSPACE_BYTES)
        self._lds = max(1, problem.stored_a[1]), max(1, problem.stored_b[1]), max(1, problem.n)
        lt, single = self._lt, problem.dtype is DType.FLOAT
        element = 0 if single else 1  # CUDA_R_32F, CUDA_R_64F
        compute = cublas.ComputeType.COMPUTE_32F if single else cublas.ComputeType.COMPUTE_64F
        try:
            self._handle = self._owned(lt.create(), lt.destroy)
            self._product = self._owned(lt.matmul_desc_create(int(compute), element), lt.matmul_desc_destroy)
            # cuBLAS counts in columns: it sees our row-major C as C^T = op(B)^T op(A)^T.
            attributes = lt.MatmulDescAttribute
            for attribute, trans in ((attributes.TRANSA, problem.trans_b), (attributes.TRANSB, problem.trans_a)):
                kind = lt.get_matmul_desc_attribute_dtype(attribute)
                value = np.array([trans], dtype=kind)
                lt.matmul_desc_set_attribute(self._product, int(attribute), value.ctypes.data, value.nbytes)
            self._layouts = [
                self._owned(lt.matrix_layout_create(element, cols, rows, max(1, cols)), lt.matrix_layout_destroy)
                for rows, cols in (problem.stored_b, problem.stored_a, (problem.m, problem.n))
            ]
            self._results = self._heuristics()
        except (lt.cuBLASLtError, RuntimeError) as error:
            raise LaunchError(f"cuBLASLt: {error}") from error

    def _owned(self, handle: int, destroy: Any) -> int:
        weakref.finalize(self, destroy, handle).atexit = False  # the driver may be gone by then
        return handle

    def _heuristics(self) -> np.ndarray[Any, Any]:
        """Results of the heuristic, the best by its own estimate first, for matrices that are aligned to 256 bytes."""
        lt = self._lt
        preference = self._owned(lt.matmul_preference_create(), lt.matmul_preference_destroy)
        attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        value = np.array([WORKSPACE_BYTES], dtype=lt.get_matmul_preference_attribute_dtype(attribute))
        lt.matmul_preference_set_attribute(preference, int(attribute), value.ctypes.data, value.nbytes)
        results = np.zeros(HEURISTICS, dtype=lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, dtype=np.int32)
        left, right, out = self._layouts
        lt.matmul_algo_get_heuristic(
            self._handle, self._product, left, right, out, out, preference, HEURISTICS,
            results.ctypes.data, count.ctypes.data,
        )  # fmt: skip
        return results[: int(count[0])]

    def launches(self) -> list[Launch]:
        """A launch for each kernel of the heuristic that needs no larger workspace."""
        usable = (self._results["state"] == 0) & (self._results["workspace_size"] <= WORKSPACE_BYTES)
        return [self._launch(int(index)) for index in np.flatnonzero(usable)]

    def _launch(self, index: int) -> Launch:
        lt, device = self._lt, self._device
        left, right, out = self._layouts
        algorithm = self._results["algo"][index : index + 1]
        scalar = self._problem.dtype.numpy_name

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            check((a.ld, b.ld, c.ld) == self._lds, "cuBLASLt was set up for rows that lie side by side", LaunchError)
            scalars = np.array([alpha, beta], dtype=scalar)
            factors = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
            try:
                lt.matmul(
                    self._handle, self._product, factors[0], b.pointer, left, a.pointer, right,
                    factors[1], c.pointer, out, c.pointer, out,
                    algorithm.ctypes.data, self._workspace.pointer, WORKSPACE_BYTES, device.stream(),
                )  # fmt: skip
            except lt.cuBLASLtError as error:
                raise LaunchError(f"cuBLASLt: {error}") from error

        return launch
