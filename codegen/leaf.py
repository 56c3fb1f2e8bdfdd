"""One parameter of a family: its choices and what it does; and the two parameters that are no family's own."""

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, meant

Value = int | str
"""A parameter as text and JSON have it: a number or a word. Switches are 0 and 1 there."""


class Edge(enum.StrEnum):
    """What a kernel does where a tile reaches beyond a matrix."""

    BOUNDS = "bounds"
    """Loads and stores are guarded: any shape."""
    EXACT = "exact"
    """Tiles divide the matrix: nothing is guarded."""
    PAD = "pad"
    """Operands lie in buffers of rounded-up sizes, zero beyond the matrix: nothing is guarded."""


class Mode(enum.StrEnum):
    """How CTAs share out a product."""

    NONE = "none"
    """Each computes one tile of C."""
    SPLIT_K = "split_k"
    """Several share the k of each tile."""
    STREAM_K = "stream_k"
    """As many as run at a time share evenly the k of the remainder of the last wave."""
    PERSISTENT = "persistent"
    """Each computes several tiles of C, one after the other."""


def option(default: Any, *others: Any, meaning: str) -> Any:
    """A field of a group: its choices, the default first, and what it does. Switches and enumerations need none."""
    choices = tuple(dict.fromkeys((default, *others)))
    if isinstance(default, bool):
        choices = (False, True)
    elif isinstance(default, enum.Enum) and not others:
        choices = tuple(type(default))
    return dataclasses.field(default=default, metadata={"choices": choices, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One parameter of a family."""

    name: str
    """Name of its field, unique within the family."""
    group: str
    """Field of the config that holds it; empty for the edge."""
    choices: tuple[Any, ...]
    """Every value allowed."""
    default: Any
    """The value where none is given."""
    meaning: str
    """What it does, for a person."""

    def plain(self, value: Any) -> Value:
        """A value as text and JSON have it."""
        return str(value) if isinstance(value, enum.Enum) else int(value)

    def typed(self, value: object) -> Any:
        """The choice that `value`, as `plain` gives it, means. Raises ConfigError listing the choices."""
        for choice in self.choices:
            plain = self.plain(choice)
            if type(value) is type(plain) and value == plain:
                return choice
        words = [str(self.plain(choice)) for choice in self.choices]
        raise ConfigError(f"{self.name} must be one of {', '.join(words)}, got {value!r}{meant(value, words)}")
