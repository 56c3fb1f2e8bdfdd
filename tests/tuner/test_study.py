"""A search is asked ahead and written to a journal, and resumes where it stopped, whatever killed it."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.codegen.families import families, family_named, parse
from tilewright.runtime import file_lock
from tilewright.runtime.files import OutputWarning
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.journal import Journal, outcome_of
from tilewright.tuner.recording.points import space_of
from tilewright.tuner.search.ahead import AskAhead
from tilewright.tuner.search.outcomes import Outcomes
from tilewright.tuner.search.sampler import Listed, ListedChooser, ListedSampler
from tilewright.tuner.search.space import Mask, Point
from tilewright.tuner.search.study import Search, make_search

CONFIGS = tuple(parse(f"tiled:{width},unroll={unroll}") for width, unroll in itertools.product((4, 8, 16, 32), (1, 2)))
A, B, C, *_ = CONFIGS
NOW = datetime(2026, 1, 2, 3, 4, 5)


def search_of(name: str, configs: tuple[Config, ...] = CONFIGS, seed: int = 0) -> Search[Config]:
    return make_search(name, space_of(configs), seed, configs)


def ahead(path: Path, name: str = "random", seed: int = 0) -> AskAhead:
    journal = Journal(path, "gemm")
    return AskAhead(search_of(name, seed=seed), journal, journal.entries)


def history(path: Path) -> dict[Config, float | None]:
    return {config: entry.time_us for config, entry in Journal(path, "gemm").entries.items()}


class Listing(ListedChooser):
    """Chooses one point after the other, and calls a function before each choice."""

    def __init__(self, sampler: ListedSampler, before: Callable[[], None]) -> None:
        super().__init__(sampler)
        self._before = before

    def row(self, outcomes: Outcomes[Point], unseen: Mask) -> int:
        self._before()
        return int(np.argmax(unseen))


def watched(before: Callable[[], None], configs: tuple[Config, ...] = CONFIGS) -> Search[Config]:
    """A search whose model calls a function before each choice."""

    class Model(ListedSampler):
        def chooser(self) -> ListedChooser:
            return Listing(self, before)

    model = Model(space_of(configs), 0)
    return Search(Listed(model.space, configs), model)


def test_a_run_resumes_and_measures_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "study.jsonl"
    first = ahead(path, "tpe")
    outcomes = dict[Config, float | None]()
    for trial in range(4):
        config = first.ask()
        assert config is not None
        first.tell(config, Entry("crashed") if trial == 2 else Entry("ok", 10.0 + trial))
        outcomes[config] = None if trial == 2 else 10.0 + trial
    assert first.ask() is not None  # this one has no outcome: the next run may try it
    first.close()
    second = ahead(path, "tpe", 1)
    assert [*history(path).items()] == [*outcomes.items()]
    rest = list(iter(second.ask, None))
    second.close()
    assert len(rest) + len(outcomes) == len(CONFIGS)
    assert {*rest, *outcomes} == {*CONFIGS}


def test_asking_ahead_overlaps_and_repeats_nothing(tmp_path: Path) -> None:
    """A slow model runs in a thread of its own."""
    threads = set()

    def slow() -> None:
        threads.add(threading.current_thread().name)
        time.sleep(0.05)

    configs = tuple(parse(f"naive:8x{width},edge={edge}") for width in (1, 2, 4, 8, 16, 32) for edge in ("fit", "pad"))
    search = AskAhead(watched(slow, configs), Journal(tmp_path / "a", "gemm"))
    begin = time.perf_counter()
    seen = []
    while (config := search.ask()) is not None:
        seen.append(config)
        time.sleep(0.05)  # measuring
        search.tell(config, Entry("ok", 1.0 + len(seen)))
    assert seen == list(configs)
    assert threads == {"sampler_0"}
    assert time.perf_counter() - begin < 12 * 0.1
    assert search.ask() is None
    search.close()
    assert len(history(tmp_path / "a")) == 12


def test_an_error_in_the_model_reaches_the_caller(tmp_path: Path) -> None:
    def broken() -> None:
        raise ConfigError("the model broke")

    search = AskAhead(watched(broken), Journal(tmp_path / "a", "x"))
    with pytest.raises(ConfigError, match="the model broke"):
        search.ask()


def test_a_journal_that_cannot_be_written_costs_a_warning_and_no_outcome(tmp_path: Path) -> None:
    """The search goes on, and its model gets the outcome."""
    journal = Journal(tmp_path / "study.jsonl", "gemm")
    outcomes = list[tuple[Config, float | None]]()
    search = search_of("exhaustive")
    search.tell = lambda *arguments: outcomes.append(arguments)  # type: ignore[assignment, method-assign]
    search_ahead = AskAhead(search, journal)
    journal.path.unlink()
    journal.path.mkdir()
    config = search_ahead.ask()
    assert config is not None
    with pytest.warns(OutputWarning, match="cannot write the study"):
        search_ahead.tell(config, Entry("ok", 5.0))
    for _ in range(AskAhead.DEPTH + 1):
        search_ahead.ask()
    search_ahead.close()
    assert outcomes == [(config, 5.0)]


def test_a_search_gets_the_outcomes_of_earlier_runs_before_it_is_asked(tmp_path: Path) -> None:
    """The outcomes come in their order, and failures are among them. Without a journal nothing is written."""
    outcomes = list[tuple[Config, float | None]]()
    search = search_of("exhaustive")
    tell = search.tell

    def noted(config: Config, time_us: float | None) -> None:
        outcomes.append((config, time_us))
        tell(config, time_us)

    search.tell = noted  # type: ignore[method-assign]
    search_ahead = AskAhead(search, None, {C: Entry("ok", 3.0), A: Entry("timeout")})
    assert search_ahead.ask() == B
    assert outcomes == [(C, 3.0), (A, None)]
    search_ahead.tell(B, Entry("ok", 2.0))
    assert not {A, B, C} & {*iter(search_ahead.ask, None)}
    search_ahead.close()


def test_the_file_has_one_line_of_the_study_and_a_short_line_for_each_outcome(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, "gemm")
    journal.add(B, Entry("ok", 12.5), NOW)
    journal.add(parse("simt:64x64x16"), Entry("timeout", None, reason="did not end in 2 s"), NOW)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"format": "tilewright trials 2", "study": "gemm"},
        {"config": str(B), "time_us": 12.5, "status": "ok", "started": "2026-01-02T03:04:05"},
        {
            "config": "simt:64x64x16",
            "time_us": None,
            "status": "timeout",
            "reason": "did not end in 2 s",
            "started": "2026-01-02T03:04:05",
        },
    ]


@pytest.mark.parametrize("family", families())
def test_a_journal_holds_configs_of_every_family(tmp_path: Path, family: str) -> None:
    config = family_named(family)()
    Journal(tmp_path / "study.jsonl", "gemm").add(config, Entry("ok", 1.0), NOW)
    assert history(tmp_path / "study.jsonl") == {config: 1.0}


BROKEN = [
    "\x00\x00",
    '{"config":[1]}',
    "[]",
    '"text"',
    '{"config":"tiled:16","time_us":"x","status":"ok"}',
    '{"config":"tiled:16","time_us":-1,"status":"ok"}',
    '{"config":"tiled:16","time_us":1e999,"status":"ok"}',
    '{"config":"tiled:16","time_us":NaN,"status":"ok"}',
    '{"config":"tiled:16","time_us":true,"status":"ok"}',
    '{"config":"tiled:16","time_us":1' + "0" * 400 + ',"status":"ok"}',
    '{"config":"tiled:16","time_us":1' + "0" * 5000 + ',"status":"ok"}',
    '{"config":"tiled:16","time_us":1,"status":"fine"}',
    '{"config":"tiled:16","time_us":null,"status":"ok"}',
    '{"config":["tiled:16"],"time_us":1,"status":"ok"}',
    '{"config":5,"time_us":1,"status":"ok"}',
    '{"config":null,"time_us":1,"status":"ok"}',
    '{"config":"","time_us":1,"status":"ok"}',
    '{"config":"other:16","time_us":1,"status":"ok"}',
    '{"config":"tiled:17","time_us":1,"status":"ok"}',
    '{"config":"tiled:16,speed=2","time_us":1,"status":"ok"}',
    '{"config":"tiled:16,unroll=1,unroll=1","time_us":1,"status":"ok"}',
    '{"point":[1,0],"time_us":1,"status":"ok"}',
    '{"time_us":1,"status":"ok"}',
    '{"config":"tiled:16","time_us":1,"status":"ok","compile_s":"long"}',
    '{"config":"tiled:16","time_us":1,"status":"ok","times_us":[1,[]]}',
    '{"config":' + "[" * 100_000,
]


def test_the_first_outcome_of_a_config_that_several_processes_tried_counts(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal, other = Journal(path, "gemm"), Journal(path, "gemm")
    journal.add(A, Entry("ok", 1.0), NOW)
    other.add(B, Entry("ok", 2.0), NOW)
    journal.add(B, Entry("ok", 3.0), NOW)
    other.add(A, Entry("crashed"), NOW)
    assert [*history(path).items()] == [(A, 1.0), (B, 2.0)]


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:50])
def test_a_broken_line_is_reported_and_costs_itself_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "study.jsonl"
    journal = Journal(path, "gemm")
    journal.add(A, Entry("ok", 1.0), NOW)
    with path.open("a") as file:
        file.write(line + "\n")
    journal.add(B, Entry("timeout"), NOW)
    with pytest.warns(UserWarning, match=r"study\.jsonl is damaged: trials dropped: 1, in line 3$"):
        assert [*history(path).items()] == [(A, 1.0), (B, None)]


def test_a_journal_holds_whole_outcomes(tmp_path: Path) -> None:
    outcomes = {
        A: Entry("ok", 12.5, (12.25, 12.5, 13.0), 0.5, 0.25, 0.125),
        B: Entry("timeout", None, (), 0.5, 10.0, reason="did not end in time"),
        C: Entry("ok", 12.5, (12.5,), error=0.125),
    }
    journal = Journal(tmp_path / "study.jsonl", "gemm")
    for config, entry in outcomes.items():
        journal.add(config, entry, NOW)
    assert Journal(tmp_path / "study.jsonl", "gemm").entries == outcomes
    with (tmp_path / "study.jsonl").open("a") as file:  # another spelling of a config, and no optional field
        file.write('{"config":" tiled:32,unroll=2,edge=fit","time_us":7.5,"status":"ok"}\n')
    entries = Journal(tmp_path / "study.jsonl", "gemm").entries
    assert entries == {**outcomes, parse("tiled:32,unroll=2"): Entry("ok", 7.5)}


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    first = Journal(path, "gemm")
    whole = path.read_bytes()
    path.write_bytes(whole[:9])  # the header is torn
    assert history(path) == {}
    assert path.read_bytes() == whole
    for row, open_journal in enumerate((first, None)):  # a journal that is open already, then one that resumes
        with path.open("ab") as file:
            file.write(b'{"config":"tiled:')
        (open_journal or Journal(path, "gemm")).add(CONFIGS[row], Entry("ok", 1.0), NOW)
        assert len(history(path)) == row + 1


@pytest.mark.parametrize("text", [
    b"", b"\x80\x04\x95", b'{"op_code":0}\n{"op_code":4,"worker_', b"\n\n",
    b'{"format":"tilewright trials 1","study":"gemm","dimensions":[]}\n{"point":[],"time_us":1,"status":"ok"}\n',
    b'{"format":"tilewright trials 2","study":"of another problem"}\n',
])  # fmt: skip
def test_a_file_that_holds_something_else_is_set_aside(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(text)
    if text:
        with pytest.warns(UserWarning, match=r"no journal of this search: moved to study\.jsonl\.corrupt"):
            Journal(path, "gemm")
        assert (tmp_path / "study.jsonl.corrupt").read_bytes() == text
    Journal(path, "gemm").add(A, Entry("ok", 1.0), NOW)
    assert history(path) == {A: 1.0}


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the study"):
        Journal(tmp_path / "file" / "study.jsonl", "gemm")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "other text"])
def test_a_path_that_cannot_be_read_is_set_aside_and_blocks_nothing(tmp_path: Path, kind: str) -> None:
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
        journal = Journal(path, "gemm")
    journal.add(A, Entry("ok", 1.0), NOW)
    assert history(path) == {A: 1.0}
    assert (tmp_path / "study.jsonl.corrupt").read_text() == "of an earlier time"
    assert (tmp_path / "precious").read_text() == "precious"


def test_nothing_is_written_while_another_process_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.02)
    path = tmp_path / "study.jsonl"
    journal = Journal(path, "gemm")
    before = path.read_bytes()
    with FileLock(f"{path}.lock"):
        with pytest.raises(StoreError, match="cannot write the study"):
            journal.add(A, Entry("ok", 1.0), NOW)
        with pytest.raises(StoreError, match="cannot open the study"):
            Journal(path, "gemm")
        assert path.read_bytes() == before
    journal.add(A, Entry("ok", 1.0), NOW)
    assert history(path) == {A: 1.0}


CHILD = """
import itertools, json, sys
from datetime import datetime
from pathlib import Path
from tilewright.codegen.families import parse
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.journal import Journal

choices = itertools.product((4, 8, 16, 32), (0, 1), (1, 2, 4, 8, 16, 32), ("fit", "bounds", "pad"))
texts = [f"tiled:{w},skew={s},unroll={u},edge={e}" for w, s, u, e in choices]
journal = Journal(Path(sys.argv[1]), "gemm")
print(json.dumps(len(journal.entries)), flush=True)
for text in itertools.cycle(texts[int(sys.argv[2])::2]):
    journal.add(parse(text), Entry("ok", 1.0 + len(text)), datetime.now())
    print(json.dumps(text), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_two_writers_that_are_killed_lose_no_outcome(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    texts: list[str] = []
    commands = [[sys.executable, "-c", CHILD, str(path), str(first)] for first in range(2)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for child in children:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) >= 0
        texts += [json.loads(child.stdout.readline()) for _ in range(10)]
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
        texts += [json.loads(line) for line in child.stdout or () if line.endswith('"\n')]
        child.communicate()
    lines = [config for line in path.read_bytes().splitlines() if (config := outcome_of(line)) is not None]
    counts = Counter(str(config) for config, _ in lines)
    assert Counter(str(parse(text)) for text in texts) <= counts
    assert {*map(parse, texts)} <= {*history(path)}
    assert len(lines) - len(texts) <= 2  # a child may be killed after it writes a line and before it prints it
