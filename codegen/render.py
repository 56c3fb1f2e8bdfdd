"""CUDA text from a problem, a config and an architecture."""

import hashlib
from collections.abc import Sequence
from typing import Any

from .batch import Batching
from .config import Config
from .environment import rendered
from .errors import check
from .fit import Fit
from .leaf import Edge
from .legality import fitted
from .problem import DType, Problem
from .source import PACK_THREADS, PACK_TILE, TERM_HELD, TERM_ROWS, TERM_THREADS, KernelSource
from .target import Target

_DIGEST = "@digest@"


def kernel_name(config: Config, dtype: DType, trans: str, batched: bool = False) -> str:
    """The name of a kernel: family, dtype, transposes, tile and 8 digits of the config, such as
    `gemm_tiled_f32_nn_16x16x16_0123abcd`. The name of a kernel for batches begins with `batched_`."""
    tile = "x".join(map(str, config.cta_tile))
    return f"{'batched_' * batched}gemm_{config.family}_{dtype.code}_{trans}_{tile}_{config.digest}"


def render(problem: Problem, config: Config, target: Target, fit: Fit | None = None) -> KernelSource:
    """The CUDA C++ of a config for a problem: the instance `fit`, or for None the one for aligned operands.

    The text depends on dtype, transposes, config, fit and whether there is a batch, not on m, n, k and the number of
    products. Raises ConfigError for a config that breaks a rule; nothing is rendered then.
    """
    return instances(problem, [fit or fitted(problem, config, target)])[0]


def instances(problem: Problem, fits: Sequence[Fit], batched: Batching | None = None) -> list[KernelSource]:
    """The kernels of one config for several fits, in one text. Each is an instance of a C++ template, such as
    `gemm_tiled_f32_nn_16x16x16_0123abcd<true>`; a single kernel is no template. A fit that pads has a text of its own.
    `batched` says which batches the kernels serve; None stands for those that the library launches."""
    config, batched = fits[0].config, Batching.of(problem) if batched is None else batched
    name = kernel_name(config, problem.dtype, problem.trans, bool(batched))
    varied = [config.varied(fit, problem) for fit in fits]
    first = preparation(problem, fits[0], batched)
    text = rendered(
        config.template,
        name=name,
        digest=_DIGEST,
        config=config,
        fits=fits,
        varied=varied,
        dtype=problem.dtype,
        trans=problem.trans,
        launch=config.launch_config(problem, 1),
        preparation=first,
        batched=batched,
    )
    check(_DIGEST in text, f"{config.template} has no digest in its banner")
    code = text.replace(_DIGEST, hashlib.sha256(text.encode()).hexdigest()[:16])
    values = [", ".join(str(value).lower() for value in each.values()) for each in varied]
    names = [f"{name}<{each}>" for each in values] if len(fits) > 1 else [name]
    return [KernelSource(each, code, first) for each in names]


def preparation(problem: Problem, fit: Fit, batched: Batching) -> KernelSource | None:
    """The kernel that pads, packs or splits the operands of an instance first; None where it reads them as they lie.
    The text depends on few of the config's parameters, so that many configs share it."""
    config: Any = fit.config
    dtype, trans = problem.dtype, problem.trans
    if fit.edge is Edge.PAD:
        return _prepared("pad", f"pad_{dtype.code}", dtype, trans, batched)
    if any(config.packs):
        operands = "".join(name for name, packs in zip("ab", config.packs) if packs)
        tile = {"PACK_TILE": PACK_TILE, "PACK_THREADS": PACK_THREADS}
        return _prepared(
            "pack", f"pack_{operands}_{dtype.code}_{trans}", dtype, trans, batched, packs=config.packs, **tile
        )
    if config.terms:
        blocked, ctas = config.term_blocked, config.term_ctas
        layout = f"blocked{blocked}_cluster{ctas}" if blocked else "rows"
        name = f"split_{config.term_format}_{trans}_{layout}"
        facts = {"numbers": config.term_format, "terms": config.terms, "blocked": blocked, "ctas": ctas}
        sizes = {"TERM_ROWS": TERM_ROWS, "TERM_THREADS": TERM_THREADS, "TERM_HELD": TERM_HELD}
        return _prepared("split", name, dtype, trans, batched, **facts, **sizes)
    return None


def _prepared(
    template: str, name: str, dtype: DType, trans: str, batched: Batching, **values: object
) -> KernelSource:  # fmt: skip
    name, facts = "batched_" * bool(batched) + name, {"dtype": dtype, "trans": trans, "batched": batched}
    return KernelSource(name, rendered(f"prepare/{template}.cu.jinja", name=name, **facts, **values))
