"""Operands that are copied before the product: k rows each, aligned, so that every copy of a tile moves 16 bytes."""

from collections.abc import Callable

from .arch import Arch
from .config import Config, Value
from .family import Constraint, Parameter
from .problem import Problem
from .tiling import WIDE_BYTES, packed, runs_along_k, widest

__all__ = ["PACK_FITS", "pack", "pack_pays", "vec_worth"]

_UNALIGNED_PAYS, _TURNED_PAYS = 1024, 2048
"""How often an element has to be used for a copy of it to pay where rows are not aligned, and the sizes from which on
it pays to transpose them."""

PACK_FITS = Constraint(
    "operands are padded or packed, not both: edge {edge}",
    lambda problem, config, arch: config["edge"] != "pad" or not (packed(config, "a") or packed(config, "b")),
    "(!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B)",
)


def _unaligned(problem: Problem, operand: str) -> bool:
    return widest(problem, operand) * problem.dtype.size_bytes < WIDE_BYTES


def _pack_worth(problem: Problem, operand: str, turns: bool) -> bool:
    """Whether packing A or B may pay, by a family that transposes element by element (`turns`) or by one that does
    not: its other side gives how often an element is used."""
    used = problem.n if operand == "a" else problem.m
    if _unaligned(problem, operand):
        return used >= _UNALIGNED_PAYS
    return turns and runs_along_k(problem, operand) and min(problem.m, problem.n, problem.k) >= _TURNED_PAYS


def vec_worth(operand: str, turns: bool) -> Callable[[Problem, Value], bool]:
    """Whether A or B is copied so many elements at a time: as many as its rows allow, the most where it may be packed,
    or one where a family that `turns` transposes it."""

    def worth(problem: Problem, value: Value) -> bool:
        if value == WIDE_BYTES // problem.dtype.size_bytes and _pack_worth(problem, operand, turns):
            return True
        return value == widest(problem, operand) or (turns and value == 1 and runs_along_k(problem, operand))

    return worth


def pack(operand: str, turns: bool) -> Parameter:
    """The parameter of A or B."""
    stored, name = ("k x m" if operand == "a" else "k x n"), operand.upper()

    def worth(problem: Problem, value: Value) -> bool:
        return value == 0 or _pack_worth(problem, operand, turns)

    meaning = f"1 = {name} is copied to aligned rows first, {stored}"
    return Parameter(f"pack_{operand}", f"p{operand}", (0, 1), meaning, silent=True, worth=worth)


def _together(turns: bool) -> Callable[[Problem, Config, Arch], bool]:
    def holds(problem: Problem, config: Config, arch: Arch) -> bool:
        both = all(_unaligned(problem, each) and _pack_worth(problem, each, turns) for each in "ab")
        return not both or packed(config, "a") == packed(config, "b")

    return holds


def pack_pays(turns: bool) -> Constraint:
    """The advice on packing."""
    return Constraint("where rows of both operands are not aligned, both are packed or none is", _together(turns))
