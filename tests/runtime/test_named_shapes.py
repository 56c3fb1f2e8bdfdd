"""One way to name a shape in every function: text, three numbers or a Problem, with dtype=, trans= and accuracy=."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tilewright
from commands import caller
from quick import TYPICAL
from stored import make
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.product.matmul import Library
from tilewright.runtime.store.store import Store
from tilewright.tuner import tune as tune_module

pytestmark = pytest.mark.fast

PROBLEM = Problem(24, 20, 16, "double", False, True)
"""Problem that every form below names."""
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": ("24x20x16", {"dtype": "double", "trans": "nt"}),
    "a tuple": ((24, 20, 16), {"dtype": np.float64, "trans": "nt"}),
    "a list": ([24, np.int64(20), 16], {"dtype": tilewright.DType.DOUBLE, "trans_b": True}),
    "a Problem": (PROBLEM, {}),
    "a Problem and what it says": (PROBLEM, {"dtype": "float64", "trans": "nt", "trans_a": False, "accuracy": "ieee"}),
    "both ways to say the transposes": ("24x20x16", {"dtype": "f64", "trans": "nt", "trans_a": False, "trans_b": True}),
}


class ReachedError(Exception):
    """The problem arrived where the work begins."""


@pytest.fixture
def problem_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Problem]]:
    """By the name of a function, a call that returns the problem of its arguments; nothing is compiled or measured."""

    def reached(problem: Problem, *_: object) -> None:
        raise ReachedError(problem)

    def through(call: Callable[..., object]) -> Callable[..., Problem]:
        def problem(*arguments: Any, **words: Any) -> Problem:
            with pytest.raises(ReachedError) as caught:
                call(*arguments, device="host", **words)
            named = caught.value.args[0]
            assert isinstance(named, Problem)
            return named

        return problem

    load_names = "tilewright.runtime.product.matmul.load_on"
    monkeypatch.setattr(load_names, lambda device, problem, *_: reached(problem))
    monkeypatch.setattr(Library, "_ready", lambda self, problem, *_: reached(problem))
    monkeypatch.setattr(tune_module, "check_tunable", reached)

    def emitted(shape: Any, **words: Any) -> Problem:
        bundle = tilewright.emit(shape, arch="sm_80", config="tiled:16", **words)
        (problem,) = (
            each
            for each in (PROBLEM, Problem(24, 20, 16), Problem(24, 24, 24))
            if tilewright.emit(tilewright.Served(each, parse("tiled:16"), TYPICAL["sm_80"])).files == bundle.files
        )
        return problem

    names = {"load": tilewright.load, "prepare": tilewright.prepare, "tune": tilewright.tune}
    return {**{name: through(call) for name, call in names.items()}, "emit": emitted}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", ["load", "prepare", "tune", "emit"])
def test_every_function_takes_every_form(function: str, form: str, problem_of: dict[str, Any]) -> None:
    shape, words = FORMS[form]
    assert problem_of[function](shape, **words) == PROBLEM


@pytest.mark.parametrize("function", ["load", "prepare", "tune", "emit"])
def test_one_number_as_text_is_a_cube_in_float(function: str, problem_of: dict[str, Any]) -> None:
    assert problem_of[function]("24") == Problem(24, 24, 24)


def test_earlier_forms_still_work(problem_of: dict[str, Any]) -> None:
    load, tune = problem_of["load"], problem_of["tune"]
    assert load(24, 20, 16, dtype="double", trans_b=True) == PROBLEM
    assert load(m=24, n=20, k=16, dtype="double", trans_a=False, trans_b=True) == PROBLEM
    assert load(24, k=16, n=20, dtype="double", trans_b=True) == PROBLEM
    assert load(shape="24x20x16") == Problem(24, 20, 16)
    assert tune(problem=PROBLEM) == PROBLEM
    served = tilewright.Served("24x20x16", parse("tiled:16"), TYPICAL["sm_80"])  # type: ignore[arg-type]
    assert served.problem == Problem(24, 20, 16)
    assert tilewright.emit(served=[served], name="my", layout=tilewright.Layout(main=True)).files


CONTRADICTIONS = {
    "dtype is 'double', and the Problem 8x8x8 float nn beside it has dtype 'float': leave dtype out": {
        "dtype": "double"
    },
    "trans is 'tn', and the Problem 8x8x8 float nn beside it has trans 'nn': leave trans out": {"trans": "tn"},
    "trans_a is True, and the Problem 8x8x8 float nn beside it has trans_a False": {"trans_a": True},
    "accuracy is 'normwise', and the Problem 8x8x8 float nn beside it has accuracy 'ieee'": {"accuracy": "normwise"},
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
@pytest.mark.parametrize("function", ["load", "prepare", "tune", "emit"])
def test_a_problem_and_a_word_that_differs(function: str, message: str) -> None:
    words = {"arch": "sm_80"} if function == "emit" else {"device": "host"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        getattr(tilewright, function)(Problem(8, 8, 8), **CONTRADICTIONS[message], **words)


@pytest.mark.parametrize("function", ["load", "prepare", "tune", "emit", "Problem"])
def test_two_words_for_the_transposes_that_differ(function: str) -> None:
    message = "trans is 'nt' and trans_b is False, which contradict each other: leave trans_b out"
    shape = (8, 8, 8) if function == "Problem" else ("8",)
    with pytest.raises(ConfigError, match=re.escape(message)):
        getattr(tilewright, function)(*shape, trans="nt", trans_b=False)


@pytest.mark.parametrize(
    ("sizes", "named", "message"),
    [
        (("8x9x10", 8), {}, "shape is '8x9x10' beside n=8: pass one shape, such as '1024x768x512', or all of m, n and"),
        ((Problem(8, 9, 10),), {"k": 10}, "beside k=10: pass one shape"),
        (("8x9x10",), {"m": 8}, "shape is '8x9x10' beside m=8: pass one shape"),
        ((8,), {}, "n and k must be given beside m=8: pass one shape"),
        ((), {"m": 8, "n": 9}, "k must be given beside m=8, n=9: pass one shape"),
        ((), {}, "m and n and k must be given: pass one shape"),
        (((8, 9),), {}, "shape must have three sizes, (m, n, k), got (8, 9)"),
        (((8, 9, 10.5),), {}, "k must be an integer, got 10.5"),
        (({8: 9},), {}, "n and k must be given beside m={8: 9}"),
    ],
)
def test_arguments_of_load_that_name_no_shape(sizes: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        tilewright.load(*sizes, device="host", **named)


def test_keywords_apply_to_shapes_without_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Problem of another type may stand beside such shapes in one call."""
    problems: list[Problem] = []

    def ready(self: Library, problem: Problem, *_: object) -> Any:
        problems.append(problem)
        return SimpleNamespace(kernel=SimpleNamespace(prepare_graphs=lambda graphs: None))

    monkeypatch.setattr(Library, "_ready", ready)
    tilewright.prepare(PROBLEM, "9x10x11", dtype="float", trans="tn", device="host")
    served = tilewright.Served(PROBLEM, parse("tiled:16"), TYPICAL["sm_80"])
    bundle = tilewright.emit([served, "9x10x11"], arch="sm_80", dtype="float", trans="tn", config="tiled:32")
    header = bundle.files[1][1]
    assert problems == [PROBLEM, Problem(9, 10, 11, trans="tn")]
    assert all(each in header for each in ("_f64_nt_run(", "_f32_tn_run("))


class TestEmit:
    """Shapes get their kernels from the store, as by `tilewright emit`."""

    @pytest.mark.parametrize("shape", ["4096", "1000x999x77"])
    def test_the_command_writes_the_same(self, shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = caller(capsys)
        words = ("--arch", "sm_90a", "--store", str(tmp_path / "empty"), "--name", "my", "-o", str(tmp_path))
        assert run("emit", "--shape", shape, *words).status == 0
        for name, text in tilewright.emit(shape, "my", arch="sm_90a", store=tmp_path / "empty").files:
            assert (tmp_path / name).read_text() == text

    def test_the_device_of_an_architecture_with_most_records_is_taken(self, tmp_path: Path) -> None:
        for n in (20, 30):
            Store(tmp_path).keep(make(10.0, Problem(24, n, 16), device="nvidia-a10"))
        Store(tmp_path).keep(make(10.0, Problem(24, 20, 16), device="nvidia-geforce-rtx-3090"))
        header = dict(tilewright.emit("24x20x16", "gemm", arch="sm_86", store=tmp_path).files)["gemm.h"]
        assert "tuned on nvidia-a10" in header

    def test_without_a_gpu_the_architecture_has_to_be_named(self) -> None:
        message = "device is 'host', and there is no GPU to emit for: name one by arch=, such as arch='sm_90a'"
        with pytest.raises(RuntimeError, match=re.escape(message)):
            tilewright.emit("64", device="host")
        with pytest.raises(ConfigError, match="arch must be a GPU's, got 'host'"):
            tilewright.emit("64", arch="host")

    def test_what_contradicts_a_served(self) -> None:
        served = tilewright.Served(PROBLEM, parse("tiled:16"), TYPICAL["sm_80"])
        for words, message in (
            ({"arch": "sm_90a"}, "arch is sm_90a, and the Served 24x20x16 double nt beside it has sm_80: leave arch"),
            ({"config": "tiled:32"}, "config is tiled:32, and the Served 24x20x16 double nt beside it has tiled:16"),
            ({"dtype": "float"}, "dtype is 'float', and the Problem 24x20x16 double nt beside it has dtype 'double'"),
        ):
            with pytest.raises(ConfigError, match=re.escape(message)):
                tilewright.emit([served], **words)  # type: ignore[arg-type]
        assert tilewright.emit(served, arch="sm_80", config="tiled:16", dtype="double").files


def test_kernels_are_emitted_for_a_batch() -> None:
    bundle = dict(tilewright.emit("16", name="my", batch=100_000, arch="sm_90a").files)
    assert "my_run_batched(" in bundle["my.h"]
    assert "for batches of 100,000: " in bundle["my.h"]
    assert "small_f32_nn" in bundle["my.cu"]
    # The record of this shape has a kernel that serves no batch.
    alone, batched = (
        dict(tilewright.emit("4096x16x4096", "my", tilewright.Layout(batched=each), arch="sm_90a").files)
        for each in (False, True)
    )
    assert "load=tma" in alone["my.cu"]
    assert "load=tma" not in batched["my.cu"]
    with pytest.raises(ConfigError, match=r"batch 9 is a batch: pass Layout\(batched=True\)"):
        tilewright.emit("16", layout=tilewright.Layout(), batch=9, arch="sm_90a", config="tiled:16")
