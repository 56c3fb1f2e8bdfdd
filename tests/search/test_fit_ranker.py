"""Fitting the ranker to measured problems, with the trees that ship in place of new ones: CatBoost is not needed."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.search.nearest import fitted, predictions
from tilewright.tuner.search.ranker import plain, shipped

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KEPT = {"double": {"portfolio": {"kept": {"ways": "whole", "correction": 0.0}}}}
DEVICES = "nvidia-h200", "nvidia-h100-80gb-hbm3"
PROBLEMS = [Problem.parse(shape, "float", "nt") for shape in ("300x200x100", "1000x900x800", "64x7000x33", "5x400x900")]


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, in two folds, with 12 kernels and a file of its own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    catboost = ModuleType("catboost")
    catboost.CatBoost = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "catboost", catboost)
    monkeypatch.delitem(sys.modules, "fit_ranker", raising=False)
    found = __import__("fit_ranker")
    monkeypatch.delitem(sys.modules, "fit_ranker")
    ranker = tmp_path / "ranker.json"
    ranker.write_text(json.dumps(KEPT))
    monkeypatch.setattr(sys.modules["regret"], "HELD_OUT", tmp_path / "held-out.json.xz")
    found.write_held_out(KEPT)
    values = shipped()["float"]
    trees = {"ranking": values["ranking"], "level": values["level"]}
    changed: dict[str, Any] = {"RANKER": ranker, "FOLDS": 2, "PORTFOLIO": {DType.FLOAT: 12}, "RANDOM": 60}
    changed |= {"CORRECTED": 60, "fit": lambda tuned: trees}
    for name, value in changed.items():
        monkeypatch.setattr(found, name, value)
    return found


def measured(device: str) -> dict[Problem, dict[Config, float]]:
    """Of each problem what a look-up takes first for any of them, as it serves this one. The third of its own is the
    fastest on the first device, the fourth on the other; what is another's takes from 14 us on."""
    info, best = KNOWN[device], 2 + DEVICES.index(device)
    own = {problem: [each.config for each in predictions(problem, info, 6)] for problem in PROBLEMS}
    found = dict[Problem, dict[Config, float]]()
    for problem, configs in own.items():
        times = {config: 8.0 + 4 * (i != best) + i for i, config in enumerate(configs)}
        others = (
            fitted(config, problem, info.arch, (Edge.EXACT, Edge.BOUNDS)) for each in own.values() for config in each
        )
        for i, config in enumerate(filter(None, others)):
            times.setdefault(config, 14.0 + i / 10)
        found[problem] = times
    return found


@pytest.fixture
def files(fitting: ModuleType, tmp_path: Path) -> list[str]:
    """What was measured on each device."""
    trials, paths = __import__("trials"), []
    for device in DEVICES:
        path = tmp_path / f"{device}.jsonl"
        lines = (
            trials.line_of(trials.Trials(problem, {c: Entry("ok", us, (us,)) for c, us in times.items()}, 50.0, device))
            for problem, times in measured(device).items()
        )
        path.write_text("".join(lines))
        paths.append(str(path))
    return paths


def run(fitting: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["fit_ranker.py", *arguments])
    fitting.main()
    written: dict[str, Any] = json.loads(fitting.RANKER.read_text())
    return written


def test_a_fit_is_judged_on_every_device_and_written(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    chosen = tmp_path / "chosen.jsonl"
    written = run(fitting, monkeypatch, *files, "--choices", str(chosen), "--device", DEVICES[1])
    held_out = fitting.read_held_out()
    assert written["double"] == held_out["double"] == KEPT["double"]  # there are no data of it
    assert set(held_out["float"]["shapes"]) == {problem.shape for problem in PROBLEMS[::2]}
    assert set(held_out["float"]["portfolio"]) < set(written["float"]["portfolio"])
    found = written["float"]
    assert set(found) == {"portfolio", "regret", "ranking", "level"}
    assert list(found["regret"]) == list(DEVICES)
    assert all(1 <= regret <= 1.7 for regret in found["regret"].values())  # the slowest takes 17 us, the best 10
    out = capsys.readouterr().out
    count = sum(len(times) for device in DEVICES for times in measured(device).values())
    assert f"float: 8 problems, {count} trials" in out
    assert all(f"\n{device}\n" in out for device in DEVICES)
    best = {str(plain(min(times, key=times.__getitem__))) for device in DEVICES for times in measured(device).values()}
    assert set(found["portfolio"]) == best  # nothing else came within 5%
    ways = [kernel["ways"].split() for kernel in found["portfolio"].values()]
    assert {each[0] for each in ways} == {"whole"}
    assert max(map(len, ways)) > 1
    assert len({kernel["correction"] for kernel in found["portfolio"].values()}) > 1
    told = __import__("trials").read_chosen(chosen)
    assert set(told) == set(PROBLEMS)
    assert {len(configs) for configs in told.values()} == {fitting.LEFT_OUT}
    text = fitting.RANKER.read_text()
    assert '"regret": {\n   "nvidia-h200"' in text  # a line for each kernel and list, for who reviews it
    assert max(map(len, text.splitlines())) < 1000


def test_a_device_is_judged_by_the_data_of_the_others(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[set[tuple[str, str]]] = []
    portfolio_of = fitting.portfolio_of

    def noted(tuned: Any, trees: Any) -> Any:
        seen.append({(each.info.key, each.problem.shape) for each in tuned})
        return portfolio_of(tuned, trees)

    monkeypatch.setattr(fitting, "portfolio_of", noted)
    before = fitting.RANKER.read_text()
    run(fitting, monkeypatch, *files, "--unseen", DEVICES[1])
    assert fitting.RANKER.read_text() == before
    shapes = {problem.shape for problem in PROBLEMS}
    assert [{key for key, _ in train} for train in seen] == [{DEVICES[0]}] * 2
    assert {shape for _, shape in seen[0]} | {shape for _, shape in seen[1]} == shapes
    assert not {shape for _, shape in seen[0]} & {shape for _, shape in seen[1]}  # of two folds each is left out once
    out = capsys.readouterr().out
    assert f"\n{DEVICES[1]}\n" in out
    assert f"\n{DEVICES[0]}\n" not in out


def test_a_ranker_is_held_out_without_the_shapes_that_judge_it(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted_to: list[set[str]] = []
    complete = fitting.complete

    def noted(trees: Any, portfolio: Any, tuned: Any) -> Any:
        fitted_to.append({each.problem.shape for each in tuned})
        return complete(trees, portfolio, tuned)

    monkeypatch.setattr(fitting, "complete", noted)
    before = fitting.RANKER.read_text()
    run(fitting, monkeypatch, *files, "--judge", "--parts", "1", "--held-out")
    assert fitting.RANKER.read_text() == before
    held_out = fitting.read_held_out()["float"]
    assert fitted_to == [{problem.shape for problem in PROBLEMS} - set(held_out["shapes"])]
    assert held_out["shapes"]
    assert held_out["ranking"] == shipped()["float"]["ranking"]


@pytest.mark.parametrize(("given", "message"), [
    (["--unseen", "nvidia-h20"], "argument --unseen: invalid choice: 'nvidia-h20'"),
    (["--parts", "0"], "argument --parts: invalid choice: 0"),
    (["--unseen", DEVICES[0], "--held-out"], "argument --held-out: not allowed with argument --unseen"),
    (["--device", "nvidia-h20"], "argument --device: invalid choice: 'nvidia-h20'"),
    (["--unseen", "nvidia-h100-pcie"], "nothing was measured on nvidia-h100-pcie: give its data set as well"),
])  # fmt: skip
def test_what_cannot_be_judged(
    given: list[str], message: str, fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit):
        run(fitting, monkeypatch, *files, *given)
    assert message in capsys.readouterr().err


def test_a_kernel_that_is_known_for_few_problems_is_left_out(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [fitting.Tuned.of(each) for path in files for each in __import__("trials").read(Path(path))]
    trees, rare = fitting.fit(everything), plain(parse("simt:16x48x8,thread=2x4"))
    first, *others = everything
    assert all(rare not in each.plain for each in everything)
    plains = [*first.plain]
    plains[int(first.us.argmin())] = rare
    first = replace(first, plain=tuple(plains))
    for often, kept in ((2, False), (1, True)):
        monkeypatch.setattr(fitting, "OFTEN", often)
        assert (rare in fitting.portfolio_of([first, *others], trees)) == kept


def test_all_of_a_portfolio_brings_problems_nearer_to_their_best(fitting: ModuleType, files: list[str]) -> None:
    everything = [fitting.Tuned.of(each) for path in files for each in __import__("trials").read(Path(path))]
    trees = fitting.fit(everything)
    costs = []
    for size in (1, 3, 5):
        fitting.PORTFOLIO = {DType.FLOAT: size}
        kept = set(fitting.portfolio_of(everything, trees))
        assert len(kept) == size
        costs.append(
            np.mean([min([t for c, t in zip(e.plain, e.target) if c in kept], default=1.0) for e in everything])
        )
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]
