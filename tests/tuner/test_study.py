"""A search asked ahead and kept in a journal: it resumes where it stopped, whatever kills it."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from filelock import FileLock
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.search import journal as journal_module
from tilewright.tuner.search.ahead import AskAhead
from tilewright.tuner.search.journal import Journal
from tilewright.tuner.search.sampler import Outcomes, RandomSampler
from tilewright.tuner.search.space import Dimension, Space, Trials
from tilewright.tuner.search.study import Search, make_search

SPACE = Space(
    (Dimension("TILE", (16, 32, 64, 128)), Dimension("ONE", (1,)), Dimension("KIND", ("thin", "wide"))),
    tuple((tile, 0, kind) for tile, kind in itertools.product(range(4), range(2))),
)
NOW = datetime(2026, 1, 2, 3, 4, 5)


def ahead(path: Path, name: str = "random", seed: int = 0) -> AskAhead:
    return AskAhead(make_search(name, SPACE, seed), Journal(path, SPACE, "gemm"))


def history(path: Path, space: Space = SPACE) -> Trials:
    return Journal(path, space, "gemm").history


def test_a_run_resumes_and_measures_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "study.jsonl"
    first = ahead(path, "tpe")
    told = []
    for trial in range(4):
        point = first.ask()
        assert point is not None
        first.tell(point, Entry("crashed") if trial == 2 else Entry("ok", 10.0 + trial))
        told.append((point, None if trial == 2 else 10.0 + trial))
    assert first.ask() is not None  # asked and never told: the next run may try it
    first.close()
    second = ahead(path, "tpe", 1)
    assert history(path) == tuple(told)
    rest = list(iter(second.ask, None))
    second.close()
    assert sorted([*rest, *(point for point, _ in told)]) == sorted(SPACE.points)


def test_asking_ahead_overlaps_and_repeats_nothing(tmp_path: Path) -> None:
    space = Space((Dimension("x", tuple(range(12))),), tuple((i,) for i in range(12)))
    threads = set()

    class Slow(RandomSampler):
        """A model that takes its time, and notes which thread it runs in."""

        def choose(self, outcomes: Outcomes) -> int:
            threads.add(threading.current_thread().name)
            time.sleep(0.05)
            return super().choose(outcomes)

    search = AskAhead(Search(space, Slow(space, 0)), Journal(tmp_path / "a", space, "gemm"))
    begin = time.perf_counter()
    seen = []
    while (point := search.ask()) is not None:
        seen.append(point)
        time.sleep(0.05)  # measuring
        search.tell(point, Entry("ok", 1.0 + point[0]))
    assert sorted(seen) == list(space.points)
    assert threads == {"sampler_0"}
    assert time.perf_counter() - begin < 12 * 0.1
    assert search.ask() is None
    search.close()
    assert len(history(tmp_path / "a", space)) == 12


def test_an_error_in_the_model_reaches_the_caller(tmp_path: Path) -> None:
    class Broken(RandomSampler):
        def choose(self, outcomes: Outcomes) -> int:
            raise ConfigError("the model broke")

    search = AskAhead(Search(SPACE, Broken(SPACE, 0)), Journal(tmp_path / "a", SPACE, "x"))
    with pytest.raises(ConfigError, match="the model broke"):
        search.ask()


def test_the_file_holds_the_space_once_and_a_short_line_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, SPACE, "gemm")
    journal.add((3, 0, 1), Entry("ok", 12.5), NOW)
    journal.add((0, 0, 0), Entry("timeout", None, reason="did not end in 2 s"), NOW)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "format": "tilewright trials 1",
            "study": "gemm",
            "dimensions": [["TILE", [16, 32, 64, 128]], ["ONE", [1]], ["KIND", ["thin", "wide"]]],
        },
        {"point": [3, 1], "time_us": 12.5, "status": "ok", "started": "2026-01-02T03:04:05"},
        {
            "point": [0, 0],
            "time_us": None,
            "status": "timeout",
            "reason": "did not end in 2 s",
            "started": "2026-01-02T03:04:05",
        },
    ]


BROKEN = [
    "\x00\x00",
    '{"point":[1]}',
    "[]",
    '"text"',
    '{"point":[1,0],"time_us":"x","status":"ok"}',
    '{"point":[1,0],"time_us":-1,"status":"ok"}',
    '{"point":[1,0],"time_us":1e999,"status":"ok"}',
    '{"point":[1,0],"time_us":NaN,"status":"ok"}',
    '{"point":[1,0],"time_us":true,"status":"ok"}',
    '{"point":[1,0],"time_us":1' + "0" * 400 + ',"status":"ok"}',
    '{"point":[1,0],"time_us":1' + "0" * 5000 + ',"status":"ok"}',
    '{"point":[1,0],"time_us":1,"status":"fine"}',
    '{"point":[1,0],"time_us":null,"status":"ok"}',
    '{"point":[[1],0],"time_us":1,"status":"ok"}',
    '{"point":[1.0,true],"time_us":1,"status":"ok"}',
    '{"point":[1,0],"time_us":1,"status":"ok","compile_s":"long"}',
    '{"point":[1,0],"time_us":1,"status":"ok","times_us":[1,[]]}',
    '{"point":' + "[" * 100_000,
]


@pytest.mark.filterwarnings("ignore:.*trials dropped")
def test_points_that_the_space_lacks_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, SPACE, "gemm")
    journal.add((0, 0, 0), Entry("ok", 1.0), NOW)
    with path.open("ab") as file:
        file.write(b'{"point":[9,9],"time_us":1,"status":"ok"}\n')
    journal.add((1, 0, 1), Entry("ok", 2.0), NOW)
    journal.add((1, 0, 1), Entry("ok", 3.0), NOW)  # another process tried it too: the first counts
    assert history(path) == (((0, 0, 0), 1.0), ((1, 0, 1), 2.0))
    assert history(path, Space(SPACE.dimensions, SPACE.points[1:])) == (((1, 0, 1), 2.0),)


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:50])
def test_a_broken_line_is_told_and_costs_itself_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, SPACE, "gemm")
    journal.add((0, 0, 0), Entry("ok", 1.0), NOW)
    with path.open("a") as file:
        file.write(line + "\n")
    journal.add((1, 0, 1), Entry("timeout"), NOW)
    with pytest.warns(UserWarning, match=r"study\.jsonl is damaged: trials dropped: 1, in line 3$"):
        assert history(path) == (((0, 0, 0), 1.0), ((1, 0, 1), None))


def test_a_journal_holds_whole_outcomes(tmp_path: Path) -> None:
    told = {
        (0, 0, 0): Entry("ok", 12.5, (12.25, 12.5, 13.0), 0.5, 0.25, 0.125),
        (1, 0, 0): Entry("timeout", None, (), 0.5, 10.0, reason="did not end in time"),
    }
    journal = Journal(tmp_path / "study.jsonl", SPACE, "gemm")
    for point, entry in told.items():
        journal.add(point, entry, NOW)
    assert Journal(tmp_path / "study.jsonl", SPACE, "gemm").entries == told
    with (tmp_path / "study.jsonl").open("a") as file:  # as earlier versions wrote it
        file.write('{"point":[2,1],"time_us":7.5,"status":"ok","started":"2026-01-02T03:04:05"}\n')
    assert Journal(tmp_path / "study.jsonl", SPACE, "gemm").entries == {**told, (2, 0, 1): Entry("ok", 7.5)}


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    first = Journal(path, SPACE, "gemm")
    whole = path.read_bytes()
    path.write_bytes(whole[:9])  # the header itself
    assert history(path) == ()
    assert path.read_bytes() == whole
    for row, open_journal in enumerate((first, None)):  # one that is open already, one that resumes
        with path.open("ab") as file:
            file.write(b'{"point":[2,')
        (open_journal or Journal(path, SPACE, "gemm")).add((row, 0, 0), Entry("ok", 1.0), NOW)
        assert len(history(path)) == row + 1


@pytest.mark.parametrize("text", [b"", b"\x80\x04\x95", b'{"op_code":0}\n{"op_code":4,"worker_', b"\n\n"])
def test_a_file_that_holds_something_else_is_set_aside(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(text)
    if text:
        with pytest.warns(UserWarning, match=r"no journal of this search: moved to study\.jsonl\.corrupt"):
            Journal(path, SPACE, "gemm")
        assert (tmp_path / "study.jsonl.corrupt").read_bytes() == text
    Journal(path, SPACE, "gemm").add((0, 0, 0), Entry("ok", 1.0), NOW)
    assert history(path) == (((0, 0, 0), 1.0),)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the study"):
        Journal(tmp_path / "file" / "study.jsonl", SPACE, "gemm")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "other text"])
def test_what_cannot_be_read_is_set_aside_and_blocks_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "study.jsonl"
    (tmp_path / "study.jsonl.corrupt").write_text("of an earlier time")
    (tmp_path / "precious").write_text("precious")
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "precious"),
        "other text": lambda: path.write_text("other text"),
    }
    make[kind]()
    with pytest.warns(UserWarning, match=r"moved to study\.jsonl\.1\.corrupt"):
        journal = Journal(path, SPACE, "gemm")
    journal.add((0, 0, 0), Entry("ok", 1.0), NOW)
    assert history(path) == (((0, 0, 0), 1.0),)
    assert (tmp_path / "study.jsonl.corrupt").read_text() == "of an earlier time"
    assert (tmp_path / "precious").read_text() == "precious"


def test_nothing_is_written_while_another_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_LOCK_SECONDS", 0.02)
    path = tmp_path / "study.jsonl"
    journal = Journal(path, SPACE, "gemm")
    before = path.read_bytes()
    with FileLock(f"{path}.lock"):
        with pytest.raises(StoreError, match="cannot write the study"):
            journal.add((0, 0, 0), Entry("ok", 1.0), NOW)
        with pytest.raises(StoreError, match="cannot open the study"):
            Journal(path, SPACE, "gemm")
        assert path.read_bytes() == before
    journal.add((0, 0, 0), Entry("ok", 1.0), NOW)
    assert history(path) == (((0, 0, 0), 1.0),)


CHILD = """
import itertools, json, sys
from datetime import datetime
from pathlib import Path
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.search.journal import Journal
from tilewright.tuner.search.space import Dimension, Space

space = Space(tuple(Dimension(n, tuple(range(6))) for n in "ABCD"), tuple(itertools.product(range(6), repeat=4)))
journal = Journal(Path(sys.argv[1]), space, "gemm")
print(json.dumps(len(journal.history)), flush=True)
for point in space.points[int(sys.argv[2])::2]:
    journal.add(point, Entry("ok", 1.0 + sum(point)), datetime.now())
    print(json.dumps(point), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_two_writers_killed_lose_nothing_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    told: list[tuple[int, ...]] = []
    commands = [[sys.executable, "-c", CHILD, str(path), str(first)] for first in range(2)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for child in children:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) >= 0
        told += [tuple(json.loads(child.stdout.readline())) for _ in range(10)]
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
        told += [tuple(json.loads(line)) for line in child.stdout or () if line.endswith("]\n")]
        child.communicate()
    space = Space(
        tuple(Dimension(name, tuple(range(6))) for name in "ABCD"),
        tuple(itertools.product(range(6), repeat=4)),
    )
    known = dict(history(path, space))
    assert len(set(told)) == len(told)
    assert set(told) <= set(known)
    assert len(known) - len(told) <= 2  # told, but killed before it could say so
