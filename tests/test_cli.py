"""The command line end to end, on the host device with tiny shapes and budgets."""

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Run, caller
from tilewright.cli import app as cli
from tilewright.runtime.device.detect import choose
from tilewright.runtime.store.store import Store

HEADINGS = ("us", "spread", "GFLOP/s", "of bound", "err/bound", "x naive", "x vendor", "variant")

HOST = choose("host").info.key


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `tilewright` with arguments, in this process."""
    return caller(capsys)


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
        spent = ", ".join(rf"{phase} [\d.]+" for phase in ("compile", "verify", "time", "sampler", "idle"))
        assert re.search(f"seconds: {spent}$", tuned.out, re.MULTILINE)

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

    def test_resumes_where_an_earlier_run_stopped(self, run: Run, tuned: Tuned) -> None:
        ran = run("tune", *SMALL[:3], "6", *SMALL[4:], "--store", str(tuned.store))
        assert ran.status == 0
        assert "4 of them tried before" in ran.out
        assert "tried 2 variants in" in ran.out

    def test_several_shapes_and_their_json(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        shapes = ("--shape", "8x9x7", "--shape", "6", "--dtype", "double", "--trans", "tn")
        budget = ("--trials", "2", "--seconds", "10", "--sampler", "random", "--keep", "1")
        ran = run(*shapes, *budget, "--json", str(file), entry=cli.main_tune)
        assert ran.status == 0, ran.err
        results = json.loads(file.read_text())
        assert [[result["problem"][name] for name in "mnk"] for result in results] == [[8, 9, 7], [6, 6, 6]]
        assert all(result["best"]["status"] == "ok" for result in results)
        for result in results:
            spent = [result[f"{phase}_s"] for phase in ("compile", "verify", "time", "sampler", "idle")]
            assert all(0 <= each <= result["seconds"] for each in spent)
            assert result["idle_s"] + result["verify_s"] + result["time_s"] <= result["seconds"]
        assert "--trans tn" in ran.out
        assert "trans_a=True, trans_b=False" in ran.out
        assert [record.problem.shape for record in Store().records(HOST)] == ["6x6x6", "8x9x7"]

    def test_can_do_without_processes_of_its_own(self, run: Run) -> None:
        ran = run("tune", "--shape", "5", "--trials", "1", "--seconds", "10", "--no-isolation", "--effort", "quick")
        assert ran.status == 0, ran.err
        assert "0 compile processes" in ran.out
        assert "idle" not in ran.out

    def test_tries_atomics_only_where_asked(self, run: Run, tmp_path: Path) -> None:
        values = "block_m = [16]\nblock_n = [16]\nthread_m = [2]\nvec_a = [4]\nvec_b = [4]\nvec_c = [4]\nsplit_k = [4]"
        (tmp_path / "simt.toml").write_text(f"family = 'simt'\n[parameters]\n{values}\nedge = ['exact']\n")
        options = (
            "--shape",
            "16x16x256",
            "--spaces",
            str(tmp_path),
            "--trials",
            "9",
            "--seconds",
            "20",
            "--no-isolation",
        )
        for flags, tried in ((), 1), (("--nondeterministic",), 2):
            ran = run("tune", *options, *flags)
            assert ran.status == 0, ran.err
            assert f"tried {tried} variant" in ran.out

    def test_records_a_run_and_replays_it(self, run: Run, tmp_path: Path) -> None:
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
        assert [record.problem.shape for record in Store(store).records(HOST)] == ["32x32x32"]
        assert err == ""


class TestShow:
    """What is stored: as a table, JSON and CSV."""

    def test_nothing(self, run: Run, tmp_path: Path) -> None:
        ran = run("show", "--store", str(tmp_path), "--device-key", "host-abacus")
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith("nothing is stored for host-abacus yet; ")
        assert list(tmp_path.iterdir()) == []

    def test_a_table(self, run: Run, tuned: Tuned) -> None:
        out = run("show", "--store", str(tuned.store)).out
        assert "24x20x16" in out
        assert "host-" in out
        assert "\x1b" not in out

    def test_json_and_csv_tell_the_same(self, run: Run, tuned: Tuned) -> None:
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

    def test_the_tuned_kernel(self, run: Run, tuned: Tuned, tmp_path: Path) -> None:
        where = ("--store", str(tuned.store), "--device", "host", "-o", str(tmp_path / "new" / "out"))
        ran = run("emit", "--shape", "24x20x16", *where)
        assert ran.status == 0
        assert "(exact, host" in ran.out
        assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["gemm.cu", "gemm.h"]
        assert "(nearest 24x20x16, host" in run("emit", "--shape", "25x20x16", *where, "--name", "near").out

    def test_a_config_by_name_with_its_self_test(self, run: Run, tmp_path: Path) -> None:
        config = "tiled:tile_width=8,edge=exact"
        options = ("--arch", "sm_80", "--dtype", "double", "--name", "my_gemm", "--main", "-o", str(tmp_path))
        ran = run("emit", "--config", config, *options)
        assert ran.status == 0
        assert "tiled:tile_width=8,edge=exact,skew=0,unroll=8 (as given" in ran.out
        names = ["my_gemm.cu", "my_gemm.h", "my_gemm_main.cu"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        assert "double beta, void* stream);" in (tmp_path / "my_gemm.h").read_text()

    def test_what_was_edited_by_hand_is_not_overwritten(self, run: Run, tmp_path: Path) -> None:
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

    def test_devices_with_their_limits(self, run: Run) -> None:
        ran = run("devices")
        assert ran.status == 0
        assert "host" in ran.out
        assert "GFLOP/s" in ran.out
        listed = json.loads(run("devices", "--json").out)
        assert listed[-1]["selector"] == "host"
        assert listed[-1]["sm_count"] >= 1

    def test_no_arguments_at_all_show_the_commands(self, run: Run) -> None:
        ran = run()
        assert (ran.status, ran.err) == (0, "")
        assert all(command in ran.out for command in ("tune", "emit", "show", "devices"))

    def test_help_names_defaults_and_gives_examples(self, run: Run) -> None:
        out = " ".join(run("-h", entry=cli.main_tune).out.split())
        assert "tune --shape 1024x768x512 --shape 1000" in out
        assert "quick: 32 trials or 20 s" in out
        assert "[default: normal]" in out
        assert "[default: isolation]" in out

    def test_the_module_is_a_program(self) -> None:
        command = [sys.executable, "-m", "tilewright", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("tilewright, version ")
