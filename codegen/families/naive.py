"""The `naive` family: one thread an element of C, straight from global memory."""

from dataclasses import dataclass

from ..arch import REGISTERS_PER_SM
from ..config import Config
from ..fit import Fit
from ..leaf import EdgePolicy, option
from ..problem import DType


@dataclass(frozen=True, slots=True)
class NaiveTile:
    """The tile of C that a CTA computes."""

    block_m: int = option(8, 1, 2, 4, 16, 32, meaning="rows of C a CTA computes")
    block_n: int = option(32, 1, 2, 4, 8, 16, 64, 128, 256, meaning="columns of C a CTA computes")
    unroll: int = option(4, 1, 2, 8, 16, meaning="steps of k unrolled")


@dataclass(frozen=True, slots=True)
class NaiveConfig(Config):
    """A variant of the family."""

    family = "naive"
    title = "one thread an element of C, straight from global memory"
    template = "naive.cu.jinja"
    plain = "plain/naive.cu.jinja"
    order = 0
    joined = (("", ("block_m", "block_n")),)

    tile: NaiveTile = NaiveTile()
    edge: EdgePolicy = option(EdgePolicy.FIT, meaning="what to do with shapes that the tiles do not divide")

    @property
    def block(self) -> tuple[int, int, int]:
        return self.tile.block_n, self.tile.block_m, 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        return self.tile.block_m, self.tile.block_n, 1

    @property
    def reuse(self) -> tuple[int, int]:
        return 1, 1

    def registers(self, fit: Fit, dtype: DType) -> int:
        # Two operands a step; the launch bounds hold the compiler to the registers that the CTA's threads can share.
        return min(44 + 2 * self.tile.unroll * dtype.size_bytes // 4, REGISTERS_PER_SM // self.threads)
