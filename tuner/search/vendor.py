"""Where the vendor's library is faster than what a look-up found: by a record, or by measurements of other shapes.

The fit predicts log(time of the vendor's library / time of the ranker's choice) by small trees over the problem and the
ranker's expectation. `benchmarks/fit_vendor.py` fits it; `configs/vendor.json` is all that it learned.
"""

import hashlib
import json
import math
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.problem import DType, Grade, Problem
from ...runtime.check.roofline import bounds_of
from ...runtime.device.protocol import DeviceInfo
from ...runtime.product.vendor import Handover
from ...runtime.store.found import Found
from ...runtime.store.record import Record
from ..measure.evaluate import TIE
from .ranker import name_of, shipped

Floats = NDArray[np.float64]

_TILES = (64, 64), (128, 128), (256, 128)
"""What the vendor's kernels compute at a time, more or less: how these fill the device is a feature each."""
FEATURES = (
    *("double", "m", "n", "k", "narrow", "wide", "trans_a", "trans_b", "rows_a", "rows_b", "rows_c", "least"),
    *("arithmetic", "memory", "expected"),
    *(f"{name}_{tile_m}x{tile_n}" for tile_m, tile_n in _TILES for name in ("waves", "even", "used")),
)
"""What the trees ask for, a column each."""


def features(problem: Problem, info: DeviceInfo, expected_us: float) -> Floats:
    """One row of FEATURES; `expected_us` is what the ranker expects of its choice. m, n and k are not 0."""
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    bounds = {bound.by: bound.us for bound in bounds_of(info, problem)}
    least = max(bounds.values())
    values = [
        problem.dtype is DType.DOUBLE,
        *(math.log2(each) for each in (m, n, k, min(m, n), max(m, n))),
        *(problem.trans_a, problem.trans_b),
        *(math.gcd(cols * size, 16) for cols in (problem.stored_a[1], problem.stored_b[1], n)),
        *(math.log2(us) for us in (least, bounds["arithmetic"] / least, bounds["memory"] / least, expected_us / least)),
    ]
    for tile_m, tile_n in _TILES:
        tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
        waves = tiles / info.sm_count
        values += [math.log2(waves), waves / math.ceil(waves), m * n / (tiles * tile_m * tile_n)]
    return np.array([values], float)


class VendorFit:
    """What is known of the vendor's library."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.device_key = str(values["device"])
        """The device that was measured."""
        self.margin = float(values["margin"])
        """Products are handed over where our choice is expected to take more than so many times as long."""
        self.regrets: dict[DType, float] = {DType(name): float(regret) for name, regret in values["regrets"].items()}
        """Of the types where that was seen to pay, the 90th percentile of the vendor's time over the best kernel's, by
        shapes that were left out of the fit."""
        trees = values["trees"]
        self._asks = np.array([[FEATURES.index(name) for name in tree["asks"].split()] for tree in trees], np.intp)
        self._above = np.array([tree["above"] for tree in trees], float)
        self._leaves = np.array([tree["leaves"] for tree in trees], float)
        self._bias = float(values["bias"])

    def log_ratios(self, rows: Floats) -> Floats:
        """log(the vendor's time / ours) for rows of features. Each level of a tree asks one question, and the answers
        are the bits of a leaf's number, the first the lowest."""
        count, depth = self._asks.shape
        leaf = (rows[:, self._asks] > self._above) @ (1 << np.arange(depth))
        found: Floats = self._leaves[np.arange(count), leaf].sum(axis=1) + self._bias
        return found

    def expected_us(self, problem: Problem, info: DeviceInfo, ours_us: float) -> float:
        """Microseconds that the vendor's library is expected to take where the ranker expects `ours_us` of ours."""
        return ours_us * math.exp(self.log_ratios(features(problem, info, ours_us))[0])


def faster(problem: Problem, info: DeviceInfo, found: Found) -> Handover | None:
    """Where the vendor's library is faster than what a look-up found, and how that is known; None where it is not, or
    nobody knows, as for the processor."""
    if info.arch.is_host or min(problem.m, problem.n, problem.k) == 0:
        return None
    if found.origin == "exact":
        return _by_record(found.record) if found.record else None
    # What was taken from a near record has no expectation: such a shape was decided against the vendor's library.
    if found.expected_us is None or found.regret is None or problem.accuracy is not Grade.IEEE:
        return None
    fit = vendor_fit()
    if fit is None or fit.device_key != info.key or problem.dtype not in fit.regrets:
        return None
    vendor_us = fit.expected_us(problem, info, found.expected_us)
    if vendor_us * fit.margin >= found.expected_us:
        return None
    why = f"what was measured for other shapes: {vendor_us:.4g} us for the {found.expected_us:.4g} of ours"
    return Handover(vendor_us, fit.regrets[problem.dtype], why)


def _by_record(record: Record) -> Handover | None:
    """By the duel that the record comes from: beyond a tie and what the rounds leave open. A library that was wrong on
    that data serves nobody."""
    ratio, interval = record.ratio_vendor, record.ratio_interval
    if ratio is None or record.removed or ratio * (1 + TIE) >= 1 or (interval is not None and interval[1] >= 1):
        return None
    wrong = record.accuracy is not None and record.accuracy.vendor is not None and not record.accuracy.vendor <= 1
    us = record.vendor_us or record.median_us * ratio
    why = f"the record of this product: {us:.4g} us for the {record.median_us:.4g} of ours"
    return None if wrong else Handover(us, 1.0, why)


@cache
def vendor_fit() -> VendorFit | None:
    """The fit that ships; None where there is none, or it was made for another ranker, whose mistakes it knows."""
    file = resources.files(__package__.partition(".")[0]).joinpath("configs/vendor.json")
    values = json.loads(file.read_text()) if file.is_file() else {}
    return VendorFit(values) if values and values["ranker"] == ranker_digest() else None


@cache
def ranker_digest() -> str:
    """Of what the ranker that ships knows of `ieee`: 16 hexadecimal digits of its SHA-256."""
    known = [shipped().get(name_of(dtype, Grade.IEEE)) for dtype in DType]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
