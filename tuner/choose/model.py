"""Time of a variant on a GPU, by a model of the device, for many variants of one type at a time.

The model counts the clocks of an SM in each of the device's limits: issuing multiply-adds, shared memory, the
last-level cache, waiting for copies, and device memory. The limits overlap, and limits close to the slowest add to it:
the model takes the fourth root of the sum of fourth powers. It adds the clocks before a CTA's first tiles arrive, the
clocks in which CTAs that share a tile of C add up, and the kernels that pack or split operands first.

The model is made for ratios between variants of a product. Rates come from NVIDIA's data sheets;
docs/experiments/model.md has the sources of the waits, and the validation.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.fit import Fit
from ...codegen.leaf import Edge
from ...codegen.mechanisms.operands import SECTOR_BYTES, widest
from ...codegen.problem import DType, Grade, Problem
from ...codegen.target import Target
from ...runtime.device.known import CLUSTER_SHARE

Floats = NDArray[np.float64]
Columns = dict[str, Floats]

LAUNCH_CYCLES = 3500
"""Clocks from the launch to a CTA's first load, and from the last store to the end."""
FILL_CYCLES = 1500
"""Clocks until a CTA's first tiles arrive."""
FILLED_AGAIN = 0.5
"""Fraction of `FILL_CYCLES` that a persistent CTA pays again before each further tile of C."""
SPLIT_CYCLES = 2500
"""Clocks in which CTAs that share a tile of C write accumulators to device memory and count each other."""
CLUSTER_CYCLES = 1200
"""Clocks in which CTAs of a cluster write accumulators that others read, and wait for each other twice."""
PACK_CYCLES = 5000
"""Clocks from the launch to the end of a kernel that packs or splits small operands."""
ARRIVAL_CYCLES = 1000
"""Clocks from a copy's start to its end on a busy device."""
SMEM_BYTES_PER_CYCLE = 128
"""Bytes that an SM reads from shared memory in a clock."""
L2_BYTES_PER_CYCLE = 48
"""Bytes that an SM reads from the last-level cache in a clock while all SMs read."""
ALONE_BYTES_PER_CYCLE = 32
"""Bytes that a CTA reads from the last-level cache in a clock while no other CTA of its SM reads."""
WRITTEN_BYTES_PER_CYCLE = 16
"""Bytes of C that a CTA which is alone on its SM writes in a clock at its end, when nothing else runs."""
WARPS_PER_CYCLE = 4
"""Number of an SM's warps that issue an instruction in one clock."""
MOST_WAVES = 6.0
"""Most waves of CTAs that share the k of tiles: the model does not hold for more."""
LINE_BYTES, SECTORS_BYTES = 128, 64
"""Least bytes that a warp reads side by side of an operand that it streams, along k and across it."""

_SHAPES = ((4096, 4096, 4096), (4096, 1, 4096), (1, 4096, 4096), (4096, 8, 4096), (8, 4096, 4096))
_MODELLED = (
    "tile_m tile_n tile_k per_rate issue reused passing volume occupancy filled split streams streaming sharing "
    "persistent warps_of_cta lone starved flying waits waited fill filling packs_a packs_b terms neighbours ends"
).split()
"""Columns from which the limits are computed: the tile, four columns of an SM's clocks for a multiply-add, others."""

COUNTED = (
    "arithmetic cached modelled busy waiting passed splitting tiles_m tiles_n depth tiles ctas per_sm most waves "
    "rounds warps"
).split()
"""Rows of the array that `Table.physics` makes: clocks, then counts."""
CLOCKS, TOTAL, CTAS = 7, COUNTED.index("modelled"), COUNTED.index("ctas")
"""Number of rows of `COUNTED` that are clocks, index of the row of all limits together, and index of the CTAs' row."""


@cache
def typical_problems(dtype: DType, accuracy: Grade) -> tuple[Problem, ...]:
    """Products such that each useful kernel serves at least one of them: some families serve only narrow ones."""
    return tuple(Problem(*shape, dtype, False, trans, accuracy) for shape in _SHAPES for trans in (False, True))


def cta_limits(threads: int, registers: int, smem_bytes: int, arch: Arch) -> dict[str, int]:
    """Number of CTAs that an SM has room for at a time by each of its resources: slots, warps, registers and shared
    memory. A CTA takes `threads` threads of `registers` registers, and `smem_bytes` bytes of shared memory."""
    threads = -(-threads // 32) * 32
    return {
        "CTA slots": arch.max_blocks_per_sm,
        "warps": arch.max_threads_per_sm // threads,
        "registers": arch.registers_per_sm // (registers * threads),
        "shared memory": arch.smem_per_sm_bytes // max(1, smem_bytes + arch.smem_reserved_bytes),
    }


def fma_per_cycle(dtype: DType, config: Config, arch: Arch) -> int:
    """Most multiply-adds of an SM in one clock."""
    if config.tensor_cores:
        return arch.dmma_per_cycle if dtype is DType.DOUBLE else max(1, arch.mma_per_cycle // config.products)
    return arch.fma_per_cycle_float if dtype is DType.FLOAT else arch.fma_per_cycle_double


def whole_sectors(problem: Problem) -> bool:
    """Whether all rows of C begin and end with a sector of memory."""
    return problem.n * problem.dtype.size_bytes % SECTOR_BYTES == 0


def times_written(problem: Problem, c: Columns) -> Floats:
    """Bytes written over the bytes of C where sectors are written in parts: by the vectors of a thread one after
    another, and at both ends of what a warp writes side by side."""
    factors: Floats = np.maximum(c["neighbours"] / widest(problem, "c"), 1) + c["ends"]
    return factors


def stored_rows(problem: Problem) -> dict[str, tuple[int, int, bool]]:
    """For `a` and `b`: bytes of a stored row, bytes of the widest copies that all rows allow, and whether rows run
    along k."""
    size = problem.dtype.size_bytes
    rows = {"a": (problem.stored_a[1], not problem.trans_a), "b": (problem.stored_b[1], problem.trans_b)}
    return {x: (row * size, math.gcd(row * size, 16), along) for x, (row, along) in rows.items()}


class Table:
    """Configs of one type on one device, with the columns that the model computes for all problems at once."""

    def __init__(
        self, configs: Sequence[Config], dtype: DType, target: Target, corrections: Sequence[float] | None = None
    ) -> None:
        """`corrections` has the logarithm of each config's measured over its modelled time; None stands for zeros."""
        self.configs, self.dtype, self.target = tuple(configs), dtype, target
        self._factors: Floats = np.exp(corrections or np.zeros(len(self.configs)))
        self.columns = c = self._by_config()
        c["per_rate"] = 1 / c["rate"]
        self._tensor, self._skinny = bool(c["tensor"].any()), bool(c["in_flight"].any())
        self._copied, self._split = bool((c["packs_a"] + c["packs_b"]).any()), bool(c["terms"].any())
        # Bounds of a work decomposition that can pay: the device has use for all CTAs, each with at least a tile of k.
        places, whole = target.sm_count * c["occupancy"], c["split"] == 1
        can_stream = np.where(c["stream"] <= c["occupancy"], target.sm_count * c["tile_k"], np.inf)
        c |= {
            "most_tiles": np.where(whole, np.inf, MOST_WAVES * places / c["split"]),
            "least_k": np.where(whole, 0.0, c["split"] * c["tile_k"]),
            "least_work": np.where(c["stream"] == 0, 0.0, can_stream),
            "least_tiles": np.where(c["persistent"] == 1, 0.0, places),
        }
        self._modelled = np.stack([c[name] for name in _MODELLED])

    def _by_config(self) -> Columns:
        """Columns of the kernels, computed once for neighbouring configs that differ only in their work decompositions,
        and columns of these decompositions."""
        alike = [list(configs) for _, configs in itertools.groupby(self.configs, _kernel_of)]
        kernels = [self._kernel(configs[0]) for configs in alike]
        columns = np.array([[*kernel.values()] for kernel in kernels], float).T
        c: Columns = dict(zip(kernels[0], columns.repeat([len(configs) for configs in alike], axis=1)))
        divisions = np.array([each for configs in alike for each in self._divisions(configs)], float).T
        split, stream, persistent, clustered, cooperative, filled, smem_bytes, occupancy = divisions
        size, sms, elements = self.dtype.size_bytes, self.target.sm_count, c["elements"]
        streams, splits = stream > 0, split > 1
        written = np.where(streams, 3.0, np.where(splits, 1 + split / cooperative, 0.0))
        moved = np.where(clustered, 1.0, written) * elements * size / ALONE_BYTES_PER_CYCLE
        adding = (np.where(clustered, CLUSTER_CYCLES, SPLIT_CYCLES) + moved) * (written > 0)
        around = LAUNCH_CYCLES + 2 * FILL_CYCLES * streams + PACK_CYCLES * np.maximum(c["packs_a"], c["packs_b"])
        held = split * c["held"]
        return c | {
            "split": split,
            "stream": stream,
            "persistent": persistent,
            "clustered": clustered,
            "cooperative": cooperative,
            "filled": filled,
            "occupancy": occupancy,
            "steps": c["tile_k"] * split,
            "sharing": np.where(streams, 0.0, persistent / split),
            "streams": stream * sms,
            "streaming": np.where(streams, sms, np.inf),  # number of SMs that share all tiles equally
            "mode": 2.0 * streams + splits + 3.0 * (persistent > 1),
            "parts": split + stream + persistent - 1,
            "fill": FILL_CYCLES * (1 + (persistent - 1) * FILLED_AGAIN),
            "filling": c["adding"] + adding + around,
            "deep": smem_bytes / ((c["tile_m"] + c["tile_n"]) * c["tile_k"] * size),
            "summing": np.where(streams, 3.0 * stream, splits * split) * elements * size / ALONE_BYTES_PER_CYCLE,
            "held": np.where(held > 0, held, np.inf),
        }

    def _divisions(self, configs: Sequence[Config]) -> Iterator[tuple[float, ...]]:
        """Work decomposition of each of a kernel's configs, with the shared memory and occupancy of its CTAs, which
        depend on what CTAs do and not on their number."""
        resources: dict[tuple[bool, ...], tuple[int, int]] = {}
        for config in configs:
            split, stream, persistent = config.split_ctas, config.stream_ctas_per_sm, config.persistent_tiles
            clustered, cooperative = config.clustered, config.cooperative_ctas
            behaviour = split > 1, stream > 0, persistent > 1, clustered, cooperative > 1
            if behaviour not in resources:
                registers = config.registers(unaligned_fit(config, self.dtype), self.dtype)
                smem_bytes = config.smem_bytes(self.dtype)
                limits = cta_limits(config.threads, registers, smem_bytes, self.target.arch)
                resources[behaviour] = smem_bytes, max(1, min(limits.values()))
            filled = round(self.target.sm_count * (CLUSTER_SHARE.get(split, 1.0) if clustered else 1.0))
            yield split, stream, persistent, clustered, cooperative, filled, *resources[behaviour]

    def _kernel(self, config: Config) -> dict[str, float]:
        """Columns of a kernel that its work decomposition does not change; `held` is the value of one CTA where several
        share a tile."""
        tile_m, tile_n, tile_k = config.cta_tile
        dtype, size = self.dtype, self.dtype.size_bytes
        cost = config.cost(dtype, unaligned_fit(config, dtype))
        elements = tile_m * tile_n
        loaded = 2 * config.terms or size  # bytes of an element in a tile
        inner = config.k_innermost
        lanes_a, lanes_b, held = config.streamed
        return {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "elements": elements,
            "volume": elements * tile_k,
            "threads": config.threads,
            "warps_of_cta": config.threads / 32,
            "smem_loads": cost.smem_loads,
            "passing": cost.smem_loads * size / SMEM_BYTES_PER_CYCLE,
            "overhead": cost.overhead,
            "adding": cost.slices_cycles,
            "ahead": cost.ahead,
            "waits": ARRIVAL_CYCLES / max(1, cost.ahead),
            "waited": cost.ahead > 0,
            "in_flight": cost.in_flight,
            "flying": config.threads * cost.in_flight * size or math.inf,
            "reused": (1 / config.reuse[0] + 1 / config.reuse[1]) * loaded / L2_BYTES_PER_CYCLE,
            "rate": cost.rate * fma_per_cycle(dtype, config, self.target.arch),
            "issue": 0.0 if config.tensor_cores else cost.overhead / (32 * WARPS_PER_CYCLE),
            "tensor": config.tensor_cores,
            # Additional time of a warp that is alone, and number of warps that keep tensor cores busy.
            "lone": 1.0 if config.tensor_cores else 2.0,
            "starved": 4.0 * config.tensor_cores,
            "packs_a": config.packs[0],
            "packs_b": config.packs[1],
            "inner_a": inner[0],
            "inner_b": inner[1],
            "streamed_a": lanes_a,
            "streamed_b": lanes_b,
            "held": held,
            "neighbours": cost.neighbours,
            "ends": SECTOR_BYTES / (cost.beside * size) if cost.beside else 0.0,
            "terms": config.terms,
            "products": config.products,
        }

    def valid(self, problem: Problem) -> NDArray[np.bool_]:
        """Flags of the rows for which the model holds: their work decomposition can pay, they keep k innermost only
        where it is innermost in memory, and they stream the larger operand from memory, side by side."""
        c = self.columns
        tiles = np.ceil(problem.m / c["tile_m"]) * np.ceil(problem.n / c["tile_n"]) * problem.batch
        valid: NDArray[np.bool_] = tiles <= c["most_tiles"]
        valid &= c["least_k"] <= problem.k
        valid &= tiles >= np.maximum(c["least_work"] / problem.k, c["least_tiles"])
        if problem.batch > 1:  # the products of a batch do not share the CTAs of stream-K
            valid &= c["stream"] == 0
        for x, along in (("a", not problem.trans_a), ("b", problem.trans_b)):
            if not along:
                valid &= c[f"inner_{x}"] < 1
        if self._skinny:
            larger = {"a": problem.m >= problem.n, "b": problem.n >= problem.m}
            for x, (row, vector, along) in stored_rows(problem).items():
                # `beside` is the number of lanes that must read side by side.
                beside, lanes = min(row, LINE_BYTES if along else SECTORS_BYTES) / vector, c[f"streamed_{x}"]
                if along and larger[x]:
                    valid &= (lanes >= beside) | (lanes <= 0)
                else:
                    valid &= lanes <= (32 / beside if larger[x] else 0)
        return valid

    def physics(self, problem: Problem, rows: NDArray[np.intp] | None = None) -> Floats:
        """Clocks of the limits, one by one and together, and counts of tiles and CTAs, for the configs at `rows` or for
        all: a row for each of COUNTED."""
        columns = self._modelled if rows is None else self._modelled.take(rows, axis=1)
        c = dict(zip(_MODELLED, columns))
        target, size = self.target, self.dtype.size_bytes
        m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
        tiles_m, tiles_n, depth = np.ceil(np.array([[m], [n], [k]], float) / columns[:3])
        of_product = tiles_m * tiles_n
        tiles = of_product * batch
        ctas = np.maximum(np.ceil(of_product / c["persistent"]) * (c["split"] * batch), c["streams"])
        per_sm = ctas / c["filled"]
        most = np.ceil(per_sm)
        critical = most * c["sharing"] + tiles / c["streaming"]  # tiles of an SM
        resident = np.minimum(c["occupancy"], most)
        rounds = np.ceil(most / resident)
        warps = resident * c["warps_of_cta"]
        clocks = c["volume"] * depth * critical * columns[3:7]
        arithmetic, busy, cached, passed = clocks
        busy += arithmetic
        busy *= 1 + c["lone"] / warps
        if self._tensor:
            busy *= np.maximum(1, c["starved"] / warps)
        waiting = critical / resident * depth * c["waits"]
        per_byte = target.clock_mhz / target.bandwidth_gbs / 1e3
        waves = per_sm / c["occupancy"]
        memory: Any = problem.bytes * per_byte
        if not whole_sectors(problem):
            memory = memory + (times_written(problem, c) - 1) * (batch * m * n * size * per_byte)
        if self._skinny:
            # Loads in flight hide latency, warps do not: where too few are in flight, memory waits.
            few = (c["flying"] < math.inf).nonzero()[0]
            needed = target.bandwidth_gbs * 1e3 / target.sm_count * ARRIVAL_CYCLES / target.clock_mhz
            late, waves_of = needed / (resident[few] * c["flying"][few]), waves[few]
            held_up = problem.bytes * per_byte * (1 + late * late / 4) * np.ceil(waves_of) / waves_of
            memory = np.full(len(waves), memory)
            memory[few] = held_up
        of_busy, of_cached, of_passed = _fourth(clocks[1:])
        total = of_busy + of_cached + of_passed + _fourth(waiting * c["waited"]) + _fourth(memory)
        total = np.sqrt(np.sqrt(total)) + c["fill"] * rounds + c["filling"]
        splitting = np.zeros_like(total)
        if self._copied:
            packed = 2 * size * batch * k * per_byte
            total += c["packs_a"] * (m * packed) + c["packs_b"] * (n * packed)
        if self._split:  # operands are read, their terms written, and the rest takes as long as a second reading
            splitting = batch * (m * k + k * n) * 2 * (size + c["terms"]) * (c["terms"] > 0) * per_byte
            written = np.ceil(critical) * c["tile_m"] * c["tile_n"] * size / WRITTEN_BYTES_PER_CYCLE
            total += splitting + (PACK_CYCLES + written) * (c["terms"] > 0)
        return stacked(
            arithmetic, cached, total, busy, waiting, passed, splitting,
            tiles_m, tiles_n, depth, tiles, ctas, per_sm, most, waves, rounds, warps,
        )  # fmt: skip

    def modelled_us(self, problem: Problem, rows: NDArray[np.intp] | None = None) -> Floats:
        """Corrected microseconds of the configs at `rows`, or of all."""
        factors = self._factors if rows is None else self._factors.take(rows)
        us: Floats = self.physics(problem, rows)[TOTAL] * factors / self.target.clock_mhz
        return us

    def likeliest(self, problem: Problem, count: int) -> tuple[NDArray[np.intp], Floats]:
        """At most `count` of the valid rows, the fastest by the corrected model, in no order, and their `physics`."""
        rows = self.valid(problem).nonzero()[0]
        counts = self.physics(problem, rows)
        if len(rows) > count:
            total = counts[TOTAL] * self._factors.take(rows)
            fastest = (total <= np.partition(total, count - 1)[count - 1]).nonzero()[0]
            if len(fastest) > count:  # the first ones of equal times, on every processor
                fastest = fastest[total[fastest].argsort(kind="stable")[:count]]
            rows, counts = rows[fastest], counts.take(fastest, axis=1)
        return rows, counts


def unaligned_fit(config: Config, dtype: DType) -> Fit:
    """The fit of a config to operands of any alignment: only packed operands are copied in vectors."""
    problem = typical_problems(dtype, Grade.IEEE)[0]
    return Fit(config, Edge.BOUNDS, *config.widest_vectors(problem, aligned=False))


def stacked(*rows: Floats) -> Floats:
    """Vectors of one length as the rows of an array."""
    array: Floats = np.concatenate(rows).reshape(len(rows), -1)
    return array


def _kernel_of(config: Config) -> tuple[Any, ...]:
    """The family and all groups of parameters but the work decomposition."""
    kind: Any = type(config)
    return _kernel_reader(kind)(config)


@cache
def _kernel_reader(kind: Any) -> Callable[[Config], tuple[Any, ...]]:
    return attrgetter("__class__", *(field.name for field in dataclasses.fields(kind) if field.name != "split"))


def _fourth(values: Any) -> Any:
    squares = values * values
    return squares * squares
