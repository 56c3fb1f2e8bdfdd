"""How a product is computed: one variant of one family."""

import re
from dataclasses import dataclass

from .errors import ConfigError, check

__all__ = ["Config", "Value"]

Value = int | str
"""A parameter is a number or a word."""

_WORD = re.compile(r"[A-Za-z_]\w{0,63}")
_NUMBER = re.compile(r"\d{1,6}")


@dataclass(frozen=True, slots=True)
class Config:
    """One variant: a family and a value for each of its parameters, in the family's order."""

    family: str
    """Name of the family."""
    values: tuple[tuple[str, Value], ...]
    """Parameter names and values."""

    def __post_init__(self) -> None:
        check(bool(_WORD.fullmatch(self.family)), f"family must be a word, got {self.family!r}")
        for name, value in self.values:
            check(bool(_WORD.fullmatch(name)), f"parameter name must be a word, got {name!r}")
            check(
                (type(value) is int and 0 <= value < 10**6)
                or (isinstance(value, str) and bool(_WORD.fullmatch(value))),
                f"{name} must be a number or a word, got {value!r}",
            )

    @classmethod
    def known(cls, family: str, values: tuple[tuple[str, Value], ...]) -> "Config":
        """A config of a family's own names and values, which are not checked again: lists of configs are long."""
        config = object.__new__(cls)
        object.__setattr__(config, "family", family)
        object.__setattr__(config, "values", values)
        return config

    @classmethod
    def parse(cls, text: str) -> "Config":
        """The config written `family:name=value,name=value`, as `str(config)` gives it.

        Only the form is read here; `families.complete` checks names and values. Raises ConfigError.
        """
        family, _, rest = text.strip().partition(":")
        values: list[tuple[str, Value]] = []
        for part in filter(None, rest.split(",")):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            check(bool(equals), f"config must read family:name=value,..., got {text!r}", ConfigError)
            values.append((name, int(value) if _NUMBER.fullmatch(value) else value))
        return cls(family, tuple(values))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.values:
            if key == name:
                return value
        raise KeyError(name)

    def number(self, name: str) -> int:
        """The value of a parameter that is a number."""
        value = self[name]
        check(isinstance(value, int), f"{name} must be a number, got {value!r}")
        assert isinstance(value, int)
        return value

    def word(self, name: str) -> str:
        """The value of a parameter that is a word."""
        return str(self[name])

    def __str__(self) -> str:
        return f"{self.family}:" + ",".join(f"{name}={value}" for name, value in self.values)
