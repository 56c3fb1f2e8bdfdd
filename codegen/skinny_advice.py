"""What a search tries of the `skinny` family, and what it leaves out as hopeless."""

from .arch import Arch
from .config import Config, Value
from .family import Constraint
from .overlap import WARM_L2_PAYS
from .problem import Problem
from .skinny_sizes import (
    along_k,
    easy_registers,
    large,
    long_side,
    part_elements,
    round_steps,
    slice_steps,
    smem_bytes,
    sum_elements,
    threads,
    tile_k,
    tile_l,
)
from .tiling import EDGES_PAY, registers_for, widest

__all__ = ["ADVICE", "MIN_BLOCKS", "count_worth", "short_worth", "split_worth"]

MIN_BLOCKS = (1, 2, 3, 4, 6, 8)
"""Blocks that the compiler can be asked to leave room for."""
_MOST_SHORT = 32
"""The longest short side for which the family is offered to a search."""
_LEAST_STAGED, _MOST_STAGED_BYTES = 128, 40960
"""Steps of k of the small operand staged at least, and its bytes in shared memory at most."""
_MOST_RESIDENT = 1024
"""Threads of a multiprocessor beyond which a search does not ask for more."""


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def short_worth(problem: Problem, value: Value) -> bool:
    """Whether the side that `short_n` names is short, and not the longer one."""
    short, long = (problem.n, problem.m) if value else (problem.m, problem.n)
    return short <= min(_MOST_SHORT, long)


def count_worth(problem: Problem, value: Value) -> bool:
    """Whether one block, or two, cover the short side without much to spare."""
    short = min(problem.m, problem.n)
    return value == _power_of_two(short) or (value == 16 and 16 < short <= _MOST_SHORT)


def split_worth(problem: Problem, value: Value) -> bool:
    """Whether k is long enough to be split so often."""
    # Fewer than 32 steps of k are not worth a sum of their own.
    return value == 1 or (isinstance(value, int) and 32 * value <= problem.k)


def _bytes_together(problem: Problem, config: Config, arch: Arch) -> bool:
    size, lanes, vec = problem.dtype.size_bytes, config.number("lanes_k"), config.number("vec")
    if along_k(problem, config):
        return lanes * vec * size >= 128 or lanes * vec >= problem.k
    together = 32 // lanes * vec
    enough = together * size >= 64 and (lanes == 1 or config.number("warps_l") == 1)
    return enough or lanes == min(32, _power_of_two(-(-32 * vec // max(1, long_side(problem, config)))))


def _reads_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    # Each 16 bytes of the small operand, read from shared memory, should feed 16 multiply-adds in float.
    span, sums = config.number("span"), sum_elements(config) * problem.dtype.size_bytes
    if sums > 512:
        return False
    return config.number("count") < 8 or span >= 4 or (sums >= 256 and not along_k(problem, config))


def _loads_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    loaded = part_elements(config) * problem.dtype.size_bytes
    if config.number("cp_async"):
        return 32 <= loaded <= 128 and 128 <= loaded * config.number("stages") <= 512
    return 64 <= loaded <= (256 if config.number("count") == 1 else 128)


def _tiles(problem: Problem, config: Config) -> int:
    """Parts of C that a block, or some that split k, compute."""
    short = min(problem.m, problem.n)
    return -(-long_side(problem, config) // tile_l(config)) * -(-short // config.number("count"))


def _tile_fits(problem: Problem, config: Config, arch: Arch) -> bool:
    long, step = long_side(problem, config), tile_k(config)
    wide = tile_l(config) < 2 * long or (config.number("warps_l") == 1 and config.number("lanes_k") > 1)
    return wide and (step < 2 * problem.k or config.number("warps_k") == 1)


def _split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    tiles, split = _tiles(problem, config), config.number("split_k")
    parts = slice_steps(problem, config) // tile_k(config)  # of a block, one after another
    running = tiles * split * threads(config)
    if split > 1 and (parts < max(2, config.number("stages")) or tiles * split > 1024):
        return False
    if split * sum_elements(config) > 128 * config.number("warps_k") * config.number("lanes_k"):
        return False  # the last block adds up more than 128 sums of each thread
    fills = running >= 2**15 and tiles * split >= 96
    return fills or parts <= 8 or split == 64


def _staged_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    step = round_steps(config)
    needed = max(_LEAST_STAGED, step, _power_of_two(slice_steps(problem, config)))
    room = _power_of_two(_MOST_STAGED_BYTES // (config.number("count") * problem.dtype.size_bytes) // 2 + 1)
    return config["staged"] == min(needed, max(step, _LEAST_STAGED, min(4096, room)))


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    """The most blocks that a multiprocessor can hold without spilling."""
    size, smem = threads(config), smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes
    easy = easy_registers(problem.dtype, config)
    allowed = [
        blocks
        for blocks in MIN_BLOCKS
        if easy <= registers_for(size, blocks)
        and blocks * size <= max(_MOST_RESIDENT, size)
        and blocks * smem <= arch.smem_per_sm_bytes
    ]
    return bool(allowed) and config["min_blocks"] == max(allowed)


ADVICE = (
    Constraint(
        "loads are as wide as the stored rows of the large operand allow",
        lambda problem, config, arch: config["vec"] == widest(problem, large(config)),
    ),
    Constraint("lanes of a warp read 64 bytes side by side", _bytes_together),
    Constraint("what is read of shared memory feeds many multiply-adds", _reads_pay),
    Constraint("a thread has some hundred bytes on their way", _loads_pay),
    Constraint(
        "a block has 128 to 512 threads",
        lambda problem, config, arch: 128 <= threads(config) <= 512,
    ),
    Constraint("a block's part of C and of k is not much larger than the problem", _tile_fits),
    Constraint("blocks fill the device, and add up few sums in the end", _split_pays),
    Constraint("the small operand is staged at one go if there is room", _staged_pays),
    Constraint("the compiler is held to the registers that let most blocks run", _residency_pays),
    WARM_L2_PAYS,
    Constraint(
        "parts are asked for where cp.async keeps several on their way",
        lambda problem, config, arch: config["warm_l2"] == 0 or config["cp_async"] == 1,
    ),
    EDGES_PAY,
)
