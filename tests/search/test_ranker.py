"""The ranker for shapes that nobody tuned: trees, features, portfolio, neighbours, look-ups and batches."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilewright
from counted import calls
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.families import parse
from tilewright.codegen.families.small import shared_elements
from tilewright.codegen.leaf import Mode
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.check.roofline import floor_us
from tilewright.runtime.device import launcher
from tilewright.runtime.device.known import KNOWN, typical
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose import model
from tilewright.tuner.choose.batches import BATCH_FEATURES, RANKED, BatchRanker, likely, limits, ways
from tilewright.tuner.choose.features import FEATURES
from tilewright.tuner.choose.features import FeatureTable as Table
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.ranker import (
    MODELLED,
    Ranker,
    Trees,
    decomposed,
    decomposition_of,
    kernel_of,
    ranker_of,
    shipped,
)
from tilewright.tuner.choose.shortlist import look_up
from tilewright.tuner.search.neighbours import neighbours

H200 = KNOWN["nvidia-h200"]
SHAPES = ((300, 5000, 70), (5, 7, 9), (12000, 3, 900), (7000, 7000, 7000), (64, 64, 300_000), (1, 1, 1), (1, 9000, 1))
DTYPES = pytest.mark.parametrize("dtype", DType)


def ranker(dtype: DType) -> Ranker:
    result = ranker_of(dtype)
    assert result is not None
    return result


def drawn(count: int, seed: int = 5) -> Iterator[Problem]:
    rng = random.Random(seed)
    for _ in range(count):
        sizes = (round(2 ** rng.uniform(0, 14)) for _ in range(3))
        yield Problem(*sizes, rng.choice(list(DType)), rng.random() < 0.5, rng.random() < 0.5)


def test_trees_follow_their_definition() -> None:
    rng = np.random.default_rng(1)
    questions = rng.integers(0, 4, (7, 3))
    borders, leaves = rng.normal(size=(7, 3)), rng.integers(-20_000, 20_000, (7, 8))
    trees, features = Trees(questions, borders, leaves, 0.25), rng.normal(size=(5, 4))
    for row, result in zip(features, trees(features)):
        expected = 0.0
        for asks, above, leaf in zip(questions, borders, leaves):
            expected += 0.25 * leaf[sum(2**bit for bit in range(3) if row[asks[bit]] > above[bit])]
        assert result == pytest.approx(expected)


def without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "module", lambda: None)


def test_trees_give_the_same_in_c_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    if launcher.module() is None:
        pytest.skip(f"no extension: {launcher.described()}")
    rng = np.random.default_rng(2)
    for count, depth, rows in ((1, 1, 1), (7, 3, 15), (40, 6, 16), (3, 8, 17), (130, 4, 500)):
        columns = rng.integers(-9, 9, (rng.integers(1, 129), 600)).astype(np.float32)  # many values are on a border
        columns[rng.random(columns.shape) < 0.01] = np.nan
        questions = rng.integers(0, len(columns), (count, depth))
        borders = rng.integers(-9, 9, questions.shape) + 0.1 * rng.integers(0, 2, questions.shape)
        trees = Trees(questions, borders, rng.integers(-20_000, 20_000, (count, 2**depth)), 1e-4)
        suggested = rng.integers(0, 600, rows)
        ours = trees.of(columns, suggested)
        with monkeypatch.context() as patch:
            without_c(patch)
            assert np.array_equal(trees.of(columns, suggested), ours)
            assert np.array_equal(trees(columns.T[suggested]), ours)


@DTYPES
def test_shipped_rankers_give_the_same_in_c_and_numpy(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [replace(each, dtype=dtype) for each in drawn(20)]
    ours = [list(ranker(dtype).ranked(problem, H200)) for problem in problems]
    without_c(monkeypatch)
    assert [list(ranker(dtype).ranked(problem, H200)) for problem in problems] == ours


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("simt:64x128x16", "whole"),
        ("naive:8x32", "whole"),
        ("dmma:64x64x16,split_k=4", "split_k=4"),
        ("simt:64x128x16,split_k=2,reduce=cluster", "split_k=2,cluster"),
        ("simt:64x128x16,stream_k=1", "stream_k=1"),
        ("dmma:64x64x16,persistent=2", "persistent=2"),
        ("skinny:4x4x4,resident_k=128,split_k=3", "split_k=3"),
    ],
)
def test_the_decomposition_of_a_config(text: str, way: str) -> None:
    assert decomposition_of(tilewright.codegen.families.parse(text)) == way


@DTYPES
def test_decompositions_that_never_pay_are_left_out_on_measured_devices(dtype: DType) -> None:
    result, device = ranker(dtype), KNOWN["nvidia-h100-pcie"]
    ways = dict(zip(result.portfolio, shipped(dtype.value)["decompositions"].tolist()))
    measured, other = result.table(H200).configs, result.table(device).configs
    assert {decomposition_of(config) for config in measured} > {"whole", "split_k=2"}
    assert all(decomposition_of(config) in ways[kernel_of(config)].split() for config in measured)
    assert all("whole" in each.split() for each in ways.values())
    assert device.key not in result.regret
    assert set(measured) < set(other)  # both devices are of one generation
    assert 0.3 * len(other) < len(measured) < 0.6 * len(other)


@DTYPES
def test_shipped_rankers_are_read_whole(dtype: DType) -> None:
    arrays, result = shipped(dtype.value), ranker(dtype)
    assert [str(config) for config in result.portfolio] == arrays["kernels"].tolist()
    assert [kernel_of(config) for config in result.portfolio] == list(result.portfolio)
    for trees, name in ((result.trees, "ranking"), (result.level, "level")):
        suggested, above, leaves = (arrays[f"{name}_{part}"] for part in ("asked", "above", "leaves"))
        assert np.array_equal(trees.leaves, leaves)
        assert suggested.shape == above.shape == (len(leaves), leaves.shape[1].bit_length() - 1)
    assert set(result.regret) >= {H200.key}
    assert all(1 < regret < 2 for regret in result.regret.values())


@DTYPES
def test_the_first_choice_is_that_of_all_trees(dtype: DType) -> None:
    """All trees are evaluated for the likeliest configs alone, which hardly ever changes the first choice."""
    result, table, differs = ranker(dtype), ranker(dtype).table(H200), 0
    for problem in (replace(each, dtype=dtype) for each in drawn(40)):
        rows, counted = table.likeliest(problem, MODELLED)
        ranked = list(result.ranked(problem, H200))
        assert {each.config for each in ranked} == {table.configs[row] for row in rows}
        assert np.all(np.diff([each.us for each in ranked]) >= 0)
        behind = {
            table.configs[row]: each for row, each in zip(rows, result.trees(table.features(problem, rows, counted)))
        }
        differs += behind[ranked[0].config] > min(behind.values()) + 1e-9  # either of equal configs may be the first
    assert differs <= 1


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_numbers_for_every_row(dtype: DType, shape: tuple[int, int, int]) -> None:
    table, problem = ranker(dtype).table(H200), Problem(*shape, dtype, trans_a=True)
    features = table.features(problem)
    assert features.shape == (len(table.configs), len(FEATURES))
    assert np.isfinite(features).all()
    assert table.valid(problem).any()
    rows = np.flatnonzero(table.valid(problem))
    assert (table.features(problem, rows) == features[rows]).all()


@DTYPES
def test_the_likeliest_configs_are_the_first_of_the_model(dtype: DType) -> None:
    table = ranker(dtype).table(H200)
    for problem in (replace(each, dtype=dtype) for each in drawn(10)):
        rows, counted = table.likeliest(problem, 100)
        us, sensible = table.modelled_us(problem), np.flatnonzero(table.valid(problem))
        assert np.array_equal(counted, table.physics(problem, rows))
        assert len(set(rows)) == min(100, len(sensible))
        assert set(rows) == set(sensible[us[sensible].argsort(kind="stable")[:100]])  # the first of equal configs
        assert set(rows) <= set(sensible)
        assert max(us[rows]) <= min(us[np.setdiff1d(sensible, rows)], default=np.inf)


def test_the_model_is_corrected_by_a_factor_for_each_kernel() -> None:
    configs = [tilewright.codegen.families.parse(f"simt:{tile}x16") for tile in ("64x64", "64x128", "128x64")]
    factors, problem = (1, 2, 1 / 8), Problem(1000, 1000, 1000, DType.FLOAT)
    plainly, table = Table(configs, DType.FLOAT, H200), Table(configs, DType.FLOAT, H200, [*map(math.log, factors)])
    assert table.modelled_us(problem) == pytest.approx(plainly.modelled_us(problem) * factors)
    assert table.modelled_us(problem, [2, 1]) == pytest.approx(table.modelled_us(problem)[[2, 1]])
    assert np.array_equal(table.features(problem), plainly.features(problem))  # features are not corrected
    (row,), _ = table.likeliest(problem, 1)
    assert row == 2


def test_a_persistent_cta_waits_half_as_long_before_each_further_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [tilewright.codegen.families.parse(f"dmma:64x64x16{mode}") for mode in ("", ",persistent=2")]
    problem = Problem(64 * 132 * 8, 64, 16, DType.DOUBLE)

    def modelled() -> Any:
        return Table(configs, DType.DOUBLE, H200).modelled_us(problem)

    result = modelled()
    monkeypatch.setattr(model, "FILLED_AGAIN", 0.0)
    never = modelled()
    monkeypatch.setattr(model, "FILLED_AGAIN", 1.0)
    as_long = modelled()
    assert never[0] == result[0] == as_long[0]
    assert result[1] == pytest.approx((never[1] + as_long[1]) / 2)
    assert as_long[1] > 1.05 * never[1]


@pytest.mark.parametrize("info", [H200, KNOWN["nvidia-geforce-rtx-4090"]], ids=lambda info: info.key)
@DTYPES
def test_configs_of_a_table_have_the_features_and_times_of_each_alone(dtype: DType, info: DeviceInfo) -> None:
    """A table computes the features that configs of a kernel share only once."""
    problem = Problem(1000, 520, 3000, dtype)
    table = Table(ranker(dtype).table(info).configs, dtype, info)
    features, us = table.features(problem), table.modelled_us(problem)
    for row in range(0, len(table.configs), 7):
        alone = Table([table.configs[row]], dtype, info)
        assert np.array_equal(alone.features(problem)[0], features[row]), table.configs[row]
        assert alone.modelled_us(problem)[0] == us[row], table.configs[row]


def test_features_of_a_config() -> None:
    problem, parse = Problem.parse("1000x520x300", "float", "nt"), tilewright.codegen.families.parse
    config = parse("simt:64x128x16,split_k=4")
    (row,) = Table((config,), DType.FLOAT, H200).features(problem)
    result = dict(zip(FEATURES, row))
    assert [result[name] for name in ("tile_m", "tile_n", "tile_k", "parts", "mode")] == [64, 128, 16, 4, 1]
    assert result["tiles"] == pytest.approx(np.log2(16 * 5))
    assert result["even"] == pytest.approx(16 * 5 * 4 / H200.sm_count / 3)
    assert result["used_mn"] == pytest.approx(1000 * 520 / (1024 * 640))
    assert (result["trans_a"], result["trans_b"], result["row_c"]) == (0, 1, 32)
    assert (result["copied_a"], result["copied_b"]) == (4, 4)  # both run along k, and cp.async transposes them
    assert (result["shared"], result["stages"], result["thread_m"], result["warp_m"]) == (0, 3, 8, -1)
    assert result["pieces"] == 1


@pytest.mark.parametrize(
    ("text", "n", "pieces"),
    [
        ("simt:64x128x16", 521, 4.5),
        ("simt:64x128x16,lanes_m=2", 522, 2.125),
        ("simt:64x128x16,lanes_m=4", 524, 1.25),
        ("simt:64x128x16", 528, 1),
        ("simt:64x128x16,shared", 521, 1),
        ("skinny:short=n,1x2x8,lanes_k=32,warps=2,resident_k=512", 521, 1),
    ],
)
def test_number_of_writes_of_a_sector_of_c(text: str, n: int, pieces: float) -> None:
    problem, config = Problem(1000, n, 300, DType.FLOAT), tilewright.codegen.families.parse(text)
    (row,) = Table((config,), DType.FLOAT, H200).features(problem)
    result = dict(zip(FEATURES, row))
    assert result["pieces"] == pytest.approx(pieces)
    floor = floor_us(H200, problem) or 0.0
    assert result["written"] == pytest.approx(
        np.log2(pieces * 1000 * n * 4 / H200.bandwidth_gbs / 1e3 / floor), abs=1e-4
    )


def test_k_stays_innermost_only_where_it_is_innermost_in_memory() -> None:
    parse = tilewright.codegen.families.parse
    table = Table([parse(text) for text in ("simt:64x64x16,k_inner_a", "simt:64x64x16,k_inner_b")], DType.FLOAT, H200)
    for trans, sensible in (("nn", (1, 0)), ("tn", (0, 0)), ("nt", (1, 1)), ("tt", (0, 1))):
        assert tuple(table.valid(Problem.parse("640", "float", trans))) == sensible
    assert decomposed(parse("simt:64x64x16,k_inner_b"), DType.FLOAT, H200)


def test_lanes_read_streamed_operands_side_by_side() -> None:
    parse = tilewright.codegen.families.parse
    texts = (f"skinny:short=n,1x2x8,lanes_k={lanes},warps=2,resident_k=512" for lanes in (1, 8, 32))
    table = Table([parse(text) for text in texts], DType.FLOAT, H200)
    for shape, trans, sensible, row_bytes, refills in (
        ("12000x1x1000", "nn", (0, 1, 1), (16, 128, 512), 2),  # 16 bytes a lane along k
        ("12000x1x993", "nn", (0, 0, 1), (4, 32, 128), 2),  # rows of an odd length: 4 bytes
        ("12000x1x1000", "tn", (1, 1, 0), (512, 64, 16), 2),  # rows run along C
        ("12000x1x2", "nn", (1, 1, 1), (8, 8, 8), 1),  # whole rows
    ):
        problem = Problem.parse(shape, "float", trans)
        assert tuple(table.valid(problem)) == sensible, (shape, trans)
        columns = dict(zip(FEATURES, table.features(problem).T))
        assert tuple(2 ** columns["row_a"]) == pytest.approx(row_bytes), (shape, trans)
        assert tuple(columns["refills"]) == (refills,) * 3
        assert tuple(columns["lanes_k"]) == (1, 8, 32)
    tiles = Table([parse("simt:64x64x16")], DType.FLOAT, H200).features(Problem.parse("640"))
    assert dict(zip(FEATURES, tiles[0]))["refills"] == 0


@DTYPES
@pytest.mark.parametrize("shape", ["1x1x1", "1x16384x1", "200000x2x16", "8x8x500000"])
def test_extreme_shapes_get_sensible_times(dtype: DType, shape: str) -> None:
    for trans in ("nn", "nt", "tn", "tt"):
        problem = Problem.parse(shape, dtype.value, trans)
        (first,) = Forecast(problem, H200).choices(1)
        floor = floor_us(H200, problem)
        assert floor is not None
        assert first.expected_us is not None
        assert floor / 2 < first.expected_us < 20 * floor
        assert serves(first.config, problem, H200)
        modelled = Table([first.config], dtype, H200).modelled_us(problem)
        assert modelled[0] < 10 * max(floor, 3.0)


def test_work_is_decomposed_only_where_that_makes_sense() -> None:
    base = tilewright.codegen.families.parse("simt:64x128x16")
    configs = decomposed(base, DType.FLOAT, H200)
    assert base in configs
    table = Table(configs, DType.FLOAT, H200)
    large = [c for c, ok in zip(configs, table.valid(Problem.parse("8192"))) if ok]
    assert not any(config.split_ctas > 4 for config in large)
    assert any(config.split.mode is Mode.PERSISTENT for config in large) or not any(
        config.split.mode is Mode.PERSISTENT for config in configs
    )
    deep = [c for c, ok in zip(configs, table.valid(Problem.parse("64x64x65536"))) if ok]
    assert {config.split_ctas for config in deep} >= {1, 8, 64}
    shallow = [c for c, ok in zip(configs, table.valid(Problem.parse("64x64x16"))) if ok]
    assert {config.split_ctas for config in shallow} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [name for name in ARCHES if name != "host"])
def test_200_random_shapes_get_a_valid_choice(arch: str) -> None:
    info = typical(ARCHES[arch])
    for problem in drawn(200, seed=11):
        result = look_up(problem, info, ())
        assert result is not None, problem
        assert serves(result.config, problem, info)


@DTYPES
def test_a_look_up_takes_a_near_record_or_else_a_prediction(dtype: DType, tmp_path: Path) -> None:
    store = Store(tmp_path)
    near = store.lookup(H200, Problem.parse("1000x1000x1040", dtype.value), look_up)
    assert (near.summary, near.expected_us, near.regret) == ("predicted (from 1000x1000x1000)", None, None)
    for far in (Problem.parse("300x5000x70", dtype.value), Problem.parse("1300x900x700", dtype.value, "tt")):
        result = store.lookup(H200, far, look_up)
        (first, *_) = Forecast(far, H200).choices(3)
        assert (result.origin, result.config, result.record) == ("predicted", first.config, None)
        assert result.expected_us == first.expected_us is not None
        assert result.regret == ranker(dtype).regret[H200.key]
        served = result.served(far, H200)
        assert (served.origin, served.recorded_us) == ("predicted by what was measured for other shapes", 0.0)


@pytest.mark.parametrize(("shape", "dtype", "trans", "text"), [
    ("1596x216x10697", "double", "nt", "dmma:96x128x16,warp=48x32,stages=4,interleave=4,stream_k=1,raster=4"),
    ("93x49x50", "float", "nt", "simt:16x16x32,thread=2x4,slices=4,stages=4,k_inner_a,fragments=single"),
    ("17x1x2161", "float", "nn", "skinny:short=n,1x1x8,lanes_k=32,warps=1x8,load=cp_async,stages=4,resident_k=4096"),
])  # fmt: skip
def test_neighbours_of_a_config_are_a_step_or_two_away(shape: str, dtype: str, trans: str, text: str) -> None:
    problem, config = Problem.parse(shape, dtype, trans), tilewright.codegen.families.parse(text)
    forecast = Forecast(problem, H200)
    result = neighbours(config, forecast)
    assert len(set(result)) == len(result) > 12
    for each in result:
        assert serves(each, problem, H200)
        differ = [name for name, value in each.values if value != config.get(name)]
        assert 1 <= len(differ) <= 2 or set(differ) == {"mode", "parts", "reduce"}
    ordered = forecast.ordered(result)
    behind = ranker(problem.dtype).log_times(problem, H200, [config, *ordered])
    assert list(behind[1:]) == sorted(behind[1:])
    assert sorted(map(str, ordered)) == sorted(map(str, result))
    assert any(stages in (each.get("stages") for each in result) for stages in (2, 3, 5, 6))


@pytest.mark.parametrize(("dtype", "text", "sides"), [
    ("float", "simt:128x128x8,thread=16x8,lanes_m=4,interleave=4", ({"block_m": 112, "thread_m": 14},
     {"block_n": 112, "thread_n": 7})),
    ("double", "dmma:64x128x16,warp=64x32", ({"block_n": 112, "warp_n": 16},)),
])  # fmt: skip
def test_sides_of_tiles_that_leave_less_beyond_c_are_neighbours(
    dtype: str, text: str, sides: tuple[dict[str, int], ...]
) -> None:
    """Steps to these sides lead over others that no rule allows. Where tiles end with C, no side is better."""
    config = tilewright.codegen.families.parse(text)
    odd, even, one_row = (Problem.parse(shape, dtype) for shape in ("333x777x555", "384x768x512", "384x777x555"))
    for side in sides:
        fitted = config.changed(**side)
        assert fitted in neighbours(config, Forecast(odd, H200))
        assert fitted not in neighbours(config, Forecast(even, H200))
        assert (fitted in neighbours(config, Forecast(one_row, H200))) is ("block_n" in side)
        limited = {name: (value, side.get(name, value)) for name, value in config.values}
        result = neighbours(config, Forecast(odd, H200), limited)
        assert fitted in result
        assert all(each.get(name) in values for each in result for name, values in limited.items())
    # A side under half is no neighbour, though 40 rows and columns leave less beyond C than 128.
    whole = neighbours(config, Forecast(Problem.parse("200x200x555", dtype), H200))
    assert all(2 * min(each.cta_tile[:2]) >= 64 for each in whole if each.cta_tile != config.cta_tile)


@pytest.mark.parametrize("key", KNOWN)
def test_a_prefetch_to_l2_is_for_devices_where_kernels_overlap(key: str) -> None:
    info = KNOWN[key]
    shapes = ("1000", "256x768x1024", "1x4096x4096")
    chosen = [each.config for shape in shapes for each in Forecast(Problem.parse(shape), info).choices(8)]
    assert len(chosen) == 24
    assert any(config.get("l2_prefetch") for config in chosen) == ("griddepcontrol" in info.arch.instructions)


def test_a_mechanism_that_needs_three_steps_is_reached() -> None:
    parse = tilewright.codegen.families.parse
    barriers = parse("simt:32x48x64,thread=4,slices=4,slice_barriers,l2_prefetch")
    result = neighbours(barriers, Forecast(Problem.parse("256x768x1024"), H200))
    assert parse("simt:32x48x64,thread=4,slices=4,load=tma,k_inner_a,l2_prefetch") in result


def test_every_decomposition_that_can_pay_is_a_neighbour_of_a_config() -> None:
    problem, parse = Problem.parse("1596x216x10697", "double", "nt"), tilewright.codegen.families.parse
    config = parse("dmma:96x128x16,warp=48x32,stages=4,interleave=4,stream_k=1")
    ways = ranker(problem.dtype).decompositions(config, problem, H200)
    result = neighbours(config, Forecast(problem, H200))
    assert config.changed(mode=Mode.SPLIT_K, parts=5) in result
    assert {parts for way in ways for name, parts in way.items() if name == "parts"} >= {1, 2, 3, 4, 5, 6, 8}
    assert ranker(DType.FLOAT).decompositions(parse("skinny:short=n,1x2x8,lanes_k=32"), problem, H200) == []


def test_a_kernel_for_a_short_side_is_ranked_for_both_sides() -> None:
    parse = tilewright.codegen.families.parse
    result = decomposed(parse("skinny:short=n,1x2x8,lanes_k=32,resident_k=1024"), DType.FLOAT, H200)
    assert {config.get("short") for config in result} == {"m", "n"}
    assert {kernel_of(config) for config in result} == {parse("skinny:1x2x8,lanes_k=32,resident_k=1024")}
    table = Table(result, DType.FLOAT, H200)
    for shape, sides in (("1x300x512", {"m"}), ("300x1x512", {"n"}), ("1x1x512", {"m", "n"})):
        sensible = table.valid(Problem.parse(shape, "float", "nt"))
        assert {config.get("short") for config, ok in zip(result, sensible) if ok} == sides


def test_a_look_up_takes_few_steps(tmp_path: Path) -> None:
    """A look-up spends its time in calls of functions of Python and C, whose number does not depend on the machine."""
    store, problems = Store(tmp_path), list(drawn(60, seed=3))
    for problem in problems[:10]:  # the first look-ups read the shipped files
        store.lookup(H200, problem, look_up)
    counted = (calls(partial(store.lookup, H200, problem, look_up)) for problem in problems[10:])
    later = sorted(len(python) + len(c) for python, c in counted)
    assert later[len(later) // 2] <= 700, later
    assert later[-1] <= 1130, later


def test_nothing_is_predicted_for_empty_products_and_the_processor() -> None:
    assert not Forecast(Problem(0, 4, 4), H200).choices(3)
    assert not Forecast(Problem(4, 4, 4), replace(H200, arch=ARCHES["host"])).choices(3)


def test_predictions_are_sorted_and_serve() -> None:
    for problem in drawn(20):
        result = Forecast(problem, H200).choices(8)
        assert 0 < len(result) <= 8
        times = [each.expected_us or 0.0 for each in result]
        assert times == sorted(times)
        assert times[0] > 0
        assert all(serves(each.config, problem, H200) for each in result)


@pytest.mark.slow
def test_a_look_up_of_an_unknown_shape_is_short() -> None:
    """A look-up without compiling takes a millisecond, or somewhat more on a busy machine."""
    store = Store(Path("nowhere").absolute())
    shapes = [Problem.parse(f"{100 + 37 * i}x{5000 - 61 * i}x{70 + 11 * i}", "float", "tn") for i in range(40)]
    times = []
    for problem in [*shapes, *shapes]:
        begin = time.thread_time()
        store.lookup(H200, problem, look_up)
        times.append(time.thread_time() - begin)
    assert sorted(times[40:])[20] < 4e-3


H100 = KNOWN["nvidia-h100-80gb-hbm3"]


@pytest.mark.parametrize("info", [H100, KNOWN["tesla-t4"], KNOWN["nvidia-geforce-rtx-4090"]], ids=lambda info: info.key)
@pytest.mark.parametrize("accuracy", ["ieee", "normwise"])
@DTYPES
def test_choices_for_batches_serve_and_are_in_the_order_of_their_times(
    dtype: DType, accuracy: str, info: DeviceInfo
) -> None:
    if dtype is DType.DOUBLE and accuracy != "ieee":
        pytest.skip("double is always ieee")
    for shape, trans, batch in (("3", "nn", 10**6), ("20x7x33", "tn", 900), ("130x64x500", "nt", 40)):
        forecast = Forecast(Problem.parse(shape, dtype, trans, accuracy, batch=batch), info)
        result = forecast.choices(24)
        assert len(result) == 24
        assert all(serves(each.config, forecast.problem, info) for each in result)
        times = [each.expected_us or 0.0 for each in result]
        if accuracy == "ieee":  # times of the ranker of a finer accuracy count a tenth more
            assert times == sorted(times)
        assert min(times) > 0
        assert any(each.config.family == "small" for each in result) or shape != "3"
        again = forecast.us([each.config for each in result])
        small = [place for place, each in enumerate(result) if each.config.family == "small"]
        assert [again[place] for place in small] == pytest.approx([times[place] for place in small], rel=1e-3)


def made_up(less: int) -> BatchRanker:
    """A ranker of one tree, which lowers the logarithm of the time of kernels of `small` by `less` ten-thousandths."""
    tree = {"asked": [[0]], "above": [[-0.5]], "leaves": [[0, -less]]}
    more: dict[str, object] = {"features": ["matrices"], "devices": [H100.key], "regrets": [1.25]}
    more |= {f"batches_{name}": values for name, values in tree.items()}
    more |= {"kernels": ["simt:16x48x8,thread=2x4"], "decompositions": ["whole"], "corrections": [0.0]}
    return BatchRanker(shipped("float"), {name: np.array(values) for name, values in more.items()}, DType.FLOAT)


@pytest.mark.parametrize("names", [FEATURES, BATCH_FEATURES], ids=["single products", "batches"])
def test_features_have_names_of_their_own(names: Sequence[str]) -> None:
    """Trees find their features by name."""
    assert len(set(names)) == len(names)


def test_trees_of_batches_correct_expected_times() -> None:
    problem = Problem.parse("40", batch=3000)
    plain, never, always = (made_up(less) for less in (0, -50_000, 50_000))
    texts = (
        "small:1x4x4,block_threads=128",
        "simt:32x32x16",
        "small:2x2x2",
        "small:1x8x5,load=cp_async,block_threads=64",
    )
    configs = [parse(text) for text in texts]
    change = always.log_times(problem, H100, configs) - plain.log_times(problem, H100, configs)
    assert change == pytest.approx([-5, 0, -5, -5])
    assert [next(each.ranked(problem, H100)).config.family for each in (never, always)] == ["simt", "small"]
    assert parse("simt:16x48x8,thread=2x4") in always.portfolio
    assert [always.regret_of(problem, each) for each in (H100, H200)] == [1.25, None]


def test_a_batch_takes_at_least_as_long_as_its_ctas_take_to_start() -> None:
    configs = [parse("simt:16x16x8,thread=2"), parse("simt:64x64x16")]
    problem = Problem.parse("3", batch=10**6)
    expected = np.exp(made_up(0).log_times(problem, H100, configs))
    one = np.exp(made_up(0).log_times(replace(problem, batch=2), H100, configs))
    assert min(expected) >= 1250.0
    assert max(one) < 5.0


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@DTYPES
def test_ways_count_the_words_of_one_bank_that_a_warp_reads_at_a_time(dtype: DType, trans: str) -> None:
    problem = Problem.parse("5x7x6", dtype, trans, batch=1000)
    variants = np.array([[8, 2, 3, 64, 0], [16, 5, 1, 128, 0], [1, 1, 1, 64, 0], [4, 3, 7, 64, 0]])
    lanes = 32 if dtype is DType.FLOAT else 16
    expected = []
    for _, thread_m, thread_n, *_ in variants.tolist():
        rows, cols = math.ceil(5 / thread_m), math.ceil(7 / thread_n)
        banks: list[dict[int, set[int]]] = [{}, {}]
        for lane in range(lanes):
            product, item = divmod(lane, rows * cols)
            row, col = min(item // cols * thread_m, 4), min(item % cols, 6)
            for which, (stored, first, second) in enumerate(((problem.stored_a, row, 0), (problem.stored_b, 0, col))):
                along, across = (second, first) if trans[which] == "t" else (first, second)
                place = product * shared_elements(*stored) + along * (stored[1] | 1) + across
                banks[which].setdefault(place % lanes, set()).add(place)
        expected.append([max(map(len, each.values())) for each in banks])
    assert np.array(ways(problem, variants)).T.tolist() == expected


def test_likely_variants_of_small_matrices_fit_and_are_in_order() -> None:
    problem = Problem.parse("17", "double", batch=50_000)
    variants = likely(problem, H100)
    times = limits(problem, H100, variants)["us"]
    assert np.bincount(variants[:, -1]).tolist() == [RANKED, RANKED]
    assert (np.diff(times) >= 0).all()
    twice = limits(replace(problem, batch=100_000), H100, variants)["us"]
    assert (twice > times).all()
    assert len(likely(replace(problem, k=129), H100)) == 0
