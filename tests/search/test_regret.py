"""Regrets of look-ups: the times of their choices over the times of the fastest measured configs."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.ranker import Ranker, shipped

ROOT = Path(__file__).parents[2]
H200 = KNOWN["nvidia-h200"]
TIMES_US = {"300x200x100": (12.0, 10.0, 11.0), "64x7000x33": (15.0, 10.0), "5x400x900": (None, 13.0, 10.0), "700": (9,)}
"""Measured times of the first choices for a problem; None for a choice that was not measured."""


@pytest.fixture
def regret(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return __import__("regret")


def run(regret: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["regret.py", *arguments])
    regret.main()


def test_figures_come_from_measured_choices_for_shapes_that_were_left_out(
    regret: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials, lines = __import__("trials"), list[str]()
    trees = (f"ranking_{part}" for part in ("asked", "above", "leaves"))
    of_kernels = ("kernels", "decompositions", "corrections", *trees)
    small = {name: array[:40] if name in of_kernels else array for name, array in shipped("float").items()}
    ranker = Ranker(small, DType.FLOAT)
    for shape, times in TIMES_US.items():
        problem = Problem.parse(shape, "float", "nt")
        pairs = zip(trials.looked_up(ranker, problem, H200), times)
        outcomes = {config: us for config, us in pairs if us is not None}
        lines.append(trials.line_of(trials.Trials(problem, outcomes, None, H200.key)))
    measured = tmp_path / "trials.jsonl"
    measured.write_text("".join(lines))
    trials.pack([measured], tmp_path / "nvidia-h200" / "dataset")
    for name, path in (("RESULTS", "."), ("HELD_OUT", "held-out"), ("RANKERS", "."), ("LIMITS", "regret.json")):
        monkeypatch.setattr(regret, name, tmp_path / path)
    regret.HELD_OUT.mkdir()
    np.savez_compressed(regret.HELD_OUT / "float", **small, shapes=np.array([*TIMES_US][:3]))
    np.savez_compressed(regret.RANKERS / "float", **small)

    run(regret, monkeypatch, "--accept")
    limits: dict[str, Any] = json.loads(regret.LIMITS.read_text())
    names = [f"{kind}, float on nvidia-h200: " for kind in ("held out", "shipped")]
    assert set(limits) == {name + choice for name in names for choice in (regret.FIRST, regret.FIRST_MEASURED)}
    mean, mean_of_all = (1.2 * 1.5) ** (1 / 2), (1.2 * 1.5 * 1.3) ** (1 / 3)
    for name in names:
        first, first_measured = limits[name + regret.FIRST], limits[name + regret.FIRST_MEASURED]
        assert first == {"problems": 2, "mean": round(mean, 3), "p90": 1.47, "worst": 1.5}
        assert first_measured == {"problems": 3, "mean": round(mean_of_all, 3), "p90": 1.46, "worst": 1.5}

    page = (regret.RANKERS / regret.PAGE).read_text()
    assert f"| {names[1]}{regret.FIRST} | 2 | {round(mean, 3)} | 1.47 | 1.5 |\n" in page
    assert "| `float` | 40 | simt " in page

    run(regret, monkeypatch)  # each figure is its own limit
    limits[names[0] + regret.FIRST]["p90"] = 1.469
    regret.LIMITS.write_text(json.dumps(limits))
    with pytest.raises(SystemExit) as ended:
        run(regret, monkeypatch)
    assert ended.value.code == f"beyond the limits:\n{names[0]}{regret.FIRST}: p90 1.47, the limit is 1.469"


@pytest.mark.parametrize(("figure", "better", "worse"), [
    ("problems", 11, 9), ("mean", 1.029, 1.031), ("p90", 1.09, 1.11), ("worst", 1.3, 1.41),
])  # fmt: skip
def test_every_figure_has_a_limit(figure: str, better: float, worse: float, regret: ModuleType) -> None:
    limit = {"problems": 10, "mean": 1.03, "p90": 1.1, "worst": 1.4}
    for value in (limit[figure], better):
        assert regret.beyond({"a": limit | {figure: value}}, {"a": limit}) == []
    line = f"a: {figure} {worse}, the limit is {limit[figure]}"
    assert regret.beyond({"a": limit | {figure: worse}}, {"a": limit}) == [line]


def test_figures_without_limits_and_limits_without_figures_are_refused(regret: ModuleType) -> None:
    figures, none = regret.figures_of([1.5]), regret.figures_of([])
    assert regret.beyond({"a": figures}, {}) == ["a has no limit"]
    for now in ({}, {"a": none}):
        assert regret.beyond(now, {"a": figures}) == ["a: problems 0, the limit is 1"]


def test_batches_are_judged_on_shapes_that_were_left_out_of_the_fit(
    regret: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials, device = __import__("trials"), KNOWN["nvidia-h100-80gb-hbm3"]
    problems = [Problem.parse(shape, dtype, batch=900) for shape in ("20x28x23", "300") for dtype in DType]
    lines = list[str]()
    for problem in problems:
        first, second, *_ = (each.config for each in Forecast(problem, device).choices(9))
        times = {first: 15.0 if problem.dtype is DType.FLOAT else 10.0, second: 10.0}
        lines.append(trials.line_of(trials.Trials(problem, times, None, device.key)))
    (tmp_path / "trials.jsonl").write_text("".join(lines))
    trials.pack([tmp_path / "trials.jsonl"], tmp_path / "any" / "dataset")
    monkeypatch.setattr(regret, "RESULTS", tmp_path)
    for left_out, count in ((["20x28x23", "300x300x300"], 2), (["20x28x23"], 1)):
        judged = regret.judge_batches({**shipped("batches"), "left_out": np.array(left_out)})
        for dtype, mean in (("float", 1.5), ("double", 1.0)):
            for choice in (regret.FIRST, regret.FIRST_MEASURED):
                figures = judged[f"left out, batches, {dtype} on {device.key}: {choice}"]
                assert (figures["problems"], figures["mean"]) == (count, mean)


def test_the_page_of_shipped_rankers_is_current(regret: ModuleType) -> None:
    page = regret.page(json.loads(regret.LIMITS.read_text()))
    assert (regret.RANKERS / regret.PAGE).read_text() == page, "python benchmarks/regret.py --accept writes it"


@pytest.mark.slow
def test_look_ups_are_as_good_as_they_were(regret: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run(regret, monkeypatch)
