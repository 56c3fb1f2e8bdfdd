"""Records: what they refuse, and their way to JSON and back."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, StoreError, StoreVersionError
from tilewright.codegen.families import families, parse
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.store import codec as record_json
from tilewright.runtime.store.codec import beginning_of, decode, dumps, encode, key_digest, line_of, loads, of_line
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status

pytestmark = pytest.mark.fast

TIMES = st.floats(1e-3, 1e9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
MEASUREMENTS = st.builds(
    Measurement,
    samples_us=st.lists(TIMES, max_size=9).map(tuple),
    median_us=TIMES,
    spread_us=st.floats(0, 1e6),
    end_to_end_us=st.none() | TIMES,
    clock_mhz=st.none() | TIMES,
)
ACCURACIES = st.builds(
    Accuracy,
    worst=st.floats(0, 1),
    row=st.integers(-1, 2**31),
    col=st.integers(-1, 2**31),
    vendor=st.none() | FINITE,
)
SIZES = st.integers(0, 2**31 - 1)
PROBLEMS = st.builds(Problem, SIZES, SIZES, SIZES, st.sampled_from(DType), st.booleans(), st.booleans())


def _configs(family: type[Config]) -> st.SearchStrategy[Config]:
    typed = {leaf.name: st.sampled_from(leaf.choices) for leaf in family.leaves()}
    return st.fixed_dictionaries(typed).map(family.build)


CONFIGS = st.sampled_from(list(families().values())).flatmap(_configs)
RECORDS = st.builds(
    Record,
    problem=PROBLEMS,
    device=TEXT,
    config=CONFIGS,
    status=st.just(Status.OK),
    reason=TEXT,
    measurement=MEASUREMENTS,
    accuracy=ACCURACIES,
    versions=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple),
    digest=TEXT,
    vendor_us=st.none() | TIMES,
    gpu=st.sampled_from(["", "GPU-5e1f"]),
)
GOOD = Record(
    problem=Problem(1024, 768, 512),
    device="nvidia-h200",
    config=parse("tiled:"),
    status=Status.OK,
    measurement=Measurement((10.5, 11.0), 10.75, 0.5, 20.0, 1980.0),
    accuracy=Accuracy(0.25, 3, 4, 0.125),
    versions=(("driver", "CUDA 13.0"), ("generator", "0.1.0")),
    digest="0" * 64,
    vendor_us=5.0,
)


def _document(**changes: Any) -> bytes:
    """A document whose record is changed, with the right checksum. `a__b` stands for field b of field a."""
    document = json.loads(dumps(GOOD))
    for path, value in changes.items():
        *outer, name = path.split("__")
        target = document
        for step in outer:
            target = target[step]
        target[name] = value
    del document["checksum"]
    return json.dumps({**document, "checksum": record_json._sha256(document)}).encode()


@given(RECORDS)
def test_json_and_back_is_the_same_record(record: Record) -> None:
    assert loads(dumps(record)) == record
    assert dumps(loads(dumps(record))) == dumps(record)


@given(st.one_of(FINITE, st.floats(1e-320, 1e-300)))
def test_floats_are_exact(number: float) -> None:
    text = json.dumps(encode(number))
    again = decode(float, json.loads(text), "x")
    assert isinstance(again, float)
    assert math.copysign(1, again) == math.copysign(1, number)
    assert again == number


def test_defaults_are_not_written() -> None:
    """Later fields and parameters leave stored records as they are."""
    record = json.loads(dumps(GOOD))["record"]
    assert record["problem"] == {"m": 1024, "n": 768, "k": 512}
    assert record["config"] == {"family": "tiled"}
    assert not {"gpu", "effort", "reason", "ratio_vendor"} & record.keys()
    assert encode(GOOD.config) == {"family": "tiled", "tile_width": 16, "skew": 0, "unroll": 8, "edge": "fit"}


@given(RECORDS)
def test_a_line_and_back_is_the_same_record(record: Record) -> None:
    line = line_of(record)
    assert line.count(b"\n") == 1
    assert line.startswith(beginning_of(record.problem))
    assert of_line(line) == record


def test_samples_are_read_without_a_look_at_their_type_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are most of a record, and a look at the type hint of each would triple the time to read it."""
    seen: list[object] = []
    get_origin = record_json.get_origin
    monkeypatch.setattr(record_json, "get_origin", lambda hint: (seen.append(hint), get_origin(hint))[1])
    measured = Measurement(tuple(map(float, range(1, 1001))), 500.0, 1.0)
    assert decode(Measurement, encode(measured), "measurement") == measured
    assert len(seen) < 20


def test_every_status_but_ok_is_encoded_too() -> None:
    failed = replace(GOOD, status=Status.TIMEOUT, reason="took 10 s", measurement=None, accuracy=None)
    assert decode(Record, encode(failed), "record") == failed


def test_a_missing_field_takes_its_default() -> None:
    document = json.loads(dumps(GOOD))
    optional = [name for name in ("vendor_us", "versions", "digest") if document["record"].pop(name, 0) != 0]
    assert len(optional) == 3
    del document["checksum"]
    record = loads(json.dumps({**document, "checksum": record_json._sha256(document)}).encode())
    assert record == replace(GOOD, vendor_us=None, versions=(), digest="")


def test_a_config_is_completed() -> None:
    assert loads(_document(record__config={"family": "tiled", "unroll": 4})).config == parse("tiled:unroll=4")


@pytest.mark.parametrize(
    "changes",
    [
        {"record__config__family": "fused"},
        {"record__config__family": "../tiled"},
        {"record__config__warp_m": 4},
        {"record__config__unroll": 3},
        {"record__config__unroll": "all"},
        {"record__config__unroll": True},
        {"record__config__unroll": -4},
        {"record__config__x}} {% include": 4},
        {"record__config__edge": 'pad"; system("x")'},
    ],
)
def test_a_config_of_another_version_is_distinguished_from_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(_document(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"record__unknown": 1},
        {"unknown": 1},
        {"record": []},
        {"record": None},
        {"key": {}},
        {"key__device": "nvidia-h100"},
        {"record__device": "nvidia-h100"},
        {"record__device": 5},
        {"record__digest": None},
        {"record__status": "OK"},
        {"record__status": ["ok"]},
        {"record__status": "crashed"},
        {"record__measurement": None},
        {"record__measurement": [1.0]},
        {"record__measurement__median_us": "10.75"},
        {"record__measurement__median_us": True},
        {"record__measurement__median_us": None},
        {"record__measurement__median_us": -1.0},
        {"record__measurement__median_us": 0.0},
        {"record__measurement__spread_us": -0.5},
        {"record__measurement__samples_us": [1.0, -1.0]},
        {"record__measurement__samples_us": [1.0, "x"]},
        {"record__measurement__samples_us": {"0": 1.0}},
        {"record__measurement__clock_mhz": -1.0},
        {"record__measurement__end_to_end_us": -20},
        {"record__vendor_us": -5.0},
        {"record__accuracy": None},
        {"record__accuracy__worst": 1.5},
        {"record__accuracy__row": 1.0},
        {"record__problem__m": -1},
        {"record__problem__m": 1.0},
        {"record__problem__m": True},
        {"record__problem__m": 2**31},
        {"record__problem__dtype": "half"},
        {"record__problem__trans_a": 0},
        {"record__config": [["unroll", 4]]},
        {"record__config__family": None},
        {"record__versions": [["driver"]]},
        {"record__versions": [["driver", 13]]},
    ],
    ids=lambda changes: "".join(f"{name}={value!r}" for name, value in changes.items()),
)
def test_anything_else_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StoreError) as caught:
        loads(_document(**changes))
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, StoreVersionError)


@pytest.mark.parametrize("schema", [0, -1, True, 1.0, "1", None])
def test_a_schema_that_never_was_is_damage(schema: object) -> None:
    with pytest.raises(StoreError, match="no such schema") as caught:
        loads(_document(schema=schema))
    assert not isinstance(caught.value, StoreVersionError)


def test_a_newer_schema_is_recognized_whatever_else_changed() -> None:
    with pytest.raises(StoreVersionError, match="newer tilewright"):
        loads(_document(schema=record_json.SCHEMA + 1, record={"other": 1}, more=2))


def test_an_older_schema_is_recognized_whatever_else_changed() -> None:
    with pytest.raises(ConfigError, match="a record of format 3, which this version does not read: tune the shape"):
        loads(_document(schema=record_json.SCHEMA - 1, record={"other": 1}, more=2))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b"1", b"\xff\xfe", b"\x00" * 100, b'{"schema": 4}', b"[" * 100_000,
        b'{"schema": 4, "schema": 4}', b'{"schema": NaN}', b'{"schema": 4, "x": 1e999}',
        b'{"schema": ' + b"9" * 5000 + b"}", b'{"schema": 4, "x": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)  # fmt: skip
def test_text_that_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        loads(data)


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_noticed_or_harmless(data: st.DataObject) -> None:
    good = dumps(GOOD)
    index = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = good[:index] + bytes([good[index] ^ 1 << bit]) + good[index + 1 :]
    try:
        record = loads(flipped)
    except StoreError:
        return
    assert record == GOOD  # a blank that became another blank


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_not_written(number: float) -> None:
    with pytest.raises(StoreError):
        dumps(replace(GOOD, accuracy=Accuracy(0.5, 0, 0, number)))


def test_only_known_types_are_written() -> None:
    with pytest.raises(StoreError):
        encode({"a": 1})
    with pytest.raises(StoreError):
        encode(b"bytes")


@pytest.mark.parametrize("median", [math.nan, math.inf, 0.0, -1.0])
def test_a_measurement_refuses_impossible_times(median: float) -> None:
    with pytest.raises(ConfigError):
        Measurement((), median, 0.0)


def test_status_decides_which_fields_exist() -> None:
    for changes in ({"measurement": None}, {"status": Status.CRASHED}, {"accuracy": None}):
        with pytest.raises(ConfigError):
            replace(GOOD, **changes)
    with pytest.raises(ConfigError, match="reason"):
        replace(GOOD, status=Status.CRASHED, measurement=None)


def test_every_field_changes_the_digest_of_a_key() -> None:
    problem = GOOD.problem
    others = [replace(problem, m=7), replace(problem, n=7), replace(problem, k=7)]
    others += [replace(problem, dtype=DType.DOUBLE), replace(problem, trans_a=True), replace(problem, trans_b=True)]
    others += [replace(problem, accuracy="normwise"), replace(problem, batch=7), replace(problem, ragged="m")]
    digests = {key_digest("d", other) for other in (problem, *others)} | {key_digest("e", problem)}
    assert len(others) == len(fields(Problem))
    assert len(digests) == len(others) + 2
