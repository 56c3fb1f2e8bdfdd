"""From problem, config and arch to CUDA text."""

import hashlib

from .arch import Arch
from .config import Config
from .environment import environment, tidy
from .errors import check
from .leaf import Edge
from .legality import require
from .problem import DType, Problem
from .source import LIMB_HELD, LIMB_ROWS, LIMB_THREADS, PACK_THREADS, PACK_TILE, KernelSource

_DIGEST = "@digest@"


def kernel_name(config: Config, dtype: DType, trans: str) -> str:
    """The name of a kernel: family, dtype, transposes, tile and 8 digits of the config,
    `gemm_tiled_f32_nn_16x16x16_0123abcd`."""
    tile = "x".join(map(str, config.cta_tile))
    return f"gemm_{config.family}_{dtype.code}_{trans}_{tile}_{config.digest}"


def render(problem: Problem, config: Config, arch: Arch) -> KernelSource:
    """The CUDA C++ of one variant.

    The text depends on dtype, transposes, config and arch, not on m, n and k. Raises ConfigError for a config that
    breaks a rule; nothing is rendered then.
    """
    require(problem, config, arch)
    name = kernel_name(config, problem.dtype, problem.trans)
    text = tidy(
        environment()
        .get_template(config.template)
        .render(
            name=name,
            digest=_DIGEST,
            config=config,
            dtype=problem.dtype,
            trans=problem.trans,
            launch=config.launch_config(problem, 1),
            PACK_TILE=PACK_TILE,
            PACK_THREADS=PACK_THREADS,
            LIMB_ROWS=LIMB_ROWS,
            LIMB_THREADS=LIMB_THREADS,
            LIMB_HELD=LIMB_HELD,
        )
    )
    check(_DIGEST in text, f"{config.template} has no digest in its banner")
    code = text.replace(_DIGEST, hashlib.sha256(text.encode()).hexdigest()[:16])
    pad = f"{name}_pad" if config.edge is Edge.PAD else None
    pack = f"{name}_pack" if any(config.packs) else None
    return KernelSource(name, code, pad, pack, f"{name}_limbs" if config.limbs else None)
