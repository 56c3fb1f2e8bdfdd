"""Features of configs for a problem, by which the trees of a ranker decide."""

import enum
import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.problem import DType, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.device.protocol import DeviceInfo
from .model import (
    CLOCKS,
    COUNTED,
    L2_BYTES_PER_CYCLE,
    Columns,
    Floats,
    Table,
    stacked,
    stored_rows,
    times_written,
    whole_sectors,
)

FeatureRows = NDArray[np.float32]
"""Features of configs, as arrays."""
_PARAMETERS = (
    "shared", "evict_first", "raster", "l2_prefetch", "interleave", "fragments", "slices", "slice_barriers",
    "k_inner_a", "k_inner_b", "stages", "order", "lanes_m", "thread_m", "thread_n", "warp_m", "warp_n", "load",
    "pack_a", "pack_b", "min_ctas", "lanes_k", "warps_k", "thread_k", "mma_k",
)  # fmt: skip
"""Parameters that are features themselves; -1 stands for a family without the parameter."""
_KERNEL = [
    *(
        "family tile_m tile_n tile_k threads work occupancy mode parts clustered cooperative smem_loads overhead "
        "adding ahead deep"
    ).split(),
    *_PARAMETERS,
]
"""Features of a kernel and of its work decomposition."""
PROBLEM = "m n k trans_a trans_b row_c memory launch c_share sides intensity".split()
"""Features of the problem, the same for every config."""
_PLAIN = "used_m used_n used_k used_mn warps even resident copied_a copied_b copies refills pieces".split()
"""Features of config and problem, the used fractions of the tiles first."""
_LOGARITHMS = (
    "arithmetic cached modelled issue waiting passed tiles waves depth traffic summed rows_of_tiles columns_of_tiles "
    "latency rounds k_of_cta row_a row_b copying ctas written splitting"
).split()
"""Features of config and problem as logarithms to base 2."""
_TERM_PARAMETERS = ["promote", "ordered"]
"""Parameters of kernels of split terms that are features themselves."""
_SPLIT = [*_TERM_PARAMETERS, "terms", "products"]
"""Features of kernels that multiply split terms."""
FEATURES = [*_KERNEL, *PROBLEM, *_PLAIN, *_LOGARITHMS, *_SPLIT]
"""Names of all features, in the order of the columns."""
_KERNEL_END, _PROBLEM_END, _PLAIN_END, _LOGARITHMS_END = accumulate(map(len, (_KERNEL, PROBLEM, _PLAIN, _LOGARITHMS)))
IEEE_FEATURES = FEATURES.index("splitting")
"""Number of the first features: kernels of IEEE arithmetic are alike in all others."""
_DESCRIBED = (
    "tile_m tile_n steps split summing pace held streamed_a streamed_b across_a across_b deep_a deep_b wide_a wide_b "
    "least_a least_b most_a most_b copies_a copies_b neighbours ends"
).split()
"""Columns from which features of config and problem are computed. The first three are the m, n and k that the CTAs of a
tile of C cover together."""


class FeatureTable(Table):
    """Table of the model that has the columns of the features too."""

    def __init__(
        self, configs: Sequence[Config], dtype: DType, info: DeviceInfo, corrections: Sequence[float] | None = None
    ) -> None:
        super().__init__(configs, dtype, info, corrections)
        self.info, c = info, self.columns
        self._kernels = np.stack([c[name] for name in (*_KERNEL, *_SPLIT)], axis=1).astype(np.float32)
        self._described = np.stack([c[name] for name in _DESCRIBED], axis=1)
        """A row for each config, as few configs are read at a time."""

    def _kernel(self, config: Config) -> dict[str, float]:
        c, values, size = super()._kernel(config), config.typed, self.dtype.size_bytes
        tile_m, tile_n, tile_k = config.cta_tile
        kind: Any = type(config)
        c |= {
            "family": [*families()].index(config.family),
            "work": math.log2(c["elements"] / config.threads),
            "pace": tile_k / values.get("slices", 1),  # steps of k one after another in a tile
        }
        for name in (*_PARAMETERS, *_TERM_PARAMETERS):
            c[name] = _number(kind, name, values[name]) if name in values else -1.0
        for x, tile, other_tile, lanes in (
            ("a", tile_m, tile_n, config.streamed[0]),
            ("b", tile_n, tile_m, config.streamed[1]),
        ):
            packed = c[f"packs_{x}"]
            c |= {
                # Least bytes that a copy moves, most bytes where rows run along k, and bytes for each multiply-add.
                f"least_{x}": 16 * packed,
                f"most_{x}": size if c[f"inner_{x}"] == 0 and not packed else 16,
                f"copies_{x}": size / other_tile,
                # Lanes side by side across k if streamed, else bytes of a tile's rows along k and across it.
                f"across_{x}": lanes and 32 / lanes,
                f"deep_{x}": 0 if lanes else tile_k * size,
                f"wide_{x}": 0 if lanes else tile * size,
            }
        return c

    def features(self, problem: Problem, rows: Any = None, counts: Floats | None = None) -> FeatureRows:
        """A row of features for each of the table's `rows`, or for all; `counts` is their `physics`, if computed."""
        rows = np.arange(len(self.configs)) if rows is None else rows
        counts = self.physics(problem, rows) if counts is None else counts
        described = self._described.take(rows, axis=0).T.copy()
        c, p = dict(zip(_DESCRIBED, described)), dict(zip(COUNTED, counts))
        info, size = self.info, self.dtype.size_bytes
        m, n, k = problem.m, problem.n, problem.k
        least = floor_us(info, problem) or 1.0
        cycles = info.clock_mhz * least
        numbers: list[float] = [
            math.log2(m),
            math.log2(n),
            math.log2(k),
            problem.trans_a,
            problem.trans_b,
            math.gcd(n * size, 128),
            problem.bytes / info.bandwidth_gbs / 1e3 / least,
            math.log2(least),
            problem.batch * m * n * size / problem.bytes,
            math.log2(m / n),
            math.log2(problem.flops / problem.bytes),
        ]
        sizes = np.array([[m], [n], [k]], float)
        used = sizes / (np.ceil(sizes / described[:3]) * described[:3])
        clocks = counts[:CLOCKS] / cycles
        clocks[-2:] += 1e-9  # passed and splitting may be 0
        *limits, splitting = clocks
        copies, copied, side_by_side = self._copies(problem, c)
        pieces = np.ones(len(rows)) if whole_sectors(problem) else times_written(problem, c)
        depth = p["depth"] / c["split"]
        loaded = p["cached"] * (L2_BYTES_PER_CYCLE * info.sm_count)
        logarithms = stacked(
            *limits,
            p["tiles"],
            p["waves"],
            depth,
            (loaded + problem.bytes) / (info.bandwidth_gbs * 1e3 * least),
            1 + c["summing"] / cycles,
            p["tiles_m"],
            p["tiles_n"],
            p["rounds"] * depth * c["pace"] / cycles,
            p["rounds"],
            k / c["split"],
            *side_by_side,
            clocks[0] * copies,
            p["ctas"],
            pieces * (m * n * size / (info.bandwidth_gbs * 1e3 * least)),
            splitting,
        )
        plain = stacked(
            *used,
            used[0] * used[1],
            p["warps"],
            p["per_sm"] / p["most"],
            p["waves"] / np.ceil(p["waves"]),
            *copied,
            copies,
            np.ceil(k / c["held"]),
            pieces,
        )
        columns = np.empty((len(FEATURES), len(depth)), np.float32)
        kernels = self._kernels.take(rows, axis=0).T
        columns[:_KERNEL_END], columns[_LOGARITHMS_END:] = kernels[:_KERNEL_END], kernels[_KERNEL_END:]
        columns[_KERNEL_END:_PROBLEM_END] = np.array(numbers)[:, None]
        columns[_PROBLEM_END:_PLAIN_END] = plain
        columns[_PLAIN_END:_LOGARITHMS_END] = np.log2(logarithms)
        return columns.T

    def _copies(self, problem: Problem, c: Columns) -> tuple[Floats, list[Floats], list[Floats]]:
        """The number of copies for each multiply-add; the bytes of a copy of A and of B; and for both the bytes of a
        tile's row in memory, or bytes that a warp streams at a time."""
        copied, side_by_side = list[Floats](), list[Floats]()
        for x, (row, widest_copy, along) in stored_rows(problem).items():
            vector = np.maximum(widest_copy, c[f"least_{x}"])
            if along:  # a family that keeps k innermost or transposes in flight copies single elements
                vector = np.minimum(vector, c[f"most_{x}"])
            lanes, tiled = (c[f"streamed_{x}"], c[f"deep_{x}"]) if along else (c[f"across_{x}"], c[f"wide_{x}"])
            copied.append(vector)
            side_by_side.append(np.minimum(vector * lanes + tiled, row))
        return c["copies_a"] / copied[0] + c["copies_b"] / copied[1], copied, side_by_side


@cache
def _number(kind: Any, name: str, value: Any) -> float:
    return float(kind.leaf(name).choices.index(value) if isinstance(value, enum.Enum) else value)
