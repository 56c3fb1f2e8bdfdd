"""The scripts that measure untuned shapes and data sets, on small shapes and on the processor."""

import json
import lzma
import os
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tilewright
from tilewright.codegen.config import Config
from tilewright.codegen.families import families, parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.settings import CACHE_VARIABLE
from tilewright.runtime.store.record import Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.search.neighbours import neighbours

FOLDER = Path(tilewright.__file__).resolve().parent / "benchmarks"
SMALL = ["--device", "host", "--largest", "48", "--contest-seconds", "0.01", "--tune-seconds", "4"]


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return __import__(name)


def test_shapes_are_new_and_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    untuned = script("untuned", monkeypatch)
    problems, tuned = untuned.drawn_problems(), set(untuned._tuned_sizes())
    assert len(set(problems)) == 60
    assert problems == untuned.drawn_problems()
    kinds = [problem.kind for problem in problems]
    assert {kinds.count(kind) for kind in kinds} == {10}
    assert {kinds[:30].count(kind) for kind in kinds} == {5}
    assert (4096, 4096, 4096) in tuned
    for problem in problems:
        assert not any(untuned.near((problem.m, problem.n, problem.k), other) for other in tuned)
    assert untuned.near((100, 2000, 33), (36, 110, 1900))
    assert not untuned.near((100, 2000, 33), (100, 2000, 39))


def _measured(packed: Path) -> set[tuple[str, str]]:
    """Shapes and transposes of a packed file."""
    rows = map(json.loads, lzma.decompress(packed.read_bytes()).decode().splitlines()[1:])
    return {(row["shape"], row["trans"]) for row in rows}


def test_every_problem_of_the_data_sets_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = script("dataset", monkeypatch)
    problems = dataset.problems()
    assert len(set(problems)) == len(problems)
    packed = dataset.read(FOLDER / "results/nvidia-h200/dataset/double.jsonl.xz")
    assert {next(packed).problem for _ in range(3)} <= set(problems)
    measured = _measured(FOLDER / "results/nvidia-h100-80gb-hbm3/dataset/double.jsonl.xz")
    drawn = {(each.shape, each.trans) for each in problems if each.dtype is DType.DOUBLE}
    assert measured <= drawn
    assert len(drawn - measured) == 29  # the time was up before these were measured


@pytest.mark.parametrize("dtype", DType)
def test_a_new_problem_has_the_named_number_of_trials(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = script("dataset", monkeypatch)
    problem, info = Problem.parse("700x30x800", dtype, "nt"), KNOWN["nvidia-h100-80gb-hbm3"]
    configs, expected = dataset.variants_of(dataset.Job(problem, info, trials=40)), dataset.choices(problem, info)
    assert len(configs) == len(set(configs)) == 40
    assert configs[: dataset.CHOICES] == expected[: dataset.CHOICES]
    for family in {config.family for config in expected}:
        of_family = [config for config in expected if config.family == family]
        assert set(of_family[: dataset.OF_FAMILY]) <= set(configs)
    assert not set(configs) <= set(expected)  # look-ups do not know all of them
    assert len(dataset.variants_of(dataset.Job(problem, info))) == dataset.TRIALS


def test_untuned_shapes_were_measured_by_the_ranker_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one device was measured with this ranker, since otherwise no measurement judges it."""
    ranker_digest = script("untuned", monkeypatch).ranker_digest
    store, today = Store(Path("no-such-folder").absolute()), []
    for path in (FOLDER / "results").glob("*/untuned.json"):
        document = json.loads(path.read_text())
        if document["ranker"] == ranker_digest():
            today.append(document["device"])
            for row in document["rows"]:
                problem = Problem.parse(f"{row['m']}x{row['n']}x{row['k']}", row["dtype"], row["trans"])
                assert str(store.lookup(KNOWN[document["device"]], problem, look_up).config) == row["predicted"]
            assert len(document["rows"]) == 60
            assert sum("tuned_us" in row for row in document["rows"]) == 30
    assert today


def test_the_choice_of_a_fit_is_measured_beside_the_best_and_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = script("dataset", monkeypatch)
    built: list[str] = []
    guess = parse("simt:64x32x16")
    monkeypatch.setattr(dataset, "searched", lambda *arguments: {guess: 1.0})
    monkeypatch.setattr(dataset, "compiler_for", lambda info: None)
    monkeypatch.setattr(dataset, "compile_cached", lambda compiler, source: built.append(source.name))
    problem, measured = Problem.parse("100x60x70", "float", "nt"), tuple(map(parse, ("simt:64x64x16", "simt:32x32x16")))
    choices, info = (parse("simt:16x32x16,thread=2x4"), measured[1]), KNOWN["nvidia-h200"]
    file = tmp_path / "chosen.jsonl"
    file.write_text(dataset_line(problem, choices, monkeypatch))
    assert dataset.read_chosen(file) == {problem: choices}
    for chosen in (choices, None):  # without the file, a look-up chooses
        job_problem, configs = dataset.compiled(dataset.Job(problem, info, measured, choices=chosen))
        assert job_problem == problem
        assert configs[0] == measured[0]
        assert (choices[0] in configs) is (chosen is not None)
        assert measured[1] not in configs
        assert guess in configs
        forecast = Forecast(problem, info)
        expected = forecast.ordered(neighbours(measured[0], forecast))
        likely = [config for config in expected if config not in measured][: dataset.BESIDE]
        assert set(likely) <= set(configs)
        assert len(set(expected) & set(configs)) >= dataset.BESIDE + dataset.BESIDE_AT_RANDOM
        assert len(configs) == len(set(configs)) == len(set(built)) == len(built)
        built.clear()
    # The fastest configs of another device are tried again, and some of the others.
    far = [parse(f"simt:{m}x{n}x8") for m in (16, 32, 48, 64, 80, 96, 128) for n in (16, 32, 64, 128)]
    configs = dataset.variants_of(dataset.Job(problem, info, far, elsewhere=True, choices=choices))
    assert configs[: dataset.FASTEST] == far[: dataset.FASTEST]
    assert {*choices, guess} < set(configs)
    assert len(set(far) & set(configs)) == dataset.FASTEST + dataset.FAR_ELSEWHERE
    for elsewhere in (False, True):  # `trials` takes the first of them
        job = dataset.Job(problem, info, far, elsewhere, choices)
        assert dataset.variants_of(replace(job, trials=5)) == dataset.variants_of(job)[:5]


def test_a_data_set_is_of_one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trials, outcomes = script("trials", monkeypatch), {parse("tiled:16"): 50.0}
    other, problem = "nvidia-h100-80gb-hbm3", Problem.parse("64", "float")
    file, packed = tmp_path / "trials.jsonl", tmp_path / "packed"
    file.write_text(trials.line_of(trials.Trials(problem, outcomes, 20.0, other)))
    trials.pack([file], packed)
    (packed_trials,) = trials.read(packed)
    assert (packed_trials.device_key, packed_trials.outcomes) == (other, outcomes)
    with file.open("a") as lines:
        lines.write(trials.line_of(trials.Trials(problem, outcomes, 20.0, "nvidia-h200")))
    with pytest.raises(ValueError, match="was measured on nvidia-h200: pack each device into its own folder"):
        trials.pack([file], packed)


def dataset_line(problem: Problem, configs: tuple[Config, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    line = script("trials", monkeypatch).chosen_line(problem, configs)
    assert isinstance(line, str)
    return line


def test_packed_times_have_five_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trials = script("trials", monkeypatch)
    configs = [parse(text) for text in ("simt:64x64x16", "tiled:16", "naive")]
    outcomes = dict(zip(configs, (12.3456789, Status.COMPILE_ERROR, 123456.789)))
    file = tmp_path / "trials.jsonl"
    file.write_text(trials.line_of(trials.Trials(Problem.parse("64", "float"), outcomes, 20.0, "nvidia-h200")))
    trials.pack([file], tmp_path / "packed")
    (packed,) = trials.read(tmp_path / "packed")
    assert packed.outcomes == dict(zip(configs, (12.346, Status.COMPILE_ERROR, 123460.0)))
    assert packed.times == {config: us for config, us in packed.outcomes.items() if config != configs[1]}
    assert packed.fastest == (configs[0], configs[2], configs[1])


def test_a_problem_of_the_data_set_is_exported_as_recordings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials, data = script("trials", monkeypatch), FOLDER / "results/nvidia-h200/dataset/float-normwise.jsonl.xz"
    measured = next(trials.read(data))
    shape, trans = measured.problem.shape, measured.problem.trans
    other = next(each for each in ("nn", "tt") if (shape, each) not in _measured(data))
    command = ["trials.py", "export", str(data), "-o", str(tmp_path), "--shape", shape, "--trans"]
    monkeypatch.setattr("sys.argv", [*command, other])
    with pytest.raises(SystemExit):
        trials.main()
    assert f"{data} has no {shape} {other}: name a shape and the transposes" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*command, trans])
    trials.main()
    path = Path(capsys.readouterr().out.strip())
    assert {each.name for each in tmp_path.iterdir()} == {path.name, path.name.replace(".json", ".t4.json")}
    recording = read_cache_file(path)
    assert recording.device_name == KNOWN["nvidia-h200"].name
    exported = trials.trials_of(recording, measured.vendor_us, "nvidia-h200")
    assert (exported.problem, exported.outcomes) == (measured.problem, pytest.approx(measured.outcomes))


@pytest.mark.slow
def test_problems_of_the_data_set_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = script("dataset", monkeypatch)
    tune = dataset.tune
    on_host = {"device": "host", "seconds": 8.0}
    monkeypatch.setattr(dataset, "tune", lambda problem, **options: tune(problem, **{**options, **on_host}))
    file, problems = tmp_path / "searched.jsonl", [dataset.Problem.parse(shape) for shape in ("40x30x20", "8x9x50")]
    monkeypatch.setattr(dataset, "problems", lambda: problems)
    dataset.search(file, 3, 60.0, slice(None))
    narrow, wide = dataset.read(file)
    assert [narrow.problem, wide.problem] == problems[::-1]
    assert all(len(each.outcomes) == 3 and each.outcomes[each.fastest[0]] > 0 for each in (narrow, wide))
    text = file.read_text()
    dataset.search(file, 3, 60.0, slice(None))  # nothing remains to do
    assert file.read_text() == text
    dataset.pack([file], tmp_path / "packed")
    packed = {each.problem: each for each in dataset.read(tmp_path / "packed")}
    assert packed[narrow.problem].fastest == narrow.fastest
    assert packed[narrow.problem].vendor_us == pytest.approx(narrow.vendor_us, rel=1e-4)
    assert narrow.vendor_us > 0


@pytest.mark.slow
def test_parts_fill_rows_and_a_file_is_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    untuned, file = script("untuned", monkeypatch), tmp_path / "untuned.json"
    cache = os.environ.get(CACHE_VARIABLE)

    def measure(part: str, *more: str) -> list[dict[str, Any]]:
        untuned.main(["--part", part, "--output", str(file), "--count", "2", "--tuned", "1", *SMALL, *more])
        rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
        return rows

    assert measure("predict", "--seconds", "0") == []  # no time for any
    assert "the time is up" in capsys.readouterr().err
    one, two = measure("predict")
    assert one["predicted_us"] > 0 < two["cublas_us"]
    assert (one["origin"], one["expected_us"], one["vendor_auto_us"]) == ("default", None, one["cublas_us"])
    assert [one[name] for name in ("m", "n", "k", "dtype", "trans")] == [
        *(getattr(untuned.drawn_problems(2, 48)[0], name) for name in "mnk"), "float", "nn",
    ]  # fmt: skip
    capsys.readouterr()
    assert measure("predict") == [one, two]  # nothing remains to do
    one, two = measure("first-use")
    assert 0 < one["first_use_s"] < 60
    info, problem = choose("host"), untuned.drawn_problems(2, 48)[0]
    used = parse(one["first_use"])
    assert serves(used, problem, info)
    assert used.family in families()
    assert one["first_use_us"] > 0
    one, two = measure("tune")
    assert one["tuned_us"] > 0 < one["tune_trials"]
    assert "tuned" not in two
    summary = json.loads(file.read_text())["summary"]
    ratio, spread = one["predicted_us"] / one["tuned_us"], summary["predicted over tuned"]
    assert spread.pop("shapes") == 1
    assert [*spread.values()] == pytest.approx([ratio] * 3)
    assert summary["cuBLAS over predicted, double"]["least"] == pytest.approx(two["cublas_us"] / two["predicted_us"])
    assert summary["first use, most seconds"] == max(one["first_use_s"], two["first_use_s"])
    assert os.environ.get(CACHE_VARIABLE) == cache
    monkeypatch.setattr(untuned, "ranker_digest", lambda: "another")
    with pytest.raises(SystemExit, match="of another ranker: begin a new file"):
        measure("predict")
    # The winner of tuning by that file is timed anew by another ranker.
    before, document = tmp_path / "before.json", json.loads(file.read_text())
    document["rows"][0]["tuned_us"] = 1e9
    before.write_text(json.dumps(document))
    file.unlink()
    retimed, _ = measure("predict", "--found", str(before))
    assert (retimed["tuned"], retimed["tune_trials"]) == (one["tuned"], one["tune_trials"])
    assert 0 < retimed["tuned_us"] < 1e9
    assert json.loads(file.read_text())["tuned_by"]["ranker"] == json.loads(before.read_text())["ranker"]
    before.write_text(json.dumps(json.loads(before.read_text()) | {"device": "another"}))
    with pytest.raises(SystemExit, match="of another device: what tuning found there says nothing here"):
        measure("predict", "--found", str(before))


@pytest.mark.slow
def test_a_part_that_fails_says_so_in_its_row_until_it_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    untuned, file = script("untuned", monkeypatch), tmp_path / "untuned.json"

    def measure(part: str) -> dict[str, Any]:
        untuned.main(["--part", part, "--output", str(file), "--count", "1", *SMALL])
        (row,) = json.loads(file.read_text())["rows"]
        assert isinstance(row, dict)
        return row

    with monkeypatch.context() as patch:
        patch.setattr(untuned, "first_use_row", lambda *arguments: 1 / 0)
        failed = {"first-use": "ZeroDivisionError: division by zero"}
        assert measure("first-use") == untuned._problem_fields(untuned.drawn_problems(1, 48)[0]) | {"failed": failed}
    row = measure("predict")
    assert row["predicted_us"] > 0
    assert row["failed"] == failed
    row = measure("first-use")
    assert row["first_use_us"] > 0
    assert "failed" not in row


def test_two_processes_fill_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    untuned, file = script("untuned", monkeypatch), tmp_path / "new" / "untuned.json"
    problems = untuned.drawn_problems(5, 48)
    arguments = {"ranker": "r", "seed": 1, "device": "d"}, problems, len
    halves = [untuned.Results(file, *arguments, untuned.share_of(share)) for share in ("1/2", "2/2")]
    assert [list(each.own_rows) for each in halves] == [problems[::2], problems[1::2]]
    for done, (results, problem) in enumerate(zip(halves * 2, problems), 1):
        results.own_rows[problem]["predicted_us"] = float(done)
        results.save()
        assert [row["predicted_us"] for row in json.loads(file.read_text())["rows"]] == list(range(1, done + 1))
    assert untuned.Results(file, *arguments).own_rows == untuned.Results(file, *arguments).rows == halves[1].rows


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2"])
def test_a_share_that_is_no_part_of_a_count_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentTypeError, match="write I/N"):
        script("dataset", monkeypatch).share_of(text)


def test_ratios_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    untuned = script("untuned", monkeypatch)
    spread = untuned.spread_of([1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    assert spread == {"shapes": 10, "geometric_mean": pytest.approx(8**0.1), "p90": 2.0, "worst": 4.0}
    rows = [
        {"dtype": "float", "predicted_us": us, "cublas_us": 4.0, "vendor_auto_us": min(us, 4.0)} for us in (2.0, 5.0)
    ]
    summary = untuned.summary_of(rows)
    assert summary["cuBLAS over predicted, float"] == {
        "shapes": 2, "geometric_mean": pytest.approx(1.6**0.5), "least": 0.8,
    }  # fmt: skip
    assert summary["cuBLAS over vendor auto, float"]["least"] == 1.0
    assert summary["predicted over tuned"] == {"shapes": 0}


@pytest.mark.slow
def test_tunings_are_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repeatability, file = script("repeatability", monkeypatch), tmp_path / "repeatability.json"
    sizes = ["--shapes", "1", "--times", "2", "--output", str(file), "--first", str(tmp_path / "none")]
    repeatability.main([*sizes, *SMALL])
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert len(row["winners"]) == len(row["us"]) == 2
    spread = 100 * (max(row["us"]) / min(row["us"]) - 1)
    assert row["spread_percent"] == pytest.approx(spread)
    assert document["summary"]["largest spread, %"] == pytest.approx(spread)
    repeatability.main([*sizes, *SMALL])
    assert json.loads(file.read_text())["rows"] == [row]  # nothing remains to do
    earlier = json.loads(file.read_text())
    earlier["rows"] = [{**{name: row[name] for name in ("m", "n", "k", "dtype", "trans")}, "tuned": row["winners"][0]}]
    (tmp_path / "first").write_text(json.dumps(earlier))
    head = {key: earlier[key] for key in ("device", "seed", "ranker", "effort", "versions")}
    arguments = head, repeatability.drawn_problems(1, 48), repeatability.summary_of
    results = repeatability.Results(tmp_path / "new", *arguments)
    repeatability.take_first_tunings(results, tmp_path / "first", head)
    assert [row["winners"] for row in results.rows.values()] == [[row["winners"][0]]]
    other = repeatability.Results(tmp_path / "new", *arguments)
    repeatability.take_first_tunings(other, tmp_path / "first", {**head, "ranker": "another"})
    assert not any("winners" in row for row in other.rows.values())
