"""The `simt` family: register tiles fed from shared memory, by the ordinary multiply-add."""

from collections.abc import Callable

from .arch import Arch
from .config import Config, Value
from .family import EDGE, SPLITS, Constraint, Family, Parameter
from .problem import DType, Problem

__all__ = ["SIMT"]

_WIDE_BYTES = 16
"""The widest load of a thread, and the pad of a row in shared memory."""
_MOST_COPIES = 32
"""Elements that a thread copies of an operand for a tile: a bit for each where they are copied one by one."""
_MOST_FMAS = 2560
"""Multiply-adds of a thread in a tile: the loop over them is unrolled, and must fit the instruction cache."""


def _warps(config: Config) -> tuple[int, int]:
    """Warps of a block along the rows and the columns of C, rounded down where the tile is no multiple of a warp's."""
    return config.number("block_m") // _warp_m(config), config.number("block_n") // _warp_n(config)


def _warp_m(config: Config) -> int:
    return config.number("thread_m") * config.number("lanes_m")


def _warp_n(config: Config) -> int:
    return config.number("thread_n") * (32 // config.number("lanes_m"))


def _threads(config: Config) -> int:
    warps_m, warps_n = _warps(config)
    return 32 * max(1, warps_m * warps_n) * config.number("slices")


def _tile_elements(config: Config, pad: int) -> tuple[int, int]:
    """Elements that a tile of A and of B takes in shared memory."""
    depth = config.number("block_k")
    sizes = []
    for name in ("a", "b"):
        extent = config.number("block_m" if name == "a" else "block_n")
        inner, outer = (depth, extent) if config.number(f"{name}_k_inner") else (extent, depth)
        sizes.append(outer * (inner + pad))
    return sizes[0], sizes[1]


def _smem_elements(config: Config, pad: int) -> int:
    stages = config.number("stages") * sum(_tile_elements(config, pad))
    if config.number("slices") == 1:
        return stages
    return max(stages, config.number("slices") * config.number("block_m") * config.number("block_n"))


def _copied(config: Config, operand: str) -> int:
    """Most elements of an operand that a thread copies for a tile, whichever way its rows run."""
    extent, depth = config.number("block_m" if operand == "a" else "block_n"), config.number("block_k")
    vec = config.number(f"vec_{operand}")
    copiers = min(_copiers(extent // vec, _threads(config)), _copiers(max(1, depth // vec), _threads(config)))
    return vec * -(-extent * depth // (vec * copiers))


def _copiers(per_row: int, threads: int) -> int:
    """How many threads share out rows of so many vectors: the most that take whole rows, or whole parts of a row."""
    return next(count for count in range(threads, 0, -1) if count % per_row == 0 or per_row % count == 0)


def _step(dtype: DType, config: Config) -> int:
    """Steps of k whose operands a thread reads at once."""
    wide = _WIDE_BYTES // dtype.size_bytes
    return wide if config.number("a_k_inner") or config.number("b_k_inner") else 1


def _operand_registers(dtype: DType, config: Config) -> int:
    """Registers of a step's operands."""
    wide = dtype.size_bytes // 4
    return wide * _step(dtype, config) * (config.number("thread_m") + config.number("thread_n"))


def _sum_registers(dtype: DType, config: Config) -> int:
    """Registers of the sums."""
    return dtype.size_bytes // 4 * config.number("thread_m") * config.number("thread_n")


def _staged_registers(dtype: DType, config: Config) -> int:
    """Registers of the tiles that pass through registers."""
    if config.number("cp_async"):
        return 0
    return dtype.size_bytes // 4 * (_copied(config, "a") + _copied(config, "b"))


def _least_registers(dtype: DType, config: Config) -> int:
    """Registers that a thread can do with; with fewer some are spilled."""
    held = _sum_registers(dtype, config) + max(0, _staged_registers(dtype, config) - 4)
    splitting = 8 if config.number("split_k") > 1 else 0
    return 40 + held + splitting + (5 + config.number("prefetch")) * _operand_registers(dtype, config) // 4


def _registers_held_to(config: Config) -> int:
    """Registers that the launch bounds leave a thread, on every device of the table."""
    return min(255, 65536 // (_threads(config) * config.number("min_blocks")) // 8 * 8)


def _registers(dtype: DType, config: Config) -> int:
    """Registers that the compiler takes, from above: it reads operands a step ahead of what the text says."""
    held = _sum_registers(dtype, config) + _staged_registers(dtype, config)
    bound = _registers_held_to(config)
    if held >= 128:
        return bound  # it takes what there is
    operands = (2 + config.number("prefetch")) * _operand_registers(dtype, config)
    splitting = 8 if config.number("split_k") > 1 else 0
    return min(max(64 + 8 * dtype.size_bytes, 60 + held + operands + splitting), bound)


def _runs_along_k(problem: Problem, operand: str) -> bool:
    """Whether a stored row of A or B runs along k."""
    return not problem.trans_a if operand == "a" else problem.trans_b


def _row(problem: Problem, operand: str) -> int:
    """Elements of a stored row of A, B or C."""
    return {"a": problem.stored_a[1], "b": problem.stored_b[1], "c": problem.n}[operand]


def _widest(problem: Problem, operand: str) -> int:
    """The widest vector of at most 16 bytes that divides the stored rows of A, B or C."""
    width = _WIDE_BYTES // problem.dtype.size_bytes
    while _row(problem, operand) % width:
        width //= 2
    return width


def _neighbours(dtype: DType, config: Config) -> int:
    """Neighbours in a row of C that a thread computes: as many as it reads of B at once."""
    if config.number("b_k_inner"):
        return 1
    return min(_WIDE_BYTES // dtype.size_bytes, config.number("thread_n"))


def _turned_in_flight(problem: Problem, config: Config, operand: str) -> bool:
    """Whether cp.async has to transpose."""
    along = _runs_along_k(problem, operand)
    return bool(config.number("cp_async")) and along and not config.number(f"{operand}_k_inner")


def _vec_worth(operand: str) -> Callable[[Problem, Value], bool]:
    def worth(problem: Problem, value: Value) -> bool:
        # Where rows run along k, cp.async may have to transpose them: then element by element.
        return value == _widest(problem, operand) or (value == 1 and _runs_along_k(problem, operand))

    return worth


def _inner_worth(operand: str) -> Callable[[Problem, Value], bool]:
    return lambda problem, value: value == 0 or _runs_along_k(problem, operand)


def _block_worth(problem: Problem, block: Value, size: int) -> bool:
    return isinstance(block, int) and (block <= 16 or block < 2 * size)


def _split_worth(problem: Problem, split: Value) -> bool:
    # Fewer than 32 steps of k are not worth a sum of their own; large results fill the device without.
    return split == 1 or (isinstance(split, int) and 24 * split <= problem.k and problem.m * problem.n <= 2**21)


def _aligned(operand: str) -> Constraint:
    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        vec = config.number(f"vec_{operand}")
        fits = vec * problem.dtype.size_bytes <= _WIDE_BYTES
        return fits and (config["edge"] == "pad" or _row(problem, operand) % vec == 0)

    name = operand.upper()
    return Constraint(
        f"vec_{operand} {{vec_{operand}}} is at most 16 bytes and divides the stored rows of {name}",
        holds,
        f"VEC_{name} <= WIDE",
    )


def _turns_elements(operand: str) -> Constraint:
    name = operand.upper()
    along = "!TRANS_A" if operand == "a" else "TRANS_B"
    return Constraint(
        f"cp.async transposes {name} element by element: vec_{operand} {{vec_{operand}}} is 1",
        lambda problem, config, arch: not _turned_in_flight(problem, config, operand) or config[f"vec_{operand}"] == 1,
        f"!(CP_ASYNC && {along} && !{name}_K_INNER) || VEC_{name} == 1",
    )


def _inner_stays(operand: str) -> Constraint:
    name = operand.upper()
    along = "!TRANS_A" if operand == "a" else "TRANS_B"
    return Constraint(
        f"k is innermost in the tiles of {name} only if stored rows of {name} run along k",
        lambda problem, config, arch: _inner_worth(operand)(problem, config[f"{operand}_k_inner"]),
        f"{along} || !{name}_K_INNER",
    )


def _steps_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    reads = config.number("slices") * _step(problem.dtype, config) * (1 + config.number("prefetch"))
    return config.number("block_k") % reads == 0


def _resident_fits(problem: Problem, config: Config, arch: Arch) -> bool:
    blocks, threads = config.number("min_blocks"), _threads(config)
    smem = SIMT.smem_bytes(problem.dtype, config) + arch.smem_reserved_bytes
    return threads * blocks <= arch.max_threads_per_sm and smem * blocks <= arch.smem_per_sm_bytes


_CONSTRAINTS = (
    Constraint(
        "block_m {block_m} is a multiple of the rows of a warp, thread_m {thread_m} * lanes_m {lanes_m}",
        lambda problem, config, arch: config.number("block_m") % _warp_m(config) == 0,
        "BLOCK_M % WARP_M == 0",
    ),
    Constraint(
        "block_n {block_n} is a multiple of the columns of a warp, thread_n {thread_n} * 32 / lanes_m {lanes_m}",
        lambda problem, config, arch: config.number("block_n") % _warp_n(config) == 0,
        "BLOCK_N % WARP_N == 0",
    ),
    Constraint(
        "tiles that pass through registers use two stages, not {stages}",
        lambda problem, config, arch: bool(config.number("cp_async")) or config["stages"] == 2,
        "CP_ASYNC || STAGES == 2",
    ),
    Constraint(
        "the device has cp.async",
        lambda problem, config, arch: not config.number("cp_async") or "cp.async" in arch.instructions,
    ),
    _inner_stays("a"),
    _inner_stays("b"),
    _aligned("a"),
    _aligned("b"),
    _aligned("c"),
    Constraint(
        "vec_c {vec_c} is at most the neighbours in a row of C that a thread computes",
        lambda problem, config, arch: config.number("vec_c") <= _neighbours(problem.dtype, config),
        "VEC_C <= WIDE && VEC_C <= THREAD_N && !(B_K_INNER && VEC_C > 1)",
    ),
    _turns_elements("a"),
    _turns_elements("b"),
    Constraint(
        "block_k {block_k} is whole steps for each of {slices} slices, an even number of them with prefetch {prefetch}",
        _steps_fit,
        "BLOCK_K % (SLICES * STEP * (1 + PREFETCH)) == 0",
    ),
    Constraint(
        "thread_m {thread_m} * thread_n {thread_n} sums are whole vectors for each of {slices} slices",
        lambda problem, config, arch: (
            config.number("thread_m") * config.number("thread_n") % (config.number("slices") * config.number("vec_c"))
            == 0
        ),
        "THREAD_M * THREAD_N % (SLICES * VEC_C) == 0",
    ),
    Constraint(
        f"a thread copies at most {_MOST_COPIES} elements of an operand for a tile",
        lambda problem, config, arch: all(_copied(config, operand) <= _MOST_COPIES for operand in "ab"),
    ),
    Constraint(
        f"a thread has at most {_MOST_FMAS} multiply-adds in a tile: they are unrolled",
        lambda problem, config, arch: (
            config.number("thread_m") * config.number("thread_n") * config.number("block_k")
            <= _MOST_FMAS * config.number("slices")
        ),
        f"THREAD_M * THREAD_N * BLOCK_K <= {_MOST_FMAS} * SLICES",
    ),
    Constraint("threads and shared memory of {min_blocks} blocks fit on a multiprocessor", _resident_fits),
    Constraint(
        "registers of {min_blocks} blocks fit on a multiprocessor",
        lambda problem, config, arch: _least_registers(problem.dtype, config) <= _registers_held_to(config),
    ),
)


def _tiles(problem: Problem, config: Config) -> int:
    """Tiles of C."""
    return -(-problem.m // config.number("block_m")) * -(-problem.n // config.number("block_n"))


def _vectors_wide(problem: Problem, config: Config, arch: Arch) -> bool:
    reads = all(
        _turned_in_flight(problem, config, operand) or config.number(f"vec_{operand}") == _widest(problem, operand)
        for operand in "ab"
    )
    return reads and config.number("vec_c") == min(_widest(problem, "c"), _neighbours(problem.dtype, config))


def _split_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    tiles, split = _tiles(problem, config), config.number("split_k")
    return split == 1 or (tiles <= 256 and tiles * split <= 1024 and config.number("block_k") * split <= problem.k)


def _slices_pay(problem: Problem, config: Config, arch: Arch) -> bool:
    slices, sums = config.number("slices"), _sum_registers(problem.dtype, config)
    return slices == 1 or (sums <= 64 and _tiles(problem, config) <= 512 and _threads(config) <= 128 * slices)


def _group_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    return (config["group_m"] == 1) == (_tiles(problem, config) <= 512)


def _residency_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    # Without being held to it the compiler takes up to some 24 registers more than it needs.
    blocks = config.number("min_blocks")
    least = _least_registers(problem.dtype, config)
    return blocks == 1 or (least + 24) * _threads(config) * blocks > arch.registers_per_sm


def _area_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    return config.number("block_m") * config.number("block_n") >= 64 * 64 or _tiles(problem, config) <= 2048


def _shape_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    m, n = config.number("block_m"), config.number("block_n")
    return max(m, n) <= 4 * min(m, n) or min(problem.m, problem.n) <= 64


def _edge_pays(problem: Problem, config: Config, arch: Arch) -> bool:
    sizes = zip((problem.m, problem.n, problem.k), ("block_m", "block_n", "block_k"), strict=True)
    whole = [size % config.number(name) == 0 for size, name in sizes]
    return (config["edge"] == "exact") == all(whole)


def _nearly_square(ratio: int, m: int, n: int) -> bool:
    return max(m, n) <= ratio * min(m, n)


_ADVICE = (
    Constraint(
        "double is for the fp64 tensor cores where they are faster",
        lambda problem, config, arch: (
            problem.dtype is not DType.DOUBLE or arch.dmma_per_cycle <= arch.fma_per_cycle_double
        ),
    ),
    Constraint(
        "a thread's part of C is at most twice as long as wide",
        lambda problem, config, arch: _nearly_square(2, config.number("thread_m"), config.number("thread_n")),
    ),
    Constraint(
        "a warp's part of C is at most twice as long as wide",
        lambda problem, config, arch: _nearly_square(2, _warp_m(config), _warp_n(config)),
    ),
    Constraint("a block's part of C is at most four times as long as wide, unless C is narrow", _shape_pays),
    Constraint("tiles below 64 x 64 are for results that have few of them", _area_pays),
    Constraint("copies are as wide as the stored rows allow", _vectors_wide),
    Constraint(
        "a block has at most 512 threads",
        lambda problem, config, arch: _threads(config) <= 512,
    ),
    Constraint(
        "operands are read ahead where a thread has at least 32 multiply-adds a step",
        lambda problem, config, arch: (
            not config.number("prefetch") or config.number("thread_m") * config.number("thread_n") >= 32
        ),
    ),
    Constraint("warps share out k where there are few tiles, of few warps with few sums", _slices_pay),
    Constraint("blocks share out k where there are few tiles, and each has a tile of k", _split_pays),
    Constraint("tiles are grouped where not all of them run at a time", _group_pays),
    Constraint("the compiler is held to fewer registers only where one block more gains from it", _residency_pays),
    Constraint("edges are exact where the tiles fit", _edge_pays),
)


class _Simt(Family):
    """A family whose rows in shared memory are padded by bytes, not by elements."""

    __slots__ = ()

    def smem_bytes(self, dtype: DType, config: Config) -> int:
        return _smem_elements(config, _WIDE_BYTES // dtype.size_bytes) * dtype.size_bytes


def _scalar(config: Config) -> Config:
    return Config(config.family, tuple((n, 1 if n in ("vec_a", "vec_b", "vec_c") else v) for n, v in config.values))


def _smem_loads(config: Config) -> float:
    """Operands of each step: a wide read takes half the time of as many single ones, as lanes share what they read."""
    m, n = config.number("thread_m"), config.number("thread_n")
    written = 1 / config.number("block_m") + 1 / config.number("block_n")
    return (1 / m + 1 / n) / 2 + written


def _overhead(dtype: DType, config: Config) -> float:
    """Reads of operands, copies of tiles, and some 40 instructions that a thread has for each tile of k; clocks
    lost where no operand is read ahead, or only one tile is on its way."""
    m, n, wide = config.number("thread_m"), config.number("thread_n"), _WIDE_BYTES // dtype.size_bytes
    reads = (max(1, m / wide) + max(1, n / wide)) / (m * n)
    copy = 1.5 if config.number("cp_async") else 2.5
    copies = copy / (config.number("vec_a") * config.number("block_n"))
    copies += copy / (config.number("vec_b") * config.number("block_m"))
    waits = 0.08 * (not config.number("prefetch")) + 0.12 * (config.number("stages") == 2)
    return 0.1 + waits + reads + copies + 40 * config.number("slices") / (m * n * config.number("block_k"))


def _tail_cycles(config: Config) -> float:
    """Each thread writes its sums to shared memory and reads as many again."""
    sums = config.number("thread_m") * config.number("thread_n")
    return 200 + sums * (8 + _threads(config) / 64) if config.number("slices") > 1 else 0.0


SIMT = _Simt(
    name="simt",
    title="register tiles fed from shared memory, by the ordinary multiply-add",
    template="simt.cu.jinja",
    parameters=(
        Parameter(
            "block_m",
            "bm",
            (64, 16, 32, 48, 96, 128, 160, 192, 256),
            "rows of C a block computes",
            lambda problem, value: _block_worth(problem, value, problem.m),
        ),
        Parameter(
            "block_n",
            "bn",
            (64, 16, 32, 48, 96, 128, 160, 192, 256),
            "columns of C a block computes",
            lambda problem, value: _block_worth(problem, value, problem.n),
        ),
        Parameter("block_k", "bk", (8, 16, 32), "steps of k that a tile covers"),
        Parameter("thread_m", "tm", (4, 2, 8, 16), "rows of C a thread computes"),
        Parameter("thread_n", "tn", (4, 2, 8), "columns of C a thread computes"),
        Parameter("lanes_m", "l", (8, 4, 2, 16), "lanes of a warp along the rows of C"),
        Parameter("stages", "s", (2, 3, 4, 5), "tiles that shared memory holds at a time"),
        Parameter("cp_async", "c", (0, 1), "1 = cp.async fills shared memory, 0 = tiles pass through registers"),
        Parameter("vec_a", "va", (1, 2, 4), "elements of A that one copy moves", _vec_worth("a")),
        Parameter("vec_b", "vb", (1, 2, 4), "elements of B that one copy moves", _vec_worth("b")),
        Parameter(
            "vec_c",
            "vc",
            (1, 2, 4),
            "elements of C that one store moves",
            lambda problem, value: isinstance(value, int) and (value == 1 or value <= _widest(problem, "c")),
        ),
        Parameter("a_k_inner", "ka", (0, 1), "1 = k stays innermost in the tiles of A, 0 = m is", _inner_worth("a")),
        Parameter("b_k_inner", "kb", (0, 1), "1 = k stays innermost in the tiles of B, 0 = n is", _inner_worth("b")),
        Parameter("prefetch", "p", (0, 1), "1 = registers hold the operands of the next step too"),
        Parameter("slices", "w", (1, 2, 4, 8), "groups of warps that share out the k of each tile"),
        Parameter("split_k", "z", SPLITS, "blocks that share out k", _split_worth),
        Parameter("group_m", "g", (1, 4, 8, 16), "tiles that blocks go down before they go right"),
        Parameter("min_blocks", "r", (1, 2, 3, 4, 6, 8), "blocks that the registers must allow on a multiprocessor"),
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (_threads(config), 1, 1),
    tile=lambda config: (config.number("block_m"), config.number("block_n"), config.number("block_k")),
    smem_elements=lambda config: _smem_elements(config, 4),
    registers=_registers,
    reuse=lambda config: (config.number("block_n"), config.number("block_m")),
    smem_loads=_smem_loads,
    overhead=_overhead,
    tail_cycles=_tail_cycles,
    advice=_ADVICE,
    alignment=lambda config: (config.number("vec_a"), config.number("vec_b"), config.number("vec_c")),
    splits=lambda config: config.number("split_k"),
    scalar=_scalar,
)
