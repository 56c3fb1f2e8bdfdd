"""What the ranker knows of a config and a problem: counts of tiles and CTAs, the times of a device's limits, and what
the config is, for many configs at a time."""

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.config import Config
from ...codegen.families import families
from ...codegen.fit import Fit
from ...codegen.leaf import Edge
from ...codegen.mechanisms.operands import SECTOR_BYTES, widest
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
    whole_sectors,
)
from .policies import policy_of
from .policies.ranked import RANKED, TERMS, k_innermost, slices_of, streamed

Floats = NDArray[np.float64]
Taken = NDArray[np.float32]
"""Features, as trees take them."""
Columns = dict[str, Floats]

_SHAPES = ((4096, 4096, 4096), (4096, 1, 4096), (1, 4096, 4096), (4096, 8, 4096), (8, 4096, 4096))
_MOST_WAVES = 6.0
"""CTAs share the k of a tile, or an SM, only up to so many CTAs for each place that the device has for one."""
_FILLED_AGAIN = 0.5
"""Of the time until a CTA's first tiles are there, what passes again before each further tile of C of a persistent one.
By 600 random products in double: counted so, of what trees put first less lies far behind by the model than with 0 or
1."""
_LINE_BYTES, _SECTORS_BYTES = 128, 64
"""What a warp has to read side by side at least of an operand that it streams: along k, and across it."""
_KERNEL = [
    *(
        "family tile_m tile_n tile_k threads work occupancy mode parts clustered cooperative smem_loads overhead "
        "adding ahead deep"
    ).split(),
    *RANKED,
]
"""What a kernel is, and how it shares out the work."""
_PROBLEM = "m n k trans_a trans_b row_c memory launch c_share sides intensity".split()
"""What is the same for every config."""
_PLAIN = "used_m used_n used_k used_mn warps even resident copied_a copied_b copies refills pieces".split()
"""What changes with config and problem, sizes that are used first."""
_LOGARITHMS = (
    "arithmetic cached modelled issue waiting passed tiles waves depth traffic summed rows_of_tiles columns_of_tiles "
    "latency rounds k_of_cta row_a row_b copying ctas written splitting"
).split()
"""The same, as logarithms."""
_OF_TERMS = [*TERMS, "terms", "products"]
FEATURES = [*_KERNEL, *_PROBLEM, *_PLAIN, *_LOGARITHMS, *_OF_TERMS]
"""What the trees ask for, a column each."""
_KNOWN, _SAME, _COUNTS, _LOGS = itertools.accumulate(map(len, (_KERNEL, _PROBLEM, _PLAIN, _LOGARITHMS)))
"""Where the parts of that end."""
IEEE_FEATURES = FEATURES.index("splitting")
"""So many features, the first ones, tell kernels apart that compute as IEEE arithmetic has it."""
_MODELLED = (
    "tile_m tile_n tile_k per_rate issue reused passing volume occupancy filled split streams streaming sharing "
    "persistent warps_of_cta lone starved flying waits waited fill filling packs_a packs_b terms neighbours ends"
).split()
"""What the times of the device's limits need of a config: first its tile, then clocks of an SM for a multiply-add."""
_BOUNDED = "tile_m tile_n most_tiles least_k least_work least_tiles inner_a inner_b streamed_a streamed_b".split()
"""What decides whether a config is sensible for a problem."""
_DESCRIBED = (
    "tile_m tile_n steps split summing pace held streamed_a streamed_b across_a across_b deep_a deep_b wide_a wide_b "
    "least_a least_b most_a most_b copies_a copies_b neighbours ends"
).split()
"""What the other features need of it: first what CTAs that share a tile of C cover."""
_COUNTED = (
    "arithmetic cached modelled busy waiting passed splitting tiles_m tiles_n depth tiles ctas per_sm most waves "
    "rounds warps"
).split()
"""What the model makes of a config and a problem: clocks, then counts."""
_CLOCKS, _TOTAL = 7, _COUNTED.index("modelled")
"""How many of these are clocks, and which are those of all together."""


@cache
def typical(dtype: DType, accuracy: Grade) -> tuple[Problem, ...]:
    """Products by which it is judged what a kernel can do at all: families may serve narrow ones alone."""
    return tuple(Problem(*shape, dtype, False, t, accuracy) for shape in _SHAPES for t in (False, True))


class Table:
    """Configs, and what their features need of them that is the same for every problem. For one type and device."""

    def __init__(
        self,
        configs: Sequence[Config],
        dtype: DType,
        info: DeviceInfo,
        corrections: Sequence[float] | None = None,
    ) -> None:
        """`corrections`: how much more or less than by the model each config takes, as logarithms."""
        self.configs, self.dtype, self.info = tuple(configs), dtype, info
        self._factors: Floats = np.exp(corrections or np.zeros(len(self.configs)))
        c, sms = self._by_config(), info.sm_count
        c["per_rate"] = 1 / c["rate"]
        self._tensor, self._skinny = bool(c["tensor"].any()), bool(c["in_flight"].any())
        self._copied, self._termed = bool((c["packs_a"] + c["packs_b"]).any()), bool(c["terms"].any())
        # Where the work is shared out in a way that can pay, as bounds: neither more CTAs than the device has use for,
        # nor CTAs with less than a tile of k.
        places, whole = sms * c["occupancy"], c["split"] == 1
        can_stream = np.where(c["stream"] <= c["occupancy"], sms * c["tile_k"], np.inf)
        c |= {
            "most_tiles": np.where(whole, np.inf, _MOST_WAVES * places / c["split"]),
            "least_k": np.where(whole, 0.0, c["split"] * c["tile_k"]),
            "least_work": np.where(c["stream"] == 0, 0.0, can_stream),
            "least_tiles": np.where(c["persistent"] == 1, 0.0, places),
        }
        # To the bounds and to the model many configs are alike: what they are asked for is kept once.
        self._bounded, self._bounded_as = _distinct(np.stack([c[name] for name in _BOUNDED]))
        self._modelled, self._modelled_as = _distinct(np.stack([c[name] for name in _MODELLED]))
        self._known = np.stack([c[name] for name in (*_KERNEL, *_OF_TERMS)], axis=1).astype(np.float32)
        self._described = np.stack([c[name] for name in _DESCRIBED], axis=1)
        """A row for each config, for few are looked at."""

    def _by_config(self) -> Columns:
        """Columns of what a kernel is, which is asked once for the configs in a row that differ only in how they share
        out the work; and of what depends on that."""
        alike = [list(configs) for _, configs in itertools.groupby(self.configs, _but_for_split)]
        kernels = [self._kernel(configs[0]) for configs in alike]
        columns = np.array([[*kernel.values()] for kernel in kernels], float).T
        c: Columns = dict(zip(kernels[0], columns.repeat([len(configs) for configs in alike], axis=1)))
        ways = np.array([way for configs in alike for way in self._ways(configs)], float).T
        split, stream, persistent, clustered, cooperative, filled, smem_bytes, occupancy = ways
        size, sms, elements = self.dtype.size_bytes, self.info.sm_count, c["elements"]
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
            "streaming": np.where(streams, sms, np.inf),  # SMs that have all tiles in equal parts
            "mode": 2.0 * streams + splits + 3.0 * (persistent > 1),
            "parts": split + stream + persistent - 1,
            "fill": FILL_CYCLES * (1 + (persistent - 1) * _FILLED_AGAIN),
            "filling": c["adding"] + adding + around,
            "deep": smem_bytes / ((c["tile_m"] + c["tile_n"]) * c["tile_k"] * size),
            "summing": np.where(streams, 3.0 * stream, splits * split) * elements * size / ALONE_BYTES_PER_CYCLE,
            "held": np.where(held > 0, held, np.inf),
        }

    def _ways(self, configs: Sequence[Config]) -> Iterator[tuple[float, ...]]:
        """In which ways a kernel's configs share out the work, and what CTAs take of an SM: that depends on what they
        do, not on how many there are to do it."""
        taken: dict[tuple[bool, ...], tuple[int, int]] = {}
        for config in configs:
            split, stream, persistent = config.split_ctas, config.stream_ctas_per_sm, config.persistent_tiles
            clustered, cooperative = config.clustered, config.cooperative_ctas
            does = split > 1, stream > 0, persistent > 1, clustered, cooperative > 1
            if does not in taken:
                limits = cta_limits(_unaligned(config, self.dtype), self.dtype, self.info.arch)
                taken[does] = config.smem_bytes(self.dtype), max(1, min(limits.values()))
            filled = filled_sms(config, self.info.sm_count)
            yield split, stream, persistent, clustered, cooperative, filled, *taken[does]

    def _kernel(self, config: Config) -> dict[str, float]:
        """What a kernel is in whichever way it shares out the work; `held` for one CTA of those that share a tile."""
        tile_m, tile_n, tile_k = config.cta_tile
        dtype, size = self.dtype, self.dtype.size_bytes
        cost = policy_of(config.family).cost(typical(dtype, Grade.IEEE)[0], config, _unaligned(config, dtype))
        values = config.typed
        inner, elements = k_innermost(values), tile_m * tile_n
        loaded = 2 * config.terms or size  # bytes of an element in a tile
        lanes_a, lanes_b, held = streamed(values)
        kind: Any = type(config)
        return {
            "family": _family_places()[config.family],
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "elements": elements,
            "volume": elements * tile_k,
            "pace": tile_k / slices_of(values),  # steps of k one after another in a tile
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
            "work": math.log2(elements / config.threads),
            "reused": (1 / config.reuse[0] + 1 / config.reuse[1]) * loaded / L2_BYTES_PER_CYCLE,
            "rate": cost.rate * fma_per_cycle(dtype, config, self.info.arch),
            "issue": 0.0 if config.tensor_cores else cost.overhead / (32 * WARPS_PER_CYCLE),
            "tensor": config.tensor_cores,
            # How much longer a warp takes that is alone, and how many warps keep tensor cores busy.
            "lone": 1.0 if config.tensor_cores else 2.0,
            "starved": 4.0 * config.tensor_cores,
            "packs_a": config.packs[0],
            "packs_b": config.packs[1],
            "inner_a": inner[0],
            "inner_b": inner[1],
            # Bytes that a copy moves at least and, of rows that run along k, at most; bytes for each multiply-add.
            "least_a": 16 * config.packs[0],
            "least_b": 16 * config.packs[1],
            "most_a": size if inner[0] == 0 and not config.packs[0] else 16,
            "most_b": size if inner[1] == 0 and not config.packs[1] else 16,
            "copies_a": size / tile_n,
            "copies_b": size / tile_m,
            "held": held,
            "neighbours": cost.neighbours,
            "ends": SECTOR_BYTES / (cost.beside * size) if cost.beside else 0.0,
            "terms": config.terms,
            "products": config.products,
            # Lanes side by side along k and across it, of what is streamed; else bytes of a tile's rows along k and
            # across it.
            "streamed_a": lanes_a,
            "streamed_b": lanes_b,
            "across_a": lanes_a and 32 / lanes_a,
            "across_b": lanes_b and 32 / lanes_b,
            "deep_a": 0 if lanes_a else tile_k * size,
            "deep_b": 0 if lanes_b else tile_k * size,
            "wide_a": 0 if lanes_a else tile_m * size,
            "wide_b": 0 if lanes_b else tile_n * size,
        } | {name: _number(kind, name, values[name]) if name in values else -1.0 for name in (*RANKED, *TERMS)}

    def sensible(self, problem: Problem) -> NDArray[np.bool_]:
        """Which rows share out the work in a way that can pay, keep k innermost only where it is innermost in memory,
        and stream the larger operand from memory, side by side."""
        c = dict(zip(_BOUNDED, self._bounded))
        tiles = np.ceil(problem.m / c["tile_m"]) * np.ceil(problem.n / c["tile_n"])
        found: NDArray[np.bool_] = tiles <= c["most_tiles"]
        found &= c["least_k"] <= problem.k
        found &= tiles >= np.maximum(c["least_work"] / problem.k, c["least_tiles"])
        for x, along in (("a", not problem.trans_a), ("b", problem.trans_b)):
            if not along:
                found &= c[f"inner_{x}"] < 1
        if self._skinny:
            larger = {"a": problem.m >= problem.n, "b": problem.n >= problem.m}
            for x, (row, vector, along) in _stored(problem).items():
                # So many lanes read side by side, or at least so many.
                beside, lanes = min(row, _LINE_BYTES if along else _SECTORS_BYTES) / vector, c[f"streamed_{x}"]
                if along and larger[x]:
                    found &= (lanes >= beside) | (lanes <= 0)
                else:
                    found &= lanes <= (32 / beside if larger[x] else 0)
        return found.take(self._bounded_as)

    def _physics(self, problem: Problem, some: NDArray[np.intp]) -> Floats:
        """Clocks of the device's limits, one after another and together, and counts of tiles and CTAs, for some of what
        is modelled: a row for each of _COUNTED."""
        taken = self._modelled.take(some, axis=1)
        c = dict(zip(_MODELLED, taken))
        info, size = self.info, self.dtype.size_bytes
        m, n, k = problem.m, problem.n, problem.k
        tiles_m, tiles_n, depth = np.ceil(np.array([[m], [n], [k]], float) / taken[:3])
        tiles = tiles_m * tiles_n
        ctas = np.maximum(np.ceil(tiles / c["persistent"]) * c["split"], c["streams"])
        per_sm = ctas / c["filled"]
        most = np.ceil(per_sm)
        critical = most * c["sharing"] + tiles / c["streaming"]  # tiles of an SM
        resident = np.minimum(c["occupancy"], most)
        rounds = np.ceil(most / resident)
        warps = resident * c["warps_of_cta"]
        clocks = c["volume"] * depth * critical * taken[3:7]
        arithmetic, busy, cached, passed = clocks
        busy += arithmetic
        busy *= 1 + c["lone"] / warps
        if self._tensor:
            busy *= np.maximum(1, c["starved"] / warps)
        waiting = critical / resident * depth * c["waits"]
        per_byte = info.clock_mhz / info.bandwidth_gbs / 1e3
        waves = per_sm / c["occupancy"]
        memory: Any = problem.bytes * per_byte
        if not whole_sectors(problem):
            memory = memory + (_times_written(problem, c) - 1) * (m * n * size * per_byte)
        if self._skinny:
            few = (c["flying"] < math.inf).nonzero()[0]
            needed = info.bandwidth_gbs * 1e3 / info.sm_count * ARRIVAL_CYCLES / info.clock_mhz
            late, waves_of = needed / (resident[few] * c["flying"][few]), waves[few]
            held_up = problem.bytes * per_byte * (1 + late * late / 4) * np.ceil(waves_of) / waves_of
            memory = np.full(len(waves), memory)
            memory[few] = held_up
        of_busy, of_cached, of_passed = _fourth(clocks[1:])
        total = of_busy + of_cached + of_passed + _fourth(waiting * c["waited"]) + _fourth(memory)
        total = np.sqrt(np.sqrt(total)) + c["fill"] * rounds + c["filling"]
        splitting = np.zeros_like(total)
        if self._copied:
            total += c["packs_a"] * (2 * size * m * k * per_byte) + c["packs_b"] * (2 * size * n * k * per_byte)
        if self._termed:  # operands are read, their terms written, and what more it takes as if they were read twice
            splitting = (m * k + k * n) * 2 * (size + c["terms"]) * (c["terms"] > 0) * per_byte
            written = np.ceil(critical) * c["tile_m"] * c["tile_n"] * size / WRITTEN_BYTES_PER_CYCLE
            total += splitting + (PACK_CYCLES + written) * (c["terms"] > 0)
        return _stacked(
            arithmetic, cached, total, busy, waiting, passed, splitting,
            tiles_m, tiles_n, depth, tiles, ctas, per_sm, most, waves, rounds, warps,
        )  # fmt: skip

    def modelled_us(self, problem: Problem, rows: Any = None) -> Floats:
        """A rough time for each config, as `estimate_us` has it but for what hardly matters here, corrected."""
        rows = np.arange(len(self.configs)) if rows is None else rows
        clocks = self._physics(problem, self._modelled_as.take(rows))[_TOTAL]
        us: Floats = clocks * self._factors.take(rows) / self.info.clock_mhz
        return us

    def likeliest(self, problem: Problem, count: int) -> tuple[NDArray[np.intp], Taken]:
        """The sensible rows, at most so many: those that the model of the device, corrected, puts first; and their
        features."""
        rows = self.sensible(problem).nonzero()[0]
        modelled = self._modelled_as.take(rows)
        # What the model cannot tell apart is modelled once.
        asked, place = np.zeros(self._modelled.shape[1], np.bool_), np.empty(self._modelled.shape[1], np.intp)
        asked[modelled] = True
        some = asked.nonzero()[0]
        place[some] = np.arange(len(some))
        counted, places = self._physics(problem, some), place.take(modelled)
        if len(rows) > count:
            total = counted[_TOTAL].take(places) * self._factors.take(rows)
            kept = (total <= np.partition(total, count - 1)[count - 1]).nonzero()[0]
            if len(kept) > count:  # of equal ones the first, whatever the processor
                kept = kept[total[kept].argsort(kind="stable")[:count]]
            rows, places = rows[kept], places[kept]
        return rows, self._features(problem, rows, counted.take(places, axis=1))

    def features(self, problem: Problem, rows: Any = None) -> Taken:
        """A row for each config, a column for each of FEATURES."""
        rows = np.arange(len(self.configs)) if rows is None else rows
        return self._features(problem, rows, self._physics(problem, self._modelled_as.take(rows)))

    def _features(self, problem: Problem, rows: Any, counted: Floats) -> Taken:
        described = self._described.take(rows, axis=0).T.copy()
        c, p = dict(zip(_DESCRIBED, described)), dict(zip(_COUNTED, counted))
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
            m * n * size / problem.bytes,
            math.log2(m / n),
            math.log2(problem.flops / problem.bytes),
        ]
        sizes = np.array([[m], [n], [k]], float)
        used = sizes / (np.ceil(sizes / described[:3]) * described[:3])
        clocks = counted[:_CLOCKS] / cycles
        clocks[-2:] += 1e-9  # passed and splitting, of which there may be none
        *limits, splitting = clocks
        copies, copied, side_by_side = self._copies(problem, c)
        pieces = np.ones(len(rows)) if whole_sectors(problem) else _times_written(problem, c)
        depth = p["depth"] / c["split"]
        loaded = p["cached"] * (L2_BYTES_PER_CYCLE * info.sm_count)
        logarithms = _stacked(
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
        plain = _stacked(
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
        found = np.empty((len(FEATURES), len(depth)), np.float32)
        known = self._known.take(rows, axis=0).T
        found[:_KNOWN], found[_LOGS:] = known[:_KNOWN], known[_KNOWN:]
        found[_KNOWN:_SAME] = np.array(numbers)[:, None]
        found[_SAME:_COUNTS] = plain
        found[_COUNTS:_LOGS] = np.log2(logarithms)
        return found.T

    def _copies(self, problem: Problem, c: Columns) -> tuple[Floats, list[Floats], list[Floats]]:
        """Copies for each multiply-add; for A and B the bytes that a copy moves at a time, and those of a row of a tile
        in memory or of what a warp streams of one at a time."""
        copied, side_by_side = list[Floats](), list[Floats]()
        for x, (row, widest_copy, along) in _stored(problem).items():
            vector = np.maximum(widest_copy, c[f"least_{x}"])
            if along:  # where the family keeps k innermost or transposes in flight, that takes copies of one element
                vector = np.minimum(vector, c[f"most_{x}"])
            lanes, tiled = (c[f"streamed_{x}"], c[f"deep_{x}"]) if along else (c[f"across_{x}"], c[f"wide_{x}"])
            copied.append(vector)
            side_by_side.append(np.minimum(vector * lanes + tiled, row))
        return c["copies_a"] / copied[0] + c["copies_b"] / copied[1], copied, side_by_side


def _unaligned(config: Config, dtype: DType) -> Fit:
    """The instance for operands of any alignment: only what is packed first is copied in vectors."""
    return Fit(config, Edge.BOUNDS, *config.widest_vectors(typical(dtype, Grade.IEEE)[0], aligned=False))


@cache
def _family_places() -> dict[str, int]:
    return {name: place for place, name in enumerate(families())}


def _but_for_split(config: Config) -> tuple[Any, ...]:
    """The family and all groups of parameters but how the work is shared out."""
    kind: Any = type(config)
    return _reader(kind)(config)


@cache
def _reader(kind: Any) -> Callable[[Config], tuple[Any, ...]]:
    return attrgetter("__class__", *(field.name for field in dataclasses.fields(kind) if field.name != "split"))


def _stored(problem: Problem) -> dict[str, tuple[int, int, bool]]:
    """Of A and B as they are stored: bytes of a row, of the widest copies that rows of any number allow, and whether
    rows run along k."""
    size = problem.dtype.size_bytes
    rows = {"a": (problem.stored_a[1], not problem.trans_a), "b": (problem.stored_b[1], problem.trans_b)}
    return {x: (row * size, math.gcd(row * size, 16), along) for x, (row, along) in rows.items()}


def _times_written(problem: Problem, c: Columns) -> Floats:
    """How many times as much is written as C has, as the model has it, where rows are no whole sectors."""
    found: Floats = np.maximum(c["neighbours"] / widest(problem, "c"), 1) + c["ends"]
    return found


def _distinct(columns: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Each column once, in their order, and for each column which that is."""
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(column.tobytes(), len(places)) for column in columns.T])
    return columns.take(np.unique(which, return_index=True)[1], axis=1), which


def _stacked(*rows: Floats) -> Floats:
    found: Floats = np.concatenate(rows).reshape(len(rows), -1)
    return found


def _fourth(values: Any) -> Any:
    squares = values * values
    return squares * squares


@cache
def _number(kind: Any, name: str, value: Any) -> float:
    return float(kind.leaf(name).choices.index(value) if isinstance(value, enum.Enum) else value)
