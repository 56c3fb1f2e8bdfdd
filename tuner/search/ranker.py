"""Which kernel to run for a shape that nobody tuned: a portfolio, ranked by what was measured for other shapes.

The ranker predicts how the times of two kernels for a product differ by gradient-boosted trees over physical features,
such as the waves of CTAs and the time of each of the device's limits. `benchmarks/fit_ranker.py` fits it;
`configs/ranker` has all that it learned, and a page that says what that is.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families import family_named, parse
from ...codegen.leaf import Mode
from ...codegen.legality import Rule, rules_of, serves
from ...codegen.mechanisms.split import USUAL_PARTS, Reduce
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.check.roofline import floor_us
from ...runtime.device import launcher
from ...runtime.device.protocol import DeviceInfo
from ...runtime.locks import CachedProperty
from .features import FEATURES, Floats, Table, Taken, typical
from .legal import keeping, open_rules
from .policies import policy_of
from .policies.ranked import both_sides

MODELLED = 240
"""The trees rank so many configs: those that the model of the device, corrected for each kernel, puts first."""
STAGES = (0, MODELLED), (100, 128), (300, 64), (600, 32)
"""The first trees, which say most, rank all of these; those from a number on only so many of the best."""
_SHARED_OUT: dict[str, Any] = {"mode": Mode.NONE, "parts": 1, "reduce": Reduce.WORKSPACE}
"""Whole, as a kernel of the portfolio has it."""
LEAF = 1e-4
"""Arrays have what trees add in whole multiples of it."""

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
    """A config that the ranker expects much of."""

    config: Config
    """As the portfolio has it."""
    us: float
    """Expected microseconds."""
    regret: float | None = None
    """The 90th percentile of such a choice's slowdown against the best, by shapes that were left out of the fit; None
    on another device than that which was measured."""


class Ranker:
    """The portfolio and trees of one type and accuracy."""

    def __init__(self, arrays: Arrays, dtype: DType, accuracy: Grade = Grade.IEEE) -> None:
        self.dtype, self.accuracy = dtype, accuracy
        self.portfolio = tuple(map(parse, arrays["kernels"].tolist()))
        """Kernels without a way to share out the work."""
        self._ways = [frozenset(ways.split()) for ways in arrays["decompositions"].tolist()]
        """For each the ways that pay somewhere on a device that was measured, as `way_of` tells them."""
        self._corrections: list[float] = arrays["corrections"].tolist()
        """For each how far the model of the device is off, as a logarithm."""
        self.regret: dict[str, float] = dict(zip(arrays["devices"].tolist(), arrays["regrets"].tolist()))
        """The 90th percentile of the slowdown against the best, by shapes that were left out of the fit; by the key of
        each device that was measured."""
        self.trees = trees_of(arrays, "ranking")
        """For log(time) of a product, up to a number that is the same for all kernels of a problem."""
        ends = *(begin for begin, _ in STAGES[1:]), None
        parts = ((self.trees[begin:end], most) for (begin, most), end in zip(STAGES, ends))
        self._stages = [(part, most) for part, most in parts if len(part.leaves)]
        self.level = trees_of(arrays, "level")
        """For log(time of the first choice / least time) of a product."""
        self._tables: dict[DeviceInfo, Table | None] = {}

    def table(self, info: DeviceInfo) -> Table | None:
        """The portfolio with every way to share out the work, as far as the device has them, and on a device that was
        measured those that pay; None where it has none."""
        if info not in self._tables:
            rows: dict[Config, float] = {}
            for base, ways, correction in zip(self.portfolio, self._ways, self._corrections):
                for config in _on_device(base, self.dtype, info, self.accuracy):
                    if info.key not in self.regret or way_of(config) in ways:
                        rows.setdefault(config, correction)
            self._tables[info] = Table(tuple(rows), self.dtype, info, tuple(rows.values())) if rows else None
        return self._tables[info]

    def regret_of(self, problem: Problem, info: DeviceInfo) -> float | None:
        """The regret, where it is known: on a device that was measured, for products of this accuracy. One that
        allows kernels that are less accurate than those here may have much faster ones."""
        return self.regret.get(info.key) if problem.accuracy is self.accuracy else None

    def behind(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> Floats:
        """Logarithms of the times of a few configs for a problem, up to a number that is the same for all."""
        table = Table(tuple(config.unaligned for config in configs), self.dtype, info)
        return self.trees(table.features(replace(problem, accuracy=self.accuracy)))

    def ways(self, config: Config, problem: Problem, info: DeviceInfo) -> list[dict[str, Any]]:
        """The ways to share out the work of a problem that can pay for a config, as values of its parameters."""
        shared = shared_out(plain(config), self.dtype, info, self.accuracy)
        names = [name for name in _SHARED_OUT if name in {leaf.name for leaf in config.leaves()}]
        if not (shared and names):
            return []
        pays = Table(shared, self.dtype, info).sensible(problem)
        every = ({name: way.get(name) for name in names} for way in itertools.compress(shared, pays))
        return list({tuple(values.values()): values for values in every}.values())

    def ranked(self, problem: Problem, info: DeviceInfo) -> Iterator[Predicted]:
        """What to run for a problem on a GPU, the most promising first, of those that the device's model puts first: of
        what it puts far behind too little was measured for the trees to know better."""
        if problem.accuracy is not self.accuracy:
            problem = replace(problem, accuracy=self.accuracy)
        table = self.table(info)
        if table is None:
            return iter(())
        rows, features = table.likeliest(problem, MODELLED)
        if not len(rows):
            return iter(())
        columns = features.T
        order, behind = self._order(columns)
        first = (floor_us(info, problem) or 1.0) * math.exp(self.level.of(columns, order[:1])[0])
        slower = np.exp(behind - behind[0]) * first
        return (Predicted(table.configs[row], us) for row, us in zip(rows[order], slower))

    def _order(self, columns: Taken) -> tuple[NDArray[np.intp], Floats]:
        """The rows of features, the most promising first, and for each what `trees` says; of those that only some of
        them were asked about what these say, counted from the last of the others."""
        order, behind = np.arange(columns.shape[1]), np.zeros(columns.shape[1])
        for trees, most in self._stages:
            kept, known = order[:most], behind[:most]
            last = known[-1]
            known += trees.of(columns, kept)
            places = known.argsort(kind="stable")
            kept[:], known[:] = kept[places], known[places]
            behind[most:] += known[-1] - last
        return order, behind


def plain(config: Config) -> Config:
    """A kernel as the portfolio has it: for operands of any alignment, without a way to share out the work, and one for
    a short side for that of which it does not matter which."""
    found = _changed(config.unaligned, _SHARED_OUT)
    return both_sides(found)[0]


def way_of(config: Config) -> str:
    """How a config shares out the work: `whole`, `split_k=4`, `split_k=4,cluster`, `stream_k=1` and so on."""
    values = config.typed
    mode = values.get("mode", Mode.NONE)
    if mode is Mode.NONE:
        return "whole"
    return f"{mode}={values['parts']}" + (",cluster" if values.get("reduce") is Reduce.CLUSTER else "")


def _changed(config: Config, values: dict[str, Any]) -> Config:
    known = {leaf.name for leaf in config.leaves()}
    return config.changed(**{name: value for name, value in values.items() if name in known})


@cache
def shared_out(base: Config, dtype: DType, target: Target, accuracy: Grade = Grade.IEEE) -> tuple[Config, ...]:
    """A kernel of the portfolio with every way to share out the work that it can have on a device; one for a short side
    for either side."""
    served = next((problem for problem in typical(dtype, accuracy) if serves(base, problem, target)), None)
    if served is None:
        return ()
    if "mode" not in {leaf.name for leaf in base.leaves()}:
        return both_sides(base)
    ways, rules = _ways(base.family, served, target)
    kept = ((side, keeping(rules, served, side, target, ways)) for side in both_sides(base))
    return tuple([side.changed(**way) for side, ways in kept for way in ways])


@cache
def _ways(family: str, problem: Problem, target: Target) -> tuple[Sequence[dict[str, Any]], Sequence[Rule[Any]]]:
    """Every usual way to share out work that a family has, and the rules that say which of them a kernel has. Counts
    that fill one device are left to searches."""
    ways = [(mode, parts, Reduce.WORKSPACE) for mode, counts in USUAL_PARTS.items() for parts in counts]
    ways += [(Mode.SPLIT_K, parts, Reduce.CLUSTER) for parts in USUAL_PARTS[Mode.SPLIT_K]]
    kind = family_named(family)
    return open_rules(rules_of(kind), problem, kind, target, [dict(zip(_SHARED_OUT, way)) for way in ways])


def _on_device(base: Config, dtype: DType, target: Target, accuracy: Grade) -> tuple[Config, ...]:
    """The same of a kernel of another device, with what this one lacks replaced."""
    others = {}, *policy_of(base.family).instead
    ways = (shared_out(base.changed(**other), dtype, target, accuracy) for other in others)
    return next(filter(None, ways), ())


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
