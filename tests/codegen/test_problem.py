"""Problems: shapes, dtypes and transposes, and the errors of bad arguments."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilewright.codegen.errors import ArgumentTypeError, ConfigError, LayoutError, ShapeError, TilewrightError
from tilewright.codegen.problem import DType, Problem

pytestmark = pytest.mark.fast

SIZES = st.integers(0, 2**31 - 1)


@given(SIZES, SIZES, SIZES, st.sampled_from(DType), st.sampled_from(["nn", "nt", "tn", "tt"]))
def test_problem_is_read_back_from_its_parts(m: int, n: int, k: int, dtype: DType, trans: str) -> None:
    problem = Problem(m, n, k, dtype, trans[0] == "t", trans[1] == "t")
    assert Problem.parse(problem.shape, dtype, trans) == problem
    assert str(problem) == f"{m}x{n}x{k} {dtype.value} {trans}"


def test_one_number_is_a_cube() -> None:
    assert Problem.parse("1000") == Problem(1000, 1000, 1000)


@pytest.mark.parametrize("shape", [None, 8, 8.0, b"8", {8: 9}, np.ones(3)])
def test_a_shape_of_a_wrong_type_is_a_type_error(shape: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape("shape must be 'MxNxK', (m, n, k) or a Problem, got")):
        Problem.parse(shape)


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_one_word_stands_for_both_transposes(trans: Any) -> None:
    flags = trans[0] == "t", trans[1] == "t"
    problem = Problem(3, 4, 5, "double", *flags)
    assert problem == Problem(3, 4, 5, "double", trans=trans) == Problem(3, 4, 5, "double", *flags, trans=trans)
    assert problem == Problem.parse((3, 4, 5), np.float64, trans) == Problem.parse("3x4x5", "f64", trans_a=flags[0],
                                                                                   trans_b=flags[1])  # fmt: skip
    assert Problem.parse(problem, trans=trans) is problem
    with pytest.raises(ConfigError, match=f"trans is '{trans}' and trans_b is {not flags[1]}, which contradict"):
        Problem(3, 4, 5, trans=trans, trans_b=not flags[1])


def test_shape_is_read_without_regard_to_case_and_blanks() -> None:
    assert Problem.parse(" 10X20X30 ").shape == "10x20x30"


@pytest.mark.parametrize(
    "shape",
    [
        "",
        "x",
        "1x2",
        "1x2x3x4",
        "-1",
        "-1x2x3",
        "1.5x2x3",
        "1e3",
        "1 x 2 x 3",
        "axbxc",
        "1x2x",
        "99999999999",
        (1, 2),
        (1, 2, 3, 4),
    ],
)
def test_malformed_shape_is_refused_by_name(shape: Any) -> None:
    with pytest.raises(ShapeError, match=r"shape must (be MxNxK or one number|have three sizes, \(m, n, k\)), got"):
        Problem.parse(shape)


@pytest.mark.parametrize("name", ["m", "n", "k"])
@pytest.mark.parametrize("value", [-1, 2**31])
def test_size_out_of_range_is_a_value_error_that_names_it(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be in .*got {value}"):
        Problem(**{"m": 1, "n": 1, "k": 1, name: value})


@pytest.mark.parametrize("name", ["m", "n", "k"])
@pytest.mark.parametrize("value", [1.0, True, "1", None, np.array([1, 2]), np.array(4.5)])
def test_size_that_is_no_integer_is_a_type_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(f"{name} must be an integer, got {value!r}")):
        Problem(**{"m": 1, "n": 1, "k": 1, name: value})


def test_size_of_another_integer_type_becomes_an_int() -> None:
    class Seven:
        def __index__(self) -> int:
            return 7

    problem = Problem(Seven(), 1, 1)  # type: ignore[arg-type]
    assert type(problem.m) is int
    assert problem.m == 7


@pytest.mark.parametrize("dtype", ["int", "float16", "half", ">f4", "Float", None, 4, "complex"])
def test_unknown_dtype_is_a_type_error(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype must be float or double, got"):
        Problem(1, 1, 1, dtype)


@pytest.mark.parametrize("trans", ["", "n", "nnn", "NT", "xy"])
def test_unknown_transposes_are_refused(trans: str) -> None:
    with pytest.raises(ShapeError, match="trans must be nn, nt, tn or tt"):
        Problem.parse("1", trans=trans)


def test_trans_must_be_a_bool() -> None:
    with pytest.raises(TypeError, match="trans_a must be True or False, got 1"):
        Problem(1, 1, 1, trans_a=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float", DType.FLOAT), ("f32", DType.FLOAT), ("float32", DType.FLOAT), ("double", DType.DOUBLE)],
)
def test_dtype_goes_by_its_usual_names(name: str, dtype: DType) -> None:
    assert DType.parse(name) is dtype


def test_work_and_traffic() -> None:
    problem = Problem.parse("2x3x5", "double")
    assert problem.flops == 60
    assert problem.bytes == 8 * (10 + 15 + 6)


def test_stored_shapes_follow_the_transposes() -> None:
    assert Problem.parse("2x3x5", trans="nn").stored_a == (2, 5)
    assert Problem.parse("2x3x5", trans="tn").stored_a == (5, 2)
    assert Problem.parse("2x3x5", trans="nn").stored_b == (5, 3)
    assert Problem.parse("2x3x5", trans="nt").stored_b == (3, 5)


def test_errors_are_value_errors_with_one_base() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(LayoutError, ValueError)
    assert issubclass(ShapeError, TilewrightError)
