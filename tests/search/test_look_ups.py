"""The golden file pins the kernels of untuned products: `python tests/golden/regenerate.py` accepts a change."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from look_ups import DEVICES, GOLDEN, TOLERANCE, LookUps, changes, look_ups, problems
from tilewright.codegen.problem import DType, Grade
from tilewright.runtime.device.known import KNOWN

FILE = LookUps.parse((Path(__file__).parents[2] / GOLDEN).read_text())


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.fast), pytest.param(1, marks=pytest.mark.slow)])
def test_untuned_products_run_what_the_golden_file_says(step: int) -> None:
    """A third of the problems, all of them where slow tests run."""
    rows = dict(itertools.islice(FILE.rows.items(), 0, None, step))
    summary = changes(replace(FILE, rows=rows), look_ups(step))
    if summary:
        pytest.fail(summary, pytrace=False)


@pytest.mark.fast
def test_the_problems_are_of_every_kind() -> None:
    drawn = list(problems())
    assert len(drawn) == len(set(drawn)) == len(FILE.rows) == 300
    for dtype in DType:
        for trans in ("nn", "nt", "tn", "tt"):
            sizes = [(each.m, each.n, each.k) for each in drawn if (each.dtype, each.trans) == (dtype, trans)]
            assert any(all(size % 2 for size in each) for each in sizes)
            assert any(all(size % 16 == 0 for size in each) for each in sizes)
            for narrow in range(2):
                assert any(each[narrow] <= 8 and each[1 - narrow] >= 512 for each in sizes)
            assert any(max(m, n) <= 256 and k >= 8192 for m, n, k in sizes)
    assert {each.accuracy for each in drawn} == set(Grade)
    assert [info.key in KNOWN for info in DEVICES] == [True] * 5 + [False]


@pytest.mark.fast
@pytest.mark.parametrize(("column", "value", "line"), [
    (0, 1 + 2 * TOLERANCE, "any of the first 8 of 0, the expected time of 1, by up to 0.20%; of 144 beside"),
    (0, 1 + 0.5 * TOLERANCE, ""),
    (1, "other", "first choice changed of 1 (tesla-t4 1), any of the first 8 of 1"),
    (2, "other", "first choice changed of 0 (-), any of the first 8 of 1"),
    (3, "other", "of 144 beside shipped records 1 changed\n"),
])  # fmt: skip
def test_the_summary_tells_every_kind_of_change(column: int, value: float | str, line: str) -> None:
    other = "simt:8x8x8"
    rows = {problem: [*each] for problem, each in FILE.rows.items()}
    problem = next(iter(rows))
    row = list(rows[problem][3])
    row[column] = str(float(row[0]) * value) if isinstance(value, float) else value
    rows[problem][3] = tuple(row)
    summary = changes(FILE, replace(FILE, rows=rows, configs=FILE.configs | {"other": other}))
    assert line in summary
    assert bool(line) == bool(summary)
    assert (f"{problem} on tesla-t4: " in summary) == (other in summary) == (column in (1, 3))
