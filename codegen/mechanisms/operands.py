"""Operands as they lie in memory: stored rows, vectors, packing, and how tiles of them come to shared memory."""

import enum
import math
from typing import Any

from ..legality import Rule
from ..problem import Problem

WIDE_BYTES = 16
"""Bytes of the widest load of a thread."""
SECTOR_BYTES = 32
"""Bytes that device memory and caches write at a time."""
MOST_COPIES = 32
"""Most elements of an operand that a thread copies for a tile: a mask of 32 bits has one for each copy."""


class Load(enum.StrEnum):
    """The way of tiles of A and B to shared memory."""

    REGISTERS = "registers"
    """They pass through registers."""
    CP_ASYNC = "cp_async"
    """cp.async copies them while threads multiply."""
    TMA = "tma"
    """A producer warp starts TMA copies of whole tiles."""


class Fragments(enum.StrEnum):
    """When a thread reads its operands of a step of k from shared memory."""

    SINGLE = "single"
    """Right before it multiplies them."""
    DOUBLE = "double"
    """While it multiplies the step before, into a second set of registers."""


def runs_along_k(problem: Problem, operand: str) -> bool:
    """Whether a stored row of A or B (`a`, `b`) runs along k."""
    return not problem.trans_a if operand == "a" else problem.trans_b


def stored_row(problem: Problem, operand: str) -> int:
    """Elements of a stored row of A, B or C."""
    if operand == "c":
        return problem.n
    return (problem.stored_a if operand == "a" else problem.stored_b)[1]


def widest(problem: Problem, operand: str) -> int:
    """Elements of the widest vector of at most 16 bytes that divides the stored rows of A, B or C. It is 1 where a
    stored row runs along the dimension of a ragged batch: a group begins at any element of it."""
    cut = {"": "", "m": "a", "k": "ab"}[problem.ragged]  # operands that the groups cut into parts
    if operand in cut and runs_along_k(problem, operand) == (problem.ragged == "k"):
        return 1
    return math.gcd(stored_row(problem, operand), WIDE_BYTES // problem.dtype.size_bytes)


_SHORT_K, _UNCACHED_BYTES = 128, 1 << 25
"""Most steps of k of a product that mostly writes C, and least bytes of a C that caches do not hold."""
_UNALIGNED_USES, _TRANSPOSED_SIZE = 1024, 2048
"""Least uses of each element for which packing pays where rows are not aligned, and least m, n and k for which it pays
to transpose."""


def passes_shared(problem: Problem, row_bytes: int) -> bool:
    """Whether accumulators should pass through shared memory on their way to C: its rows are no multiple of
    `row_bytes`, or much is written and little computed. Elsewhere threads write whole sectors by themselves.
    Source: 161 products on H100s, docs/experiments/epilogue.md."""
    stored_bytes = problem.m * problem.n * problem.dtype.size_bytes
    mostly_written = problem.k <= _SHORT_K and stored_bytes >= _UNCACHED_BYTES
    return mostly_written or stored_row(problem, "c") * problem.dtype.size_bytes % row_bytes > 0


def packing_pays(problem: Problem, operand: str) -> bool:
    """Whether A or B should be packed: its rows are not aligned or run along k, and each element is used often. Source:
    docs/experiments/packing.md."""
    if widest(problem, operand) * problem.dtype.size_bytes < WIDE_BYTES:
        return (problem.n if operand == "a" else problem.m) >= _UNALIGNED_USES
    return runs_along_k(problem, operand) and min(problem.m, problem.n, problem.k) >= _TRANSPOSED_SIZE


HAS_CP_ASYNC: Rule[Any] = Rule(
    "the device has cp.async, which load {c.pipeline.load} needs",
    lambda problem, config, target: config.pipeline.load is Load.REGISTERS or "cp.async" in target.arch.instructions,
)
