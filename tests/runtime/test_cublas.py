"""How cuBLAS is called, on a stand-in for the library that computes with NumPy where the pointers point."""

import pytest
from fake_cublas import VendorHost
from products import TRANS
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.protocol import Elements
from tilewright.tuner.bench.concatenated import SCHEMES, Concatenated


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_row_major_product_is_right(dtype: str, trans: str) -> None:
    device, problem = VendorHost(), Problem.parse("5x7x3", dtype, trans)
    assert Verifier(device, problem).check(device.vendor(problem)).reason == ""
    assert len(device.library.products) == 2
    assert not device.library.kinds


@pytest.mark.parametrize("trans", TRANS)
def test_tf32_is_asked_for_by_its_kind_of_arithmetic(trans: str) -> None:
    device, problem = VendorHost(), Problem.parse("5x7x3", "float", trans)
    assert Verifier(device, problem).check(device.vendor(problem, Elements.TF32)).reason == ""
    assert set(device.library.kinds) == {0}


@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize(("grade", "kind"), [(Grade.NORMWISE, 2), (Grade.ELEMENTWISE, 14)])
def test_the_long_product_of_terms_is_right(grade: Grade, kind: int, trans: str) -> None:
    assert set(SCHEMES) == {Grade.NORMWISE, Grade.ELEMENTWISE}
    device, problem = VendorHost(), Problem.parse("37x21x45", "float", trans, grade)
    assert Verifier(device, problem).check(Concatenated(device, problem, grade).launch).reason == ""
    assert set(device.library.kinds) == {kind}


def test_a_failure_is_told() -> None:
    device, problem = VendorHost(13), Problem(4, 4, 4)
    with pytest.raises(LaunchError, match="cuBLAS returned status 13"):
        Verifier(device, problem).check(device.vendor(problem))
