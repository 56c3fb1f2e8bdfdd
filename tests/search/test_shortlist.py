"""The shortlist of a problem: its order, its sources, and its entries for devices that nobody measured."""

from dataclasses import replace

import pytest
from search_spaces import H200, on
from stored import make
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.mechanisms.split import filling_parts, filling_splits
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Record
from tilewright.tuner.choose.choice import Choice, Source
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import look_up, shortlist, varied
from tilewright.tuner.search.neighbours import neighbours

pytestmark = pytest.mark.fast


def of_sms(count: int) -> DeviceInfo:
    """A device of the Hopper generation that nobody measured."""
    return replace(H200, name=f"NVIDIA of {count}", sm_count=count)


def test_records_of_the_product_come_first_then_the_look_up_then_expected_times() -> None:
    problem, own = Problem.parse("516"), parse("simt:64x64x8")
    records = (
        make(50.0, problem, own, H200.key),
        make(1.0, Problem.parse("520"), parse("simt:128x64x16"), H200.key),
    )
    result = shortlist(problem, H200, records, 30)
    assert len(result) == len({choice.config for choice in result}) == 30
    assert (result[0].config, result[0].source, result[0].expected_us) == (own, Source.RECORD, 50.0)
    first, *others = shortlist(problem, H200, records[1:], 30)
    looked_up = look_up(problem, H200, records[1:])
    assert looked_up is not None
    assert (first.config, first.source) == (looked_up.config, Source.NEAR) == (parse("simt:128x64x16"), Source.NEAR)
    times = [choice.expected_us or 0.0 for choice in others]
    assert times == sorted(times)
    assert times[0] > 0
    assert all(serves(choice.config, problem, H200) for choice in (*result, *others))
    assert {choice.source for choice in others} == {Source.LEARNED}
    assert {choice.regret for choice in others} == {Forecast(problem, H200).choices(1)[0].regret}


def test_the_record_of_a_finer_grade_is_in_the_shortlist_of_a_coarser_one() -> None:
    grades = {grade: Problem.parse("512", accuracy=grade) for grade in Grade}
    simt, mma = parse("simt:64x64x16"), parse("mma:64x64x32,warp=32")
    records: list[Record] = [
        make(8.0, grades[Grade.IEEE], simt, H200.key),
        make(6.0, grades[Grade.NORMWISE], mma, H200.key),
        make(1.0, Problem.parse("513"), parse("tiled:16"), H200.key),
        make(1.0, grades[Grade.IEEE], parse("tiled:8"), "another device"),
    ]

    def exact(problem: Problem) -> list[Choice]:
        return [each for each in shortlist(problem, H200, records, 20) if each.source is Source.RECORD]

    def stored(problem: Problem) -> list[object]:
        return [choice.config for choice in exact(problem)]

    assert stored(grades[Grade.NORMWISE]) == [mma, simt]
    assert stored(grades[Grade.ELEMENTWISE]) == [simt]
    assert stored(grades[Grade.IEEE]) == [simt]
    assert stored(Problem.parse("512", "double")) == []
    # A config has the place and time of its first record: that of its own grade, not that of a finer one.
    records[:0] = [make(5.0, grades[Grade.NORMWISE], simt, H200.key)]
    first, second = exact(grades[Grade.NORMWISE])
    assert (first.config, first.expected_us, second.config) == (simt, 5.0, mma)


def test_a_device_that_nobody_measured_is_ranked_without_a_regret() -> None:
    for info, source in ((KNOWN["nvidia-h100-80gb-hbm3"], Source.LEARNED), (of_sms(108), Source.TRANSFERRED)):
        result = Forecast(Problem.parse("700x900x800"), info).choices(20)
        assert {choice.source for choice in result} == {source}
        assert all((choice.regret is None) == (source is Source.TRANSFERRED) for choice in result)


@pytest.mark.parametrize("sms", [84, 108, 132, 148, 170])
def test_every_entry_serves_and_splits_fill_the_device(sms: int) -> None:
    info, filled = of_sms(sms), 0
    for shape in ("64x64x65536", "96x128x30000", "1000x500x250", "3x700x9000", "2048x2048x64"):
        for dtype in ("float", "double"):
            problem = Problem.parse(shape, dtype)
            result = shortlist(problem, info, (), 100)
            assert len(result) == 100
            assert all(serves(choice.config, problem, info) for choice in result)
            parts = {values["parts"] for c in result for values in filling_splits(c.config, problem, sms)}
            filled += any(choice.config.split_ctas in parts for choice in result)
    assert filled >= 2


@pytest.mark.parametrize("sms", [84, 108, 148, 170])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("shape", ["64x64x65536", "100x100x100000"])
def test_a_long_k_is_split_so_that_ctas_fill_a_device_that_nobody_measured(shape: str, dtype: str, sms: int) -> None:
    """The first configs have numbers of parts that no space lists, and none leaves a quarter of the SMs idle."""
    problem = Problem.parse(shape, dtype)
    first = [choice.config for choice in shortlist(problem, of_sms(sms), (), 10)]
    assert {config.split_ctas for config in first} & set(filling_parts(sms))
    assert all(config.ctas_along_x(problem, sms) > 0.75 * sms for config in first)


def test_winners_of_far_shapes_are_ranked_among_others() -> None:
    """The nearest four records are ranked; records of the device come before nearer ones of another device."""
    problem, tiles = Problem.parse("700x900x800"), ("64x64", "64x128", "128x64", "128x128", "64x192")
    listed = {entry.config for entry in shortlist(problem, H200, (), 1000)}
    configs = [parse(f"simt:{tile}x16,stages=6,fragments=single") for tile in tiles]
    assert not listed & set(configs)
    assert all(serves(config, problem, H200) for config in configs)
    shapes = ("20000", "10000", "5000", "900", "800")
    devices = (H200.key, H200.key, H200.key, H200.key, "another device")
    records = [make(1.0, Problem.parse(s), c, d) for s, c, d in zip(shapes, configs, devices)]
    result = [entry for entry in shortlist(problem, H200, records, 1000) if entry.source is Source.NEAR]
    assert {entry.config for entry in result} == set(configs[:4])
    assert {entry.record for entry in result} == set(records[:4])
    assert all(entry.expected_us and entry.regret is None for entry in result)


def test_filling_splits_fill_the_sms_once_or_twice() -> None:
    problem, config = Problem.parse("64x256x65536"), parse("simt:64x64x16")  # four tiles
    assert [values["parts"] for values in filling_splits(config, problem, 132)] == [33, 66]
    assert filling_splits(config, Problem.parse("4096"), 132) == []
    assert filling_splits(parse("tiled:16"), problem, 132) == []


def test_the_processor_has_the_defaults_of_families_and_no_winners_of_gpus() -> None:
    host, problem = on("host"), Problem.parse("300")
    records = (make(1.0, problem, parse("simt:128x64x16"), H200.key),)
    result = shortlist(problem, host, records, 50)
    assert {choice.source for choice in result} == {Source.MODEL}
    assert all(choice.config == type(choice.config)() for choice in result)
    times = [choice.expected_us or 0.0 for choice in result]
    assert times == sorted(times)
    assert look_up(problem, host, records) is None


def test_the_expected_time_of_a_prediction_is_the_predicted_time() -> None:
    problem = Problem.parse("700x900x800")
    result = Forecast(problem, H200).choices(5)
    again = Forecast(problem, H200).us([choice.config for choice in result])
    assert again[:1] == pytest.approx([result[0].expected_us], rel=1e-3)
    assert Forecast(Problem(0, 4, 4), H200).us([parse("tiled:16")]) == [None]


def test_varied_configs_begin_with_the_first_of_each_tile_in_turn_with_the_best() -> None:
    texts = ["simt:64x64x16", "simt:64x64x8", "simt:64x64x32", "tiled:16", "simt:32x64x16"]
    configs = [*map(parse, texts)]
    assert [str(each) for each in varied(configs)] == [
        "simt:64x64x16", "tiled:16", "simt:64x64x8", "simt:32x64x16", "simt:64x64x32"
    ]  # fmt: skip


def test_neighbours_stay_within_given_values() -> None:
    problem, config = Problem.parse("1000x520x3000"), parse("simt:64x128x16,stages=4")
    values = {"block_m": (64, 128), "block_n": (128,), "block_k": (16,), "stages": (3, 4)}
    result = neighbours(config, Forecast(problem, H200), values)
    assert {(each.get("block_m"), each.get("stages")) for each in result} <= {(64, 3), (128, 3), (128, 4)}
    assert {each.get("thread_m") for each in result} == {config.get("thread_m")}
