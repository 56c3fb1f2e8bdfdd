"""The checker itself: what it must accept, and everything that it must reject."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.check.verify import Verifier, product
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device, Launch, Operand

Array = NDArray[Any]
PROBLEM = Problem(40, 36, 257)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(choose("host"))


def view(operand: Operand, kind: Any) -> Array:
    import ctypes

    size = np.dtype(kind).itemsize
    raw = (ctypes.c_char * (operand.rows * operand.ld * size)).from_address(operand.pointer)
    return np.frombuffer(raw, kind).reshape(operand.rows, operand.ld)[:, : operand.cols]


def launch_of(compute: Callable[[Array, Array], Array], problem: Problem = PROBLEM, after: Any = None) -> Launch:
    """A launch that computes op(A) op(B) by `compute`, and handles alpha and beta correctly."""
    kind = np.dtype(problem.dtype.numpy_name)

    def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        op_a, op_b = view(a, kind), view(b, kind)
        op_a, op_b = (op_a.T if a.trans else op_a), (op_b.T if b.trans else op_b)
        result = alpha * compute(op_a, op_b)
        out = view(c, kind)
        out[...] = (result + beta * out if beta else result).astype(kind)
        if after is not None:
            after(c)

    return launch


def right(a: Array, b: Array) -> Array:
    return a.astype(np.longdouble) @ b.astype(np.longdouble)


def tf32(array: Array) -> Array:
    """An array rounded to the 10 fraction bits of TF32."""
    return (array.view(np.uint32) + 0x1000 & np.uint32(0xFFFFE000)).view(np.float32)


def without_term(a: Array, b: Array) -> Array:
    return right(a[:, 1:], b[1:])


def with_term_twice(a: Array, b: Array) -> Array:
    return right(a, b) + np.outer(a[:, 3], b[3]).astype(np.longdouble)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_accepts_what_is_right(device: Device, dtype: DType, trans: str) -> None:
    problem = Problem.parse("40x36x257", dtype, trans)
    verdict = Verifier(device, problem).check(launch_of(right, problem))
    assert verdict.reason == ""
    assert verdict.accuracy.worst < 0.1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda a, b: right(tf32(np.ascontiguousarray(a)), tf32(np.ascontiguousarray(b))), "times its bound"),
        (without_term, "times its bound"),
        (with_term_twice, "times its bound"),
        (lambda a, b: 0 * right(a, b), "times its bound"),
        (lambda a, b: np.nan * right(a, b), "NaN"),
        (lambda a, b: right(a, b)[::-1], "times its bound"),
        (lambda a, b: right(a, b) + (np.arange(36) == 35) * 1e-3, "times its bound"),
    ],
    ids=["tf32", "dropped", "doubled", "zeros", "nan", "upside down", "one column off"],
)
def test_rejects_what_is_wrong(device: Device, wrong: Callable[[Array, Array], Array], words: str) -> None:
    verdict = Verifier(device, PROBLEM).check(launch_of(wrong))
    assert words in verdict.reason
    assert not verdict.accuracy.ok


@pytest.mark.parametrize("dtype", list(DType))
def test_rejects_dropped_terms_where_k_is_long(device: Device, dtype: DType) -> None:
    """The proven bound, which grows with k, would let dropped terms pass; sums of random data grow less."""
    problem = Problem(16, 16, 1 << 16, dtype)
    verifier, kind = Verifier(device, problem), np.dtype(dtype.numpy_name)
    plain = verifier.check(launch_of(lambda a, b: a.astype(kind) @ b.astype(kind), problem))
    assert plain.reason == ""
    assert plain.accuracy.worst < 0.1 * 4 / 2**8
    verdict = verifier.check(launch_of(lambda a, b: a[:, 32:] @ b[32:], problem))
    assert verdict.accuracy.ok == (dtype is DType.FLOAT)
    assert "times its bound" in verdict.reason


def test_rejects_float_arithmetic_for_double(device: Device) -> None:
    problem = Problem(40, 36, 257, DType.DOUBLE)
    verdict = Verifier(device, problem).check(
        launch_of(lambda a, b: a.astype(np.float32) @ b.astype(np.float32), problem)
    )
    assert "times its bound" in verdict.reason


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(
    "misuse",
    [
        lambda alpha, beta: (1.0, beta),
        lambda alpha, beta: (abs(alpha), beta),
        lambda alpha, beta: (beta or alpha, beta),
        lambda alpha, beta: (alpha, 0.0),
        lambda alpha, beta: (alpha, min(beta, 1.0)),
        lambda alpha, beta: (alpha, beta and alpha),
        lambda alpha, beta: (alpha, alpha * beta),
        lambda alpha, beta: (beta, alpha) if beta else (alpha, beta),
    ],
    ids=[
        "alpha ignored", "sign of alpha lost", "beta for alpha", "beta ignored", "C added whatever beta is",
        "alpha for beta", "alpha times all", "swapped",
    ],
)  # fmt: skip
def test_rejects_kernels_that_misuse_alpha_and_beta(
    device: Device, dtype: DType, misuse: Callable[[float, float], tuple[float, float]]
) -> None:
    """Each misuse is right where alpha is 1 and beta 0."""
    assert misuse(1.0, 0.0) == (1.0, 0.0)
    problem = Problem(40, 36, 257, dtype)

    def misusing(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        launch_of(right, problem)(a, b, c, *misuse(alpha, beta))

    verdict = Verifier(device, problem).check(misusing)
    assert "times its bound" in verdict.reason
    assert not verdict.accuracy.ok


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("factor", "allowed"), [(0.0, 4), (2.0, 1)], ids=["beta is 0", "beta is 2"])
def test_rejects_one_rounding_more_than_is_allowed(device: Device, dtype: DType, factor: float, allowed: int) -> None:
    """Where k is 0, the bound is gamma_2 |beta||C| and four times the smallest subnormal. A step to the next number is
    at least half of gamma_2, and never more than all of it."""
    problem = Problem(40, 36, 0, dtype)

    def off_by(steps: int) -> Launch:
        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            out = view(c, dtype.numpy_name)
            out[...] = beta * out if beta else 0
            for _ in range(steps if beta == factor else 0):
                out[...] = np.nextafter(out, np.copysign(np.inf, out))

        return launch

    verifier = Verifier(device, problem)
    assert verifier.check(off_by(allowed)).reason == ""
    verdict = verifier.check(off_by(allowed + 1))
    assert re.search(rf"times its bound at .*, beta {factor:g}\)$", verdict.reason)
    assert not verdict.accuracy.ok


def test_rejects_elements_left_unwritten(device: Device) -> None:
    def all_but_one(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        before = view(c, np.float32)[17, 5].copy()
        launch_of(right)(a, b, c, alpha, beta)
        view(c, np.float32)[17, 5] = before

    assert "unwritten" in Verifier(device, PROBLEM).check(all_but_one).reason


@pytest.mark.parametrize("offset", [-4, 40 * 36 * 4])
def test_rejects_writes_outside(device: Device, offset: int) -> None:
    def beyond(c: Operand) -> None:
        import ctypes

        ctypes.c_float.from_address(c.pointer + offset).value = 1.0

    assert "outside" in Verifier(device, PROBLEM).check(launch_of(right, after=beyond)).reason


def test_rejects_c_read_where_beta_is_zero(device: Device) -> None:
    def reads(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        old = view(c, np.float32).copy()
        launch_of(right)(a, b, c, alpha, beta)
        view(c, np.float32)[...] += 0 * old

    assert Verifier(device, PROBLEM).check(reads).reason


def test_large_products_are_sampled_and_edges_always_seen(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime.check import verify

    monkeypatch.setattr(verify, "_WHOLE_FLOPS", {"host": 0.0})
    problem = Problem(300, 200, 33)

    def last_row_wrong(a: Array, b: Array) -> Array:
        result = right(a, b)
        result[-1, -1] += 1
        return result

    assert Verifier(device, problem).check(launch_of(right, problem)).reason == ""
    verdict = Verifier(device, problem).check(launch_of(last_row_wrong, problem))
    assert (verdict.accuracy.row, verdict.accuracy.col) == (299, 199)


@pytest.mark.parametrize("of", ["rows", "columns"])
def test_elements_beside_the_boundary_of_a_tile_are_always_compared(
    device: Device, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.runtime.check import verify

    monkeypatch.setattr(verify, "_WHOLE_FLOPS", {"host": 0.0})
    monkeypatch.setattr(verify, "_SAMPLED_ROWS", 1)
    problem = Problem(700, 600, 3)
    verifier, size = Verifier(device, problem), problem.m if of == "rows" else problem.n
    firsts = {first for tile in (4, 8, 16, 32, 64, 128, 256) for first in (tile, size // tile * tile)}
    beside = {0, size - 1} | {first - 1 for first in firsts} | {first for first in firsts if first < size}
    for place in sorted(beside):
        at = (place, 21) if of == "rows" else (21, place)  # 21 is beside no boundary itself

        def one_wrong(a: Array, b: Array, at: tuple[int, int] = at) -> Array:
            result = right(a, b)
            result[at] += 1
            return result

        verdict = verifier.check(launch_of(one_wrong, problem))
        assert "times its bound" in verdict.reason
        assert (verdict.accuracy.row, verdict.accuracy.col) == at


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("whole", [True, False])
def test_matrices_that_repeat_what_was_drawn(
    device: Device, dtype: DType, trans: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.runtime.check import verify

    monkeypatch.setattr(verify, "_WHOLE_FLOPS", {"host": 1e9 if whole else 0.0})
    monkeypatch.setattr(verify, "_DRAWN", 101)
    monkeypatch.setattr(verify, "_POISONED_BYTES", 1000)
    problem, operands = Problem.parse("140x90x37", dtype, trans), list[Array]()

    def noting(a: Array, b: Array) -> Array:
        operands.append(a)
        return right(a, b)

    verifier = Verifier(device, problem)
    verdict = verifier.check(launch_of(noting, problem))
    assert verdict.reason == ""
    assert verdict.accuracy.worst < 0.1
    stored = (operands[0].T if problem.trans_a else operands[0]).ravel()
    assert np.array_equal(stored[101:], stored[:-101])
    assert not np.array_equal(stored[100:], stored[:-100])
    assert "times its bound" in verifier.check(launch_of(lambda a, b: right(a, b[:, ::-1]), problem)).reason

    def unwritten(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        last = view(c, dtype.numpy_name)[-1, -1]  # beyond the first bytes of poison
        launch_of(right, problem)(a, b, c, alpha, beta)
        view(c, dtype.numpy_name)[-1, -1] = last

    assert "unwritten" in verifier.check(unwritten).reason


@pytest.mark.parametrize("dtype", list(DType))
def test_the_comparison_is_compiled_without_a_reference(
    device: Device, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.runtime.check import verify

    compared: list[tuple[int, ...]] = []
    real, added = verify._fused(device.xp)

    def ratio(got: Array, *arguments: Any) -> Any:
        compared.append(got.shape)
        return real(got, *arguments)

    monkeypatch.setattr(verify, "_fused", lambda xp: (ratio, added))
    monkeypatch.setattr(verify, "product", lambda *arguments: pytest.fail("a reference was made"))
    verify.compile_check(device, Problem(4000, 3000, 2000, dtype))
    assert compared == [(3, 5)]  # a few elements, wrong at the first alpha, as nothing is launched


@pytest.mark.parametrize("k", [1, 2, 3, 31, 700])
def test_double_reference_is_exact_far_below_the_bound(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.uniform(-1, 1, (3, k)), rng.uniform(-1, 1, (k, 4))
    a[0, 0], b[0, 0] = 1e-6, -1.0
    problem = Problem(3, 4, k, DType.DOUBLE)
    reference = product(np, problem, a.ravel(), b.ravel(), None, None)
    for row in range(3):
        for col in range(4):
            truth = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[row], b[:, col], strict=True))
            error = abs(truth - Fraction(float(reference.high[row, col])) - Fraction(float(reference.low[row, col])))
            assert error <= Fraction(2.0**-80) * Fraction(float(reference.magnitude[row, col]))
