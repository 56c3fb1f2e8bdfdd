"""Fitting the ranker to measured problems. Shipped trees take the place of new ones, so that CatBoost is not needed."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.batches import BATCH_FEATURES, OF_BATCH
from tilewright.tuner.choose.choice import carried
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.ranker import Arrays, kernel_of, shipped

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TREES = [f"{name}_{part}" for name in ("ranking", "level") for part in ("asked", "above", "leaves")]
DEVICES = "nvidia-h200", "nvidia-h100-80gb-hbm3"
PROBLEMS = [Problem.parse(shape, "float", "nt") for shape in ("300x200x100", "1000x900x800", "64x7000x33", "5x400x900")]


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script with two folds, 12 kernels and folders of its own, which hold a file of double already."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    catboost = ModuleType("catboost")
    catboost.CatBoost = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "catboost", catboost)
    monkeypatch.delitem(sys.modules, "fit_ranker", raising=False)
    result = __import__("fit_ranker")
    monkeypatch.delitem(sys.modules, "fit_ranker")
    trees = {name: array for name, array in shipped("float").items() if name in (*TREES, "features")}
    changed: dict[str, Any] = {"FOLDS": 2, "PORTFOLIO": {DType.FLOAT: 12}, "RANDOM": 60}
    changed |= {"CORRECTED": 60, "fit": lambda tuned: trees}
    changed |= {"RANKERS": tmp_path / "rankers", "HELD_OUT": tmp_path / "held-out"}
    for folder in (changed["RANKERS"], changed["HELD_OUT"]):
        folder.mkdir()
        (folder / "double.npz").write_text("kept")
    for name, value in changed.items():
        monkeypatch.setattr(result, name, value)
    return result


def measured(device: str) -> dict[Problem, dict[Config, float]]:
    """Made-up times of the first choices of each problem, and of the choices of the others as they serve it. Its third
    choice is the fastest on the first device, its fourth on the other. Choices of others take 14 us or more."""
    info, best = KNOWN[device], 2 + DEVICES.index(device)
    own = {problem: [each.config for each in Forecast(problem, info).choices(6)] for problem in PROBLEMS}
    result = dict[Problem, dict[Config, float]]()
    for problem, configs in own.items():
        times = {config: 8.0 + 4 * (i != best) + i for i, config in enumerate(configs)}
        others = (carried(config, problem, info) for each in own.values() for config in each)
        for i, config in enumerate(filter(None, others)):
            times.setdefault(config, 14.0 + i / 10)
        result[problem] = times
    return result


@pytest.fixture
def files(fitting: ModuleType, tmp_path: Path) -> list[str]:
    """Files of measured times, one for each device."""
    trials, paths = __import__("trials"), []
    for device in DEVICES:
        path = tmp_path / f"{device}.jsonl"
        lines = (
            trials.line_of(trials.Trials(problem, times, 50.0, device)) for problem, times in measured(device).items()
        )
        path.write_text("".join(lines))
        paths.append(str(path))
    return paths


def run(fitting: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fit_ranker.py", *arguments])
    fitting.main()


def arrays_of(folder: Path) -> Arrays:
    """The ranker for float in a folder."""
    return dict(np.load(folder / "float.npz"))


def test_a_fit_is_judged_on_every_device_and_written(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    chosen = tmp_path / "chosen.jsonl"
    run(fitting, monkeypatch, *files, "--choices", str(chosen), "--device", DEVICES[1])
    result, held_out = arrays_of(fitting.RANKERS), arrays_of(fitting.HELD_OUT)
    for folder in (fitting.RANKERS, fitting.HELD_OUT):
        assert {path.name for path in folder.iterdir()} == {"float.npz", "double.npz"}
        assert (folder / "double.npz").read_text() == "kept"  # there are no data of double
    assert set(held_out["shapes"]) == {problem.shape for problem in PROBLEMS[::2]}
    assert set(held_out["kernels"]) < set(result["kernels"])
    assert result.keys() == shipped("float").keys()
    assert result["devices"].tolist() == list(DEVICES)
    assert all(1 <= regret <= 1.7 for regret in result["regrets"])  # the slowest takes 17 us, the best 10
    for device, line in zip(DEVICES, result["data"]):
        assert line.startswith(f"{device}: 4 problems, {sum(map(len, measured(device).values()))} variants, digest ")
    out = capsys.readouterr().out
    count = sum(len(times) for device in DEVICES for times in measured(device).values())
    assert f"float: 8 problems, {count} trials" in out
    assert all(f"\n{device}\n" in out for device in DEVICES)
    best = {
        str(kernel_of(min(times, key=times.__getitem__))) for device in DEVICES for times in measured(device).values()
    }
    assert set(result["kernels"]) == best  # no other kernel came within 5%
    ways = [each.split() for each in result["decompositions"].tolist()]
    assert {each[0] for each in ways} == {"whole"}
    assert max(map(len, ways)) > 1
    assert len(set(result["corrections"])) > 1
    outcomes = __import__("trials").read_chosen(chosen)
    assert set(outcomes) == set(PROBLEMS)
    assert {len(configs) for configs in outcomes.values()} == {fitting.LEFT_OUT}


def test_a_device_is_judged_by_the_data_of_the_others(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted: list[set[tuple[str, str]]] = []
    portfolio_of = fitting.portfolio_of

    def noted(tuned: Any, trees: Any) -> Any:
        fitted.append({(each.info.key, each.problem.shape) for each in tuned})
        return portfolio_of(tuned, trees)

    monkeypatch.setattr(fitting, "portfolio_of", noted)
    run(fitting, monkeypatch, *files, "--unseen", DEVICES[1])
    assert [path.name for folder in (fitting.RANKERS, fitting.HELD_OUT) for path in folder.iterdir()] == [
        "double.npz"
    ] * 2
    shapes = {problem.shape for problem in PROBLEMS}
    assert [{key for key, _ in train} for train in fitted] == [{DEVICES[0]}] * 2
    assert {shape for _, shape in fitted[0]} | {shape for _, shape in fitted[1]} == shapes
    assert not {shape for _, shape in fitted[0]} & {shape for _, shape in fitted[1]}  # each fold is left out once
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
    run(fitting, monkeypatch, *files, "--judge", "--parts", "1", "--held-out")
    assert [path.name for path in fitting.RANKERS.iterdir()] == ["double.npz"]
    held_out = arrays_of(fitting.HELD_OUT)
    assert fitted_to == [{problem.shape for problem in PROBLEMS} - set(held_out["shapes"])]
    assert held_out["shapes"].size
    assert all(np.array_equal(held_out[name], shipped("float")[name]) for name in TREES)


@pytest.mark.parametrize(("options", "message"), [
    (["--unseen", "nvidia-h20"], "argument --unseen: invalid choice: 'nvidia-h20'"),
    (["--parts", "0"], "argument --parts: invalid choice: 0"),
    (["--unseen", DEVICES[0], "--held-out"], "argument --held-out: not allowed with argument --unseen"),
    (["--device", "nvidia-h20"], "argument --device: invalid choice: 'nvidia-h20'"),
    (["--unseen", "nvidia-h100-pcie"], "nothing was measured on nvidia-h100-pcie: give its data set as well"),
])  # fmt: skip
def test_impossible_options_are_refused(
    options: list[str], message: str, fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit):
        run(fitting, monkeypatch, *files, *options)
    assert message in capsys.readouterr().err


def test_a_kernel_that_is_the_best_of_few_problems_is_left_out(
    fitting: ModuleType, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [fitting.Tuned.of(each) for path in files for each in __import__("trials").read(Path(path))]
    trees, rare = fitting.fit(everything), kernel_of(parse("simt:16x48x8,thread=2x4"))
    first, *others = everything
    assert all(rare not in each.kernels for each in everything)
    kernels = [*first.kernels]
    kernels[int(first.us.argmin())] = rare
    first = replace(first, kernels=tuple(kernels))
    for often, is_chosen in ((2, False), (1, True)):
        monkeypatch.setattr(fitting, "OFTEN", often)
        assert (rare in fitting.portfolio_of([first, *others], trees)) == is_chosen


def test_a_larger_portfolio_brings_problems_nearer_to_their_best(fitting: ModuleType, files: list[str]) -> None:
    everything = [fitting.Tuned.of(each) for path in files for each in __import__("trials").read(Path(path))]
    trees = fitting.fit(everything)
    costs = []
    for size in (1, 3, 5):
        fitting.PORTFOLIO = {DType.FLOAT: size}
        portfolio = set(fitting.portfolio_of(everything, trees))
        assert len(portfolio) == size
        costs.append(
            np.mean([min([t for c, t in zip(e.kernels, e.target) if c in portfolio], default=1.0) for e in everything])
        )
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


@pytest.fixture
def batches(fitting: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[Problem, dict[Config, float]]:
    """Times of the first choices for batches in both types: kernels for batches alone take 30 us or more, others 20. A
    kernel that look-ups do not know is the fastest for all float batches."""
    shapes = [f"{n}x{n + 8}x{n + 3}" for n in range(20, 32)]
    rare = parse("simt:16x48x8,thread=2x4")
    times_of = dict[Problem, dict[Config, float]]()
    for problem in (Problem.parse(shape, dtype, batch=700) for shape in shapes for dtype in DType):
        configs = [each.config for each in Forecast(problem, KNOWN[DEVICES[1]]).choices(60)]
        times = {config: (30.0 if config.batches_alone else 20.0) + i / 10 for i, config in enumerate(configs)}
        times_of[problem] = {rare: 18.0, **times} if problem.dtype is DType.FLOAT else times
    trees = {"asked": [[0]], "above": [[0.0]], "leaves": [[0, 0]]}
    arrays = {f"batches_{name}": np.array(values) for name, values in trees.items()}
    model = SimpleNamespace(predict=lambda rows: np.zeros(len(rows)))

    def fit(rows: np.ndarray, loss: str) -> SimpleNamespace:
        asked = {name for name, column in zip(BATCH_FEATURES, rows.T) if column.any()}
        assert (asked <= {*OF_BATCH}) == (loss == "RMSE")  # these trees correct all kernels of a batch alike
        return model

    monkeypatch.setattr(fitting, "_trees", lambda loss, *settings: SimpleNamespace(fit=lambda pool: fit(pool[0], loss)))
    monkeypatch.setattr(fitting, "_exported", lambda model, depth, name: arrays)
    fitting.catboost.Pool = lambda *data, **more: data
    return times_of


def test_batches_have_a_ranker_of_their_own(
    fitting: ModuleType, batches: dict[Problem, dict[Config, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    trials = __import__("trials")
    path, packed = tmp_path / "measured.jsonl", tmp_path / "packed"
    path.write_text("".join(trials.line_of(trials.Trials(p, times, 50.0, DEVICES[1])) for p, times in batches.items()))
    trials.pack([path], packed)
    assert [each.name for each in packed.iterdir()] == ["batches.jsonl.xz"]
    unpacked = list(trials.read(packed))
    assert {each.problem: dict(each.times) for each in unpacked} == batches
    chosen = tmp_path / "chosen.jsonl"
    run(fitting, monkeypatch, str(packed), "--judge", "--choices", str(chosen))
    out = capsys.readouterr().out
    assert all(f"{dtype.value} on {DEVICES[1]}: first measured choice" in out for dtype in DType)
    choices = trials.read_chosen(chosen)
    assert set(choices) == set(batches)
    assert {len(configs) for configs in choices.values()} == {fitting.LEFT_OUT}
    assert [path.name for path in fitting.RANKERS.iterdir()] == ["double.npz"]  # nothing was written
    monkeypatch.setattr(fitting, "accept", lambda: None)
    run(fitting, monkeypatch, str(packed), "--parts", "1")
    written = dict(np.load(fitting.RANKERS / "batches.npz"))
    train, others = fitting.batches_of(unpacked, 0)
    assert written["left_out"].tolist() == sorted({each.problem.shape for each in others})
    assert not {each.problem.shape for each in train} & set(written["left_out"])
    assert len(train) + len(others) == len(unpacked)
    assert written["batches_leaves"].shape == (2, 2)  # a tree for the order, and one for the times
    assert "simt:16x48x8,thread=2x4" in written["float kernels"]
    assert not set(written["float kernels"]) & set(shipped("float")["kernels"])
    assert all(1 <= regret < 2 for dtype in DType for regret in written[f"{dtype.value} regrets"])
