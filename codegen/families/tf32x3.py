"""The `tf32x3` family: float on the tensor cores, by products of TF32 terms, split as fragments are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..cost import Cost
from ..fit import Fit, FitRule
from ..leaf import option
from ..legality import Rule, needs
from ..mechanisms.blocked import Epilogue, WarpTile, registers_held_to
from ..mechanisms.fragments import FRAGMENT_FIT_RULES, FRAGMENT_RULES, STEP, FragmentConfig, FragmentLaunch
from ..mechanisms.operands import Fragments
from ..mechanisms.split import Split
from ..mechanisms.split_terms import PROMISE_RULES
from ..problem import DType, Grade

_RATE = 0.33
"""Share of the tensor cores' rate that its products reached on an H200: docs/experiments/model.md."""
_LEAST_INTERVALS = 6
"""Least promotion intervals of k with which each element keeps its bound: docs/experiments/errors.md derives it."""


@dataclass(frozen=True, slots=True)
class Tf32x3Tile(WarpTile):
    """Sizes of the block tile and the warp tile."""

    block_m: int = option(64, 16, 32, 96, 128, 192, 256, meaning="rows of C a CTA computes")
    block_n: int = option(64, 8, 16, 32, 96, 128, 192, 256, meaning="columns of C a CTA computes")
    block_k: int = option(32, 8, 16, 64, meaning="steps of k that a tile covers")
    warp_m: int = option(32, 16, 64, meaning="rows of C a warp computes")
    warp_n: int = option(32, 8, 16, 64, meaning="columns of C a warp computes")
    slices: int = option(1, 2, 4, 8, meaning="sliced-K: groups of warps that share out the k of each tile")

    @property
    def mma_m(self) -> int:
        """Rows of C of one instruction."""
        return 16

    @property
    def lane_n(self) -> int:
        """Columns of C that a thread holds elements of."""
        return self.warp_n // 4


@dataclass(frozen=True, slots=True)
class Tf32x3Pipeline:
    """The way of tiles of A and B to shared memory by cp.async, and from there to the tensor cores."""

    promote: int = option(32, 16, 64, meaning="steps of k after which the tensor cores' sums are added up in float")
    stages: int = option(3, 2, 4, 5, meaning="tiles that shared memory holds at a time")
    fragments: Fragments = option(Fragments.DOUBLE, Fragments.SINGLE, meaning="fragment buffering of operands")
    interleave: int = option(1, 2, 4, meaning="groups of a tile's cp.async copies, interleaved with its instructions")


_RULES: tuple[Rule["Tf32x3Config"], ...] = (
    *PROMISE_RULES,
    needs("mma.m16n8k8", "the device multiplies TF32 by mma.m16n8k8"),
    *FRAGMENT_RULES,
)
_FIT_RULES = (
    *FRAGMENT_FIT_RULES,
    FitRule(
        "a lane stores the two neighbours that it holds of a row of C at a time, or as many of its {c.tile.lane_n} as "
        "pass through shared memory",
        lambda problem, config, fit: fit.vec_c <= 2 or (config.epilogue.shared and config.tile.lane_n % fit.vec_c == 0),
    ),
)


@dataclass(frozen=True, slots=True)
class Tf32x3Config(FragmentConfig):
    """A variant of the family."""

    family = "tf32x3"
    title = "float by products of TF32 terms on the tensor cores, split as fragments are read"
    template = "tf32x3.cu.jinja"
    order = 7
    rules = _RULES
    fit_rules = _FIT_RULES
    tensor_cores = True
    substitutes: ClassVar[tuple[Mapping[str, Any], ...]] = ({"interleave": 1}, {"interleave": 1, "stages": 2})
    joined = (("", ("block_m", "block_n", "block_k")), ("warp", ("warp_m", "warp_n")))

    tile: Tf32x3Tile = Tf32x3Tile()
    pipeline: Tf32x3Pipeline = Tf32x3Pipeline()
    split: Split = Split()
    epilogue: Epilogue = Epilogue()
    launch: FragmentLaunch = FragmentLaunch()

    @property
    def accuracy(self) -> Grade:
        return Grade.ELEMENTWISE

    @property
    def least_k(self) -> int:
        """Fewest steps of k multiplied as TF32 terms. Fewer are multiplied in float, so elements keep their bound."""
        return _LEAST_INTERVALS * self.pipeline.promote

    @property
    def products(self) -> int:
        return 3

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        return Cost(smem_loads=self.tile.smem_loads, ahead=self.pipeline.stages - 1, rate=_RATE)

    # --- resources

    def _operand_registers(self) -> int:
        return (self.tile.warp_m + self.tile.warp_n) * STEP // 32

    def least_registers(self, fit: Fit, dtype: DType) -> int:
        """Least registers of a thread; with fewer some spill."""
        return 2 * self.tile.accumulators + 2 * self._operand_registers() + 40

    def registers(self, fit: Fit, dtype: DType) -> int:
        """Registers that the compiler takes, from above: it reads and splits operands of all steps of a tile early."""
        if self.tile.accumulators >= 64:
            return registers_held_to(self)  # the compiler takes all that it may
        steps = self.tile.block_k // self.tile.slices
        ahead = 32 if steps <= 16 else 72 if steps <= 32 else 104
        if steps > self.pipeline.promote:
            ahead += 16
        copies = sum(self.copies(fit))
        if copies > 8:
            ahead += copies + 8
        if self.stream_ctas_per_sm or self.persistent_tiles > 1:
            ahead += 48
        if self.clustered or self.epilogue.shared:
            ahead += 16
        return min(registers_held_to(self), self.least_registers(fit, dtype) + ahead)
