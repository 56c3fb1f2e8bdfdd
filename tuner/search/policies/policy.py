"""What a policy says of its family: what is hopeless, what the model has to know, and what was measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

from ....codegen.config import Config
from ....codegen.families import family_named
from ....codegen.fit import Fit
from ....codegen.leaf import Value
from ....codegen.legality import Rule
from ....codegen.problem import Problem
from ....codegen.target import Target

Factors = Mapping[tuple[str, ...], Mapping[tuple[Value, ...], float]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the model of a device asks of a variant, beside tiles and resources."""

    smem_loads: float = 0.0
    """Elements that pass through shared memory for one multiply-add of one thread, broadcasts counted as loads."""
    overhead: float = 1.0
    """Instructions of a warp for each of its multiply-adds, beside that: loads, addresses, loops."""
    splitting: float = 0.0
    """Instructions of a lane that make terms of what the tensor cores multiply, for each of their multiply-adds."""
    slices_cycles: float = 0.0
    """Clocks in which the slices of a CTA add up after its main loop."""
    in_flight: int = 0
    """Elements that a thread keeps on their way from memory, for a family that memory limits; else 0."""
    alone: int = 0
    """Elements that such a CTA moves before and after its main loop, with little else on their way."""
    ahead: int = 0
    """Tiles that a CTA has on their way while it works on one, for a family whose CTAs wait for them; else 0."""
    fragments_ahead: bool = False
    """Whether fragments are read while those before them are multiplied."""
    rate: float = 1.0
    """Share of the tensor cores' rate that was measured of a family that does not reach what its limits leave."""
    narrow: int = 0
    """Operands that are copied to shared memory in pieces of less than 16 bytes."""
    neighbours: int = 0
    """Elements side by side in a row of C that a thread writes from its registers, one vector after another; 0 where
    accumulators pass through shared memory first."""
    beside: int = 0
    """Such elements of all threads of a warp that share the row."""


class Policy:
    """What a search tries of a family; a family with something to say derives its own.

    `advice` is for searches: a variant that breaks it works, but is hopeless.
    """

    advice: ClassVar[tuple[Rule[Any], ...]] = ()
    """What makes a variant hopeless, each rule with its reason. A rule that asks for one parameter drops its values
    before any are combined."""
    first: ClassVar[tuple[str, ...]] = ()
    """Parameters to choose first when configs are listed: what most rules ask for."""
    for_rows: ClassVar[Mapping[str, Rule[Any]]] = {}
    """What a config has for rows that are not aligned or run along k, and the advice that says where it is hopeless:
    there it is reset."""
    instead: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Values to try, in turn, for a device that lacks what a config of another one needs."""
    tile_sides: ClassVar[tuple[str, ...]] = ()
    """The parameters that are rows and columns of the block tile, where the model chooses tiles and splits."""
    orders_tiles: ClassVar[frozenset[str]] = frozenset()
    """Parameters on which it depends how tiles compare."""
    side_by_side: ClassVar[tuple[str, ...]] = ()
    """Parameters that help only threads that run at the same time: the processor has none."""
    factors: ClassVar[Factors] = {}
    """By group of parameters and their values: measured time over the model's (`benchmarks/fit_model.py`)."""

    def typical(self, target: Target) -> Mapping[str, tuple[Any, ...]]:
        """Common values of parameters that hardly change how tiles compare, where they differ from the defaults."""
        return {}

    def modelled(self, target: Target) -> Mapping[str, Any]:
        """Values that the model assumes when it compares tiles."""
        return {}

    def unmodelled(self, config: Any) -> bool:
        """Whether the model does not know what makes the config fast: its tiles have only to fill the device."""
        return False

    def non_power_of_two(self, config: Any) -> bool:
        """Whether the model is less sure of the config, so that its tiles must not crowd out others."""
        return False

    def cost(self, problem: Problem, config: Any, fit: Fit) -> Cost:
        """The cost of a config's instance for a problem."""
        return Cost()

    def factor(self, config: Config) -> float:
        """The measured time of such variants over that of the model, a plain ratio; 1 for values not measured.

        Factors choose among variants with nearly the same estimate. Which tiles are worth trying is left to the model
        alone: with factors fewer of the recorded winners were among them.
        """
        found = 1.0
        for names, factors in self.factors.items():
            values = reader(config.family, *names)(config)
            found *= factors.get(values if len(names) > 1 else (values,), 1.0)
        return found


@cache
def reader(family: str, *names: str) -> Callable[[Config], Any]:
    """What gives the value of a parameter of a family's configs, or the tuple of those of several. Enumerations and
    switches are equal to their plain values."""
    return attrgetter(*(f"{leaf.group}.{leaf.name}".lstrip(".") for leaf in map(family_named(family).leaf, names)))
