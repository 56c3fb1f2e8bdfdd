"""Ranking of kernels for a shape that nobody tuned: a portfolio, of which the model of the device chooses the
likeliest, and trees on top of it say which of these is the fastest.

The trees are gradient-boosted, over physical features such as the waves of CTAs and the time of each of the device's
limits, and say how the times of two kernels for a product differ. They were fitted to the devices that were measured,
and rank on others too: without them the first choice for 80 products on an H100 took 1.31 (float) and 1.15 (double)
times as long (docs/experiments/model.md). `benchmarks/fit_ranker.py` fits them;
`configs/ranker` has all that was learned, and a page that says what that is.
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
from ...codegen.listing import keeping, open_rules
from ...codegen.mechanisms.split import USUAL_PARTS, Reduce, filling_splits
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.check.roofline import floor_us
from ...runtime.device import launcher
from ...runtime.device.known import KNOWN
from ...runtime.device.protocol import DeviceInfo
from ...runtime.locks import CachedProperty
from .features import FEATURES, FeatureTable, Taken
from .model import Floats, typical_problems

MODELLED = 240
"""Configs that are ranked: those that the model of the device, corrected for each kernel, puts first."""
STAGES = (0, MODELLED), (100, 128), (300, 64), (600, 32)
"""Pairs of a tree's number and the configs, the best so far, that the trees from that number on rank."""
_FILLING = 32
"""Configs, the first ones, that are ranked with the splits of k which fill the device for the problem as well, on a
device that was not measured."""
_WHOLE: dict[str, Any] = {"mode": Mode.NONE, "parts": 1, "reduce": Reduce.WORKSPACE}
"""The decomposition of a kernel of the portfolio: a CTA for each tile of C."""
LEAF = 1e-4
"""Unit of the whole numbers that arrays have for leaves."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""All that a ranker learned, by name."""


class Trees:
    """Gradient-boosted trees whose every level asks one question: a leaf's number is the answers as bits."""

    def __init__(self, questions: NDArray[Any], borders: NDArray[Any], leaves: NDArray[Any], unit: float) -> None:
        """A row for each tree: the features asked for, lowest bit first; the borders above which the answers are yes;
        what it adds in each leaf, in whole multiples of `unit`."""
        self._borders = np.ascontiguousarray(borders[:, ::-1], np.float32)
        self._questions = np.ascontiguousarray(questions[:, ::-1], np.int32)
        """Both the highest bit first."""
        self.leaves, self._unit = np.ascontiguousarray(leaves, np.int32), unit

    def __getitem__(self, some: slice) -> "Trees":
        """Some of the trees."""
        return Trees(self._questions[some, ::-1], self._borders[some, ::-1], self.leaves[some], self._unit)

    def __call__(self, features: Taken) -> Floats:
        """The prediction for each row of features."""
        return self.of(np.ascontiguousarray(features.T, np.float32), np.arange(len(features)))

    def of(self, columns: Taken, rows: NDArray[np.intp]) -> Floats:
        """The predictions for some rows of features, in their order; a column of `columns` for each row."""
        extension = launcher.module()
        if extension is None:
            return self._by_numpy(columns.take(rows, axis=1))
        found = np.empty(len(rows))
        extension.trees(columns, rows, self._questions, self._borders, self.leaves, found, self._unit)
        return found

    def _by_numpy(self, columns: Taken) -> Floats:
        asked, borders, levels, first, flat = self._at_once
        answers = (columns.take(asked, axis=0) > borders).view(np.uint8)
        leaf, *others = answers.take(levels, axis=0)
        for level in others:
            leaf += leaf
            leaf += level
        added = flat.take((leaf + first).astype(np.intp))  # indices of any other type take longer
        found: Floats = (np.ones(len(first), np.float32) @ added).astype(np.float64) * self._unit
        return found

    @CachedProperty
    def _at_once(self) -> tuple[NDArray[Any], ...]:
        """For NumPy: the features asked for and the borders, each question once, as trees have half of them in common;
        which of them each tree asks, a row for each level; the place of each tree's first leaf; and all leaves, whole
        numbers far below 2^24, whose sums are exact in any order: BLAS may add them up."""
        asked = np.stack([self._questions.ravel(), self._borders.ravel()])
        each, which = np.unique(asked, axis=1, return_inverse=True)
        levels = which.reshape(self._questions.shape).T.copy()
        first = np.arange(self.leaves.size, dtype=np.uint32).reshape(self.leaves.shape)[:, :1]
        borders = each[1].astype(np.float32)[:, None]
        return each[0].astype(np.intp), borders, levels, first, self.leaves.ravel().astype(np.float32)


def trees_of(arrays: Arrays, name: str) -> Trees:
    """The trees that the arrays have under a name; they say what features are called, in whatever order."""
    places = np.array([FEATURES.index(feature) for feature in arrays["features"]])
    return Trees(places[arrays[f"{name}_asked"]], arrays[f"{name}_above"], arrays[f"{name}_leaves"], LEAF)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A config and the time that is expected of it."""

    config: Config
    """The config, which need not serve the problem."""
    us: float
    """Expected microseconds."""


class Ranker:
    """The portfolio and trees of one type and accuracy."""

    def __init__(self, arrays: Arrays, dtype: DType, accuracy: Grade = Grade.IEEE) -> None:
        self.dtype, self.accuracy = dtype, accuracy
        self.portfolio = tuple(map(parse, arrays["kernels"].tolist()))
        """Kernels, each with a CTA for each tile of C."""
        self._paying = [frozenset(each.split()) for each in arrays["decompositions"].tolist()]
        """Decompositions of each kernel that pay somewhere on a device that was measured, by `decomposition_of`."""
        self._corrections: list[float] = arrays["corrections"].tolist()
        """Logarithm of the measured time of each kernel over the modelled one."""
        self.regret: dict[str, float] = dict(zip(arrays["devices"].tolist(), arrays["regrets"].tolist()))
        """By key of each measured device, the 90th percentile of the first choice's time over the best one, for shapes
        that were left out of the fit."""
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
        """Whether the device was measured, or one of the same architecture with as many SMs."""
        return info.key in self.regret or (info.arch, info.sm_count) in self._measured

    def table(self, info: DeviceInfo) -> FeatureTable | None:
        """The portfolio with every decomposition that the device can run, and on a device that was measured only those
        that pay; None where it can run none."""
        if info not in self._tables:
            rows: dict[Config, float] = {}
            for base, paying, correction in zip(self.portfolio, self._paying, self._corrections):
                for config in _on_device(base, self.dtype, info, self.accuracy):
                    if info.key not in self.regret or decomposition_of(config) in paying:
                        rows.setdefault(config, correction)
            self._tables[info] = FeatureTable(tuple(rows), self.dtype, info, tuple(rows.values())) if rows else None
        return self._tables[info]

    def regret_of(self, problem: Problem, info: DeviceInfo) -> float | None:
        """The regret on a device that was measured, for products of this accuracy; else None. A product that allows
        kernels which are less accurate than those here may have much faster ones."""
        return self.regret.get(info.key) if problem.accuracy is self.accuracy else None

    def log_times(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> Floats:
        """Logarithms of the expected times of some configs, up to a number that is the same for all of a problem."""
        table = FeatureTable(tuple(config.unaligned for config in configs), self.dtype, info)
        return self.trees(table.features(replace(problem, accuracy=self.accuracy)))

    def decompositions(self, config: Config, problem: Problem, info: DeviceInfo) -> list[dict[str, Any]]:
        """The decompositions of a problem's work for which the model holds, as values of the config's parameters."""
        every = decomposed(kernel_of(config), self.dtype, info, self.accuracy)
        names = [name for name in _WHOLE if name in {leaf.name for leaf in config.leaves()}]
        if not (every and names):
            return []
        valid = FeatureTable(every, self.dtype, info).valid(problem)
        values = [{name: each.get(name) for name in names} for each in itertools.compress(every, valid)]
        values += filling_splits(config, problem, info.sm_count)
        return list({tuple(each[name] for name in names): each for each in values}.values())

    def ranked(self, problem: Problem, info: DeviceInfo) -> Iterator[Predicted]:
        """Configs for a problem on a GPU, the fastest first, out of those that the model of the device puts first: of
        what it puts far behind too little was measured for the trees to know better."""
        if problem.accuracy is not self.accuracy:
            problem = replace(problem, accuracy=self.accuracy)
        table = self.table(info)
        if table is None:
            return iter(())
        rows, counted = table.likeliest(problem, MODELLED)
        if not len(rows):
            return iter(())
        columns = table.features(problem, rows, counted).T
        order, behind = self._order(columns)
        first = (floor_us(info, problem) or 1.0) * math.exp(self.level.of(columns, order[:1])[0])
        slower = np.exp(behind - behind[0]) * first
        ranked = (Predicted(table.configs[row], us) for row, us in zip(rows[order], slower))
        return ranked if self.knows(info) else self._with_filling_splits(problem, info, list(ranked))

    def _with_filling_splits(
        self, problem: Problem, info: DeviceInfo, ranked: Sequence[Predicted]
    ) -> Iterator[Predicted]:
        """What was ranked and, of the first ones, the splits of k that fill the device for the problem: the
        decompositions that pay are known of measured devices alone."""
        had, more = {each.config for each in ranked}, dict[Config, None]()
        for each in ranked[:_FILLING]:
            for values in filling_splits(each.config, problem, info.sm_count):
                config = each.config.changed(**values)
                if config not in had and serves(config, problem, info):
                    more[config] = None
        if more:
            first = ranked[0]
            of_first, *logs = self.log_times(problem, info, [first.config, *more])
            ranked = [*ranked, *(Predicted(c, first.us * math.exp(log - of_first)) for c, log in zip(more, logs))]
        return iter(sorted(ranked, key=attrgetter("us")))

    def _order(self, columns: Taken) -> tuple[NDArray[np.intp], Floats]:
        """Places of the columns of features, the fastest first, and for each the sum of the trees that were asked; for
        columns that not all trees were asked about it counts from the last of those that were."""
        order, behind = np.arange(columns.shape[1]), np.zeros(columns.shape[1])
        for trees, most in self._stages:
            kept, known = order[:most], behind[:most]
            last = known[-1]
            known += trees.of(columns, kept)
            places = known.argsort(kind="stable")
            kept[:], known[:] = kept[places], known[places]
            behind[most:] += known[-1] - last
        return order, behind


def kernel_of(config: Config) -> Config:
    """The kernel of the portfolio that a config is a decomposition of: for operands of any alignment, with a CTA for
    each tile of C, and the first side of C where either may be the short one."""
    found = _changed(config.unaligned, _WHOLE)
    return found.sides[0]


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
    """A kernel of the portfolio with every usual decomposition that it can have on a device, for either side of C."""
    served = next((problem for problem in typical_problems(dtype, accuracy) if serves(base, problem, target)), None)
    if served is None:
        return ()
    if "mode" not in {leaf.name for leaf in base.leaves()}:
        return base.sides
    decompositions, rules = _decompositions(base.family, served, target)
    kept = ((side, keeping(rules, served, side, target, decompositions)) for side in base.sides)
    return tuple([side.changed(**values) for side, each in kept for values in each])


@cache
def _decompositions(
    family: str, problem: Problem, target: Target
) -> tuple[Sequence[dict[str, Any]], Sequence[Rule[Any]]]:
    """Every usual decomposition that a family has, and the rules that say which of them a kernel has."""
    every = [(mode, parts, Reduce.WORKSPACE) for mode, counts in USUAL_PARTS.items() for parts in counts]
    every += [(Mode.SPLIT_K, parts, Reduce.CLUSTER) for parts in USUAL_PARTS[Mode.SPLIT_K]]
    kind = family_named(family)
    return open_rules(rules_of(kind), problem, kind, target, [dict(zip(_WHOLE, each)) for each in every])


def _on_device(base: Config, dtype: DType, target: Target, accuracy: Grade) -> tuple[Config, ...]:
    """The decompositions of a kernel of another device, with substitutes for what this one lacks."""
    others = {}, *base.substitutes
    every = (decomposed(base.changed(**other), dtype, target, accuracy) for other in others)
    return next(filter(None, every), ())


def ranker_of(dtype: DType, accuracy: Grade = Grade.IEEE, arch: Arch | None = None) -> Ranker | None:
    """The ranker that ships for a type and accuracy; None where there is none. On a device whose double no tensor core
    computes, that of float, whose kernels serve both types."""
    return _ranker(dtype, accuracy, DType.FLOAT if arch is not None and not arch.dmma_per_cycle else dtype)


@cache
def _ranker(dtype: DType, accuracy: Grade, learned_of: DType) -> Ranker | None:
    arrays = shipped(name_of(learned_of, accuracy))
    return Ranker(arrays, dtype, accuracy) if arrays else None


def name_of(dtype: DType, accuracy: Grade) -> str:
    """The name of a ranker's file: the type, and the accuracy where it is not `ieee`."""
    return dtype.value if accuracy is Grade.IEEE else f"{dtype.value}-{accuracy}"


@cache
def shipped(name: str) -> Arrays:
    """All that ships under a name; empty where nothing does."""
    file = resources.files(__package__.partition(".")[0]).joinpath(f"configs/ranker/{name}.npz")
    if not file.is_file():
        return {}
    with file.open("rb") as data, np.load(data) as arrays:
        return dict(arrays)
