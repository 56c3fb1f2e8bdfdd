"""What families of block tiles share."""

import pytest
from tilewright.codegen.arch import ARCHES
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
    reasons = list(rejections(Problem.parse("1024"), config, ARCHES["sm_90a"]))
    assert reasons == ["registers of 3 CTAs fit on an SM"]


@pytest.mark.parametrize(
    ("n", "dtype", "width"), [(64, "float", 4), (62, "float", 2), (63, "float", 1), (64, "double", 2)]
)
def test_the_widest_vector(n: int, dtype: str, width: int) -> None:
    assert widest(Problem.parse(f"64x{n}x64", dtype), "b") == width


@pytest.mark.parametrize("text", ["simt:vec_a=4,vec_b=2,vec_c=4", "dmma:vec_a=2,vec_b=2", "skinny:vec_large=4"])
def test_a_scalar_form_differs_in_vectors_alone(text: str) -> None:
    config = variant(text)
    changed = {name for (name, value), (_, other) in zip(config.values, config.scalar().values) if value != other}
    assert changed == {part.partition("=")[0] for part in text.partition(":")[2].split(",")}
