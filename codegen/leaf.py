"""One parameter of a family: its choices and its effect; and two parameters that several families have."""

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, nearest_of

Value = int | str
"""A parameter as text and JSON have it: a number or a word. Switches are 0 and 1 there."""


class Edge(enum.StrEnum):
    """A kernel's guard where a tile reaches beyond a matrix."""

    BOUNDS = "bounds"
    """Loads and stores are guarded: any shape."""
    EXACT = "exact"
    """Tiles divide the matrix: nothing is guarded."""
    PAD = "pad"
    """Operands lie in buffers of rounded-up sizes, zero beyond the matrix: nothing is guarded."""


class EdgePolicy(enum.StrEnum):
    """A classic kernel's treatment of shapes that its tiles do not divide."""

    FIT = "fit"
    """No guard where the tiles divide the matrix; guarded loads and stores elsewhere."""
    BOUNDS = "bounds"
    """Loads and stores are guarded for any shape."""
    PAD = "pad"
    """Operands are copied to buffers of rounded-up sizes first."""


class Mode(enum.StrEnum):
    """The work decomposition: how CTAs divide a product among them."""

    NONE = "none"
    """Each CTA computes one tile of C."""
    SPLIT_K = "split_k"
    """Several CTAs share the k of each tile."""
    STREAM_K = "stream_k"
    """The CTAs that run at a time divide evenly the k of the tiles of the last wave."""
    PERSISTENT = "persistent"
    """Each CTA computes several tiles of C, one after the other."""


def option(default: Any, *others: Any, within: range | None = None, meaning: str) -> Any:
    """A field of a group, with its choices, the default first, or the range of whole numbers `within` which it lies,
    and its meaning. Switches and enumerations need no choices."""
    choices: Sequence[Any] = within or tuple(dict.fromkeys((default, *others)))
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
    choices: Sequence[Any]
    """Every value allowed; a range for a bounded whole number, of which searches try only proposed values."""
    default: Any
    """The value in a config that does not set the parameter."""
    meaning: str
    """Effect of the parameter, for a person."""

    def plain(self, value: Any) -> Value:
        """A value as text and JSON have it."""
        return str(value) if isinstance(value, enum.Enum) else int(value)

    def typed(self, value: object) -> Any:
        """The choice for which `plain` gives `value`. Raises ConfigError listing the choices."""
        if isinstance(self.choices, range):
            if type(value) is int and value in self.choices:
                return value
            first, last = self.choices[0], self.choices[-1]
            raise ConfigError(f"{self.name} must be a whole number from {first} to {last}, got {value!r}")
        for choice in self.choices:
            plain = self.plain(choice)
            if type(value) is type(plain) and value == plain:
                return choice
        words = [str(self.plain(choice)) for choice in self.choices]
        raise ConfigError(f"{self.name} must be one of {', '.join(words)}, got {value!r}{nearest_of(value, words)}")
