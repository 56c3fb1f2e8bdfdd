"""Kernels that run where nothing was tuned: records of near shapes, other devices and batches, and predictions."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quick import TYPICAL
from search_spaces import H200, on
from tilewright.codegen.arch import ARCHES, Arch
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN, typical
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.lookup import BatchClass
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.choice import carried
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.model import Table
from tilewright.tuner.choose.ranker import ranker_of
from tilewright.tuner.choose.shortlist import distance, look_up

pytestmark = pytest.mark.fast

TARGET = TYPICAL["sm_90a"]


def test_distance_counts_doublings() -> None:
    assert distance(Problem(64, 64, 64), Problem(128, 32, 64)) == 2
    assert distance(Problem(0, 1, 1), Problem(1, 1, 1)) == 1


def test_parameters_for_odd_rows_are_reset_where_rows_are_aligned() -> None:
    config = parse("simt:64x64x16,lanes_m=4,pack_a,pack_b,shared")
    odd, even = (carried(config, Problem.parse(shape), TARGET) for shape in ("2047", "1024"))
    assert odd is not None
    assert even is not None
    assert [(each.packs, each.get("shared")) for each in (odd, even)] == [((True, True), True), ((False, False), False)]


@pytest.mark.parametrize(
    ("text", "shape", "is_shared"),
    [
        ("simt:64x64x16,shared", "2000x1002x300", True),  # threads write vectors of 8 bytes
        ("simt:64x64x16,shared", "2000x1004x300", False),
        ("dmma:64x64x16,shared", "2000x1002x300", True),  # threads write whole vectors, but warps no whole sectors
        ("dmma:64x64x16,shared", "2000x1004x300", False),
    ],
)
def test_accumulators_pass_through_shared_memory_where_sectors_of_c_would_be_written_in_parts(
    text: str, shape: str, is_shared: bool
) -> None:
    problem = Problem.parse(shape, "double" if "dmma" in text else "float")
    fit = carried(parse(text), problem, H200)
    assert fit is not None
    assert fit.get("shared") is is_shared


def test_a_config_that_cannot_serve_is_not_carried() -> None:
    assert carried(parse("dmma:64x64x16"), Problem.parse("512"), TARGET) is None


def record(problem: Problem, config: Config, device: str = H200.key) -> Record:
    return Record(problem, device, config, Status.OK, "", Measurement((1.0,), 1.0, 0.0), Accuracy(0.5, 0, 0))


def test_the_nearest_shape_of_the_device_comes_first() -> None:
    near, far = parse("simt:64x64x16,lanes_m=4"), parse("simt:128x64x16")
    records = (record(Problem.parse("4096"), far), record(Problem.parse("512"), near))
    result = look_up(Problem.parse("516"), H200, records)
    assert result is not None
    assert (result.summary, result.record) == ("predicted (from 512x512x512)", records[1])
    assert result.config.cta_tile == near.cta_tile
    for shape in ("514", "512x512x640"):  # rows of another alignment, and too far
        result = look_up(Problem.parse(shape), H200, records)
        assert result is not None
        assert (result.summary, result.record) == ("predicted", None)


def test_a_near_shape_of_a_device_with_the_same_sms_comes_before_predictions() -> None:
    other, here = KNOWN["nvidia-h200"], KNOWN["nvidia-h100-80gb-hbm3"]
    of_other = record(Problem.parse("512"), parse("simt:64x64x16,lanes_m=4"), other.key)
    result = look_up(Problem.parse("512"), here, (of_other,))
    assert result is not None
    assert result.summary == "predicted (from 512x512x512 on nvidia-h200)"
    assert (result.record, result.sibling) == (None, of_other)
    assert result.config.cta_tile == (64, 64, 16)
    assert (result.expected_us, result.regret) == (None, None)  # times of the other device do not hold here
    served = result.served(Problem.parse("512"), here)
    assert (served.origin, served.recorded_us) == ("as tuned for 512x512x512 on nvidia-h200", 0.0)
    own = record(Problem.parse("514"), parse("simt:128x64x16"), here.key)
    result = look_up(Problem.parse("512"), here, (of_other, own))
    assert result is not None
    assert (result.record, result.sibling) == (None, of_other)  # 514 elements are not aligned as 512 are
    own = record(Problem.parse("528"), parse("simt:128x64x16"), here.key)
    result = look_up(Problem.parse("512"), here, (of_other, own))
    assert result is not None
    assert (result.record, result.sibling) == (own, None)
    for device, shape in ((here, "1024"), (KNOWN["nvidia-h100-pcie"], "512")):  # too far; fewer SMs
        result = look_up(Problem.parse(shape), device, (of_other,))
        assert result is not None
        assert (result.summary, result.sibling) == ("predicted", None)


def test_records_of_other_devices_are_no_choice_and_far_records_the_last() -> None:
    records = (record(Problem.parse("4096"), parse("simt:128x128x16,lanes_m=4"), "nvidia-x"),)
    result = look_up(Problem.parse("4096"), H200, records)
    assert result is not None
    assert (result.origin, result.record) == ("predicted", None)
    assert look_up(Problem.parse("4096"), on("host"), records) is None
    assert look_up(Problem(0, 4, 4), H200, records) is None
    far = look_up(Problem(0, 4, 4), H200, (record(Problem.parse("4096"), parse("tiled:16"), H200.key),))
    assert far is not None
    assert (far.origin, far.taken_from) == ("predicted", "4096x4096x4096")


@pytest.mark.parametrize("arch", [arch for arch in ARCHES.values() if not arch.is_host], ids=lambda arch: arch.name)
def test_every_architecture_gets_more_than_a_textbook_kernel(arch: Arch) -> None:
    """Configs tuned on one device are adapted to others with less shared memory, or without some mechanisms."""
    store, info, rng = Store(Path("nowhere").absolute()), typical(arch), random.Random(arch.name)
    for _ in range(30):
        sizes = [int(2 ** rng.uniform(0, 14)) for _ in range(3)]
        problem = Problem(*sizes, rng.choice(list(DType)), rng.random() < 0.5, rng.random() < 0.5)
        result = store.lookup(info, problem, look_up)
        assert result.origin != "default", problem
        assert serves(result.config, problem, info)


def test_double_without_tensor_cores_has_the_kernels_of_float() -> None:
    """The kernels of double are for tensor cores, but for narrow products."""
    t4, result = typical(ARCHES["sm_75"]), list[str]()
    for shape in ("4096", "1513x44x320", "4096x1x4096"):
        (predicted,) = Forecast(Problem.parse(shape, "double"), t4).choices(1)
        assert serves(predicted.config, Problem.parse(shape, "double"), t4)
        assert predicted.regret is None
        result.append(predicted.config.family)
    assert result == ["simt", "simt", "skinny"]


def test_nothing_is_predicted_where_no_config_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "valid", lambda table, problem: np.zeros(len(table.configs), np.bool_))
    assert Forecast(Problem.parse("4096"), H200).choices(3) == []
    assert Store(Path("nowhere").absolute()).lookup(H200, Problem.parse("4100x3x17"), look_up).origin == "predicted"


def test_predictions_replace_instructions_that_a_device_lacks() -> None:
    problem, a100, h200 = Problem.parse("512", "double"), KNOWN["nvidia-a100-sxm4-80gb"], KNOWN["nvidia-h200"]
    assert carried(parse("dmma:64x64x16"), problem, a100) is None
    assert {config.get("mma_k") for config in configs_of(a100, "dmma")} == {4}
    assert 8 in {config.get("mma_k") for config in configs_of(h200, "dmma")}


def configs_of(info: DeviceInfo, family: str) -> list[Config]:
    ranker = ranker_of(DType.DOUBLE)
    assert ranker is not None
    return [config for config in ranker.table(info).configs if config.family == family]


H100 = KNOWN["nvidia-h100-80gb-hbm3"]
SMALL = parse("small:4x4x4,block_threads=64")


@pytest.mark.parametrize(
    ("shape", "key", "least"),
    [
        ("16", "nvidia-h100-80gb-hbm3", 16_896),
        ("16", "tesla-t4", 5_120),
        ("3", "nvidia-h100-80gb-hbm3", 480_598),
        ("2048x2048x64", "nvidia-h100-80gb-hbm3", 2),
    ],
)
def test_a_batch_of_enough_elements_of_c_fills_a_device(shape: str, key: str, least: int) -> None:
    classes = [BatchClass.of(Problem.parse(shape, batch=batch), KNOWN[key]) for batch in (1, least, max(least - 1, 1))]
    assert classes == [BatchClass.ONE, BatchClass.FULL, BatchClass.FEW if least > 2 else BatchClass.ONE]


def test_a_record_of_a_batch_that_fills_the_device_serves_all_others_that_do() -> None:
    problem = Problem(16, 16, 16, batch=90_000)
    records = [record(replace(problem, batch=batch), SMALL, H100.key) for batch in (20_000, 100_000, 900_000)]
    for batch, nearest in ((90_000, 1), (17_000, 0), (2**31 - 1, 2)):
        result = look_up(replace(problem, batch=batch), H100, records)
        assert result is not None
        assert (result.record, result.config, result.of_class) == (records[nearest], SMALL, True)
    for few in (replace(problem, batch=1_000), replace(problem, batch=1), replace(problem, k=18)):
        result = look_up(few, H100, records)
        assert result is not None
        assert not result.of_class


def test_a_record_of_few_products_serves_a_fifth_more_or_fewer() -> None:
    tuned = Problem(16, 16, 16, batch=1_000)
    records = [record(tuned, SMALL, H100.key)]
    for batch, serves_it in ((1_150, True), (850, True), (1_250, False), (100, False)):
        result = look_up(replace(tuned, batch=batch), H100, records)
        assert result is not None
        assert (result.record is records[0], result.of_class) == (serves_it, False), batch


def test_batches_of_one_class_have_records_of_their_own(tmp_path: Path) -> None:
    problems = [Problem(16, 16, 16, batch=batch) for batch in (90_000, 100_000)]
    store = Store(tmp_path)
    for problem in problems:
        assert store.keep(record(problem, SMALL, H100.key))
    results = [store.lookup(H100, problem, look_up) for problem in problems]
    assert [(each.origin, each.record and each.record.problem) for each in results] == [
        ("exact", problem) for problem in problems
    ]
