"""The `dmma` family: double precision on the fp64 tensor cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..cost import Cost
from ..fit import Fit
from ..leaf import option
from ..legality import Rule
from ..mechanisms.blocked import Epilogue, WarpTile, registers_held_to
from ..mechanisms.fragments import FRAGMENT_FIT_RULES, FRAGMENT_RULES, STEP, FragmentConfig, FragmentLaunch
from ..mechanisms.operands import Fragments
from ..mechanisms.split import Reduce, Split
from ..problem import DType

FITTED_M = (80, 112, 160)
"""Rows of block tiles that fit a C of few rows, where others would reach far beyond it."""
FITTED_N = (24, 40, 48, 56, 72, 80, 104, 112, 144, 160)
"""Columns of block tiles that fit a C of few columns, where others would reach far beyond it."""


@dataclass(frozen=True, slots=True)
class DmmaTile(WarpTile):
    """Sizes of the block tile, the warp tile and the instruction."""

    block_m: int = option(64, 16, 32, 48, 96, 128, 192, 256, *FITTED_M, meaning="rows of C a CTA computes")
    block_n: int = option(64, 8, 16, 32, 96, 128, 192, 256, *FITTED_N, meaning="columns of C a CTA computes")
    block_k: int = option(16, 8, 32, 64, meaning="steps of k that a tile covers")
    warp_m: int = option(32, 16, 48, 64, 80, 112, meaning="rows of C a warp computes")
    warp_n: int = option(32, 8, 16, 64, 24, 40, 48, 56, 72, 80, 104, 112, meaning="columns of C a warp computes")
    mma_k: int = option(8, 4, meaning="steps of k of one instruction: 16x8 elements of C, with 4 of them 8x8")
    slices: int = option(1, 2, 4, 8, meaning="sliced-K: groups of warps that share out the k of each tile")

    @property
    def mma_m(self) -> int:
        """Rows of C of one instruction."""
        return 8 if self.mma_k == 4 else 16

    @property
    def fitted(self) -> bool:
        """Whether a side of the block tile is meant for a C that is as narrow as the tile."""
        return self.block_m in FITTED_M or self.block_n in FITTED_N


@dataclass(frozen=True, slots=True)
class DmmaPipeline:
    """The way of tiles of A and B to shared memory by cp.async, and from there to registers."""

    stages: int = option(3, 2, 4, 5, meaning="tiles that shared memory holds at a time")
    fragments: Fragments = option(Fragments.DOUBLE, Fragments.SINGLE, meaning="fragment buffering of operands")
    interleave: int = option(1, 2, 4, meaning="groups of a tile's cp.async copies, interleaved with its instructions")


_RULES: tuple[Rule["DmmaConfig"], ...] = (
    Rule("the tensor cores multiply double", lambda problem, config, target: problem.dtype is DType.DOUBLE),
    Rule(
        "the device has fp64 tensor cores that multiply {c.tile.mma_k} steps of k",
        lambda problem, config, target: (
            ("dmma.m8n8k4" if config.tile.mma_k == 4 else "dmma.m16n8") in target.arch.instructions
        ),
    ),
    *FRAGMENT_RULES,
)


@dataclass(frozen=True, slots=True)
class DmmaConfig(FragmentConfig):
    """A variant of the family."""

    family = "dmma"
    title = "warp tiles fed from shared memory, by the fp64 tensor cores"
    template = "dmma.cu.jinja"
    order = 4
    rules = _RULES
    fit_rules = FRAGMENT_FIT_RULES
    tensor_cores = True
    substitutes: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"mma_k": 4},
        {"mma_k": 4, "interleave": 1},
        {"mma_k": 4, "interleave": 1, "stages": 2},
        {"mma_k": 4, "interleave": 1, "stages": 2, "reduce": Reduce.WORKSPACE},
        {"stages": 2},
    )
    joined = (("", ("block_m", "block_n", "block_k")), ("warp", ("warp_m", "warp_n")))

    tile: DmmaTile = DmmaTile()
    pipeline: DmmaPipeline = DmmaPipeline()
    split: Split = Split()
    epilogue: Epilogue = Epilogue()
    launch: FragmentLaunch = FragmentLaunch()

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        ahead, direct = self.pipeline.stages - 1, not self.epilogue.shared
        return Cost(smem_loads=self.tile.smem_loads, ahead=ahead, neighbours=2 * direct, beside=8 * direct)

    # --- resources

    def _operand_registers(self) -> int:
        return 2 * (self.tile.warp_m + self.tile.warp_n) * STEP // 32

    def least_registers(self, fit: Fit, dtype: DType) -> int:
        """Least registers of a thread; with fewer some spill."""
        held = 2 * self.tile.accumulators + self._operand_registers()
        if self.persistent_tiles > 1:
            held += 12  # the place of its next tile of C
        if self.pipeline.fragments is Fragments.DOUBLE:
            return held + self._operand_registers() + 28
        return held + 40

    def registers(self, fit: Fit, dtype: DType) -> int:
        """Registers that the compiler takes, estimated from above: it reads operands a step earlier than the text."""
        held, bound = 2 * self.tile.accumulators, registers_held_to(self)
        if held >= 128:
            return bound  # the compiler takes all that it may
        needed = 48 + held + 2 * self._operand_registers() + self.copied("a", fit.vec_a) + self.copied("b", fit.vec_b)
        if needed < bound and self.epilogue.shared:
            needed += 32
        if self.tile.fitted and self.pipeline.interleave > 1:
            needed += 24
        if self.persistent_tiles > 1:
            needed += 24
        if self.stream_ctas_per_sm:
            needed += 8
        return min(needed, bound)
