"""What the ranker knows of a config and a problem: counts of tiles and CTAs, the times of a device's limits, and what
the config is, for many configs at a time."""

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.leaf import Leaf
from ...codegen.problem import DType, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.device.protocol import DeviceInfo
from .model import (
    ALONE_BYTES_PER_CYCLE,
    ARRIVAL_CYCLES,
    CLUSTER_CYCLES,
    FILL_CYCLES,
    L2_BYTES_PER_CYCLE,
    LAUNCH_CYCLES,
    PACK_CYCLES,
    SMEM_BYTES_PER_CYCLE,
    SPLIT_CYCLES,
    WARPS_PER_CYCLE,
    cta_limits,
)
from .policies import policy_of
from .policies.ranked import RANKED, k_innermost, sliced

Floats = NDArray[np.float64]

_SHAPES = ((4096, 4096, 4096), (4096, 1, 4096), (1, 4096, 4096), (4096, 8, 4096), (8, 4096, 4096))
TYPICAL = {
    dtype: tuple(Problem(*shape, dtype, False, t) for shape in _SHAPES for t in (False, True)) for dtype in DType
}
"""Products by which it is judged what a kernel can do at all: families may serve narrow ones alone."""
_MOST_WAVES = 6.0
"""CTAs share the k of a tile, or an SM, only up to so many CTAs for each place that the device has for one."""
_PHYSICAL = (
    "family tile_m tile_n tile_k threads work occupancy warps mode parts clustered cooperative smem_loads overhead "
    "adding ahead deep m n k trans_a trans_b tiles waves even resident used_mn used_k depth arithmetic cached traffic "
    "memory launch summed modelled issue waiting passed used_m used_n rows_of_tiles columns_of_tiles latency "
    "rounds k_of_cta copied_a copied_b row_a row_b row_c copies copying c_share sides intensity ctas"
).split()
FEATURES = [*_PHYSICAL, *RANKED]
"""What the trees ask for, a column each."""


class Table:
    """Configs, and what their features need of them that is the same for every problem. For one type and device."""

    def __init__(self, configs: Sequence[Config], dtype: DType, info: DeviceInfo) -> None:
        self.configs, self.dtype, self.info = tuple(configs), dtype, info
        names = list(families())
        rows = [self._row(config, names.index(config.family), TYPICAL[dtype][0]) for config in configs]
        self._names = list(rows[0])
        self._columns = np.array([list(row.values()) for row in rows], float).T.copy()

    def _row(self, config: Config, family: int, typical: Problem) -> dict[str, float]:
        tile_m, tile_n, tile_k = config.cta_tile
        cost = policy_of(config.family).cost(typical, config)
        limits = cta_limits(config, self.dtype, self.info.arch)
        tensor = self.info.arch.dmma_per_cycle if config.tensor_cores else 0
        lanes = "fma_per_cycle_float" if self.dtype is DType.FLOAT else "fma_per_cycle_double"
        inner = k_innermost(config)
        values = {leaf.name: (leaf, config.get(leaf.name)) for leaf in config.leaves()}
        return {
            "family": family,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "threads": config.threads,
            "occupancy": max(1, min(limits.values())),
            "split": config.split_ctas,
            "stream": config.stream_ctas_per_sm,
            "persistent": config.persistent_tiles,
            "clustered": config.clustered,
            "cooperative": config.cooperative_ctas,
            "smem_loads": cost.smem_loads,
            "overhead": cost.overhead,
            "adding": cost.slices_cycles,
            "ahead": cost.ahead,
            "in_flight": cost.in_flight,
            "smem": config.smem_bytes(self.dtype),
            "reuse_a": config.reuse[0],
            "reuse_b": config.reuse[1],
            "rate": tensor or getattr(self.info.arch, lanes),
            "tensor": config.tensor_cores,
            "packs_a": config.packs[0],
            "packs_b": config.packs[1],
            "inner_a": inner[0],
            "inner_b": inner[1],
            "sliced": max(1, sliced(config)),
        } | {name: _number(*values[name]) if name in values else -1.0 for name in RANKED}

    def _taken(self, rows: Any) -> dict[str, Floats]:
        return dict(zip(self._names, self._columns if rows is None else self._columns.take(rows, axis=1)))

    def sensible(self, problem: Problem) -> NDArray[np.bool_]:
        """Which rows share out the work in a way that can pay: neither more CTAs than the device has use for, nor CTAs
        with less than a tile of k; and keep k innermost only where it is innermost in memory."""
        c, sms = self._taken(None), self.info.sm_count
        tiles = np.ceil(problem.m / c["tile_m"]) * np.ceil(problem.n / c["tile_n"])
        places = sms * c["occupancy"]
        shared = (c["split"] == 1) | (
            (tiles * c["split"] <= _MOST_WAVES * places) & (c["split"] * c["tile_k"] <= problem.k)
        )
        streamed = (c["stream"] == 0) | ((c["stream"] <= c["occupancy"]) & (tiles * problem.k >= sms * c["tile_k"]))
        several = (c["persistent"] == 1) | (tiles >= places)
        found: NDArray[np.bool_] = shared & streamed & several
        if problem.trans_a:
            found &= c["inner_a"] < 1
        if not problem.trans_b:
            found &= c["inner_b"] < 1
        return found

    def _physics(self, problem: Problem, c: dict[str, Floats]) -> dict[str, Floats]:
        """Counts of tiles and CTAs, and clocks of the device's limits, one after another and together."""
        info, size = self.info, self.dtype.size_bytes
        m, n, k, sms = problem.m, problem.n, problem.k, info.sm_count
        tiles_m, tiles_n, depth = np.ceil(m / c["tile_m"]), np.ceil(n / c["tile_n"]), np.ceil(k / c["tile_k"])
        tiles, streams, elements = tiles_m * tiles_n, c["stream"] > 0, c["tile_m"] * c["tile_n"]
        ctas = np.where(streams, np.maximum(c["stream"] * sms, tiles), np.ceil(tiles / c["persistent"]) * c["split"])
        per_sm = ctas / sms
        critical = np.where(streams, tiles / sms, np.ceil(per_sm) * c["persistent"] / c["split"])  # tiles of an SM
        resident = np.minimum(c["occupancy"], np.ceil(per_sm))
        rounds = np.ceil(np.ceil(per_sm) / resident)
        warps = resident * c["threads"] / 32
        steps = elements * c["tile_k"] * depth * critical
        arithmetic = steps / c["rate"]
        busy = np.where(
            c["tensor"] > 0,
            arithmetic * (1 + 1 / warps) * np.maximum(1, 4 / warps),
            (arithmetic + steps * c["overhead"] / (32 * WARPS_PER_CYCLE)) * (1 + 2 / warps),
        )
        cached = steps * (1 / c["reuse_a"] + 1 / c["reuse_b"]) * size / L2_BYTES_PER_CYCLE
        passed = steps * c["smem_loads"] * size / SMEM_BYTES_PER_CYCLE
        waiting = critical / resident * depth * ARRIVAL_CYCLES / np.maximum(1, c["ahead"])
        memory = problem.bytes / info.bandwidth_gbs / 1e3 * info.clock_mhz
        memories = memory * np.ones_like(tiles)
        waves = per_sm / c["occupancy"]
        if (skinny := c["in_flight"] > 0).any():
            needed = info.bandwidth_gbs * 1e3 / sms * ARRIVAL_CYCLES / info.clock_mhz
            held = resident * c["threads"] * np.maximum(1, c["in_flight"]) * size
            memories = np.where(skinny, memory * (1 + (needed / held) ** 2 / 4) * np.ceil(waves) / waves, memory)
        written = np.where(streams, 3.0, np.where(c["split"] > 1, 1 + c["split"] / c["cooperative"], 0.0))
        clustered = c["clustered"] > 0
        moved = np.where(clustered, 1.0, written) * elements * size / ALONE_BYTES_PER_CYCLE
        adding = c["adding"] + (np.where(clustered, CLUSTER_CYCLES, SPLIT_CYCLES) + moved) * (written > 0)
        fill = FILL_CYCLES * (rounds + 2 * streams)
        slowest = (busy**4 + passed**4 + cached**4 + (waiting * (c["ahead"] > 0)) ** 4 + memories**4) ** 0.25
        packed = (c["packs_a"]) * m * k + (c["packs_b"]) * n * k
        packing = 2 * size * packed / info.bandwidth_gbs / 1e3 * info.clock_mhz + PACK_CYCLES * (packed > 0)
        return {
            "tiles_m": tiles_m, "tiles_n": tiles_n, "tiles": tiles, "depth": depth, "ctas": ctas, "per_sm": per_sm,
            "waves": waves, "rounds": rounds, "warps": warps, "arithmetic": arithmetic, "busy": busy, "cached": cached,
            "passed": passed, "waiting": waiting,
            "modelled": slowest + fill + adding + packing + LAUNCH_CYCLES,
        }  # fmt: skip

    def modelled_us(self, problem: Problem, rows: Any = None) -> Floats:
        """A rough time for each config, as `estimate_us` has it but for what hardly matters here."""
        found: Floats = self._physics(problem, self._taken(rows))["modelled"] / self.info.clock_mhz
        return found

    def likeliest(self, problem: Problem, count: int) -> NDArray[np.intp]:
        """The sensible rows, at most so many: those that the model of the device puts first."""
        rows = np.flatnonzero(self.sensible(problem))
        if len(rows) > count:
            rows = rows[np.argpartition(self.modelled_us(problem, rows), count)[:count]]
        return rows

    def features(self, problem: Problem, rows: Any = None) -> Floats:
        """A row for each config, a column for each of FEATURES."""
        c, info, size = self._taken(rows), self.info, self.dtype.size_bytes
        m, n, k, sms = problem.m, problem.n, problem.k, info.sm_count
        p = self._physics(problem, c)
        least = floor_us(info, problem) or 1.0
        mhz = info.clock_mhz * least
        streams = c["stream"] > 0
        rounded = np.ceil(k / (c["tile_k"] * c["split"])) * c["tile_k"] * c["split"]
        sums = np.where(streams, 3.0 * c["stream"], np.where(c["split"] > 1, c["split"], 0.0))
        one = np.ones_like(p["tiles"])
        columns = {**c, **self._copies(problem, c)}
        numbers = {
            "m": math.log2(m),
            "n": math.log2(n),
            "k": math.log2(k),
            "trans_a": problem.trans_a,
            "trans_b": problem.trans_b,
            "row_c": math.gcd(n * size, 128),
            "memory": problem.bytes / info.bandwidth_gbs / 1e3 / least,
            "launch": math.log2(least),
            "c_share": m * n * size / problem.bytes,
            "sides": math.log2(m / n),
            "intensity": math.log2(problem.flops / problem.bytes),
        }
        columns |= {name: value * one for name, value in numbers.items()}
        depth, loaded = p["depth"] / c["split"], p["cached"] * L2_BYTES_PER_CYCLE
        columns |= {
            "work": np.log2(c["tile_m"] * c["tile_n"] / c["threads"]),
            "warps": p["warps"],
            "mode": 2.0 * streams + (c["split"] > 1) + 3.0 * (c["persistent"] > 1),
            "parts": c["split"] + c["stream"] + c["persistent"] - 1,
            "deep": c["smem"] / ((c["tile_m"] + c["tile_n"]) * c["tile_k"] * size),
            "tiles": np.log2(p["tiles"]),
            "waves": np.log2(p["waves"]),
            "even": p["per_sm"] / np.ceil(p["per_sm"]),
            "resident": p["waves"] / np.ceil(p["waves"]),
            "used_mn": m * n / (p["tiles"] * c["tile_m"] * c["tile_n"]),
            "used_k": k / rounded,
            "depth": np.log2(depth),
            "arithmetic": np.log2(p["arithmetic"] / mhz),
            "cached": np.log2(p["cached"] / mhz),
            "traffic": np.log2((loaded * sms + problem.bytes) / info.bandwidth_gbs / 1e3 / least),
            "summed": np.log2(1 + sums * c["tile_m"] * c["tile_n"] * size / ALONE_BYTES_PER_CYCLE / mhz),
            "modelled": np.log2(p["modelled"] / mhz),
            "issue": np.log2(p["busy"] / mhz),
            "waiting": np.log2(p["waiting"] / mhz),
            "passed": np.log2(1e-9 + p["passed"] / mhz),
            "used_m": m / (p["tiles_m"] * c["tile_m"]),
            "used_n": n / (p["tiles_n"] * c["tile_n"]),
            "rows_of_tiles": np.log2(p["tiles_m"]),
            "columns_of_tiles": np.log2(p["tiles_n"]),
            "latency": np.log2(p["rounds"] * depth * c["tile_k"] / c["sliced"] / mhz),
            "rounds": np.log2(p["rounds"]),
            "k_of_cta": np.log2(k / c["split"]),
            "copying": np.log2(p["arithmetic"] * columns["copies"] / mhz),
            "ctas": np.log2(p["ctas"]),
        }  # fmt: skip
        return np.stack([columns[name] for name in FEATURES], axis=1).astype(float)

    def _copies(self, problem: Problem, c: dict[str, Floats]) -> dict[str, Floats]:
        """Bytes that a copy of an operand moves at a time, bytes of a tile's row in memory, and copies for each
        multiply-add."""
        size, found = self.dtype.size_bytes, dict[str, Floats]()
        copies = np.zeros_like(c["tile_m"])
        for x, row, along, side, other in (
            ("a", problem.stored_a[1], not problem.trans_a, "tile_m", "tile_n"),
            ("b", problem.stored_b[1], problem.trans_b, "tile_n", "tile_m"),
        ):
            packed, inner = c[f"packs_{x}"] > 0, c[f"inner_{x}"]
            vector = np.where(packed, 16.0, math.gcd(row * size, 16))
            if along:  # where the family keeps k innermost or transposes in flight, that takes copies of one element
                vector = np.where((inner == 0) & ~packed, size, vector)
            found[f"copied_{x}"] = vector
            found[f"row_{x}"] = np.log2(np.minimum(c["tile_k" if along else side], row) * size)
            copies += size / (vector * c[other])
        return {**found, "copies": copies}


def _number(leaf: Leaf, value: Any) -> float:
    return float(leaf.choices.index(value) if isinstance(value, enum.Enum) else value)
