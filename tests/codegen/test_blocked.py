"""The mechanisms that families of block tiles share."""

import pytest
from targets import TYPICAL
from tilewright.codegen.legality import rejections
from tilewright.codegen.mechanisms.blocked import registers_for
from tilewright.codegen.mechanisms.operands import widest
from tilewright.codegen.problem import Problem
from variants import variant

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("threads", "ctas", "registers"),
    [(32, 1, 255), (128, 2, 255), (128, 3, 168), (96, 3, 168), (192, 2, 168), (256, 2, 128), (160, 1, 255)],
)
def test_registers_go_to_warps_of_four_schedulers(threads: int, ctas: int, registers: int) -> None:
    """As NVRTC holds a kernel to them: nine warps take as many as twelve."""
    assert registers_for(threads, ctas) == registers


def test_ctas_of_three_warps_are_refused_where_they_would_spill() -> None:
    config = variant("simt:96x128x8,thread=16x8,lanes_m=2,min_ctas=3")
    reasons = list(rejections(Problem.parse("1024"), config, TYPICAL["sm_90a"]))
    assert reasons == ["registers of 3 CTAs fit on an SM"]


@pytest.mark.parametrize(
    ("n", "dtype", "width"), [(64, "float", 4), (62, "float", 2), (63, "float", 1), (64, "double", 2)]
)
def test_the_widest_vector(n: int, dtype: str, width: int) -> None:
    assert widest(Problem.parse(f"64x{n}x64", dtype), "b") == width
