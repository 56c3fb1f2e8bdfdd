"""How sums come to C at the end of a kernel: parameters that families of tiles share."""

from .config import Config, Value
from .family import Constraint, Parameter
from .problem import Problem
from .tiling import clustered, splits, tail, widest

__all__ = [
    "ATOMIC",
    "ATOMIC_FITS",
    "SHORT_K",
    "STAGED_C",
    "STAGED_C_FITS",
    "STREAM_C",
    "atomic",
    "sharers",
    "staged_elements",
    "with_pieces",
]

SHORT_K = 128
"""Up to so many steps of k it counts how C is written."""
_MANY, _MANY_SUMS = 8, 1 << 14
"""Blocks, and sums of all of them, from which on several of those that share a tile add up."""
_MOST_SHARERS = 16
_STREAMED_BYTES, _UNCACHED_BYTES = 1 << 24, 1 << 25
"""Matrices from which on it may gain to let caches drop C first, and of which caches cannot hold much anyway."""


def _written(problem: Problem, least_bytes: int) -> bool:
    c_bytes = problem.m * problem.n * problem.dtype.size_bytes
    return problem.k <= SHORT_K and c_bytes >= least_bytes


def _staged_pays(problem: Problem, value: Value) -> bool:
    # Elsewhere threads write vectors, which fill whole sectors of memory by themselves: longer parts of rows pay where
    # much is written and little computed.
    return value == 0 or widest(problem, "c") == 1 or _written(problem, _UNCACHED_BYTES)


def _stream_pays(problem: Problem, value: Value) -> bool:
    return value == 0 or _written(problem, _STREAMED_BYTES)


STAGED_C = Parameter(
    "staged_c",
    "sc",
    (0, 1),
    "1 = sums pass through shared memory, so that lanes write neighbours in C",
    _staged_pays,
    silent=True,
)
STAGED_C_FITS = Constraint(
    "blocks of a cluster write their own sums: others still read their shared memory",
    lambda problem, config, arch: config["staged_c"] == 0 or not clustered(config),
    "!STAGED_C || !CLUSTER",
)


STREAM_C = Parameter(
    "stream_c",
    "y",
    (0, 1),
    "1 = C is written past the caches, as far as they allow",
    _stream_pays,
    silent=True,
    constant=False,
)


def staged_elements(warps: int, band: int, warp_n: int, written_rows: int, banks: int) -> int:
    """Elements of shared memory through which sums pass, of each thread's at least a row at a time.

    That is `band` rows of C for each of `warps`. Lanes put sums down in `written_rows` rows at a time, and `banks`
    elements are as wide as all banks of shared memory.
    """
    return warps * band * (warp_n if warp_n % banks else warp_n + banks // written_rows)


ATOMIC = Parameter(
    "atomic", "at", (0, 1), "1 = they add up in one tile by atomics: never quite the same bits again", silent=True
)
"""Searched only where the user asks for it: no file of configs/spaces has it."""


def atomic(config: Config) -> bool:
    """Whether the blocks that share a tile of C add to one tile in memory, in the order in which they come."""
    return config["atomic"] == 1


def sharers(config: Config) -> int:
    """How many of the blocks that share a tile of C add up a part of it each, once all sums are there; 1 where the last
    one to come adds up all: waiting for each other costs more than reading few sums."""
    if splits(config) < _MANY or tail(config) > 1 or clustered(config) or atomic(config) or config["staged_c"] == 1:
        return 1
    if splits(config) * config.number("block_m") * config.number("block_n") < _MANY_SUMS:
        return 1
    return min(_MOST_SHARERS, splits(config) // 8 * 8)


def with_pieces(elements: int, threads: int, wide: int, config: Config) -> int:
    """Elements of shared memory that are enough, too, for what threads make of the sums of several blocks: a vector of
    `wide` elements each, and one for the block."""
    pieces = (threads + 1) * wide
    # Asked last, for few need them: a space is pruned by what is known first.
    return pieces if pieces > elements and sharers(config) > 1 else elements


ATOMIC_FITS = (
    Constraint(
        "sums are added by atomics where blocks share out k: split_k {split_k} is above 1",
        lambda problem, config, arch: not atomic(config) or config.number("split_k") > 1,
        "!ATOMIC || SPLIT_K > 1",
    ),
    Constraint(
        "blocks of a cluster add up in shared memory, not by atomics",
        lambda problem, config, arch: not atomic(config) or not clustered(config),
        "!ATOMIC || !CLUSTER",
    ),
    Constraint(
        "sums are added by atomics where all tiles of C are shared, tail {tail} is 1",
        lambda problem, config, arch: not atomic(config) or config["tail"] == 1,
        "!ATOMIC || TAIL == 1",
    ),
)
