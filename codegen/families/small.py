"""The `small` family: batches of products whose matrices shared memory holds, at the memory's rate.

m, n and k are constants of the text. A CTA copies the matrices of several products, which mostly follow each other in
memory, to shared memory as one run, multiplies them there and writes the results as one run. With `load` at
`registers`, threads load vectors of a run and store their elements singly to rows that are padded against bank
conflicts. With `cp_async` a run is copied as it lies, in vectors of 16 bytes but for the elements after the last one,
whatever the length of rows and wherever the run begins.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ..arch import REGISTERS_PER_SM
from ..config import Config
from ..fit import Fit
from ..leaf import Edge, option
from ..legality import Rule
from ..mechanisms.operands import HAS_CP_ASYNC, WIDE_BYTES, Load
from ..problem import DType, Problem
from ..source import LaunchConfig

MOST_SIZE = 128
"""Largest m, n and k: larger products are served by tiles."""
MOST_ACCUMULATORS = 80
"""Largest number of elements of C that a thread holds."""


@dataclass(frozen=True, slots=True)
class SmallTile:
    """The products of a CTA, and the part of one that a thread computes."""

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


def held_bytes(problem: Problem, matrices: int, load: Load) -> int:
    """Bytes of shared memory for the operands and results of `matrices` products."""
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    if load is Load.REGISTERS:
        return matrices * sum(shared_elements(*each) for each in shapes) * problem.dtype.size_bytes
    wide = WIDE_BYTES // problem.dtype.size_bytes
    a, b, c = (matrices * math.prod(each) + 2 * (wide - 1) for each in shapes)
    return max(a // wide + b // wide, c // wide) * WIDE_BYTES


def thread_registers(thread_m: int, thread_n: int, dtype: DType) -> int:
    """Estimated registers of a thread that computes `thread_m` by `thread_n` elements of C, at most 255: the median of
    what kernels take (docs/experiments/batches.md)."""
    return min(255, 31 + dtype.size_bytes // 4 * thread_m * thread_n)


_START_BYTES = 3 * 8
"""Bytes of shared memory for the distances to the three matrices of a product, in the instance for any distances."""

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
        f"a thread holds at most {MOST_ACCUMULATORS} elements of C",
        lambda problem, config, target: config.tile.accumulators <= MOST_ACCUMULATORS,
    ),
    HAS_CP_ASYNC,
    Rule(
        "with load cp_async a thread computes one part of a product, and {c.threads} threads all parts of "
        "{c.tile.matrices} products",
        lambda problem, config, target: not config.whole_runs or config.parts(problem) <= config.threads,
    ),
    Rule(
        "shared memory holds the matrices of {c.tile.matrices} products, and the distances to them",
        lambda problem, config, target: (
            config.held_bytes(problem) + config.start_bytes <= target.arch.smem_per_block_bytes
        ),
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
    fixed_sizes = True
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
        """The instance for matrices without gaps if `aligned`, else the one for any operands. With whole runs the first
        serves any address."""
        if not aligned:
            return Fit(self)
        if self.whole_runs:
            return Fit(self, Edge.EXACT, dense=True)
        elements = (problem.m * problem.k, problem.k * problem.n, problem.m * problem.n)
        vec = math.gcd(WIDE_BYTES // problem.dtype.size_bytes, *(self.tile.matrices * each for each in elements))
        return Fit(self, Edge.EXACT, vec, vec, vec, dense=True)

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        run = WIDE_BYTES // problem.dtype.size_bytes if self.whole_runs and fit.dense else fit.vec_c
        return {"kM": problem.m, "kN": problem.n, "kK": problem.k, "kRun": run, "kDense": fit.dense}

    @property
    def cta_products(self) -> int:
        return self.tile.matrices

    @property
    def whole_runs(self) -> bool:
        """Whether matrices lie in shared memory as in device memory, with C in the place of A and B."""
        return self.pipeline.load is Load.CP_ASYNC

    def parts(self, problem: Problem) -> int:
        """Parts of products that the threads of a CTA compute."""
        tile = self.tile
        return tile.matrices * -(-problem.m // tile.thread_m) * -(-problem.n // tile.thread_n)

    def loaded_elements(self, problem: Problem) -> float:
        return problem.batch * problem.k * (problem.m + problem.n)

    def held_bytes(self, problem: Problem) -> int:
        """Bytes of shared memory for the matrices of a CTA's products."""
        return held_bytes(problem, self.tile.matrices, self.pipeline.load)

    @property
    def start_bytes(self) -> int:
        """Bytes of shared memory, declared in the text, for the distances to the matrices of a CTA's products."""
        return _START_BYTES * self.tile.matrices

    def ctas_along_x(self, problem: Problem, sm_count: int) -> int:
        return -(-problem.batch // self.tile.matrices)

    def launch_config(self, problem: Problem, sm_count: int) -> LaunchConfig:
        """CTAs of several products each, along x."""
        grid = self.ctas_along_x(problem, sm_count), 1, 1
        return LaunchConfig(grid, self.block, self.held_bytes(problem), self.start_bytes)

    def registers(self, fit: Fit, dtype: DType) -> int:
        return min(thread_registers(self.tile.thread_m, self.tile.thread_n, dtype), REGISTERS_PER_SM // self.threads)
