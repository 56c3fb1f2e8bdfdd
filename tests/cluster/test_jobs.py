"""Tests of the records that a client sends to workers, and of those that it keeps from their results."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed")

from stored import CONFIGS, PROBLEM, make, ship
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.codec import dumps
from tilewright.runtime.store.store import Store
from tilewright.tuner.cluster.client import Tuning
from tilewright.tuner.cluster.jobs import Attempt, Job, StoreView
from tilewright.tuner.cluster.messages import Begins, ClusterProgress, Message, Tells, written
from tilewright.tuner.measure.decide import Contender
from tilewright.tuner.measure.evaluate import Phases
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.journal import Journal
from tilewright.tuner.result import Result

INFO = host_info()


def won(us: float) -> Result:
    """A worker's result, whose winner is the first config."""
    best = make(us, PROBLEM, CONFIGS[0], INFO.key)
    assert best.measurement is not None
    assert best.accuracy is not None
    sides = tuple(Contender(each, best.measurement, best.accuracy, 1.0, (1.0, 1.0)) for each in (CONFIGS[0], None))
    return Result(
        PROBLEM, INFO, best, sides, 1, 0, (("ok", 1),), (), Phases(), 0.0, 1.0, None, None, 0, None, "trials"
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped" / INFO.key
    shipped.mkdir(parents=True)
    return Store(tmp_path / "store", shipped.parent)


@pytest.mark.parametrize(("options", "stays"), [({}, True), ({"replace": False}, True), ({"replace": True}, False)])
def test_a_winner_is_kept_unless_what_its_worker_did_not_have_is_faster(
    store: Store, options: dict[str, Any], stays: bool
) -> None:
    """A record that was sent to the worker met the winner in its duel, and gives way to it however fast it once was."""
    key = INFO.key
    store.keep(make(1.0, PROBLEM, CONFIGS[1], key))
    results: list[Result] = []
    shown: Any = SimpleNamespace(ended=results.append)
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [PROBLEM], options, store, key, ClusterProgress())
    tuning._progress = shown
    tuning._save(Job(0, PROBLEM), won(5.0))
    assert store.best(key, PROBLEM) == won(5.0).best
    store.keep(make(3.0, PROBLEM, CONFIGS[2], key))  # by another command
    tuning._save(Job(0, PROBLEM), won(4.0))
    best = store.best(key, PROBLEM)
    assert best is not None
    assert best.config == CONFIGS[2 if stays else 0]
    assert [each.outdone for each in results] == [False, stays]
    assert tuning.results[PROBLEM].kept is not stays


def test_a_result_that_was_outdone_on_its_worker_is_not_kept(store: Store) -> None:
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [PROBLEM], {}, store, INFO.key, ClusterProgress())
    tuning._save(Job(0, PROBLEM), replace(won(5.0), outdone=True))
    assert not tuning.results[PROBLEM].kept
    assert store.both()[0] == ()


class Noted(ClusterProgress):
    """Keeps what it is told."""

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
    store: Store, progress: ClusterProgress, *said: Message | str, problem: Problem = PROBLEM, **options: Any
) -> Tuning:
    """A tuning of a problem that is in a worker's hand, once it has heard these."""
    client: Any = SimpleNamespace(subscribe_topic=lambda *arguments: None)
    tuning = Tuning(client, [problem], options, store, INFO.key, progress)
    tuning._attempts["a"] = Attempt(tuning._jobs[0], INFO, "tcp://x", VERSIONS)
    for each in said:
        tuning._events.put((tuning._topic, each if isinstance(each, str) else written(each)))
    tuning._hear(0.0)
    return tuning


VERSIONS = (("compiler", "1"),)
STARTED, OK = "2026-11-23T12:00:00", Entry("ok", 12.5, (12.4, 12.6), 0.1, 0.2, 0.3)
TRIALS = [Tells("a", str(config), replace(OK, time_us=10.0 + place), STARTED) for place, config in enumerate(CONFIGS)]
CRASHED = Tells("a", "naive:8x64", Entry("crashed", reason="it ended"), STARTED)


def test_what_a_worker_tells_is_in_the_journal_that_it_goes_on_from(store: Store) -> None:
    """The journal holds the first outcome of each config, whichever sampler chose it."""
    progress = Noted()
    heard(store, progress, Begins("a", 320, 0), *TRIALS, CRASHED, replace(TRIALS[0], entry=Entry("timeout")))
    assert (progress.notes, progress.begins) == ([], [(320, 0)])
    assert progress.trials == [*map(str, CONFIGS), "naive:8x64", str(CONFIGS[0])]
    sent = StoreView(store, INFO.key).files(PROBLEM, VERSIONS)["trials"]
    ((name, text),) = sent.items()
    assert StoreView(store, INFO.key).files(PROBLEM, (("compiler", "2"),))["trials"] == {}
    (store.root / "worker").mkdir()
    (store.root / "worker" / name).write_text(text)
    resumed = Journal.of(store.root / "worker", PROBLEM, INFO.key, VERSIONS).entries
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
def test_a_trial_that_cannot_be_is_refused_and_changes_nothing(store: Store, changes: dict[str, str], why: str) -> None:
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


def test_workers_are_sent_the_users_own_record_though_one_that_ships_counts(store: Store, tmp_path: Path) -> None:
    own = make(20.0, PROBLEM, CONFIGS[1], INFO.key)
    store.keep(own)
    ship(store, make(10.0, PROBLEM, CONFIGS[2], INFO.key), INFO.key)
    assert [each.config for each in store.layers()[1]] == [CONFIGS[2]]
    sent = StoreView(store, INFO.key).files(PROBLEM, ())
    assert [text.encode() for text in sent["records"].values()] == [dumps(own)]
