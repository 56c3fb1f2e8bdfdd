"""The model of a device: how its times depend on what they should, and what measured factors add to it."""

import math
import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_spaces import H200, on
from tilewright.codegen.families import families, family_named, parse
from tilewright.codegen.leaf import EdgePolicy
from tilewright.codegen.problem import Problem
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.search.candidates import candidates, given, read_spaces
from tilewright.tuner.search.journal import Journal
from tilewright.tuner.search.model import estimate_us
from tilewright.tuner.search.policies import policy_of

ROOT = Path(__file__).parents[2]
SIMT, DMMA = "simt:128x128x16,lanes_m=4", "dmma:128x64x16,warp=64x32,stages=4"
SKINNY = "skinny:1x4x8,lanes_k=4,warps=1x8,resident_k=4096"


@pytest.mark.parametrize(
    ("shape", "dtype", "names"),
    [
        ("100", "float", {"naive", "tiled", "simt"}),
        ("1000", "double", {"naive", "tiled", "dmma"}),
        ("16x4096x4096", "float", set(families()) - {"dmma", "mma", "wgmma", "tf32x3"}),
        ("4096x1x4096", "double", {"naive", "tiled", "skinny", "dmma"}),
    ],
)
def test_every_family_has_a_time(shape: str, dtype: str, names: set[str]) -> None:
    problem = Problem.parse(shape, dtype)
    configs = candidates(problem, H200, read_spaces()).configs
    assert {config.family for config in configs} == names
    for config in random.Random(1).sample(configs, 400):
        assert 1 < estimate_us(problem, config, H200) < math.inf, str(config)  # a launch alone takes longer


def test_a_kernel_without_shared_memory_has_a_time_where_the_system_takes_none() -> None:
    assert estimate_us(Problem.parse("1000"), parse("naive:8x32"), on("sm_75")) > 1


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (SIMT, "1024x2048x4096", "float"),
        (DMMA, "1024x2048x4096", "double"),
        (SKINNY, "1x8192x4096", "float"),
        ("tiled:16", "1024x2048x4096", "float"),
    ],
)
def test_more_work_and_slower_devices_take_longer(text: str, shape: str, dtype: str) -> None:
    config, problem = parse(text), Problem.parse(shape, dtype)
    us = estimate_us(problem, config, H200)
    m, n, k = problem.m, problem.n, problem.k
    for larger in (replace(problem, m=4 * m), replace(problem, n=4 * n), replace(problem, k=2 * k)):
        assert estimate_us(larger, config, H200) > us
    assert estimate_us(problem, config, replace(H200, clock_mhz=990.0)) > us
    assert estimate_us(problem, config, replace(H200, sm_count=66)) > us
    assert estimate_us(problem, config, replace(H200, bandwidth_gbs=48.0)) > us


@pytest.mark.parametrize(("text", "dtype"), [(SIMT, "float"), (DMMA, "double")])
def test_what_a_split_of_k_gains_and_costs(text: str, dtype: str) -> None:
    # One tile; and as many as there are SMs, for each of which there are four.
    deep, wide = Problem.parse("128x128x16384", dtype), Problem.parse("16896x512x4096", dtype)
    whole, split = parse(text), parse(text + ",split_k=16")
    assert estimate_us(deep, split, H200) < estimate_us(deep, whole, H200) / 4
    assert estimate_us(wide, split, H200) > estimate_us(wide, whole, H200)
    memory, cluster = (estimate_us(deep, parse(text + ",split_k=8" + more), H200) for more in ("", ",reduce=cluster"))
    assert 0.5 < memory - cluster < 15


def test_ctas_of_little_work_wait_for_their_tiles() -> None:
    # A tile of 16 x 32 is multiplied long before the next one has come from memory.
    problem = Problem.parse("16x4096x4096")
    small = parse("simt:16x32x16,thread=4x4,lanes_m=4,fragments=single,slices=4")
    depths = ((16, 2), (16, 3), (32, 3), (32, 4), (64, 4), (128, 4))
    times = [estimate_us(problem, small.changed(block_k=k, stages=stages), H200) for k, stages in depths]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]
    # One of 128 x 128 is not.
    few, many = (estimate_us(Problem.parse("4096"), parse(SIMT).changed(stages=each), H200) for each in (3, 5))
    assert few < 1.02 * many


def test_slices_with_barriers_of_their_own_wait_less_where_each_has_steps_enough() -> None:
    problem, sliced = Problem.parse("1024"), parse("simt:64x64x16,lanes_m=4,slices=4")
    for block_k, gains in ((64, True), (32, True), (16, False)):
        one, own = (
            estimate_us(problem, sliced.changed(block_k=block_k, slice_barriers=each), H200) for each in (False, True)
        )
        assert (0.95 if gains else 1) * one <= own <= (0.98 if gains else 1) * one


@pytest.mark.parametrize(
    ("text", "dtype", "n", "least", "most"),
    [
        ("simt:64x128x8,lanes_m=2", "float", 8191, 3.5, 4.5),  # four stores of 4 bytes for a lane's 16
        ("simt:64x128x8,lanes_m=2", "float", 8190, 1.8, 2.3),
        ("simt:64x128x8,lanes_m=2", "float", 8188, 1.1, 1.3),  # whole vectors, which begin within sectors
        ("simt:64x128x8,lanes_m=2", "float", 8192, 1.0, 1.0),
        ("simt:64x128x8,lanes_m=2,k_inner_b", "float", 8191, 1.4, 1.6),  # lanes hold every other column
        ("dmma:64x64x16", "double", 8191, 2.3, 2.6),
        ("dmma:64x64x16", "double", 8190, 1.4, 1.6),
        ("dmma:64x64x16", "double", 8188, 1.0, 1.0),
    ],
)
def test_rows_of_c_that_are_no_whole_sectors_are_written_in_parts(
    text: str, dtype: str, n: int, least: float, most: float
) -> None:
    """Accumulators that pass through shared memory are written in whole sectors. It is all that counts here."""
    problem, both = Problem.parse(f"8192x{n}x1", dtype), [parse(text + more) for more in ("", ",shared")]
    direct, shared = (estimate_us(problem, config, H200) for config in both)
    assert least <= direct / shared <= most


def test_padding_costs_copies() -> None:
    problem, config = Problem.parse("1000"), parse("tiled:16")
    assert estimate_us(problem, config.changed(edge=EdgePolicy.PAD), H200) > estimate_us(problem, config, H200)


# --- measured factors


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks/fit_model.py"))


def test_factors_are_told_apart_by_values_that_exist() -> None:
    fitted = [family for family in families() if policy_of(family).factors]
    assert fitted == ["simt", "dmma", "wgmma"]
    for family in fitted:
        for names, factors in policy_of(family).factors.items():
            leaves = [family_named(family).leaf(name) for name in names]
            assert all(leaf.typed(value) in leaf.choices for v in factors for leaf, value in zip(leaves, v))


def test_factors() -> None:
    plain, deep, odd = (parse(f"simt:64x128{rest}") for rest in ("x16", "x128", "x16,stages=8"))
    factor = policy_of("simt").factor
    assert factor(deep) / factor(plain) == pytest.approx(1.095 / 0.951)
    assert factor(plain) / factor(odd) == pytest.approx(0.983)  # of 8 stages nothing is known
    assert policy_of("tiled").factor(parse("tiled:16")) == 1


RECORDED, DATASET = (ROOT / "benchmarks/results/nvidia-h200" / folder for folder in ("recordings", "dataset"))
LARGE = (
    "456x2133x1647 966x4381x4492 1227x1785x2783 1518x6058x576 1531x395x2410 1774x1179x623 1901x4096x4952 "
    "2050x1043x2599 2292x1629x1127 2479x1793x689"
).split()
"""The ten shapes of the data set with the most `dmma` variants, of those whose sides are all at least 300."""


@pytest.mark.parametrize(
    ("family", "file", "shapes"),
    [
        ("simt", RECORDED / "float-1024x768x512.json.gz", ()),
        ("simt", RECORDED / "float-16x4096x4096.json.gz", ()),
        ("dmma", DATASET / "double.jsonl.xz", LARGE),
    ],
    ids=["square", "narrow", "large"],
)
def test_they_order_what_they_were_not_fitted_to(
    family: str, file: Path, shapes: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials are of other searches than those of the fit; of several shapes the means are compared."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    trials, qualities = __import__("trials"), []
    for each in trials.read(file, shapes) if shapes else [trials.trials_of(read_cache_file(file), None, H200.key)]:
        times = {config: us for config, us in each.times.items() if config.family == family}
        by_model = np.array([estimate_us(each.problem, config, H200) for config in times])
        by_both = by_model * np.array([policy_of(family).factor(config) for config in times])
        measured = script()["Shape"](str(each.problem), [*times], np.log(by_model), np.log([*times.values()]))
        qualities.append([script()["quality"](measured, estimates) for estimates in (by_model, by_both)])
    assert len(qualities) == max(1, len(shapes))
    before, after = np.mean(qualities, axis=0)
    assert after[0] > before[0]  # the rank correlation
    assert after[1] <= before[1] + 0.01  # the best of the first 16
    assert after[1] < 1.04


def test_the_fit_reads_what_searches_wrote(tmp_path: Path) -> None:
    configs = tuple(parse(f"simt:64x128x{k},slices={s},stages=2") for k in (8, 16) for s in (1, 2))
    problem, found = Problem.parse("1000"), given((*configs, parse("tiled")))
    kept = Journal.of(tmp_path / "trials", problem, "nvidia-h200", (), found.space)
    for place, config in enumerate(found.configs):
        point = found.point_of(config)
        assert point is not None
        kept.add(point, Entry("ok", 10.0 + place) if place else Entry("timeout"), datetime.now())
    shapes_of = script()["shapes_of"]
    assert shapes_of(tmp_path, "simt") == []  # too few
    shapes_of.__globals__["LEAST"] = 3
    (shape,) = shapes_of(tmp_path, "simt")
    assert (shape.name, shape.configs) == ("1000x1000x1000 float", [*configs[1:]])
    assert list(np.exp(shape.measured)) == pytest.approx([11.0, 12.0, 13.0])


def test_the_fit_finds_factors_that_were_planted() -> None:
    planted, generator = {8: 0.0, 16: 0.1, 32: -0.1}, np.random.default_rng(1)
    shapes = []
    for name in ("one", "other"):
        configs = [parse(f"simt:64x128x{k}") for k in planted for _ in range(400)]
        model, noise = generator.normal(3.0, 0.3, len(configs)), generator.normal(0.0, 0.01, len(configs))
        measured = model + [planted[config.cta_tile[2]] for config in configs] + noise
        shapes.append(script()["Shape"](name, configs, model, measured))
    found = script()["fit"](shapes, "simt")
    assert set(found) == set(policy_of("simt").factors)
    by_depth = found["block_k",]
    assert by_depth[16,] - by_depth[8,] == pytest.approx(0.1, abs=0.04)
    assert by_depth[32,] - by_depth[8,] == pytest.approx(-0.1, abs=0.04)
    assert all(abs(log) < 0.01 for log in found["l2_prefetch",].values())
