"""A search asked ahead and kept in a journal: it resumes where it stopped, whatever kills it."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError, StoreError
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
        first.tell(point, None if trial == 2 else 10.0 + trial, status="crashed" if trial == 2 else "ok")
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
        search.tell(point, 1.0 + point[0])
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
    journal.add((3, 0, 1), 12.5, NOW, "ok", "")
    journal.add((0, 0, 0), None, NOW, "timeout", "did not end in 2 s")
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


def test_points_that_the_space_lacks_and_broken_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, SPACE, "gemm")
    journal.add((0, 0, 0), 1.0, NOW, "ok", "")
    with path.open("ab") as file:
        file.write(b'\x00\x00\n{"point":[1]}\n[]\n{"point":[1,0],"time_us":"x"}\n{"point":[1,0],"time_us":-1}\n')
    journal.add((1, 0, 1), 2.0, NOW, "ok", "")
    journal.add((1, 0, 1), 3.0, NOW, "ok", "")  # another process tried it too: the first counts
    assert history(path) == (((0, 0, 0), 1.0), ((1, 0, 1), 2.0))
    assert history(path, Space(SPACE.dimensions, SPACE.points[1:])) == (((1, 0, 1), 2.0),)


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
        (open_journal or Journal(path, SPACE, "gemm")).add((row, 0, 0), 1.0, NOW, "ok", "")
        assert len(history(path)) == row + 1


@pytest.mark.parametrize("text", [b"", b"\x80\x04\x95", b'{"op_code":0}\n{"op_code":4,"worker_', b"\n\n"])
def test_a_file_that_holds_something_else_is_set_aside(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(text)
    if text:
        with pytest.warns(UserWarning, match=r"no journal of this search: moved to study\.jsonl\.corrupt"):
            Journal(path, SPACE, "gemm")
        assert (tmp_path / "study.jsonl.corrupt").read_bytes() == text
    Journal(path, SPACE, "gemm").add((0, 0, 0), 1.0, NOW, "ok", "")
    assert history(path) == (((0, 0, 0), 1.0),)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the study"):
        Journal(tmp_path / "file" / "study.jsonl", SPACE, "gemm")
    (tmp_path / "study.jsonl").mkdir()
    with pytest.raises(StoreError, match="cannot open the study"):
        Journal(tmp_path / "study.jsonl", SPACE, "gemm")


CHILD = """
import itertools, json, sys
from datetime import datetime
from pathlib import Path
from tilewright.tuner.search.journal import Journal
from tilewright.tuner.search.space import Dimension, Space

space = Space(tuple(Dimension(n, tuple(range(6))) for n in "ABCD"), tuple(itertools.product(range(6), repeat=4)))
journal = Journal(Path(sys.argv[1]), space, "gemm")
print(json.dumps(len(journal.history)), flush=True)
for point in space.points[int(sys.argv[2])::2]:
    journal.add(point, 1.0 + sum(point), datetime.now(), "ok", "")
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
