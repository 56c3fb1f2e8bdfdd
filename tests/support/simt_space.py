"""What searches try of the simt family: the shipped space, all of it or with few values of what a test is not about."""

from collections import Counter
from functools import cache, lru_cache

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.search.candidates import Choices, read_spaces
from tilewright.tuner.search.legal import combine
from tilewright.tuner.search.pruned import pays
from variants import settled

SIMT = FAMILIES["simt"]


def space(
    problem: Problem, arch: str = "sm_90a", spaces: tuple[Choices, ...] | None = None
) -> tuple[list[Config], Counter[str]]:
    """What the shipped space, or another, holds for a problem on a device of 132 multiprocessors."""
    (choices,) = (choices for choices in spaces or read_spaces() if choices.family == "simt")
    info = DeviceInfo("NVIDIA X", "cuda:0", ARCHES[arch], 132, 1980.0, 1 << 37, 60 << 20, 4800.0, "CUDA 13.0")
    values = dict(choices.parameters)
    return combine(problem, info.arch, SIMT, values, pays(problem, info, SIMT, values))


FEW_TILES = {"block_m": (64,), "block_n": (64, 128), "split_k": (1, 2)}


@lru_cache(maxsize=16)
def tried(problem: Problem, arch: str = "sm_90a", **values: tuple[int, ...]) -> list[Config]:
    """What the space holds of tiles, vectors and ways to share them out, or of fewer of them."""
    return space(problem, arch, settled("simt", **values))[0]


def usual(dtype: str) -> str:
    """A device that leaves products in this type to the family."""
    return "sm_90a" if dtype == "float" else "sm_120"


@cache
def some(problem: Problem, target: str) -> list[Config]:
    """What the shipped space holds with a few of its tiles."""
    (choices,) = (choices for choices in read_spaces() if choices.family == "simt")
    few = {"block_m": (48, 64, 96, 128), "block_n": (64, 96, 128), "split_k": (1, 2, 4, 24), "copy_groups": (1,)}
    return combine(problem, ARCHES[target], SIMT, dict(choices.parameters) | few)[0]


def is_deep(config: Config) -> bool:
    return config.number("block_k") > 32
