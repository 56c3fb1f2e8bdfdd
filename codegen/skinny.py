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
_LEAST_STAGED, _MOST_STAGED_BYTES = 128, 40960
"""Steps of k of the small operand staged at least, and its bytes in shared memory at most, that a search tries."""
_MIN_BLOCKS = (1, 2, 3, 4, 6, 8)
_MOST_RESIDENT = 1024
"""Threads of a multiprocessor beyond which a search does not ask for more."""
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


def _round(config: Config) -> int:
    """Steps of k that the main loop covers at a time."""
    return _tile_k(config) * (1 + config.number("cp_async"))


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


def _slice(problem: Problem, config: Config) -> int:
    """Steps of k that a block covers."""
    tile_k = _tile_k(config)
    return -(-problem.k // (tile_k * config.number("split_k"))) * tile_k


def _least_registers(dtype: DType, config: Config) -> int:
    """Registers that a thread can do with."""
    return 34 + dtype.size_bytes // 4 * (_sums(config) + _part(config))


def _easy_registers(dtype: DType, config: Config) -> int:
    """Registers with which nothing is spilled."""
    addresses = 2 * _part(config) // config.number("vec") + (5 if config["edge"] == "bounds" else 0)
    loaded = 0 if config.number("cp_async") else 10
    return _least_registers(dtype, config) + addresses + loaded + dtype.size_bytes // 4 - 1


def _registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: what there is, if it is not held to less."""
    return _registers_held_to(config)


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
        "staged {staged} is a multiple of the steps of k that a block loads, twice those with cp.async",
        lambda problem, config, arch: config.number("staged") % _round(config) == 0,
        "STAGED % (TILE_K * (1 + CP_ASYNC)) == 0",
    ),
    Constraint(
        f"a thread loads at most {_MOST_LOADED} elements at a time",
        lambda problem, config, arch: _part(config) <= _MOST_LOADED,
        f"SPAN * DEPTH <= {_MOST_LOADED}",
    ),
    Constraint(
        "cp.async has an even number of stages, registers have one: not {stages}",
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


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def _short_worth(problem: Problem, value: Value) -> bool:
    short, long = (problem.n, problem.m) if value else (problem.m, problem.n)
    return short <= min(_MOST_SHORT, long)


def _count_worth(problem: Problem, value: Value) -> bool:
    short = min(problem.m, problem.n)
    return value == _power_of_two(short) or (value == 16 and 16 < short <= _MOST_SHORT)


def _split_worth(problem: Problem, value: Value) -> bool:
    return value == 1 or (isinstance(value, int) and 32 * value <= problem.k)


def _bytes_together(problem: Problem, config: Config, arch: Arch) -> bool:
    size, lanes, vec = problem.dtype.size_bytes, config.number("lanes_k"), config.number("vec")
    if _along_k(problem, config):
        return lanes * vec * size >= 128 or lanes * vec >= problem.k
    together = 32 // lanes * vec
    enough = together * size >= 64 and (lanes == 1 or config.number("warps_l") == 1)
    return enough or lanes == min(32, _power_of_two(-(-32 * vec // max(1, _long_side(problem, config)))))


def _reads_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    # Each 16 bytes of the small operand, read from shared memory, should feed 16 multiply-adds in float.
    span, sums = config.number("span"), _sums(config) * problem.dtype.size_bytes
    if sums > 512:
        return False
    return config.number("count") < 8 or span >= 4 or (sums >= 256 and not _along_k(problem, config))


def _loads_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    loaded = _part(config) * problem.dtype.size_bytes
    if config.number("cp_async"):
        return 32 <= loaded <= 128 and 128 <= loaded * config.number("stages") <= 512
    return 64 <= loaded <= (256 if config.number("count") == 1 else 128)


def _tiles(problem: Problem, config: Config) -> int:
    """Parts of C that a block, or some that split k, compute."""
    short = min(problem.m, problem.n)
    return -(-_long_side(problem, config) // _tile_l(config)) * -(-short // config.number("count"))


def _tile_fits(problem: Problem, config: Config, arch: Arch) -> bool:
    long, tile_k = _long_side(problem, config), _tile_k(config)
    wide = _tile_l(config) < 2 * long or (config.number("warps_l") == 1 and config.number("lanes_k") > 1)
    return wide and (tile_k < 2 * problem.k or config.number("warps_k") == 1)


def _split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    tiles, split = _tiles(problem, config), config.number("split_k")
    parts = _slice(problem, config) // _tile_k(config)  # of a block, one after another
    threads = tiles * split * _threads(config)
    if split > 1 and (parts < max(2, config.number("stages")) or tiles * split > 1024):
        return False
    if split * _sums(config) > 128 * config.number("warps_k") * config.number("lanes_k"):
        return False  # the last block adds up more than 128 sums of each thread
    fills = threads >= 2**15 and tiles * split >= 96
    return fills or parts <= 8 or split == 64


def _staged_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    step = _round(config)
    needed = max(_LEAST_STAGED, step, _power_of_two(_slice(problem, config)))
    room = _MOST_STAGED_BYTES // (config.number("count") * problem.dtype.size_bytes)
    return config["staged"] == min(needed, max(step, _LEAST_STAGED, min(4096, room)))


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    """The most blocks that a multiprocessor can hold without spilling."""
    threads, smem = _threads(config), SKINNY.smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes
    easy = _easy_registers(problem.dtype, config)
    allowed = [
        blocks
        for blocks in _MIN_BLOCKS
        if easy <= min(255, 65536 // (threads * blocks) // 8 * 8)
        and blocks * threads <= max(_MOST_RESIDENT, threads)
        and blocks * smem <= arch.smem_per_sm_bytes
    ]
    return bool(allowed) and config["min_blocks"] == max(allowed)


def _edge_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    sizes = zip((problem.m, problem.n, problem.k), _tile(config), strict=True)
    return (config["edge"] == "exact") == all(size % tile == 0 for size, tile in sizes)


_ADVICE = (
    Constraint(
        "loads are as wide as the stored rows of the large operand allow",
        lambda problem, config, arch: config["vec"] == _widest(problem, config),
    ),
    Constraint("lanes of a warp read 64 bytes side by side", _bytes_together),
    Constraint("what is read of shared memory feeds many multiply-adds", _reads_pay),
    Constraint("a thread has some hundred bytes on their way", _loads_pay),
    Constraint(
        "a block has 128 to 512 threads",
        lambda problem, config, arch: 128 <= _threads(config) <= 512,
    ),
    Constraint("a block's part of C and of k is not much larger than the problem", _tile_fits),
    Constraint("blocks fill the device, and add up few sums in the end", _split_pays),
    Constraint("the small operand is staged at one go if there is room", _staged_pays),
    Constraint("the compiler is held to the registers that let most blocks run", _residency_pays),
    Constraint("edges are exact where the tiles fit", _edge_pays),
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
        Parameter("short_n", "n", (0, 1), "1 = the columns of C are the short side, 0 = its rows are", _short_worth),
        Parameter("count", "c", (4, 1, 2, 8, 16, 32), "elements of the short side a block computes", _count_worth),
        Parameter("span", "sp", (4, 1, 2, 8, 16), "elements of the long side that a thread computes"),
        Parameter("depth", "d", (4, 1, 2, 8, 16), "steps of k that a thread loads at a time"),
        Parameter("vec", "v", (1, 2, 4), "elements of the large operand that one load moves"),
        Parameter("lanes_k", "l", (1, 2, 4, 8, 16, 32), "lanes of a warp that share out k"),
        Parameter("warps_l", "wl", (1, 2, 4, 8), "warps along the long side"),
        Parameter("warps_k", "wk", (4, 1, 2, 8, 16, 32), "warps that share out k"),
        Parameter("cp_async", "a", (0, 1), "1 = cp.async keeps several parts on their way, 0 = one fills registers"),
        Parameter("stages", "s", (1, 2, 4, 6, 8), "parts of the large operand on their way at a time"),
        Parameter("staged", "y", (256, 128, 512, 1024, 2048, 4096), "steps of k of the small operand held at a time"),
        Parameter(
            "split_k", "z", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), "blocks that share out k", _split_worth
        ),
        Parameter("min_blocks", "r", _MIN_BLOCKS, "blocks that the registers must allow on a multiprocessor"),
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (_threads(config), 1, 1),
    tile=_tile,
    smem_elements=lambda config: _smem_elements(config, 4),
    registers=_registers,
    reuse=lambda config: _tile(config)[1::-1],
    advice=_ADVICE,
    alignment=lambda config: (config.number("vec"), 1, 1) if config.number("short_n") else (1, config.number("vec"), 1),
    splits=lambda config: config.number("split_k"),
    scalar=_scalar,
)
