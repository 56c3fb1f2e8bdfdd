"""`tilewright tune` end to end, on the host device with tiny shapes and budgets; devices, help and version."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Run
from tilewright.cli import app as cli
from tilewright.cli import devices
from tilewright.codegen.arch import ARCHES
from tilewright.runtime.device import launcher
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.store.store import Store

HOST = choose("host").key


def spawned(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
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

    def test_ends_with_the_winner_and_the_contenders(self, tuned: Tuned) -> None:
        lines = tuned.out.splitlines()
        assert lines[0] == "on the processor: these times say nothing about a GPU"
        assert lines[1].startswith("24x20x16 float nn on host")
        assert "at most 4 trials and 20 s" in " ".join(tuned.out.split())
        (record,) = [record for record in Store(tuned.store).layers()[0] if record.problem.shape == "24x20x16"]
        assert f"winner: {record.config}" in tuned.out.replace("\n  ", "")
        assert "  NumPy\n" in tuned.out
        assert "tried 4 variants in" in tuned.out
        assert "4 ok; ended by trials" in tuned.out
        spent = ", ".join(rf"{phase} [\d.]+" for phase in ("compile", "verify", "time", "sampler", "idle"))
        assert re.search(f"seconds: {spent}; 1 compile processes", " ".join(tuned.out.split()))

    def test_prints_plain_lines_without_a_terminal(self, tuned: Tuned) -> None:
        assert "\x1b" not in tuned.out
        assert "\r" not in tuned.out
        assert re.search(r"^\d/4 trials, \d+ s left; failed: none; best: ", tuned.out, re.MULTILINE)
        assert max(len(line) for line in tuned.out.splitlines() if str(tuned.store) not in line) <= 120
        assert tuned.err == ""

    def test_the_two_commands_it_names_work(self, tuned: Tuned, tmp_path: Path) -> None:
        _, _, after = tuned.out.partition("(for a GPU, tune on that GPU):\n")
        show, python = (command.strip() for command in after.split("\n", 1))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        outs = [
            subprocess.run(
                command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path, "COLUMNS": "200"},
                capture_output=True, text=True, timeout=60, check=True,
            ).stdout
            for command in (show, python)
        ]  # fmt: skip
        assert outs[0].startswith(f"{HOST}, your own\n")
        assert "<tilewright kernel for 24x20x16 float nn on host" in outs[1]
        assert "(exact)>" in outs[1]

    def test_resumes_where_an_earlier_run_stopped(self, run: Run, tuned: Tuned) -> None:
        ran = run("tune", *SMALL[:3], "6", *SMALL[4:], "--store", str(tuned.store))
        assert ran.status == 0
        assert ": 4 tried before; at most 6 trials" in " ".join(ran.out.split())
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
        assert "8x9x7 double tn on host" in ran.out
        assert 'trans="tn"' in ran.out
        assert [record.problem.shape for record in Store().layers()[0]] == ["6x6x6", "8x9x7"]

    def test_works_without_processes_of_its_own(self, run: Run) -> None:
        ran = run("tune", "--shape", "5", "--trials", "1", "--seconds", "10", "--no-isolation", "--effort", "quick")
        assert ran.status == 0, ran.err
        assert "0 compile processes" in ran.out
        assert "idle" not in ran.out

    def test_records_a_run_and_replays_it(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        assert run("tune", *SMALL, "--record", str(file)).status == 0
        assert sorted(path.name for path in tmp_path.glob("*.json")) == ["run.json", "run.t4.json"]
        ran = run("tune", "--device", f"replay:{file}", "--trials", "3", "--sampler", "random")
        assert ran.status == 0, ran.err
        assert "tried 3 of 4 recorded variants" in ran.out
        options = ("--shape", "9", "--effort", "quick", "--json", str(tmp_path / "r.json"))
        ran = run("tune", "--device", f"replay:{file}", *options)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "run.json excludes --shape, --effort, --json; leave these out: it takes --sampler, --trials" in ran.err

    def test_redraws_in_place_on_a_terminal(self) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
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
        assert b"4/4 trials, " in shown
        assert b"ended by trials" in shown

    def test_ctrl_c_ends_with_the_duel_and_keeps_the_winner(self, tmp_path: Path) -> None:
        store = tmp_path / "interrupted"
        command = ("tune", "--shape", "32", "--trials", "5000", "--seconds", "100", "--store", str(store))
        process = spawned(*command, "--device", "host", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if " trials, " in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "side by side with the vendor's library" in out
        assert "ended by interrupt" in out
        assert [record.problem.shape for record in Store(store).layers()[0]] == ["32x32x32"]
        assert err == ""


class TestHelp:
    """The devices, the help and the version, as they are printed."""

    def test_devices_with_their_limits(self, run: Run) -> None:
        ran = run("devices")
        assert ran.status == 0
        assert "host" in ran.out
        assert "GFLOP/s" in ran.out
        listed = json.loads(run("devices", "--json").out)
        assert listed[-1]["selector"] == "host"
        assert listed[-1]["sm_count"] >= 1
        assert "launcher" not in ran.out  # only GPUs have one

    def test_devices_name_the_launcher_of_a_gpu(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = replace(host_info(), name="NVIDIA H200", selector="cuda:0", arch=ARCHES["sm_90a"])
        monkeypatch.setattr(devices, "available", lambda: ((gpu, host_info()), ""))
        assert run("devices").out.endswith(f"launcher: {launcher.described()}\n")

    def test_no_arguments_at_all_show_the_commands(self, run: Run) -> None:
        ran = run()
        assert (ran.status, ran.err) == (0, "")
        assert all(command in ran.out for command in ("tune", "emit", "show", "devices"))

    def test_help_names_defaults_and_gives_examples(self, run: Run) -> None:
        out = " ".join(run("-h", entry=cli.main_tune).out.split())
        assert "tune --shape 1024x768x512 --shape 1000" in out
        assert "quick: 64 trials or 20 s" in out
        assert "[default: normal]" in out
        assert "[default: isolation]" in out

    def test_help_fits_a_screen_of_80_columns(self, run: Run) -> None:
        for command in ((), *((name,) for name in cli.commands.commands)):
            assert max(map(len, run(*command, "--help").out.splitlines())) <= 80

    def test_the_module_is_a_program(self) -> None:
        command = [sys.executable, "-m", "tilewright", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("tilewright, version ")
