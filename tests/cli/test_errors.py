"""The command line answers bad input and failures: one line and the right exit status."""

import errno
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Run
from tilewright.cli import tune as cli
from tilewright.codegen.errors import TuningError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device import detect, nvml
from tilewright.runtime.device.detect import choose
from tilewright.tuner import run as running
from tilewright.tuner.measure import child
from tilewright.tuner.plan import Plan
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.result import Progress
from tilewright.tuner.search.ahead import InOrder
from tilewright.tuner.settings import Budget

ALIGNED = """family = "simt"
[parameters]
block_m = [32]
block_n = [32]
block_k = [64]
thread_m = [4]
thread_n = [4]
load = ["tma"]
k_inner_a = [1]
slices = [4]
"""
"""A space that serves only products whose rows are aligned to 16 bytes."""
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
    (("tune", "--device", "replay:/nowhere.json"), "/nowhere.json"),
    (("tune", "--shape", "5", "--sampler", "guess"), "'guess'"),
    (("tune", "--shape", "5", "--effort", "great"), "'great'"),
    (("tune", "--shape", "5", "--batch", "1.5"), "'1.5' is not a whole number of 1 or more and of 2,147,483,647 at"),
    (("tune", "--shape", "5", "--trials", "0"), "'0' is not a whole number of 1 or more"),
    (("tune", "--shape", "5", "--seconds", "nan"), "'nan' is not a number above 0"),
    (("tune", "--shape", "5", "--keep", "many"), "'many' is not a whole number of 1 or more and of 64 at most"),
    (("tune", "--shape", "5", "--spaces", "/nowhere"), "/nowhere"),
    (("tune", "--shape", "5", "--json", "/nowhere/x.json"), "/nowhere"),
    (("tune", "--shape", "5", "--shape", "6", "--record", "x.json"), "got 2"),
    (("tune", "--shape", "5", "--speed", "9"), "--speed"),
    (("tune", "--shape", "2", "--m", "1:10000:1", "--n", "1", "--k", "1"), "together make 10,001 shapes, 10,000 are"),
    (("emit",), "--shape"),
    (("emit", "--shape", "5", "--arch", "sm_80", "--name", "int"), "'int'"),
    (("emit", "--shape", "5", "--arch", "sm_80", "--name", "a;b"), "'a;b'"),
    (("emit", "--shape", "5", "--device", "host"), "no GPU here to emit for; name one by --arch (sm_75, sm_80"),
    (("emit", "--shape", "5", "--arch", "host"), "'host'"),
    (("emit", "--shape", "5", "--device-key", "abacus"), "nvidia-h200, nvidia-l40s, tesla-t4, got 'abacus'"),
    (
        ("emit", "--shape", "5", "--device-key", "tesla-t4", "--device-key", "tesla-t4"),
        "--device-key must name",
    ),
    (("emit", "--suite", "nowhere"), "'nowhere'"),
    (("emit", "--suite", "/nowhere.toml"), "/nowhere.toml"),
    (
        ("emit", "--shape", "5", "--shape", "6", "--config", "tiled:8", "--arch", "sm_80"),
        "--config names 1 variant for 2 products; name a different --shape for each",
    ),
    (("emit", "--shape", "5", "--arch", "sm_80", "--header-only", "--main"), "header_only is one file: leave out main"),
    (("emit", "--suite", "public", "--arch", "sm_90a", "--header-only"), "got 26 products: name one"),
    (("emit", "--shape", "5", "--arch", "sm_20"), "'sm_20'"),
    (("emit", "--config", "cubic:x=1"), "'cubic'"),
    (("emit", "--config", "tiled:width=7"), "'width'"),
    (("emit", "--config", "tiled:7"), "got 7"),
    (("emit", "--config", "tiled:16,edge=exact"), "edge must be one of fit, bounds, pad, got 'exact'"),
    (("emit", "--config", "simt:vec_a=4"), "'vec_a'"),
    (("emit", "--config", "dmma", "--shape", "5", "--arch", "sm_80"), "the tensor cores multiply double"),
    (("show", "--json", "--csv"), "--csv"),
    (("show", "--shape", "3x3"), "'3x3'"),
    (("show", "--shape", ""), "got ''"),
    (("show", "--dtype", "half"), "'half'"),
    (("show", "--device-key", "host-abacus"), "must be one of nvidia-h100-80gb-hbm3, nvidia-h200, got"),
    (("tune", "--shape", "\x1b[31m5"), r"\x1b[31m5"),
    (("bogus",), "there is no command 'bogus'; the commands are tune, emit, show, "),
    (("tun",), "there is no command 'tun'; did you mean 'tune'?"),
    (("tune", "--shap", "5"), "there is no option --shap; did you mean '--shape'?"),
    (("tune", "--wow"), "there is no option --wow; --help lists the options"),
    (("tune", "64x64x64"), "tune takes options alone, got '64x64x64'; --shape names a shape"),
    (("devices", "cuda"), "devices takes options alone, got 'cuda'"),
    (("emit", "--shape", "5", "--arch", "sm_90b"), "got 'sm_90b'; did you mean 'sm_90a'?"),
    (("emit", "--shape", "5", "--device-key", "nvidia-h20"), "got 'nvidia-h20'; did you mean 'nvidia-h200'?"),
    (("tune", "--shape", "5", "--config", "title:16"), "got 'title'; did you mean 'tiled'?"),
    (("tune", "--shape", "5", "--config", "tiled:16,egde=pad"), "got 'egde'; did you mean 'edge'?"),
    (("tune", "--shape", "5", "--config", "tiled:16,edge=pat"), "got 'pat'; did you mean 'pad'?"),
    (("tune", "--shape", "5", "--sampler", "rndom"), "got 'rndom'; did you mean 'random'?"),
    (("bench", "--suite", "pubic"), "got 'pubic'; did you mean 'public'?"),
]


class TestBadInput:
    """Bad input is answered with one line that names the value, exit status 2 and nothing on stdout."""

    @pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: " ".join(value) if value else "")
    def test_is_answered_in_one_line(self, run: Run, arguments: tuple[str, ...], words: str) -> None:
        ran = run(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("tilewright: ")
        assert words in ran.err

    @pytest.mark.parametrize(
        ("name", "data", "words"),
        [
            ("deep.json", b"[" * 100_000, "it is nested too deeply"),
            ("deep.toml", b"shapes = " + b"[" * 10_000, "it is nested too deeply"),
            ("x.csv", b"m,n,k\n\xff", "it is no UTF-8 text, from byte 6 on"),
        ],
    )
    def test_a_suite_that_is_no_text_of_its_kind(
        self, run: Run, tmp_path: Path, name: str, data: bytes, words: str
    ) -> None:
        (tmp_path / name).write_bytes(data)
        ran = run("tune", "--device", "host", "--suite", str(tmp_path / name))
        assert (ran.status, ran.out, ran.err) == (2, "", f"tilewright: suite {tmp_path / name}: {words}\n")

    def test_a_gpu_that_is_not_there(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvml, "gpu_count", lambda: 0)
        for arguments in (("tune", "--shape", "5"), ("emit", "--shape", "5")):
            ran = run(*arguments, "--device", "cuda")
            assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
            assert "device cuda: " in ran.err
            assert "no NVIDIA" in ran.err

    @pytest.mark.filterwarnings("default:an NVIDIA GPU is present")
    def test_a_gpu_without_the_extra_is_passed_over_with_a_warning(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(nvml, "gpu_count", lambda: 1)
        monkeypatch.setattr(detect.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
        ran = run("emit", "--shape", "5", "-o", str(tmp_path))
        assert (ran.status, ran.err.count("\n")) == (2, 2)
        assert "an NVIDIA GPU is present but not used" in ran.err
        assert "pip install 'tilewright[cuda13]'" in ran.err
        ran = run("emit", "--shape", "5", "--device", "cuda")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "pip install 'tilewright[cuda13]'" in ran.err

    def test_no_compiler(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.delenv("CXX", raising=False)
        ran = run("tune", *SMALL)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert "needs a C++ compiler and found none" in ran.err

    def test_no_temporary_folder(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def nowhere() -> None:
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

        monkeypatch.setattr(child.tempfile, "TemporaryFile", nowhere)
        ran = run("tune", *SMALL)
        assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
        assert "no place for a worker's output: No usable temporary directory found in ['/tmp']; TMPDIR" in ran.err


class TestTooLittleTime:
    """A run that has too little time says so."""

    def test_a_device_that_is_too_slow_is_refused_at_once(self, run: Run) -> None:
        begin = time.monotonic()
        ran = run("tune", "--shape", "8192", "--device", "host", "--effort", "quick")
        assert time.monotonic() - begin < 5
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "of 8192x8192x8192 float nn takes at least " in ran.err
        assert "the shape is too large for this device" in ran.err
        ran = run("tune", "--shape", "2048", "--device", "host", "--seconds", "1")
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "the run may take 1 s: allow more (--seconds, --effort)" in ran.err

    def test_only_the_shape_that_takes_too_long_fails(self, run: Run) -> None:
        shapes = ("--shape", "5", "--shape", "2048", "--shape", "6")
        ran = run("tune", *shapes, "--device", "host", "--seconds", "2", "--trials", "1")
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "of 2048x2048x2048 float nn takes at least " in ran.err
        assert "2 of 3 shapes" in ran.out

    def test_only_the_shape_without_a_config_fails(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "simt.toml").write_text(ALIGNED)
        shapes = ("--shape", "63", "--shape", "16x64x256", "--device", "host", "--spaces", str(tmp_path))
        ran = run("tune", *shapes, "--effort", "quick")
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "no config serves 63x63x63 float nn on host; required: TMA" in ran.err
        assert "1 of 2 shapes" in ran.out

    def test_a_time_too_short_for_one_variant_is_named(self, run: Run) -> None:
        ran = run("tune", "--shape", "700", "--device", "host", "--seconds", "0.1")
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "0.1 s were too few to measure one variant of 700x700x700 float nn on host" in ran.err
        assert "works" not in ran.err

    def test_other_failures_are_counted(self) -> None:
        info, budget = choose("host"), Budget(5, 20.0)

        def why(stopped: str, *outcomes: Entry) -> str:
            configs = (parse(f"naive:8x{2**power}") for power in range(9))
            plan = Plan(InOrder(()), "local", {}, 3, (), ())
            run = running.Run(plan, budget, Progress(), entries=dict(zip(configs, outcomes)))
            return run.why_nothing(Problem(8, 8, 8), info, stopped, Path("trials"))

        late, crashed = Entry("timeout"), Entry("crashed", reason="it divided by zero")
        for outcomes, stopped, words in (
            ([Entry("compile_error")] * 3, "seconds", "no variant of 8x8x8 float nn works on host.*: 3 compile_error$"),
            ([late] * 2, "seconds", "20 s were too few to measure one variant of .* \\(2 timeout\\): allow more"),
            ([late] * 2, "trials", "every variant of .* takes too long on .*: 2 timeout, limit 10 s"),
            ([late, late, crashed], "seconds", "works on .*: 2 timeout, 1 crashed; it divided by zero$"),
        ):
            assert re.search(words, why(stopped, *outcomes))


class TestFailures:
    """A failure is one line and exit status 1, with a traceback under --debug."""

    def test_a_store_that_cannot_be_made(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = run("tune", *SMALL, "--store", str(tmp_path / "file" / "store"))
        assert ran.status == 1
        assert ran.err.count("\n") == 1
        assert str(tmp_path / "file" / "store") in ran.err

    def test_a_folder_that_cannot_be_written(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = run("emit", "--shape", "5", "--arch", "sm_80", "-o", str(tmp_path / "file" / "out"))
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert str(tmp_path / "file") in ran.err

    def test_debug_shows_a_traceback(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **options: object) -> None:
            raise TuningError("no variant of it works: 3 compile_error")

        monkeypatch.setattr(cli, "tune", fail)
        assert run("tune", *SMALL).err == "tilewright: no variant of it works: 3 compile_error\n"
        ran = run("tune", *SMALL, "--debug")
        assert ran.status == 1
        assert ran.err.startswith("Traceback (most recent call last):")
        assert ran.err.endswith("tilewright: no variant of it works: 3 compile_error\n")

    def test_a_traceback_has_nothing_that_a_terminal_obeys(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **options: object) -> None:
            raise TuningError("\x1b[2J[/x]")

        monkeypatch.setattr(cli, "tune", fail)
        for debug in ((), ("--debug",)):
            ran = run("tune", *SMALL, *debug)
            assert ran.err.endswith("tilewright: \\x1b[2J[/x]\n")
            assert "\x1b" not in ran.err

    def test_an_unexpected_exception_is_one_line_too(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tilewright.cli.tune.choose", None)
        ran = run("tune", *SMALL)
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "unexpected TypeError: " in ran.err
        assert "--debug shows where" in ran.err

    def test_results_before_the_failure_are_in_the_json(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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

    def test_a_shape_that_cannot_be_tuned_stops_no_other(self, run: Run, tmp_path: Path) -> None:
        """The space has nothing for rows of 63 elements, and one shape is too large for the processor."""
        (tmp_path / "only.toml").write_text(ALIGNED)
        shapes = (each for shape in ("63", "16x64x256", "8192", "8x64x256") for each in ("--shape", shape))
        ran = run("tune", *shapes, "--trials", "1", "--device", "host", "--spaces", str(tmp_path))
        assert (ran.status, ran.err.count("\n")) == (1, 2)
        assert "no config serves 63x63x63" in ran.err
        assert "8192x8192x8192 float nn takes at least" in ran.err
        assert "2 of 4 shapes" in ran.out

    def test_a_fault_of_all_shapes_is_reported_once(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = ("--shape", "5", "--shape", "6", "--device", "host")
        ran = run("tune", *shapes, "--sampler", "guess")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        monkeypatch.setenv("PATH", "/nowhere")
        ran = run("tune", *shapes)
        assert (ran.status, ran.err.count("\n")) == (2, 1)

    def test_a_damaged_record_is_one_line_of_warning(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "records").mkdir()
        (tmp_path / "records" / f"{'0' * 64}.json").write_text("{")
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # pytest turns warnings into errors
            ran = run("show", "--store", str(tmp_path))
        assert ran.status == 0
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("tilewright: warning: ")
        assert "set aside" in ran.err
