"""Fit `configs/ranker.json` to the data set of tuned shapes, without a GPU.

    python benchmarks/fit_ranker.py benchmarks/results/nvidia-h200/dataset
    python benchmarks/fit_ranker.py trials.jsonl --judge

A portfolio is chosen greedily for each type, then trees are fitted to all trials. How good the choice is is judged on
shapes that were left out, whole: a twelfth at a time, portfolio and trees of the others. Needs CatBoost.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import catboost
import numpy as np
from dataset import read
from numpy.typing import NDArray
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.check.roofline import floor_us
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.tuner.search.nearest import distance, fitted
from tilewright.tuner.search.ranker import FEATURES, Ranker, Table, plain, shared_out

Floats = NDArray[np.float64]
INFO = KNOWN["nvidia-h200"]
PORTFOLIO = 32
"""Kernels of each type, ways to share out the work not counted."""
SEEN = 0.15
"""Only kernels that were tried for this share of the problems are chosen from: of others too little is known."""
TREES, DEPTH, RATE = 120, 5, 0.12
FALL = 2.0
"""A variant that takes e times the best counts exp(-2) of it."""
FOLDS = 12
UNSURE = 1.05
"""What was not measured counts as so many times what the trees say."""
RESULT = Path(__file__).parent.parent / "configs" / "ranker.json"


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """The trials of one problem."""

    problem: Problem
    configs: tuple[Config, ...]
    us: Floats
    features: Floats

    @classmethod
    def of(cls, problem: Problem, entries: Mapping[Config, Any]) -> "Tuned":
        """Those that worked."""
        right = {config: entry.time_us for config, entry in entries.items() if entry.time_us is not None}
        table = Table(tuple(right), problem.dtype, INFO)
        return cls(problem, tuple(right), np.array([*right.values()]), table.features(problem))

    @property
    def target(self) -> Floats:
        """Logarithms of times over the least."""
        found: Floats = np.log(self.us / (floor_us(INFO, self.problem) or 1.0))
        return found


def fit(tuned: Sequence[Tuned]) -> catboost.CatBoostRegressor:
    """Trees for these problems, each of the same weight."""
    weights = []
    for each in tuned:
        weight = (each.us.min() / each.us) ** FALL
        weights.append(weight / weight.sum())
    model = catboost.CatBoostRegressor(
        iterations=TREES, depth=DEPTH, learning_rate=RATE, l2_leaf_reg=1.0, random_seed=0, verbose=False,
        allow_writing_files=False, thread_count=2,
    )  # fmt: skip
    features = np.concatenate([each.features for each in tuned])
    model.fit(features, np.concatenate([each.target for each in tuned]), sample_weight=np.concatenate(weights))
    return model


def exported(model: catboost.CatBoostRegressor, portfolio: Sequence[Config], regret: float) -> dict[str, Any]:
    """What ships for a type."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    scale, bias = document["scale_and_bias"]
    trees = []
    for tree in document["oblivious_trees"]:
        splits = tree["splits"]
        trees.append(
            {
                "asks": " ".join(FEATURES[split["float_feature_index"]] for split in splits),
                "above": [float(f"{split['border']:.6g}") for split in splits],
                "leaves": [round(scale * value, 4) for value in tree["leaf_values"]],
            }
        )
    return {
        "portfolio": [str(config) for config in portfolio],
        "device": INFO.key,
        "regret": round(regret, 3),
        "bias": round(bias[0] if isinstance(bias, list) else bias, 4),
        "trees": trees,
    }


def portfolio_of(tuned: Sequence[Tuned], model: catboost.CatBoostRegressor) -> list[Config]:
    """Kernels, added one by one, each that which brings all problems nearest to their best."""
    counts = Counter(base for each in tuned for base in {plain(config) for config in each.configs})
    bases = sorted((base for base, count in counts.items() if count >= SEEN * len(tuned)), key=str)
    dtype = tuned[0].problem.dtype
    shared = {base: shared_out(base, dtype, INFO.arch) for base in bases}
    bases = [base for base in bases if shared[base]]
    rows = [config for base in bases for config in shared[base]]
    owner = np.array([i for i, base in enumerate(bases) for _ in shared[base]])
    table = Table(rows, dtype, INFO)
    costs = np.full((len(bases), len(tuned)), np.inf)
    for column, each in enumerate(tuned):
        chosen = np.flatnonzero(table.sensible(each.problem))
        guess = np.asarray(model.predict(table.features(each.problem, chosen))) + math.log(UNSURE)
        np.minimum.at(costs[:, column], owner[chosen], guess)
        seen: dict[int, float] = {}
        place = {base: i for i, base in enumerate(bases)}
        for config, target in zip(each.configs, each.target):
            base = place.get(plain(config))
            if base is not None:
                seen[base] = min(seen.get(base, math.inf), target)
        for base, target in seen.items():
            costs[base, column] = target
        costs[:, column] -= each.target.min()
    costs = np.minimum(costs, 2.0)
    best, chosen_bases = np.full(len(tuned), 2.0), list[int]()
    for _ in range(min(PORTFOLIO, len(bases))):
        gains = np.minimum(costs, best).mean(axis=1)
        chosen_bases.append(int(np.argmin(gains)))
        best = np.minimum(best, costs[chosen_bases[-1]])
    mean, p90 = math.exp(best.mean()), math.exp(np.quantile(best, 0.9))
    print(f"  portfolio: {len(bases)} kernels seen, within {mean:.3f} of the best, p90 {p90:.3f}")
    return [bases[i] for i in chosen_bases]


def slowdowns(
    tuned: Sequence[Tuned], model: catboost.CatBoostRegressor, portfolio: Sequence[Config]
) -> dict[str, Floats]:
    """Times over the best of the problem's trials: of the first choice among all trials, of that among trials of the
    portfolio, of the best of the portfolio, and of the kernel of the nearest record."""
    kept, records = set(portfolio), Store(Path("no-such-folder").absolute()).layers()[1]
    found: dict[str, list[float]] = {name: [] for name in ("all", "portfolio", "best of portfolio", "nearest")}
    for each in tuned:
        best, predicted = each.us.min(), np.asarray(model.predict(each.features))
        found["all"].append(each.us[np.argmin(predicted)] / best)
        mine = np.array([plain(config) in kept for config in each.configs])
        if mine.any():
            found["portfolio"].append(each.us[mine][np.argmin(predicted[mine])] / best)
            found["best of portfolio"].append(each.us[mine].min() / best)
        near = _nearest(each.problem, records)
        if near in each.configs:
            found["nearest"].append(each.us[each.configs.index(near)] / best)
    return {name: np.array(values) for name, values in found.items()}


def _nearest(problem: Problem, records: Sequence[Record]) -> Config | None:
    """The kernel of the nearest other shape that is tuned, with the same transposes if there is one."""
    others = [record for record in records if record.problem != problem and record.problem.dtype is problem.dtype]
    others.sort(key=lambda each: (each.problem.trans != problem.trans, distance(each.problem, problem)))
    fits = (fitted(each.config, problem, INFO.arch, (Edge.EXACT, Edge.BOUNDS)) for each in others)
    return next((config for config in fits if config is not None), None)


def told(name: str, values: Floats) -> str:
    """One line."""
    if not len(values):
        return f"  {name}: none"
    mean, p90 = math.exp(np.log(values).mean()), np.quantile(values, 0.9)
    return f"  {name:<18} {len(values):>4} shapes: {mean:.3f}, p90 {p90:.3f}, worst {values.max():.3f}"


def main() -> None:
    """Judge, fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of packed files, or a file of `dataset.py measure`")
    parser.add_argument("--judge", action="store_true", help="do not write")
    options = parser.parse_args()
    everything = [Tuned.of(each.problem, each.entries) for each in read(options.data)]
    document = {}
    for dtype in DType:
        tuned = [each for each in everything if each.problem.dtype is dtype]
        print(f"{dtype.value}: {len(tuned)} problems, {sum(len(each.us) for each in tuned)} trials")
        left: dict[str, list[Floats]] = {}
        for fold in range(FOLDS):
            train = [each for i, each in enumerate(tuned) if i % FOLDS != fold]
            model = fit(train)
            for name, values in slowdowns(tuned[fold::FOLDS], model, portfolio_of(train, model)).items():
                left.setdefault(name, []).append(values)
        judged = {name: np.concatenate(values) for name, values in left.items()}
        for name, values in judged.items():
            print(told(name, values))
        model = fit(tuned)
        portfolio = portfolio_of(tuned, model)
        document[dtype.value] = exported(model, portfolio, float(np.quantile(judged["portfolio"], 0.9)))
        same = Ranker(document[dtype.value], dtype).trees(tuned[0].features)
        assert np.allclose(same, model.predict(tuned[0].features), atol=5e-3), "the trees are not what was fitted"
    if not options.judge:
        RESULT.write_text(json.dumps(document, indent=1).replace("\n     ", " ").replace("\n    ]", "]") + "\n")


if __name__ == "__main__":
    main()
