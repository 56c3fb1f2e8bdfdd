"""Records as JSON and back. Reading is strict: it takes only text that this code can write."""

import dataclasses
import enum
import hashlib
import json
import math
import types
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ...codegen.arch import ARCHES, Arch
from ...codegen.config import Config
from ...codegen.errors import ConfigError, StoreError, StoreVersionError, check
from ...codegen.families import families
from ...codegen.problem import Problem
from .record import Record

SCHEMA = 4
"""Number of the record format, the only one that is read. It rises by one with every change that an older tilewright
cannot read. A new field or parameter does not count: at its default it is not written."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = frozenset((types.NoneType, bool, int, str))
"""Types whose values JSON takes as they are."""
_require = partial(check, error=StoreError)
_DIMENSIONED = ("_us", "_mhz", "_bytes")
"""Units at the end of field names whose values are never negative."""


def key_digest(device: str, problem: Problem) -> str:
    """SHA-256 of a record's device and problem, in hexadecimal: no user text reaches the path of its file."""
    return _sha256(_key(device, problem))


def dumps(record: Record) -> bytes:
    """The document of a record: schema, key, record and a checksum over all three. Raises StoreError."""
    document = {"schema": SCHEMA, "key": _key(record.device, record.problem), "record": encode(record, whole=False)}
    return (json.dumps({**document, "checksum": _sha256(document)}, indent=1) + "\n").encode()


def loads(data: bytes) -> Record:
    """The record of a document; a field or parameter that is missing takes its default.

    Raises StoreVersionError for a newer schema, ConfigError for an older one and for a valid document whose family,
    parameter or value this version does not know, and StoreError for anything damaged or foreign.
    """
    document = _parse(data)
    _require(isinstance(document, dict), "not an object")
    schema, checksum = document.get("schema"), document.pop("checksum", None)
    _require(type(schema) is int and schema >= 1, f"no such schema: {schema!r}")
    newer = f"written by a newer tilewright (schema {schema}, this version reads up to {SCHEMA})"
    if schema > SCHEMA:
        raise StoreVersionError(newer)
    remedy = "tune the shape again, or use it with the version that wrote it"
    check(schema == SCHEMA, f"a record of format {schema}, which this version does not read: {remedy}")
    _require(checksum == _sha256(document), "its checksum does not match")
    _require(document.keys() == {"schema", "key", "record"}, "missing or unknown fields")
    record = cast(Record, decode(Record, document["record"], "record"))
    _require(document["key"] == _key(record.device, record.problem), "key and record disagree")
    return record


def line_of(record: Record) -> bytes:
    """A record as a line of a file of records that ship. Raises StoreError."""
    return (_COMPACT.encode(encode(record, whole=False)) + "\n").encode()


def beginning_of(problem: Problem) -> bytes:
    """Beginning of the lines of a problem's records, whatever their device."""
    return f'{{"problem":{_COMPACT.encode(encode(problem, whole=False))},'.encode()


def of_line(line: bytes) -> Record:
    """The record of a line. Raises ConfigError for a config that this version does not know, StoreError for damage."""
    return cast(Record, decode(Record, _parse(line), "record"))


def encode(value: object, whole: bool = True) -> object:
    """A value in types of JSON: a dataclass as an object, a tuple as a list, an enum as its value, an Arch as its name,
    a config as an object of its family and parameters. Without `whole`, fields and parameters at their defaults are
    left out.

    Raises StoreError for a number that is not finite, and for any other type.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Config):
        return {"family": value.family, **dict(value.values if whole else value.changes)}
    if isinstance(value, enum.Enum):
        return encode(value.value, whole)
    if isinstance(value, Arch):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return packed(value, whole)
    if isinstance(value, tuple):
        return [encode(item, whole) for item in value]
    if not isinstance(value, float) or not math.isfinite(value):
        raise StoreError(f"cannot be stored: {value!r}")
    return float(value)  # a float of NumPy becomes a plain one


def packed(value: Any, whole: bool = True) -> dict[str, Any]:
    """The object that `encode` makes of a dataclass."""
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return {field.name: encode(item, whole) for field, item in fields if whole or item != field.default}


def decode(hint: Any, value: object, where: str) -> object:
    """The value of type `hint` that `encode` turned into `value`; `where` names it in messages.

    Raises StoreError.
    """
    if type(value) is hint and (hint is not float or math.isfinite(cast(float, value))):
        return value  # the most frequent case: samples
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in get_args(hint) if each is not types.NoneType)  # every union is `X | None`
        return None if value is None else decode(inner, value, where)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, where)
    if hint is Config:
        return _decode_config(value, where)
    if hint is Arch:
        _require(isinstance(value, str) and value in ARCHES, f"{where} is no known arch: {value!r:.60}")
        return ARCHES[cast(str, value)]
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
        return tuple(value)  # the most frequent case: samples
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
    fields = {name: decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    for name, item in fields.items():
        values = (item if isinstance(item, tuple) else (item,)) if name.endswith(_DIMENSIONED) else ()
        negative = any(isinstance(each, int | float) and each < 0 for each in values)
        _require(not negative, f"{where}.{name} is negative")
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:  # a field is missing, or the dataclass itself refuses
        raise StoreError(f"{where}: {error}") from error


def _decode_config(value: object, where: str) -> Config:
    """The config of an object. Raises StoreError for other values, ConfigError for a config that this version does not
    know."""
    if not isinstance(value, dict) or not isinstance(value.get("family"), str):
        raise StoreError(f"{where} must name a family")
    family = families().get(value["family"])
    if family is None:
        raise ConfigError(f"{where} is of no known family: {value['family']!r:.60}")
    return family.of({name: item for name, item in value.items() if name != "family"})


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _key(device: str, problem: Problem) -> dict[str, object]:
    return {"device": device, "problem": encode(problem, whole=False)}


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
