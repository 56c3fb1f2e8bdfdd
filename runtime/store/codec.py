"""Records as JSON and back, strictly: what was not written by this code is not read by it."""

import dataclasses
import enum
import hashlib
import json
import math
import types
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ...codegen.arch import ARCHES
from ...codegen.config import Config
from ...codegen.errors import ConfigError, StoreError, StoreVersionError, check
from ...codegen.families import families
from ...codegen.legality import serves
from ...codegen.problem import Grade, Problem
from ...codegen.removed import same_today, without_removed
from ...codegen.schema1 import from_schema_1
from .record import REMOVED, Record

SCHEMA = 3
"""Version of the document, from 1; one more for every change that an older tilewright cannot read, such as a
new field. A field or parameter that is missing takes its default; configs of schema 1 are translated, and what families
lost since is replaced. A record is written in the first schema that has all of it: 3 is for those that name their GPU
or need not be `ieee`, 2 for all others."""

Versions = tuple[tuple[str, str], ...]

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_PLAIN = frozenset((types.NoneType, bool, int, str))
"""What JSON has as it is."""
_require = partial(check, error=StoreError)
_DIMENSIONED = ("_us", "_mhz", "_bytes")
"""Endings of names that are units: values of such fields are never negative."""


def key_digest(device: str, problem: Problem) -> str:
    """SHA-256 of what a record is found by, in hexadecimal: no user text reaches the path of its file."""
    return _sha256(_key(device, problem))


def dumps(record: Record) -> bytes:
    """The document of a record: schema, key, record and a checksum over all three. Raises StoreError."""
    schema = SCHEMA if record.gpu or record.problem.accuracy is not Grade.IEEE else SCHEMA - 1
    document = {"schema": schema, "key": _key(record.device, record.problem), "record": encode(record)}
    return (json.dumps({**document, "checksum": _sha256(document)}, indent=1) + "\n").encode()


def loads(data: bytes) -> Record:
    """The record of a document; every parameter of its config is one that this version knows. Where the config names
    what families lost since, something else stands for that, and `removed` of the record tells it.

    Raises StoreVersionError for a newer schema, ConfigError for a valid document whose family, parameter or
    value this version does not know, and StoreError for anything damaged or foreign.
    """
    document = _parse(data)
    _require(isinstance(document, dict), "not an object")
    schema, checksum = document.get("schema"), document.pop("checksum", None)
    _require(type(schema) is int and schema >= 1, f"no such schema: {schema!r}")
    newer = f"written by a newer tilewright (schema {schema}, this version reads up to {SCHEMA})"
    if schema > SCHEMA:
        raise StoreVersionError(newer)
    _require(checksum == _sha256(document), "its checksum does not match")
    _require(document.keys() == {"schema", "key", "record"}, "missing or unknown fields")
    found = _translated(document["record"]) if schema == 1 else document["record"]
    record = cast(Record, decode(Record, _without_removed(found), "record"))
    _require(document["key"] == _key(record.device, record.problem), "key and record disagree")
    return record


def encode(value: object) -> object:
    """A value as JSON has it: a dataclass as an object, a tuple as a list, an enum as its value, a config as an object
    of its family and all parameters.

    Raises StoreError for a number that is not finite, and for any other type.
    """
    if type(value) in _PLAIN:  # as most are
        return value
    if isinstance(value, Config):
        return {"family": value.family, **dict(value.values)}
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Record) and not value.gpu:
            del found["gpu"]
        if isinstance(value, Problem) and value.accuracy is Grade.IEEE:
            del found["accuracy"]  # as before there was another, so that records of that time keep their keys
        return found
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, float) or not math.isfinite(value):
        raise StoreError(f"cannot be stored: {value!r}")
    return float(value)  # a float of NumPy becomes a plain one


def decode(hint: Any, value: object, where: str) -> object:
    """The value of type `hint` that `encode` made `value` from; `where` names it in messages.

    Raises StoreError.
    """
    if type(value) is hint and (hint is not float or math.isfinite(cast(float, value))):
        return value  # as most are: samples
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in get_args(hint) if each is not types.NoneType)  # `X | None` is all there is
        return None if value is None else decode(inner, value, where)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, where)
    if hint is Config:
        return _decode_config(value, where)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members: list[enum.Enum] = [member for member in hint if member.value == value]
        _require(len(members) == 1, f"{where} is no {hint.__name__}: {value!r:.60}")
        return members[0]
    if hint is float and type(value) is int and abs(value) < 2**53:
        value = float(value)  # 3.0 may have been written as 3 by hand
    name = getattr(hint, "__name__", hint)
    _require(type(value) is hint, f"{where} must be {name}, got {value!r:.60}")
    _require(not isinstance(value, float) or math.isfinite(value), f"{where} is not finite")
    return value


def _decode_tuple(hints: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise StoreError(f"{where} must be a list, got {value!r:.60}")
    if hints == (float, ...) and all(type(item) is float and math.isfinite(item) for item in value):
        return tuple(value)  # as samples are
    if len(hints) == 2 and hints[1] is ...:
        hints = hints[:1] * len(value)
    _require(len(value) == len(hints), f"{where} must have {len(hints)} items, got {len(value)}")
    pairs = enumerate(zip(hints, value, strict=True))
    return tuple(decode(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)


def _decode_dataclass(cls: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise StoreError(f"{where} must be an object, got {value!r:.60}")
    hints = _hints(cls)
    unknown = sorted(value.keys() - hints.keys())
    _require(not unknown, f"{where} has unknown fields: {', '.join(unknown):.60}")
    given = {name: decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    for name, item in given.items():
        if name.endswith(_DIMENSIONED):
            values = item if isinstance(item, tuple) else (item,)
            negative = any(isinstance(each, int | float) and each < 0 for each in values)
            _require(not negative, f"{where}.{name} is negative")
    try:
        return cls(**given)
    except (TypeError, ValueError) as error:  # a field is missing, or the dataclass itself refuses
        raise StoreError(f"{where}: {error}") from error


def _decode_config(value: object, where: str) -> Config:
    """Raises StoreError for what is no config, ConfigError for one that this version does not know or has no more."""
    return same_today(*_kind_and_values(value, where))


def _kind_and_values(value: object, where: str) -> tuple[type[Config], dict[str, Any]]:
    if not isinstance(value, dict) or not isinstance(value.get("family"), str):
        raise StoreError(f"{where} must name a family")
    family = families().get(value["family"])
    if family is None:
        raise ConfigError(f"{where} is of no known family: {value['family']!r:.60}")
    return family, {name: item for name, item in value.items() if name != "family"}


def _without_removed(record: object) -> object:
    """A record with what stands for its config where that names what families lost since. Raises StoreError,
    ConfigError."""
    if not isinstance(record, dict):
        return record
    kind, values = _kind_and_values(record.get("config"), "record.config")
    found, removed = without_removed(kind, values)
    if not removed:
        return record
    problem = cast(Problem, decode(Problem, record.get("problem"), "record.problem"))
    versions = cast(Versions, decode(Versions, record.get("versions", []), "record.versions"))
    # It worked on its device, so that only what was replaced can be in the way: any device of many limits will do.
    configs = list(map(kind.of, found))
    config = next((each for each in configs if serves(each, problem, ARCHES["sm_90a"])), configs[-1])
    told = encode(tuple(sorted((*versions, (REMOVED, removed)))))
    return {**record, "config": encode(config), "versions": told, "digest": ""}


def _translated(record: object) -> object:
    """A record of schema 1 with its config as an object of today's parameters. Raises StoreError, ConfigError."""
    config: Any = record.get("config") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(config, dict):
        raise StoreError("record.config must be an object")
    named: Any = config.get("family")
    values: Any = config.get("values")
    good = isinstance(named, str) and isinstance(values, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int | str)
        for pair in values
    )  # fmt: skip
    _require(good, "record.config has no family and values")
    return {**record, "config": {"family": named, **from_schema_1(named, [tuple(pair) for pair in values])}}


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _key(device: str, problem: Problem) -> dict[str, object]:
    return {"device": device, "problem": encode(problem)}


def _sha256(document: Mapping[str, object]) -> str:
    try:
        canonical = _CANONICAL.encode(document)
    except (ValueError, RecursionError) as error:  # 1e999 was read as infinity, or it nests too deep
        raise StoreError(f"no canonical form: {error}") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, an absurd number, nested too deep
        raise StoreError(f"not JSON: {error}") from error
