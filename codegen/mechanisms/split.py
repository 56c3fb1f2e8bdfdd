"""How CTAs share out the work: one tile each, split-K, stream-K, or several tiles each."""

import enum
from dataclasses import dataclass
from typing import Any

from ..leaf import Mode, option
from ..legality import Rule

LONG_SPLITS = (11, 13, 22, 26, 29, 33, 44, 52, 66, 88, 132)
"""How many CTAs may share a tile of C where k is so long that each SM counts: those of devices with 132 SMs."""
SPLITS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128, *LONG_SPLITS)
"""How many CTAs may share a tile of C."""
MODES = {Mode.NONE: (1,), Mode.SPLIT_K: SPLITS, Mode.STREAM_K: (1, 2, 3, 4), Mode.PERSISTENT: (2, 3, 4, 6, 8, 16)}
"""What `parts` may be for each mode."""
MOST_CLUSTERED = 8
"""CTAs of a cluster that every device with clusters can run."""


class Reduce(enum.StrEnum):
    """Where CTAs that share a tile of C add up."""

    WORKSPACE = "workspace"
    """In device memory."""
    CLUSTER = "cluster"
    """In each other's shared memory."""


@dataclass(frozen=True, slots=True)
class Split:
    """How CTAs share out the work."""

    mode: Mode = option(Mode.NONE, meaning="how CTAs share out the work")
    parts: int = option(
        1, *sorted({each for parts in MODES.values() for each in parts} - {1}),
        meaning="split_k: CTAs that share a tile of C; stream_k: CTAs of an SM; persistent: tiles of C a CTA computes",
    )  # fmt: skip
    reduce: Reduce = option(Reduce.WORKSPACE, meaning="where CTAs that share a tile of C add up")


def split_rules(*modes: Mode) -> tuple[Rule[Any], ...]:
    """The rules for a family that knows these modes beside `none`."""
    known = (Mode.NONE, *modes)
    return (
        Rule(
            f"the work is shared out by {', '.join(known)}",
            lambda problem, config, arch: config.split.mode in known,
        ),
        Rule(
            "parts {c.split.parts} suits {c.split.mode}",
            lambda problem, config, arch: config.split.parts in MODES[config.split.mode],
        ),
        Rule(
            "CTAs add up in a cluster where they share out k by split_k",
            lambda problem, config, arch: config.split.reduce is Reduce.WORKSPACE or config.split.mode is Mode.SPLIT_K,
        ),
        Rule(
            "the device has clusters",
            lambda problem, config, arch: config.split.reduce is Reduce.WORKSPACE or "cluster" in arch.instructions,
        ),
        Rule(
            f"a cluster has at most {MOST_CLUSTERED} CTAs, not {{c.split.parts}}",
            lambda problem, config, arch: (
                config.split.reduce is Reduce.WORKSPACE or config.split.parts <= MOST_CLUSTERED
            ),
        ),
        Rule(
            "CTAs that share out k count fewer than 2^32 tiles of k, of all tiles of C",
            lambda problem, config, arch: (
                config.split.mode is not Mode.STREAM_K
                or config.tiles(problem) * -(-problem.k // config.cta_tile[2]) < 2**32
            ),
        ),
    )
