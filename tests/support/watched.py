"""Check drawn variants of a family on products of partial tiles: a program to run under compute-sanitizer on a GPU.

    python tests/support/watched.py wgmma 30
    compute-sanitizer --tool racecheck --error-exitcode 99 python tests/support/watched.py wgmma 30

Compiled kernels come from the cache, so that a first run without the sanitizer compiles for the runs with it. Variants
take the transposes in turn.
"""

import itertools
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from quick import TYPICAL
from search_spaces import sampled
from tilewright.codegen.config import Config
from tilewright.codegen.families import family_named
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.product.kernel import prepare
from tilewright.tuner.choose.choice import carried
from variants import dtypes

SHAPES = (200, 132, 520), (65, 190, 301), (131, 97, 260)
"""Shapes of more than one tile, the last of which is partial: with multiples of 4, and with odd sizes."""
TRANS = "nn", "nt", "tn", "tt"


def drawn(name: str, count: int, arch: str = "sm_90a") -> list[tuple[Problem, Config]]:
    """Variants, each with the product for which it runs. Each grade that the family serves has an equal share."""
    dtype = dtypes(family_named(name))[-1]
    kinds = itertools.cycle(itertools.product(TRANS, SHAPES))
    listed = sampled(name, arch)
    grades = [grade for grade in Grade if dtype is DType.FLOAT or grade is Grade.IEEE]
    shares: list[list[Config]] = [[config for config in listed if config.accuracy is grade] for grade in grades]
    shares, pairs = [share for share in shares if share], []
    for share in shares:
        random.Random(1).shuffle(share)
    for config in itertools.chain.from_iterable(zip(*shares, strict=False)):
        trans, shape = next(kinds)
        problem = Problem.parse("x".join(map(str, shape)), dtype, trans, config.accuracy)
        served = carried(config, problem, TYPICAL[arch])
        if served is not None:
            pairs.append((problem, served))
        if len(pairs) == count:
            break
    return pairs


def main(name: str, count: int) -> int:
    """Check the variants, and print the wrong ones. Returns their number."""
    device = open_device(choose("cuda"))
    listed, wrong = drawn(name, count, device.info.arch.name), 0
    with device.entered():
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            sources = [render(problem, config, device.info) for problem, config in listed]
            list(pool.map(lambda source: compile_cached(device.compiler, source), sources))
        for problem, config in listed:
            reason = Verifier(device, problem).check(prepare(device, problem, config).launch).reason
            if reason:
                wrong += 1
                print(f"WRONG {config} {problem}: {reason}")
    print(f"{len(listed)} variants of {name}, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1], int(sys.argv[2]))))
