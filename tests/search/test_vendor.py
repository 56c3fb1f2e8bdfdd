"""Where the vendor's library is known to be faster."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_spaces import H200, on
from stored import make
from tilewright.codegen.families import parse
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.found import Found
from tilewright.runtime.store.record import REMOVED, Accuracy
from tilewright.runtime.store.store import Store
from tilewright.tuner.search import vendor
from tilewright.tuner.search.nearest import nearest
from tilewright.tuner.search.vendor import FEATURES, VendorFit, faster, features, vendor_fit

PROBLEM = Problem.parse("300x5000x70")
CONFIG = parse("simt:64x64x16,lanes_m=4")


def recorded(ratio: float | None, **changes: Any) -> Found:
    record = replace(make(10.0, PROBLEM, CONFIG, H200.key), ratio_vendor=ratio, **changes)
    return Found(CONFIG, "exact", record)


@pytest.mark.parametrize(("ratio", "changes", "handed"), [
    (0.9, {}, True),
    (0.9, {"ratio_interval": (0.8, 0.95), "vendor_us": 8.9}, True),
    (0.9, {"ratio_interval": (0.8, 1.01)}, False),  # the rounds leave it open
    (0.994, {}, True),
    (0.996, {}, False),  # a tie
    (1.2, {}, False),
    (None, {}, False),
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=1.5)}, False),  # the library was wrong
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=math.nan)}, False),
    (0.9, {"accuracy": Accuracy(0.5, 0, 0, vendor=0.5)}, True),
    (0.9, {"versions": ((REMOVED, "prefetch"),)}, False),  # the times of another kernel
])  # fmt: skip
def test_by_a_record(ratio: float | None, changes: dict[str, Any], handed: bool) -> None:
    found = faster(PROBLEM, H200, recorded(ratio, **changes))
    assert (found is not None) == handed
    if found is not None:
        assert found.expected_us == pytest.approx(changes.get("vendor_us", 10.0 * (ratio or 0)))
        assert found.regret == 1.0
        assert "the record of this product" in found.why


def fit(factor: float, regrets: dict[str, float] | None = None, margin: float = 1.05) -> VendorFit:
    """One that expects the vendor's library to take so many times as long as ours."""
    values = {"device": H200.key, "margin": margin, "regrets": regrets or {"float": 1.3}, "bias": math.log(factor)}
    return VendorFit({**values, "trees": [{"asks": "m n", "above": [5.0, 5.0], "leaves": [0, 0, 0, 0]}]})


def predicted(**changes: Any) -> Found:
    return replace(Found(CONFIG, "predicted", expected_us=20.0, regret=1.6), **changes)


@pytest.mark.parametrize(("factor", "handed"), [(0.5, True), (0.94, True), (0.96, False), (1.5, False)])
def test_by_what_was_measured_for_other_shapes(factor: float, handed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "vendor_fit", lambda: fit(factor))
    found = faster(PROBLEM, H200, predicted())
    assert (found is not None) == handed
    if found is not None:
        assert (found.expected_us, found.regret) == (pytest.approx(20 * factor), 1.3)


def test_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other devices, types and grades, of what was taken from a near record, of a default and of no work."""
    monkeypatch.setattr(vendor, "vendor_fit", lambda: fit(0.5))
    assert faster(PROBLEM, H200, predicted()) is not None
    for problem, info, found in (
        (PROBLEM, KNOWN["nvidia-a10"], predicted()),
        (replace(PROBLEM, dtype=DType.DOUBLE), H200, predicted()),
        (Problem.parse("300x5000x70", "float", "nn", "normwise"), H200, predicted()),
        (PROBLEM, H200, predicted(expected_us=None, regret=None)),
        (PROBLEM, H200, predicted(regret=None)),
        (PROBLEM, H200, Found(CONFIG, "default")),
        (replace(PROBLEM, k=0), H200, predicted()),
        (PROBLEM, on("host"), predicted()),
        (PROBLEM, on("host"), recorded(0.5)),
    ):
        assert faster(problem, info, found) is None
    monkeypatch.setattr(vendor, "vendor_fit", lambda: None)
    assert faster(PROBLEM, H200, predicted()) is None


def test_what_ships() -> None:
    found = vendor_fit()
    assert found is not None, "the ranker is another one: run benchmarks/fit_vendor.py"
    assert found.device_key == "nvidia-h200"
    assert found.margin > 1
    assert all(1 < regret < 3 for regret in found.regrets.values())
    store, handed = Store(Path("nowhere").absolute()), 0
    rng = np.random.default_rng(3)
    for _ in range(60):
        m, n, k = (int(2 ** rng.uniform(0, 13)) for _ in range(3))
        problem = Problem(m, n, k, rng.choice(["float", "double"]), bool(rng.integers(2)), bool(rng.integers(2)))
        look_up = store.lookup(H200, problem, nearest)
        handover = faster(problem, H200, look_up)
        if handover is not None:
            handed += 1
            assert look_up.expected_us is not None
            assert 0 < handover.expected_us < look_up.expected_us / found.margin
    assert handed < 20  # it is the exception


def test_a_fit_for_another_ranker_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "ranker_digest", lambda: "another")
    vendor_fit.cache_clear()
    assert vendor_fit() is None
    vendor_fit.cache_clear()


def test_trees_by_hand() -> None:
    tree = {"asks": "m n", "above": [3.0, 5.0], "leaves": [0.1, 0.2, 0.4, 0.8]}
    values = {"device": H200.key, "margin": 1.05, "regrets": {}, "bias": -1.0, "trees": [tree, {**tree, "asks": "n m"}]}
    rows = np.zeros((4, len(FEATURES)))
    m, n = FEATURES.index("m"), FEATURES.index("n")
    rows[:, m], rows[:, n] = (3.0, 4.0, 4.0, 6.0), (5.0, 4.0, 6.0, 6.0)
    assert VendorFit(values).log_ratios(rows) == pytest.approx([0.1 + 0.2 - 1, 0.2 + 0.2 - 1, 0.8 + 0.2 - 1, 0.6])


def test_features_are_numbers() -> None:
    for shape in ("1", "1x1x16384", "8192", "16384x1x1", "777x1234x600"):
        for dtype in ("float", "double"):
            row = features(Problem.parse(shape, dtype, "tn"), H200, 12.0)
            assert row.shape == (1, len(FEATURES))
            assert np.isfinite(row).all()


@pytest.mark.slow
def test_a_look_up_of_an_unknown_shape_is_short() -> None:
    """Without compiling: a millisecond, or as far as a busy machine lets it."""
    store = Store(Path("nowhere").absolute())
    shapes = [Problem.parse(f"{100 + 37 * i}x{5000 - 61 * i}x{70 + 11 * i}", "float", "tn") for i in range(40)]
    times = []
    for problem in [*shapes, *shapes]:
        begin = time.thread_time()
        faster(problem, H200, store.lookup(H200, problem, nearest))
        times.append(time.thread_time() - begin)
    assert sorted(times[40:])[20] < 4e-3
