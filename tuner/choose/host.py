"""Time of a variant on the processor, which runs CTAs and the threads of a CTA one after another."""

import math

from ...codegen.config import Config
from ...codegen.fit import nearest_fit
from ...codegen.leaf import Edge
from ...codegen.problem import Problem

_FMA_NS = 0.45
"""Nanoseconds of a multiply-add with operands in a cache."""
_CACHED_BYTES = 1.5e6
"""Bytes of op(B) at which a thread that reads a column of it directly from memory takes twice as long."""
_BARRIER_NS = 15.0
"""Nanoseconds of a change from one thread to the next at a barrier."""
_SHUFFLE_NS = 40.0
"""Nanoseconds of an exchange of a value between two lanes."""
_COPY_NS = 1.5
"""Nanoseconds of a copy of an operand's element to shared memory."""
_THREAD_NS = 5.0
"""Nanoseconds of the beginning and end of a thread."""
_EMULATED = 12.0
"""Factor on the time of a multiply-add where functions emulate tensor cores."""
_BARRIERS = 2
"""Number of barriers for each tile that is copied to shared memory."""


def host_us(problem: Problem, config: Config) -> float:
    """Microseconds of a variant by a model in which threads run one after another. Work beyond the edges of C counts,
    more threads or smaller tiles bring more barriers, and overlapping gains nothing.

    docs/experiments/model.md compares its order of variants with measured times.
    """
    m, n, k, size = problem.m, problem.n, problem.k, problem.dtype.size_bytes
    tile_m, tile_n, tile_k = config.cta_tile
    batch, ctas = problem.batch, config.launch_config(problem, 1).ctas
    threads = ctas * config.threads
    if not config.smem_bytes(problem.dtype):
        far = (k * n * size / _CACHED_BYTES) ** 2
        ns = batch * m * n * k * _FMA_NS * (1 + far) + threads * _THREAD_NS
    else:
        *lanes, resident = config.streamed
        cta_k = math.ceil(k / (tile_k * config.split_ctas)) * tile_k
        multiplied = ctas * tile_m * tile_n * cta_k * (_EMULATED if config.tensor_cores else 1.0)
        copied = ctas * cta_k * (min(tile_m, tile_n) if any(lanes) else tile_m + tile_n)
        barriers = _BARRIERS * math.ceil(cta_k / (resident or tile_k))
        shuffles = math.log2(max(1, *lanes)) * max(lanes) * tile_m * tile_n / config.threads
        ns = multiplied * _FMA_NS + copied * _COPY_NS
        ns += threads * (barriers * _BARRIER_NS + shuffles * _SHUFFLE_NS + _THREAD_NS)
    if nearest_fit(problem, config).edge is Edge.PAD:
        ns += batch * (m * k + k * n + 2 * m * n) * _COPY_NS
    return ns / 1e3
