"""Golden look-ups: the configs that 300 fixed products and 34 batches get on six devices where nobody tuned them.

The trees are evaluated by NumPy, which chooses as the C extension does, so that no compiler is needed.
"""

import base64
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device import launcher
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import look_up

GOLDEN = "tests/golden/look-ups.table"
"""Path of the file from the root."""
UNKNOWN = DeviceInfo(
    name="NVIDIA GeForce RTX 5070",
    selector="cuda",
    arch=ARCHES["sm_120"],
    sm_count=48,
    clock_mhz=2512.0,
    memory_bytes=12 * 10**9,
    l2_bytes=48 << 20,
    bandwidth_gbs=672.0,
    driver="unknown",
)
"""A GPU without an entry in KNOWN, of a generation on which nothing was measured."""
DEVICES = (
    KNOWN["nvidia-h200"],
    KNOWN["nvidia-h100-80gb-hbm3"],
    KNOWN["nvidia-a100-sxm4-80gb"],
    KNOWN["tesla-t4"],
    KNOWN["nvidia-geforce-rtx-4090"],
    UNKNOWN,
)
"""Two devices to which the ranker was fitted, three other devices of KNOWN, and UNKNOWN."""
CHOICES = 8
"""Number of choices of each look-up that the file holds."""
TOLERANCE = 1e-3
"""Largest relative difference of expected times that does not count as a change: rounding differs by processor."""
SEED = 20261127
"""Seed of the random numbers by which the problems are drawn."""
EXAMPLES = 5
"""Number of changed look-ups that a report describes."""

_KINDS = list(itertools.product(DType, (False, True), (False, True)))
"""Every type with every pair of transposes."""
_ANY, _SIDE, _FEW, _LONG = (1, 16384), (512, 16384), (1, 8), (8192, 200_000)
_DRAWN = (
    # Number of problems, accuracy, bounds of m, n and k, and the step and offset of their values.
    (64, Grade.IEEE, _ANY, _ANY, _ANY, 1, 0),
    (40, Grade.IEEE, (64, 8192), (64, 8192), (64, 8192), 16, 0),
    (40, Grade.IEEE, (32, 4096), (32, 4096), (32, 4096), 2, 1),
    (24, Grade.IEEE, _FEW, _SIDE, _SIDE, 1, 0),
    (24, Grade.IEEE, _SIDE, _FEW, _SIDE, 1, 0),
    (24, Grade.IEEE, (8, 256), (8, 256), _LONG, 1, 0),
    (16, Grade.IEEE, (1024, 8192), (1024, 8192), (1, 64), 1, 0),
    (16, Grade.IEEE, (16, 512), (1024, 16384), (64, 8192), 1, 0),
    (14, Grade.ELEMENTWISE, (128, 8192), (128, 8192), (128, 8192), 1, 0),
    (14, Grade.NORMWISE, (128, 8192), (128, 8192), (128, 8192), 1, 0),
)
_CUBES = 24
"""Number of problems near the cube of a power of two, where shipped records are near."""
_LOG2_SIDES = range(8, 14)
"""Binary logarithms of the sides of these cubes."""
_APART = 0.04
"""Largest relative difference of a dimension from the side of its cube."""
_SQUARES = 3, 5, 8, 17, 33, 48, 65, 96
"""Sizes of the matrices of batches that fill a device."""
_FILLING = 100_000
"""Number of products in such a batch."""
_PROGRAMS = (
    "64x 128x128x128, 1000x 16x16x16, 16x 512x512x512, 32x 2048x2048x64, 32x 2048x64x2048, 256x 197x197x64, "
    "128x 100x3x100, 2000x 100x100x10, 12x 333x777x555"
).split(", ")
"""Batches of sizes that are common in programs."""


@dataclass(frozen=True, slots=True)
class LookUps:
    """All look-ups, as the file holds them."""

    configs: dict[str, str]
    """Text of each first choice by its digest."""
    rows: dict[str, list[tuple[str, ...]]]
    """For each problem, a row for each device: the expected microseconds of the first choice, its digest, the first
    character of the digest of each other choice and, near a cube, the digest of the look-up with shipped records."""

    def __str__(self) -> str:
        """Text of the file: a title, a line for each config, a line for each problem with a field for each device."""
        devices = ", ".join(info.key for info in DEVICES)
        title = f"Look-ups, explained and made by tests/support/look_ups.py, on {devices}\n\n"
        configs = (f"{digest} {text}\n" for digest, text in sorted(self.configs.items(), key=lambda pair: pair[1]))
        lines = ("\t".join([problem, *map(" ".join, rows)]) + "\n" for problem, rows in self.rows.items())
        return "".join((title, *configs, "\n", *lines))

    @classmethod
    def parse(cls, text: str) -> "LookUps":
        """The look-ups in a text of the file."""
        _, configs, lines = text.rstrip("\n").split("\n\n")
        rows = {}
        for line in lines.split("\n"):
            problem, *fields = line.split("\t")
            rows[problem] = [tuple(field.split(" ")) for field in fields]
        return cls(dict(line.split(" ") for line in configs.split("\n")), rows)


def problems() -> Iterator[Problem]:
    """The problems near a cube, the other products, then the batches. Only `Random.random` is called, because its
    numbers are the same in every version of Python."""
    rng = Random(SEED)
    for dtype, *trans in itertools.islice(itertools.cycle(_KINDS), _CUBES):
        side = 2 ** _LOG2_SIDES[math.floor(rng.random() * len(_LOG2_SIDES))]
        yield Problem(*(4 * round(side * (1 + _APART * (2 * rng.random() - 1)) / 4) for _ in range(3)), dtype, *trans)
    for count, accuracy, *bounds, step, offset in _DRAWN:
        for dtype, *trans in itertools.islice(itertools.cycle(_KINDS), count):
            logs = (math.log(least) + rng.random() * math.log(most / least) for least, most in bounds)
            sizes = (step * round(math.exp(log) / step) + offset for log in logs)
            yield Problem(*sizes, dtype if accuracy is Grade.IEEE else DType.FLOAT, *trans, accuracy)
    batches = [(str(n), _FILLING) for n in _SQUARES]
    batches += [(shape, int(batch)) for batch, _, shape in (text.partition("x ") for text in _PROGRAMS)]
    for dtype, (shape, batch) in itertools.product(DType, batches):
        yield Problem.parse(shape, dtype, batch=batch)


def look_ups(step: int = 1) -> LookUps:
    """Look up every problem, or one of each `step`, on every device."""
    golden = LookUps({}, {})
    store = Store(Path("no-such-folder").absolute())  # the shipped records alone
    with mock.patch.object(launcher, "module", return_value=None):
        for i, problem in itertools.islice(enumerate(problems()), 0, None, step):
            rows = golden.rows.setdefault(f"{problem.shape} {problem.kind}", [])
            for info in DEVICES:
                ranked = Forecast(problem, info).choices(CHOICES)
                first, *others = [str(each.config) for each in ranked] or ["nothing"]
                taken = [first, *([str(store.lookup(info, problem, look_up).config)] if i < _CUBES else [])]
                us = ranked[0].expected_us or math.inf if ranked else math.inf
                first, *beside_records = map(_digest, taken)
                rows.append((f"{us:.5g}", first, "".join(_digest(text)[0] for text in others), *beside_records))
                for text in taken:
                    if golden.configs.setdefault(_digest(text), text) != text:
                        raise ValueError(f"{text} has the digest of another config: lengthen the digests")
    return golden


def changes(before: LookUps, after: LookUps) -> str:
    """A readable summary of the differences, empty where there are none. Expected times may differ by TOLERANCE."""
    if list(before.rows) != list(after.rows):
        return f"the problems of {GOLDEN} are not those of {Path(__file__).name}"
    counts, firsts, largest, examples = Counter[str](), Counter[str](), 0.0, list[str]()
    for problem, rows in after.rows.items():
        for info, old, new in zip(DEVICES, before.rows[problem], rows, strict=True):
            apart = abs(float(new[0]) / float(old[0]) - 1)
            largest = max(largest, apart)
            counts["time"] += apart > TOLERANCE
            counts["any"] += old[1:3] != new[1:3]
            firsts[info.key] += old[1] != new[1]
            counts["beside records"] += old[3:] != new[3:]
            for place, note in ((1, f"{old[0]} -> {new[0]} us expected"), (3, "beside shipped records")):
                if old[place : place + 1] != new[place : place + 1]:
                    texts = f"{before.configs[old[place]]} -> {after.configs[new[place]]}"
                    examples.append(f"  {problem} on {info.key}: {texts}, {note}")
    if not any(counts.values()):
        return ""
    by_device = ", ".join(f"{key} {count}" for key, count in firsts.items() if count)
    return "\n".join([
        f"{len(DEVICES) * len(after.rows)} look-ups: the first choice changed of {firsts.total()} ({by_device or '-'}),"
        f" any of the first {CHOICES} of {counts['any']}, the expected time of {counts['time']}, by up to {largest:.2%}"
        f"; of {len(DEVICES) * _CUBES} beside shipped records {counts['beside records']} changed",
        *examples[:EXAMPLES],
        "Judge the change by `python benchmarks/regret.py`; `python tests/golden/regenerate.py` accepts it.",
    ])  # fmt: skip


def _digest(text: str) -> str:
    """Four characters of a config's text."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:4].decode()
