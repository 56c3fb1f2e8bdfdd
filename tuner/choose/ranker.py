"""Ranking of kernels for a shape that was not tuned: the model of the device chooses the likeliest kernels of a
portfolio, and trees put these in order.

The trees are gradient-boosted, over physical features such as the waves of CTAs and the time of each of the device's
limits, and predict how the times of two kernels for a product differ. They were fitted to the measured devices, and
rank on others too; docs/experiments/model.md has what they gain. `benchmarks/fit_ranker.py` fits them, and
`configs/ranker` has the results, with a page that explains them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families import family_named, parse
from ...codegen.leaf import Mode
from ...codegen.legality import Rule, rules_of, serves
from ...codegen.listing import legal_changes, open_rules
from ...codegen.mechanisms.split import USUAL_PARTS, Reduce, filling_splits
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.check.roofline import floor_us
from ...runtime.device import launcher
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from .features import FEATURES, FeatureRows, FeatureTable
from .model import CTAS, Floats, typical_problems

MODELLED = 240
"""Number of configs that are ranked: the first ones by the model of the device, corrected for each kernel."""
STAGES = (0, MODELLED), (100, 128), (300, 64), (600, 32)
"""Pairs of a tree's number and a number of configs: from this tree on only that many of the best configs are ranked."""
_FILLING = 32
"""Number of the first configs that, on a device that was not measured, are also ranked with splits of k that fill the
device."""
_WHOLE: dict[str, Any] = {"mode": Mode.NONE, "parts": 1, "reduce": Reduce.WORKSPACE}
"""Work decomposition of a kernel of the portfolio: a CTA for each tile of C."""
_CTA_US = 1.25e-3
"""Microseconds between the starts of two CTAs, measured on an H100 (docs/experiments/batches.md)."""
LEAF = 1e-4
"""One unit of the leaves, which arrays store as whole numbers, as a difference of logarithms of times."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""Fitted arrays of a ranker, by name."""


class Trees:
    """Gradient-boosted trees with one question for each level: the answers are the bits of a leaf's number."""

    def __init__(self, questions: NDArray[Any], borders: NDArray[Any], leaves: NDArray[Any], unit: float) -> None:
        """Arrays with a row for each tree: `questions` has the numbers of features, lowest bit first, `borders` the
        values above which the answers are yes, `leaves` what the tree adds, in whole multiples of `unit`."""
        self._borders = np.ascontiguousarray(borders[:, ::-1], np.float32)
        self._questions = np.ascontiguousarray(questions[:, ::-1], np.int32)
        """Features and borders, highest bit first."""
        self.leaves, self._unit = np.ascontiguousarray(leaves, np.int32), unit

    def __getitem__(self, part: slice) -> "Trees":
        """The trees of a slice."""
        return Trees(self._questions[part, ::-1], self._borders[part, ::-1], self.leaves[part], self._unit)

    def __call__(self, features: FeatureRows) -> Floats:
        """The prediction for each row of features."""
        return self.of(np.ascontiguousarray(features.T, np.float32), np.arange(len(features)))

    def of(self, columns: FeatureRows, rows: NDArray[np.intp]) -> Floats:
        """The predictions for the configs at `rows`, in their order; `columns` has a column of features for each
        config."""
        extension = launcher.module()
        if extension is None:
            return self._by_numpy(columns.take(rows, axis=1))
        predictions = np.empty(len(rows))
        extension.trees(columns, rows, self._questions, self._borders, self.leaves, predictions, self._unit)
        return predictions

    def _by_numpy(self, columns: FeatureRows) -> Floats:
        numbers = np.zeros((len(self.leaves), columns.shape[1]), np.intp)
        for features, borders in zip(self._questions.T, self._borders.T):
            numbers += numbers + (columns[features] > borders[:, None])
        predictions: Floats = np.take_along_axis(self.leaves, numbers, axis=1).sum(axis=0) * self._unit
        return predictions


def trees_of(arrays: Arrays, name: str, features: Sequence[str] = FEATURES) -> Trees:
    """The trees that the arrays have under a name; the arrays name their features, in any order."""
    places = np.array([features.index(feature) for feature in arrays["features"]])
    return Trees(places[arrays[f"{name}_asked"]], arrays[f"{name}_above"], arrays[f"{name}_leaves"], LEAF)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A config and its expected time."""

    config: Config
    """Config, which need not serve the problem."""
    us: float
    """Expected microseconds."""


@dataclass(frozen=True, slots=True)
class Likeliest:
    """Configs that a ranker ranks for a problem, the fastest first."""

    configs: Iterator[Config]
    us: Floats
    """Expected microseconds."""
    columns: FeatureRows
    """A column of features for each config, in the order of the model."""
    order: NDArray[np.intp]
    """Index in `columns` of each config."""


def started_us(ctas: Floats) -> Floats:
    """Microseconds in which a GPU starts these numbers of CTAs: no batch takes less."""
    return ctas * _CTA_US


class Ranker:
    """The portfolio and trees of one type and accuracy."""

    def __init__(self, arrays: Arrays, dtype: DType, accuracy: Grade = Grade.IEEE) -> None:
        self.dtype, self.accuracy = dtype, accuracy
        self.portfolio = tuple(map(parse, arrays["kernels"].tolist()))
        """Kernels, each with a CTA for each tile of C."""
        self._paying = [frozenset(each.split()) for each in arrays["decompositions"].tolist()]
        """Work decompositions of each kernel that pay on a measured device, in the words of `decomposition_of`."""
        self._corrections: list[float] = arrays["corrections"].tolist()
        """Logarithm of the measured over the modelled time of each kernel."""
        self.regret: dict[str, float] = dict(zip(arrays["devices"].tolist(), arrays["regrets"].tolist()))
        """90th percentile of the first choice's time over the best time, for shapes that were left out of the fit, by
        the key of each measured device."""
        self._measured = {(KNOWN[key].arch, KNOWN[key].sm_count) for key in self.regret if key in KNOWN}
        self.trees = trees_of(arrays, "ranking")
        """Trees for log(time) of a product, up to a number that is the same for all kernels of a problem."""
        ends = *(begin for begin, _ in STAGES[1:]), None
        parts = ((self.trees[begin:end], most) for (begin, most), end in zip(STAGES, ends))
        self._stages = [(part, most) for part, most in parts if len(part.leaves)]
        self.level = trees_of(arrays, "level")
        """Trees for log(time of the first choice / least time) of a product."""
        self._tables: dict[DeviceInfo, FeatureTable | None] = {}

    def knows(self, info: DeviceInfo) -> bool:
        """Whether the device was measured, or another one of the same architecture with as many SMs."""
        return info.key in self.regret or (info.arch, info.sm_count) in self._measured

    def table(self, info: DeviceInfo) -> FeatureTable | None:
        """The portfolio with the work decompositions that the device can run, on a measured device only those that pay;
        None where it can run none."""
        if info not in self._tables:
            rows: dict[Config, float] = {}
            for base, paying, correction in zip(self.portfolio, self._paying, self._corrections):
                for config in _on_device(base, self.dtype, info, self.accuracy):
                    if info.key not in self.regret or decomposition_of(config) in paying:
                        rows.setdefault(config, correction)
            self._tables[info] = FeatureTable(tuple(rows), self.dtype, info, tuple(rows.values())) if rows else None
        return self._tables[info]

    def regret_of(self, problem: Problem, info: DeviceInfo) -> float | None:
        """The regret on a measured device, for products of the ranker's own accuracy; else None, as less accurate
        kernels may be much faster."""
        return self.regret.get(info.key) if problem.accuracy is self.accuracy else None

    def log_times(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> Floats:
        """Logarithms of the expected times of configs, up to a number that is the same for all configs of a problem."""
        table = FeatureTable(tuple(config.unaligned for config in configs), self.dtype, info)
        return self.trees(table.features(replace(problem, accuracy=self.accuracy)))

    def decompositions(self, config: Config, problem: Problem, info: DeviceInfo) -> list[dict[str, Any]]:
        """The work decompositions for which the model holds, as values of the config's parameters."""
        variants = decomposed(kernel_of(config), self.dtype, info, self.accuracy)
        names = [name for name in _WHOLE if name in {leaf.name for leaf in config.leaves()}]
        if not (variants and names):
            return []
        valid = FeatureTable(variants, self.dtype, info).valid(problem)
        values = [{name: each.get(name) for name in names} for each in itertools.compress(variants, valid)]
        values += filling_splits(config, problem, info.sm_count)
        return list({tuple(each[name] for name in names): each for each in values}.values())

    def ranked(self, problem: Problem, info: DeviceInfo) -> Iterator[Predicted]:
        """Configs for a problem on a GPU, the fastest first, among the first choices of the device's model: too few of
        its later choices were measured for the trees to rank them."""
        if problem.accuracy is not self.accuracy:
            problem = replace(problem, accuracy=self.accuracy)
        likeliest = self.likeliest(problem, info)
        if likeliest is None:
            return iter(())
        ranked: Iterator[Predicted] = map(Predicted, likeliest.configs, likeliest.us)
        if problem.batch > 1:
            ranked = iter(sorted(ranked, key=attrgetter("us")))  # configs whose CTAs start late come later
        return ranked if self.knows(info) else self._with_filling_splits(problem, info, list(ranked))

    def likeliest(self, problem: Problem, info: DeviceInfo) -> "Likeliest | None":
        """The first configs by the device's model, in the order of the trees; None where there are none."""
        table = self.table(info)
        if table is None:
            return None
        rows, counted = table.likeliest(problem, MODELLED)
        if not len(rows):
            return None
        columns = table.features(problem, rows, counted).T
        order, sums = self._order(columns)
        first = (floor_us(info, problem) or 1.0) * math.exp(self.level.of(columns, order[:1])[0])
        us = np.exp(sums - sums[0]) * first
        if problem.batch > 1:
            us = np.maximum(us, started_us(counted[CTAS][order]))
        return Likeliest(map(table.configs.__getitem__, rows[order]), us, columns, order)

    def _with_filling_splits(
        self, problem: Problem, info: DeviceInfo, ranked: Sequence[Predicted]
    ) -> Iterator[Predicted]:
        """The ranked configs, with splits of k that fill the device for the first ones: only on measured devices is it
        known which work decompositions pay."""
        present, more = {each.config for each in ranked}, dict[Config, None]()
        for each in ranked[:_FILLING]:
            for values in filling_splits(each.config, problem, info.sm_count):
                config = each.config.changed(**values)
                if config not in present and serves(config, problem, info):
                    more[config] = None
        if more:
            first = ranked[0]
            of_first, *logs = self.log_times(problem, info, [first.config, *more])
            ranked = [*ranked, *(Predicted(c, first.us * math.exp(log - of_first)) for c, log in zip(more, logs))]
        return iter(sorted(ranked, key=attrgetter("us")))

    def _order(self, columns: FeatureRows) -> tuple[NDArray[np.intp], Floats]:
        """Places of the columns of features, the fastest first, and the sum of the trees for each. Columns that a stage
        leaves out keep their distance from the last one that it ranks."""
        order, sums = np.arange(columns.shape[1]), np.zeros(columns.shape[1])
        for trees, most in self._stages:
            ranked, ranked_sums = order[:most], sums[:most]
            last = ranked_sums[-1]
            ranked_sums += trees.of(columns, ranked)
            places = ranked_sums.argsort(kind="stable")
            ranked[:], ranked_sums[:] = ranked[places], ranked_sums[places]
            sums[most:] += ranked_sums[-1] - last
        return order, sums


def kernel_of(config: Config) -> Config:
    """The kernel of the portfolio whose work a config decomposes: it serves operands of any alignment, has a CTA for
    each tile of C, and takes the first side of C where either may be the short one."""
    return _changed(config.unaligned, _WHOLE).sides[0]


def decomposition_of(config: Config) -> str:
    """Text of a config's work decomposition: `whole`, `split_k=4`, `split_k=4,cluster`, `stream_k=1` and so on."""
    values = config.typed
    mode = values.get("mode", Mode.NONE)
    if mode is Mode.NONE:
        return "whole"
    return f"{mode}={values['parts']}" + (",cluster" if values.get("reduce") is Reduce.CLUSTER else "")


def _changed(config: Config, values: dict[str, Any]) -> Config:
    names = {leaf.name for leaf in config.leaves()}
    return config.changed(**{name: value for name, value in values.items() if name in names})


@cache
def decomposed(base: Config, dtype: DType, target: Target, accuracy: Grade = Grade.IEEE) -> tuple[Config, ...]:
    """A kernel of the portfolio with every usual work decomposition that it can have on a device, for either side of
    C."""
    served = next((problem for problem in typical_problems(dtype, accuracy) if serves(base, problem, target)), None)
    if served is None:
        return ()
    if "mode" not in {leaf.name for leaf in base.leaves()}:
        return base.sides
    decompositions, rules = _decompositions(base.family, served, target)
    allowed = ((side, legal_changes(rules, served, side, target, decompositions)) for side in base.sides)
    return tuple([side.changed(**values) for side, each in allowed for values in each])


@cache
def _decompositions(
    family: str, problem: Problem, target: Target
) -> tuple[Sequence[dict[str, Any]], Sequence[Rule[Any]]]:
    """The usual work decompositions of a family, and the rules by which a kernel may have each."""
    choices = [(mode, parts, Reduce.WORKSPACE) for mode, counts in USUAL_PARTS.items() for parts in counts]
    choices += [(Mode.SPLIT_K, parts, Reduce.CLUSTER) for parts in USUAL_PARTS[Mode.SPLIT_K]]
    kind = family_named(family)
    return open_rules(rules_of(kind), problem, kind, target, [dict(zip(_WHOLE, each)) for each in choices])


def _on_device(base: Config, dtype: DType, target: Target, accuracy: Grade) -> tuple[Config, ...]:
    """The work decompositions of another device's kernel, with substitutes for what this device lacks."""
    others = {}, *base.substitutes
    variants = (decomposed(base.changed(**other), dtype, target, accuracy) for other in others)
    return next(filter(None, variants), ())


def ranker_of(dtype: DType, accuracy: Grade = Grade.IEEE, arch: Arch | None = None) -> Ranker | None:
    """The ranker that ships for a type and accuracy; None where there is none."""
    return _ranker(dtype, accuracy, learned_of(dtype, arch))


def learned_of(dtype: DType, arch: Arch | None) -> DType:
    """The type whose kernels are ranked: a device without tensor cores for double takes kernels of float, which
    serve both types."""
    return DType.FLOAT if arch is not None and not arch.dmma_per_cycle else dtype


@cache
def _ranker(dtype: DType, accuracy: Grade, learned: DType) -> Ranker | None:
    arrays = shipped(name_of(learned, accuracy))
    return Ranker(arrays, dtype, accuracy) if arrays else None


def name_of(dtype: DType, accuracy: Grade) -> str:
    """Name of a ranker's file: the type, and the accuracy where it is not `ieee`."""
    return dtype.value if accuracy is Grade.IEEE else f"{dtype.value}-{accuracy}"


@cache
def shipped(name: str) -> Arrays:
    """The arrays that ship under a name; empty where there are none."""
    file = resources.files(__package__.partition(".")[0]).joinpath(f"configs/ranker/{name}.npz")
    if not file.is_file():
        return {}
    with file.open("rb") as data, np.load(data) as arrays:
        return dict(arrays)
