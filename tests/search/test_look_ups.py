"""Look-ups of untuned products are those of the golden file; `python tests/golden/regenerate.py` accepts a change."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from look_ups import DEVICES, GOLDEN, TOLERANCE, LookUps, changes, look_ups, problems
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.tuner.choose.shortlist import look_up

ROOT = Path(__file__).parents[2]
FILE = LookUps.parse((ROOT / GOLDEN).read_text())


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.fast), pytest.param(1, marks=pytest.mark.slow)])
def test_untuned_products_run_what_the_golden_file_says(step: int) -> None:
    """A third of the problems is compared, in slow tests all of them."""
    rows = dict(itertools.islice(FILE.rows.items(), 0, None, step))
    summary = changes(replace(FILE, rows=rows), look_ups(step))
    if summary:
        pytest.fail(summary, pytrace=False)


@pytest.mark.fast
def test_the_problems_are_of_every_kind() -> None:
    listed = list(problems())
    assert len(listed) == len(set(listed)) == len(FILE.rows)
    products = [each for each in listed if each.batch == 1]
    assert (len(products), len(listed)) == (300, 334)
    for dtype in DType:
        for trans in ("nn", "nt", "tn", "tt"):
            sizes = [(each.m, each.n, each.k) for each in products if (each.dtype, each.trans) == (dtype, trans)]
            assert any(all(size % 2 for size in each) for each in sizes)
            assert any(all(size % 16 == 0 for size in each) for each in sizes)
            for narrow in range(2):
                assert any(each[narrow] <= 8 and each[1 - narrow] >= 512 for each in sizes)
            assert any(max(m, n) <= 256 and k >= 8192 for m, n, k in sizes)
    assert {each.accuracy for each in products} == set(Grade)
    assert [info.key in KNOWN for info in DEVICES] == [True] * 5 + [False]


@pytest.mark.fast
@pytest.mark.parametrize(("column", "value", "line"), [
    (0, 1 + 2 * TOLERANCE, "any of the first 8 of 0, the expected time of 1, by up to 0.20%; of 144 beside"),
    (0, 1 + 0.5 * TOLERANCE, ""),
    (1, "other", "first choice changed of 1 (tesla-t4 1), any of the first 8 of 1"),
    (2, "other", "first choice changed of 0 (-), any of the first 8 of 1"),
    (3, "other", "of 144 beside shipped records 1 changed\n"),
])  # fmt: skip
def test_the_summary_has_every_kind_of_change(column: int, value: float | str, line: str) -> None:
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


def test_kernels_of_batches_are_expected_to_be_about_as_fast_as_the_tuned_ones() -> None:
    """Without a record a batch gets a kernel that serves it. Its expected time is at most a quarter above that of the
    tuned kernel in benchmarks/results. It may be 30% below, as kernels by whole runs are not among the tuned ones."""
    device = KNOWN["nvidia-h100-80gb-hbm3"]
    rows = json.loads((ROOT / "benchmarks" / "results" / device.key / "batches.json").read_text())["rows"]
    timed = [row for row in rows if row["kind"] in ("square", "program")]
    assert len(timed) == 50
    for row in timed:
        problem = Problem(row["m"], row["n"], row["k"], row["dtype"], batch=row["batch"])
        result = look_up(problem, device, ())
        assert result is not None
        assert serves(result.config, problem, device), problem
        assert 0.7 < (result.expected_us or 0) / row["our_us"] < 1.25, problem


def test_a_near_batch_serves_and_a_single_product_does_not() -> None:
    device = KNOWN["nvidia-h100-80gb-hbm3"]
    tuned = parse("small:4x4x4,block_threads=64")
    full, few = (Problem(16, 16, 16, batch=batch) for batch in (100_000, 100))
    record = Record(
        full, device.key, tuned, Status.OK, measurement=Measurement((9.0,), 9.0, 0.0), accuracy=Accuracy(0.1, 0, 0)
    )
    for problem, served in ((replace(full, batch=300_000), True), (few, False), (replace(full, batch=1), False)):
        result = look_up(problem, device, (record,))
        assert result is not None
        assert (result.record is record) == served, problem


@pytest.mark.fast
def test_groups_of_rows_are_expected_to_take_as_long_as_all_their_tiles() -> None:
    """The last tile of each group is partial: few long groups cost as much as one product, many short ones need short
    tiles."""
    info = KNOWN["nvidia-h100-80gb-hbm3"]

    def first(problem: Problem) -> tuple[int, float]:
        result = look_up(problem, info, ())
        assert result is not None
        return result.config.cta_tile[0], result.expected_us or 0.0

    one, few, many = (first(Problem(16384, 512, 512, batch=groups, ragged="m")) for groups in (1, 8, 512))
    assert one[1] == pytest.approx(first(Problem(16384, 512, 512))[1], rel=0.02)
    assert many[0] <= 32 < one[0]
    assert 1 < few[1] / one[1] < 1.1
    # Each of the 512 groups has half a tile of 32 rows more, which is half as many rows again.
    assert 1.3 < many[1] / one[1] < 1.9
