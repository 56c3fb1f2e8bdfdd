"""The `skinny` family: products with a short side, which read the large operand once at the memory's rate.

One side of C is short, m or n: of the other operand there is little, and each element of the large one is used only
that often. What counts is how many bytes are on their way from memory at a time.
"""

from .arch import Arch
from .config import Config, Value
from .family import EDGE, Constraint, Family, Parameter
from .problem import DType, Problem

__all__ = ["SKINNY"]

_WIDE_BYTES = 16
"""The widest load of a thread."""
_MOST_SHORT = 32
"""The longest short side for which the family is offered to a search."""
_MOST_LOADED = 64
"""Elements of the large operand that a thread loads at a time: each takes an instruction where vectors have one."""
_PART_ELEMENTS = 4096
"""Sums that warps exchange at a time, where the small operand does not take more shared memory anyway."""


def _sums(config: Config) -> int:
    """Elements of C that a thread computes."""
    return config.number("count") * config.number("span")


def _threads(config: Config) -> int:
    return 32 * config.number("warps_l") * config.number("warps_k")


def _tile_l(config: Config) -> int:
    """Elements of the long side that a block computes."""
    return config.number("warps_l") * 32 // config.number("lanes_k") * config.number("span")


def _tile_k(config: Config) -> int:
    """Steps of k that a block loads at a time."""
    return config.number("warps_k") * config.number("lanes_k") * config.number("depth")


def _part(config: Config) -> int:
    """Elements of the large operand that a thread loads at a time."""
    return config.number("span") * config.number("depth")


def _tile(config: Config) -> tuple[int, int, int]:
    short, long = config.number("count"), _tile_l(config)
    return (long, short, _tile_k(config)) if config.number("short_n") else (short, long, _tile_k(config))


def _rows_at_once(config: Config) -> int:
    """Short rows whose sums the warps exchange at a time."""
    rows, room = config.number("count"), max(config.number("count") * config.number("staged"), _PART_ELEMENTS)
    while rows > 1 and config.number("warps_k") * _tile_l(config) * rows > room:
        rows //= 2
    return rows


def _ring(config: Config) -> int:
    """Elements of the large operand in shared memory."""
    return config.number("cp_async") * config.number("stages") * _part(config) * _threads(config)


def _smem_elements(config: Config, wide: int) -> int:
    """What either form of the template needs, `wide` elements being 16 bytes."""
    count, staged = config.number("count"), config.number("staged")
    along_c = staged * (count if count <= wide else count + wide)
    along_k = count * (staged + 8)
    slots = config.number("warps_k") * _tile_l(config) * (_rows_at_once(config) + config.number("short_n"))
    return max(_ring(config) + max(along_c, along_k), slots)


def _registers_held_to(config: Config) -> int:
    """Registers that the launch bounds leave a thread."""
    return min(255, 65536 // (_threads(config) * config.number("min_blocks")) // 8 * 8)


def _least_registers(dtype: DType, config: Config) -> int:
    """Registers that a thread can do with; with fewer some are spilled."""
    words = dtype.size_bytes // 4
    return 28 + words * (_sums(config) + _part(config))


def _registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above."""
    return min(_registers_held_to(config), 2 * _least_registers(dtype, config))


def _short_side(problem: Problem) -> int:
    return min(problem.m, problem.n)


def _long_side(problem: Problem, config: Config) -> int:
    return problem.m if config.number("short_n") else problem.n


def _along_k(problem: Problem, config: Config) -> bool:
    """Whether stored rows of the large operand run along k; otherwise they run along C."""
    return not problem.trans_a if config.number("short_n") else problem.trans_b


def _row(problem: Problem, config: Config) -> int:
    """Elements of a stored row of the large operand."""
    return (problem.stored_a if config.number("short_n") else problem.stored_b)[1]


def _widest(problem: Problem, config: Config) -> int:
    """The widest vector of at most 16 bytes that divides the stored rows of the large operand."""
    width = _WIDE_BYTES // problem.dtype.size_bytes
    while _row(problem, config) % width:
        width //= 2
    return width


def _aligned(problem: Problem, config: Config, arch: Arch) -> bool:
    vec = config.number("vec")
    fits = vec * problem.dtype.size_bytes <= _WIDE_BYTES
    return fits and (config["edge"] == "pad" or _row(problem, config) % vec == 0)


def _vectors_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    return config.number("depth" if _along_k(problem, config) else "span") % config.number("vec") == 0


_CONSTRAINTS = (
    Constraint(
        "vec {vec} is at most 16 bytes and divides the stored rows of the large operand",
        _aligned,
        "VEC <= WIDE",
    ),
    Constraint(
        "vec {vec} divides span {span}, or depth {depth} where stored rows of the large operand run along k",
        _vectors_fit,
        "SPAN * DEPTH % VEC == 0",
    ),
    Constraint(
        "staged {staged} is a multiple of the steps of k that {stages} stages cover",
        lambda problem, config, arch: config.number("staged") % (_tile_k(config) * config.number("stages")) == 0,
        "STAGED % (TILE_K * STAGES) == 0",
    ),
    Constraint(
        f"a thread loads at most {_MOST_LOADED} elements at a time",
        lambda problem, config, arch: _part(config) <= _MOST_LOADED,
        f"SPAN * DEPTH <= {_MOST_LOADED}",
    ),
    Constraint(
        "cp.async has several stages, registers have one: not {stages}",
        lambda problem, config, arch: (config["stages"] == 1) == (not config.number("cp_async")),
        "(STAGES == 1) == !CP_ASYNC",
    ),
    Constraint(
        "the device has cp.async",
        lambda problem, config, arch: not config.number("cp_async") or "cp.async" in arch.instructions,
    ),
    Constraint(
        "registers of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: _least_registers(problem.dtype, config) <= _registers_held_to(config),
    ),
    Constraint(
        "threads and shared memory of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: (
            _threads(config) * config.number("min_blocks") <= arch.max_threads_per_sm
            and (SKINNY.smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes) * config.number("min_blocks")
            <= arch.smem_per_sm_bytes
        ),
    ),
)


class _Skinny(Family):
    """A family whose shared memory is padded by bytes, not by elements."""

    __slots__ = ()

    def smem_bytes(self, dtype: DType, config: Config) -> int:
        return _smem_elements(config, _WIDE_BYTES // dtype.size_bytes) * dtype.size_bytes


def _scalar(config: Config) -> Config:
    return Config(config.family, tuple((name, 1 if name == "vec" else value) for name, value in config.values))


SKINNY = _Skinny(
    name="skinny",
    title="a short side of C: the large operand streams through registers once, the small one waits in shared memory",
    template="skinny.cu.jinja",
    parameters=(
        Parameter("short_n", "n", (0, 1), "1 = the columns of C are the short side, 0 = its rows are"),
        Parameter("count", "c", (4, 1, 2, 8, 16, 32), "elements of the short side that a block computes"),
        Parameter("span", "sp", (4, 1, 2, 8, 16), "elements of the long side that a thread computes"),
        Parameter("depth", "d", (4, 1, 2, 8, 16), "steps of k that a thread loads at a time"),
        Parameter("vec", "v", (1, 2, 4), "elements of the large operand that one load moves"),
        Parameter("lanes_k", "l", (1, 2, 4, 8, 16, 32), "lanes of a warp that share out k"),
        Parameter("warps_l", "wl", (1, 2, 4, 8), "warps along the long side"),
        Parameter("warps_k", "wk", (4, 1, 2, 8, 16, 32), "warps that share out k"),
        Parameter("cp_async", "a", (0, 1), "1 = cp.async keeps several parts on their way, 0 = one fills registers"),
        Parameter("stages", "s", (1, 2, 3, 4, 6, 8), "parts of the large operand on their way at a time"),
        Parameter("staged", "y", (256, 128, 512, 1024, 2048, 4096), "steps of k of the small operand held at a time"),
        Parameter("split_k", "z", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), "blocks that share out k"),
        Parameter("min_blocks", "r", (1, 2, 3, 4, 6, 8), "blocks that the registers must allow on a multiprocessor"),
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (_threads(config), 1, 1),
    tile=_tile,
    smem_elements=lambda config: _smem_elements(config, 4),
    registers=_registers,
    reuse=lambda config: (_tile_l(config), config.number("count")),
    alignment=lambda config: (config.number("vec"), 1, 1) if config.number("short_n") else (1, config.number("vec"), 1),
    splits=lambda config: config.number("split_k"),
    scalar=_scalar,
)
