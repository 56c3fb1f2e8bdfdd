"""Work decompositions: one tile a CTA, split-K, stream-K, or several tiles a CTA."""

import enum
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..leaf import Mode, option
from ..legality import Rule

if TYPE_CHECKING:
    from ..config import Config
    from ..problem import Problem

PARTS = {
    Mode.NONE: range(1, 2),
    Mode.SPLIT_K: range(2, 1025),
    Mode.STREAM_K: range(1, 5),
    Mode.PERSISTENT: range(2, 17),
}
"""Values of `parts` that each mode allows."""
USUAL_PARTS = {
    Mode.NONE: (1,),
    Mode.SPLIT_K: (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128),
    Mode.STREAM_K: (1, 2, 3, 4),
    Mode.PERSISTENT: (2, 3, 4, 6, 8, 16),
}
"""Values of `parts` that are tried for each mode on every device."""
MOST_CLUSTERED = 8
"""CTAs of a cluster that every device with clusters can run."""
MOST_WORKSPACE_BYTES = 1 << 30
"""Most bytes of the workspaces of a batch, whose products have one each: a device may lack memory for more, and kernels
whose workspaces take more than the operands are not near the fastest."""


class Reduce(enum.StrEnum):
    """The place where CTAs that share a tile of C add up."""

    WORKSPACE = "workspace"
    """A workspace in device memory."""
    CLUSTER = "cluster"
    """The shared memory of a cluster's CTAs."""


@dataclass(frozen=True, slots=True)
class Split:
    """The work decomposition."""

    mode: Mode = option(Mode.NONE, meaning="how CTAs share out the work")
    parts: int = option(
        1, within=range(1, max(max(parts) for parts in PARTS.values()) + 1),
        meaning="split_k: CTAs that share a tile of C; stream_k: CTAs of an SM; persistent: tiles of C a CTA computes",
    )  # fmt: skip
    reduce: Reduce = option(Reduce.WORKSPACE, meaning="where CTAs that share a tile of C add up")


FILLING = "filling"
"""Word that stands for `filling_parts` of the device in a list of values of `parts`."""


def filling_splits(config: "Config", problem: "Problem", sm_count: int) -> list[dict[str, Any]]:
    """The splits of k, as values of a config's parameters, whose CTAs fill `sm_count` SMs once or twice and have at
    least one tile of k each. Empty for a family without split-K and for a problem with more tiles than SMs."""
    if "mode" not in {leaf.name for leaf in config.leaves()}:
        return []
    tiles, most = config.tiles(problem), problem.k // config.cta_tile[2]
    counts = dict.fromkeys(waves * sm_count // tiles for waves in (1, 2) if tiles <= sm_count)
    values = {"mode": Mode.SPLIT_K, "reduce": Reduce.WORKSPACE}
    return [values | {"parts": parts} for parts in counts if parts in PARTS[Mode.SPLIT_K] and parts <= most]


@cache
def filling_parts(sm_count: int) -> tuple[int, ...]:
    """Values of `parts` with which split-K fills `sm_count` SMs once or twice where C has at most `sm_count` tiles,
    without the usual values."""
    filling = {waves * sm_count // tiles for waves in (1, 2) for tiles in range(1, sm_count + 1)}
    return tuple(sorted(filling & set(PARTS[Mode.SPLIT_K]) - set(USUAL_PARTS[Mode.SPLIT_K])))


@cache
def proposed_parts(sm_count: int) -> tuple[int, ...]:
    """Every value of `parts` that is tried on a device of `sm_count` SMs for some mode, in rising order."""
    return tuple(sorted({*filling_parts(sm_count), *(each for parts in USUAL_PARTS.values() for each in parts)}))


def split_rules(*modes: Mode) -> tuple[Rule[Any], ...]:
    """The rules for a family that knows these modes beside `none`."""
    allowed = (Mode.NONE, *modes)
    return (
        Rule(
            f"the work is shared out by {', '.join(allowed)}",
            lambda problem, config, target: config.split.mode in allowed,
        ),
        Rule(
            "parts {c.split.parts} suits {c.split.mode}",
            lambda problem, config, target: config.split.parts in PARTS[config.split.mode],
        ),
        Rule(
            "CTAs add up in a cluster where they share out k by split_k",
            lambda problem, config, target: not config.clustered or config.split.mode is Mode.SPLIT_K,
        ),
        Rule(
            "the device has clusters",
            lambda problem, config, target: not config.clustered or "cluster" in target.arch.instructions,
        ),
        Rule(
            f"a cluster has at most {MOST_CLUSTERED} CTAs, not {{c.split.parts}}",
            lambda problem, config, target: not config.clustered or config.split.parts <= MOST_CLUSTERED,
        ),
        Rule(
            "CTAs that share out k count fewer than 2^32 tiles of k, of all tiles of C",
            lambda problem, config, target: (
                config.split.mode is not Mode.STREAM_K
                or config.tiles(problem) * -(-problem.k // config.cta_tile[2]) < 2**32
            ),
        ),
        Rule(
            f"the workspaces of a batch take at most {MOST_WORKSPACE_BYTES >> 30} GiB",
            lambda problem, config, target: (
                problem.planes == 1
                or problem.planes * config.workspace_bytes(problem, target.sm_count) <= MOST_WORKSPACE_BYTES
            ),
        ),
    )
