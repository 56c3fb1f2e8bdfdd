"""Which kernel to run for a shape that nobody tuned: a portfolio, ranked by what was measured for other shapes.

The ranker predicts log(time / least time) of a product by gradient-boosted trees over physical features, such as the
waves of CTAs and the time of each of the device's limits. `benchmarks/fit_ranker.py` fits it; `configs/ranker.json` is
all that it learned.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families import families, parse
from ...codegen.leaf import Edge, Mode
from ...codegen.legality import serves
from ...codegen.mechanisms.split import MODES, Reduce
from ...codegen.problem import DType, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.device.protocol import DeviceInfo
from .model import L2_BYTES_PER_CYCLE, cta_limits, estimate_us
from .policies import policy_of

Floats = NDArray[np.float64]

_SHAPES = ((4096, 4096, 4096), (4096, 1, 4096), (1, 4096, 4096), (4096, 8, 4096), (8, 4096, 4096))
TYPICAL = {dtype: tuple(Problem(*shape, dtype) for shape in _SHAPES) for dtype in DType}
"""Products by which it is judged what a kernel can do at all: families may serve narrow ones alone."""
_LOOKED_AT, _BELIEVED = 24, 1.6
"""Of the best so many by the trees those stay that the model of the device puts within this of the best of them."""
_MOST_WAVES = 6.0
"""CTAs share the k of a tile, or an SM, only up to so many CTAs for each place that the device has for one."""
FEATURES = (
    "family tile_m tile_n tile_k threads work occupancy warps mode parts clustered cooperative packs_a packs_b boxes "
    "smem_loads overhead adding ahead reads_ahead deep m n k trans_a trans_b rows_a rows_b rows_c tiles waves even "
    "resident used_mn used_k depth arithmetic cached traffic memory launch summed exact"
).split()
"""What the trees ask for, a column each."""


class Table:
    """Configs, and what their features need of them that is the same for every problem. For one type and device."""

    def __init__(self, configs: Sequence[Config], dtype: DType, info: DeviceInfo) -> None:
        self.configs, self.dtype, self.info = tuple(configs), dtype, info
        names = list(families())
        rows = [self._row(config, names.index(config.family), TYPICAL[dtype][0]) for config in configs]
        self._columns: dict[str, Floats] = {name: np.array([row[name] for row in rows], float) for name in rows[0]}

    def _row(self, config: Config, family: int, typical: Problem) -> dict[str, float]:
        tile_m, tile_n, tile_k = config.cta_tile
        cost = policy_of(config.family).cost(typical, config)
        limits = cta_limits(config, self.dtype, self.info.arch)
        tensor = self.info.arch.dmma_per_cycle if config.tensor_cores else 0
        lanes = "fma_per_cycle_float" if self.dtype is DType.FLOAT else "fma_per_cycle_double"
        return {
            "family": family,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "threads": config.threads,
            "occupancy": max(1, min(limits.values())),
            "split": config.split_ctas,
            "stream": config.stream_ctas_per_sm,
            "persistent": config.persistent_tiles,
            "clustered": config.clustered,
            "cooperative": config.cooperative_ctas,
            "packs_a": config.packs[0],
            "packs_b": config.packs[1],
            "boxes": bool(config.boxes(typical)),
            "smem_loads": cost.smem_loads,
            "overhead": cost.overhead,
            "adding": cost.slices_cycles,
            "ahead": cost.ahead,
            "reads_ahead": cost.fragments_ahead,
            "smem": config.smem_bytes(self.dtype),
            "reuse_a": config.reuse[0],
            "reuse_b": config.reuse[1],
            "rate": tensor or getattr(self.info.arch, lanes),
            "multiple_m": config.multiples[0],
            "multiple_n": config.multiples[1],
            "multiple_k": config.multiples[2],
        }

    def sensible(self, problem: Problem) -> NDArray[np.bool_]:
        """Which rows share out the work in a way that can pay: neither more CTAs than the device has use for, nor CTAs
        with less than a tile of k."""
        c, sms = self._columns, self.info.sm_count
        tiles = np.ceil(problem.m / c["tile_m"]) * np.ceil(problem.n / c["tile_n"])
        places = sms * c["occupancy"]
        shared = (c["split"] == 1) | (
            (tiles * c["split"] <= _MOST_WAVES * places) & (c["split"] * c["tile_k"] <= problem.k)
        )
        streamed = (c["stream"] == 0) | ((c["stream"] <= c["occupancy"]) & (tiles * problem.k >= sms * c["tile_k"]))
        several = (c["persistent"] == 1) | (tiles >= places)
        found: NDArray[np.bool_] = shared & streamed & several
        return found

    def features(self, problem: Problem, rows: Any = slice(None)) -> Floats:
        """A row for each config, a column for each of FEATURES."""
        c, info, size = {name: column[rows] for name, column in self._columns.items()}, self.info, self.dtype.size_bytes
        m, n, k, sms = problem.m, problem.n, problem.k, info.sm_count
        least = floor_us(info, problem) or 1.0
        tiles = np.ceil(m / c["tile_m"]) * np.ceil(n / c["tile_n"])
        streams = c["stream"] > 0
        ctas = np.where(streams, np.maximum(c["stream"] * sms, tiles), np.ceil(tiles / c["persistent"]) * c["split"])
        per_sm = ctas / sms
        critical = np.where(streams, tiles / sms, np.ceil(per_sm) * c["persistent"] / c["split"])  # tiles of an SM
        depth = np.ceil(k / c["tile_k"])
        steps = c["tile_m"] * c["tile_n"] * c["tile_k"] * depth * critical
        mhz = info.clock_mhz * least
        waves = per_sm / c["occupancy"]
        rounded = np.ceil(k / (c["tile_k"] * c["split"])) * c["tile_k"] * c["split"]
        sums = np.where(streams, 3.0 * c["stream"], np.where(c["split"] > 1, c["split"], 0.0))
        exact = (m % c["multiple_m"] == 0) & (n % c["multiple_n"] == 0) & (k % c["multiple_k"] == 0)
        loaded = steps * (1 / c["reuse_a"] + 1 / c["reuse_b"]) * size
        one = np.ones_like(tiles)
        columns = {
            **c,
            "work": np.log2(c["tile_m"] * c["tile_n"] / c["threads"]),
            "warps": np.minimum(c["occupancy"], np.ceil(per_sm)) * c["threads"] / 32,
            "mode": 2.0 * streams + (c["split"] > 1) + 3.0 * (c["persistent"] > 1),
            "parts": c["split"] + c["stream"] + c["persistent"] - 1,
            "deep": c["smem"] / ((c["tile_m"] + c["tile_n"]) * c["tile_k"] * size),
            "m": math.log2(m) * one,
            "n": math.log2(n) * one,
            "k": math.log2(k) * one,
            "trans_a": problem.trans_a * one,
            "trans_b": problem.trans_b * one,
            "rows_a": _aligned(problem.stored_a[1] * size) * one,
            "rows_b": _aligned(problem.stored_b[1] * size) * one,
            "rows_c": _aligned(n * size) * one,
            "tiles": np.log2(tiles),
            "waves": np.log2(waves),
            "even": per_sm / np.ceil(per_sm),
            "resident": waves / np.ceil(waves),
            "used_mn": m * n / (tiles * c["tile_m"] * c["tile_n"]),
            "used_k": k / rounded,
            "depth": np.log2(depth / c["split"]),
            "arithmetic": np.log2(steps / c["rate"] / mhz),
            "cached": np.log2(loaded / L2_BYTES_PER_CYCLE / mhz),
            "traffic": np.log2((loaded * sms + problem.bytes) / info.bandwidth_gbs / 1e3 / least),
            "memory": problem.bytes / info.bandwidth_gbs / 1e3 / least * one,
            "launch": math.log2(least) * one,
            "summed": np.log2(1 + sums * c["tile_m"] * c["tile_n"] * size / 32 / mhz),
            "exact": exact,
        }
        return np.stack([columns[name] for name in FEATURES], axis=1).astype(float)


def _aligned(row_bytes: int) -> float:
    """Bytes of the widest vector, up to 16, that divides rows of so many bytes."""
    return float(math.gcd(row_bytes, 16))


@dataclass(frozen=True, slots=True)
class Trees:
    """Gradient-boosted trees whose every level asks one question: a leaf's number is the answers as bits."""

    questions: NDArray[np.intp]
    """A row for each tree: the features asked for, lowest bit first."""
    borders: Floats
    """A row for each tree: the answer is yes above the border."""
    leaves: Floats
    """A row for each tree: what it adds in each leaf."""
    bias: float

    def __call__(self, features: Floats) -> Floats:
        """The prediction for each row of features."""
        count, depth = self.questions.shape
        asked = np.ascontiguousarray(features.T)[self.questions.ravel()]  # whole rows: several times as fast
        answers = (asked > self.borders.reshape(-1, 1)).reshape(count, depth, -1)
        leaf = np.arange(count)[:, None] << depth
        for bit in range(depth):
            leaf = leaf + (answers[:, bit] << bit)
        found: Floats = self.leaves.ravel()[leaf].sum(axis=0) + self.bias
        return found


@dataclass(frozen=True, slots=True)
class Predicted:
    """A config that the ranker expects much of."""

    config: Config
    """As the portfolio has it: vectors and edge are those of no problem in particular."""
    us: float
    """Expected microseconds."""
    regret: float | None
    """The 90th percentile of such a choice's slowdown against the best, by shapes that were left out of the fit; None
    on another device than that which was measured."""


class Ranker:
    """The portfolio and trees of one type."""

    def __init__(self, values: dict[str, Any], dtype: DType) -> None:
        self.dtype = dtype
        self.portfolio = tuple(map(parse, values["portfolio"]))
        """Kernels without a way to share out the work."""
        self.device_key = str(values["device"])
        """The device that was measured."""
        self.regret = float(values["regret"])
        """The 90th percentile of the slowdown against the best, by shapes that were left out of the fit."""
        trees = values["trees"]
        self.trees = Trees(
            np.array([[FEATURES.index(name) for name in tree["asks"].split()] for tree in trees], np.intp),
            np.array([tree["above"] for tree in trees], float),
            np.array([tree["leaves"] for tree in trees], float),
            float(values["bias"]),
        )
        self._tables: dict[DeviceInfo, Table] = {}

    def table(self, info: DeviceInfo) -> Table:
        """The portfolio with every way to share out the work, as far as the device has them."""
        if info not in self._tables:
            every = (_on_device(base, self.dtype, info.arch) for base in self.portfolio)
            configs = dict.fromkeys(itertools.chain.from_iterable(every))
            self._tables[info] = Table(tuple(configs), self.dtype, info)
        return self._tables[info]

    def ranked(self, problem: Problem, info: DeviceInfo) -> list[Predicted]:
        """What to run for a problem on a GPU, the most promising first. What the model of the device puts far behind
        the others is left out: of that too little was measured for the trees to know better."""
        table = self.table(info)
        rows = np.flatnonzero(table.sensible(problem))
        expected = self.trees(table.features(problem, rows))
        first = np.argsort(expected, kind="stable")[:_LOOKED_AT]
        least = floor_us(info, problem) or 1.0
        regret = self.regret if info.key == self.device_key else None
        found = [Predicted(table.configs[rows[i]], math.exp(expected[i]) * least, regret) for i in first]
        configs = [each.config for each in found]
        model = [estimate_us(problem, one, info) * policy_of(one.family).factor(one) for one in configs]
        limit = _BELIEVED * min(model, default=0.0)
        return [each for each, us in zip(found, model) if us <= limit]


def plain(config: Config) -> Config:
    """A kernel as the portfolio has it: without a way to share out the work, guarded, with vectors of one element."""
    values = {"edge": Edge.BOUNDS, "mode": Mode.NONE, "parts": 1, "reduce": Reduce.WORKSPACE}
    known = {leaf.name for leaf in config.leaves()}
    return config.changed(**{name: value for name, value in values.items() if name in known}).scalar()


@cache
def shared_out(base: Config, dtype: DType, arch: Arch) -> tuple[Config, ...]:
    """A kernel of the portfolio with every way to share out the work that it can have on a device."""
    if "mode" not in {leaf.name for leaf in base.leaves()}:
        return (base,) if _works(base, dtype, arch) else ()
    ways = [(mode, parts, Reduce.WORKSPACE) for mode, counts in MODES.items() for parts in counts]
    ways += [(Mode.SPLIT_K, parts, Reduce.CLUSTER) for parts in MODES[Mode.SPLIT_K]]
    found = (base.changed(mode=mode, parts=parts, reduce=reduce) for mode, parts, reduce in ways)
    return tuple(config for config in found if _works(config, dtype, arch))


def _on_device(base: Config, dtype: DType, arch: Arch) -> tuple[Config, ...]:
    """The same of a kernel of another device, with what this one lacks replaced."""
    ways = (shared_out(base.changed(**other), dtype, arch) for other in ({}, *policy_of(base.family).instead))
    return next(filter(None, ways), ())


def _works(config: Config, dtype: DType, arch: Arch) -> bool:
    return any(serves(config, typical, arch) for typical in TYPICAL[dtype])


@cache
def ranker_of(dtype: DType) -> Ranker | None:
    """The ranker that ships for a type; None where there is none."""
    file = resources.files(__package__.partition(".")[0]).joinpath("configs/ranker.json")
    values = json.loads(file.read_text()).get(dtype.value) if file.is_file() else None
    return Ranker(values, dtype) if values else None
