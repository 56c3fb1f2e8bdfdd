"""The command line end to end, on the host device with tiny shapes and budgets."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tilewright import cli
from tilewright.codegen.errors import TuningError
from tilewright.runtime import detect, nvml
from tilewright.runtime.store import Store

SMALL = ("--shape", "24x20x16", "--trials", "4", "--seconds", "20", "--device", "host")
HEADINGS = ("us", "spread", "GFLOP/s", "of bound", "err/bound", "x naive", "x vendor", "variant")


@dataclass
class Ran:
    """What one command printed and how it ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Call `tilewright` with arguments, in this process."""

    def call(*arguments: str, entry: Any = cli.main) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            entry(list(arguments))
        out, err = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, out, err)

    return call


def spawned(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """The same in a process of its own."""
    command = [sys.executable, "-u", "-m", "tilewright", *arguments]
    return subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, **options)


@dataclass
class Tuned:
    """A store with one tuned shape in it."""

    store: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[Tuned]:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("tuned")
        patch.setenv("TILEWRIGHT_STORE", str(root / "unused"))
        patch.setenv("TILEWRIGHT_CACHE", str(session_cache))
        command = ("tune", *SMALL, "--store", str(root / "a store"))
        process = spawned(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert not (root / "unused").exists()
        yield Tuned(root / "a store", out, err)


class TestTune:
    """`tilewright tune`, and `tune` by itself."""

    def test_ends_with_a_table_of_the_contenders(self, tuned: Tuned) -> None:
        lines = tuned.out.splitlines()
        assert lines[0].startswith("24x20x16 float nn on host")
        assert "at most 4 trials and 20 s" in lines[0]
        assert all(heading in tuned.out for heading in HEADINGS)
        assert "NumPy's BLAS" in tuned.out
        assert "naive:block_m=8,block_n=32,edge=bounds,unroll=4" in tuned.out
        assert "tried 4 variants in" in tuned.out
        assert "4 ok; ended by trials" in tuned.out

    def test_prints_plain_lines_where_nobody_watches(self, tuned: Tuned) -> None:
        assert "\x1b" not in tuned.out
        assert "\r" not in tuned.out
        assert "/4 trials; failed: none; best: " in tuned.out
        assert tuned.err == ""

    def test_the_two_commands_it_names_work(self, tuned: Tuned, tmp_path: Path) -> None:
        _, _, after = tuned.out.partition("use it:\n")
        commands = [line.strip() for line in after.splitlines()]
        assert [command.split()[0] for command in commands] == ["tilewright", "python"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        outs = [
            subprocess.run(
                command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path},
                capture_output=True, text=True, timeout=60, check=True,
            ).stdout
            for command in commands
        ]  # fmt: skip
        assert (tmp_path / "out" / "gemm.cu").exists()
        assert (tmp_path / "out" / "gemm.h").exists()
        assert "(exact, host" in outs[0]
        assert "<tilewright kernel for 24x20x16 float nn on host" in outs[1]
        assert "(exact)>" in outs[1]

    def test_resumes_where_an_earlier_run_stopped(self, run: Any, tuned: Tuned) -> None:
        ran = run("tune", *SMALL[:3], "6", *SMALL[4:], "--store", str(tuned.store))
        assert ran.status == 0
        assert "4 of them tried before" in ran.out
        assert "tried 2 variants in" in ran.out

    def test_several_shapes_and_their_json(self, run: Any, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        shapes = ("--shape", "8x9x7", "--shape", "6", "--dtype", "double", "--trans", "tn")
        budget = ("--trials", "2", "--seconds", "10", "--sampler", "random", "--keep", "1")
        ran = run(*shapes, *budget, "--json", str(file), entry=cli.main_tune)
        assert ran.status == 0, ran.err
        results = json.loads(file.read_text())
        assert [[result["problem"][name] for name in "mnk"] for result in results] == [[8, 9, 7], [6, 6, 6]]
        assert all(result["best"]["status"] == "ok" for result in results)
        assert "--trans tn" in ran.out
        assert "trans_a=True, trans_b=False" in ran.out
        assert [record.problem.shape for record in Store().records()] == ["6x6x6", "8x9x7"]

    def test_can_do_without_processes_of_its_own(self, run: Any) -> None:
        ran = run("tune", "--shape", "5", "--trials", "1", "--seconds", "10", "--no-isolation", "--effort", "quick")
        assert ran.status == 0, ran.err
        assert "0 compile processes" in ran.out

    def test_records_a_run_and_replays_it(self, run: Any, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        assert run("tune", *SMALL, "--record", str(file)).status == 0
        assert sorted(path.name for path in tmp_path.glob("*.json")) == ["run.json", "run.t4.json"]
        ran = run("tune", "--device", f"replay:{file}", "--trials", "3", "--sampler", "random")
        assert ran.status == 0, ran.err
        assert "tried 3 of 4 recorded variants" in ran.out

    def test_redraws_in_place_on_a_terminal(self) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
        process = spawned("tune", *SMALL, stdout=theirs, env=environment)
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        except OSError:  # Linux's way to say that the other end is closed
            pass
        finally:
            os.close(ours)
        assert process.wait(60) == 0
        assert b"\x1b[" in shown
        assert b"4/4" in shown
        assert b"ended by trials" in shown

    def test_ctrl_c_ends_with_the_duel_and_keeps_the_winner(self, tmp_path: Path) -> None:
        store = tmp_path / "interrupted"
        command = ("tune", "--shape", "32", "--trials", "5000", "--seconds", "100", "--store", str(store))
        process = spawned(*command, "--device", "host", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if " trials; " in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "side by side with the vendor's library" in out
        assert "ended by interrupt" in out
        assert "NumPy's BLAS" in out
        assert [record.problem.shape for record in Store(store).records()] == ["32x32x32"]
        assert err == ""


BAD = [
    (("tune",), "--shape"),
    (("tune", "--shape", "3x3"), "'3x3'"),
    (("tune", "--shape", "-4"), "'-4'"),
    (("tune", "--shape", "99999999999"), "'99999999999'"),
    (("tune", "--shape", "4294967296x1x1"), "4294967296"),
    (("tune", "--shape", "0x3x3", "--device", "host"), "0x3x3"),
    (("tune", "--shape", "5", "--dtype", "half"), "'half'"),
    (("tune", "--shape", "5", "--trans", "nx"), "'nx'"),
    (("tune", "--shape", "5", "--device", "gpu"), "'gpu'"),
    (("tune", "--shape", "5", "--device", "replay:/nowhere.json"), "/nowhere.json"),
    (("tune", "--shape", "5", "--sampler", "guess"), "'guess'"),
    (("tune", "--shape", "5", "--effort", "great"), "'great'"),
    (("tune", "--shape", "5", "--trials", "0"), "0"),
    (("tune", "--shape", "5", "--seconds", "nan"), "nan"),
    (("tune", "--shape", "5", "--keep", "many"), "'many'"),
    (("tune", "--shape", "5", "--spaces", "/nowhere"), "/nowhere"),
    (("tune", "--shape", "5", "--json", "/nowhere/x.json"), "/nowhere"),
    (("tune", "--shape", "5", "--shape", "6", "--record", "x.json"), "got 2"),
    (("tune", "--shape", "5", "--speed", "9"), "--speed"),
    (("emit",), "--shape"),
    (("emit", "--shape", "5", "--name", "int"), "'int'"),
    (("emit", "--shape", "5", "--name", "a;b"), "'a;b'"),
    (("emit", "--shape", "5", "--arch", "sm_20"), "'sm_20'"),
    (("emit", "--config", "cubic:x=1"), "'cubic'"),
    (("emit", "--config", "tiled:width=7"), "'width'"),
    (("emit", "--config", "tiled:tile_width=7"), "got 7"),
    (("emit", "--config", "tiled:edge=exact", "--shape", "5"), "multiples of 16, 16, 16"),
    (("show", "--json", "--csv"), "--csv"),
    (("bogus",), "'bogus'"),
]


class TestBadInput:
    """One line that names the value, exit status 2, nothing on stdout."""

    @pytest.mark.parametrize(("arguments", "named"), BAD, ids=lambda value: " ".join(value) if value else "")
    def test_is_answered_in_one_line(self, run: Any, arguments: tuple[str, ...], named: str) -> None:
        ran = run(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("tilewright: ")
        assert named in ran.err

    def test_a_gpu_that_is_not_there(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvml, "gpu_count", lambda: 0)
        for arguments in (("tune", "--shape", "5"), ("emit", "--shape", "5")):
            ran = run(*arguments, "--device", "cuda")
            assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
            assert "device cuda: " in ran.err
            assert "no NVIDIA" in ran.err

    def test_a_gpu_without_the_extra_is_passed_over_with_a_word(
        self, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(nvml, "gpu_count", lambda: 1)
        monkeypatch.setattr(detect.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
        ran = run("emit", "--shape", "5", "-o", str(tmp_path))
        assert ran.status == 0
        assert "an NVIDIA GPU is present but not used" in ran.err
        assert "pip install 'tilewright[cuda13]'" in ran.err
        ran = run("emit", "--shape", "5", "--device", "cuda")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "pip install 'tilewright[cuda13]'" in ran.err

    def test_no_compiler(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        ran = run("tune", *SMALL)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "needs a C++ compiler and found none" in ran.err


class TestFailures:
    """One line and exit status 1; a traceback where it was asked for."""

    def test_a_store_that_cannot_be_made(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = run("tune", *SMALL, "--store", str(tmp_path / "file" / "store"))
        assert ran.status == 1
        assert ran.err.count("\n") == 1
        assert str(tmp_path / "file" / "store") in ran.err

    def test_a_folder_that_cannot_be_written(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = run("emit", "--shape", "5", "--device", "host", "-o", str(tmp_path / "file" / "out"))
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert str(tmp_path / "file") in ran.err

    def test_debug_shows_where(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **options: object) -> None:
            raise TuningError("no variant of it works: 3 compile_error")

        monkeypatch.setattr(cli, "tune", fail)
        assert run("tune", *SMALL).err == "tilewright: no variant of it works: 3 compile_error\n"
        ran = run("tune", *SMALL, "--debug")
        assert ran.status == 1
        assert ran.err.startswith("Traceback (most recent call last):")
        assert ran.err.endswith("tilewright: no variant of it works: 3 compile_error\n")

    def test_our_own_mistakes_are_one_line_too(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli, "choose", None)
        ran = run("tune", *SMALL)
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "unexpected TypeError: " in ran.err
        assert "--debug shows where" in ran.err

    def test_results_before_the_failure_are_in_the_json(
        self, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        real = cli.tune

        def second_fails(problem: Any, **options: Any) -> Any:
            if problem.m == 6:
                raise TuningError("nothing works")
            return real(problem, **options)

        monkeypatch.setattr(cli, "tune", second_fails)
        file = tmp_path / "results.json"
        shapes = ("--shape", "5", "--shape", "6", "--trials", "1", "--seconds", "10", "--device", "host")
        assert run("tune", *shapes, "--json", str(file)).status == 1
        assert len(json.loads(file.read_text())) == 1

    def test_a_damaged_record_is_one_line_of_warning(self, run: Any, tuned: Tuned, tmp_path: Path) -> None:
        record = next((tuned.store / "records").glob("*.json"))
        (tmp_path / "records").mkdir()
        (tmp_path / "records" / record.name).write_text("{")
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # pytest makes errors of them
            ran = run("show", "--store", str(tmp_path))
        assert ran.status == 0
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("tilewright: warning: ")
        assert "set aside" in ran.err


class TestShow:
    """What is stored: as a table, JSON and CSV."""

    def test_nothing(self, run: Any, tmp_path: Path) -> None:
        ran = run("show", "--store", str(tmp_path), "--device-key", "host-abacus")
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith("nothing is stored for host-abacus yet; ")
        assert list(tmp_path.iterdir()) == []

    def test_a_table(self, run: Any, tuned: Tuned) -> None:
        out = run("show", "--store", str(tuned.store)).out
        assert "24x20x16" in out
        assert "host-" in out
        assert "\x1b" not in out

    def test_json_and_csv_tell_the_same(self, run: Any, tuned: Tuned) -> None:
        found = json.loads(run("show", "--json", "--store", str(tuned.store)).out)
        rows = list(csv.DictReader(io.StringIO(run("show", "--csv", "--store", str(tuned.store)).out)))
        ours = [record for record in found if record["device"].startswith("host")]
        row = next(row for row in rows if row["device"].startswith("host"))
        assert len(found) == len(rows)
        assert [ours[0]["problem"][name] for name in "mnk"] == [24, 20, 16]
        assert (row["shape"], row["dtype"], row["trans"]) == ("24x20x16", "float", "nn")
        assert float(row["us"]) == ours[0]["measurement"]["median_us"]
        assert row["config"].startswith(ours[0]["config"]["family"] + ":")


class TestEmit:
    """A .cu and .h pair."""

    def test_the_tuned_kernel(self, run: Any, tuned: Tuned, tmp_path: Path) -> None:
        where = ("--store", str(tuned.store), "--device", "host", "-o", str(tmp_path / "new" / "out"))
        ran = run("emit", "--shape", "24x20x16", *where)
        assert ran.status == 0
        assert "(exact, host" in ran.out
        assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["gemm.cu", "gemm.h"]
        assert "(nearest 24x20x16, host" in run("emit", "--shape", "25x20x16", *where, "--name", "near").out

    def test_a_config_by_name_with_its_self_test(self, run: Any, tmp_path: Path) -> None:
        config = "tiled:tile_width=8,edge=exact"
        options = ("--arch", "sm_80", "--dtype", "double", "--name", "my_gemm", "--main", "-o", str(tmp_path))
        ran = run("emit", "--config", config, *options)
        assert ran.status == 0
        assert "tiled:tile_width=8,edge=exact,skew=0,unroll=8 (as given" in ran.out
        names = ["my_gemm.cu", "my_gemm.h", "my_gemm_main.cu"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        assert "double beta, void* stream);" in (tmp_path / "my_gemm.h").read_text()

    def test_what_was_edited_by_hand_is_not_overwritten(self, run: Any, tmp_path: Path) -> None:
        command = ("emit", "--shape", "5", "--device", "host", "-o", str(tmp_path))
        assert run(*command).status == 0
        assert run(*command).status == 0
        edited = (tmp_path / "gemm.cu").read_text() + "// mine\n"
        (tmp_path / "gemm.cu").write_text(edited)
        ran = run(*command)
        assert ran.status == 2
        assert "gemm.cu" in ran.err
        assert (tmp_path / "gemm.cu").read_text() == edited
        assert run(*command, "--overwrite").status == 0


class TestHelp:
    """What a user finds out by asking."""

    def test_devices_with_their_limits(self, run: Any) -> None:
        ran = run("devices")
        assert ran.status == 0
        assert "host" in ran.out
        assert "GFLOP/s" in ran.out
        listed = json.loads(run("devices", "--json").out)
        assert listed[-1]["selector"] == "host"
        assert listed[-1]["sm_count"] >= 1

    def test_no_arguments_at_all_show_the_commands(self, run: Any) -> None:
        ran = run()
        assert (ran.status, ran.err) == (0, "")
        assert all(command in ran.out for command in ("tune", "emit", "show", "devices"))

    def test_help_names_defaults_and_gives_examples(self, run: Any) -> None:
        out = " ".join(run("-h", entry=cli.main_tune).out.split())
        assert "tune --shape 1024x768x512 --shape 1000" in out
        assert "quick: 32 trials or 20 s" in out
        assert "[default: normal]" in out
        assert "[default: isolation]" in out

    def test_the_module_is_a_program(self) -> None:
        command = [sys.executable, "-m", "tilewright", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("tilewright, version ")
