"""Files that are asked for: tried before anything else, and each lost alone."""

import errno
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Run
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
    """Warnings are printed, as users have them; pytest makes errors of them."""
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
def test_a_path_that_cannot_be_written_is_told_before_anything_is_run(
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
def test_nothing_is_no_path_and_no_name(run: Run, here: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(here.rglob("*"))
    ran = run(*arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert repr(arguments[-1].removeprefix("replay:")) in ran.err
    assert sorted(here.rglob("*")) == before


def test_a_home_is_found(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_two_files_have_two_names(run: Run, here: Path, options: tuple[str, ...]) -> None:
    ran = run(*TUNE, *options)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "would both write" in ran.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.usefixtures("warned")
class TestFullDisk:
    """A device on which every write fails as on a full disk."""

    def test_json_costs_itself_alone(self, run: Run) -> None:
        ran = run(*TUNE, "--json", "/dev/full")
        assert ran.status == 1
        assert ran.err == "tilewright: warning: cannot write /dev/full: No space left on device\n"
        assert "winner: " in ran.out
        assert [record.problem for record in Store().layers()[0]] == [PROBLEM]

    def test_json_and_markdown_of_a_bench(self, run: Run, here: Path) -> None:
        ran = run(*BENCH, "--json", "/dev/full", "--markdown", "found.md")
        assert ran.status == 1
        assert "cannot write /dev/full: No space left on device" in ran.err
        assert "| 9x9x9 |" in (here / "found.md").read_text()
        assert "geometric mean" in ran.out

    @pytest.mark.parametrize("lost", ["run.json", "run.t4.json"])
    def test_a_recording_costs_itself_alone(
        self, run: Run, here: Path, lost: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, data: bytes) -> None:
            if path.name == lost:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            real(path, data)

        real = files.write_output
        monkeypatch.setattr(files, "write_output", full)
        ran = run(*TUNE, "--record", "run.json", "--json", "found.json")
        assert (ran.status, ran.err) == (1, f"tilewright: warning: cannot write {lost}: No space left on device\n")
        assert "winner: " in ran.out
        assert [record.problem for record in Store().layers()[0]] == [PROBLEM]
        assert sorted(path.name for path in here.glob("*.json")) == sorted(
            {"run.json", "run.t4.json", "found.json"} - {lost}
        )


class Meddling(Progress):
    """Does something after the first variant."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def tried(self, tried: Tried, best: object) -> None:
        act, self._act = self._act, lambda: None
        act()


def test_a_place_that_goes_away_during_the_run_costs_the_recording_alone(here: Path) -> None:
    with pytest.warns(OutputWarning, match=r"cannot write .*run\.json: ") as told:
        result = tune(
            PROBLEM, device="host", trials=2, record=here / "run.json", progress=Meddling((here / "run.json").mkdir)
        )
    assert [str(each.message).partition(":")[0] for each in told] == [f"cannot write {here}/run.json"]
    assert Store().best(choose("host").key, PROBLEM) == result.best
    assert t4_path(here / "run.json").is_file()


def test_a_recording_of_a_resumed_run_holds_what_was_tried_before(here: Path) -> None:
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
    told = json.loads((here / "all" / "second.t4.json").read_text())
    assert len(told["results"]) == 5


def test_a_journal_that_can_no_longer_be_written_costs_no_winner(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Journal, line: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill = Meddling(lambda: monkeypatch.setattr(Journal, "_append", full))
    with pytest.warns(OutputWarning, match=r"cannot write the study .*\.jsonl: No space left on device"):
        result = tune(PROBLEM, device="host", trials=3, progress=fill, record=here / "run.json")
    assert Store().best(choose("host").key, PROBLEM) == result.best
    assert len(read_cache_file(here / "run.json").entries) == 3


def test_a_winner_that_cannot_be_kept_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Store, record: object, **options: Any) -> bool:
        raise StoreError("cannot write the store: No space left on device")

    monkeypatch.setattr(Store, "keep", refuse)
    with pytest.raises(StoreError, match=r"No space left on device; the winner, which is not kept: \w+:.*, [\d.]+ us$"):
        tune(PROBLEM, device="host", trials=2, record=here / "run.json")
    assert len(read_cache_file(here / "run.json").entries) == 2
