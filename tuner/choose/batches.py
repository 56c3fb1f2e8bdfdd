"""Ranking of kernels for batches: expectations of a ranker and of a model of the family `small`, corrected by trees.

The trees were fitted to batches on measured devices (`benchmarks/fit_ranker.py`), and say how much longer or shorter a
config takes than the ranker of single products and the model expect. docs/experiments/batches.md has what they gain.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.families.small import (
    MOST_ACCUMULATORS,
    MOST_SIZE,
    SmallConfig,
    held_bytes,
    shared_elements,
    thread_registers,
)
from ...codegen.mechanisms.operands import WIDE_BYTES, Load
from ...codegen.problem import DType, Grade, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.device.protocol import DeviceInfo
from .features import FEATURES, IEEE_FEATURES, PROBLEM, FeatureRows, FeatureTable
from .model import CTAS, Columns, Floats, stacked
from .ranker import Arrays, Predicted, Ranker, Trees, learned_of, name_of, shipped, started_us, trees_of

RANKED = 96
"""Number of ranked configs, of kernels of tiles and of the family `small` with each load: the ones that are expected to
be fastest."""
_WARP = 32
"""Threads of a warp."""

# The model of a CTA of the family: docs/experiments/batches.md has the fit.
_MEMORY = 0.946
"""Share of the memory's bandwidth that copies reach."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """Constants of the model that depend on how matrices come to shared memory."""

    copy_instructions: float
    """Instructions of a warp for each 32 elements that it copies to shared memory or back."""
    slots: float
    """Issue slots of an instruction that reads an operand or multiplies."""
    cta_cycles: float
    """Further clocks of a CTA: from its start to its first loads, at barriers, and for its last stores."""
    step_cycles: float
    """Clocks of a step of k in which a thread waits for shared memory."""
    product_cycles: float
    """Clocks of a step of k for each word of C that a thread computes."""
    load_cycles: float
    """Clocks for each vector that a thread loads or stores."""
    memory: float
    """Clocks that a CTA waits by itself for device memory, as a share of the clocks that its bytes take there."""


_COSTS = {
    Load.REGISTERS: _Costs(42, 1, 1980, 38, 6, 167, 0),
    Load.CP_ASYNC: _Costs(3.6, 1.71, 2540, 149, 0, 0, 0.75),
}
"""The constants of each load."""
_LAUNCH_CYCLES = 3500
"""Clocks from the launch to the first CTA, and from the last one to the end."""
_WARPS_PER_CYCLE = 4
"""Warps of an SM that issue an instruction in one clock."""

_LEAVES = "matrices", "thread_m", "thread_n", "block_threads"
"""Parameters of the family, in the order of the columns of variants; the last column is the number of the load."""
_LOADS = tuple(_COSTS)
"""The loads of the family by their number."""
_TILES = [name for name in FEATURES[:IEEE_FEATURES] if name not in PROBLEM]
"""Features of kernels of tiles."""
_OF_TILES = [FEATURES.index(name) for name in _TILES]
"""Indices of the features of tiles among all features of a table."""
_SMALL = (
    "matrices small_m small_n small_threads full computed items small_rounds held small_resident run "
    "ctas_of_products waves_of_products issuing loading memory_clocks alone whole_runs ways_a ways_b"
).split()
"""Features of kernels of the family `small`."""
OF_BATCH = "m n k batch trans_a trans_b double row_c intensity elements".split()
"""Features of the batch, the same for every config."""
_EXPECTED = "expected"
"""Feature for the logarithm of the time that the trees correct."""
BATCH_FEATURES = [*_TILES, *_SMALL, *OF_BATCH, _EXPECTED]
"""Names of all features of batches, in the order of the rows."""
_NONE = -1.0
"""Value of a feature that a kernel does not have: of `small` for tiles, and of tiles for `small`."""
BATCHES = "batches"
"""Name of the ranker's file, and first word of the names of the arrays of its trees."""

Variants = NDArray[np.int64]
"""Variants of the family: a row for each, with a column for each parameter."""


@cache
def _every_variant() -> Variants:
    """All variants whose accumulators fit."""
    choices = (*(SmallConfig.leaf(name).choices for name in _LEAVES), range(len(_LOADS)))
    every: Variants = np.array([each for each in itertools.product(*choices) if each[1] * each[2] <= MOST_ACCUMULATORS])
    return every


def variants_of(configs: Sequence[Config]) -> Variants:
    """Configs of the family as rows."""
    rows = [[*map(config.get, _LEAVES), _LOADS.index(config.get("load"))] for config in configs]
    variants: Variants = np.array(rows, np.int64).reshape(-1, len(_LEAVES) + 1)
    return variants


def likely(problem: Problem, info: DeviceInfo) -> Variants:
    """The `RANKED` variants with each load that the model expects to be the fastest, the fastest first; none where m, n
    or k is 0 or more than `MOST_SIZE`."""
    if not 1 <= min(problem.m, problem.n, problem.k) <= max(problem.m, problem.n, problem.k) <= MOST_SIZE:
        return variants_of(())
    every = _every_variant()
    matrices, thread_m, thread_n, threads, load = every.T
    items = matrices * -(-problem.m // thread_m) * -(-problem.n // thread_n)
    rounds = np.where(load == _LOADS.index(Load.CP_ASYNC), 1, 8)
    usable = (thread_m <= problem.m) & (thread_n <= problem.n)
    usable &= (threads // 2 <= items) & (items <= rounds * threads)
    every = every[usable]
    every = every[_held(problem, every) <= info.arch.smem_per_block_bytes]
    every = every[limits(problem, info, every)["us"].argsort(kind="stable")]
    of_load = every[:, -1:] == np.arange(len(_LOADS))
    fastest: Variants = every[(of_load & (of_load.cumsum(axis=0) <= RANKED)).any(axis=1)]
    return fastest


def _held(problem: Problem, variants: Variants) -> Floats:
    """Shared memory of a CTA in bytes, for each variant."""
    return _by_case(lambda matrices, load: held_bytes(problem, matrices, _LOADS[load]), variants[:, [0, -1]])


def _by_case(function: Callable[..., int], rows: Variants) -> Floats:
    """Value of a function of the columns for each row; equal rows share one call."""
    once = cache(function)
    return np.array([once(*row) for row in rows.tolist()], float)


def _of_loads(variants: Variants, name: str) -> Floats:
    """A constant of the model by the load of each variant."""
    return np.array([getattr(_COSTS[load], name) for load in _LOADS], float)[variants[:, -1]]


def limits(problem: Problem, info: DeviceInfo, variants: Variants) -> Columns:
    """Clocks of a CTA in each of the model's limits, counts that they follow from, and microseconds, for each variant.

    Instructions issued, loads from shared memory, bytes from memory and the CTA's own waits overlap: the model takes
    the fourth root of the sum of fourth powers.
    """
    matrices, thread_m, thread_n, threads, _ = variants.astype(float).T
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    words, arch = size // 4, info.arch
    copy_instructions, slots, cta_cycles, step_cycles, product_cycles, load_cycles, waited = (
        _of_loads(variants, field.name) for field in fields(_Costs)
    )
    items = matrices * np.ceil(m / thread_m) * np.ceil(n / thread_n)
    rounds = np.ceil(items / threads)
    # Warps at work in whole or in part, in all rounds.
    warps = np.where(rounds == 1, np.ceil(items / _WARP), rounds * threads // _WARP)
    copied = matrices * (m * k + k * n + m * n)
    reads, passes = _reads(problem, variants)
    loads, multiplied = warps * passes, warps * k * thread_m * thread_n
    issued = (warps * k * reads + multiplied * words) * slots + copied / _WARP * copy_instructions
    issued = issued / _WARPS_PER_CYCLE
    memory = copied * size * info.clock_mhz * info.sm_count / (info.bandwidth_gbs * 1e3 * _MEMORY)
    alone = cta_cycles + rounds * k * (step_cycles + product_cycles * thread_m * thread_n * words)
    alone = alone + load_cycles * copied * words / threads / 4 + waited * memory
    registers = _by_case(lambda m, n: thread_registers(m, n, problem.dtype), variants[:, 1:3])
    held = _held(problem, variants)
    resident = np.minimum(arch.registers_per_sm // (threads * registers), arch.max_blocks_per_sm)
    resident = np.minimum(resident, arch.max_threads_per_sm // threads)
    resident = np.maximum(1, np.minimum(resident, arch.smem_per_sm_bytes // (held + arch.smem_reserved_bytes)))
    busy = (issued**4 + (loads * words) ** 4 + memory**4 + (alone / resident) ** 4) ** 0.25
    ctas = np.ceil(problem.batch / matrices)
    us = (np.maximum(np.maximum(ctas / info.sm_count, 1.0) * busy, alone) + _LAUNCH_CYCLES) / info.clock_mhz
    return {
        "items": items, "rounds": rounds, "held": held, "resident": resident, "ctas": ctas, "issued": issued,
        "loads": loads * words, "memory": memory, "alone": alone, "us": us,
    }  # fmt: skip


def _reads(problem: Problem, variants: Variants) -> tuple[Floats, Floats]:
    """For each variant, load instructions of a warp for one step of k, and words that a warp moves between shared
    memory and registers one after the other, for all steps. With whole runs the words of C and bank conflicts count;
    the model of padded rows leaves both out."""
    _, thread_m, thread_n, _, load = variants.T
    reads = (thread_m + thread_n).astype(float)
    passes, whole = problem.k * reads, load == _LOADS.index(Load.CP_ASYNC)
    thread_m, thread_n = thread_m[whole, None], thread_n[whole, None]
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    wide, lanes = WIDE_BYTES // size, _WARP * 4 // size
    a_row, b_row = problem.stored_a[1], problem.stored_b[1]
    a_vec = 1 if problem.trans_a else math.gcd(a_row, wide)  # steps of k that a thread reads at once
    b_vec = math.gcd(b_row, wide) if problem.trans_b else 1
    rows = thread_m if a_row % 2 else 1  # from a thread's first row to the next thread's
    cols = -(-n // thread_n)
    parts = -(-m // thread_m) * cols

    def passed(lanes: int, product: int, row: Any, col: int) -> Floats:
        """Passes of an access; `product`, `row` and `col` are steps of the address to the next one of each."""
        lane = np.arange(lanes)
        return _conflicts(lane // parts * product + lane % parts // cols * row + lane % cols * col, lanes)

    a_step, b_step = 1 if problem.trans_a else a_row // a_vec, b_row // b_vec if problem.trans_b else 1
    of_a = passed(lanes // a_vec, m * k // a_vec, rows * a_step, 0)
    of_b = passed(lanes // b_vec, k * n // b_vec, 0, b_step)
    of_c = passed(lanes, m * n, rows * n, 1)
    thread_m, thread_n = thread_m[:, 0], thread_n[:, 0]
    reads[whole] = thread_m / a_vec + thread_n / b_vec
    passes[whole] = k * (thread_m * of_a + thread_n * of_b) + thread_m * thread_n * of_c
    return reads, passes


def _conflicts(places: NDArray[np.int64], banks: int) -> Floats:
    """Largest number of different places of each row that lie in one bank."""
    places = np.sort(places, axis=1)
    first = np.ones(places.shape, bool)
    first[:, 1:] = places[:, 1:] != places[:, :-1]
    bank = places % banks + np.arange(len(places))[:, None] * banks
    counted = np.bincount(bank[first], minlength=len(places) * banks)
    most: Floats = counted.reshape(len(places), banks).max(axis=1).astype(float)
    return most


def _small_features(problem: Problem, info: DeviceInfo, variants: Variants, counts: Columns) -> Floats:
    """A row for each name of `_SMALL`."""
    matrices, thread_m, thread_n, threads, _ = variants.astype(float).T
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
    of = dict(zip("matrices items rounds held ctas waves issuing loading memory alone".split(), logarithms))
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
        np.gcd(run, WIDE_BYTES // size).astype(float),
        of["ctas"],
        of["waves"],
        of["issuing"],
        of["loading"],
        of["memory"],
        of["alone"],
        variants[:, -1] == _LOADS.index(Load.CP_ASYNC),
        *ways(problem, variants),
    )


def ways(problem: Problem, variants: Variants) -> tuple[Floats, Floats]:
    """Number of different words that lanes of the first warp read from one bank at a time, for A and for B. Kernels
    with whole runs are described as if their rows were padded."""
    _, thread_m, thread_n, _, _ = variants.T[:, :, None]
    lanes = np.arange(_WARP * 4 // problem.dtype.size_bytes)  # doubles are read by half a warp at a time
    cols = -(-problem.n // thread_n)
    of_product = -(-problem.m // thread_m) * cols
    product, row, col = lanes // of_product, lanes % of_product // cols * thread_m, lanes % cols
    conflicts = []
    for along, trans, (rows, width) in (
        (np.minimum(row, problem.m - 1), problem.trans_a, problem.stored_a),
        (np.minimum(col, problem.n - 1), not problem.trans_b, problem.stored_b),
    ):
        place = product * shared_elements(rows, width) + along * (1 if trans else width | 1)
        conflicts.append(_conflicts(place, len(lanes)))
    return conflicts[0], conflicts[1]


class BatchRanker(Ranker):
    """Ranker of batches in one type: the ranker of single products with further kernels, with the family `small`, and
    with trees for the logarithm of a time over the expected one."""

    def __init__(self, arrays: Arrays, more: Arrays, dtype: DType, accuracy: Grade = Grade.IEEE) -> None:
        """`arrays` belong to single products, `more` to batches; where `more` is empty, no time is corrected."""
        kernels = "kernels", "decompositions", "corrections"
        joined = {name: np.concatenate([arrays[name], more[name]]) for name in kernels} if more else {}
        super().__init__({**arrays, **joined}, dtype, accuracy)
        self._batch_regret: dict[str, float] = {}
        self._corrected_by: Trees | None = None
        if more:
            self._batch_regret = dict(zip(more["devices"].tolist(), more["regrets"].tolist()))
            self._corrected_by = trees_of(more, BATCHES, BATCH_FEATURES)

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
        times = np.exp(self._corrected(columns, expected))
        fastest = times.argsort(kind="stable").tolist()

        def config_at(place: int) -> Config:
            return configs[place] if place < len(configs) else _config(small[place - len(configs)].tolist())

        ranked = (Predicted(config_at(place), us) for place, us in zip(fastest, times[fastest].tolist()))
        if self.knows(info) or not fastest:
            return ranked
        return self._with_filling_splits(problem, info, list(ranked))

    def log_times(self, problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> Floats:
        return self._corrected(*self.described(problem, info, configs))

    def _corrected(self, columns: FeatureRows, expected: Floats) -> Floats:
        trees = self._corrected_by
        return expected if trees is None else expected + trees.of(columns, np.arange(columns.shape[1]))

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
    columns = np.full((len(BATCH_FEATURES), tiles + len(small)), _NONE, np.float32)
    columns[: len(_TILES), :tiles] = of_tiles[_OF_TILES]
    if len(small):
        counts = limits(problem, info, small)
        columns[len(_TILES) : -len(OF_BATCH) - 1, tiles:] = _small_features(problem, info, small, counts)
        us = np.concatenate([us, np.maximum(counts["us"], started_us(counts["ctas"]))])
    logs, size = np.log(us), problem.dtype.size_bytes
    of_batch = [math.log2(each) for each in (problem.m, problem.n, problem.k, problem.batch)]
    of_batch += [problem.trans_a, problem.trans_b, size == DType.DOUBLE.size_bytes, math.gcd(problem.n * size, 128)]
    of_batch += [math.log2(problem.flops / problem.bytes), math.log2(problem.batch * problem.m * problem.n)]
    columns[-len(OF_BATCH) - 1 : -1] = np.array(of_batch)[:, None]
    columns[-1] = logs - math.log(floor_us(info, problem) or 1.0)
    return columns, logs


def _config(variant: Sequence[int]) -> SmallConfig:
    return SmallConfig.build(dict(zip(_LEAVES, variant)) | {"load": _LOADS[variant[-1]]})


def batch_ranker_of(dtype: DType, accuracy: Grade = Grade.IEEE, arch: Arch | None = None) -> BatchRanker | None:
    """The ranker of batches that ships for a type and accuracy; None where there is none."""
    return _batch_ranker(dtype, accuracy, learned_of(dtype, arch))


@cache
def _batch_ranker(dtype: DType, accuracy: Grade, learned: DType) -> BatchRanker | None:
    arrays = shipped(name_of(learned, accuracy))
    more = of_type(shipped(BATCHES), learned) if accuracy is Grade.IEEE else {}
    return BatchRanker(arrays, more, dtype, accuracy) if arrays else None


def of_type(arrays: Arrays, dtype: DType) -> Arrays:
    """The arrays of batches in one type, by their names without the type, and the arrays of all types."""
    others = tuple(f"{each.value} " for each in DType if each is not dtype)
    own = {name: array for name, array in arrays.items() if not name.startswith(others)}
    return {name.removeprefix(f"{dtype.value} "): array for name, array in own.items()}
