"""NumPy's own tests of `numpy.matmul`, with `tilewright.matmul` in its place, in both types on the processor."""

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import tilewright
from tilewright.codegen.errors import ShapeError

try:
    theirs: Any = importlib.import_module("numpy._core.tests.test_multiarray")
except ImportError:  # NumPy 1
    theirs = importlib.import_module("numpy.core.tests.test_multiarray")

ours = partial(tilewright.matmul, device="host", vendor="never", copy="if-needed")
numpys = np.matmul


def multiply(a: Any, b: Any, **options: Any) -> Any:
    """The product by our kernels, by NumPy's where elements are truth values, on which its tests insist."""
    return (numpys if a.dtype == bool else ours)(a, b, **options)


class TestAnyRank(theirs.MatmulCommon):
    """Vectors, matrices and stacks that broadcast."""

    types = "?fd"
    matmul = staticmethod(multiply)


class TestLayouts:
    """Tests in which NumPy calls `numpy.matmul` itself, here replaced."""

    own = theirs.TestMatmul()

    @pytest.fixture(autouse=True)
    def _replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(np, "matmul", multiply)
        monkeypatch.setattr(theirs.TestMatmul, "matmul", staticmethod(multiply))

    @pytest.mark.parametrize("arrays", theirs.TestMatmul.test_dot_equivalent.pytestmark[0].args[1])
    def test_transposes_steps_and_no_elements(self, arrays: Any) -> None:
        self.own.test_dot_equivalent(arrays)

    def test_out_without_gaps_and_with_them(self) -> None:
        self.own.test_out_contiguous()

    @pytest.mark.skipif(not hasattr(own, "test_dot_equivalent_matrix_matrix_blastypes"), reason="needs NumPy 2.3")
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_every_order_of_operands_and_out(self, dtype: Any) -> None:
        self.own.test_dot_equivalent_matrix_matrix_blastypes(dtype)

    def test_out_does_not_broadcast(self) -> None:
        none, one = np.ones((0, 1, 1)), np.ones((1, 1, 1))
        assert multiply(none, none).shape == (0, 1, 1)
        with pytest.raises(ShapeError, match="out must be 0x1x1"):
            multiply(none, none, out=one)
