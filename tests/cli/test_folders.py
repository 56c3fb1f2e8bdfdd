"""A cache or a store that cannot be used is reported once, by workers too, and no folder stays behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TUNE = ("tune", "--shape", "8", "--device", "host", "--trials", "3", "--seconds", "60")
BENCH = ("bench", "--shape", "8", "--shape", "9", "--device", "host", "--seconds", "0.01")


def called(tmp_path: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), **variables}
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("command", [TUNE, (*TUNE, "--no-isolation"), BENCH], ids=lambda words: words[0] + words[-1])
def test_a_bad_cache_is_reported_once_and_leaves_no_folder(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("precious")
    done = called(tmp_path, *command, TILEWRIGHT_CACHE=str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    warning = f"cannot use the cache {tmp_path}/file"
    assert "".join((done.stdout + done.stderr).split()).count("".join(warning.split())) == 1
    assert [path.name for path in (tmp_path / "temporary").iterdir() if path.name.startswith("tilewright-")] == []
    assert (tmp_path / "file").read_text() == "precious"


def test_a_bad_store_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    done = called(tmp_path, *BENCH, TILEWRIGHT_STORE=str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    warning = "".join(f"cannot read {tmp_path}/file".split())
    assert "".join((done.stdout + done.stderr).split()).count(warning) == 1
    assert (tmp_path / "file").read_text() == "precious"


def test_a_folder_of_an_unknown_user_is_refused(tmp_path: Path) -> None:
    for number, variable in enumerate(("TILEWRIGHT_STORE", "TILEWRIGHT_CACHE")):
        (tmp_path / str(number)).mkdir()
        done = called(tmp_path / str(number), *TUNE, **{variable: "~nobody-of-this-name/x"})
        assert (done.returncode, done.stdout.count("winner"), done.stderr.count("\n")) == (2, 0, 1), done.stderr
        assert f"{variable} begins with ~ and no user of this system, got '~nobody-of-this-name/x'" in done.stderr
