"""What searches try: the shipped spaces, all of them or with few values of what a test is not about."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from targets import TYPICAL
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import family_named
from tilewright.codegen.leaf import Value
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import Candidates, Choices, candidates, read_spaces
from tilewright.tuner.search.legal import legal_configs
from tilewright.tuner.search.policies import policy_of

H200 = replace(KNOWN["nvidia-h200"], bandwidth_gbs=4800.0, driver="13.0")
FEW_TILES: dict[str, tuple[Value, ...]] = {"block_m": (64,), "block_n": (64, 128), "parts": (1, 2)}


def on(arch: str) -> DeviceInfo:
    """A device of 132 SMs."""
    return replace(H200, name=f"NVIDIA {arch}", arch=ARCHES[arch])


def settled(*names: str, **values: tuple[Value, ...]) -> tuple[Choices, ...]:
    """The shipped spaces of some families with few values for what has no part in which tiles, vectors and ways to
    share them out are tried, unless values are given: a fraction of the configs to list."""
    fixed: dict[str, tuple[Value, ...]] = {"raster": (1, 8), "min_ctas": (1,), "l2_prefetch": (0,), **values}
    found = []
    for choices in [each for each in read_spaces() if each.family in names]:
        typed = choices.on(H200)
        for name in typed.keys() & fixed.keys():
            typed[name] = tuple(map(family_named(choices.family).leaf(name).typed, fixed[name]))
        found.append(replace(choices, parameters=tuple(typed.items())))
    return tuple(found)


def advised(
    problem: Problem, arch: str, family: str, values: dict[str, tuple[Value, ...]]
) -> tuple[list[Config], Counter[str]]:
    """What rules and advice leave of some plain values of a family, whatever the model says."""
    kind, policy = family_named(family), policy_of(family)
    typed = {name: tuple(kind.leaf(name).typed(each) for each in given) for name, given in values.items()}
    return legal_configs(problem, TYPICAL[arch], kind, typed, policy.advice, policy.first)


@lru_cache(maxsize=16)
def found(problem: Problem, arch: str, spaces: tuple[Choices, ...]) -> Candidates:
    """What spaces hold for a problem, listed once for all tests of a process."""
    return candidates(problem, on(arch), spaces)


def tried(problem: Problem, arch: str = "sm_90a", family: str = "simt", **values: tuple[Value, ...]) -> list[Config]:
    """What the family's space holds of tiles, vectors and ways to share them out, or of fewer of them."""
    return list(found(problem, arch, settled(family, **values)).configs)
