"""The `small` family: batches of products whose matrices shared memory holds, at the memory's rate.

m, n and k are constants of the text. A CTA copies the matrices of several products, which mostly follow each other in
memory, to shared memory as one run, multiplies them there and writes the results as one run.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ..config import Config
from ..fit import Fit
from ..leaf import Edge, option
from ..legality import Rule
from ..mechanisms.blocked import ACCUMULATORS_FIT
from ..mechanisms.operands import WIDE_BYTES
from ..problem import DType, Problem
from ..source import LaunchConfig

MOST_SIZE = 128
"""Largest m, n and k: larger products are served by tiles."""


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


def product_bytes(problem: Problem) -> int:
    """Shared memory of the matrices of one product in bytes."""
    matrices = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    return sum(shared_elements(*each) for each in matrices) * problem.dtype.size_bytes


def thread_registers(thread_m: int, thread_n: int, dtype: DType) -> int:
    """Registers of a thread that computes so many rows and columns of C, an estimate from above: 255 at most."""
    return min(255, 40 + dtype.size_bytes // 4 * (thread_m * thread_n + thread_m + thread_n))


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
        return self.tile.matrices * product_bytes(problem)

    def ctas(self, problem: Problem, sm_count: int) -> int:
        return -(-problem.batch // self.tile.matrices)

    def launch_config(self, problem: Problem, sm_count: int) -> LaunchConfig:
        """CTAs of several products each, along x."""
        return LaunchConfig((self.ctas(problem, sm_count), 1, 1), self.block, self.held_bytes(problem))

    def registers(self, fit: Fit, dtype: DType) -> int:
        return min(thread_registers(self.tile.thread_m, self.tile.thread_n, dtype), 65536 // self.threads)
