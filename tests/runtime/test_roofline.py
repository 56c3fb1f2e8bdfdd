"""The least time of a product: three limits, measured rates and derived ones."""

from dataclasses import replace

import pytest
from stored import INFO
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.roofline import floor_us, rates_of
from tilewright.runtime.device.detect import choose

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("shape", "dtype", "us"),
    [
        ("8192", "float", 2 * 8192**3 / 66.9e6),
        ("8192", "double", 2 * 8192**3 / 65.8e6),
        ("1x4096x4096", "float", (4096**2 + 8192) * 4 / 4.43e6),
        ("100", "float", 1.5),
    ],
)
def test_arithmetic_memory_or_the_launch_decides(shape: str, dtype: str, us: float) -> None:
    assert floor_us(INFO, Problem.parse(shape, dtype)) == pytest.approx(us)


def test_other_gpus_go_by_clock_and_cores() -> None:
    rates = rates_of(replace(INFO, name="NVIDIA A100", arch=ARCHES["sm_80"], sm_count=108, clock_mhz=1410))
    assert rates is not None
    assert rates.float_gflops == pytest.approx(19_492, rel=1e-3)
    assert rates.double_gflops == pytest.approx(19_492, rel=1e-3)
    assert rates.bandwidth_gbs == INFO.bandwidth_gbs
    desktop = rates_of(replace(INFO, name="NVIDIA RTX", arch=ARCHES["sm_89"], sm_count=128, clock_mhz=2520))
    assert desktop is not None
    assert desktop.double_gflops == pytest.approx(desktop.float_gflops / 64)


def test_nothing_is_claimed_of_the_processor() -> None:
    assert floor_us(choose("host"), Problem(64, 64, 64)) is None
