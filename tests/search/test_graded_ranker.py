"""Rankers of grades below `ieee`: features, data sets and choices, from made-up trials and as shipped."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tilewright
from tilewright.codegen.arch import ARCHES, Arch
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.runtime.device.known import KNOWN, typical
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose import forecast
from tilewright.tuner.choose.features import FEATURES
from tilewright.tuner.choose.features import FeatureTable as Table
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.ranker import Predicted, Ranker, decomposed, kernel_of, ranker_of
from tilewright.tuner.choose.shortlist import look_up

H200 = KNOWN["nvidia-h200"]
FOLDER = Path(tilewright.__file__).resolve().parent / "benchmarks"
GRADES = pytest.mark.parametrize("accuracy", [Grade.NORMWISE, Grade.ELEMENTWISE])
SPLIT = ("wgmma:128x128x64", "wgmma:64x128x64,scheme=bf16x6", "mma:64x64x32,warp=32,scheme=bf16x6")
WHOLE = "simt:64x128x16,lanes_m=4"


def ranker(asks: str, above: float, less: int) -> Ranker:
    """A ranker by which kernels take less time, by `less`, where their feature `asks` is above the border `above`."""
    kernels, trees = (*SPLIT, WHOLE), {"ranking": (0, above, 1000, 1000 - less), "level": (1, 0.0, 0, 0)}
    arrays = {"kernels": kernels, "decompositions": ["whole split_k=2"] * len(kernels)}
    arrays |= {"corrections": [0.0] * len(kernels), "devices": [H200.key], "regrets": [1.25], "features": [asks, "m"]}
    for name, (suggested, border, *leaves) in trees.items():
        arrays |= {f"{name}_asked": [[suggested]], f"{name}_above": [[border]], f"{name}_leaves": [leaves]}
    return Ranker({name: np.array(values) for name, values in arrays.items()}, DType.FLOAT, Grade.NORMWISE)


def test_the_ranker_of_a_grade_is_used_for_that_grade_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of_grade = ranker("terms", 2.5, 500)  # kernels of three terms are the fastest
    original = forecast.ranker_of
    rankers = {Grade.NORMWISE: of_grade, Grade.ELEMENTWISE: None}
    monkeypatch.setattr(forecast, "ranker_of", lambda dtype, grade, _: rankers.get(grade, original(dtype, grade)))
    problem = Problem.parse("300x5000x700", accuracy="normwise")
    first, second, *others = Forecast(problem, H200).choices(9)
    assert {each.config.terms for each in (first, second)} == {3}
    assert others[0].expected_us == pytest.approx(first.expected_us * np.exp(0.05))
    assert {each.config.terms for each in others} == {0, 2}
    assert {each.regret for each in (first, *others)} == {1.25}
    result = Store(tmp_path).lookup(H200, problem, look_up)
    assert (result.origin, result.config, result.expected_us) == ("predicted", first.config, first.expected_us)
    for finer in (Grade.ELEMENTWISE, Grade.IEEE):
        assert Forecast(replace(problem, accuracy=finer), H200).choices(1)[0].config.accuracy is Grade.IEEE
    ampere = of_grade.table(KNOWN["nvidia-a100-sxm4-80gb"]).configs
    assert {config.family for config in ampere} == {"mma", "simt"}  # this device has no wgmma


class Expecting:
    """A ranker of a few kernels, with the microseconds that it expects by text of the kernel."""

    def __init__(self, us: dict[str, float]) -> None:
        self._ranked = [Predicted(parse(text), each) for text, each in us.items()]

    def ranked(self, problem: Problem, info: DeviceInfo) -> list[Predicted]:
        return self._ranked

    def knows(self, info: DeviceInfo) -> bool:
        return True

    def regret_of(self, problem: Problem, info: DeviceInfo) -> float:
        return 1.25


def test_times_of_the_ranker_of_a_finer_accuracy_count_a_tenth_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rankers = {
        Grade.NORMWISE: Expecting({SPLIT[0]: 100.0, "wgmma:64x128x64": 104.0}),
        Grade.ELEMENTWISE: Expecting({SPLIT[1]: 94.0}),  # counts 103.4
        Grade.IEEE: Expecting({WHOLE: 90.0, "simt:64x64x16,lanes_m=4": 95.0}),  # count 99 and 104.5
    }
    monkeypatch.setattr(forecast, "ranker_of", lambda dtype, grade, _: rankers[grade])
    normwise, elementwise = (
        Forecast(Problem.parse("1024", accuracy=accuracy), H200).choices(9) for accuracy in ("normwise", "elementwise")
    )
    assert [each.expected_us for each in normwise] == [90.0, 100.0, 94.0, 104.0, 95.0]
    assert {each.regret for each in normwise} == {1.25}
    assert [each.expected_us for each in elementwise] == [94.0, 90.0, 95.0]


@GRADES
def test_a_grade_without_a_ranker_gets_the_choices_of_the_next_finer_grade(
    accuracy: Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = forecast.ranker_of
    finest = Grade.IEEE
    monkeypatch.setattr(forecast, "ranker_of", lambda dtype, grade, _: original(dtype) if grade is finest else None)
    ieee, coarse = Problem.parse("700x4000x900"), Problem.parse("700x4000x900", accuracy=accuracy)
    expected, result = (Forecast(problem, H200).choices(5) for problem in (ieee, coarse))
    pairs = [[(each.config, each.expected_us) for each in choices] for choices in (expected, result)]
    assert pairs[0] == pairs[1]
    assert {each.regret for each in result} == {None}  # other kernels may be much faster


@GRADES
def test_the_shipped_ranker_of_a_grade_takes_kernels_of_terms_where_these_pay(accuracy: Grade) -> None:
    ranker = ranker_of(DType.FLOAT, accuracy)
    assert ranker is not None
    assert {kernel_of(config) for config in ranker.portfolio} == set(ranker.portfolio)
    assert {config.accuracy for config in ranker.portfolio} >= {accuracy, Grade.IEEE}
    assert all(config.accuracy.keeps(accuracy) for config in ranker.portfolio)
    small = ("5x7x9", "64x64x65536", "1x5000x300")
    for shape, splits in (("4096", True), ("2000x1500x1800", True), *((shape, False) for shape in small)):
        problem = Problem.parse(shape, accuracy=accuracy)
        result = Forecast(problem, H200).choices(300)
        assert (result[0].config.terms > 0) is splits
        # Times of the ranker of a finer accuracy count a tenth more in the order.
        assert all(later.expected_us > earlier.expected_us / 1.101 for earlier, later in itertools.pairwise(result))
        assert len({each.config for each in result}) == len(result)
        assert {each.regret for each in result} == {ranker.regret[H200.key]}
        assert all(serves(each.config, problem, H200) for each in result)


@pytest.mark.parametrize("shape", ["60x4382x4939", "38x2750x4481", "64x64x65536", "1201x143x197"])
def test_a_coarser_accuracy_is_not_expected_to_take_longer(shape: str) -> None:
    """For the first two shapes, the ranker of the coarser accuracy expects shorter times than that of a finer one."""
    ieee, elementwise, normwise = (
        Forecast(Problem.parse(shape, accuracy=grade), H200).choices(1)[0].expected_us for grade in Grade
    )
    assert elementwise <= 1.1 * ieee
    assert normwise <= 1.1 * min(elementwise, ieee)


def test_a_near_record_of_a_finer_accuracy_gives_way_to_faster_and_less_accurate_kernels() -> None:
    ieee, split, other = parse(WHOLE), parse(SPLIT[0]), parse("wgmma:64x128x64")

    def looked_up(shape: str, *records: tuple[str, str, Config]) -> Config:
        problem = Problem.parse(shape, accuracy="normwise")
        records = [
            Record(
                Problem.parse(of, accuracy=grade), H200.key, config, Status.OK, "", Measurement((1.0,), 1.0, 0.0),
                Accuracy(0.5, 0, 0),
            )
            for of, grade, config in records
        ]  # fmt: skip
        result = look_up(problem, H200, tuple(records))
        assert result is not None
        return result.config

    assert looked_up("4096", ("4096", "ieee", ieee)).terms > 0
    small = looked_up("64x64x72", ("64", "ieee", ieee))
    assert (small.terms, small.cta_tile) == (0, ieee.cta_tile)
    assert looked_up("4096", ("4096", "ieee", ieee), ("4096x4096x3600", "normwise", other)).cta_tile == other.cta_tile
    assert looked_up("64x64x72", ("64", "normwise", split), ("64x64x72", "ieee", ieee)).cta_tile == split.cta_tile


@GRADES
@pytest.mark.parametrize("arch", [arch for arch in ARCHES.values() if not arch.is_host], ids=lambda arch: arch.name)
def test_every_architecture_has_a_choice(accuracy: Grade, arch: Arch) -> None:
    info = typical(arch)
    for shape in ("3000", "700x20x9", "1x5000x300"):
        problem = Problem.parse(shape, accuracy=accuracy)
        result = look_up(problem, info, ())
        assert result is not None
        assert serves(result.config, problem, info)


@GRADES
@pytest.mark.parametrize("shape", ["300x5000x70", "1x1x1", "12000x3x900", "7000x7000x7000"])
def test_features_of_terms_are_numbers(accuracy: Grade, shape: str) -> None:
    problem = Problem.parse(shape, accuracy=accuracy)
    table = Table([*map(parse, (*SPLIT, WHOLE))], DType.FLOAT, H200)
    features = table.features(problem)
    assert np.isfinite(features).all()
    result = {name: features[:, place] for place, name in enumerate(FEATURES)}
    assert result["terms"].tolist() == [2, 3, 3, 0]
    assert result["products"].tolist() == [3, 6, 6, 1]
    assert result["promote"][:3].tolist() == [64, 64, table.configs[2].get("promote")]
    assert result["promote"][3] == -1
    assert result["splitting"][0] < result["splitting"][1] == result["splitting"][2]
    assert result["splitting"][3] < result["splitting"][0] - 5
    assert result["arithmetic"][1] >= result["arithmetic"][0]


@GRADES
def test_kernels_of_terms_serve_only_grades_that_allow_them(accuracy: Grade) -> None:
    allowed = {text for text in (*SPLIT, WHOLE) if decomposed(parse(text), DType.FLOAT, H200, accuracy)}
    assert allowed == ({*SPLIT, WHOLE} if accuracy is Grade.NORMWISE else {*SPLIT[1:], WHOLE})
    assert not decomposed(parse(SPLIT[0]), DType.FLOAT, H200)


@pytest.mark.slow
@GRADES
def test_the_data_set_of_a_grade_has_all_families_that_it_allows(
    accuracy: Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    dataset = __import__("dataset")
    assert {problem.kind for problem in dataset.problems(accuracy)} >= {f"float {t} {accuracy}" for t in ("nn", "tt")}
    assert len(set(dataset.problems(accuracy))) > 180
    assert [p.shape for p in dataset.problems(accuracy)] == [p.shape for p in dataset.problems()[::2]]
    problem = Problem.parse("700x900x800", accuracy=accuracy)
    result = dataset.variants(problem, H200)
    assert len(result) == len(set(result)) == dataset.GRADED_TRIALS
    assert all(serves(config, problem, H200) for config in result)
    assert {config.accuracy for config in result} >= {accuracy, Grade.IEEE}
    assert len({config.family for config in result if config.terms}) > 1


def test_trials_of_a_grade_are_packed_beside_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    dataset = __import__("dataset")
    configs = [parse(text) for text in (*SPLIT, WHOLE)]
    rows = []
    for place, accuracy in enumerate(Grade):
        allowed = [c for c in configs if c.accuracy.keeps(accuracy)]
        problem = Problem.parse("64x32x160", "float", "nt", accuracy)
        outcomes = dict(zip(allowed, itertools.count(5.0 + place)))
        rows.append(dataset.line_of(dataset.Trials(problem, outcomes, 9.0, H200.key)))
    file = tmp_path / "trials.jsonl"
    file.write_text("".join(rows))
    dataset.pack([file], tmp_path / "packed")
    names = {path.name for path in (tmp_path / "packed").iterdir()}
    assert names == {"float.jsonl.xz", "float-elementwise.jsonl.xz", "float-normwise.jsonl.xz"}
    read = {each.problem.accuracy: each for each in dataset.read(tmp_path / "packed")}
    for place, accuracy in enumerate(Grade):
        each = read[accuracy]
        assert (each.problem.trans, each.vendor_us) == ("nt", 9.0)
        assert each.times == {
            c: 5.0 + place + i for i, c in enumerate(c for c in configs if c.accuracy.keeps(accuracy))
        }
