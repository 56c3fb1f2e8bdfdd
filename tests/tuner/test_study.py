"""The journal: a run resumes where it stopped, and whatever kills it, nothing told is lost."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from tilewright.codegen.errors import StoreError
from tilewright.tuner.search.samplers import make_sampler
from tilewright.tuner.search.space import Dimension, Space

SPACE = Space(
    (Dimension("TILE", (16, 32, 64, 128)), Dimension("KIND", ("thin", "wide"))),
    tuple(itertools.product(range(4), range(2))),
)


def test_a_run_resumes_and_measures_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "study.log"
    first = make_sampler("tpe", SPACE, 0, path, study="gemm")
    told = []
    for trial in range(4):
        point = first.ask()
        assert point is not None
        first.tell(point, None if trial == 2 else 10.0 + trial, status="crashed" if trial == 2 else "ok")
        told.append((point, None if trial == 2 else 10.0 + trial))
    assert first.ask() is not None  # asked and never told: the next run may try it
    second = make_sampler("tpe", SPACE, 1, path, study="gemm")
    assert second.history == tuple(told)
    rest = list(iter(second.ask, None))
    assert sorted([*rest, *(point for point, _ in told)]) == sorted(SPACE.points)


def test_studies_in_one_file_are_apart(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    make_sampler("random", SPACE, 0, path, study="one").tell((0, 0), 1.0)
    assert make_sampler("random", SPACE, 0, path, study="two").history == ()
    assert make_sampler("random", SPACE, 0, path, study="one").history == (((0, 0), 1.0),)


def test_the_file_shows_names_values_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    sampler = make_sampler("random", SPACE, 0, path, study="gemm")
    sampler.tell((3, 1), 12.5, status="ok")
    sampler.tell((0, 0), None, status="timeout", reason="did not end in 2 s")
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    trials = optuna.load_study(study_name="gemm", storage=optuna.storages.JournalStorage(backend)).trials
    assert trials[0].params == {"TILE": 128, "KIND": "wide"}
    assert trials[0].value == 12.5
    assert trials[1].state == optuna.trial.TrialState.FAIL
    assert trials[1].user_attrs == {"status": "timeout", "reason": "did not end in 2 s"}


def test_values_that_a_space_no_longer_offers_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    sampler = make_sampler("random", SPACE, 0, path)
    sampler.tell((0, 0), 1.0)
    sampler.tell((1, 1), 2.0)
    smaller = Space((Dimension("TILE", (32, 64)), SPACE.dimensions[1]), ((0, 1), (1, 1)))
    resumed = make_sampler("tpe", smaller, 0, path)
    assert resumed.history == (((0, 1), 2.0),)
    resumed.tell((1, 1), 3.0)
    assert make_sampler("tpe", smaller, 0, path).history == (((0, 1), 2.0), ((1, 1), 3.0))


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    make_sampler("random", SPACE, 0, path).tell((0, 0), 1.0)
    with path.open("ab") as file:
        file.write(b'{"op_code":4,"worker_')
    resumed = make_sampler("random", SPACE, 0, path)
    assert resumed.history == (((0, 0), 1.0),)
    resumed.tell((1, 0), 2.0)
    assert len(make_sampler("random", SPACE, 0, path).history) == 2


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the study"):
        make_sampler("random", SPACE, 0, tmp_path / "file" / "study.log")


CHILD = """
import itertools, json, sys
from pathlib import Path
from tilewright.tuner.search.samplers import make_sampler
from tilewright.tuner.search.space import Dimension, Space

space = Space(tuple(Dimension(n, tuple(range(6))) for n in "ABCD"), tuple(itertools.product(range(6), repeat=4)))
sampler = make_sampler("random", space, 0, Path(sys.argv[1]))
print(json.dumps(len(sampler.history)), flush=True)
while (point := sampler.ask()) is not None:
    sampler.tell(point, 1.0 + sum(point))
    print(json.dumps(point), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kill_9_loses_nothing_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    told: list[tuple[int, ...]] = []
    for run in range(2):
        command = [sys.executable, "-c", CHILD, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline()) >= len(told)
            told += [tuple(json.loads(child.stdout.readline())) for _ in range(10 + run)]
            os.kill(child.pid, signal.SIGKILL)
            told += [tuple(json.loads(line)) for line in child.stdout if line.endswith("]\n")]
    space = Space(
        tuple(Dimension(name, tuple(range(6))) for name in "ABCD"),
        tuple(itertools.product(range(6), repeat=4)),
    )
    history = dict(make_sampler("random", space, 0, path).history)
    assert len(set(told)) == len(told)
    assert set(told) <= set(history)
    assert len(history) - len(told) <= 2  # told, but killed before it could say so
