"""Tests of the records that a client sends to workers, and of those that it keeps from their results."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed")

from stored import CONFIGS, PROBLEM, make, ship
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.codec import dumps
from tilewright.runtime.store.store import Store
from tilewright.tuner.cluster.client import Tuning
from tilewright.tuner.cluster.jobs import Job, Known
from tilewright.tuner.cluster.messages import Told
from tilewright.tuner.measure.decide import Contender
from tilewright.tuner.measure.evaluate import Phases
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
    told: list[Result] = []
    shown: Any = SimpleNamespace(ended=told.append)
    client: Any = SimpleNamespace(subscribe_topic=lambda *given: None)
    tuning = Tuning(client, [PROBLEM], options, store, key, Told())
    tuning._told = shown
    tuning._keep(Job(0, PROBLEM), won(5.0))
    assert store.best(key, PROBLEM) == won(5.0).best
    store.keep(make(3.0, PROBLEM, CONFIGS[2], key))  # by another command
    tuning._keep(Job(0, PROBLEM), won(4.0))
    best = store.best(key, PROBLEM)
    assert best is not None
    assert best.config == CONFIGS[2 if stays else 0]
    assert [each.outdone for each in told] == [False, stays]
    assert tuning.results[PROBLEM].kept is not stays


def test_a_result_that_was_outdone_on_its_worker_is_not_kept(store: Store) -> None:
    client: Any = SimpleNamespace(subscribe_topic=lambda *given: None)
    tuning = Tuning(client, [PROBLEM], {}, store, INFO.key, Told())
    tuning._keep(Job(0, PROBLEM), replace(won(5.0), outdone=True))
    assert not tuning.results[PROBLEM].kept
    assert store.both()[0] == ()


def test_workers_are_sent_the_users_own_record_though_one_that_ships_counts(store: Store, tmp_path: Path) -> None:
    own = make(20.0, PROBLEM, CONFIGS[1], INFO.key)
    store.keep(own)
    ship(store, make(10.0, PROBLEM, CONFIGS[2], INFO.key), INFO.key)
    assert [each.config for each in store.layers()[1]] == [CONFIGS[2]]
    sent = Known(store, INFO.key).of(PROBLEM, ())
    assert [text.encode() for text in sent["records"].values()] == [dumps(own)]
