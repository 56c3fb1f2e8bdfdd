"""Ranking of kernels for batches: expectations of a ranker and of a model of the family `small`, corrected by trees.

The trees were fitted to batches on measured devices (`benchmarks/fit_ranker.py`), and say how much longer or shorter a
config takes than the ranker of single products and the model expect. docs/experiments/batches.md has what they gain.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families.small import MOST_SIZE, SmallConfig, product_bytes, shared_elements, thread_registers
from ...codegen.mechanisms.blocked import MOST_ACCUMULATORS
from ...codegen.problem import DType, Grade, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.device.protocol import DeviceInfo
from .features import FEATURES, IEEE_FEATURES, PROBLEM, FeatureRows, FeatureTable
from .model import CTAS, Columns, Floats, stacked
from .ranker import Arrays, Predicted, Ranker, Trees, learned_of, name_of, shipped, started_us, trees_of

RANKED = 96
"""Number of configs of tiles, and of the family `small`, that the trees rank: those that are expected to be fastest."""
_WARP = 32
"""Threads of a warp."""

# The model of a CTA of the family: docs/experiments/batches.md has the fit.
_MEMORY = 0.946
"""Share of the memory's bandwidth that copies reach."""
_COPY_INSTRUCTIONS = 42
"""Instructions of a warp for each 32 elements that it copies to shared memory or back."""
_CTA_CYCLES = 1980
"""Clocks of a CTA beside the others: from its start to its first loads, barriers, and its last stores."""
_STEP_CYCLES = 38
"""Clocks of a step of k in which a thread waits for shared memory."""
_PRODUCT_CYCLES = 6
"""Clocks of a step of k for each word of C that a thread computes."""
_LOAD_CYCLES = 167
"""Clocks for each vector that a thread loads or stores."""
_LAUNCH_CYCLES = 3500
"""Clocks from the launch to the first CTA, and from the last one to the end."""
_WARPS_PER_CYCLE = 4
"""Warps of an SM that issue an instruction in one clock."""

_LEAVES = "matrices", "thread_m", "thread_n", "block_threads"
"""Parameters of the family, in the order of the columns of variants."""
_TILES = [name for name in FEATURES[:IEEE_FEATURES] if name not in PROBLEM]
"""Features of kernels of tiles; -1 for others."""
_OF_TILES = [FEATURES.index(name) for name in _TILES]
"""Their places among all features of a table."""
_SMALL = (
    "matrices small_m small_n small_threads full computed items rounds held resident run ctas_of_products "
    "waves_of_products issuing loading copied_bytes alone ways_a ways_b"
).split()
"""Features of kernels of the family `small`; -1 for others."""
_BATCH = "m n k batch trans_a trans_b double row_c intensity elements expected".split()
"""Features of the batch, the same for every config, and the logarithm of the time that the trees correct."""
BATCH_FEATURES = [*_TILES, *_SMALL, *_BATCH]
"""Names of all features of batches, in the order of the rows."""
BATCHES = "batches"
"""Name of the arrays of batches."""

Variants = NDArray[np.int64]
"""Variants of the family: a row for each, with a column for each parameter."""


@cache
def _every_variant() -> Variants:
    """All variants whose accumulators fit."""
    choices = (SmallConfig.leaf(name).choices for name in _LEAVES)
    every: Variants = np.array([each for each in itertools.product(*choices) if each[1] * each[2] <= MOST_ACCUMULATORS])
    return every


def variants_of(configs: Sequence[Config]) -> Variants:
    """Configs of the family as rows."""
    rows = [[config.get(name) for name in _LEAVES] for config in configs]
    found: Variants = np.array(rows, np.int64).reshape(-1, len(_LEAVES))
    return found


def likely(problem: Problem, info: DeviceInfo) -> Variants:
    """Variants whose threads have work, the fastest by the model first; none for a problem that is too large."""
    if not 1 <= min(problem.m, problem.n, problem.k) <= max(problem.m, problem.n, problem.k) <= MOST_SIZE:
        return variants_of(())
    every = _every_variant()
    matrices, thread_m, thread_n, threads = every.T
    items = matrices * -(-problem.m // thread_m) * -(-problem.n // thread_n)
    usable = (thread_m <= problem.m) & (thread_n <= problem.n)
    usable &= (threads // 2 <= items) & (items <= 8 * threads)
    usable &= matrices * product_bytes(problem) <= info.arch.smem_per_block_bytes
    every = every[usable]
    fastest: Variants = every[limits(problem, info, every)["us"].argsort(kind="stable")[:RANKED]]
    return fastest


def limits(problem: Problem, info: DeviceInfo, variants: Variants) -> Columns:
    """Clocks of a CTA in each of the model's limits, counts that they follow from, and microseconds, for each variant.

    Instructions issued, loads from shared memory, bytes from memory and the CTA's own waits overlap: the model takes
    the fourth root of the sum of fourth powers.
    """
    matrices, thread_m, thread_n, threads = variants.astype(float).T
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    words, arch = size // 4, info.arch
    items = matrices * np.ceil(m / thread_m) * np.ceil(n / thread_n)
    rounds = np.ceil(items / threads)
    # Warps at work in whole or in part, in all rounds.
    warps = np.where(rounds == 1, np.ceil(items / _WARP), rounds * threads // _WARP)
    copied = matrices * (m * k + k * n + m * n)
    loads, multiplied = warps * k * (thread_m + thread_n), warps * k * thread_m * thread_n
    issued = (loads + multiplied * words + copied / _WARP * _COPY_INSTRUCTIONS) / _WARPS_PER_CYCLE
    memory = copied * size * info.clock_mhz * info.sm_count / (info.bandwidth_gbs * 1e3 * _MEMORY)
    alone = _CTA_CYCLES + rounds * k * (_STEP_CYCLES + _PRODUCT_CYCLES * thread_m * thread_n * words)
    alone = alone + _LOAD_CYCLES * copied * words / threads / 4
    registers = [thread_registers(int(m), int(n), problem.dtype) for m, n in zip(thread_m, thread_n)]
    held = matrices * product_bytes(problem)
    resident = np.minimum(arch.registers_per_sm // (threads * np.array(registers, float)), arch.max_blocks_per_sm)
    resident = np.minimum(resident, arch.max_threads_per_sm // threads)
    resident = np.maximum(1, np.minimum(resident, arch.smem_per_sm_bytes // (held + arch.smem_reserved_bytes)))
    busy = (issued**4 + (loads * words) ** 4 + memory**4 + (alone / resident) ** 4) ** 0.25
    ctas = np.ceil(problem.batch / matrices)
    us = (np.maximum(np.maximum(ctas / info.sm_count, 1.0) * busy, alone) + _LAUNCH_CYCLES) / info.clock_mhz
    return {
        "items": items, "rounds": rounds, "held": held, "resident": resident, "ctas": ctas, "issued": issued,
        "loads": loads * words, "memory": memory, "alone": alone, "us": us,
    }  # fmt: skip


def _small_features(problem: Problem, info: DeviceInfo, variants: Variants, counts: Columns) -> Floats:
    """A row for each name of `_SMALL`."""
    matrices, thread_m, thread_n, threads = variants.astype(float).T
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    rows, cols = np.ceil(m / thread_m), np.ceil(n / thread_n)
    run = np.gcd.reduce([matrices * each for each in (m * k, k * n, m * n)], dtype=np.int64, axis=0)
    logarithms = np.log2(
        stacked(
            matrices,
            counts["items"],
            counts["rounds"],
            counts["held"],
            counts["ctas"],
            counts["ctas"] / (info.sm_count * counts["resident"]),
            counts["issued"] / counts["memory"],
            counts["loads"] / counts["memory"],
            counts["memory"],
            counts["alone"] / counts["resident"] / counts["memory"],
        )
    )
    of = dict(zip("matrices items rounds held ctas waves issuing loading copied alone".split(), logarithms))
    return stacked(
        of["matrices"],
        thread_m,
        thread_n,
        threads,
        counts["items"] / (counts["rounds"] * threads),
        m * n / (rows * thread_m * cols * thread_n),
        of["items"],
        of["rounds"],
        of["held"],
        counts["resident"],
        np.gcd(run, 16 // size).astype(float),
        of["ctas"],
        of["waves"],
        of["issuing"],
        of["loading"],
        of["copied"],
        of["alone"],
        *ways(problem, variants),
    )


def ways(problem: Problem, variants: Variants) -> tuple[Floats, Floats]:
    """Different words that the lanes of a first warp read from one bank of shared memory at a time, in A and in B."""
    _, thread_m, thread_n, _ = variants.T[:, :, None]
    lanes = np.arange(_WARP * 4 // problem.dtype.size_bytes)  # doubles are read by half a warp at a time
    cols = -(-problem.n // thread_n)
    of_product = -(-problem.m // thread_m) * cols
    product, row, col = lanes // of_product, lanes % of_product // cols * thread_m, lanes % cols
    found = []
    for along, trans, (rows, width) in (
        (np.minimum(row, problem.m - 1), problem.trans_a, problem.stored_a),
        (np.minimum(col, problem.n - 1), not problem.trans_b, problem.stored_b),
    ):
        place = product * shared_elements(rows, width) + along * (1 if trans else width | 1)
        place.sort(axis=1)
        first = np.ones(place.shape, bool)
        first[:, 1:] = place[:, 1:] != place[:, :-1]
        banks = place % len(lanes) + np.arange(len(place))[:, None] * len(lanes)
        counted = np.bincount(banks[first], minlength=len(place) * len(lanes))
        found.append(counted.reshape(len(place), -1).max(axis=1).astype(float))
    return found[0], found[1]


class BatchRanker(Ranker):
    """The ranker of batches in one type: that of single products with more kernels, the family `small`, and trees for
    the logarithm of a time over the expected one."""

    def __init__(self, arrays: Arrays, more: Arrays, dtype: DType, accuracy: Grade = Grade.IEEE) -> None:
        """`arrays` are those of single products, `more` those of batches; without the latter nothing is corrected."""
        kernels = "kernels", "decompositions", "corrections"
        joined = {name: np.concatenate([arrays[name], more[name]]) for name in kernels} if more else {}
        super().__init__({**arrays, **joined}, dtype, accuracy)
        self._batch_regret: dict[str, float] = {}
        self._corrected_by: Trees | None = None
        if more:
            self._batch_regret = dict(zip(more["devices"].tolist(), more["regrets"].tolist()))
            self._corrected_by = trees_of(more, "batches", BATCH_FEATURES)

    def regret_of(self, problem: Problem, info: DeviceInfo) -> float | None:
        return self._batch_regret.get(info.key)

    def ranked(self, problem: Problem, info: DeviceInfo) -> Iterator[Predicted]:
        """Configs for a batch on a GPU, the fastest first."""
        problem = replace(problem, accuracy=self.accuracy)
        tiles, small = self.likeliest(problem, info), likely(problem, info)
        configs, of_tiles, us = list[Config](), np.empty((len(FEATURES), 0), np.float32), np.empty(0)
        if tiles is not None:
            order = tiles.us.argsort(kind="stable")[:RANKED]
            every = list(tiles.configs)
            configs, us = [every[place] for place in order], tiles.us[order]
            of_tiles = tiles.columns[:, tiles.order[order]]
        columns, expected = _columns(problem, info, of_tiles, us, small)
        configs += map(_config, small.tolist())
        times = np.exp(self._corrected(columns, expected))
        ranked = sorted(map(Predicted, configs, times.tolist()), key=attrgetter("us"))
        return iter(ranked) if self.knows(info) or not ranked else self._with_filling_splits(problem, info, ranked)

    def log_times(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> Floats:
        return self._corrected(*self.described(problem, info, configs))

    def _corrected(self, columns: FeatureRows, expected: Floats) -> Floats:
        trees = self._corrected_by
        return expected if trees is None else expected + trees.of(columns, np.arange(len(expected)))

    def described(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> tuple[FeatureRows, Floats]:
        """A column of features for each config, and the logarithms of the microseconds that the trees correct."""
        problem = replace(problem, accuracy=self.accuracy)
        places = sorted(range(len(configs)), key=lambda place: configs[place].batches_alone)
        tiles = [configs[place].unaligned for place in places if not configs[place].batches_alone]
        small = variants_of([configs[place] for place in places[len(tiles) :]])
        of_tiles, us = np.empty((len(FEATURES), 0), np.float32), np.empty(0)
        likeliest = self.likeliest(problem, info) if tiles else None
        if likeliest is not None:
            table = FeatureTable((next(likeliest.configs), *tiles), self.dtype, info)
            counted = table.physics(problem)
            of_tiles = np.ascontiguousarray(table.features(problem, counts=counted).T)
            first, *logs = self.trees.of(of_tiles, np.arange(of_tiles.shape[1]))
            us = np.maximum(np.exp(np.array(logs) - first) * likeliest.us[0], started_us(counted[CTAS][1:]))
            of_tiles = of_tiles[:, 1:]
        columns, expected = _columns(problem, info, of_tiles, us, small)
        back = np.argsort(places)
        return np.ascontiguousarray(columns[:, back]), expected[back]


def _columns(
    problem: Problem, info: DeviceInfo, of_tiles: FeatureRows, us: Floats, small: Variants
) -> tuple[FeatureRows, Floats]:
    """Features of tiles, whose microseconds are expected, and then of variants of `small`, and the logarithms of the
    microseconds of both."""
    tiles = len(us)
    columns = np.full((len(BATCH_FEATURES), tiles + len(small)), -1.0, np.float32)
    columns[: len(_TILES), :tiles] = of_tiles[_OF_TILES]
    if len(small):
        counts = limits(problem, info, small)
        columns[len(_TILES) : -len(_BATCH), tiles:] = _small_features(problem, info, small, counts)
        us = np.concatenate([us, np.maximum(counts["us"], started_us(counts["ctas"]))])
    logs, size = np.log(us), problem.dtype.size_bytes
    of_batch = [math.log2(each) for each in (problem.m, problem.n, problem.k, problem.batch)]
    of_batch += [problem.trans_a, problem.trans_b, size == DType.DOUBLE.size_bytes, math.gcd(problem.n * size, 128)]
    of_batch += [math.log2(problem.flops / problem.bytes), math.log2(problem.batch * problem.m * problem.n)]
    columns[-len(_BATCH) : -1] = np.array(of_batch)[:, None]
    columns[-1] = logs - math.log(floor_us(info, problem) or 1.0)
    return columns, logs


def _config(variant: Sequence[int]) -> SmallConfig:
    return SmallConfig.build(dict(zip(_LEAVES, variant)))


def batch_ranker_of(dtype: DType, accuracy: Grade = Grade.IEEE, arch: Arch | None = None) -> BatchRanker | None:
    """The ranker of batches that ships for a type and accuracy; None where there is none."""
    return _batch_ranker(dtype, accuracy, learned_of(dtype, arch))


@cache
def _batch_ranker(dtype: DType, accuracy: Grade, learned: DType) -> BatchRanker | None:
    arrays = shipped(name_of(learned, accuracy))
    more = of_type(shipped(BATCHES), learned) if accuracy is Grade.IEEE else {}
    return BatchRanker(arrays, more, dtype, accuracy) if arrays else None


def of_type(arrays: Arrays, dtype: DType) -> Arrays:
    """The arrays of batches in one type, by their names without it, and those of both types."""
    others = tuple(f"{each.value} " for each in DType if each is not dtype)
    own = {name: array for name, array in arrays.items() if not name.startswith(others)}
    return {name.removeprefix(f"{dtype.value} "): array for name, array in own.items()}
