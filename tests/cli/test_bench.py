"""`tilewright bench` end to end, on the host device."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run
from tilewright.codegen.errors import TuningError
from tilewright.tuner.settings import EFFORTS, Budget

QUICK = ("--device", "host", "--seconds", "0.01")
BAD = [
    (("--suite", "best"), "hard, public, small, got 'best'"),
    (("--shape", "3x3"), "'3x3'"),
    (("--shape", "0x3x3"), "nothing to time in 0x3x3"),
    (("--dtype", "half"), "'half'"),
    (("--seconds", "-1"), "-1"),
    (("--effort", "great"), "'great'"),
    (("--json", "/nowhere/x.json"), "/nowhere"),
    (("--markdown", "/nowhere/x.md"), "/nowhere"),
    (("--plot", "/nowhere/x.svg"), "/nowhere"),
    (("--plot", "x.gif"), ".svg, .png, .pdf, got 'x.gif'"),
    (("--device", "gpu"), "'gpu'"),
]


def test_a_table_json_and_markdown(run: Run, tmp_path: Path) -> None:
    json_file, markdown = tmp_path / "b.json", tmp_path / "b.md"
    shapes = ("--shape", "16", "--shape", "9x5x3", "--shape", "16")
    ran = run("bench", *QUICK, *shapes, "--json", str(json_file), "--markdown", str(markdown))
    assert ran.status == 0, ran.err
    assert ran.out.startswith("on the processor: these times say nothing about a GPU\n2 shapes on host")
    assert "1/2 16x16x16: " in ran.out
    assert "x NumPy" in ran.out
    assert "geometric mean" in ran.out
    assert "\x1b" not in ran.out
    document = json.loads(json_file.read_text())
    assert [(each["m"], each["n"], each["k"], each["status"]) for each in document["rows"]] == [
        (16, 16, 16, "ok"),
        (9, 5, 3, "ok"),
    ]
    assert document["rows"][0]["cublas_us"] is None
    assert document["rows"][0]["numpy_us"] > 0
    assert document["rows"][0]["floor_us"] is None
    assert document["geomean_ratio_cublas"] is None
    ratios = [each["ratio_numpy"] for each in document["rows"]]
    assert [ratio is None for ratio in ratios] == [each["aa_spread"] > 0.1 for each in document["rows"]]
    assert (document["geomean_ratio_numpy"] is None) == (ratios == [None, None])
    assert ("too noisy" in ran.out) == (None in ratios)
    assert "| 9x5x3 |" in markdown.read_text()


def test_a_suite_and_its_plot(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = run("bench", *QUICK, "--suite", "small", "--plot", str(tmp_path / "b.svg"))
    assert ran.status == 0, ran.err
    assert "65x33x17" in ran.out
    assert "<svg" in (tmp_path / "b.svg").read_text()


def test_the_tune_option_tunes_a_shape_without_a_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Budget(2, 10.0))
    ran = run("bench", *QUICK, "--shape", "6x5x4", "--tune", "--effort", "quick")
    assert ran.status == 0, ran.err
    assert "timing the best" in ran.out
    assert re.search(r"^6x5x4 .* exact$", ran.out, re.MULTILINE)
    again = run("bench", *QUICK, "--shape", "6x5x4", "--tune")
    assert "1 shape on host" in again.out
    assert "timing the best" not in again.out


def test_a_shape_that_cannot_be_tuned_is_timed_with_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise TuningError("no variant works")

    monkeypatch.setattr("tilewright.cli.bench.tune", fail)
    ran = run("bench", *QUICK, "--shape", "6x5x4", "--tune")
    assert (ran.status, ran.err) == (0, "note: not tuned: no variant works\n")
    assert re.search(r"^6x5x4 .* default$", ran.out, re.MULTILINE)


def test_ctrl_c_keeps_the_rows_that_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    shapes = [word for size in range(8, 400) for word in ("--shape", str(size))]
    command = [sys.executable, "-u", "-m", "tilewright", "bench", *QUICK, *shapes, "--json", str(file)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("2/"):
            break
    assert len(json.loads(file.read_text())["rows"]) >= 1
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "geometric mean" in out
    assert "ended by interrupt" in out
    document = json.loads(file.read_text())
    assert document["stopped"] == "interrupt"
    assert 2 <= len(document["rows"]) < 392


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: " ".join(value) if value else "")
def test_bad_input_is_answered_in_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    device = () if "--device" in arguments else ("--device", "host")
    ran = run("bench", *device, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err


def test_several_variants_have_a_row_each(run: Run, tmp_path: Path) -> None:
    configs = "--config", "naive:8x16", "--config", "tiled:8"
    shapes = "--shape", "32x16x8", "--shape", "24"
    ran = run("bench", "--device", "host", "--seconds", "0.1", *shapes, *configs, "--json", str(tmp_path / "b.json"))
    assert ran.status == 0, ran.err
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    names = [f"{row['m']}x{row['n']}x{row['k']} {row['config']}" for row in rows]
    assert names == [f"{shape} {config}" for shape in ("32x16x8", "24x24x24") for config in ("naive:8x16", "tiled:8")]
    for name in names:
        assert name in ran.out
