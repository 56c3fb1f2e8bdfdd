"""Files that are streams: `-` is standard output, which then holds nothing else, and a FIFO is refused."""

import json
import os
import socket
from pathlib import Path

import pytest
from commands import Run
from stored import PROBLEM, make
from tilewright.runtime.store.store import Store

TWO = ("tune", "--shape", "5", "--shape", "6", "--trials", "1", "--seconds", "20", "--device", "host")
BENCH = ("bench", "--device", "host", "--seconds", "0.01", "--shape", "8", "--shape", "9")


@pytest.mark.parametrize("file", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_results_alone_are_on_standard_output(run: Run, tmp_path: Path, file: str) -> None:
    ran = run("devices", "--json", file)
    assert ran.status == 0
    assert json.loads(ran.out)[-1]["selector"] == "host"
    assert ran.out == run("devices", "--json").out


def test_of_a_tuning(run: Run) -> None:
    ran = run(*TWO, "--json", "-")
    assert ran.status == 0
    assert [each["problem"]["m"] for each in json.loads(ran.out)] == [5, 6]
    assert "2 shapes, at most 20 s each\n" in ran.err
    assert ran.err.count("winner: ") == 2
    again = run(*TWO, "--skip-tuned", "--json", "-")
    assert (again.status, json.loads(again.out)) == (0, [])
    assert "2 of 2 shapes have a record" in again.err


def test_of_a_bench(run: Run) -> None:
    ran = run(*BENCH, "--json", "-")
    assert [row["m"] for row in json.loads(ran.out)["rows"]] == [8, 9]
    assert "geometric mean" in ran.err
    ran = run(*BENCH, "--markdown", "-")
    assert ran.out.startswith("#")
    assert "| 9x9x9 |" in ran.out


def test_of_what_is_stored(run: Run, tmp_path: Path) -> None:
    assert Store().keep(make(0.5))
    shape = ("--shape", PROBLEM.shape)
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


def test_null_takes_everything(run: Run) -> None:
    ran = run(*TWO[:3], *TWO[5:], "--json", "/dev/null", "--csv", "/dev/null")
    assert (ran.status, ran.err) == (0, "")
    assert "winner: " in ran.out


def test_what_another_process_has_to_open_is_refused(run: Run, tmp_path: Path) -> None:
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


def test_a_recording_is_two_files(run: Run) -> None:
    ran = run(*TWO[:3], "--device", "host", "--record", "-")
    assert (ran.status, ran.out) == (2, "")
    assert "--record writes two files, got /dev/stdout; name a file, such as run.json.gz" in ran.err
