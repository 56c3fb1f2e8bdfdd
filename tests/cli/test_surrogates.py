"""Half of a surrogate pair, which JSON may hold and UTF-8 may not, is shown as an escape."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tilewright
from commands import Run
from stored import DEVICE, PROBLEM, make
from tilewright.cli.commands import commands
from tilewright.cli.values import PathValue
from tilewright.runtime.store.codec import encode
from tilewright.runtime.store.store import Store
from tilewright.tuner.bench.stored import read_bench
from tilewright.tuner.measure.decide import Contender
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, write_cache_file
from tilewright.tuner.recording.points import FAMILY
from tilewright.tuner.search.space import Dimension

HALF = "\ud800"
SHAPE = ("--shape", PROBLEM.shape)


def marked(value: Any) -> Any:
    """A JSON value with half a pair behind each text, but for texts that have to be one of a few words."""
    if isinstance(value, dict):
        fixed = "dtype", "trans", "status", "accuracy", "arch", "used"
        return {key: each if key in fixed else marked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [marked(each) for each in value]
    return value + HALF if isinstance(value, str) else value


@pytest.mark.parametrize(
    "command",
    [
        ("show",), ("show", "--json"), ("show", "--csv"), ("show", *SHAPE), ("report", *SHAPE, "--device-key", DEVICE),
        ("emit", *SHAPE, "--device-key", DEVICE),
    ],
    ids=" ".join,
)  # fmt: skip
def test_in_a_record(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    versions = (("driver", HALF), ("generator", HALF), (HALF, HALF))
    assert Store().keep(replace(make(0.5), versions=versions, effort=HALF, gpu=HALF, digest=HALF))
    ran = run(*command)
    assert ran.status == 0, ran.err
    if command[0] == "report":
        assert "\\ud800" in Path("report.html").read_text()
    elif "--json" in command:
        assert [HALF, HALF] in json.loads(ran.out)[0]["versions"]


def test_in_a_recording(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    dimensions = (Dimension(FAMILY, ("tiled", HALF)), Dimension(f"tile_width{HALF}", (8, 16)))
    entries = {(0, 0): Entry("ok", 5.0, (5.0,)), (1, 1): Entry("crashed", reason=HALF)}
    write_cache_file(
        path, Recording(HALF, f"gemm {PROBLEM.kind}", (PROBLEM.m, PROBLEM.n, PROBLEM.k), dimensions, entries)
    )
    for command in (("tune", "--device", f"replay:{path}"), ("report", "--recording", str(path), "-o", f"{path}.html")):
        ran = run(*command)
        assert ran.status == 0, ran.err
    assert "tile_width\\ud800=8" in Path(f"{path}.html").read_text()


def test_in_a_bench(run: Run, tmp_path: Path) -> None:
    results = Path(tilewright.__file__).resolve().parent / "benchmarks" / "results"
    document = json.loads((results / "nvidia-h200" / "float32.json").read_text())
    document["rows"] = document["rows"][:2]
    document = {**marked(document), "versions": {HALF: HALF}, "missing": [HALF], "stopped": HALF}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document))
    assert read_bench(path).stopped == HALF
    ran = run("report", "--bench", str(path), "-o", str(tmp_path / "page.html"))
    assert ran.status == 0, ran.err
    assert "\\ud800" in (tmp_path / "page.html").read_text()


def test_in_results(run: Run, tmp_path: Path) -> None:
    """The results are as `tune --json` writes them."""
    best = replace(make(0.5), versions=((HALF, HALF),))
    assert best.measurement is not None
    assert best.accuracy is not None
    measured = best.measurement, best.accuracy, 1.0, (1.0, 1.0)
    contenders = Contender(best.config, *measured), Contender(None, *measured)
    result = {"best": encode(best), "contenders": encode(contenders)}
    (tmp_path / "x.json").write_text(json.dumps([result]))
    ran = run("report", "--results", str(tmp_path / "x.json"), "-o", str(tmp_path / "page.html"))
    assert ran.status == 0, ran.err
    assert "\\ud800" in (tmp_path / "page.html").read_text()


PATHS = [
    (name, max(option.opts, key=len))
    for name, command in commands.commands.items()
    for option in command.params
    if isinstance(option.type, PathValue)
]


@pytest.mark.parametrize(("name", "option"), PATHS, ids=" ".join)
def test_a_path_that_no_file_can_have(run: Run, name: str, option: str) -> None:
    ran = run(name, option, HALF)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"tilewright: {option} must be a path, got '\\ud800', which no file can be called\n"
