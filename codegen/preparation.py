"""Kernels that come before a product: they pad or pack operands, or split them into terms.

A product that has one reads what it wrote. Its text depends on few of the config's parameters, so that many configs
share it, in the cache and in a bundle.
"""

from typing import Any

from .environment import environment, tidy
from .fit import Fit
from .leaf import Edge
from .problem import DType, Problem
from .source import PACK_THREADS, PACK_TILE, TERM_HELD, TERM_ROWS, TERM_THREADS, KernelSource


def preparation(problem: Problem, fit: Fit) -> KernelSource | None:
    """The kernel that an instance needs first; None where it reads operands as they lie."""
    config: Any = fit.config
    dtype, trans = problem.dtype, problem.trans
    if fit.edge is Edge.PAD:
        return _rendered("pad", f"pad_{dtype.code}", dtype, trans)
    if any(config.packs):
        which = "".join(name for name, packs in zip("ab", config.packs) if packs)
        tile = {"PACK_TILE": PACK_TILE, "PACK_THREADS": PACK_THREADS}
        return _rendered("pack", f"pack_{which}_{dtype.code}_{trans}", dtype, trans, packs=config.packs, **tile)
    if config.terms:
        return _splitting(config, dtype, trans)
    return None


def _splitting(config: Any, dtype: DType, trans: str) -> KernelSource:
    numbers, blocked, ctas = config.term_format, config.term_blocked, config.term_ctas
    layout = f"blocked{blocked}_cluster{ctas}" if blocked else "rows"
    facts = {"numbers": numbers, "terms": config.terms, "blocked": blocked, "ctas": ctas}
    warps = {"TERM_ROWS": TERM_ROWS, "TERM_THREADS": TERM_THREADS, "TERM_HELD": TERM_HELD}
    return _rendered("split", f"split_{numbers}_{trans}_{layout}", dtype, trans, **facts, **warps)


def _rendered(template: str, name: str, dtype: DType, trans: str, **values: object) -> KernelSource:
    file = environment().get_template(f"prepare/{template}.cu.jinja")
    return KernelSource(name, tidy(file.render(name=name, dtype=dtype, trans=trans, **values)))
