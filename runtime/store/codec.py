"""Records as JSON and back, strictly: what was not written by this code is not read by it."""

import dataclasses
import enum
import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...codegen.errors import StoreError, StoreVersionError, check
from ...codegen.families import complete
from ...codegen.problem import Problem
from .record import Record

__all__ = ["SCHEMA", "decode", "dumps", "encode", "key_digest", "loads"]

SCHEMA = 1
"""Version of the document, from 1; one more for every change that an older tilewright cannot read, such as a
new field. Earlier schemas stay readable because a field that is missing takes its default."""

_DIMENSIONED = ("_us", "_mhz", "_bytes")
"""Endings of names that are units: values of such fields are never negative."""


def key_digest(device: str, problem: Problem) -> str:
    """SHA-256 of what a record is found by, in hexadecimal: no user text reaches the path of its file."""
    return _sha256(_key(device, problem))


def dumps(record: Record) -> bytes:
    """The document of a record: schema, key, record and a checksum over all three. Raises StoreError."""
    document = {"schema": SCHEMA, "key": _key(record.device, record.problem), "record": encode(record)}
    return (json.dumps({**document, "checksum": _sha256(document)}, indent=1) + "\n").encode()


def loads(data: bytes) -> Record:
    """The record of a document; every parameter of its config is one that this version knows.

    Raises StoreVersionError for a newer schema, ConfigError for a valid document whose family, parameter or
    value this version does not know, and StoreError for anything damaged or foreign.
    """
    document = _parse(data)
    check(isinstance(document, dict), "not an object", StoreError)
    schema, checksum = document.get("schema"), document.pop("checksum", None)
    check(type(schema) is int and schema >= 1, f"no such schema: {schema!r}", StoreError)
    newer = f"written by a newer tilewright (schema {schema}, this version reads up to {SCHEMA})"
    check(schema <= SCHEMA, newer, StoreVersionError)
    check(checksum == _sha256(document), "its checksum does not match", StoreError)
    check(document.keys() == {"schema", "key", "record"}, "missing or unknown fields", StoreError)
    record = decode(Record, document["record"], "record")
    assert isinstance(record, Record)
    check(document["key"] == _key(record.device, record.problem), "key and record disagree", StoreError)
    return replace(record, config=complete(record.config))


def encode(value: object) -> object:
    """A value as JSON has it: a dataclass as an object, a tuple as a list, an enum as its value.

    Raises StoreError for a number that is not finite, and for any other type.
    """
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    check(isinstance(value, float) and math.isfinite(value), f"cannot be stored: {value!r}", StoreError)
    assert isinstance(value, float)
    return float(value)  # a float of NumPy becomes a plain one


def decode(hint: Any, value: object, where: str) -> object:
    """The value of type `hint` that `encode` made `value` from; `where` names it in messages.

    Raises StoreError.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), value, where)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, where)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members: list[enum.Enum] = [member for member in hint if member.value == value]
        check(len(members) == 1, f"{where} is no {hint.__name__}: {value!r:.60}", StoreError)
        return members[0]
    if hint is float and type(value) is int and abs(value) < 2**53:
        value = float(value)  # 3.0 may have been written as 3 by hand
    name = getattr(hint, "__name__", hint)
    check(type(value) is hint, f"{where} must be {name}, got {value!r:.60}", StoreError)
    check(not isinstance(value, float) or math.isfinite(value), f"{where} is not finite", StoreError)
    return value


def _decode_union(hints: tuple[Any, ...], value: object, where: str) -> object:
    if value is None and types.NoneType in hints:
        return None
    *others, last = (hint for hint in hints if hint is not types.NoneType)
    for hint in others:
        try:
            return decode(hint, value, where)
        except StoreError:
            continue
    return decode(last, value, where)


def _decode_tuple(hints: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    check(isinstance(value, list), f"{where} must be a list, got {value!r:.60}", StoreError)
    assert isinstance(value, list)
    if len(hints) == 2 and hints[1] is ...:
        hints = hints[:1] * len(value)
    check(len(value) == len(hints), f"{where} must have {len(hints)} items, got {len(value)}", StoreError)
    pairs = enumerate(zip(hints, value, strict=True))
    return tuple(decode(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)


def _decode_dataclass(cls: Any, value: object, where: str) -> object:
    check(isinstance(value, dict), f"{where} must be an object, got {value!r:.60}", StoreError)
    assert isinstance(value, dict)
    hints = _hints(cls)
    unknown = sorted(value.keys() - hints.keys())
    check(not unknown, f"{where} has unknown fields: {', '.join(unknown):.60}", StoreError)
    given = {name: decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    for name, item in given.items():
        _check_sign(name, item, where)
    try:
        return cls(**given)
    except (TypeError, ValueError) as error:  # a field is missing, or the dataclass itself refuses
        raise StoreError(f"{where}: {error}") from error


def _check_sign(name: str, value: object, where: str) -> None:
    if name.endswith(_DIMENSIONED):
        values = value if isinstance(value, tuple) else (value,)
        negative = any(isinstance(item, int | float) and item < 0 for item in values)
        check(not negative, f"{where}.{name} is negative", StoreError)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _key(device: str, problem: Problem) -> dict[str, object]:
    return {"device": device, "problem": encode(problem)}


def _sha256(document: Mapping[str, object]) -> str:
    try:
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:  # 1e999 was read as infinity, or it nests too deep
        raise StoreError(f"no canonical form: {error}") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, an absurd number, nested too deep
        raise StoreError(f"not JSON: {error}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return dict(pairs)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
