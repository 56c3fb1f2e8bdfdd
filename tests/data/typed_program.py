"""A program for type checkers: mypy and pyright pass it, and report every line that says `ignore`."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import tilewright
from numpy.typing import NDArray
from tilewright.codegen.emitted import Emitted
from tilewright.runtime.product.gemm import Gemm
from tilewright.tuner.result import Result

Floats = NDArray[np.float32]


class Tensor:
    """An array of a library of its own."""

    shape: tuple[int, ...] = ()
    dtype: object = None


def products(a: Floats, b: Floats) -> Floats:
    c = assert_type(tilewright.matmul(a, b, accuracy="normwise", vendor="auto", device="host"), Floats)
    factor: NDArray[np.float64] = np.array(0.5)
    return assert_type(tilewright.matmul(a, b, out=c, alpha=factor, beta=np.float32(1), copy="if-needed"), Floats)


def kernels(a: Floats, b: Floats) -> Floats:
    by_text = assert_type(tilewright.load("4x5x6", device="host"), Gemm)
    tilewright.load(4, 5, 6, dtype=np.float64, trans_a=True, device="host")
    tilewright.load((4, 5, 6), dtype=np.dtype("float64"), trans="tn", vendor="auto", first_use="predict", device="host")
    problem = tilewright.Problem(4, 5, 6, dtype="double", trans="nt")
    assert_type(problem.dtype, tilewright.DType)
    kernel = tilewright.load(problem, dtype=tilewright.DType.DOUBLE, device="host")
    assert_type(kernel.expected_us, float | None)
    tilewright.prepare("4x5x6", (4, 5, 7), tilewright.Problem(4, 5, 8), device="host", graphs=0)
    return assert_type(by_text(a, b, alpha=2), Floats)


def files(folder: Path) -> tuple[Path, ...]:
    emitted = assert_type(tilewright.emit(["64", (48, 64, 32)], "my_gemm", arch="sm_80", config="tiled:16"), Emitted)
    return emitted.write(folder)


def tuned(store: Path) -> float:
    result = assert_type(tilewright.tune("8x9x10", trans="nt", effort="quick", trials=1, store=store), Result)
    return result.best.median_us


def foreign(x: Tensor) -> Tensor:
    return assert_type(tilewright.matmul(x, x), Tensor)


def mistakes(a: Floats, b: Floats) -> list[Callable[[], Any]]:
    return [
        lambda: tilewright.matmul(a, b, accuracy="fast"),  # type: ignore[arg-type]
        lambda: tilewright.matmul(a, b, axes=0),  # type: ignore[arg-type]
        lambda: tilewright.matmul(a, b, a),  # type: ignore[arg-type]
        lambda: tilewright.matmul(a, b, alpha="2"),  # type: ignore[arg-type]
        lambda: tilewright.matmul([[1.0]], b),  # type: ignore[type-var]
        lambda: tilewright.load("4x5x6", trans="no"),  # type: ignore[arg-type]
        lambda: tilewright.load("4x5x6", dtype=float),  # type: ignore[arg-type]
        lambda: tilewright.load(4.5, 5, 6),  # type: ignore[arg-type]
        lambda: tilewright.tune("8", effort="slow"),  # type: ignore[arg-type]
        lambda: tilewright.prepare(8, device="host"),  # type: ignore[arg-type]
        lambda: tilewright.Problem(1, 2, 3, dtype="half"),  # type: ignore[arg-type]
        lambda: tilewright.multiply(a, b),  # type: ignore[attr-defined]
    ]
