"""The text form of a config, `simt:128x256x8,thread=16x8,stream_k=1`: the tile, and what differs from the defaults."""

from typing import TYPE_CHECKING

from .errors import check
from .leaf import Mode, Value

if TYPE_CHECKING:
    from .config import Config


def text_of(config: "Config") -> str:
    """The text of a config, which `families.parse` reads back."""
    values, changes = dict(config.values), dict(config.changes)
    switches = {leaf.name for leaf in config.leaves() if leaf.choices == (False, True)}
    joined = {names[0]: (key, names) for key, names in config.joined}
    inner = {name for _, names in config.joined for name in names[1:]} | {"parts"}
    words = []
    for name, value in values.items():
        key, names = joined.get(name, (name, (name,)))
        if name in inner or (key and changes.keys().isdisjoint(names)):
            continue
        texts = [str(values[each]) for each in names]
        text = texts[0] if key and len(set(texts)) == 1 else "x".join(texts)
        if name == "mode":
            words.append(f"{value}={values['parts']}")
        elif name in switches:
            words.append(name if value else f"{name}=0")
        else:
            words.append(f"{key}={text}" if key else text)
    return f"{config.family}:{','.join(words)}"


def values_of(text: str, joined: dict[str, tuple[str, ...]]) -> dict[str, Value]:
    """Names and values in the text after the family's name. `joined` has, by key, the parameters that text writes
    together; each may stand alone too. Raises ConfigError for a wrong form, but does not check names and values."""
    values: dict[str, Value] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            key, value = ("", word) if key[:1].isdigit() else (key, "1")
        numbers: dict[str, Value] = {key: _number(value)}
        if key in tuple(Mode) and key != Mode.NONE:
            numbers = {"mode": key, "parts": _number(value)}
        elif key in joined:
            names, parts = joined[key], value.split("x")
            parts = parts * len(names) if key and len(parts) == 1 else parts  # one number for all
            form = "x".join(names)
            check(len(parts) == len(names), f"{key or 'the tile'} must read {form}, got {value!r}")
            numbers = dict(zip(names, map(_number, parts)))
        for name, number in numbers.items():
            check(name not in values, f"{name} is given twice")
            values[name] = number
    return values


def _number(text: str) -> Value:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else text
