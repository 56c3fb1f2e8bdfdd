"""The typed program that type checkers pass runs, and what they refuse in it is refused as it runs."""

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tilewright
from tilewright.codegen.errors import TilewrightError

pytestmark = pytest.mark.fast

PROGRAM = Path(__file__).parent / "data" / "typed_program.py"
A, B = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32)


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("typed_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TYPED = program()
MISTAKES: list[Callable[[], Any]] = TYPED.mistakes(A, B)


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the processor are NumPy's, so that nothing is compiled."""
    monkeypatch.setenv("TILEWRIGHT_VENDOR", "auto")
    tilewright.clear()


def test_the_typed_program_runs(tmp_path: Path) -> None:
    assert (TYPED.products(A, B) == 9).all()  # 0.5 * 6 + 6
    assert (TYPED.kernels(A, B) == 12).all()
    assert sorted(path.name for path in TYPED.files(tmp_path)) == ["my_gemm.cu", "my_gemm.h"]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_what_type_checkers_refuse_is_an_error(number: int) -> None:
    with pytest.raises((TilewrightError, TypeError, AttributeError)):
        MISTAKES[number]()


def test_functions_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(tilewright.tune)) is tilewright.tune


def test_all_that_the_package_offers_is_listed() -> None:
    offered = set(tilewright.__all__)
    assert "DType" in offered
    assert offered <= set(dir(tilewright))
    assert all(hasattr(tilewright, name) for name in offered)
