"""Bulk tensor copies: one thread of a warp of its own starts copies of whole tiles, which the device carries out alone,
and where they pay.

No thread that multiplies spends an instruction on them, and each of its warps waits for the tiles alone: the block has
no barrier. That pays where C is narrow, so that memory decides.
"""

from .arch import Arch
from .config import Config, Value
from .family import Constraint, Parameter, family_in
from .problem import Problem
from .source import TensorBox
from .spread import spread
from .tiling import WIDE_BYTES, clustered, read_along_k

__all__ = ["BULK", "BULK_FITS", "BULK_PAYS", "boxes", "bulk", "depth_worth", "loaders", "or_bulk", "unbulked"]

_ROW_BYTES = 128
"""Of a tile whose rows run along k in shared memory: so much of each lies there before the next row's."""
_MOST_BOX = 256
"""Elements along a side of what one copy brings."""
_ALIGNED = 1024
"""Tiles take a multiple of so many bytes, so that all of them begin at one."""
_NARROW = 32
"""Rows or columns of C up to which memory decides."""
_DEEPEST = 256
"""Steps of k of tiles that no other copies fill."""
_BYTES_AHEAD = range(60 << 10, 200 << 10)
"""What a block keeps on its way."""


def bulk(config: Config) -> bool:
    """Whether a config's tiles come by bulk tensor copies."""
    return config["bulk"] == 1


def loaders(config: Config) -> int:
    """Threads of a block that copy and do not multiply."""
    return 32 * config.number("bulk")


def boxes(problem: Problem, config: Config) -> tuple[TensorBox, ...]:
    """What a copy brings of A and of B."""
    if not bulk(config):
        return ()
    made, depth = [], config.number("block_k")
    for operand, extent in (("a", config.number("block_m")), ("b", config.number("block_n"))):
        along = read_along_k(problem, config, operand)
        row = _ROW_BYTES // problem.dtype.size_bytes
        made.append(TensorBox(extent, row, True) if along else TensorBox(depth, extent, False))
    return tuple(made)


def _narrow(problem: Problem) -> bool:
    return min(problem.m, problem.n) <= _NARROW


def _lies(problem: Problem, config: Config, arch: Arch) -> bool:
    return not bulk(config) or all(
        config.number(f"{operand}_k_inner") == read_along_k(problem, config, operand) for operand in "ab"
    )


def _boxes_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    size = problem.dtype.size_bytes
    return all(
        max(box.rows, box.cols) <= _MOST_BOX and box.rows * box.cols * size % _ALIGNED == 0
        for box in boxes(problem, config)
    )


def _rows_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    inner = any(config.number(f"{operand}_k_inner") for operand in "ab")
    return not bulk(config) or not inner or config.number("block_k") * problem.dtype.size_bytes % _ROW_BYTES == 0


BULK = Parameter(
    "bulk",
    "bu",
    (0, 1),
    "1 = a warp of its own starts copies of whole tiles",
    lambda problem, value: value == 0 or _narrow(problem),
    silent=True,
    constant=False,
)
BULK_FITS = (
    Constraint(
        "the device has bulk tensor copies",
        lambda problem, config, arch: not bulk(config) or "bulk" in arch.instructions,
    ),
    Constraint("bulk copies leave k innermost in tiles where it is innermost in memory, and only there", _lies),
    Constraint(f"block_k {{block_k}} of tiles with k innermost is a multiple of {_ROW_BYTES} bytes", _rows_fit),
    Constraint(
        f"a bulk copy brings at most {_MOST_BOX} by {_MOST_BOX} elements, a multiple of {_ALIGNED} bytes", _boxes_fit
    ),
    Constraint(
        f"rows are aligned to {WIDE_BYTES} bytes for bulk copies: vec_a {{vec_a}} and vec_b {{vec_b}} are as wide",
        lambda problem, config, arch: not bulk(config) or all(
            config.number(vec) * problem.dtype.size_bytes == WIDE_BYTES for vec in ("vec_a", "vec_b")
        ),
    ),
    Constraint(
        "bulk copies take the place of those by cp.async, together for all slices of a block that is in no cluster and "
        "has one part of one tile of C",
        lambda problem, config, arch: not bulk(config) or (
            config["cp_async"] == 1
            and not spread(config)
            and config["apart"] == 0
            and not clustered(config)
            and config["stream_k"] == 0
        ),
    ),
    Constraint(
        "tiles that come by bulk copies are for threads with powers of two, not {thread_m} rows and {thread_n} columns",
        lambda problem, config, arch: not bulk(config) or not family_in(config).uneven(config),
    ),
    Constraint(
        "bulk copies put zeros where a matrix ends: edge {edge} has no use for them",
        lambda problem, config, arch: not bulk(config) or config["edge"] != "pad",
    ),
    Constraint(
        f"tiles of {_DEEPEST} steps of k are for bulk copies",
        lambda problem, config, arch: bulk(config) or config.number("block_k") < _DEEPEST,
    ),
)  # fmt: skip


def _pays(problem: Problem, config: Config, arch: Arch) -> bool:
    if not bulk(config):
        return True
    depth, ahead = config.number("block_k"), config.number("stages") - 1
    area = config.number("block_m") + config.number("block_n")
    return (
        "griddepcontrol" in arch.instructions
        and ahead * depth * area * problem.dtype.size_bytes in _BYTES_AHEAD
        and 8 <= depth // config.number("slices") <= 32
        and family_in(config).threads(config) >= 160
        and depth * ahead * config.number("split_k") <= problem.k
        and config["min_blocks"] == 1
    )


BULK_PAYS = Constraint("bulk copies fill deep tiles of narrow results", _pays)


def or_bulk(rule: Constraint) -> Constraint:
    """Advice on tiles and clusters that configs with bulk copies need not keep to: they have their own."""
    return Constraint(
        f"{rule.reason}, or tiles come by bulk copies",
        lambda problem, config, arch: bulk(config) or rule.holds(problem, config, arch),
    )


def unbulked(config: Config) -> Config:
    """The config, its tiles filled by cp.async, which rows need not be aligned for."""
    changed: dict[str, Value] = {"bulk": 0, "block_k": min(config.number("block_k"), _DEEPEST // 2)}
    return Config(config.family, tuple((name, changed.get(name, value)) for name, value in config.values))


def depth_worth(problem: Problem, value: Value) -> bool:
    """Whether tiles of so many steps of k are tried: the deepest only where bulk copies are."""
    return value != _DEEPEST or _narrow(problem)
