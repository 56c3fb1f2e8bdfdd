"""The epilogue and the rules on tiles, copies and registers that families of block tiles share."""

from dataclasses import dataclass
from typing import Any, Self

from ..arch import REGISTERS_PER_SM
from ..config import Config
from ..fit import WIDTHS, Fit, FitRule
from ..leaf import option
from ..legality import Rule
from ..problem import Problem
from ..target import Target
from .operands import MOST_COPIES, WIDE_BYTES, Fragments, runs_along_k, widest

_MANY, _MANY_ELEMENTS, _MOST_COOPERATIVE = 8, 1 << 14, 16
"""Least CTAs of a tile, and least elements of all their tiles, for several CTAs to add up; and the most that add up."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The way of accumulators to C."""

    shared: bool = option(False, meaning="accumulators pass through shared memory, so that lanes write neighbours in C")
    evict_first: bool = option(False, meaning="C is written by evict-first (streaming) stores")


MOST_ACCUMULATORS = 64
"""Most elements of C that a thread of a warp tile can hold in registers, where each takes two words or two sums."""


class WarpTile:
    """The sizes that follow from a block tile, block_m by block_n, and its warp tiles, warp_m by warp_n."""

    __slots__ = ()

    @property
    def fitted(self) -> bool:
        """Whether a side of the block tile is meant for a C that is as narrow as the tile."""
        return False

    @property
    def warps(self: Any) -> int:
        """Warps of a CTA, or of a slice of it, rounded down where the block tile is no multiple of a warp tile."""
        return max(1, int(self.block_m // self.warp_m * (self.block_n // self.warp_n)))

    @property
    def accumulators(self: Any) -> int:
        """Elements of C that a thread holds."""
        return int(self.warp_m * self.warp_n // 32)

    @property
    def smem_loads(self: Any) -> float:
        """Elements that pass through shared memory for a multiply-add of a thread: those that its warp reads for a warp
        tile, and those that are written for a block tile."""
        return float(1 / self.warp_m + 1 / self.warp_n + 1 / self.block_m + 1 / self.block_n)


def registers_for(threads: int, ctas: int) -> int:
    """Most registers of a thread with which `ctas` CTAs of `threads` threads fit on an SM of every known device."""
    # Each of the four schedulers has a quarter of the registers and takes whole warps.
    warps = -(-threads // 32) * ctas
    return min(255, REGISTERS_PER_SM // (32 * 4 * -(-warps // 4)) // 8 * 8)


def registers_held_to(config: Config) -> int:
    """Registers that the launch bounds leave a thread."""
    return registers_for(config.threads, config.min_ctas)


def _ctas_fit(problem: Problem, config: Any, target: Target) -> bool:
    arch, ctas = target.arch, config.min_ctas
    smem_bytes = config.smem_bytes(problem.dtype) + arch.smem_reserved_bytes
    return bool(config.threads * ctas <= arch.max_threads_per_sm and smem_bytes * ctas <= arch.smem_per_sm_bytes)


CTAS_FIT: Rule[Any] = Rule("threads and shared memory of {c.min_ctas} CTAs fit on an SM", _ctas_fit)
REGISTERS_FIT = FitRule(
    "registers of {c.min_ctas} CTAs fit on an SM",
    lambda problem, config, fit: config.least_registers(fit, problem.dtype) <= registers_held_to(config),
)

WARP_RULES: tuple[Rule[Any], ...] = (
    Rule(
        "block_m {c.tile.block_m} is a multiple of the rows of a warp, {c.tile.warp_m}",
        lambda problem, config, target: config.tile.block_m % config.tile.warp_m == 0,
    ),
    Rule(
        "block_n {c.tile.block_n} is a multiple of the columns of a warp, {c.tile.warp_n}",
        lambda problem, config, target: config.tile.block_n % config.tile.warp_n == 0,
    ),
)
"""The rules on warp tiles."""
ACCUMULATORS_FIT: Rule[Any] = Rule(
    f"a thread holds at most {MOST_ACCUMULATORS} elements of C",
    lambda problem, config, target: config.tile.accumulators <= MOST_ACCUMULATORS,
)

TILE_RULES: tuple[Rule[Any], ...] = (
    *WARP_RULES,
    Rule(
        "the accumulators of a thread, {c.tile.accumulators}, are as many for each of {c.tile.slices} slices",
        lambda problem, config, target: config.tile.accumulators % config.tile.slices == 0,
    ),
)
"""The rules on block tiles of warp tiles."""

TILE_FIT_RULES: tuple[FitRule, ...] = (
    FitRule(
        "the accumulators of a thread, {c.tile.accumulators}, are whole vectors for each of {c.tile.slices} slices",
        lambda problem, config, fit: config.tile.accumulators % (config.tile.slices * fit.vec_c) == 0,
    ),
    FitRule(
        f"a thread copies at most {MOST_COPIES} elements of an operand for a tile",
        lambda problem, config, fit: max(config.copied("a", fit.vec_a), config.copied("b", fit.vec_b)) <= MOST_COPIES,
    ),
)
"""The rules on vectors of block tiles of warp tiles."""

BLOCKED_RULES: tuple[Rule[Any], ...] = (
    Rule(
        "CTAs of a cluster write their own accumulators, not through shared memory that others still read",
        lambda problem, config, target: not config.epilogue.shared or not config.clustered,
    ),
    Rule(
        "tiles are prefetched to L2 where the kernel before does not write them and the CTA has one tile of C",
        lambda problem, config, target: (
            not config.launch.l2_prefetch or not (any(config.packs) or config.stream_ctas_per_sm)
        ),
    ),
)
"""The rules on epilogue and launch."""


class PrefetchingConfig(Config):
    """A config whose CTAs can prefetch their first tiles to L2 while the kernel before it ends."""

    __slots__ = ()

    pdl = True

    def for_target(self, target: Target) -> Self:
        """The config without the prefetch on a device without PDL, where a kernel would wait for what it prefetches
        anyway."""
        return self if "griddepcontrol" in target.arch.instructions else self.changed(l2_prefetch=False)


class BlockedConfig(PrefetchingConfig):
    """A config of a family of block tiles, each shared out among warps."""

    __slots__ = ()

    tile: Any
    pipeline: Any
    epilogue: Epilogue
    launch: Any

    @property
    def multiplying_threads(self) -> int:
        """Threads of a CTA that multiply."""
        return int(32 * self.tile.warps * self.tile.slices)

    @property
    def block(self) -> tuple[int, int, int]:
        return self.multiplying_threads + self.producer_threads, 1, 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        return self.tile.block_m, self.tile.block_n, self.tile.block_k

    @property
    def serves_groups(self) -> bool:
        return self.persistent_tiles == 1 and self.copying_threads > 0 and not any(self.packs)

    def widest_vectors(self, problem: Problem, aligned: bool) -> tuple[int, int, int]:
        wide = WIDE_BYTES // problem.dtype.size_bytes
        rows = [widest(problem, operand) if aligned else 1 for operand in "abc"]
        vec_a, vec_b = (wide if packs else row for packs, row in zip(self.packs, rows))
        return vec_a, vec_b, rows[2]

    def extent(self, operand: str) -> int:
        """Rows of A or columns of B in a tile."""
        return int(self.tile.block_m if operand == "a" else self.tile.block_n)

    def copied(self, operand: str, vec: int) -> int:
        """Most elements of A or B that a thread copies for a tile in vectors of `vec` elements."""
        raise NotImplementedError

    def copies(self, fit: Fit) -> tuple[int, int]:
        """Copies of A and of B that a thread starts for a tile."""
        return self.copied("a", fit.vec_a) // fit.vec_a, self.copied("b", fit.vec_b) // fit.vec_b

    @property
    def buffers(self) -> int:
        """Sets of registers for a step's operands."""
        return 2 if self.pipeline.fragments is Fragments.DOUBLE else 1

    @property
    def copying_threads(self) -> int:
        """Threads that share out the copies of a tile, 0 where none copies."""
        return self.multiplying_threads

    def copiers(self, operand: str, vec: int, along_k: bool) -> int:
        """Threads that copy A or B in vectors of `vec` elements, along k if its stored rows run along it."""
        raise NotImplementedError

    def along_k(self, problem: Problem) -> tuple[bool, bool]:
        """Whether a row of A, and of B, runs along k where tiles are copied from."""
        a, b = (runs_along_k(problem, operand) and not pack for operand, pack in zip("ab", self.packs))
        return a, b

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        stored: dict[str, int] = {"kVecC": fit.vec_c, "kGuarded": fit.guarded}
        if not self.copying_threads:
            return stored
        along_a, along_b = self.along_k(problem)
        copiers = {
            "kCopiersA": self.copiers("a", fit.vec_a, along_a),
            "kCopiersB": self.copiers("b", fit.vec_b, along_b),
        }
        widths = [vec for vec in WIDTHS if vec * problem.dtype.size_bytes <= WIDE_BYTES]
        fewest = min(self.copiers(x, vec, along) for x, along in (("a", along_a), ("b", along_b)) for vec in widths)
        counts = copiers if fewest < self.copying_threads else {}  # the same for all fits, which share a text
        return {"kVecA": fit.vec_a, "kVecB": fit.vec_b, **counts, **stored}

    @property
    def cooperative_ctas(self) -> int:
        # Where there is little to read, CTAs that wait for each other cost more time than they save.
        splits, elements = self.split_ctas, self.tile.block_m * self.tile.block_n
        if splits < _MANY or self.clustered or self.epilogue.shared or splits * elements < _MANY_ELEMENTS:
            return 1
        return min(_MOST_COOPERATIVE, splits // 8 * 8)

    def passing_elements(self, band: int, written_rows: int, wide: int) -> int:
        """Elements of shared memory through which accumulators pass, at least a row of each thread's at a time.

        Each warp has room for `band` rows of C. Its lanes write to `written_rows` rows at a time. All banks of shared
        memory together are as wide as 8 loads of `wide` elements.
        """
        warp_n, banks = self.tile.warp_n, 8 * wide
        return int(self.tile.warps * band * (warp_n if warp_n % banks else warp_n + banks // written_rows))

    def most_elements(self, stages: int, passing: int, wide: int) -> int:
        """Most elements of shared memory that a CTA needs at a time. The tiles take `stages` of them. Later the
        accumulators of slices or of a cluster's CTA take their place, `passing` elements on their way to C, or, where
        CTAs add up cooperatively, a load of `wide` elements for each thread and one for the CTA."""
        elements = stages
        if self.tile.slices > 1 or self.clustered:
            elements = max(elements, self.tile.slices * self.tile.block_m * self.tile.block_n)
        elif passing > elements and self.epilogue.shared:
            return passing
        # `cooperative_ctas` comes last, as few configs need it: a listing prunes by the parameters that are read first.
        pieces = (self.multiplying_threads + 1) * wide
        return pieces if pieces > elements and self.cooperative_ctas > 1 else elements
