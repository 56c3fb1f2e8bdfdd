"""Fit `configs/vendor.json`, by which products go to the vendor's library, to the data set of tuned shapes, without a
GPU.

    python benchmarks/fit_vendor.py benchmarks/results/nvidia-h200/dataset
    python benchmarks/fit_vendor.py trials.jsonl --judge

To be run after `fit_ranker.py`, whose choices it learns to mistrust: what was fitted for another ranker is not used.
What the ranker chooses of a shape, and expects of it, is taken from a fit without that shape; then small trees are
fitted to log(vendor's time / that choice's time). They are judged on shapes that were left out once more. Needs
CatBoost.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import catboost
import numpy as np
from dataset import Trials, read
from fit_ranker import FOLDS, INFO, Tuned, exported, fit, portfolio_of
from numpy.typing import NDArray
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.tuner.measure.evaluate import TIE
from tilewright.tuner.search.nearest import fitted
from tilewright.tuner.search.ranker import Ranker
from tilewright.tuner.search.vendor import FEATURES, VendorFit, features, ranker_digest

Floats = NDArray[np.float64]
TREES, DEPTH, RATE, LEAF = 150, 2, 0.08, 5.0
MARGIN = 1.05
"""Products are handed over where the ranker's choice is expected to take more than so many times the vendor's time."""
RIGHT = 0.8
"""A type ships where so many of those that are handed over gain."""
DEALS = 8
"""Times that shapes are dealt into parts, for judging."""
RESULT = Path(__file__).parent.parent / "configs" / "vendor.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the ranker makes of a shape that it was not fitted to, in microseconds."""

    problem: Problem
    expected_us: float
    us: float
    best_us: float
    """Of the fastest variant."""
    vendor_us: float


def choices(data: Sequence[Trials]) -> list[Choice]:
    """Of one type: what a look-up takes for each shape, or the next that was measured, by a fit to other shapes."""
    tuned, found = [Tuned.of(each.problem, each.entries) for each in data], list[Choice]()
    shapes = list(dict.fromkeys(each.problem.shape for each in data))
    for fold in range(FOLDS):
        out = set(shapes[fold::FOLDS])
        train = [each for each in tuned if each.problem.shape not in out]
        model = fit(train)
        ranker = Ranker(exported(model, portfolio_of(train, model), 1.0), data[0].problem.dtype)
        for each in data:
            if each.problem.shape in out and each.vendor_us is not None:
                found += _choice(each, ranker, each.vendor_us)
    return found


def _choice(trials: Trials, ranker: Ranker, vendor_us: float) -> Iterator[Choice]:
    """The first of the ranker's that was measured, if any was."""
    problem, every = trials.problem, trials.entries.items()
    times = {config: entry.time_us for config, entry in every if entry.time_us is not None}
    for each in ranker.ranked(problem, INFO):
        config = fitted(each.config, problem, INFO.arch, (Edge.EXACT, Edge.BOUNDS))
        if config in times:
            yield Choice(problem, each.us, times[config], min(times.values()), vendor_us)
            return


def fit_vendor(rows: Floats, target: Floats) -> catboost.CatBoostRegressor:
    """Trees for log(vendor's time / the choice's)."""
    model = catboost.CatBoostRegressor(
        iterations=TREES, depth=DEPTH, learning_rate=RATE, l2_leaf_reg=LEAF, random_seed=0, verbose=False,
        allow_writing_files=False, thread_count=2,
    )  # fmt: skip
    model.fit(rows, target)
    return model


def judged(found: Sequence[Choice], rows: Floats, target: Floats) -> dict[str, float]:
    """Print what handing over brings on shapes that were left out; the regrets of the types where it pays."""
    shapes = [(each.problem.shape, each.problem.trans) for each in found]
    names, regrets = list(dict.fromkeys(shapes)), dict[str, float]()
    left = np.zeros((DEALS, len(found)))
    for deal in range(DEALS):
        dealt = np.random.default_rng(deal).permutation(len(names)) % FOLDS
        fold = np.array([dealt[names.index(shape)] for shape in shapes])  # both types of a shape are left out together
        for each in range(FOLDS):
            out = fold == each
            left[deal, out] = fit_vendor(rows[~out], target[~out]).predict(rows[out])
    slower = np.array([each.vendor_us / each.best_us for each in found])
    for dtype in DType:
        of = np.array([each.problem.dtype is dtype for each in found])
        ratio, handed = np.exp(target[of]), left[:, of] < -math.log(MARGIN)
        after = np.where(handed, 1.0, ratio)
        gains, loses = (handed & (ratio < 1 - TIE)).mean(axis=0).sum(), (handed & (ratio > 1 + TIE)).mean(axis=0).sum()
        losing = (ratio < 1 - TIE).sum(), (after < 1 - TIE).sum() / DEALS
        count, means = handed.sum() / DEALS, (_mean(ratio), _mean(after))
        print(f"{dtype.value}: {of.sum()} shapes, handed over {count:.1f}: {gains:.1f} gain, {loses:.1f} lose")
        print(f"  over the vendor {means[0]:.3f} -> {means[1]:.3f}, slower {losing[0]} -> {losing[1]:.1f} shapes")
        print(f"  at least {ratio.min():.3f} -> {after.min(axis=1).mean():.3f}")
        pays = gains >= RIGHT * (gains + loses) and _mean(after) > _mean(ratio)
        if handed.sum() >= DEALS and pays:
            every = np.broadcast_to(slower[of], handed.shape)[handed]
            regrets[dtype.value] = round(float(np.quantile(every, 0.9)), 3)
    return regrets


def _mean(ratios: Floats) -> float:
    return math.exp(float(np.log(ratios).mean()))


def told(model: catboost.CatBoostRegressor, regrets: dict[str, float]) -> dict[str, Any]:
    """What ships."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    scale, bias = document["scale_and_bias"]
    trees = [
        {
            "asks": " ".join(FEATURES[split["float_feature_index"]] for split in tree["splits"]),
            "above": [float(f"{split['border']:.6g}") for split in tree["splits"]],
            "leaves": [round(scale * value, 4) for value in tree["leaf_values"]],
        }
        for tree in document["oblivious_trees"]
    ]
    trees = [tree for tree in trees if len(tree["leaves"]) == 1 << DEPTH]
    return {
        "device": INFO.key,
        "ranker": ranker_digest(),
        "margin": MARGIN,
        "regrets": regrets,
        "bias": round(bias[0], 4),
        "trees": trees,
    }


def main() -> None:
    """Judge, fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of packed files, or a file of `dataset.py measure`")
    parser.add_argument("--judge", action="store_true", help="do not write")
    options = parser.parse_args()
    data = [each for each in read(options.data) if each.problem.accuracy is Grade.IEEE]
    found = [each for dtype in DType for each in choices([one for one in data if one.problem.dtype is dtype])]
    rows = np.concatenate([features(each.problem, INFO, each.expected_us) for each in found])
    target = np.array([math.log(each.vendor_us / each.us) for each in found])
    model = fit_vendor(rows, target)
    document = told(model, judged(found, rows, target))
    same = VendorFit(document).log_ratios(rows)
    assert np.allclose(same, model.predict(rows), atol=1e-2), "the trees are not what was fitted"
    if not options.judge:
        trees = ",\n".join(f"  {json.dumps(tree)}" for tree in document.pop("trees"))
        RESULT.write_text(json.dumps(document, indent=1)[:-2] + f',\n "trees": [\n{trees}\n ]\n}}\n')


if __name__ == "__main__":
    main()
