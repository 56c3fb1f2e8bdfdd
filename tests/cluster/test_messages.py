"""Tests that the client reads a worker's messages as strictly as records of the store."""

import contextlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.codegen.families import families, family_named
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.tuner.cluster.messages import Asks, Begins, Ends, Fails, Loses, Message, Tells, read, written
from tilewright.tuner.measure.decide import NAIVE, Contender
from tilewright.tuner.measure.evaluate import Phases
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.result import Result

pytestmark = pytest.mark.fast

PROBLEM, INFO = Problem(8, 9, 10), replace(host_info(), uuid="GPU-1")
TIMES, RIGHT = Measurement((1.0, 2.0, 1.5), 1.5, 0.5, clock_mhz=1980.0), Accuracy(0.25, 1, 2)
BEST = Record(PROBLEM, INFO.key, NAIVE, Status.OK, measurement=TIMES, accuracy=RIGHT, gpu=INFO.uuid)
CONTENDERS = (Contender(NAIVE, TIMES, RIGHT, 1.1, (1.0, 1.2)), Contender(None, TIMES, RIGHT, 1.0, (1.0, 1.0)))
RESULT = Result(
    PROBLEM, INFO, BEST, CONTENDERS, 7, 3, (("ok", 4),), (("too large", 9),), Phases(1.0, 2.0, 3.0), 0.5, 9.0, None,
    0.1, 2, None, "trials", None, "gp",
)  # fmt: skip
SAID: list[Message] = [
    Asks("a", 3, "tcp://127.0.0.1:1", INFO, (("driver", "x"), ("generator", "y"))),
    Begins("a", 320, 1),
    Tells("a", "naive:8x32", Entry("ok", 12.5, (12.4, 12.6), 0.1, 0.2, 0.3), "2026-11-23T12:00:00"),
    Tells("a", "simt:64x64x16,stages=3", Entry("crashed", reason="it ended"), "2026-11-23T12:00:00"),
    Ends("a", RESULT),
    Ends("a", replace(RESULT, stopped="gain", expected_gain=0.002, sampler="local", seed=3)),
    Fails("a", "no variant works"),
    Loses("a", "an illegal address"),
]


@pytest.mark.parametrize("message", SAID, ids=lambda each: type(each).__name__)
def test_what_is_written_is_read(message: Message) -> None:
    assert read(written(message)) == message


def changed(message: Message, *path: Any, value: object) -> str:
    document = json.loads(written(message))
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(document)


def without(message: Message, name: str) -> str:
    document = json.loads(written(message))
    del document[name]
    return json.dumps(document)


TOLD, DONE, BEGUN = SAID[2], SAID[4], SAID[1]
RANKED = json.loads(written(DONE))["result"]["contenders"]


@pytest.mark.parametrize(
    "text",
    [
        7, None, b"{}", {"kind": "Ends"}, "", "{", "[]", "{}", "[" * 100_000, '{"kind": "Tells"}', '{"kind": ["Ends"]}',
        '{"kind": "__import__"}', "x" * (5 << 20),
        changed(TOLD, "attempt", value=3), changed(TOLD, "started", value="now"), changed(TOLD, "started", value=5),
        changed(TOLD, "variant", value="\x1b[2J"), changed(TOLD, "variant", value=["naive:8x32"]),
        changed(TOLD, "variant", value=None), changed(TOLD, "variant", value=5), without(TOLD, "variant"),
        without(TOLD, "entry"), without(TOLD, "started"), changed(TOLD, "entry", value=None),
        changed(TOLD, "entry", "time_us", value=-1.0), changed(TOLD, "entry", "time_us", value=math.nan),
        changed(TOLD, "entry", "times_us", value=[0.0]), changed(TOLD, "entry", "status", value="fine"),
        changed(TOLD, "entry", "status", value="crashed"), changed(TOLD, "entry", "reason", value=[]),
        changed(BEGUN, "more", value=1), changed(BEGUN, "dimensions", value=[["x", [1]]]),
        changed(BEGUN, "attempt", value=3), without(BEGUN, "trials"), without(BEGUN, "resumed"),
        changed(BEGUN, "trials", value="1"), changed(BEGUN, "trials", value=-1), changed(BEGUN, "trials", value=1.5),
        changed(BEGUN, "trials", value=True), changed(BEGUN, "resumed", value="1"),
        changed(BEGUN, "resumed", value=-1), changed(BEGUN, "resumed", value=None),
        changed(BEGUN, "trials", value=10**30), changed(BEGUN, "resumed", value=10**30),
        changed(DONE, "result", "expected_gain", value="1%"), changed(DONE, "result", "expected_gain", value=math.nan),
        changed(DONE, "result", "sampler", value=None), changed(DONE, "result", "stopped", value=7),
        changed(DONE, "result", "trials", value=10**30), changed(DONE, "result", "resumed", value=-5),
        changed(DONE, "result", "best", "measurement", "median_us", value=-1.0),
        changed(DONE, "result", "best", "measurement", "median_us", value=math.inf),
        changed(DONE, "result", "best", "config", "family", value="other"),
        changed(DONE, "result", "best", "device", value="another"),
        changed(DONE, "result", "best", "status", value="crashed"),
        changed(DONE, "result", "best", "accuracy", "worst", value=2.0),
        changed(DONE, "result", "problem", "m", value=4096), changed(DONE, "result", "problem", "m", value=-1),
        changed(DONE, "result", "contenders", value=[]), changed(DONE, "result", "contenders", value=RANKED[::-1]),
        changed(DONE, "result", "contenders", value=RANKED[:1]), changed(DONE, "result", "trials", value=1),
        changed(DONE, "result", "device", "arch", value="sm_1"), changed(DONE, "result", "device", "sm_count", value=0),
        changed(DONE, "result", "device", "name", value=""), changed(DONE, "result", value=None),
        changed(SAID[0], "versions", value=[["generator"]]), changed(SAID[-2], "reason", value=None),
    ],
    ids=lambda text: repr(text)[:24],  # further on stands what this machine measures, which each worker of xdist does
)  # fmt: skip
def test_anything_else_is_refused_in_a_line(text: object) -> None:
    with pytest.raises(StoreError) as caught:
        read(text)
    assert 0 < len(str(caught.value)) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda e: st.lists(e) | st.dictionaries(st.text(), e),
)


@given(st.sampled_from(SAID), st.data())
def test_any_field_of_any_type_is_read_or_refused(message: Message, data: st.DataObject) -> None:
    document = json.loads(written(message))
    inner = document
    while True:
        name = data.draw(st.sampled_from(sorted(inner)))
        if not (isinstance(inner[name], dict) and inner[name] and data.draw(st.booleans())):
            break
        inner = inner[name]
    inner[name] = data.draw(JSON)
    with contextlib.suppress(StoreError):
        read(json.dumps(document))


@pytest.mark.parametrize("family", families())
def test_a_trial_is_of_a_config_of_any_family(family: str) -> None:
    config = family_named(family)()
    message = read(written(Tells("a", str(config), Entry("ok", 12.5), "2026-11-23T12:00:00")))
    assert isinstance(message, Tells)
    assert message.config == config


@pytest.mark.parametrize("variant", ["", "other:16", "naive:8x33", "tiled:16,speed=2", "tiled:16,unroll=1,unroll=1"])
def test_a_trial_of_no_config_says_so_once_its_config_is_asked_for(variant: str) -> None:
    message = read(written(Tells("a", variant, Entry("ok", 12.5), "2026-11-23T12:00:00")))
    assert isinstance(message, Tells)
    with pytest.raises(ConfigError):
        message.config  # noqa: B018
