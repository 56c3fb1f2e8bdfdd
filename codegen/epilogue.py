"""How sums come to C at the end of a kernel: parameters that families of tiles share."""

from .config import Value
from .family import Constraint, Parameter
from .problem import Problem
from .tiling import clustered, widest

__all__ = ["STAGED_C", "STAGED_C_FITS", "staged_elements"]


def _staged_pays(problem: Problem, value: Value) -> bool:
    # Elsewhere threads write vectors, which fill whole sectors of memory by themselves.
    return value == 0 or widest(problem, "c") == 1


STAGED_C = Parameter(
    "staged_c",
    "sc",
    (0, 1),
    "1 = sums pass through shared memory, so that lanes write neighbours in C",
    _staged_pays,
)
STAGED_C_FITS = Constraint(
    "blocks of a cluster write their own sums: others still read their shared memory",
    lambda problem, config, arch: config["staged_c"] == 0 or not clustered(config),
    "!STAGED_C || !CLUSTER",
)


def staged_elements(warps: int, band: int, warp_n: int, written_rows: int, banks: int) -> int:
    """Elements of shared memory through which sums pass, of each thread's at least a row at a time.

    That is `band` rows of C for each of `warps`. Lanes put sums down in `written_rows` rows at a time, and `banks`
    elements are as wide as all banks of shared memory.
    """
    return warps * band * (warp_n if warp_n % banks else warp_n + banks // written_rows)
