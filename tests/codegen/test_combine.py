"""Listing a space without walking through it finds what walking through it finds."""

import math
import random
from itertools import product

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import COMMON, FAMILIES, complete
from tilewright.codegen.family import Constraint
from tilewright.codegen.problem import Problem
from tilewright.tuner.search.legal import combine

ARCH = ARCHES["sm_90a"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("text", "shape", "dtype"), [
    ("naive:edge=bounds", "300x200x100", "float"), ("tiled:edge=exact", "256", "double"),
    ("simt:block_m=64,block_n=128,block_k=16,thread_m=8,thread_n=8,stages=3,cp_async=1,vec_b=4,vec_c=4,prefetch=1,"
     "slices=2,apart=1,copy_groups=2", "1000", "float"),
    ("simt:block_m=32,block_n=64,block_k=64,thread_m=8,thread_n=8,lanes_m=4,stages=3,cp_async=1,vec_b=4,vec_c=4,"
     "prefetch=1,slices=8,split_k=64,edge=exact", "64x64x65536", "float"),
    ("dmma:block_m=64,block_n=128,block_k=16,warp_m=32,warp_n=32,stages=4,vec_a=2,vec_b=2,vec_c=2,prefetch=2",
     "1000", "double"),
    ("skinny:count=1,span=4,depth=4,vec=4,lanes_k=4,warps_k=8,cp_async=1,stages=4,staged=4096,min_blocks=2,edge=exact",
     "1x4096x4096", "float"),
])  # fmt: skip
def test_what_is_found_is_what_breaks_no_rule(text: str, shape: str, dtype: str, seed: int) -> None:
    base, rng = dict(complete(Config.parse(text)).values), random.Random(seed)
    family = text.partition(":")[0]
    problem, kind = Problem.parse(shape, dtype), FAMILIES[family]
    several = rng.sample(kind.parameters, min(9, len(kind.parameters)))
    values = {parameter.name: [base[parameter.name]] for parameter in kind.parameters}
    for parameter in several:
        values[parameter.name] += rng.sample([v for v in parameter.choices if v != base[parameter.name]], 1)
    rules = (*kind.constraints, *COMMON, *kind.advice)
    wanted = []
    for chosen in product(*values.values()):
        config = Config(family, tuple(zip(values, chosen)))
        worth = all(p.worth(problem, value) for p, value in zip(kind.parameters, chosen))
        if worth and all(rule.holds(problem, config, ARCH) for rule in rules):
            wanted.append(config)
    found, pruned = combine(problem, ARCH, kind, values)
    assert found == wanted
    assert Config(family, tuple(base.items())) in found
    assert sum(pruned.values()) + len(found) == math.prod(map(len, values.values()))


def test_a_rule_may_ask_for_more_values_later() -> None:
    """It looks at the last value, or at the first one too, by what the last one is."""
    kind, problem = FAMILIES["tiled"], Problem.parse("256")
    values = {parameter.name: parameter.choices[:3] for parameter in kind.parameters}
    rule = Constraint("{unroll} is 1 or {tile_width} 8", lambda p, c, a: c["unroll"] == 1 or c["tile_width"] == 8)
    values |= {"tile_width": (8, 16, 32), "unroll": (1, 2)}
    whole, _ = combine(problem, ARCH, kind, values)
    found, pruned = combine(problem, ARCH, kind, values, [rule])
    assert found == [config for config in whole if config["unroll"] == 1 or config["tile_width"] == 8]
    assert pruned["2 is 1 or 16 8"] + pruned["2 is 1 or 32 8"] == len(whole) - len(found) > 0
