"""The launches of one product as data, which both Python and the C extension can carry out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ..device.protocol import Launcher
from ..locks import Lock

ARGUMENTS = "a", "b", "c", "alpha", "beta"
"""Names of a product's arguments: addresses of A, B and C, and the factors."""
OFFSETS = "offsets"
"""Name of a ragged product's further argument: the address of the offsets of its groups."""
_MOST_MAPS = 256
"""Most tensor maps kept for one matrix."""

Value = str | int | bytes
"""An argument of a launch: a name whose value is known when it is called, or the argument itself."""
Step = tuple[Launcher, Sequence[Value]]
"""A launch and its arguments."""
Addresses = Callable[[int, bool], tuple[int, ...]]
"""Returns the addresses of a product's working memory, by stream and whether that is captured."""


class Maps(dict[int, bytes]):
    """Tensor maps by the address of their matrix, made at the first look-up."""

    def __init__(self, source: str, make: Callable[[int], bytes]) -> None:
        """`source` names the matrix."""
        super().__init__()
        self.source, self._make = source, make

    def __missing__(self, address: int) -> bytes:
        if len(self) >= _MOST_MAPS:
            self.clear()
        tensor_map = self[address] = self._make(address)
        return tensor_map


@dataclass(frozen=True, slots=True)
class Program:
    """Launches that follow each other on one stream. Their arguments are picked by number among those of the product,
    then `addresses`, `maps` and `constants`."""

    lock: Lock
    """Lock of the launches, where `shared`."""
    shared: bool
    """Whether threads have to take turns: launches work in the same memory, or keep maps."""
    addresses: Addresses | None
    """Working memory of the launches, None where they need none."""
    maps: tuple[tuple[int, Maps], ...]
    """Tensor maps, each with the number of its matrix's address."""
    constants: tuple[Value, ...]
    """Arguments that never change."""
    steps: tuple[tuple[Launcher, bytes, Callable[[tuple[object, ...]], tuple[object, ...]]], ...]
    """Each launch, the numbers of its arguments, and a function that picks these."""

    @classmethod
    def of(
        cls, lock: Lock, addresses: Addresses | None, names: Sequence[str], maps: Mapping[str, Maps],
        steps: Sequence[Step], further: Sequence[str] = (),
    ) -> "Program":  # fmt: skip
        """Make a program. `names` are the names of the addresses, `maps` the maps by their names, and `further` the
        names of arguments that a call has beside ARGUMENTS."""
        named = [*ARGUMENTS, *further, *names, *maps]
        constants = list(dict.fromkeys(value for _, values in steps for value in values if not isinstance(value, str)))
        numbers = {value: number for number, value in enumerate([*named, *constants])}
        picks = [[numbers[value] for value in values] for _, values in steps]
        picked = tuple((launch, bytes(each), itemgetter(*each)) for (launch, _), each in zip(steps, picks))
        numbered_maps = tuple((numbers[each.source], each) for each in maps.values())
        return cls(lock, bool(names or maps), addresses if names else None, numbered_maps, tuple(constants), picked)

    def exchanged(self) -> "Program":
        """The same launches for a caller who passes B in place of A, and A in place of B."""
        a, b = ARGUMENTS.index("a"), ARGUMENTS.index("b")
        other = {a: b, b: a}
        picks = [bytes(other.get(number, number) for number in each) for _, each, _ in self.steps]
        steps = tuple((launch, each, itemgetter(*each)) for (launch, _, _), each in zip(self.steps, picks))
        return replace(self, maps=tuple((other.get(number, number), maps) for number, maps in self.maps), steps=steps)

    def __call__(
        self, stream: int, capturing: bool, a: int, b: int, c: int, alpha: float, beta: float, *further: int
    ) -> None:
        """Carry out the launches. Raises LaunchError."""
        values: tuple[Any, ...] = a, b, c, alpha, beta, *further
        if not self.shared:
            values += self.constants
            for launch, _, pick in self.steps:
                launch(stream, *pick(values))
            return
        with self.lock.alone():
            if self.addresses:
                values += self.addresses(stream, capturing)
            values += tuple(maps[values[number]] for number, maps in self.maps)
            values += self.constants
            for launch, _, pick in self.steps:
                launch(stream, *pick(values))
