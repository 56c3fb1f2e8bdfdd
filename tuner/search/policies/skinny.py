"""What searches try of the `skinny` family, and what the model has to know of it."""

from typing import Any

from ....codegen.families.skinny import Side, SkinnyConfig
from ....codegen.fit import Fit, nearest_fit
from ....codegen.leaf import Edge
from ....codegen.legality import Rule
from ....codegen.mechanisms.blocked import registers_held_to
from ....codegen.mechanisms.operands import Load, widest
from ....codegen.problem import Problem
from ....codegen.target import Target
from .blocked import L2_PREFETCH_SHORT, at_once, has_pdl
from .policy import Cost, Policy

_MOST_SHORT = 32
"""The longest short side for which searches try the family."""
_SHORT_PREFETCHED = 512
"""Steps of k up to which it pays to prefetch to L2 what is loaded to registers."""
_LEAST_RESIDENT, _MOST_RESIDENT_BYTES = 128, 40960
"""Steps of k of the small operand held at least, and its bytes in shared memory at most."""


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def _vec(problem: Problem, config: SkinnyConfig) -> int:
    """Elements of the large operand that one load moves."""
    fit = nearest_fit(problem, config)
    return max(fit.vec_a, fit.vec_b)


def _short_is_short(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    short, long = (problem.n, problem.m) if config.tile.short is Side.N else (problem.m, problem.n)
    return short <= min(_MOST_SHORT, long)


def _block_covers(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    short, block = min(problem.m, problem.n), config.tile.block_short
    return block == _power_of_two(short) or (block == 16 and 16 < short <= _MOST_SHORT)


def _reads_together(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    size, lanes, vec = problem.dtype.size_bytes, config.tile.lanes_k, _vec(problem, config)
    if config.along_k(problem):
        return lanes * vec * size >= 128 or lanes * vec >= problem.k
    enough = 32 // lanes * vec * size >= 64 and (lanes == 1 or config.tile.warps_long == 1)
    return enough or lanes == min(32, _power_of_two(-(-32 * vec // max(1, config.long_side(problem)))))


def _reads_pay(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    # Each 16 bytes of the small operand, read from shared memory, should feed 16 multiply-adds in float.
    accumulators = config.tile.accumulators * problem.dtype.size_bytes
    few_reads = config.tile.block_short < 8 or config.tile.thread_long >= 4
    return accumulators <= 512 and (few_reads or (accumulators >= 256 and not config.along_k(problem)))


def _loads_pay(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    loaded = config.tile.loaded * problem.dtype.size_bytes
    if config.pipeline.load is Load.CP_ASYNC:
        return 32 <= loaded <= 128 and 128 <= loaded * config.pipeline.stages <= 512
    return 64 <= loaded <= (256 if config.tile.block_short == 1 else 128)


def _tile_fits(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    tile = config.tile
    wide = tile.block_long < 2 * config.long_side(problem) or (tile.warps_long == 1 and tile.lanes_k > 1)
    return wide and (tile.block_k < 2 * problem.k or tile.warps_k == 1)


def _split_pays(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    tile, split = config.tile, config.split_ctas
    ctas = -(-config.long_side(problem) // tile.block_long) * -(-min(problem.m, problem.n) // tile.block_short) * split
    rounds = config.cta_k(problem) // tile.block_k  # of a CTA, one after another
    if split > 1 and (rounds < max(2, config.pipeline.stages) or ctas > 1024):
        return False
    if split * tile.accumulators > 128 * tile.warps_k * tile.lanes_k:
        return False  # the last CTA adds up more than 128 accumulators of each thread
    return rounds <= 8 or split == 64 or (ctas >= 96 and ctas * config.threads >= 2**15)


def _resident_pays(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    step = config.round_k
    needed = max(_LEAST_RESIDENT, step, _power_of_two(config.cta_k(problem)))
    room = _power_of_two(_MOST_RESIDENT_BYTES // (config.tile.block_short * problem.dtype.size_bytes) // 2 + 1)
    return config.pipeline.resident_k == min(needed, max(step, _LEAST_RESIDENT, min(4096, room)))


def _prefetch_pays(problem: Problem, config: SkinnyConfig, target: Target) -> bool:
    # To registers: 168 variants with 33 to 512 steps of k bring the best of their problems 1.1 to 5.4% in the mean,
    # however many CTAs they have, 293 with more 0 to 0.5% (H100s, CUDA 13.0, 2026-11-26).
    if not config.launch.l2_prefetch:
        return True
    by_cp_async = config.pipeline.load is Load.CP_ASYNC
    return has_pdl(target) and (at_once(problem, config, target) if by_cp_async else problem.k <= _SHORT_PREFETCHED)


def _easy_registers(problem: Problem, config: SkinnyConfig) -> int:
    """Registers with which nothing spills."""
    fit = nearest_fit(problem, config)
    addresses = 2 * config.tile.loaded // _vec(problem, config) + (5 if fit.edge is Edge.BOUNDS else 0)
    loaded = 0 if config.pipeline.load is Load.CP_ASYNC else 10
    return config.least_registers(fit, problem.dtype) + addresses + loaded + problem.dtype.size_bytes // 4 - 1


_ADVICE: tuple[Rule[SkinnyConfig], ...] = (
    Rule("the short side of C has at most 32 elements, and not more than the other", _short_is_short),
    Rule("one CTA, or two, cover the short side without much to spare", _block_covers),
    Rule(
        "CTAs that share out k have 32 steps each",
        lambda problem, config, target: config.split_ctas == 1 or 32 * config.split_ctas <= problem.k,
    ),
    Rule(
        "loads are as wide as the stored rows of the large operand allow",
        lambda problem, config, target: _vec(problem, config) == widest(problem, config.large),
    ),
    Rule("lanes of a warp read 64 bytes side by side", _reads_together),
    Rule("what is read of shared memory feeds many multiply-adds", _reads_pay),
    Rule("a thread has some hundred bytes on their way", _loads_pay),
    Rule("a CTA has 128 to 512 threads", lambda problem, config, target: 128 <= config.threads <= 512),
    Rule("the block tile and the k of a CTA are not much larger than the problem", _tile_fits),
    Rule("CTAs fill the device, and add up few accumulators in the end", _split_pays),
    Rule("the small operand is brought at one go if there is room", _resident_pays),
    Rule(
        "the compiler has the registers that it takes",
        lambda problem, config, target: _easy_registers(problem, config) <= registers_held_to(config),
    ),
    L2_PREFETCH_SHORT,
    Rule(
        "L2 prefetch is for kernels with PDL, by cp.async where all CTAs run at once, to registers where k is short",
        _prefetch_pays,
    ),
)


class _Skinny(Policy):
    instead = ({"load": Load.REGISTERS, "stages": 1},)
    advice = _ADVICE

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        tile, covered, split = config.tile, config.cta_k(problem), config.split_ctas
        in_flight = tile.loaded * config.pipeline.stages
        # The small operand, what stands still while more of it is brought, and what all CTAs of a tile add up.
        later = max(0, covered - 1) // config.pipeline.resident_k
        added = split * tile.block_short * tile.block_long if split > 1 else 0
        return Cost(
            smem_loads=0.5 / tile.thread_long + 2 * (config.pipeline.load is Load.CP_ASYNC) / tile.block_short,
            in_flight=in_flight,
            alone=tile.block_short * covered + later * in_flight * config.threads // 2 + added,
        )


POLICY = _Skinny()
