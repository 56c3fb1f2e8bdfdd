"""Products of any rank: stacks and vectors, what is refused, and NumPy's own tests of `numpy.matmul`."""

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import tilewright
from tilewright.codegen.batch import Strides
from tilewright.codegen.errors import ArgumentTypeError, LayoutError, ShapeError
from tilewright.codegen.problem import Problem
from tilewright.runtime.product.arrays import View
from tilewright.runtime.product.kernel import Kernel
from tilewright.runtime.product.stack import Stack, stacked
from tilewright.runtime.store.store import Store

try:
    theirs: Any = importlib.import_module("numpy._core.tests.test_multiarray")
except ImportError:  # NumPy 1
    theirs = importlib.import_module("numpy.core.tests.test_multiarray")

HERE: dict[str, Any] = {"device": "host", "vendor": "never"}


def whole(*shape: int, seed: int = 0, kind: Any = np.float32) -> Any:
    """An array of small whole numbers, whose products are exact."""
    return np.random.default_rng(seed + sum(shape)).integers(-4, 5, shape).astype(kind)


def view(array: Any) -> View:
    """The layout of an array."""
    return View(array.ctypes.data, array.shape, array.strides, tilewright.DType.parse(array.dtype), "host")


def stack_of(a: Any, b: Any, out: Any = None) -> Stack:
    """The stack of a product of arrays."""
    return stacked(view(a), view(b), None if out is None else view(out))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Problem, Strides | None]]:
    """The problems of kernels whose launches are made, with the distances of their matrices."""
    seen: list[tuple[Problem, Strides | None]] = []
    laid = Kernel.laid

    def spied(kernel: Kernel, lda: int, ldb: int, ldc: int, strides: Strides | None = None) -> Any:
        seen.append((kernel.problem, strides))
        return laid(kernel, lda, ldb, ldc, strides)

    monkeypatch.setattr(Kernel, "laid", spied)
    return seen


SHAPES = (
    ((7, 3, 4), (7, 4, 5)),
    ((7, 3, 4), (4, 5)),
    ((3, 4), (7, 4, 5)),
    ((2, 1, 3, 4), (1, 3, 4, 5)),
    ((2, 3, 4, 5), (3, 5, 2)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((4,), (4,)),
    ((4,), (7, 4, 5)),
    ((7, 3, 4), (4,)),
    ((2, 2, 2, 3, 4), (2, 1, 2, 4, 5)),
)
EMPTY = (((0, 3, 4), (0, 4, 5)), ((0, 3, 4), (4, 5)), ((3, 0, 4), (3, 4, 5)), ((3, 2, 0), (3, 0, 5)), ((0,), (0,)))


class TestShapes:
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    @pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
    def test_a_product_of_any_rank_is_numpys(self, of_a: Any, of_b: Any, kind: Any) -> None:
        a, b = whole(*of_a, kind=kind), whole(*of_b, seed=1, kind=kind)
        result, expected = tilewright.matmul(a, b, **HERE), np.matmul(a, b)
        assert type(result) is type(expected)
        assert result.dtype == expected.dtype
        assert np.array_equal(result, expected)

    @pytest.mark.parametrize(("of_a", "of_b"), EMPTY)
    def test_without_elements(self, of_a: Any, of_b: Any) -> None:
        a, b = np.zeros(of_a, "float32"), np.zeros(of_b, "float32")
        result = tilewright.matmul(a, b, **HERE)
        assert result.shape == np.matmul(a, b).shape
        assert not np.any(result)

    def test_factors_and_an_out_of_each_layout(self) -> None:
        a, b = whole(2, 3, 4, 5), whole(3, 5, 6, seed=1)
        wide, tall = whole(2, 3, 4, 9, seed=2), whole(2, 3, 6, 4, seed=3)
        for out in (whole(2, 3, 4, 6, seed=4), wide[..., 1:7], tall.swapaxes(-1, -2)):
            before, beside = out.copy(), wide.copy()
            assert tilewright.matmul(a, b, out=out, alpha=2.0, beta=0.5, **HERE) is out
            assert np.array_equal(out, 2 * (a @ b) + 0.5 * before)
            assert np.array_equal(wide[..., :1], beside[..., :1])
            assert np.array_equal(wide[..., 7:], beside[..., 7:])

    def test_transposed_and_cut_out_operands_need_no_copy(self) -> None:
        large, other = whole(5, 9, 8), whole(5, 6, 7, seed=1)
        a, b = large[::2, 1:5, 2:8].swapaxes(-1, -2), other[1:4, 1:5, :3]
        assert np.array_equal(tilewright.matmul(a, b, **HERE), a @ b)

    def test_the_vendors_library_multiplies_stacks_too(self) -> None:
        a, b, out = whole(2, 1, 3, 4), whole(5, 4, 6, seed=1), whole(2, 5, 3, 6, seed=2)
        before = out.copy()
        tilewright.matmul(a, b, out=out, alpha=-1.0, beta=2.0, device="host")
        assert np.array_equal(out, -(a @ b) + 2 * before)

    def test_a_loaded_batch_takes_stacks_as_stored(self) -> None:
        kernel = tilewright.load(3, 5, 4, trans="tn", batch=6, **HERE)
        a, b = whole(2, 1, 4, 3), whole(3, 4, 5, seed=1)
        assert np.array_equal(kernel(a, b), a.swapaxes(-1, -2) @ b)
        flat = whole(6, 4, 3, seed=2)
        assert np.array_equal(kernel(flat, b[0]), flat.swapaxes(-1, -2) @ b[0])
        with pytest.raises(ShapeError, match="stacks of 6 matrices along two dimensions at most, got shapes"):
            kernel(a[0], b)
        with pytest.raises(ShapeError, match=r"b must have matrices of 4x5, got shape \(6, 4, 4\)"):
            kernel(flat, whole(6, 4, 4))

    def test_a_loaded_batch_of_one_takes_stacks_of_one(self) -> None:
        gemm = tilewright.load(3, 5, 4, batch=1, device="host")
        a, b = whole(1, 3, 4), whole(1, 4, 5)
        assert np.array_equal(gemm(a, b), a @ b)
        assert np.array_equal(gemm(a[0], b[0]), a[0] @ b[0])
        with pytest.raises(ShapeError, match="a must be 3x4, got shape"):
            gemm(whole(2, 3, 4), whole(2, 4, 5))


class TestLaunches:
    """Dimensions of stacks as launches."""

    def test_one_launch_without_copies(self, launches: Any) -> None:
        tilewright.clear()
        a, b = whole(2, 1, 3, 4), whole(1, 3, 4, 5)
        tilewright.matmul(a, b, **HERE)
        assert {(problem.batch, strides) for problem, strides in launches} == {
            (6, Strides(3, (12, 0), (0, 20), (45, 15)))
        }

    def test_a_stack_by_one_matrix_is_one_product_of_all_rows(self, launches: Any) -> None:
        tilewright.clear()
        tilewright.matmul(whole(2, 5, 3, 4), whole(4, 6), **HERE)
        assert {(problem.m, problem.batch, strides) for problem, strides in launches} == {(30, 1, None)}
        rows = whole(5, 3, 8)[..., :4]  # a gap after each row, and none after a matrix
        assert stack_of(rows, whole(4, 6)).a.shape == (15, 4)
        gaps = whole(5, 4, 4)[:, :3]  # a gap after each matrix
        assert (stack_of(gaps, whole(4, 6)).a.shape, stack_of(gaps, whole(4, 6)).batch) == ((3, 4), 5)

    def test_dimensions_that_lie_evenly_are_one(self) -> None:
        stack = stack_of(whole(2, 3, 4, 5), whole(2, 3, 5, 6))
        assert (stack.batch, len(stack.dims), stack.offsets) == (6, 1, ((0, 0, 0),))

    def test_launches_follow_each_other_along_a_third_dimension(self) -> None:
        stack = stack_of(whole(2, 3, 2, 4, 5), whole(2, 1, 2, 5, 6))
        assert (stack.batch, len(stack.offsets)) == (6, 2)
        assert stack.offsets[1] == (3 * 2 * 20 * 4, 2 * 30 * 4, 3 * 2 * 24 * 4)

    def test_launches_are_as_few_as_can_be(self) -> None:
        for of_a, of_b in (((60, 1, 3, 2, 2), (60, 2, 3, 2, 2)), ((2, 1, 60, 2, 2), (2, 3, 60, 2, 2))):
            a, b = whole(*of_a), whole(*of_b)
            stack = stack_of(a, b)
            assert (len(stack.offsets), stack.batch) == (2, 180)
            assert np.array_equal(tilewright.matmul(a, b, **HERE), a @ b)

    def test_an_empty_stack_is_a_product_of_no_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It needs no compiler on the processor, nothing is measured and no record is made."""
        for name, value in {"PATH": "/nowhere", "TILEWRIGHT_FIRST_USE": "measure", "TILEWRIGHT_VENDOR": "auto"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CXX", raising=False)
        tilewright.clear()
        for of_a, of_b, of_c in (
            ((0, 11, 6), (0, 6, 13), (0, 11, 13)),
            ((0, 11, 6), (6, 13), (0, 11, 13)),
            ((6,), (2, 0, 6, 13), (2, 0, 13)),
            ((3, 1, 11, 6), (0, 6, 1), (3, 0, 11, 1)),
        ):
            assert tilewright.matmul(whole(*of_a), whole(*of_b), device="host").shape == of_c
        out = whole(0, 13, 11).swapaxes(1, 2)
        assert tilewright.matmul(whole(0, 11, 6), whole(0, 6, 13), out=out, device="host") is out
        assert not [record for record in Store().records() if not record.device.startswith("nvidia-")]

    def test_more_products_than_a_launch_takes(self) -> None:
        many = np.lib.stride_tricks.as_strided(whole(1, 1), (65536, 65536, 1, 1), (65536 * 4, 4, 4, 4))
        a, b, c = (View(0, many.shape, many.strides, tilewright.DType.FLOAT, "host") for _ in range(3))
        stack = stacked(a, b, c, folds=False)
        assert (stack.batch, len(stack.offsets)) == (65536, 65536)
        assert stack.offsets[2] == (2 * 65536 * 4,) * 3
        assert tilewright.matmul(whole(65536, 65536, 0, 3), whole(3, 2), **HERE).shape == (65536, 65536, 0, 2)

    def test_as_many_dimensions_as_an_array_may_have(self) -> None:
        most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
        a, b = whole(*[1] * (most - 2), 2, 3), whole(3, 2)
        assert np.array_equal(tilewright.matmul(a, b, **HERE), a @ b)

    def test_bits_of_a_product_do_not_depend_on_its_place(self) -> None:
        generator = np.random.default_rng(3)
        a, b = (generator.standard_normal(shape).astype("float32") for shape in ((5, 33, 70), (5, 70, 21)))
        a[:], b[:] = a[0], b[0]
        result = tilewright.matmul(a, b, **HERE)
        assert all(np.array_equal(each, result[0]) for each in result)


class TestRefused:
    @pytest.mark.parametrize(
        ("of_a", "of_b", "words"),
        [
            ((), (4, 5), r"a must have a dimension at least, got an array of shape \(\): pass a number as alpha"),
            ((3, 4), (), "b must have a dimension at least"),
            ((2, 3, 4), (3, 4, 5), r"a is a stack of shape \(2,\), b of \(3,\), which do not broadcast"),
            ((2, 3, 4), (2, 5, 4), "inner dimensions differ: a is 2x3x4, b is 2x5x4"),
            ((4,), (5,), r"inner dimensions differ: a is \(4,\), b is \(5,\)"),
        ],
    )
    def test_shapes(self, of_a: Any, of_b: Any, words: str) -> None:
        for copy in ("never", "if-needed"):
            with pytest.raises(ShapeError, match=words):
                tilewright.matmul(whole(*of_a), whole(*of_b), copy=copy, **HERE)

    @pytest.mark.parametrize(
        ("of_a", "of_b", "words"),
        [
            ((6, 3, 3), (6, 5, 4), r"a must have matrices of 4x3, got shape \(6, 3, 3\)"),
            ((4,), (6, 5, 4), r"a must have matrices of 4x3, got shape \(4,\)"),
            ((6, 4, 3), (4,), r"b must have matrices of 5x4, got shape \(4,\)"),
            ((0, 4, 3), (0, 5, 4), r"must be stacks of 6 matrices .* got shapes \(0, 4, 3\) and \(0, 5, 4\)"),
            ((5, 4, 3), (5, 5, 4), r"must be stacks of 6 matrices .* got shapes \(5, 4, 3\) and \(5, 5, 4\)"),
        ],
    )
    def test_shapes_of_a_loaded_batch(self, of_a: Any, of_b: Any, words: str) -> None:
        kernel = tilewright.load(3, 5, 4, batch=6, trans="tt", **HERE)
        with pytest.raises(ShapeError, match=words):
            kernel(whole(*of_a), whole(*of_b))

    def test_an_out_of_another_shape(self) -> None:
        for out in (whole(3, 5), whole(1, 3, 5), whole(2, 5, 3)):
            with pytest.raises(ShapeError, match="out must be 2x3x5, got shape"):
                tilewright.matmul(whole(2, 3, 4), whole(4, 5), out=out, **HERE)

    def test_an_out_whose_matrices_share_memory(self) -> None:
        out = np.lib.stride_tricks.as_strided(whole(3, 5), (2, 3, 5), (0, 20, 4))
        with pytest.raises(LayoutError, match="out has elements that share memory"):
            tilewright.matmul(whole(2, 3, 4), whole(2, 4, 5), out=out, **HERE)

    def test_an_out_that_overlaps_an_operand(self) -> None:
        both = whole(4, 3, 3)
        for _ in range(2):  # the second call has a plan
            with pytest.raises(LayoutError, match="out overlaps a"):
                tilewright.matmul(both[:3], whole(3, 3, 3), out=both[1:], **HERE)
        a, out = both[::2], both[1::2]  # in turn
        before = a.copy()
        assert np.array_equal(tilewright.matmul(a, whole(2, 3, 3), out=out, **HERE), before @ whole(2, 3, 3))

    def test_reversed_stacks_are_copied_if_needed(self) -> None:
        a, b = whole(3, 4, 5)[::-1], whole(3, 5, 6)
        with pytest.raises(LayoutError, match="a must have its matrices 0 or more whole elements apart"):
            tilewright.matmul(a, b, **HERE)
        assert np.array_equal(tilewright.matmul(a, b, copy="if-needed", **HERE), a @ b)

    def test_impossible_numbers_of_products(self) -> None:
        for batch in (-1, 0, 2**31):
            with pytest.raises(ShapeError, match=rf"batch must be in 1..2\^31-1, got {batch}$"):
                tilewright.load("8", batch=batch, device="host")
        with pytest.raises(ArgumentTypeError, match="batch must be an integer"):
            tilewright.load("8", batch=2.5, device="host")  # type: ignore[arg-type]


ours = partial(tilewright.matmul, device="host", vendor="never", copy="if-needed")
numpys = np.matmul


def multiply(a: Any, b: Any, **options: Any) -> Any:
    """The product by our kernels, or by NumPy for the booleans that NumPy's tests have."""
    return (numpys if a.dtype == bool else ours)(a, b, **options)


class TestAnyRank(theirs.MatmulCommon):
    """Vectors, matrices and stacks that broadcast."""

    types = "?fd"
    matmul = staticmethod(multiply)


class TestLayouts:
    """Tests of NumPy that call `numpy.matmul`, which is replaced here."""

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
