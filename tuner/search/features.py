"""What the ranker knows of a config and a problem: counts of tiles and CTAs, the times of a device's limits, and what
the config is, for many configs at a time."""

import enum
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.problem import DType, Grade, Problem
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
    WRITTEN_BYTES_PER_CYCLE,
    cta_limits,
    filled_sms,
    fma_per_cycle,
)
from .policies import policy_of
from .policies.ranked import LIMBS, RANKED, k_innermost, sliced, streamed

Floats = NDArray[np.float64]
Columns = dict[str, Floats]

_SHAPES = ((4096, 4096, 4096), (4096, 1, 4096), (1, 4096, 4096), (4096, 8, 4096), (8, 4096, 4096))
_MOST_WAVES = 6.0
"""CTAs share the k of a tile, or an SM, only up to so many CTAs for each place that the device has for one."""
_LINE_BYTES, _SECTORS_BYTES = 128, 64
"""What a warp has to read side by side at least of an operand that it streams: along k, and across it."""
_PHYSICAL = (
    "family tile_m tile_n tile_k threads work occupancy warps mode parts clustered cooperative smem_loads overhead "
    "adding ahead deep m n k trans_a trans_b tiles waves even resident used_mn used_k depth arithmetic cached traffic "
    "memory launch summed modelled issue waiting passed used_m used_n rows_of_tiles columns_of_tiles latency "
    "rounds k_of_cta copied_a copied_b row_a row_b row_c copies copying c_share sides intensity ctas refills"
).split()
IEEE_FEATURES = len(_PHYSICAL) + len(RANKED)
"""So many features, the first ones, tell kernels apart that compute as IEEE arithmetic has it."""
FEATURES = [*_PHYSICAL, *RANKED, *LIMBS, "limbs", "products", "splitting"]
"""What the trees ask for, a column each."""
_PLACES = {name: place for place, name in enumerate(FEATURES)}
_LOGARITHMS = (
    "tiles waves depth arithmetic cached traffic summed modelled issue waiting passed rows_of_tiles columns_of_tiles "
    "latency rounds k_of_cta row_a row_b copying ctas splitting"
).split()
"""Those of what changes with config and problem that are logarithms."""
_PLAIN = "warps even resident used_mn used_k used_m used_n copied_a copied_b copies refills".split()
"""Those that are not."""
_PROBLEM = "m n k trans_a trans_b row_c memory launch c_share sides intensity".split()
"""Those that are the same for every config."""
_MODELLED = tuple(
    "tile_m tile_n tile_k volume occupancy filled split stream sharing persistent threads rate tensor issue reused "
    "passing in_flight ahead waits filling packs_a packs_b limbs".split()
)
"""What the times of the device's limits need of a config."""
_DESCRIBED = tuple(
    "tile_m tile_n tile_k split elements steps summing sliced packs_a packs_b flies_a flies_b streamed_a streamed_b "
    "held".split()
)
"""What the other features need of it."""


@cache
def typical(dtype: DType, accuracy: Grade) -> tuple[Problem, ...]:
    """Products by which it is judged what a kernel can do at all: families may serve narrow ones alone."""
    return tuple(Problem(*shape, dtype, False, t, accuracy) for shape in _SHAPES for t in (False, True))


class Table:
    """Configs, and what their features need of them that is the same for every problem. For one type and device."""

    def __init__(self, configs: Sequence[Config], dtype: DType, info: DeviceInfo) -> None:
        self.configs, self.dtype, self.info = tuple(configs), dtype, info
        names = list(families())
        rows = [self._row(config, names.index(config.family)) for config in configs]
        self._columns = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
        c, sms = self._columns, info.sm_count
        self._tensor, self._skinny = bool(c["tensor"].any()), bool(c["in_flight"].any())
        self._copied, self._limbed = bool((c["packs_a"] + c["packs_b"]).any()), bool(c["limbs"].any())
        # Where the work is shared out in a way that can pay, as bounds: neither more CTAs than the device has use for,
        # nor CTAs with less than a tile of k.
        places, whole = sms * c["occupancy"], c["split"] == 1
        self._most_tiles = np.where(whole, np.inf, _MOST_WAVES * places / c["split"])
        self._least_k = np.where(whole, 0.0, c["split"] * c["tile_k"])
        can_stream = np.where(c["stream"] <= c["occupancy"], sms * c["tile_k"], np.inf)
        self._least_work = np.where(c["stream"] == 0, 0.0, can_stream)
        self._least_tiles = np.where(c["persistent"] == 1, 0.0, places)
        plain = np.ones(len(rows), np.bool_)
        self._kept = {
            (a, b): plain & (c["inner_a"] < 1 if a else plain) & (plain if b else c["inner_b"] < 1)
            for a in (False, True)
            for b in (False, True)
        }
        self._stacked = {names: np.stack([c[name] for name in names]) for names in (_MODELLED, _DESCRIBED)}
        known = [name for name in FEATURES if name in c]
        self._known = np.stack([c[name] for name in known])
        self._known_places = np.array([_PLACES[name] for name in known])

    def _row(self, config: Config, family: int) -> dict[str, float]:
        tile_m, tile_n, tile_k = config.cta_tile
        dtype, arch, size = self.dtype, self.info.arch, self.dtype.size_bytes
        cost = policy_of(config.family).cost(typical(dtype, Grade.IEEE)[0], config)
        occupancy = max(1, min(cta_limits(config, dtype, arch).values()))
        inner, elements = k_innermost(config), tile_m * tile_n
        split, stream, persistent = config.split_ctas, config.stream_ctas_per_sm, config.persistent_tiles
        written = 3.0 if stream else (1 + split / config.cooperative_ctas if split > 1 else 0.0)
        moved = (1.0 if config.clustered else written) * elements * size / ALONE_BYTES_PER_CYCLE
        adding = ((CLUSTER_CYCLES if config.clustered else SPLIT_CYCLES) + moved) * (written > 0)
        loaded = 2 * config.limbs or size  # bytes of an element in a tile
        kind: Any = type(config)
        values = config.typed
        return {
            "family": family,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "elements": elements,
            "volume": elements * tile_k,
            "steps": tile_k * split,
            "threads": config.threads,
            "occupancy": occupancy,
            "filled": filled_sms(config, self.info.sm_count),
            "split": split,
            "stream": stream,
            "persistent": persistent,
            "sharing": persistent / split,
            "mode": 2.0 * (stream > 0) + (split > 1) + 3.0 * (persistent > 1),
            "parts": split + stream + persistent - 1,
            "clustered": config.clustered,
            "cooperative": config.cooperative_ctas,
            "smem_loads": cost.smem_loads,
            "passing": cost.smem_loads * size / SMEM_BYTES_PER_CYCLE,
            "overhead": cost.overhead,
            "adding": cost.slices_cycles,
            "filling": cost.slices_cycles + adding + 2 * FILL_CYCLES * (stream > 0) + LAUNCH_CYCLES,
            "ahead": cost.ahead,
            "waits": ARRIVAL_CYCLES / max(1, cost.ahead),
            "in_flight": cost.in_flight,
            "deep": config.smem_bytes(dtype) / ((tile_m + tile_n) * tile_k * size),
            "work": math.log2(elements / config.threads),
            "reused": (1 / config.reuse[0] + 1 / config.reuse[1]) * loaded / L2_BYTES_PER_CYCLE,
            "rate": cost.rate * fma_per_cycle(dtype, config, arch),
            "issue": cost.overhead / (32 * WARPS_PER_CYCLE),
            "tensor": config.tensor_cores,
            "summing": (3.0 * stream or (split > 1) * split) * elements * size / ALONE_BYTES_PER_CYCLE,
            "packs_a": config.packs[0],
            "packs_b": config.packs[1],
            "inner_a": inner[0],
            "inner_b": inner[1],
            "flies_a": inner[0] == 0 and not config.packs[0],
            "flies_b": inner[1] == 0 and not config.packs[1],
            "sliced": max(1, sliced(config)),
            "limbs": config.limbs,
            "products": config.products,
            **streamed(config),
        } | {name: _number(kind, name, values[name]) if name in values else -1.0 for name in (*RANKED, *LIMBS)}

    def _taken(self, names: tuple[str, ...], rows: Any) -> Columns:
        return self._columns if rows is None else dict(zip(names, self._stacked[names].take(rows, axis=1)))

    def sensible(self, problem: Problem) -> NDArray[np.bool_]:
        """Which rows share out the work in a way that can pay, keep k innermost only where it is innermost in memory,
        and stream the larger operand from memory, side by side."""
        c = self._columns
        tiles = np.ceil(problem.m / c["tile_m"]) * np.ceil(problem.n / c["tile_n"])
        found: NDArray[np.bool_] = self._kept[problem.trans_a, problem.trans_b] & (tiles <= self._most_tiles)
        found &= self._least_k <= problem.k
        found &= tiles * problem.k >= self._least_work
        found &= tiles >= self._least_tiles
        if self._skinny:
            larger = {"a": problem.m >= problem.n, "b": problem.n >= problem.m}
            for x, (row, vector, along) in _stored(problem).items():
                lanes = c[f"streamed_{x}"]
                beside = vector * (lanes if along else 32 / np.maximum(1, lanes))
                needed = min(row, _LINE_BYTES if along else _SECTORS_BYTES)
                found &= (lanes == 0) | ((beside >= needed) & larger[x])
        return found

    def _physics(self, problem: Problem, rows: Any) -> Columns:
        """Counts of tiles and CTAs, and clocks of the device's limits, one after another and together."""
        c = self._taken(_MODELLED, rows)
        info, size = self.info, self.dtype.size_bytes
        m, n, k, sms = problem.m, problem.n, problem.k, info.sm_count
        tiles_m, tiles_n, depth = np.ceil(m / c["tile_m"]), np.ceil(n / c["tile_n"]), np.ceil(k / c["tile_k"])
        tiles, streams = tiles_m * tiles_n, c["stream"] > 0
        ctas = np.where(streams, np.maximum(c["stream"] * sms, tiles), np.ceil(tiles / c["persistent"]) * c["split"])
        per_sm = ctas / c["filled"]
        most = np.ceil(per_sm)
        critical = np.where(streams, tiles / sms, most * c["sharing"])  # tiles of an SM
        resident = np.minimum(c["occupancy"], most)
        rounds = np.ceil(most / resident)
        warps = resident * c["threads"] / 32
        steps = c["volume"] * depth * critical
        arithmetic, few = steps / c["rate"], 1 / warps
        busy = (arithmetic + steps * c["issue"]) * (1 + 2 * few)
        if self._tensor:
            busy = np.where(c["tensor"] > 0, arithmetic * (1 + few) * np.maximum(1, 4 * few), busy)
        cached, passed = steps * c["reused"], steps * c["passing"]
        waiting = critical / resident * depth * c["waits"]
        memory: Any = problem.bytes / info.bandwidth_gbs / 1e3 * info.clock_mhz
        waves = per_sm / c["occupancy"]
        if self._skinny:
            needed = info.bandwidth_gbs * 1e3 / sms * ARRIVAL_CYCLES / info.clock_mhz
            late = needed / (resident * c["threads"] * np.maximum(1, c["in_flight"]) * size)
            held_up = memory * (1 + late * late / 4) * np.ceil(waves) / waves
            memory = np.where(c["in_flight"] > 0, held_up, memory)
        limits = busy, passed, cached, waiting * (c["ahead"] > 0), memory
        total = np.sqrt(np.sqrt(sum(map(_fourth, limits))))
        total += FILL_CYCLES * rounds + c["filling"]
        found = {
            "tiles_m": tiles_m, "tiles_n": tiles_n, "tiles": tiles, "depth": depth, "ctas": ctas, "per_sm": per_sm,
            "most": most, "waves": waves, "rounds": rounds, "warps": warps, "arithmetic": arithmetic, "busy": busy,
            "cached": cached, "passed": passed, "waiting": waiting, "modelled": total,
        }  # fmt: skip
        per_byte = info.clock_mhz / info.bandwidth_gbs / 1e3
        if self._copied:
            packed = c["packs_a"] * (m * k) + c["packs_b"] * (n * k)
            total += 2 * size * packed * per_byte + PACK_CYCLES * (packed > 0)
        if self._limbed:  # operands are read, their limbs written, and what more it takes as if they were read twice
            found["splitting"] = (m * k + k * n) * 2 * (size + c["limbs"]) * (c["limbs"] > 0) * per_byte
            written = np.ceil(critical) * c["tile_m"] * c["tile_n"] * size / WRITTEN_BYTES_PER_CYCLE
            total += found["splitting"] + (PACK_CYCLES + written) * (c["limbs"] > 0)
        return found

    def modelled_us(self, problem: Problem, rows: Any = None) -> Floats:
        """A rough time for each config, as `estimate_us` has it but for what hardly matters here."""
        found: Floats = self._physics(problem, rows)["modelled"] / self.info.clock_mhz
        return found

    def likeliest(self, problem: Problem, count: int) -> tuple[NDArray[np.intp], Floats]:
        """The sensible rows, at most so many: those that the model of the device puts first; and their features."""
        rows = np.flatnonzero(self.sensible(problem))
        p = self._physics(problem, rows)
        if len(rows) > count:
            kept = np.argpartition(p["modelled"], count)[:count]
            rows, p = rows[kept], {name: values.take(kept) for name, values in p.items()}
        return rows, self._features(problem, rows, p)

    def features(self, problem: Problem, rows: Any = None) -> Floats:
        """A row for each config, a column for each of FEATURES."""
        return self._features(problem, rows, self._physics(problem, rows))

    def _features(self, problem: Problem, rows: Any, p: Columns) -> Floats:
        c = self._taken(_DESCRIBED, rows)
        info, size = self.info, self.dtype.size_bytes
        m, n, k = problem.m, problem.n, problem.k
        least = floor_us(info, problem) or 1.0
        cycles = info.clock_mhz * least
        found = np.empty((len(FEATURES), len(p["tiles"])))
        found[self._known_places] = self._known if rows is None else self._known.take(rows, axis=1)
        numbers: list[float] = [
            math.log2(m),
            math.log2(n),
            math.log2(k),
            problem.trans_a,
            problem.trans_b,
            math.gcd(n * size, 128),
            problem.bytes / info.bandwidth_gbs / 1e3 / least,
            math.log2(least),
            m * n * size / problem.bytes,
            math.log2(m / n),
            math.log2(problem.flops / problem.bytes),
        ]
        found[_PROBLEM_PLACES] = np.array(numbers)[:, None]
        depth, loaded = p["depth"] / c["split"], p["cached"] * (L2_BYTES_PER_CYCLE * info.sm_count)
        columns: Columns = {
            **self._copies(problem, c),
            "warps": p["warps"],
            "even": p["per_sm"] / p["most"],
            "resident": p["waves"] / np.ceil(p["waves"]),
            "used_mn": m * n / (p["tiles"] * c["elements"]),
            "used_k": k / (np.ceil(k / c["steps"]) * c["steps"]),
            "used_m": m / (p["tiles_m"] * c["tile_m"]),
            "used_n": n / (p["tiles_n"] * c["tile_n"]),
            "tiles": p["tiles"],
            "waves": p["waves"],
            "depth": depth,
            "arithmetic": p["arithmetic"] / cycles,
            "cached": p["cached"] / cycles,
            "traffic": (loaded + problem.bytes) / (info.bandwidth_gbs * 1e3 * least),
            "summed": 1 + c["summing"] / cycles,
            "modelled": p["modelled"] / cycles,
            "issue": p["busy"] / cycles,
            "waiting": p["waiting"] / cycles,
            "passed": 1e-9 + p["passed"] / cycles,
            "rows_of_tiles": p["tiles_m"],
            "columns_of_tiles": p["tiles_n"],
            "latency": p["rounds"] * depth * c["tile_k"] / (c["sliced"] * cycles),
            "rounds": p["rounds"],
            "k_of_cta": k / c["split"],
            "ctas": p["ctas"],
            "refills": np.where(c["held"] > 0, np.ceil(k / (c["split"] * np.maximum(1, c["held"]))), 0.0),
            "splitting": 1e-9 + p["splitting"] / cycles if self._limbed else np.full_like(p["tiles"], 1e-9),
        }
        columns["copying"] = columns["arithmetic"] * columns["copies"]
        found[_PLAIN_PLACES] = np.array([columns[name] for name in _PLAIN])
        found[_LOGARITHM_PLACES] = np.log2([columns[name] for name in _LOGARITHMS])
        return found.T

    def _copies(self, problem: Problem, c: Columns) -> Columns:
        """Bytes that a copy of an operand moves at a time, those of a row of a tile in memory or of what a warp streams
        of one at a time, and copies for each multiply-add."""
        size, found, copies = self.dtype.size_bytes, dict[str, Floats](), np.zeros_like(c["tile_m"])
        for (x, (row, widest, along)), side, other in zip(
            _stored(problem).items(), ("tile_m", "tile_n"), ("tile_n", "tile_m")
        ):
            vector = np.full_like(copies, widest)
            vector[c[f"packs_{x}"] > 0] = 16
            if along:  # where the family keeps k innermost or transposes in flight, that takes copies of one element
                vector[c[f"flies_{x}"] > 0] = size
            found[f"copied_{x}"] = vector
            lanes = c[f"streamed_{x}"]
            beside = vector * (lanes if along else 32 / np.maximum(1, lanes))
            found[f"row_{x}"] = np.minimum(np.where(lanes > 0, beside, c["tile_k" if along else side] * size), row)
            copies += size / (vector * c[other])
        return {**found, "copies": copies}


_PROBLEM_PLACES = np.array([_PLACES[name] for name in _PROBLEM])
_PLAIN_PLACES = np.array([_PLACES[name] for name in _PLAIN])
_LOGARITHM_PLACES = np.array([_PLACES[name] for name in _LOGARITHMS])


def _stored(problem: Problem) -> dict[str, tuple[int, int, bool]]:
    """Of A and B as they are stored: bytes of a row, of the widest copies that rows of any number allow, and whether
    rows run along k."""
    size = problem.dtype.size_bytes
    rows = {"a": (problem.stored_a[1], not problem.trans_a), "b": (problem.stored_b[1], problem.trans_b)}
    return {x: (row * size, math.gcd(row * size, 16), along) for x, (row, along) in rows.items()}


def _fourth(values: Any) -> Any:
    squares = values * values
    return squares * squares


@cache
def _number(kind: Any, name: str, value: Any) -> float:
    return float(kind.leaf(name).choices.index(value) if isinstance(value, enum.Enum) else value)
