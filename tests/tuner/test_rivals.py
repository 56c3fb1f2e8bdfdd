"""The script that times rivals side by side, on the processor with NumPy in place of cuBLAS."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import tilewright
from tilewright.codegen.problem import Grade
from tilewright.runtime.device.host import HostDevice

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
def test_what_runs_is_a_row_and_what_does_not_is_told(
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
