"""`tilewright forget` removes the user's own records, journals and compiled kernels."""

import io
import os
import sys
import threading
import warnings
from datetime import datetime
from pathlib import Path

import pytest
from commands import Run
from filelock import FileLock
from stored import CONFIGS, make
from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime import file_lock
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.protocol import Binary
from tilewright.runtime.store.store import Store
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.journal import Journal

HOST = choose("host")
CUBE, DOUBLE, OTHER = Problem(64, 64, 64), Problem.parse("64", "double", "nt"), Problem(5, 6, 7)
WON, LOST, UNRELATED = CONFIGS[:3]
SHIPPED = "1024x768x512"


class Compiler:
    """A compiler that makes the same image of any text."""

    suffix, identity = "so", "nobody's"

    def build(self, source: object, folder: str) -> Binary:
        (Path(folder) / "kernel.so").write_bytes(b"image")
        return Binary(b"image", None, None, None)


def add_kernel(problem: Problem, config: Config) -> None:
    compile_cached(Compiler(), render(problem, config, HOST))  # type: ignore[arg-type]


def add_tuning(problem: Problem, device: str = HOST.key) -> None:
    """Store a record, a journal of two trials, and their kernels."""
    Store().keep(make(5.0, problem, WON, device))
    written = Journal.of(Store().root / "trials", problem, device, (("driver", "x"),))
    written.extend([(each, Entry("ok", 5.0, (5.0,)), {"started": "2026-01-01T00:00:00"}) for each in (WON, LOST)])
    for config in (WON, LOST):
        add_kernel(problem, config)


@pytest.fixture(autouse=True)
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three products that were tuned, and a kernel of no tuning."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    add_tuning(CUBE)
    add_tuning(DOUBLE)
    add_tuning(OTHER, "nvidia-h200")
    add_kernel(CUBE, UNRELATED)
    assert remaining() == ({CUBE, DOUBLE, OTHER}, 3, 7)  # the kernels of 5x6x7 are guarded instances


def remaining() -> tuple[set[Problem], int, int]:
    """Problems with a record of the user's own, the number of journals and the number of compiled kernels."""
    root = Store().root
    kernels = list(Path(os.environ["TILEWRIGHT_CACHE"]).glob("[0-9a-f][0-9a-f]/*/kernel.so"))
    return {record.problem for record in Store().both()[0]}, len(list((root / "trials").glob("*.jsonl"))), len(kernels)


def test_a_product_without_a_record_has_its_journal_removed(run: Run) -> None:
    problem = Problem(96, 96, 96)
    journal = Journal.of(Store().root / "trials", problem, HOST.key, ())
    for config in (WON, LOST):
        journal.add(config, Entry("ok", 5.0, (5.0,)), datetime.now())
        add_kernel(problem, config)
    problems, journals, kernels = remaining()
    ran = run("forget", "--shape", "96")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == f"removed 0 records and 1 journal of 96x96x96 float nn on {HOST.key}\n"
    assert remaining() == (problems, journals - 1, kernels)


def test_a_product_goes_with_its_journal_and_nothing_else_does(run: Run) -> None:
    ran = run("forget", "--shape", "64", "--dtype", "float")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == f"removed 1 record and 1 journal of 64x64x64 float nn on {HOST.key}\n"
    assert remaining() == ({DOUBLE, OTHER}, 2, 7)
    ran = run("forget", "--shape", "64", "--dtype", "float")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == "tilewright: nothing that you tuned is stored for 64x64x64 float; see `tilewright show`\n"


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        (("--shape", "64"), {CUBE, DOUBLE}),
        (("--shape", "64x64x64", "--shape", "5x6x7"), {CUBE, DOUBLE, OTHER}),
        (("--shape", "64", "--trans", "nt"), {DOUBLE}),
        (("--shape", "64", "--accuracy", "normwise"), set()),
        (("--shape", "5x6x7", "--device-key", HOST.key), set()),
        (("--shape", "5x6x7", "--device-key", "nvidia-h200"), {OTHER}),
        (("--all", "--yes", "--device-key", HOST.key), {CUBE, DOUBLE}),
        (("--all", "--yes"), {CUBE, DOUBLE, OTHER}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_options_select_records_as_those_of_show_do(run: Run, options: tuple[str, ...], removed: set[Problem]) -> None:
    ran = run("forget", *options)
    assert ran.status == (0 if removed else 1)
    assert (ran.out + ran.err).count("\n") == 1
    assert remaining() == ({CUBE, DOUBLE, OTHER} - removed, 3 - len(removed), 7)


def test_the_cache_option_removes_the_kernels_of_all_trials(run: Run) -> None:
    ran = run("forget", "--shape", "64", "--dtype", "double", "--cache")
    message = f"removed 1 record and 1 journal of 64x64x64 double nt on {HOST.key}, 2 compiled kernels\n"
    assert (ran.status, ran.out) == (0, message)
    assert remaining() == ({CUBE, OTHER}, 2, 5)
    assert run("forget", "--shape", "64", "--cache").out.endswith(", 4 compiled kernels\n")
    assert remaining() == ({OTHER}, 1, 1)
    assert run("forget", "--all", "--yes", "--cache").out.startswith("removed 1 record and 1 journal of 5x6x7 float nn")
    assert remaining() == (set(), 0, 0)
    ran = run("forget", "--all", "--yes", "--cache")
    assert (ran.status, ran.out) == (1, "")
    add_kernel(CUBE, UNRELATED)
    ran = run("forget", "--all", "--yes", "--cache")
    assert (ran.status, ran.out.split("; ")[0]) == (0, "removed 0 records and 0 journals, 1 compiled kernel")


def test_a_journal_alone_goes_too(run: Run) -> None:
    """A search that finds no variant that works leaves only a journal."""
    assert Store().forget(HOST.key, CUBE)
    ran = run("forget", "--shape", "64", "--dtype", "float")
    assert ran.out == f"removed 0 records and 1 journal of 64x64x64 float nn on {HOST.key}\n"
    assert remaining() == ({DOUBLE, OTHER}, 2, 7)


def test_shipped_records_stay_and_a_message_says_so(run: Run) -> None:
    stays = "what ships with tilewright cannot be removed: 2 records"
    kind = ("--dtype", "float", "--trans", "nn", "--accuracy", "ieee")
    ran = run("forget", "--shape", SHIPPED, *kind)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == f"tilewright: nothing that you tuned is stored for {SHIPPED} float nn ieee; {stays}\n"
    add_tuning(Problem.parse(SHIPPED), "nvidia-h200")
    ran = run("forget", "--shape", SHIPPED, *kind)
    assert (ran.status, ran.out) == (
        0, f"removed 1 record and 1 journal of {SHIPPED} float nn on nvidia-h200; {stays}\n"
    )  # fmt: skip
    assert Store().best("nvidia-h200", Problem.parse(SHIPPED)) is not None


@pytest.mark.parametrize(("answer", "status", "words"), [
    ("y\n", 0, "removed 3 records and 3 journals of 3 products; what ships"),
    ("n\n", 1, "nothing was removed\n"),
    ("\n", 1, "nothing was removed\n"),
    ("", 2, "tilewright: --all asks a question first, and nobody answers here; add --yes\n"),
])  # fmt: skip
def test_all_asks_first(run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, words: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    ran = run("forget", "--all")
    assert ran.status == status
    assert f"remove 3 records and 3 journals of 3 products from {Store().root}? [y/N]: " in ran.out
    assert words in ran.out + ran.err
    assert len(remaining()[0]) == (0 if status == 0 else 3)


@pytest.mark.parametrize("options", [(), ("--all", "--shape", "64"), ("--dtype", "float")])
def test_a_shape_or_all_has_to_be_named(run: Run, options: tuple[str, ...]) -> None:
    ran = run("forget", *options)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == "tilewright: forget takes either --shape or --all, which is every shape; name one of the two\n"


def test_a_wait_for_a_lock_names_the_file_and_who_holds_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "_SILENT_SECONDS", 0.05)
    (path,) = (each for each in (Store().root / "trials").glob("*.jsonl") if "64x64x64-float" in each.read_text())
    lock = FileLock(f"{path}.lock", thread_local=False)
    lock.acquire()
    timer = threading.Timer(0.5, lock.release)
    timer.start()
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # pytest turns warnings into errors
        ran = run("forget", "--shape", "64", "--dtype", "float")
    timer.join()
    holder = f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    assert ran.err == f"tilewright: warning: waiting up to 30 s for {path}.lock, which {holder} holds\n"
    assert ran.status == 0


def test_a_journal_that_is_being_written_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.05)
    paths = list((Store().root / "trials").glob("*.jsonl"))
    locks = [FileLock(f"{path}.lock") for path in paths]
    for lock in locks:
        lock.acquire()
    ran = run("forget", "--shape", "64", "--dtype", "float")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "cannot remove the study" in ran.err
    assert remaining()[1] == 3
    for lock in locks:
        lock.release()
    assert run("forget", "--shape", "64", "--dtype", "float").status == 0


def test_damaged_files_are_no_obstacle(run: Run) -> None:
    trials = Store().root / "trials"
    (trials / "damaged.jsonl").write_bytes(b"\xff{")
    (trials / "another.jsonl").write_text('{"format": "tilewright trials 1", "study": "6x-z y", "dimensions": []}\n')
    for path in trials.glob("[0-9a-f]*.jsonl"):
        path.write_bytes(path.read_bytes() + b"{torn")
    assert run("forget", "--all", "--yes", "--cache", "--device-key", HOST.key).status == 0
    assert remaining()[0] == {OTHER}
