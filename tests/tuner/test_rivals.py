"""The script that times rivals side by side, and the rival that is one long product; NumPy stands for cuBLAS."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilewright
from products import TRANS
from tilewright.codegen.errors import DeviceError
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.kinds import KINDS
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Elements
from tilewright.tuner.bench.concatenated import SCHEMES, Concatenated
from tilewright.tuner.bench.errors import broken_promise, error_kinds

SCRIPT = Path(tilewright.__file__).resolve().parent / "benchmarks" / "rivals" / "run.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize(
    ("grade", "config"),
    [
        (Grade.NORMWISE, "wgmma:64x64x64,stages=2"),
        pytest.param(Grade.ELEMENTWISE, "mma:64x32x32,warp=32x16,scheme=bf16x6,promote=16", marks=pytest.mark.slow),
    ],
)
def test_a_contender_that_runs_has_a_row_and_one_that_fails_is_reported(
    script: dict[str, Any], grade: Grade, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # where it is installed, it has no GPU here
    failed: list[str] = []
    rows = script["race"](HostDevice(), 128, grade, [config, "naive:unroll=3"], 0.01, failed)
    named = {row["contender"]: row for row in rows}
    assert list(named) == [
        "SGEMM", "long product", "long product, alone", "ours", "ours, alone", "ours again",
    ]  # fmt: skip
    assert [line.partition(" at 128")[0] for line in failed] == ["Triton, alone", "ours naive:unroll=3"]
    assert named["ours"]["config"] == named["ours, alone"]["config"] == config
    assert named["ours"]["error_elementwise"] == named["ours, alone"]["error_elementwise"]
    assert 0 < named["ours"]["error_elementwise"] < 10
    assert (named["long product, alone"]["error_normwise"] is None) is (grade is Grade.NORMWISE)
    assert named["ours"]["time_over_ours"] == named["ours, alone"]["time_over_ours"] == 1
    assert all(row["us"] > 0 and row["rounds"] >= 7 for row in rows)
    json.dumps(rows, allow_nan=False)


# ---- The rival that is one long product of halves or bfloat16s --------------------------------------------------


GRADES = pytest.mark.parametrize("grade", SCHEMES)


@GRADES
@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("shape", ["1x1x1", "5x7x3", "64x128x256", "131x257x100"])
def test_the_long_product_keeps_the_bound(grade: Grade, trans: str, shape: str) -> None:
    device, problem = HostDevice(), Problem.parse(shape, "float", trans, grade)
    verdict = Verifier(device, problem).check(Concatenated(device, problem, grade).launch)
    assert verdict.reason == ""
    assert verdict.accuracy.worst < 0.5


@GRADES
def test_the_long_product_is_as_exact_as_its_terms_on_all_kinds_of_data(grade: Grade) -> None:
    device, problem = HostDevice(), Problem.parse("70x300x512", "float", "nt", grade)
    launch = Concatenated(device, problem, grade).launch
    errors = error_kinds(device, problem, {"ours": launch, "numpy": device.vendor(problem)})
    assert [(each.kind, each.contender) for each in errors] == [(k, c) for k in KINDS for c in ("ours", "numpy")]
    assert broken_promise(problem, errors, "ours") == ""
    error_of = {(each.kind, each.contender): each for each in errors}
    for kind in KINDS:
        coarser = grade is Grade.NORMWISE and kind == "graded"
        assert (error_of[kind, "ours"].elementwise > 1000) is coarser
        assert error_of[kind, "ours"].normwise < 30
        assert error_of[kind, "numpy"].elementwise < 100


def test_rows_and_columns_of_any_size_are_scaled_and_split() -> None:
    device, problem = HostDevice(), Problem(3, 2, 4, accuracy=Grade.NORMWISE)
    product = Concatenated(device, problem, Grade.NORMWISE)
    verifier = Verifier(device, problem)
    a, b = (each.owner.array("float32", (each.rows, each.cols)) for each in (verifier.a, verifier.b))  # type: ignore[attr-defined]
    a[...], b[...] = 1.5, 0.75
    a[0], a[1], b[:, 1] = 3e38, 1e-42, 2.0**-126
    c = np.zeros((3, 2), np.float32)
    out = type(verifier.a)(c.ctypes.data, 3, 2, 2, False, c)
    product.launch(verifier.a, verifier.b, out, 0.25, 0.0)
    expected = 0.25 * (a.astype(float) @ b)
    # Numbers below 2^-126 lose bits as any float does.
    assert np.allclose(c, expected, rtol=2.0**-20, atol=2.0**-149)


def test_numpy_has_no_tf32() -> None:
    with pytest.raises(DeviceError, match="NumPy has no TF32"):
        HostDevice().vendor(Problem(4, 4, 4), Elements.TF32)


@pytest.mark.gpu
@GRADES
@pytest.mark.parametrize("trans", TRANS)
def test_on_a_gpu_the_long_product_keeps_the_bound(grade: Grade, trans: str) -> None:
    device = open_device(choose("cuda"))
    for shape in ("100x72x33", "515x1031x700", "1024"):
        problem = Problem.parse(shape, "float", trans, grade)
        with device.entered():
            verdict = Verifier(device, problem).check(Concatenated(device, problem, grade).launch)
        assert verdict.reason == ""


@pytest.mark.gpu
def test_on_a_gpu_tf32_is_coarser() -> None:
    device, problem = open_device(choose("cuda")), Problem(512, 512, 512)
    with device.entered():
        plain, coarser = (
            Verifier(device, problem).check(device.vendor(problem, each)).accuracy.worst
            for each in (Elements.OWN, Elements.TF32)
        )
    assert coarser > 20 * plain
