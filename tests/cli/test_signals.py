"""The command line keeps its results when a signal, a kill, a closed pipe or a closed terminal ends it."""

import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tilewright.runtime.store.store import Store

LONG = ("tune", "--shape", "32", "--trials", "5000", "--seconds", "100", "--device", "host")
AT_IMPORT = """
import os, signal, sys
seen = 0

def heard(event, arguments):
    global seen
    if event == "import" and (seen or arguments[0] == "tilewright.cli.app"):
        seen += 1
        if seen == {number}:
            os.kill(os.getpid(), signal.{name})

sys.addaudithook(heard)
sys.argv = ["tilewright", "tune", "--shape", "16", "--device", "host", "--trials", "1"]
from tilewright.cli import main
main()
"""
"""A program that runs the command and sends itself a signal as it imports its n-th module."""


def first_of(cases: Sequence[Any], count: int = 1) -> list[Any]:
    """Values or rows to parametrize a test with; all but the first `count` are marked slow."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        *(pytest.param(*row) for row in rows[:count]),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in rows[count:]),
    ]


def spawned(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "tilewright", *arguments]
    return subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, **options)


def until(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"never said {words!r}")


def stored_shapes(store: Path) -> list[str]:
    return [record.problem.shape for record in Store(store).layers()[0]]


@pytest.mark.parametrize(
    ("number", "name"),
    first_of(
        [(1, "SIGINT"), (150, "SIGINT"), (470, "SIGTERM"), (520, "SIGINT")]
        + [(number, name) for name in ("SIGINT", "SIGHUP", "SIGTERM") for number in range(2, 640, 29)],
        4,
    ),
)
def test_a_signal_during_an_import(number: int, name: str) -> None:
    command = [sys.executable, "-c", AT_IMPORT.format(number=number, name=name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "tilewright: interrupted\n")
    assert "winner" not in done.stdout


def test_the_entry_imports_next_to_nothing_before_it_handles_signals() -> None:
    code = "import sys; before = set(sys.modules); import tilewright.cli; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split())
    assert {name for name in imported if name.startswith("tilewright")} == {"tilewright", "tilewright.cli"}
    assert len(imported) < 20  # `signal` and its own imports


def test_a_signal_before_the_first_winner(tmp_path: Path) -> None:
    process = spawned(*LONG, "--store", str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(process, ": at most ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # The first variant may have been measured by then, and is a winner.
    assert (process.returncode, err) in ((130, "tilewright: interrupted\n"), (130, ""))
    assert bool(stored_shapes(tmp_path)) == (err == "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_search_ends_with_the_duel_and_keeps_the_winner(tmp_path: Path, number: int) -> None:
    process = spawned(*LONG, "--store", str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(process, " trials, ")
    process.send_signal(number)
    if number == signal.SIGHUP:  # a shell sends it again
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "ended by interrupt" in out
    assert stored_shapes(tmp_path) == ["32x32x32"]


def test_a_run_under_nohup_goes_on(tmp_path: Path) -> None:
    command = ("nohup", sys.executable, "-u", "-m", "tilewright", *LONG[:4], "6", *LONG[5:], "--store", str(tmp_path))
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until(process, " trials, ")
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "ended by trials" in out


def test_a_reader_that_closes_the_pipe_ends_the_search_and_the_winner_is_kept(tmp_path: Path) -> None:
    process = spawned(*LONG, "--store", str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(process, " trials, ")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()
    assert stored_shapes(tmp_path) == ["32x32x32"]


@pytest.mark.parametrize(("to", "status", "message"), [
    (">/dev/full", 1, "tilewright: the output: No space left on device\n"),
    (">&-", 0, ""),
])  # fmt: skip
def test_output_that_goes_nowhere(tmp_path: Path, to: str, status: int, message: str) -> None:
    tune = f"tune --shape 16 --config tiled:16 --device host --store {tmp_path}"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tilewright {tune} {to}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, message)
    assert stored_shapes(tmp_path) == ["16x16x16"]


def test_a_terminal_that_is_closed_ends_the_search_and_the_winner_is_kept(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()

    # The child makes the terminal its own, as a shell under a terminal does.
    begin = "import fcntl, os, runpy, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    code = f"{begin}sys.argv[0] = 'tilewright'; runpy.run_module('tilewright', run_name='__main__')"
    command = [sys.executable, "-c", code, *LONG, "--store", str(tmp_path), "--json", str(tmp_path / "results.json")]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown, end = b"", time.monotonic() + 60
    while b"best: " not in shown.replace(b"best: none", b"") and time.monotonic() < end:
        shown += os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(60) != 0
    assert stored_shapes(tmp_path) == ["32x32x32"]
    assert (tmp_path / "results.json").exists()


# ---- `tune --suite` that is killed and run again ----------------------------------------------------------------


PROGRAM = Path(__file__).parent.parent / "support" / "measured.py"
SHAPES, TRIALS = 10, 3
SPACE = """family = "naive"
[parameters]
block_m = [4, 8]
block_n = [8, 16]
unroll = [1]
edge = ["bounds"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [25])
def test_a_suite_that_is_killed_measures_at_most_one_trial_twice(tmp_path: Path, seed: int) -> None:
    """A run that is killed at a random moment goes on, when it is started again, from its journal."""
    chance = random.Random(seed)
    measured, suite, store = tmp_path / "measured.txt", tmp_path / "suite.csv", tmp_path / "store"
    suite.write_text("m,n,k\n" + "".join(f"{size},{size + 1},{size + 2}\n" for size in range(2, 2 + SHAPES)))
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "naive.toml").write_text(SPACE)
    limits = ("--trials", str(TRIALS), "--seconds", "60", "--keep", "1", "--sampler", "random")
    where = ("--device", "host", "--store", str(store), "--spaces", str(tmp_path / "spaces"))
    command = [sys.executable, str(PROGRAM), "tune", "--suite", str(suite), *limits, *where]
    environment = {**os.environ, "MEASURED": str(measured)}

    def trials() -> list[str]:
        return measured.read_text().splitlines() if measured.exists() else []

    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    trials_before_kill = chance.randint(2, SHAPES * TRIALS - 2)
    end = time.monotonic() + 120
    while len(trials()) < trials_before_kill and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = trials()
    assert trials_before_kill <= len(before) < SHAPES * TRIALS

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    counts = Counter(trials())
    assert len(counts) == SHAPES * TRIALS
    assert counts.total() - len(counts) <= 1, [each for each, count in counts.items() if count > 1]
    assert len(Store(store).layers()[0]) == SHAPES
    journals = list((store / "trials").glob("*.jsonl"))
    assert [len(journal.read_text().splitlines()) for journal in journals] == [1 + TRIALS] * SHAPES

    over = subprocess.run([*command, "--skip-tuned"], env=environment, capture_output=True, text=True, check=False)
    assert over.stdout.startswith(f"{SHAPES} of {SHAPES} shapes have a record of host")
    assert (over.returncode, Counter(trials())) == (0, counts)
