"""The `skinny` family: products with a short side, which read the large operand once at the memory's rate.

One side of C is short, m or n: of the other operand there is little, and each element of the large one is used only
that often. What counts is how many bytes are on their way from memory at a time.
"""

from dataclasses import replace

from .arch import Arch
from .config import Config
from .family import EDGE, Constraint, Family, Parameter
from .overlap import WARM_L2
from .problem import DType, Problem
from .skinny_advice import ADVICE, MIN_BLOCKS, count_worth, short_worth, split_worth
from .skinny_sizes import (
    alone_elements,
    along_k,
    large,
    least_registers,
    part_elements,
    registers,
    round_steps,
    smem_bytes,
    smem_elements,
    threads,
    tile,
)
from .tiling import RESIDENT_FITS, WIDE_BYTES, registers_held_to, scalar, stored_row

__all__ = ["SKINNY"]

_MOST_LOADED = 64
"""Elements of the large operand that a thread loads at a time: each takes an instruction where vectors have one."""


def _aligned(problem: Problem, config: Config, arch: Arch) -> bool:
    vec = config.number("vec")
    fits = vec * problem.dtype.size_bytes <= WIDE_BYTES
    return fits and (config["edge"] == "pad" or stored_row(problem, large(config)) % vec == 0)


def _vectors_fit(problem: Problem, config: Config, arch: Arch) -> bool:
    return config.number("depth" if along_k(problem, config) else "span") % config.number("vec") == 0


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
        lambda problem, config, arch: config.number("staged") % round_steps(config) == 0,
        "STAGED % (TILE_K * (1 + CP_ASYNC)) == 0",
    ),
    Constraint(
        f"a thread loads at most {_MOST_LOADED} elements at a time",
        lambda problem, config, arch: part_elements(config) <= _MOST_LOADED,
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
        lambda problem, config, arch: least_registers(problem.dtype, config) <= registers_held_to(config),
    ),
    RESIDENT_FITS,
)


class _Skinny(Family):
    """A family whose shared memory is padded by bytes, not by elements."""

    __slots__ = ()

    def smem_bytes(self, dtype: DType, config: Config) -> int:
        return smem_bytes(dtype, config)


SKINNY = _Skinny(
    name="skinny",
    title="a short side of C: the large operand streams through registers once, the small one waits in shared memory",
    template="skinny.cu.jinja",
    parameters=(
        Parameter("short_n", "n", (0, 1), "1 = the columns of C are the short side, 0 = its rows are", short_worth),
        Parameter("count", "c", (4, 1, 2, 8, 16, 32), "elements of the short side a block computes", count_worth),
        Parameter("span", "sp", (4, 1, 2, 8, 16), "elements of the long side that a thread computes"),
        Parameter("depth", "d", (4, 1, 2, 8, 16), "steps of k that a thread loads at a time"),
        Parameter("vec", "v", (1, 2, 4), "elements of the large operand that one load moves"),
        Parameter("lanes_k", "l", (1, 2, 4, 8, 16, 32), "lanes of a warp that share out k"),
        Parameter("warps_l", "wl", (1, 2, 4, 8), "warps along the long side"),
        Parameter("warps_k", "wk", (4, 1, 2, 8, 16, 32), "warps that share out k"),
        Parameter("cp_async", "a", (0, 1), "1 = cp.async keeps several parts on their way, 0 = one fills registers"),
        Parameter("stages", "s", (1, 2, 4, 6, 8), "parts of the large operand on their way at a time"),
        Parameter("staged", "y", (256, 128, 512, 1024, 2048, 4096), "steps of k of the small operand held at a time"),
        Parameter("split_k", "z", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), "blocks that share out k", split_worth),
        Parameter("min_blocks", "r", MIN_BLOCKS, "blocks that the registers must allow on a multiprocessor"),
        replace(WARM_L2, constant=False),
        EDGE,
    ),
    constraints=_CONSTRAINTS,
    block=lambda config: (threads(config), 1, 1),
    tile=tile,
    smem_elements=lambda config: smem_elements(config, 4),
    registers=registers,
    reuse=lambda config: tile(config)[1::-1],
    smem_loads=lambda config: 0.5 / config.number("span") + 2 * config.number("cp_async") / config.number("count"),
    in_flight=lambda config: part_elements(config) * config.number("stages"),
    alone=alone_elements,
    advice=ADVICE,
    alignment=lambda config: (config.number("vec"), 1, 1) if config.number("short_n") else (1, config.number("vec"), 1),
    splits=lambda config: config.number("split_k"),
    early=lambda config: True,
    scalar=scalar,
)
