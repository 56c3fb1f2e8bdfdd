"""cuBLASLt's rows and columns, transposes and failures, on a stand-in for its bindings; the real one on a GPU."""

import gc
import importlib.util
from typing import Any

import fake_lt
import pytest
from tilewright.codegen.errors import DeviceError, LaunchError
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device import cublaslt
from tilewright.runtime.device.cublaslt import CublasLt, cublaslt_name
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.host import HostDevice


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_lt.FakeLt:
    return fake_lt.install(monkeypatch)


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_row_major_product_is_right(fake: fake_lt.FakeLt, dtype: str, trans: str) -> None:
    device, problem = HostDevice(), Problem.parse("5x7x3", dtype, trans)
    first, second = CublasLt(device, problem).launches()
    verdict = Verifier(device, problem).check(first)
    assert verdict.reason == ""
    with pytest.raises(LaunchError, match="cuBLASLt: not supported"):
        Verifier(device, problem).check(second)


def test_heuristics_that_cannot_run_are_left_out(fake: fake_lt.FakeLt) -> None:
    assert len(CublasLt(HostDevice(), Problem(4, 4, 4)).launches()) == 2
    assert fake.ran == []


def test_it_is_told_how_matrices_lie(fake: fake_lt.FakeLt) -> None:
    CublasLt(HostDevice(), Problem(64, 3, 2))  # B has 24 bytes, A 512, C 768; cuBLAS's A is our B
    assert fake.preferences == {1: 32 << 20, 5: 8, 6: 256, 7: 256, 8: 256}


def test_what_it_holds_is_given_back(fake: fake_lt.FakeLt) -> None:
    launches = CublasLt(HostDevice(), Problem(4, 4, 4)).launches()
    assert len(fake.alive) == 6
    del launches
    gc.collect()
    assert fake.alive == {}


def test_its_name_has_its_version(fake: fake_lt.FakeLt) -> None:
    assert cublaslt_name() == "cuBLASLt 13.10.0"


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: None if name == "nvmath" else find(name))
    with pytest.raises(
        DeviceError, match=r"nvmath-python is not installed; get it with pip install 'tilewright\[lt\]'$"
    ):
        cublaslt_name()


@pytest.mark.gpu
@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_real_one_is_right(dtype: str, trans: str) -> None:
    pytest.importorskip("nvmath")
    device, problem = open_device(choose("cuda")), Problem.parse("100x72x33", dtype, trans)
    verifier = Verifier(device, problem)
    launches = CublasLt(device, problem).launches()
    assert launches
    assert [verifier.check(launch).reason for launch in launches] == [""] * len(launches)
