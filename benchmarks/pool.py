"""Add a pool of kernels for products that need not be `ieee` to suites/pool.json. Needs no GPU.

    python benchmarks/pool.py normwise
    python benchmarks/pool.py elementwise

The pool has kernels that `dataset.py` measures for many problems. The model of a device chooses those that split into
terms one by one, from the configs that a search may try: each is the kernel that brings some shapes of the data set
nearest to the model's best, and enters with every order of tiles. The first kernels of the `ieee` pool follow, as small
shapes gain nothing by splitting. The script takes some 25 s.
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
"""Device whose model chooses."""
SHAPES = 50
"""Problems for which kernels are chosen."""
KERNELS, IEEE_KERNELS = 96, 24
"""Kernels of a pool that split into terms, and kernels of the `ieee` pool that follow."""
UNMODELLED = {"raster": (1, 8), "ordered": (False, True), "evict_first": (False,)}
"""Parameters that the model ignores, with the values that enter the pool."""
FAR = 0.7
"""Logarithm of the slowdown from which on a kernel is no choice for a shape."""


def costs_of(problem: Problem) -> dict[Config, float]:
    """The logarithm of the modelled time over the least one for each kernel that splits into terms."""
    times: dict[Config, float] = {}
    try:
        candidates = listed(problem, INFO)
    except ShapeError:
        return {}
    configs = [config for config in candidates if config.accuracy is not Grade.IEEE]
    if not configs:
        return {}  # k is too short for them
    for config, us in zip(configs, Table(configs, problem.dtype, INFO).modelled_us(problem).tolist()):
        names = {leaf.name for leaf in config.leaves()}
        base = kernel_of(config).changed(**{name: values[0] for name, values in UNMODELLED.items() if name in names})
        times[base] = min(us, times.get(base, math.inf))
    least_us = min(times.values())
    return {base: math.log(us / least_us) for base, us in times.items()}


def ordered(base: Config, accuracy: Grade) -> Iterator[Config]:
    """A kernel with all values of UNMODELLED with which it serves an accuracy."""
    names = [name for name in UNMODELLED if name in {leaf.name for leaf in base.leaves()}]
    for values in itertools.product(*(UNMODELLED[name] for name in names)):
        config = base.changed(**dict(zip(names, values)))
        if decomposed(config, DType.FLOAT, INFO, accuracy):
            yield config


def pool_of(accuracy: Grade, shapes: int = SHAPES) -> list[str]:
    """The kernels of an accuracy's pool that split into terms, as text."""
    tables = [table for problem in problems(accuracy)[:shapes] if (table := costs_of(problem))]
    bases = list(dict.fromkeys(base for table in tables for base in table))
    costs = np.array([[min(FAR, table.get(base, FAR)) for table in tables] for base in bases])
    best, rest, chosen = np.full(len(tables), FAR), dict.fromkeys(range(len(bases))), dict[Config, None]()
    while rest and len(chosen) < KERNELS:
        gains = {i: float((best - costs[i]).clip(0).sum()) for i in rest}
        first = max(gains, key=gains.__getitem__)
        if gains[first] < 1e-3:
            if (best == FAR).all():
                break
            best = np.full(len(tables), FAR)  # the next round chooses as if none had been chosen
            continue
        del rest[first]
        best = np.minimum(best, costs[first])
        chosen |= dict.fromkeys(ordered(bases[first], accuracy))
    return [*map(str, list(chosen)[:KERNELS])]


def main() -> None:
    """Add a pool to the file."""
    accuracy = Grade.parse(sys.argv[1])
    name, kernels = name_of(DType.FLOAT, accuracy), pool_of(accuracy)
    pools = json.loads(POOL.read_text())
    pools[name] = [*kernels, *pools[DType.FLOAT.value][:IEEE_KERNELS]]
    POOL.write_text(json.dumps(pools, indent=1) + "\n")


if __name__ == "__main__":
    main()
