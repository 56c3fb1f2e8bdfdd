"""Fit the rankers of `configs/ranker` to the data set. Needs CatBoost and no GPU.

    python benchmarks/fit_ranker.py benchmarks/results/*/dataset
    python benchmarks/fit_ranker.py trials.jsonl --judge --choices chosen.jsonl --device nvidia-h200
    python benchmarks/fit_ranker.py benchmarks/results/*/dataset --judge --unseen nvidia-h100-80gb-hbm3
    python benchmarks/fit_ranker.py benchmarks/results/*/dataset --judge --parts 1 --held-out

For each type and accuracy, trees are fitted to the trials of all devices, and a portfolio of kernels is chosen
greedily. To judge them, the shapes are left out of further fits a ninth at a time, on all devices, and choices for them
are compared with measured times. --choices writes the choices of a look-up on --device for these shapes, for
`dataset.py measure --choices`. --unseen judges a device by the data of the others alone.

Batches have a ranker of their own: trees that correct the expected times of both types. It is judged by sixths of the
shapes, and ships as it was fitted without the first sixth. Files of batches alone fit it alone, in 13 minutes.

The first of these commands writes the rankers of `configs/ranker`, the ranker without the first ninth for `regret.py`,
today's figures of `regret.py` as its limits, and the page `configs/ranker/README.md`. Rankers of types and accuracies
without data stay. --judge writes none of these; with --held-out it writes the ranker without the first ninth. A ninth
takes two minutes of a processor for each type.
"""

import argparse
import hashlib
import itertools
import json
import math
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import catboost
import numpy as np
from numpy.typing import NDArray
from regret import (
    BATCHED,
    FIRST,
    FIRST_MEASURED,
    HELD_OUT,
    RANKERS,
    accept,
    batch_ranker,
    line_of,
    of_batches,
    regrets_of,
)
from tilewright.codegen.config import Config
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.check.roofline import floor_us
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.batches import BATCH_FEATURES, BATCHES, OF_BATCH
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
"""Kernels of a portfolio by type, where decompositions of the work count as one; float kernels have more parameters."""
GRADED_PORTFOLIO, GRADED_OFTEN, GRADED_TREES = 160, 1, 600
"""Kernels of a portfolio for an accuracy other than `ieee`, fewest problems for which each was measured, and trees that
rank them. The numbers are small as few problems were measured of each."""
GUESSED = 750
"""Rows that the model of the device puts first, whose unmeasured times are taken from the trees."""
GOOD, OFTEN = 1.05, 6
"""Kernels of a portfolio were within this factor of the best for a problem, and were measured for this number of
problems at least. The trees overestimate a kernel that was measured once and was good."""
LEAST_GAIN = 1e-3
"""Mean of the logarithms of the speedups of all problems that a kernel of a portfolio has to bring."""
RANKING = 1800, 6, 0.1
"""Number, depth and learning rate of the trees that rank the kernels of a problem."""
LEVEL = 200, 4, 0.1
"""Number, depth and learning rate of the trees that say how long a choice takes."""
CHOSEN = 0.15
"""Logarithm of the slowdown up to which the trees of LEVEL learn from a variant."""
HOPELESS = 2.0
"""Logarithm of the slowdown above which all variants count as equally slow."""
FALL = 8.0
"""A variant that takes e times the least time weighs exp(-FALL) of the fastest."""
FOLDS = 9
"""Parts of the shapes, each of which is judged by a fit to the others."""
LEFT_OUT = 3
"""Choices that --choices writes for a problem."""
UNSURE = 1.05
"""Factor on the trees' times of variants that were not measured."""
RANDOM, LARGEST, EARLY, SELDOM = 4000, 1 << 14, 32, 2
"""A decomposition of the work pays if it is among the first EARLY rows of SELDOM problems on each device, of RANDOM
problems of at most LARGEST rows, columns and steps of k."""
RANKING_BATCHES, FALL_OF_BATCHES = (800, 6, 0.12), 5.0
"""Number, depth and learning rate of the trees that correct the order of the kernels of a batch, and their FALL."""
TIMING_BATCHES = 200, 4, 0.1
"""Number, depth and learning rate of the trees that then correct the times of all kernels of a batch alike."""
ASIDE = 6
"""Every sixth shape of batches is left out of the fit that ships and judges it."""
CORRECTED, STEEP, SELDOM_FIRST = 1000, 24.0, 1.0
"""Random problems that say how far the model of the device is off for each kernel, the fall of a slow kernel's weight,
and the weight of a model without error: a kernel that is hardly ever near the best is hardly corrected."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """The trials of one problem on one device."""

    problem: Problem
    info: DeviceInfo
    configs: tuple[Config, ...]
    kernels: tuple[Config, ...]
    """The configs as a portfolio has them, without a decomposition of the work."""
    us: Floats
    best_us: float
    """The least time of all trials, also of those by TMA."""
    features: NDArray[np.float32]

    @classmethod
    def of(cls, trials: Trials) -> "Tuned":
        """The trials that worked, without copies by TMA: kernels of a portfolio serve any alignment."""
        problem, info, times = trials.problem, KNOWN[trials.device_key], trials.times
        general = {config: us for config, us in times.items() if not config.boxes(problem)}
        table = FeatureTable(tuple(general), problem.dtype, info)
        us = np.array([*general.values()])
        kernels = tuple(map(kernel_of, general))
        return cls(problem, info, tuple(general), kernels, us, min(times.values()), table.features(problem))

    @property
    def target(self) -> Floats:
        """Logarithms of the slowdowns, at most HOPELESS."""
        slowdowns: Floats = np.minimum(np.log(self.us / self.us.min()), HOPELESS)
        return slowdowns

    @property
    def weight(self) -> Floats:
        """Weights of the trials, which fall with the slowdown and whose sum is 1."""
        weights: Floats = np.exp(-FALL * self.target)
        return weights / weights.sum()

    @property
    def level(self) -> float:
        """Logarithm of the least time over the roofline's."""
        return math.log(self.us.min() / (floor_us(self.info, self.problem) or 1.0))


def fit(tuned: Sequence[Tuned]) -> dict[str, NDArray[Any]]:
    """Trees that rank, and trees that say how long a choice takes. All problems have the same weight."""
    graded, (count, depth, rate) = tuned[0].problem.accuracy is not Grade.IEEE, RANKING
    features = len(FEATURES) if graded else IEEE_FEATURES
    ranking = _trees("QueryRMSE", GRADED_TREES if graded else count, depth, rate).fit(
        catboost.Pool(
            np.concatenate([each.features for each in tuned])[:, :features],
            np.concatenate([each.target for each in tuned]),
            weight=np.concatenate([each.weight for each in tuned]),
            group_id=np.repeat(np.arange(len(tuned)), [len(each.us) for each in tuned]),
        )
    )
    chosen = [each.target < CHOSEN for each in tuned]
    level = _trees("RMSE", *LEVEL).fit(
        catboost.Pool(
            np.concatenate([each.features[rows, :features] for each, rows in zip(tuned, chosen)]),
            np.concatenate([each.level + each.target[rows] for each, rows in zip(tuned, chosen)]),
            weight=np.concatenate([np.full(rows.sum(), 1 / rows.sum()) for rows in chosen]),
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
    """The trees as arrays of a name. The leaves of the first tree include the value that all sums begin with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    scale, bias = document["scale_and_bias"]
    start = bias[0] if isinstance(bias, list) else bias
    features, borders, values = list[list[int]](), list[list[float]](), list[list[int]]()
    for tree in document["oblivious_trees"]:
        splits, leaves = tree["splits"], tree["leaf_values"]
        while len(splits) < depth:  # CatBoost may ask fewer questions: the last one is repeated
            splits, leaves = [*splits, splits[-1]], [*leaves, *leaves]
        features.append([split["float_feature_index"] for split in splits])
        borders.append([float(f"{split['border']:.6g}") for split in splits])
        values.append([round((scale * x + start) / LEAF) for x in leaves])
        start = 0.0
    arrays = np.array(features, np.uint8), np.array(borders, np.float32), np.array(values, np.int32)
    return dict(zip((f"{name}_asked", f"{name}_above", f"{name}_leaves"), arrays))


Kernels = Mapping[Config, Mapping[str, Any]]
"""Kernels of a portfolio, with decompositions of the work and the correction of the model for each."""


def exported(trees: Arrays, portfolio: Kernels, regret: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """The arrays of a ranker, with the regret by device."""
    kernels = {
        "kernels": np.array([*map(str, portfolio)]),
        "decompositions": np.array([kernel["decompositions"] for kernel in portfolio.values()]),
        "corrections": np.array([kernel["correction"] for kernel in portfolio.values()], float),
        "devices": np.array([*regret]),
        "regrets": np.array([round(value, 3) for value in regret.values()], float),
    }
    return kernels | dict(trees)


def sources(trials: Iterable[Trials]) -> NDArray[Any]:
    """A line for each device on the trials that a ranker was fitted to."""
    by_device: dict[str, list[Trials]] = {}
    for each in trials:
        by_device.setdefault(each.device_key, []).append(each)
    return np.array([
        f"{key}: {len(own)} problems, {sum(len(each.outcomes) for each in own)} variants, digest "
        + hashlib.sha256(packed(own)).hexdigest()[:16]
        for key, own in by_device.items()
    ])  # fmt: skip


def complete(trees: Arrays, portfolio: Sequence[Config], tuned: Sequence[Tuned]) -> Kernels:
    """The kernels of a portfolio with corrections and decompositions of the work.

    A correction says by how much the trees differ from the model of the device. Decompositions are `whole` and those
    that are ranked early for some random problems: fewer rows take less time, and the model puts more rows first that
    the trees would choose.
    """
    problem, infos = tuned[0].problem, [each.info for each in _of_devices(tuned)]
    measured = {info.key: 1.0 for info in infos}  # no further splits are ranked on a measured device
    kernels: dict[Config, dict[str, Any]] = {}
    for base in portfolio:
        names = dict.fromkeys(map(decomposition_of, decomposed(base, problem.dtype, infos[0], problem.accuracy)))
        kernels[base] = {"decompositions": " ".join(names), "correction": 0.0}
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
        names = kernel["decompositions"].split()
        paying = [name for name in names if name == "whole" or early[base, name] >= SELDOM * len(infos)]
        rows += len(paying)
        kernel["decompositions"] = " ".join(paying)
    print(f"  decompositions: {rows}", flush=True)
    return kernels


def _random(dtype: DType, accuracy: Grade, count: int) -> Iterator[Problem]:
    """Random problems, the same in each run."""
    random = Random(0)
    for _ in range(count):
        m, n, k = (round(math.exp(random.uniform(0, math.log(LARGEST)))) for _ in range(3))
        trans = random.random() < 0.5, random.random() < 0.5
        yield Problem(m, n, k, dtype, *trans, accuracy)


def _corrections(ranker: Ranker, infos: Sequence[DeviceInfo]) -> list[float]:
    """The mean difference of the trees' and the model's logarithms of times for each kernel of a portfolio. A problem
    weighs the less the slower the kernel is for it."""
    place = {base: i for i, base in enumerate(ranker.portfolio)}
    weights, sums = np.full(len(place), SELDOM_FIRST), np.zeros(len(place))
    for info in infos:
        table = ranker.table(info)
        assert table is not None
        owner = np.array([place[kernel_of(config)] for config in table.configs])
        for random in _random(ranker.dtype, ranker.accuracy, CORRECTED):
            rows = table.valid(random).nonzero()[0]
            logs = ranker.trees(table.features(random, rows))
            weight = np.exp(-STEEP * (logs - logs.min()))
            error = logs - np.log(table.modelled_us(random, rows))
            error -= np.average(error, weights=weight)
            np.add.at(weights, owner[rows], weight)
            np.add.at(sums, owner[rows], weight * error)
    return [round(float(mean), 3) for mean in sums / weights]


def portfolio_of(tuned: Sequence[Tuned], trees: Arrays) -> list[Config]:
    """The portfolio for these problems, from kernels that came near the best of one.

    Each next kernel is the one that brings all problems nearest to their best. When none brings LEAST_GAIN any more,
    the choice goes on as if none had been chosen.
    """
    dtype, accuracy, info = tuned[0].problem.dtype, tuned[0].problem.accuracy, tuned[0].info
    good = {c for each in tuned for c, target in zip(each.kernels, each.target) if target <= math.log(GOOD)}
    problems = Counter(config for each in tuned for config in set(each.kernels))
    fewest = min(OFTEN if accuracy is Grade.IEEE else GRADED_OFTEN, len(tuned))
    often = (base for base in sorted(good, key=str) if problems[base] >= fewest)
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
        offset = each.weight @ (each.target - predict(each.features))  # the trees predict differences alone
        guess = predict(features) + offset + math.log(UNSURE)
        np.minimum.at(costs[:, column], owner[chosen], guess)
        measured: dict[int, float] = {}
        for config, target in zip(each.kernels, each.target):
            base = place.get(config)
            if base is not None:
                measured[base] = min(measured.get(base, math.inf), target)
        costs[list(measured), column] = list(measured.values())
    costs = np.clip(costs, 0.0, HOPELESS)
    best, added = np.full(len(tuned), HOPELESS), list[int]()
    most = PORTFOLIO[dtype] if accuracy is Grade.IEEE else GRADED_PORTFOLIO
    while len(added) < min(most, len(bases)):
        gains = (best - costs).clip(0).mean(axis=1)
        gains[added] = -1.0
        first = int(gains.argmax())
        if gains[first] < LEAST_GAIN and (best < HOPELESS).any():
            best = np.full(len(tuned), HOPELESS)
            continue
        added.append(first)
        best = np.minimum(best, costs[first])
    print(f"  portfolio: {len(added)} of {len(bases)} kernels", flush=True)
    return [bases[i] for i in added]


def slowdowns(tuned: Sequence[Tuned], ranker: Ranker) -> dict[str, Floats]:
    """Times over the least of the problem's trials, by the name of a choice.

    The choices are the trees' first among all trials, a look-up's first and first measured one, the fastest kernel of
    the portfolio, and the kernel of the nearest record, also of the nearest within three doublings, beside a look-up's
    for the same problems.
    """
    records = Store(Path("no-such-folder").absolute()).layers()[1]
    names = ("all", FIRST, FIRST_MEASURED, "best of portfolio", "nearest")
    names += ("nearest, within three doublings", "look-up of the same")
    by_choice: dict[str, list[float]] = {name: [] for name in names}
    portfolio = set(ranker.portfolio)
    for each in tuned:
        times = dict(zip(each.configs, each.us / each.best_us))
        by_choice["all"].append(each.us[np.argmin(ranker.trees(each.features))] / each.best_us)
        regrets = regrets_of(choices(ranker, each.problem, each.info), times)
        for name, regret in regrets.items():
            by_choice[name].append(regret)
        if of_portfolio := [us for config, us in zip(each.kernels, times.values()) if config in portfolio]:
            by_choice["best of portfolio"].append(min(of_portfolio))
        nearest = _nearest(each, records)
        if nearest in times:
            by_choice["nearest"].append(times[nearest])
        near = [record for record in records if distance(record.problem, each.problem, each.info) <= 3]
        nearest = _nearest(each, near)
        if nearest in times and regrets:
            by_choice["nearest, within three doublings"].append(times[nearest])
            by_choice["look-up of the same"].append(regrets[FIRST_MEASURED])
    return {name: np.array(values) for name, values in by_choice.items()}


def _of_devices(tuned: Sequence[Tuned]) -> list[Tuned]:
    """The last problem of each device."""
    return list({each.info.key: each for each in tuned}.values())


def _nearest(tuned: Tuned, records: Sequence[Record]) -> Config | None:
    """The kernel of the nearest record of another problem, of the same transposes if there is one."""
    problem = tuned.problem
    others = [record for record in records if record.problem != problem and record.problem.dtype is problem.dtype]
    others.sort(key=lambda each: (each.problem.trans != problem.trans, distance(each.problem, problem, tuned.info)))
    fits = (carried(each.config, problem, tuned.info) for each in others)
    return next((config for config in fits if config is not None), None)


def with_others(trials: Sequence[Trials]) -> list[Trials]:
    """The trials of each problem with those at other accuracies whose kernels have its accuracy as well."""
    same: dict[tuple[str, Problem], list[Trials]] = {}
    for each in trials:
        same.setdefault((each.device_key, replace(each.problem, accuracy=Grade.IEEE)), []).append(each)
    merged = list[Trials]()
    for each in trials:
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
    """The ranker that is fitted without a part of the shapes, and the problems of that part, for all parts or the first
    `parts`. With `unseen` the fit is without that device's data too, and the problems are that device's."""
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
    """Logarithms of the microseconds that are expected without the trees of batches."""

    @classmethod
    def of(cls, trials: Trials) -> "TunedBatch":
        problem = trials.problem
        described = batch_ranker({}, problem).described(problem, KNOWN[trials.device_key], tuple(trials.times))
        return cls(trials, np.array([*trials.times.values()]), *described)

    @property
    def target(self) -> Floats:
        """Logarithms of times whose slowdowns are at most HOPELESS."""
        logs: Floats = np.log(np.minimum(self.us, self.us.min() * math.exp(HOPELESS)))
        return logs

    @property
    def weight(self) -> Floats:
        """Weights of the trials, which fall with the slowdown and whose sum is 1."""
        weights: Floats = (self.us.min() / self.us) ** FALL_OF_BATCHES
        return weights / weights.sum()


def fit_batches(tuned: Sequence[TunedBatch]) -> dict[str, NDArray[Any]]:
    """Arrays of the ranker of batches: trees for both types, whose values are added up, and further kernels of each
    type."""
    columns = np.concatenate([each.columns for each in tuned], axis=1).T
    errors = np.concatenate([each.target - each.expected for each in tuned])
    weight = np.concatenate([each.weight for each in tuned])
    batches = np.repeat(np.arange(len(tuned)), [len(each.us) for each in tuned])
    ranking = _trees("QueryRMSE", *RANKING_BATCHES, 0.2).fit(
        catboost.Pool(columns, errors, weight=weight, group_id=batches)
    )
    errors = errors - ranking.predict(columns)
    of_batch = np.where(np.isin(BATCH_FEATURES, OF_BATCH), columns, 0)
    timing = _trees("RMSE", *TIMING_BATCHES, 0.5).fit(catboost.Pool(of_batch, errors, weight=weight))
    arrays, more = (_exported(trees, RANKING_BATCHES[1], BATCHES) for trees in (ranking, timing))
    arrays = {name: np.concatenate([arrays[name], more[name]]) for name in arrays}
    arrays["features"] = np.array(BATCH_FEATURES)
    arrays["devices"] = np.array(list(dict.fromkeys(each.trials.device_key for each in tuned)))
    for dtype in dict.fromkeys(each.trials.problem.dtype for each in tuned):
        kernels = _kernels_of_batches([each.trials for each in tuned if each.trials.problem.dtype is dtype])
        arrays[f"{dtype.value} kernels"] = np.array([*map(str, kernels)])
        arrays[f"{dtype.value} decompositions"] = np.array([" ".join(sorted(each)) for each in kernels.values()])
        arrays[f"{dtype.value} corrections"] = np.zeros(len(kernels))
        arrays[f"{dtype.value} regrets"] = np.ones(len(arrays["devices"]))
    return arrays


def _kernels_of_batches(trials: Sequence[Trials]) -> dict[Config, set[str]]:
    """Kernels of tiles outside the portfolio of single products that were the fastest for a batch or near it for two,
    with the decompositions of the work that were near it."""
    problem, info = trials[0].problem, KNOWN[trials[0].device_key]
    portfolio = {*map(str, shipped(name_of(problem.dtype, Grade.IEEE))["kernels"].tolist())}
    near: dict[Config, set[Problem]] = {}
    fastest, decompositions = set[Config](), dict[Config, set[str]]()
    for each in trials:
        tiles = {config: us for config, us in each.times.items() if not config.batches_alone}
        if not tiles:
            continue
        best = min(tiles.values())
        fastest.add(kernel_of(min(tiles, key=tiles.__getitem__)))
        for config in (config for config, us in tiles.items() if us <= GOOD * best):
            near.setdefault(kernel_of(config), set()).add(each.problem)  # on any device
            decompositions.setdefault(kernel_of(config), {"whole"}).add(decomposition_of(config))
    good = (base for base, of in near.items() if len(of) > 1 or base in fastest)
    often = (base for base in sorted(good, key=str) if str(base) not in portfolio)
    return {base: decompositions[base] for base in often if decomposed(base, problem.dtype, info)}


def batches_of(trials: Sequence[Trials], part: int) -> tuple[list[Trials], list[Trials]]:
    """The batches outside a part of the shapes, every sixth of them, and those within it."""
    out = set(sorted({each.problem.shape for each in trials})[part::ASIDE])
    return [e for e in trials if e.problem.shape not in out], [e for e in trials if e.problem.shape in out]


def judge_batches(trials: Sequence[Trials], parts: int | None, writes: bool, info: DeviceInfo | None) -> list[str]:
    """Judge by all parts of the shapes or the first `parts`, and write the ranker that is fitted without the first.
    Return lines of the choices for batches that were left out, on a device if there is one."""
    tuned = {id(each): TunedBatch.of(each) for each in trials}
    regrets, ships, data = dict[str, list[float]](), dict[str, NDArray[Any]](), list[Trials]()
    lines = list[str]()
    for part in range(ASIDE)[:parts]:
        train, others = batches_of(trials, part)
        arrays = fit_batches([tuned[id(each)] for each in train])
        for name, of_part in of_batches(arrays, others).items():
            regrets.setdefault(name, []).extend(of_part)
        for problem in dict.fromkeys(each.problem for each in others) if info else ():
            lines.append(chosen_line(problem, looked_up(batch_ranker(arrays, problem), problem, info)[:LEFT_OUT]))
        if part == 0:
            ships, data = arrays | {"left_out": np.array(sorted({each.problem.shape for each in others}))}, train
    for dtype in DType:
        values = [regrets.get(f"{dtype.value} on {key}: {FIRST}", [1.0]) for key in ships["devices"]]
        ships[f"{dtype.value} regrets"] = np.array([round(float(np.quantile(each, 0.9)), 3) for each in values])
    if writes:
        save(RANKERS / BATCHED, {**ships, "data": sources(data)})
    print("\n".join(itertools.starmap(line_of, regrets.items())), flush=True)
    return lines


def save(path: Path, arrays: Arrays, method: int = zipfile.ZIP_DEFLATED) -> None:
    """Write arrays to a file for `numpy.load`, with the strongest compression of a method of `zipfile`.

    LZMA makes smaller files than the default, but it takes longer to read, and some builds of Python lack it. It is for
    files that no look-up reads.
    """
    with zipfile.ZipFile(path, "w", method, compresslevel=9) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="folders of packed files, or files of `dataset.py measure`")
    parser.add_argument("--judge", action="store_true", help="judge alone, and write nothing that ships")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--unseen", metavar="KEY", choices=KNOWN, help="judge this device by the data of the others, and write nothing"
    )
    group.add_argument("--held-out", action="store_true", help="write the ranker without the first ninth")
    parser.add_argument(
        "--parts",
        type=int,
        metavar="N",
        choices=range(1, FOLDS + 1),
        help=f"judge by the first N of {FOLDS} parts of the shapes (all)",
    )
    parser.add_argument("--choices", type=Path, help="file to which choices for left-out problems are written")
    parser.add_argument(
        "--device",
        metavar="KEY",
        choices=KNOWN,
        default="nvidia-h200",
        help="key of the device of these choices (nvidia-h200)",
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
        by_device: dict[str, dict[str, list[Floats]]] = {}
        for part, (arrays, others) in enumerate(judged(tuned, options.unseen, options.parts)):
            ranker = Ranker(arrays, dtype, accuracy)
            if part == 0 and accuracy is Grade.IEEE and (options.held_out or writes):
                shapes = np.array(sorted({each.problem.shape for each in others}))
                save(HELD_OUT / f"{dtype.value}.npz", {**arrays, "shapes": shapes}, zipfile.ZIP_LZMA)
            for key in (each.info.key for each in _of_devices(others)):
                for name, regrets in slowdowns([each for each in others if each.info.key == key], ranker).items():
                    by_device.setdefault(key, {}).setdefault(name, []).append(regrets)
            info = KNOWN[options.device]
            problems = dict.fromkeys(each.problem for each in others)
            lines += [chosen_line(problem, looked_up(ranker, problem, info)[:LEFT_OUT]) for problem in problems]
        regret = dict[str, float]()
        for key, parts in by_device.items():
            of_all = {name: np.concatenate(values) for name, values in parts.items()}
            print("\n".join([key, *itertools.starmap(line_of, of_all.items())]), flush=True)
            regrets = of_all[FIRST] if len(of_all[FIRST]) else of_all[FIRST_MEASURED]
            if len(regrets):
                regret[key] = float(np.quantile(regrets, 0.9))
        if writes:
            trees = fit(tuned)
            portfolio = complete(trees, portfolio_of(tuned, trees), tuned)
            data = sources(e for e in measured if (e.problem.dtype, e.problem.accuracy) == (dtype, accuracy))
            save(RANKERS / f"{name_of(dtype, accuracy)}.npz", {**exported(trees, portfolio, regret), "data": data})
    if of_many and not options.unseen:
        lines += judge_batches(of_many, options.parts, writes, KNOWN[options.device] if options.choices else None)
    if options.choices:
        options.choices.write_text("".join(lines))
    if writes:
        accept()


if __name__ == "__main__":
    main()
