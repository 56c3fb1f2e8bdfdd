"""Messages between a client and its workers, read as strictly as records, and the files that workers are sent."""

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import CONFIGS, make, ship
from stored import PROBLEM as STORED
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.codegen.families import families, family_named, parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.codec import dumps
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.cluster.client import Tuning
from tilewright.tuner.cluster.jobs import Attempt, Job, StoreView
from tilewright.tuner.cluster.messages import (
    Asks,
    Begins,
    ClusterProgress,
    Ends,
    Fails,
    Loses,
    Message,
    Tells,
    read,
    written,
)
from tilewright.tuner.measure.decide import NAIVE, Contender
from tilewright.tuner.measure.evaluate import Phases
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.journal import Journal
from tilewright.tuner.result import Result

PROBLEM, INFO = Problem(8, 9, 10), replace(host_info(), uuid="GPU-1")
TIMES, RIGHT = Measurement((1.0, 2.0, 1.5), 1.5, 0.5, clock_mhz=1980.0), Accuracy(0.25, 1, 2)
BEST = Record(PROBLEM, INFO.key, NAIVE, Status.OK, measurement=TIMES, accuracy=RIGHT, gpu=INFO.uuid)
CONTENDERS = (Contender(NAIVE, TIMES, RIGHT, 1.1, (1.0, 1.2)), Contender(None, TIMES, RIGHT, 1.0, (1.0, 1.0)))
RESULT = Result(
    PROBLEM, INFO, BEST, CONTENDERS, 7, 3, (("ok", 4),), (("too large", 9),), Phases(1.0, 2.0, 3.0), 0.5, 9.0, None,
    0.1, 2, None, "trials", None, "gp",
)  # fmt: skip
MESSAGES: list[Message] = [
    Asks("a", 3, "tcp://127.0.0.1:1", INFO, (("driver", "x"), ("generator", "y"))),
    Begins("a", 320, 1),
    Tells("a", "naive:8x32", Entry("ok", 12.5, (12.4, 12.6), 0.1, 0.2, 0.3), "2026-11-23T12:00:00"),
    Tells("a", "simt:64x64x16,stages=3", Entry("crashed", reason="it ended"), "2026-11-23T12:00:00"),
    Ends("a", RESULT),
    Ends("a", replace(RESULT, stopped="gain", expected_gain=0.002, sampler="local", seed=3)),
    Fails("a", "no variant works"),
    Loses("a", "an illegal address"),
]


@pytest.mark.fast
@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
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


TRIAL, END, BEGIN = MESSAGES[2], MESSAGES[4], MESSAGES[1]
RANKED = json.loads(written(END))["result"]["contenders"]


@pytest.mark.fast
@pytest.mark.parametrize(
    "text",
    [
        7, None, b"{}", {"kind": "Ends"}, "", "{", "[]", "{}", "[" * 100_000, '{"kind": "Tells"}', '{"kind": ["Ends"]}',
        '{"kind": "__import__"}', "x" * (5 << 20),
        changed(TRIAL, "attempt", value=3), changed(TRIAL, "started", value="now"), changed(TRIAL, "started", value=5),
        changed(TRIAL, "variant", value="\x1b[2J"), changed(TRIAL, "variant", value=["naive:8x32"]),
        changed(TRIAL, "variant", value=None), changed(TRIAL, "variant", value=5), without(TRIAL, "variant"),
        without(TRIAL, "entry"), without(TRIAL, "started"), changed(TRIAL, "entry", value=None),
        changed(TRIAL, "entry", "time_us", value=-1.0), changed(TRIAL, "entry", "time_us", value=math.nan),
        changed(TRIAL, "entry", "times_us", value=[0.0]), changed(TRIAL, "entry", "status", value="fine"),
        changed(TRIAL, "entry", "status", value="crashed"), changed(TRIAL, "entry", "reason", value=[]),
        changed(BEGIN, "more", value=1), changed(BEGIN, "dimensions", value=[["x", [1]]]),
        changed(BEGIN, "attempt", value=3), without(BEGIN, "trials"), without(BEGIN, "resumed"),
        changed(BEGIN, "trials", value="1"), changed(BEGIN, "trials", value=-1), changed(BEGIN, "trials", value=1.5),
        changed(BEGIN, "trials", value=True), changed(BEGIN, "resumed", value="1"),
        changed(BEGIN, "resumed", value=-1), changed(BEGIN, "resumed", value=None),
        changed(BEGIN, "trials", value=10**30), changed(BEGIN, "resumed", value=10**30),
        changed(END, "result", "expected_gain", value="1%"), changed(END, "result", "expected_gain", value=math.nan),
        changed(END, "result", "sampler", value=None), changed(END, "result", "stopped", value=7),
        changed(END, "result", "trials", value=10**30), changed(END, "result", "resumed", value=-5),
        changed(END, "result", "best", "measurement", "median_us", value=-1.0),
        changed(END, "result", "best", "measurement", "median_us", value=math.inf),
        changed(END, "result", "best", "config", "family", value="other"),
        changed(END, "result", "best", "device", value="another"),
        changed(END, "result", "best", "status", value="crashed"),
        changed(END, "result", "best", "accuracy", "worst", value=2.0),
        changed(END, "result", "problem", "m", value=4096), changed(END, "result", "problem", "m", value=-1),
        changed(END, "result", "contenders", value=[]), changed(END, "result", "contenders", value=RANKED[::-1]),
        changed(END, "result", "contenders", value=RANKED[:1]), changed(END, "result", "trials", value=1),
        changed(END, "result", "device", "arch", value="sm_1"), changed(END, "result", "device", "sm_count", value=0),
        changed(END, "result", "device", "name", value=""), changed(END, "result", value=None),
        changed(MESSAGES[0], "versions", value=[["generator"]]), changed(MESSAGES[-2], "reason", value=None),
    ],
    ids=lambda text: repr(text)[:24],  # the rest has measurements, which differ between processes of xdist
)  # fmt: skip
def test_anything_else_is_refused_in_a_line(text: object) -> None:
    with pytest.raises(StoreError) as caught:
        read(text)
    assert 0 < len(str(caught.value)) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda e: st.lists(e) | st.dictionaries(st.text(), e),
)


@pytest.mark.fast
@given(st.sampled_from(MESSAGES), st.data())
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


@pytest.mark.fast
@pytest.mark.parametrize("family", families())
def test_a_trial_is_of_a_config_of_any_family(family: str) -> None:
    config = family_named(family)()
    message = read(written(Tells("a", str(config), Entry("ok", 12.5), "2026-11-23T12:00:00")))
    assert isinstance(message, Tells)
    assert message.config == config


@pytest.mark.fast
@pytest.mark.parametrize("variant", ["", "other:16", "naive:8x33", "tiled:16,speed=2", "tiled:16,unroll=1,unroll=1"])
def test_a_trial_of_no_config_fails_once_its_config_is_read(variant: str) -> None:
    message = read(written(Tells("a", variant, Entry("ok", 12.5), "2026-11-23T12:00:00")))
    assert isinstance(message, Tells)
    with pytest.raises(ConfigError):
        message.config  # noqa: B018


# ---- Records that are sent, and those that are kept -------------------------------------------------------------


pytest.importorskip("distributed")


HOST = host_info()


def won(us: float) -> Result:
    """A worker's result, whose winner is the first config."""
    best = make(us, STORED, CONFIGS[0], HOST.key)
    assert best.measurement is not None
    assert best.accuracy is not None
    sides = tuple(Contender(each, best.measurement, best.accuracy, 1.0, (1.0, 1.0)) for each in (CONFIGS[0], None))
    return Result(
        STORED, HOST, best, sides, 1, 0, (("ok", 1),), (), Phases(), 0.0, 1.0, None, None, 0, None, "trials"
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped" / HOST.key
    shipped.mkdir(parents=True)
    return Store(tmp_path / "store", shipped.parent)


@pytest.mark.parametrize(("options", "stays"), [({}, True), ({"replace": False}, True), ({"replace": True}, False)])
def test_a_winner_is_kept_unless_a_record_that_its_worker_did_not_have_is_faster(
    store: Store, options: dict[str, Any], stays: bool
) -> None:
    """A record that was sent to the worker met the winner in its duel, and gives way to it whatever its time was."""
    key = HOST.key
    store.keep(make(1.0, STORED, CONFIGS[1], key))
    results: list[Result] = []
    progress: Any = SimpleNamespace(ended=results.append)
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [STORED], options, store, key, ClusterProgress())
    tuning._progress = progress
    tuning._save(Job(0, STORED), won(5.0))
    assert store.best(key, STORED) == won(5.0).best
    store.keep(make(3.0, STORED, CONFIGS[2], key))  # by another command
    tuning._save(Job(0, STORED), won(4.0))
    best = store.best(key, STORED)
    assert best is not None
    assert best.config == CONFIGS[2 if stays else 0]
    assert [each.outdone for each in results] == [False, stays]
    assert tuning.results[STORED].kept is not stays


def test_a_result_that_was_outdone_on_its_worker_is_not_kept(store: Store) -> None:
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [STORED], {}, store, HOST.key, ClusterProgress())
    tuning._save(Job(0, STORED), replace(won(5.0), outdone=True))
    assert not tuning.results[STORED].kept
    assert store.both()[0] == ()


class Noted(ClusterProgress):
    """Progress that collects notes, variants of trials, and the numbers of trials with which searches begin."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.trials: list[str] = []
        self.begins: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begun(self, problem: Problem, trials: int, resumed: int) -> None:
        self.begins.append((trials, resumed))

    def tried(self, problem: Problem, device_key: str, trial: Tells) -> None:
        self.trials.append(trial.variant)


def heard(
    store: Store, progress: ClusterProgress, *messages: Message | str, problem: Problem = STORED, **options: Any
) -> Tuning:
    """A tuning of a problem that a worker has, after it has read these messages."""
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [problem], options, store, HOST.key, progress)
    tuning._attempts["a"] = Attempt(tuning._jobs[0], HOST, "tcp://x", VERSIONS)
    for message in messages:
        tuning._events.put((tuning._topic, message if isinstance(message, str) else written(message)))
    tuning._hear(0.0)
    return tuning


VERSIONS = (("compiler", "1"),)
STARTED, OK = "2026-11-23T12:00:00", Entry("ok", 12.5, (12.4, 12.6), 0.1, 0.2, 0.3)
TRIALS = [Tells("a", str(config), replace(OK, time_us=10.0 + place), STARTED) for place, config in enumerate(CONFIGS)]
CRASHED = Tells("a", "naive:8x64", Entry("crashed", reason="it ended"), STARTED)


def test_trials_of_a_worker_are_in_the_journal_from_which_it_goes_on(store: Store) -> None:
    """The journal holds the first outcome of each config, whichever sampler chose it."""
    progress = Noted()
    heard(store, progress, Begins("a", 320, 0), *TRIALS, CRASHED, replace(TRIALS[0], entry=Entry("timeout")))
    assert (progress.notes, progress.begins) == ([], [(320, 0)])
    assert progress.trials == [*map(str, CONFIGS), "naive:8x64", str(CONFIGS[0])]
    journals = StoreView(store, HOST.key).files(STORED, VERSIONS)["trials"]
    ((name, text),) = journals.items()
    assert StoreView(store, HOST.key).files(STORED, (("compiler", "2"),))["trials"] == {}
    (store.root / "worker").mkdir()
    (store.root / "worker" / name).write_text(text)
    resumed = Journal.of(store.root / "worker", STORED, HOST.key, VERSIONS).entries
    assert {str(config): entry.time_us for config, entry in resumed.items()} == {
        **{str(config): 10.0 + place for place, config in enumerate(CONFIGS)},
        str(parse("naive:8x64")): None,
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"variant": "other:16"}, "family must be one of"),
        ({"variant": "tiled:17"}, "tile_width must be one of"),
        ({"variant": "tiled:16,speed=2"}, "speed"),
        ({"variant": ""}, "family must be one of"),
        ({"variant": "dmma"}, "of a variant that cannot serve its problem"),  # for double alone
        ({"variant": "wgmma"}, "of a variant that cannot serve its problem"),  # the processor has no tensor cores
        ({"attempt": "b"}, "of an attempt that nobody began"),
    ],
)
def test_an_impossible_trial_is_refused_and_changes_nothing(store: Store, changes: dict[str, str], why: str) -> None:
    progress = Noted()
    heard(store, progress, Begins("a", 320, 0), TRIALS[0], replace(TRIALS[1], **changes), TRIALS[2])  # type: ignore[arg-type]
    (note,) = progress.notes
    assert note.startswith("a message of a worker is refused: ")
    assert why in note
    assert progress.trials == [str(CONFIGS[0]), str(CONFIGS[2])]
    (path,) = (store.root / "trials").glob("*.jsonl")
    assert [json.loads(line)["config"] for line in path.read_text().splitlines()[1:]] == progress.trials


def test_variants_that_a_user_names_are_in_no_journal(store: Store) -> None:
    progress = Noted()
    heard(store, progress, Begins("a", 2, 0), *TRIALS[:2], configs=[str(config) for config in CONFIGS[:2]])
    assert (len(progress.trials), progress.notes) == (2, [])
    assert not list(store.root.rglob("*.jsonl"))


def test_a_damaged_message_costs_itself_alone(store: Store) -> None:
    progress = Noted()
    damaged = [written(TRIALS[0])[:-9], written(TRIALS[0]).replace("12.4", "-1"), "[" * 9999, '{"kind":"Begins"}']
    heard(store, progress, Begins("a", 320, 0), *damaged, TRIALS[1])
    assert len(progress.notes) == 4
    assert all("\n" not in note for note in progress.notes)
    assert progress.trials == [str(CONFIGS[1])]


def test_workers_are_sent_the_users_own_record_though_a_shipped_one_is_faster(store: Store, tmp_path: Path) -> None:
    own = make(20.0, STORED, CONFIGS[1], HOST.key)
    store.keep(own)
    ship(store, make(10.0, STORED, CONFIGS[2], HOST.key), HOST.key)
    assert [each.config for each in store.layers()[1]] == [CONFIGS[2]]
    files = StoreView(store, HOST.key).files(STORED, ())
    assert [text.encode() for text in files["records"].values()] == [dumps(own)]
