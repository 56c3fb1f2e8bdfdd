"""The `small` family: batches of products whose matrices shared memory holds, at the memory's rate.

m, n and k are constants of the text. A CTA copies the matrices of several products, which mostly follow each other in
memory, to shared memory as one run, multiplies them there and writes the results as one run.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ..config import Config
from ..fit import Fit
from ..leaf import Edge, option
from ..legality import Rule, serves
from ..mechanisms.blocked import ACCUMULATORS_FIT
from ..mechanisms.operands import WIDE_BYTES
from ..problem import DType, Grade, Problem
from ..source import LaunchConfig
from ..target import Target

MOST_SIZE = 128
"""Largest m, n and k: larger products are served by tiles."""
_LIKELY = 64
"""Number of configs that the model proposes."""

# The model of a CTA: docs/experiments/batches.md has the fit.
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


@dataclass(frozen=True, slots=True)
class SmallTile:
    """The products of a CTA, and what a thread computes of one."""

    matrices: int = option(16, 1, 2, 4, 8, 32, 64, 128, 256, 512, meaning="products that a CTA computes")
    thread_m: int = option(2, 1, 3, 4, 5, 6, 8, meaning="rows of C that a thread computes")
    thread_n: int = option(2, 1, 3, 4, 5, 6, 8, meaning="columns of C that a thread computes")

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread computes."""
        return self.thread_m * self.thread_n


@dataclass(frozen=True, slots=True)
class SmallLaunch:
    """Size of CTAs."""

    block_threads: int = option(256, 64, 128, 512, meaning="threads of a CTA")


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
    ACCUMULATORS_FIT,
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
        vec = math.gcd(wide, *(self.tile.matrices * each for each in elements))
        return Fit(self, Edge.EXACT, vec, vec, vec, dense=True)

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        return {"kM": problem.m, "kN": problem.n, "kK": problem.k, "kRun": fit.vec_c, "kDense": fit.dense}

    def held_bytes(self, problem: Problem) -> int:
        """Shared memory of a CTA in bytes: the matrices of its products."""
        matrices = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        return self.tile.matrices * sum(shared_elements(*each) for each in matrices) * problem.dtype.size_bytes

    def ctas(self, problem: Problem, sm_count: int) -> int:
        return -(-problem.batch // self.tile.matrices)

    def launch_config(self, problem: Problem, sm_count: int) -> LaunchConfig:
        """CTAs of several products each, along x."""
        return LaunchConfig((self.ctas(problem, sm_count), 1, 1), self.block, self.held_bytes(problem))

    def expected_us(self, problem: Problem, target: Target) -> float:
        tile, threads, words = self.tile, self.threads, problem.dtype.size_bytes // 4
        rows, cols = -(-problem.m // tile.thread_m), -(-problem.n // tile.thread_n)
        items = tile.matrices * rows * cols
        rounds = -(-items // threads)
        warps = -(-items // 32) if rounds == 1 else rounds * threads // 32  # whole or in part at work, in all rounds
        copied = tile.matrices * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
        loads = warps * problem.k * (tile.thread_m + tile.thread_n)
        multiplied = warps * problem.k * tile.thread_m * tile.thread_n
        issued = (loads + multiplied * words + copied / 32 * _COPY_INSTRUCTIONS) / _WARPS_PER_CYCLE
        bytes_per_cycle = target.bandwidth_gbs * 1e3 * _MEMORY / target.clock_mhz / target.sm_count
        memory = copied * problem.dtype.size_bytes / bytes_per_cycle
        alone: float = _CTA_CYCLES + rounds * problem.k * (
            _STEP_CYCLES + _PRODUCT_CYCLES * tile.thread_m * tile.thread_n * words
        )
        alone += _LOAD_CYCLES * copied * words / threads / 4
        resident = self._resident(problem, target)
        limits: tuple[float, ...] = issued, loads * words, memory, alone / resident
        busy: float = sum(each**4 for each in limits) ** 0.25
        ctas = max(self.ctas(problem, target.sm_count) / target.sm_count, 1.0)
        return (max(ctas * busy, alone) + _LAUNCH_CYCLES) / target.clock_mhz

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


@lru_cache(maxsize=256)
def _likely(problem: Problem, target: Target) -> tuple[SmallConfig, ...]:
    leaves = [SmallConfig.leaf(name) for name in ("matrices", "thread_m", "thread_n", "block_threads")]
    by_time: list[tuple[float, int, SmallConfig]] = []
    for values in itertools.product(*(leaf.choices for leaf in leaves)):
        config = SmallConfig.build(dict(zip((leaf.name for leaf in leaves), values)))
        items = config.tile.matrices * -(-problem.m // config.tile.thread_m) * -(-problem.n // config.tile.thread_n)
        if config.threads // 2 <= items <= 8 * config.threads and serves(config, problem, target):
            by_time.append((config.expected_us(problem, target), len(by_time), config))
    return tuple(config for *_, config in sorted(by_time)[:_LIKELY])
