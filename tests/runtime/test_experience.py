"""What measured times add to the model: the factors, their fit, and that they order variants better."""

import math
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored import INFO
from tilewright.codegen.config import Config, Value
from tilewright.codegen.families import FAMILIES, complete
from tilewright.codegen.problem import Problem
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.search.experience import FACTORS, factor
from tilewright.tuner.search.model import estimate_us

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "benchmarks/results/nvidia-h200/recordings"
SIMT = "simt:block_m=64,block_n=128,thread_m=8,thread_n=8,lanes_m=8,cp_async=1"


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks/fit_model.py"))


@pytest.mark.parametrize("family", FACTORS)
def test_what_variants_are_told_apart_by_exists(family: str) -> None:
    parameters = {parameter.name for parameter in FAMILIES[family].parameters}
    assert {name for names in FACTORS[family] for name in names} <= parameters


def test_factors() -> None:
    plain = complete(Config.parse(SIMT + ",block_k=16,stages=3"))
    deep = complete(Config.parse(SIMT + ",block_k=128,stages=3"))
    odd = complete(Config.parse(SIMT + ",block_k=16,stages=8"))
    assert factor(deep) / factor(plain) == pytest.approx(1.095 / 0.951)
    assert factor(plain) / factor(odd) == pytest.approx(0.983)  # of 8 stages nothing is known
    assert factor(complete(Config.parse("tiled:tile_width=16"))) == 1


@pytest.mark.parametrize(
    ("name", "family", "shape", "dtype"),
    [
        ("float-1000x1000x1000", "simt", "1000x1000x1000", "float"),
        ("float-16x4096x4096", "simt", "16x4096x4096", "float"),
        ("double-1024x768x512", "dmma", "1024x768x512", "double"),
    ],
)
def test_they_order_what_they_were_not_fitted_to(name: str, family: str, shape: str, dtype: str) -> None:
    """Recorded on other days, by other searches."""
    recording, problem = read_cache_file(RECORDINGS / f"{name}.json.gz"), Problem.parse(shape, dtype)
    configs, times = [], []
    space = recording.space()
    for point, entry in recording.entries.items():
        values: dict[str, Value] = dict(space.values(point))
        if entry.time_us is not None and values["family"] == family:
            configs.append(script()["config_of"](values))
            times.append(math.log(entry.time_us))
    by_model = np.array([estimate_us(problem, config, INFO) for config in configs])
    by_both = by_model * np.array([factor(config) for config in configs])
    shape_of = script()["Shape"](name, configs, np.log(by_model), np.array(times))
    before, after = (script()["quality"](shape_of, estimates) for estimates in (by_model, by_both))
    assert after[0] > before[0]  # the rank correlation
    assert after[1] <= before[1] + 1e-9  # the best of the first 16
    assert after[1] < 1.04


def test_the_fit_finds_factors_that_were_planted() -> None:
    planted = {8: 0.0, 16: 0.1, 32: -0.1}
    generator = np.random.default_rng(1)
    shapes = []
    for name in ("one", "other"):
        configs = [complete(Config.parse(f"{SIMT},block_k={k},stages=3")) for k in planted for _ in range(400)]
        model = generator.normal(3.0, 0.3, len(configs))
        noise = generator.normal(0.0, 0.01, len(configs))
        measured = model + [planted[config.number("block_k")] for config in configs] + noise
        shapes.append(script()["Shape"](name, configs, model, measured))
    found = script()["fit"](shapes, "simt")
    assert set(found) == set(FACTORS["simt"])
    by_depth = found["block_k",]
    assert by_depth[16,] - by_depth[8,] == pytest.approx(0.1, abs=0.04)
    assert by_depth[32,] - by_depth[8,] == pytest.approx(-0.1, abs=0.04)
    assert all(abs(log) < 0.01 for log in found["warm_l2",].values())
