"""Output files are tried before any work, and the loss of one costs no other; streams may take their place."""

import errno
import json
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Run
from stored import PROBLEM as STORED
from stored import make
from tilewright.codegen.errors import StoreError
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.files import OutputWarning
from tilewright.runtime.store.store import Store
from tilewright.tuner.measure.evaluate import Tried
from tilewright.tuner.recording import files
from tilewright.tuner.recording.files import read_cache_file, t4_path
from tilewright.tuner.recording.journal import Journal
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.result import Progress
from tilewright.tuner.tune import tune

PROBLEM = Problem(24, 20, 16)
TUNE = ("tune", *SMALL)
BENCH = ("bench", "--device", "host", "--seconds", "0.01", "--shape", "8", "--shape", "9")
OPTIONS = [
    (TUNE, "--record"),
    (TUNE, "--json"),
    (BENCH, "--json"),
    (BENCH, "--markdown"),
    (BENCH, "--plot"),
]
EMIT = ("emit", "--shape", "5", "--arch", "sm_80")
PLACES = ["", "~nobody-of-this-name/x", "folder", "x" * 240, "file/x", "/proc/none/x"]


@pytest.fixture
def warned() -> Iterator[None]:
    """Prints warnings as a user sees them, where pytest would turn them into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_current_folder_that_is_gone(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    for command in (
        (*TUNE, "--json", "x.json"),
        ("report", "--shape", "8"),
        (*BENCH, "--store", "store"),
        EMIT,
        (*EMIT, "-o", "out"),
    ):
        ran = run(*command)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "in the current folder, which was deleted: give a path from the root on" in ran.err


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[:30])
@pytest.mark.parametrize(
    ("command", "option"), OPTIONS, ids=lambda value: value[0] if isinstance(value, tuple) else value
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_run(
    run: Run, here: Path, command: tuple[str, ...], option: str, place: str
) -> None:
    if place and option == "--plot":
        pytest.importorskip("matplotlib")
        place += ".svg"
    before = sorted(here.rglob("*"))
    ran = run(*command, option, place)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert option in ran.err
    assert (place if place.startswith("~") else place.rpartition("/")[0] or place)[:200] in ran.err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "--store", ""),
        ("show", "--store", "~nobody-of-this-name"),
        ("tune", *SMALL, "--store", ""),
        ("tune", *SMALL, "--spaces", ""),
        ("tune", *SMALL, "--sampler", ""),
        ("tune", "--device", "replay:"),
        ("tune", "--device", "replay:~nobody-of-this-name/x"),
        ("emit", "--arch", "sm_80", "--config", ""),
        ("emit", "--arch", "sm_80", "--shape", "5", "--suite", ""),
        ("emit", "--arch", "sm_80", "--shape", "5", "-o", ""),
        ("emit", "--arch", "sm_80", "--shape", "5", "--name", ""),
        ("bench", "--suite", ""),
    ],
    ids=" ".join,
)
def test_empty_text_is_no_path_and_no_name(run: Run, here: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(here.rglob("*"))
    ran = run(*arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert repr(arguments[-1].removeprefix("replay:")) in ran.err
    assert sorted(here.rglob("*")) == before


def test_a_tilde_stands_for_the_home(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert run(*TUNE[:-6], "--trials", "1", "--seconds", "20", "--device", "host", "--json", "~/x.json").status == 0
    assert (here / "x.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--json", "x.json", "--record", "x.json"),
        ("--json", "x.t4.json", "--record", "x.json"),
        ("--json", "folder/../x.json", "--record", "x.json"),
    ],
    ids=" ".join,
)
def test_two_files_need_two_names(run: Run, here: Path, options: tuple[str, ...]) -> None:
    ran = run(*TUNE, *options)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "would both write" in ran.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.usefixtures("warned")
class TestFullDisk:
    """A device on which every write fails as on a full disk."""

    def test_a_lost_json_file_costs_nothing_else(self, run: Run) -> None:
        ran = run(*TUNE, "--json", "/dev/full")
        assert ran.status == 1
        assert ran.err == "tilewright: warning: cannot write /dev/full: No space left on device\n"
        assert "winner: " in ran.out
        assert [record.problem for record in Store().layers()[0]] == [PROBLEM]

    def test_json_and_markdown_of_a_bench(self, run: Run, here: Path) -> None:
        ran = run(*BENCH, "--json", "/dev/full", "--markdown", "bench.md")
        assert ran.status == 1
        assert "cannot write /dev/full: No space left on device" in ran.err
        assert "| 9x9x9 |" in (here / "bench.md").read_text()
        assert "geometric mean" in ran.out

    @pytest.mark.parametrize("lost", ["run.json", "run.t4.json"])
    def test_a_lost_file_of_a_recording_costs_nothing_else(
        self, run: Run, here: Path, lost: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, data: bytes) -> None:
            if path.name == lost:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            real(path, data)

        real = files.write_output
        monkeypatch.setattr(files, "write_output", full)
        ran = run(*TUNE, "--record", "run.json", "--json", "results.json")
        assert (ran.status, ran.err) == (1, f"tilewright: warning: cannot write {lost}: No space left on device\n")
        assert "winner: " in ran.out
        assert [record.problem for record in Store().layers()[0]] == [PROBLEM]
        assert sorted(path.name for path in here.glob("*.json")) == sorted(
            {"run.json", "run.t4.json", "results.json"} - {lost}
        )


class Meddling(Progress):
    """Calls a function after the first variant."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def tried(self, tried: Tried, best: object) -> None:
        act, self._act = self._act, lambda: None
        act()


def test_a_path_that_becomes_a_folder_during_the_run_costs_only_the_recording(here: Path) -> None:
    with pytest.warns(OutputWarning, match=r"cannot write .*run\.json: ") as caught:
        result = tune(
            PROBLEM, device="host", trials=2, record=here / "run.json", progress=Meddling((here / "run.json").mkdir)
        )
    assert [str(each.message).partition(":")[0] for each in caught] == [f"cannot write {here}/run.json"]
    assert Store().best(choose("host").key, PROBLEM) == result.best
    assert t4_path(here / "run.json").is_file()


def test_a_recording_of_a_resumed_run_holds_earlier_trials(here: Path) -> None:
    tune(PROBLEM, device="host", trials=3, seconds=40, record=here / "first.json")
    result = tune(PROBLEM, device="host", trials=5, seconds=40, record=here / "all" / "second.json")
    assert (result.trials, result.resumed) == (5, 3)
    first, second = read_cache_file(here / "first.json"), read_cache_file(here / "all" / "second.json")
    assert (len(first.entries), len(second.entries)) == (3, 5)
    later = {config_of(second.values(point)): entry for point, entry in second.entries.items()}
    for point, entry in first.entries.items():
        again = later[config_of(first.values(point))]
        assert again.status == entry.status
        assert again.times_us == pytest.approx(entry.times_us, abs=1e-5)
        assert again.charged_s > 0
        assert again.charged_s == pytest.approx(entry.charged_s, abs=1e-6)
    document = json.loads((here / "all" / "second.t4.json").read_text())
    assert len(document["results"]) == 5


def test_a_journal_that_can_no_longer_be_written_costs_no_winner(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Journal, line: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill = Meddling(lambda: monkeypatch.setattr(Journal, "_append", full))
    with pytest.warns(OutputWarning, match=r"cannot write the study .*\.jsonl: No space left on device"):
        result = tune(PROBLEM, device="host", trials=3, progress=fill, record=here / "run.json")
    assert Store().best(choose("host").key, PROBLEM) == result.best
    assert len(read_cache_file(here / "run.json").entries) == 3


def test_a_winner_that_cannot_be_stored_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Store, record: object, **options: Any) -> bool:
        raise StoreError("cannot write the store: No space left on device")

    monkeypatch.setattr(Store, "keep", refuse)
    with pytest.raises(StoreError, match=r"No space left on device; the winner, which is not kept: \w+:.*, [\d.]+ us$"):
        tune(PROBLEM, device="host", trials=2, record=here / "run.json")
    assert len(read_cache_file(here / "run.json").entries) == 2


# ---- Streams: `-` is standard output, which then holds nothing else, and a FIFO is refused ----------------------


TWO = ("tune", "--shape", "5", "--shape", "6", "--trials", "1", "--seconds", "20", "--device", "host")


@pytest.mark.parametrize("file", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_results_alone_are_on_standard_output(run: Run, tmp_path: Path, file: str) -> None:
    ran = run("devices", "--json", file)
    assert ran.status == 0
    assert json.loads(ran.out)[-1]["selector"] == "host"
    assert ran.out == run("devices", "--json").out


def test_results_of_a_tuning_on_standard_output(run: Run) -> None:
    ran = run(*TWO, "--json", "-")
    assert ran.status == 0
    assert [each["problem"]["m"] for each in json.loads(ran.out)] == [5, 6]
    assert "2 shapes, at most 20 s each\n" in ran.err
    assert ran.err.count("winner: ") == 2
    again = run(*TWO, "--skip-tuned", "--json", "-")
    assert (again.status, json.loads(again.out)) == (0, [])
    assert "2 of 2 shapes have a record" in again.err


def test_results_of_a_bench_on_standard_output(run: Run) -> None:
    ran = run(*BENCH, "--json", "-")
    assert [row["m"] for row in json.loads(ran.out)["rows"]] == [8, 9]
    assert "geometric mean" in ran.err
    ran = run(*BENCH, "--markdown", "-")
    assert ran.out.startswith("#")
    assert "| 9x9x9 |" in ran.out


def test_records_and_explanations_on_standard_output(run: Run, tmp_path: Path) -> None:
    assert Store().keep(make(0.5))
    shape = ("--shape", STORED.shape)
    for command in (("show", *shape), ("explain", *shape, "--arch", "sm_80")):
        ran = run(*command, "--json", "-")
        assert json.loads(ran.out)
        assert ran.status == 0
        assert run(*command, "--json").out == ran.out
        assert run(*command, "--json", str(tmp_path / "x.json")).out == ""
        assert (tmp_path / "x.json").read_text() == ran.out


def test_a_list_goes_into_an_open_file_once_and_rows_as_they_end(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    with (tmp_path / "log").open("a") as log:
        ran = run(*TWO, "--json", f"/dev/fd/{log.fileno()}", "--csv", "-")
    assert ran.status == 0
    before, _, text = (tmp_path / "log").read_text().partition("\n")
    assert before == "before"
    assert [each["problem"]["m"] for each in json.loads(text)] == [5, 6]
    head, *rows = ran.out.splitlines()
    assert head.startswith("m,n,k,")
    assert {row[:6] for row in rows} == {"5,5,5,", "6,6,6,"}


def test_dev_null_takes_every_output(run: Run) -> None:
    ran = run(*TWO[:3], *TWO[5:], "--json", "/dev/null", "--csv", "/dev/null")
    assert (ran.status, ran.err) == (0, "")
    assert "winner: " in ran.out


def test_fifos_and_sockets_are_refused(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket"):
            for option, command in (("--json", TWO), ("--csv", TWO), ("--record", TWO[:3]), ("--markdown", BENCH)):
                ran = run(*command, option, str(tmp_path / name))
                assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
                text = f"{option} cannot be written: {tmp_path / name}: it is a FIFO, a socket or a disk; name another"
                assert text in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json", "-", "--csv", "-"), "--json and --csv would both write /dev/stdout; name two files"),
        (("--json", "/dev/fd/1", "--csv", "/dev/stdout"), "--json and --csv would both write /dev/stdout"),
        (("--json", "/dev/fd/999"), "--json cannot be written: /dev/fd/999: Bad file descriptor; name another file"),
        (("--json", "{folder}/x"), "there is no folder {folder}; make it, or name another file"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    folder = tmp_path / "none"
    ran = run(*TWO, *(each.format(folder=folder) for each in options))
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert words.format(folder=folder) in ran.err


def test_a_file_that_is_open_for_reading_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with (tmp_path / "x").open() as file:
        ran = run("devices", "--json", f"/dev/fd/{file.fileno()}")
    assert (ran.status, ran.out) == (2, "")
    assert "it is open for reading only; name another file" in ran.err


def test_a_recording_of_two_files_takes_no_stream(run: Run) -> None:
    ran = run(*TWO[:3], "--device", "host", "--record", "-")
    assert (ran.status, ran.out) == (2, "")
    assert "--record writes two files, got /dev/stdout; name a file, such as run.json.gz" in ran.err
