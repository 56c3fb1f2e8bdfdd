"""Add a pool of kernels for products that need not be `ieee` to suites/pool.json. Needs no GPU.

    python benchmarks/pool.py normwise
    python benchmarks/pool.py elementwise

The model of the device chooses what `dataset.py` measures: kernels that split into terms, one by one, each that which
brings some shapes of the data set nearest to the best of the model, every one as tiles may be ordered; and the first
kernels of the `ieee` pool, for small shapes gain nothing by splitting. They are chosen from what a search may try: all
of a small space, and of a large one what is near the shortlist. Takes some 25 s.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator

import numpy as np
from dataset import POOL, listed
from shapes import problems
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ShapeError
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.model import Table
from tilewright.tuner.choose.ranker import decomposed, kernel_of, name_of

INFO = KNOWN["nvidia-h200"]
SHAPES = 50
KERNELS, IEEE_KERNELS = 96, 24
UNTOLD = {"raster": (1, 8), "ordered": (False, True), "evict_first": (False,)}
"""Parameters that the model does not tell apart: the values that are tried of each."""
FAR = 0.7
"""Logarithm of a slowdown from which on a kernel is no choice for a shape."""


def costs_of(problem: Problem) -> dict[Config, float]:
    """For each kernel of terms the logarithm of its time over the best, by the model."""
    found: dict[Config, float] = {}
    try:
        tried = listed(problem, INFO)
    except ShapeError:
        return {}
    configs = [config for config in tried if config.accuracy is not Grade.IEEE]
    if not configs:
        return {}  # too short a k for any
    for config, us in zip(configs, Table(configs, problem.dtype, INFO).modelled_us(problem).tolist()):
        known = {leaf.name for leaf in config.leaves()}
        base = kernel_of(config).changed(**{name: values[0] for name, values in UNTOLD.items() if name in known})
        found[base] = min(us, found.get(base, math.inf))
    best = min(found.values())
    return {base: math.log(us / best) for base, us in found.items()}


def ordered(base: Config, accuracy: Grade) -> Iterator[Config]:
    """A kernel with what the model does not tell apart, as far as it serves."""
    known = [name for name in UNTOLD if name in {leaf.name for leaf in base.leaves()}]
    for values in itertools.product(*(UNTOLD[name] for name in known)):
        config = base.changed(**dict(zip(known, values)))
        if decomposed(config, DType.FLOAT, INFO, accuracy):
            yield config


def pool_of(accuracy: Grade, shapes: int = SHAPES) -> list[str]:
    """Its kernels that split, as text."""
    tables = [table for problem in problems(accuracy)[:shapes] if (table := costs_of(problem))]
    bases = list(dict.fromkeys(base for table in tables for base in table))
    costs = np.array([[min(FAR, table.get(base, FAR)) for table in tables] for base in bases])
    best, left, found = np.full(len(tables), FAR), dict.fromkeys(range(len(bases))), dict[Config, None]()
    while left and len(found) < KERNELS:
        gains = {i: float((best - costs[i]).clip(0).sum()) for i in left}
        first = max(gains, key=gains.__getitem__)
        if gains[first] < 1e-3:
            if (best == FAR).all():
                break
            best = np.full(len(tables), FAR)  # again, as if none had been chosen
            continue
        del left[first]
        best = np.minimum(best, costs[first])
        found |= dict.fromkeys(ordered(bases[first], accuracy))
    return [*map(str, list(found)[:KERNELS])]


def main() -> None:
    """Add to the file."""
    accuracy = Grade.parse(sys.argv[1])
    name, found = name_of(DType.FLOAT, accuracy), pool_of(accuracy)
    pools = json.loads(POOL.read_text())
    pools[name] = [*found, *pools[DType.FLOAT.value][:IEEE_KERNELS]]
    POOL.write_text(json.dumps(pools, indent=1) + "\n")


if __name__ == "__main__":
    main()
