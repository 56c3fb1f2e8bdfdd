"""The `small` family: batches of products whose matrices shared memory holds, at the memory's rate.

m, n and k are constants of the text. A CTA copies the matrices of several products, which mostly follow each other in
memory, to shared memory as one run, multiplies them there and writes the results as one run. Runs pass through
registers, one element after the other, to rows that are padded against bank conflicts; or cp.async copies them as they
are, in whole vectors, whatever the length of rows and wherever the run begins.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ..config import Config
from ..fit import Fit
from ..leaf import Edge, option
from ..legality import Rule, serves
from ..mechanisms.operands import HAS_CP_ASYNC, WIDE_BYTES, Load
from ..problem import DType, Grade, Problem
from ..source import LaunchConfig
from ..target import Target

MOST_SIZE = 128
"""Largest m, n and k: larger products are served by tiles."""
_MOST_ACCUMULATORS = 80
"""Largest number of elements of C that a thread holds."""
_LIKELY = 64
"""Number of configs that the model proposes."""

# The model of a CTA: docs/experiments/batches.md has the fit.
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
    """Clocks of a CTA beside the others: from its start to its first loads, barriers, and its last stores."""
    step_cycles: float
    """Clocks of a step of k in which a thread waits for shared memory."""
    product_cycles: float
    """Clocks of a step of k for each word of C that a thread computes."""
    load_cycles: float
    """Clocks for each vector that a thread loads or stores."""
    memory: float
    """Share of the memory's clocks for its bytes that a CTA waits, beside the other limits."""


_COSTS = {
    Load.REGISTERS: _Costs(42, 1, 1980, 38, 6, 167, 0),
    Load.CP_ASYNC: _Costs(3.6, 1.71, 2540, 149, 0, 0, 0.75),
}
"""The constants of each load."""
_LAUNCH_CYCLES = 3500
"""Clocks from the launch to the first CTA, and from the last one to the end."""
_WARPS_PER_CYCLE = 4
"""Warps of an SM that issue an instruction in one clock."""


@dataclass(frozen=True, slots=True)
class SmallTile:
    """The products of a CTA, and what a thread computes of one."""

    matrices: int = option(16, 1, 2, 4, 8, 32, 64, 128, 256, 512, meaning="products that a CTA computes")
    thread_m: int = option(2, 1, 3, 4, 5, 6, 8, 7, 10, 12, 13, meaning="rows of C that a thread computes")
    thread_n: int = option(2, 1, 3, 4, 5, 6, 8, 7, meaning="columns of C that a thread computes")

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread computes."""
        return self.thread_m * self.thread_n


@dataclass(frozen=True, slots=True)
class SmallPipeline:
    """The way of matrices to shared memory."""

    load: Load = option(Load.REGISTERS, Load.CP_ASYNC, meaning="how matrices come to shared memory")


@dataclass(frozen=True, slots=True)
class SmallLaunch:
    """Size of CTAs."""

    block_threads: int = option(256, 64, 128, 512, 96, meaning="threads of a CTA")


def shared_elements(rows: int, cols: int) -> int:
    """Elements of shared memory that a matrix takes: rows are an odd number of elements apart, and matrices too, so
    that columns of a matrix, and the same element of neighbouring matrices, lie in different banks."""
    return (rows * (cols | 1)) | 1


_RULES: tuple[Rule["SmallConfig"], ...] = (
    Rule("there is a batch of products", lambda problem, config, target: problem.batch > 1),
    Rule(
        f"each of m, n and k is 1 to {MOST_SIZE}",
        lambda problem, config, target: all(1 <= x <= MOST_SIZE for x in (problem.m, problem.n, problem.k)),
    ),
    Rule(
        "a thread computes {c.tile.thread_m} rows and {c.tile.thread_n} columns, and C has as many",
        lambda problem, config, target: config.tile.thread_m <= problem.m and config.tile.thread_n <= problem.n,
    ),
    Rule(
        f"a thread holds at most {_MOST_ACCUMULATORS} elements of C",
        lambda problem, config, target: config.tile.accumulators <= _MOST_ACCUMULATORS,
    ),
    HAS_CP_ASYNC,
    Rule(
        "with load cp_async a thread computes one part of a product, and {c.threads} threads all parts of "
        "{c.tile.matrices} products",
        lambda problem, config, target: not config.whole_runs or config.parts(problem) <= config.threads,
    ),
    Rule(
        "shared memory holds the matrices of {c.tile.matrices} products",
        lambda problem, config, target: config.held_bytes(problem) <= target.arch.smem_per_block_bytes,
    ),
)


@dataclass(frozen=True, slots=True)
class SmallConfig(Config):
    """A variant of the family."""

    family = "small"
    title = "batches of small matrices, which pass through shared memory as one run"
    template = "small.cu.jinja"
    order = 8
    rules = _RULES
    batches_alone = True
    pdl = True
    joined: ClassVar = (("", ("matrices", "thread_m", "thread_n")),)

    tile: SmallTile = SmallTile()
    pipeline: SmallPipeline = SmallPipeline()
    launch: SmallLaunch = SmallLaunch()

    @property
    def block(self) -> tuple[int, int, int]:
        return self.launch.block_threads, 1, 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        return self.tile.thread_m, self.tile.thread_n, 1

    def fit(self, problem: Problem, aligned: bool = True) -> Fit:
        """The instance for matrices that follow each other without gaps, else the one for any operands."""
        if not aligned:
            return Fit(self)
        elements = (problem.m * problem.k, problem.k * problem.n, problem.m * problem.n)
        wide = WIDE_BYTES // problem.dtype.size_bytes
        vec = wide if self.whole_runs else math.gcd(wide, *(self.tile.matrices * each for each in elements))
        return Fit(self, Edge.EXACT, vec, vec, vec, dense=True)

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        return {"kM": problem.m, "kN": problem.n, "kK": problem.k, "kRun": fit.vec_c, "kDense": fit.dense}

    @property
    def whole_runs(self) -> bool:
        """Whether matrices lie in shared memory as they do in device memory, C where A and B were."""
        return self.pipeline.load is Load.CP_ASYNC

    def parts(self, problem: Problem) -> int:
        """Parts of products that the threads of a CTA compute."""
        tile = self.tile
        return tile.matrices * -(-problem.m // tile.thread_m) * -(-problem.n // tile.thread_n)

    def held_bytes(self, problem: Problem) -> int:
        """Shared memory of a CTA in bytes: the matrices of its products."""
        matrices = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        if self.whole_runs:
            wide = WIDE_BYTES // problem.dtype.size_bytes
            a, b, c = (self.tile.matrices * math.prod(each) + 2 * (wide - 1) for each in matrices)
            return max(a // wide + b // wide, c // wide) * WIDE_BYTES
        return self.tile.matrices * sum(shared_elements(*each) for each in matrices) * problem.dtype.size_bytes

    def ctas(self, problem: Problem, sm_count: int) -> int:
        return -(-problem.batch // self.tile.matrices)

    def launch_config(self, problem: Problem, sm_count: int) -> LaunchConfig:
        """CTAs of several products each, along x."""
        return LaunchConfig((self.ctas(problem, sm_count), 1, 1), self.block, self.held_bytes(problem))

    def expected_us(self, problem: Problem, target: Target) -> float:
        tile, threads, words = self.tile, self.threads, problem.dtype.size_bytes // 4
        costs, parts = _COSTS[self.pipeline.load], self.parts(problem)
        rounds = -(-parts // threads)
        warps = -(-parts // 32) if rounds == 1 else rounds * threads // 32  # whole or in part at work, in all rounds
        copied = tile.matrices * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
        reads, loads = self._reads(problem)
        multiplied = warps * problem.k * tile.accumulators
        issued = (warps * problem.k * reads + multiplied * words) * costs.slots + copied / 32 * costs.copy_instructions
        bytes_per_cycle = target.bandwidth_gbs * 1e3 * _MEMORY / target.clock_mhz / target.sm_count
        memory = copied * problem.dtype.size_bytes / bytes_per_cycle
        step = costs.step_cycles + costs.product_cycles * tile.accumulators * words
        alone: float = costs.cta_cycles + rounds * problem.k * step
        alone += costs.load_cycles * copied * words / threads / 4 + costs.memory * memory
        resident = self._resident(problem, target)
        limits: tuple[float, ...] = issued / _WARPS_PER_CYCLE, warps * loads * words, memory, alone / resident
        busy: float = sum(each**4 for each in limits) ** 0.25
        ctas = max(self.ctas(problem, target.sm_count) / target.sm_count, 1.0)
        return (max(ctas * busy, alone) + _LAUNCH_CYCLES) / target.clock_mhz

    def _reads(self, problem: Problem) -> tuple[float, float]:
        """Instructions by which a warp reads its operands of a step of k, and words of its lanes that pass between
        shared memory and registers one after the other, of all steps and of C, with conflicts of banks."""
        tile = self.tile
        reads = tile.thread_m + tile.thread_n
        if not self.whole_runs:  # rows are padded against conflicts
            return reads, problem.k * reads
        m, n, k, wide = problem.m, problem.n, problem.k, WIDE_BYTES // problem.dtype.size_bytes
        a_row, b_row, lanes = problem.stored_a[1], problem.stored_b[1], 128 // problem.dtype.size_bytes
        a_vec = 1 if problem.trans_a else math.gcd(a_row, wide)  # steps of k that a thread reads at once
        b_vec = math.gcd(b_row, wide) if problem.trans_b else 1
        rows = tile.thread_m if a_row % 2 else 1  # from a thread's first row to that of the next one
        cols = -(-n // tile.thread_n)
        parts = -(-m // tile.thread_m) * cols
        a_step, b_step = 1 if problem.trans_a else a_row // a_vec, b_row // b_vec if problem.trans_b else 1
        a_passes = _passes(lanes // a_vec, parts, cols, m * k // a_vec, rows * a_step, 0)
        b_passes = _passes(lanes // b_vec, parts, cols, k * n // b_vec, 0, b_step)
        c_passes = _passes(lanes, parts, cols, m * n, rows * n, 1)
        passes = k * (tile.thread_m * a_passes + tile.thread_n * b_passes) + tile.accumulators * c_passes
        return tile.thread_m / a_vec + tile.thread_n / b_vec, passes

    def _resident(self, problem: Problem, target: Target) -> int:
        """CTAs of an SM at a time."""
        arch, threads = target.arch, self.threads
        of_registers = arch.registers_per_sm // (threads * self.registers(Fit(self), problem.dtype))
        of_memory = arch.smem_per_sm_bytes // (self.held_bytes(problem) + arch.smem_reserved_bytes)
        return max(1, min(arch.max_blocks_per_sm, arch.max_threads_per_sm // threads, of_registers, of_memory))

    @classmethod
    def likely(cls, problem: Problem, target: Target) -> "Sequence[SmallConfig]":
        return _likely(replace(problem, accuracy=Grade.IEEE), target)

    def registers(self, fit: Fit, dtype: DType) -> int:
        tile, words = self.tile, dtype.size_bytes // 4
        needed = 40 + words * (tile.thread_m * tile.thread_n + tile.thread_m + tile.thread_n)
        return min(255, needed, 65536 // self.threads)


@lru_cache(maxsize=4096)
def _passes(lanes: int, parts: int, cols: int, product_step: int, row_step: int, col_step: int) -> int:
    """Passes in which lanes access shared memory that has a bank for each, by the steps of their addresses from one
    product, row and column of parts to the next: the most addresses that one bank has."""
    places = {
        lane // parts * product_step + lane % parts // cols * row_step + lane % cols * col_step for lane in range(lanes)
    }
    return max(Counter(place % lanes for place in places).values())


@lru_cache(maxsize=256)
def _likely(problem: Problem, target: Target) -> tuple[SmallConfig, ...]:
    leaves = [SmallConfig.leaf(name) for name in ("matrices", "thread_m", "thread_n", "load", "block_threads")]
    by_time: list[tuple[float, int, SmallConfig]] = []
    for values in itertools.product(*(leaf.choices for leaf in leaves)):
        matrices, thread_m, thread_n, load, threads = values
        parts = matrices * -(-problem.m // thread_m) * -(-problem.n // thread_n)
        if thread_m > problem.m or thread_n > problem.n:
            continue
        if threads // 2 <= parts <= (threads if load is Load.CP_ASYNC else 8 * threads):
            config = SmallConfig.build(dict(zip((leaf.name for leaf in leaves), values)))
            by_time.append((config.expected_us(problem, target), len(by_time), config))
    serving = (config for *_, config in sorted(by_time) if serves(config, problem, target))
    return tuple(itertools.islice(serving, _LIKELY))
