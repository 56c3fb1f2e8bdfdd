"""Fit the rankers of `configs/ranker` to the data set of tuned shapes, without a GPU.

    python benchmarks/fit_ranker.py benchmarks/results/*/dataset
    python benchmarks/fit_ranker.py trials.jsonl --judge --choices chosen.jsonl --device nvidia-h200
    python benchmarks/fit_ranker.py benchmarks/results/*/dataset --judge --unseen nvidia-h100-80gb-hbm3
    python benchmarks/fit_ranker.py benchmarks/results/*/dataset --judge --parts 1 --held-out

Trees are fitted to all trials of a type and accuracy, of all devices, then a portfolio is chosen greedily. How good the
choice is is judged on shapes that were left out, whole and on every device: a ninth at a time, portfolio and trees of
the others. --choices writes what a look-up on --device would take for them, for `dataset.py measure --choices`.
--unseen judges for a device by the data of the others alone. Files of types and accuracies without data stay.

Batches have a ranker of their own, trees that correct for both types what is expected of them: --judge says how good it
is, by sixths of the shapes, of which the first is left out of what ships. Their file alone fits them alone.

The first of these commands makes all that ships: the rankers of `configs/ranker`, beside them the ranker of the first
part for `regret.py`, today's figures of `regret.py` as limits, and the page `configs/ranker/README.md`. --judge writes
none of them; with --held-out it writes the ranker of the first part alone: one part takes two minutes of a processor a
type. Needs CatBoost.
"""

import argparse
import hashlib
import itertools
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import catboost
import numpy as np
from numpy.typing import NDArray
from regret import BATCHED, FIRST, FIRST_MEASURED, HELD_OUT, RANKERS, accept, line_of, of_batches, regrets_of
from tilewright.codegen.config import Config
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.check.roofline import floor_us
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.batches import BATCH_FEATURES, BatchRanker
from tilewright.tuner.choose.choice import carried
from tilewright.tuner.choose.features import FEATURES, IEEE_FEATURES, FeatureTable
from tilewright.tuner.choose.ranker import (
    LEAF,
    Arrays,
    Ranker,
    decomposed,
    decomposition_of,
    kernel_of,
    name_of,
    shipped,
    trees_of,
)
from tilewright.tuner.choose.shortlist import distance
from trials import Trials, choices, chosen_line, looked_up, packed, read

Floats = NDArray[np.float64]
PORTFOLIO = {DType.FLOAT: 480, DType.DOUBLE: 320}
"""Kernels of each type, however they divide the work; those for float have more parameters."""
GRADED_PORTFOLIO, GRADED_OFTEN, GRADED_TREES = 160, 1, 600
"""Kernels of an accuracy other than `ieee`, problems for which they were measured at least, and trees that rank them: a
hundred problems were measured of each."""
GUESSED = 750
"""Rows, those that the model of the device puts first, of which it is expected how they do where that was not
measured."""
GOOD, OFTEN = 1.05, 6
"""A portfolio has kernels that came so near the best of a problem, and were measured for so many: the trees expect
too much elsewhere of a kernel that was measured once and was good."""
LEAST_GAIN = 1e-3
"""A kernel has to bring all problems nearer to their best in the mean."""
RANKING = 1800, 6, 0.1
"""Trees, depth and rate of what ranks the kernels of a problem: only what it says of one beside another counts."""
LEVEL = 200, 4, 0.1
"""The same settings of the trees that say how long a choice takes."""
CHOSEN = 0.15
"""It learns from variants whose times are up to so much over the best, as logarithms."""
HOPELESS = 2.0
"""Logarithm of a slowdown from which on it makes no difference how slow a variant is."""
FALL = 8.0
"""A variant that takes e times the best counts exp(-8) of it."""
FOLDS = 9
LEFT_OUT = 3
"""Choices for a problem that was left out, where they are written."""
UNSURE = 1.05
"""A variant that was not measured counts as so many times the trees' estimate."""
RANDOM, LARGEST, EARLY, SELDOM = 4000, 1 << 14, 32, 2
"""Number of random problems, their most rows, columns and steps of k, and the numbers that say which decompositions of
the work pay: those among the first 32 of two problems on each device."""
OF_BATCHES, FALL_OF_BATCHES = (400, 6, 0.15), 5.0
"""Trees, depth and rate of what corrects the times of batches, and how fast a slow variant counts less."""
BELIEVED = 0.6
"""Share of what these trees say that counts: some hundred batches were measured, none of more than 1.2 GB."""
ASIDE = 6
"""Every sixth shape of batches is left out of their fit and judges it."""
CORRECTED, STEEP, SELDOM_FIRST = 1000, 24.0, 1.0
"""This number of problems says how far the model of the device is off for each kernel, where one that takes e times the
best counts exp(-24). Each counts once more as if the model were right: a kernel that is hardly ever near the best is
hardly corrected."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """The trials of one problem on one device."""

    problem: Problem
    info: DeviceInfo
    configs: tuple[Config, ...]
    kernels: tuple[Config, ...]
    """Each as a portfolio has it."""
    us: Floats
    best_us: float
    """The least time of all trials, those that are left out here included."""
    features: NDArray[np.float32]

    @classmethod
    def of(cls, trials: Trials) -> "Tuned":
        """The trials that worked, but for copies by TMA, which no portfolio has: its kernels serve any alignment."""
        problem, info, times = trials.problem, KNOWN[trials.device_key], trials.times
        right = {config: us for config, us in times.items() if not config.boxes(problem)}
        table = FeatureTable(tuple(right), problem.dtype, info)
        us = np.array([*right.values()])
        kernels = tuple(map(kernel_of, right))
        return cls(problem, info, tuple(right), kernels, us, min(times.values()), table.features(problem))

    @property
    def target(self) -> Floats:
        """Logarithms of times over the best."""
        found: Floats = np.minimum(np.log(self.us / self.us.min()), HOPELESS)
        return found

    @property
    def weight(self) -> Floats:
        """The weight of each: the less the slower it is, and all together 1."""
        counts = np.exp(-FALL * self.target)
        found: Floats = counts / counts.sum()
        return found

    @property
    def level(self) -> float:
        """The logarithm of the best time over the least that a product can take."""
        return math.log(self.us.min() / (floor_us(self.info, self.problem) or 1.0))


def fit(tuned: Sequence[Tuned]) -> dict[str, NDArray[Any]]:
    """Trees for these problems, each of the same weight: those that rank, and those that say how long a choice
    takes."""
    graded, (count, depth, rate) = tuned[0].problem.accuracy is not Grade.IEEE, RANKING
    asked = len(FEATURES) if graded else IEEE_FEATURES
    ranking = _trees("QueryRMSE", GRADED_TREES if graded else count, depth, rate).fit(
        catboost.Pool(
            np.concatenate([each.features for each in tuned])[:, :asked],
            np.concatenate([each.target for each in tuned]),
            weight=np.concatenate([each.weight for each in tuned]),
            group_id=np.repeat(np.arange(len(tuned)), [len(each.us) for each in tuned]),
        )
    )
    chosen = [each.target < CHOSEN for each in tuned]
    level = _trees("RMSE", *LEVEL).fit(
        catboost.Pool(
            np.concatenate([each.features[some, :asked] for each, some in zip(tuned, chosen)]),
            np.concatenate([each.level + each.target[some] for each, some in zip(tuned, chosen)]),
            weight=np.concatenate([np.full(some.sum(), 1 / some.sum()) for some in chosen]),
        )
    )
    trees = _exported(ranking, depth, "ranking") | _exported(level, LEVEL[1], "level")
    return trees | {"features": np.array(FEATURES)}


def _trees(loss: str, count: int, depth: int, rate: float, share: float = 0.3) -> catboost.CatBoost:
    return catboost.CatBoost(
        {
            "loss_function": loss, "iterations": count, "depth": depth, "learning_rate": rate, "random_seed": 0,
            "l2_leaf_reg": 1.0, "rsm": share, "thread_count": 2, "verbose": False, "allow_writing_files": False,
        }
    )  # fmt: skip


def _exported(model: catboost.CatBoost, depth: int, name: str) -> dict[str, NDArray[Any]]:
    """The trees as they ship under a name; the first has what all begin with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    scale, bias = document["scale_and_bias"]
    start = bias[0] if isinstance(bias, list) else bias
    asked, above, added = list[list[int]](), list[list[float]](), list[list[int]]()
    for tree in document["oblivious_trees"]:
        splits, leaves = tree["splits"], tree["leaf_values"]
        while len(splits) < depth:  # CatBoost may ask less: the last question again
            splits, leaves = [*splits, splits[-1]], [*leaves, *leaves]
        asked.append([split["float_feature_index"] for split in splits])
        above.append([float(f"{split['border']:.6g}") for split in splits])
        added.append([round((scale * x + start) / LEAF) for x in leaves])
        start = 0.0
    arrays = np.array(asked, np.uint8), np.array(above, np.float32), np.array(added, np.int32)
    return dict(zip((f"{name}_asked", f"{name}_above", f"{name}_leaves"), arrays))


Kernels = Mapping[Config, Mapping[str, Any]]
"""The kernels of a portfolio, each with its decompositions of the work and its correction of the model."""


def exported(trees: Arrays, portfolio: Kernels, regret: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """A ranker as it ships, with the regret by device."""
    kernels = {
        "kernels": np.array([*map(str, portfolio)]),
        "decompositions": np.array([kernel["decompositions"] for kernel in portfolio.values()]),
        "corrections": np.array([kernel["correction"] for kernel in portfolio.values()], float),
        "devices": np.array([*regret]),
        "regrets": np.array([round(value, 3) for value in regret.values()], float),
    }
    return kernels | dict(trees)


def sources(found: Iterable[Trials]) -> NDArray[Any]:
    """A line for each device that says which of its trials a ranker was fitted to."""
    by_device: dict[str, list[Trials]] = {}
    for each in found:
        by_device.setdefault(each.device_key, []).append(each)
    return np.array([
        f"{key}: {len(trials)} problems, {sum(len(each.outcomes) for each in trials)} variants, digest "
        + hashlib.sha256(packed(trials)).hexdigest()[:16]
        for key, trials in by_device.items()
    ])  # fmt: skip


def complete(trees: Arrays, portfolio: Sequence[Config], tuned: Sequence[Tuned]) -> Kernels:
    """The kernels of a portfolio, each with how far the model of the device is off by what the trees say, and with the
    decompositions of the work that pay somewhere: whole, and those that came early for some random problems. Fewer rows
    take less time, and the model puts more of those first that the trees would take."""
    problem, infos = tuned[0].problem, [each.info for each in _of_devices(tuned)]
    measured = {info.key: 1.0 for info in infos}  # on a device that was measured no further splits are ranked
    kernels: dict[Config, dict[str, Any]] = {}
    for base in portfolio:
        known = dict.fromkeys(map(decomposition_of, decomposed(base, problem.dtype, infos[0], problem.accuracy)))
        kernels[base] = {"decompositions": " ".join(known), "correction": 0.0}
    every = Ranker(exported(trees, kernels, measured), problem.dtype, problem.accuracy)
    for base, correction in zip(portfolio, _corrections(every, infos)):
        kernels[base]["correction"] = correction
    every = Ranker(exported(trees, kernels, measured), problem.dtype, problem.accuracy)
    early: Counter[tuple[Config, str]] = Counter()
    for random in _random(problem.dtype, problem.accuracy, RANDOM):
        for info in infos:
            first = itertools.islice(every.ranked(random, info), EARLY)
            early.update((kernel_of(each.config), decomposition_of(each.config)) for each in first)
    rows = 0
    for base, kernel in kernels.items():
        known = kernel["decompositions"].split()
        paying = [each for each in known if each == "whole" or early[base, each] >= SELDOM * len(infos)]
        rows += len(paying)
        kernel["decompositions"] = " ".join(paying)
    print(f"  decompositions: {rows}", flush=True)
    return kernels


def _random(dtype: DType, accuracy: Grade, count: int) -> Iterator[Problem]:
    """Random problems, the same each time."""
    random = Random(0)
    for _ in range(count):
        m, n, k = (round(math.exp(random.uniform(0, math.log(LARGEST)))) for _ in range(3))
        trans = random.random() < 0.5, random.random() < 0.5
        yield Problem(m, n, k, dtype, *trans, accuracy)


def _corrections(ranker: Ranker, infos: Sequence[DeviceInfo]) -> list[float]:
    """For each kernel of a ranker's portfolio the mean of what the trees say beyond the model of the device, both as
    logarithms: it counts the less the slower a kernel is for a problem."""
    place = {base: i for i, base in enumerate(ranker.portfolio)}
    weights, sums = np.full(len(place), SELDOM_FIRST), np.zeros(len(place))
    for info in infos:
        table = ranker.table(info)
        assert table is not None
        owner = np.array([place[kernel_of(config)] for config in table.configs])
        for random in _random(ranker.dtype, ranker.accuracy, CORRECTED):
            rows = table.valid(random).nonzero()[0]
            said = ranker.trees(table.features(random, rows))
            weight = np.exp(-STEEP * (said - said.min()))
            beyond = said - np.log(table.modelled_us(random, rows))
            beyond -= np.average(beyond, weights=weight)
            np.add.at(weights, owner[rows], weight)
            np.add.at(sums, owner[rows], weight * beyond)
    return [round(float(each), 3) for each in sums / weights]


def portfolio_of(tuned: Sequence[Tuned], trees: Arrays) -> list[Config]:
    """Kernels that came near the best of a problem, added one by one, each that which brings all problems nearest to
    their best; where none does any more, again as if none had been chosen."""
    dtype, accuracy, info = tuned[0].problem.dtype, tuned[0].problem.accuracy, tuned[0].info
    good = {c for each in tuned for c, target in zip(each.kernels, each.target) if target <= math.log(GOOD)}
    known = Counter(config for each in tuned for config in set(each.kernels))
    least = min(OFTEN if accuracy is Grade.IEEE else GRADED_OFTEN, len(tuned))
    often = (base for base in sorted(good, key=str) if known[base] >= least)
    bases = [base for base in often if decomposed(base, dtype, info, accuracy)]
    place = {base: i for i, base in enumerate(bases)}
    rows = [config for base in bases for config in decomposed(base, dtype, info, accuracy)]
    owner = np.array([place[kernel_of(config)] for config in rows])
    tables = {each.info: FeatureTable(rows, dtype, each.info) for each in _of_devices(tuned)}
    predict = trees_of(trees, "ranking")
    costs = np.full((len(bases), len(tuned)), np.inf)
    for column, each in enumerate(tuned):
        table = tables[each.info]
        chosen, counted = table.likeliest(each.problem, GUESSED)
        features = table.features(each.problem, chosen, counted)
        ahead = each.weight @ (each.target - predict(each.features))  # trees know differences alone
        guess = predict(features) + ahead + math.log(UNSURE)
        np.minimum.at(costs[:, column], owner[chosen], guess)
        seen: dict[int, float] = {}
        for config, target in zip(each.kernels, each.target):
            base = place.get(config)
            if base is not None:
                seen[base] = min(seen.get(base, math.inf), target)
        costs[list(seen), column] = list(seen.values())
    costs = np.clip(costs, 0.0, HOPELESS)
    best, found = np.full(len(tuned), HOPELESS), list[int]()
    most = PORTFOLIO[dtype] if accuracy is Grade.IEEE else GRADED_PORTFOLIO
    while len(found) < min(most, len(bases)):
        gains = (best - costs).clip(0).mean(axis=1)
        gains[found] = -1.0
        first = int(gains.argmax())
        if gains[first] < LEAST_GAIN and (best < HOPELESS).any():
            best = np.full(len(tuned), HOPELESS)
            continue
        found.append(first)
        best = np.minimum(best, costs[first])
    print(f"  portfolio: {len(found)} of {len(bases)} kernels", flush=True)
    return [bases[i] for i in found]


def slowdowns(tuned: Sequence[Tuned], ranker: Ranker) -> dict[str, Floats]:
    """Times over the best of the problem's trials: of the first choice among all trials; of what a look-up takes, where
    that was measured; of the first of the look-up's choices that was; of the best of the portfolio; and of the kernel
    of the nearest record, anywhere and at most three doublings away, with the look-up's of the same problems."""
    records = Store(Path("no-such-folder").absolute()).layers()[1]
    names = ("all", FIRST, FIRST_MEASURED, "best of portfolio", "nearest")
    names += ("nearest, within three doublings", "look-up of the same")
    found: dict[str, list[float]] = {name: [] for name in names}
    kept = set(ranker.portfolio)
    for each in tuned:
        times = dict(zip(each.configs, each.us / each.best_us))
        found["all"].append(each.us[np.argmin(ranker.trees(each.features))] / each.best_us)
        regrets = regrets_of(choices(ranker, each.problem, each.info), times)
        for name, regret in regrets.items():
            found[name].append(regret)
        if of_portfolio := [us for config, us in zip(each.kernels, times.values()) if config in kept]:
            found["best of portfolio"].append(min(of_portfolio))
        near = _nearest(each, records)
        if near in times:
            found["nearest"].append(times[near])
        near = _nearest(each, [record for record in records if distance(record.problem, each.problem, each.info) <= 3])
        if near in times and regrets:
            found["nearest, within three doublings"].append(times[near])
            found["look-up of the same"].append(regrets[FIRST_MEASURED])
    return {name: np.array(values) for name, values in found.items()}


def _of_devices(tuned: Sequence[Tuned]) -> list[Tuned]:
    """One of each device."""
    return list({each.info.key: each for each in tuned}.values())


def _nearest(tuned: Tuned, records: Sequence[Record]) -> Config | None:
    """The kernel of the nearest other shape that is tuned, with the same transposes if there is one."""
    problem = tuned.problem
    others = [record for record in records if record.problem != problem and record.problem.dtype is problem.dtype]
    others.sort(key=lambda each: (each.problem.trans != problem.trans, distance(each.problem, problem, tuned.info)))
    fits = (carried(each.config, problem, tuned.info) for each in others)
    return next((config for config in fits if config is not None), None)


def with_others(found: Sequence[Trials]) -> list[Trials]:
    """Each problem with the trials of the same product at other accuracies, as far as they keep its own."""
    same: dict[tuple[str, Problem], list[Trials]] = {}
    for each in found:
        same.setdefault((each.device_key, replace(each.problem, accuracy=Grade.IEEE)), []).append(each)
    merged = list[Trials]()
    for each in found:
        whole, accuracy = each, each.problem.accuracy
        product = each.device_key, replace(each.problem, accuracy=Grade.IEEE)
        for other in same[product] if accuracy is not Grade.IEEE else ():
            if other is not each:
                serving = {c: us for c, us in other.outcomes.items() if c.accuracy.keeps(accuracy)}
                whole = whole.with_more(Trials(each.problem, serving, other.vendor_us, other.device_key))
        merged.append(whole)
    return merged


def judged(
    tuned: Sequence[Tuned], unseen: str | None, parts: int | None
) -> Iterator[tuple[dict[str, NDArray[Any]], list[Tuned]]]:
    """For each part of the shapes, or for the first so many, the ranker that is fitted to the others, as it would ship,
    and the problems of the part; with the data of a device left out as well, those of that device."""
    shapes = list(dict.fromkeys(each.problem.shape for each in tuned))
    for fold in range(FOLDS)[:parts]:
        out = set(shapes[fold::FOLDS])
        train = [each for each in tuned if each.problem.shape not in out and each.info.key != unseen]
        others = [each for each in tuned if each.problem.shape in out and unseen in (None, each.info.key)]
        trees = fit(train)
        portfolio = complete(trees, portfolio_of(train, trees), train)
        measured = {each.info.key: 1.0 for each in train}
        yield exported(trees, portfolio, measured), others


@dataclass(frozen=True, slots=True, eq=False)
class TunedBatch:
    """The trials of one batch on one device."""

    trials: Trials
    us: Floats
    columns: NDArray[np.float32]
    """A column of features for each variant."""
    expected: Floats
    """Logarithm of the microseconds that are expected without trees for batches."""

    @classmethod
    def of(cls, trials: Trials) -> "TunedBatch":
        problem = trials.problem
        ranker = BatchRanker(shipped(name_of(problem.dtype, Grade.IEEE)), {}, problem.dtype)
        described = ranker.described(problem, KNOWN[trials.device_key], tuple(trials.times))
        return cls(trials, np.array([*trials.times.values()]), *described)

    @property
    def target(self) -> Floats:
        """Logarithms of times, but for hopeless ones."""
        found: Floats = np.log(np.minimum(self.us, self.us.min() * math.exp(HOPELESS)))
        return found

    @property
    def weight(self) -> Floats:
        """The weight of each: the less the slower it is, and all together 1."""
        counts = (self.us.min() / self.us) ** FALL_OF_BATCHES
        found: Floats = counts / counts.sum()
        return found


def fit_batches(tuned: Sequence[TunedBatch]) -> dict[str, NDArray[Any]]:
    """Arrays of the ranker of batches: trees for both types, and for each type more kernels."""
    trees = _trees("RMSE", *OF_BATCHES, 0.2).fit(
        catboost.Pool(
            np.concatenate([each.columns for each in tuned], axis=1).T,
            np.concatenate([each.target - each.expected for each in tuned]),
            weight=np.concatenate([each.weight for each in tuned]),
        )
    )
    arrays = {"features": np.array(BATCH_FEATURES)} | _exported(trees, OF_BATCHES[1], "batches")
    arrays["batches_leaves"] = np.rint(BELIEVED * arrays["batches_leaves"]).astype(np.int32)
    arrays["devices"] = np.array(list(dict.fromkeys(each.trials.device_key for each in tuned)))
    for dtype in dict.fromkeys(each.trials.problem.dtype for each in tuned):
        added = _kernels_of_batches([each.trials for each in tuned if each.trials.problem.dtype is dtype])
        arrays[f"{dtype.value} kernels"] = np.array([*map(str, added)])
        arrays[f"{dtype.value} decompositions"] = np.array([" ".join(sorted(each)) for each in added.values()])
        arrays[f"{dtype.value} corrections"] = np.zeros(len(added))
        arrays[f"{dtype.value} regrets"] = np.ones(len(arrays["devices"]))
    return arrays


def _kernels_of_batches(found: Sequence[Trials]) -> dict[Config, set[str]]:
    """Kernels of tiles beyond the portfolio of single products that were the fastest for a batch, or near that for
    two, with the decompositions of the work that were."""
    problem, info = found[0].problem, KNOWN[found[0].device_key]
    known = {*map(str, shipped(name_of(problem.dtype, Grade.IEEE))["kernels"].tolist())}
    near = Counter[Config]()
    decompositions: dict[Config, set[str]] = {}
    for each in found:
        tiles = {config: us for config, us in each.times.items() if not config.batches_alone}
        if not tiles:
            continue
        best = min(tiles.values())
        good = {config for config, us in tiles.items() if us <= GOOD * best}
        near.update({kernel_of(config) for config in good})
        near[kernel_of(min(tiles, key=tiles.__getitem__))] += 1
        for config in good:
            decompositions.setdefault(kernel_of(config), {"whole"}).add(decomposition_of(config))
    often = (base for base in sorted(near, key=str) if near[base] > 1 and str(base) not in known)
    return {base: decompositions[base] for base in often if decomposed(base, problem.dtype, info)}


def batches_of(found: Sequence[Trials], part: int) -> tuple[list[Trials], list[Trials]]:
    """The batches without every sixth shape from a place on, and those of these shapes."""
    out = set(sorted({each.problem.shape for each in found})[part::ASIDE])
    return [e for e in found if e.problem.shape not in out], [e for e in found if e.problem.shape in out]


def judge_batches(found: Sequence[Trials], parts: int | None, writes: bool) -> None:
    """Judge by each part of the shapes, and write the ranker that is fitted without the first."""
    tuned = {id(each): TunedBatch.of(each) for each in found}
    regrets, ships, data = dict[str, list[float]](), dict[str, NDArray[Any]](), list[Trials]()
    for part in range(ASIDE)[:parts]:
        train, others = batches_of(found, part)
        arrays = fit_batches([tuned[id(each)] for each in train])
        for name, of_part in of_batches(arrays, others).items():
            regrets.setdefault(name, []).extend(of_part)
        if part == 0:
            ships, data = arrays | {"left_out": np.array(sorted({each.problem.shape for each in others}))}, train
    for dtype in DType:
        values = [regrets.get(f"{dtype.value} on {key}: {FIRST}", [1.0]) for key in ships["devices"]]
        ships[f"{dtype.value} regrets"] = np.array([round(float(np.quantile(each, 0.9)), 3) for each in values])
    if writes:
        np.savez_compressed(RANKERS / BATCHED, **ships, data=sources(data))
    print("\n".join(itertools.starmap(line_of, regrets.items())), flush=True)


def main() -> None:
    """Judge, fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="folders of packed files, or files of `dataset.py measure`")
    parser.add_argument("--judge", action="store_true", help="write nothing that ships")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--unseen", metavar="KEY", choices=KNOWN, help="judge for this device by the data of the others; not written"
    )
    group.add_argument("--held-out", action="store_true", help="write the ranker of the first part, with --judge too")
    parser.add_argument(
        "--parts",
        type=int,
        metavar="N",
        choices=range(1, FOLDS + 1),
        help=f"judge by so many of the {FOLDS} parts of the shapes (all)",
    )
    parser.add_argument("--choices", type=Path, help="file for what a look-up takes for problems that were left out")
    parser.add_argument(
        "--device",
        metavar="KEY",
        choices=KNOWN,
        default="nvidia-h200",
        help="on which it does, by its key (nvidia-h200)",
    )
    options = parser.parse_args()
    writes = not (options.judge or options.unseen)
    measured = [each for path in options.data for each in read(path)]
    of_many = [each for each in measured if each.problem.batch > 1]
    measured = [each for each in measured if each.problem.batch == 1]
    everything = [Tuned.of(each) for each in with_others(measured)]
    if options.unseen and options.unseen not in {each.info.key for each in everything}:
        parser.error(f"argument --unseen: nothing was measured on {options.unseen}: give its data set as well")
    lines = list[str]()
    for dtype, accuracy in dict.fromkeys((each.problem.dtype, each.problem.accuracy) for each in everything):
        tuned = [each for each in everything if (each.problem.dtype, each.problem.accuracy) == (dtype, accuracy)]
        if options.unseen and options.unseen not in {each.info.key for each in tuned}:
            continue
        print(f"{name_of(dtype, accuracy)}: {len(tuned)} problems, {sum(len(each.us) for each in tuned)} trials")
        left: dict[str, dict[str, list[Floats]]] = {}
        for part, (arrays, others) in enumerate(judged(tuned, options.unseen, options.parts)):
            ranker = Ranker(arrays, dtype, accuracy)
            if part == 0 and accuracy is Grade.IEEE and (options.held_out or writes):
                shapes = np.array(sorted({each.problem.shape for each in others}))
                np.savez_compressed(HELD_OUT / dtype.value, **arrays, shapes=shapes)
            for key in (each.info.key for each in _of_devices(others)):
                for name, regrets in slowdowns([each for each in others if each.info.key == key], ranker).items():
                    left.setdefault(key, {}).setdefault(name, []).append(regrets)
            info = KNOWN[options.device]
            asked = dict.fromkeys(each.problem for each in others)
            lines += [chosen_line(problem, looked_up(ranker, problem, info)[:LEFT_OUT]) for problem in asked]
        regret = dict[str, float]()
        for key, parts in left.items():
            found = {name: np.concatenate(values) for name, values in parts.items()}
            print("\n".join([key, *itertools.starmap(line_of, found.items())]), flush=True)
            sure = found[FIRST] if len(found[FIRST]) else found[FIRST_MEASURED]
            if len(sure):
                regret[key] = float(np.quantile(sure, 0.9))
        if writes:
            trees = fit(tuned)
            portfolio = complete(trees, portfolio_of(tuned, trees), tuned)
            data = sources(e for e in measured if (e.problem.dtype, e.problem.accuracy) == (dtype, accuracy))
            np.savez_compressed(RANKERS / name_of(dtype, accuracy), **exported(trees, portfolio, regret), data=data)
    if of_many and not options.unseen:
        judge_batches(of_many, options.parts, writes)
    if options.choices:
        options.choices.write_text("".join(lines))
    if writes:
        accept()


if __name__ == "__main__":
    main()
