"""Configs that searches try: the shortlist of a problem and its neighbours, in the shipped spaces."""

from dataclasses import replace
from functools import lru_cache

from quick import TYPICAL
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Value
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import ENTRIES, shortlist
from tilewright.tuner.search.candidates import candidates, read_spaces

H200 = replace(KNOWN["nvidia-h200"], bandwidth_gbs=4800.0, driver="13.0")
_SHAPES = "1024", "1000x520x3000", "300x5000x70", "16x4096x4096", "64x64x65536", "4096x4096x64"
"""Shapes whose searches have tiles, splits and epilogues of every kind."""


def on(arch: str) -> DeviceInfo:
    """A device of 132 SMs."""
    return replace(H200, name=f"NVIDIA {arch}", arch=ARCHES[arch])


@lru_cache(maxsize=64)
def searched(problem: Problem, info: DeviceInfo) -> tuple[Config, ...]:
    """Configs that a search of the shipped spaces may try for a problem without records."""
    likely = [choice.config for choice in shortlist(problem, info, (), ENTRIES)]
    return candidates(Forecast(problem, info), read_spaces(None), likely, likely).configs


@lru_cache(maxsize=64)
def sampled(family: str, arch: str) -> tuple[Config, ...]:
    """Configs of a family that searches may try for some products of each type and accuracy."""
    info, configs = TYPICAL[arch], dict[Config, None]()
    assert isinstance(info, DeviceInfo)
    kinds = [(DType.DOUBLE, Grade.IEEE), *((DType.FLOAT, grade) for grade in Grade)]
    for number, shape in enumerate(_SHAPES):
        for dtype, grade in kinds:
            problem = Problem.parse(shape, dtype, ("nn", "nt", "tn")[number % 3], grade)
            configs |= dict.fromkeys(config for config in searched(problem, info) if config.family == family)
    return tuple(configs)


def tried(problem: Problem, arch: str = "sm_90a", family: str = "simt", **values: tuple[Value, ...]) -> list[Config]:
    """Configs of a family that searches may try and that serve a problem. `values` restricts parameters to some of
    their values."""
    configs = (config for config in sampled(family, arch) if serves(config, problem, TYPICAL[arch]))
    return [config for config in configs if all(config.get(name) in allowed for name, allowed in values.items())]
