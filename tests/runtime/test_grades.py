"""Grades of accuracy: the problem, its record, its bound, and the kernels that may serve it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tilewright
from quick import TYPICAL
from stored import make
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import emit
from tilewright.codegen.errors import ArgumentTypeError, ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.legality import rejections
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.kinds import KINDS
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Launch
from tilewright.runtime.product.kernel import prepare
from tilewright.runtime.store.codec import dumps, key_digest, loads
from tilewright.runtime.store.store import Store
from tilewright.tuner.bench.errors import broken_promise, error_kinds
from tilewright.tuner.choose.shortlist import look_up

SHAPE = Problem(48, 40, 300)


def graded(grade: str, problem: Problem = SHAPE) -> Problem:
    return replace(problem, accuracy=Grade.parse(grade))


class TestProblem:
    """Problems that ask for a grade."""

    def test_ieee_is_the_default_and_is_not_printed(self) -> None:
        assert str(SHAPE) == "48x40x300 float nn"
        assert str(graded("normwise")) == "48x40x300 float nn normwise"
        assert Problem.parse("48x40x300", accuracy="normwise") == graded("normwise")

    def test_a_grade_keeps_what_coarser_ones_promise(self) -> None:
        ieee, elementwise, normwise = Grade
        assert all(ieee.keeps(grade) for grade in Grade)
        assert elementwise.keeps(normwise)
        assert not normwise.keeps(elementwise)
        assert not elementwise.keeps(ieee)

    def test_an_impossible_accuracy_is_named(self) -> None:
        with pytest.raises(ArgumentTypeError, match=r"elementwise, or normwise \(the fastest\), got 'tf32'"):
            Problem.parse("8", accuracy="tf32")
        with pytest.raises(ConfigError, match="accuracy normwise is for float; double is always ieee"):
            Problem.parse("8", "double", accuracy="normwise")


class TestStore:
    """Records of several grades."""

    def test_a_key_leaves_out_defaults(self) -> None:
        """A field that Problem gains later leaves keys as they are."""
        assert key_digest("nvidia-h200", Problem(1024, 768, 512))[:8] == "de6751ac"
        assert key_digest("nvidia-h200", graded("normwise")) != key_digest("nvidia-h200", SHAPE)

    @pytest.mark.parametrize("grade", ["ieee", "elementwise", "normwise"])
    def test_a_record_is_read_back(self, grade: str) -> None:
        record = make(5.0, graded(grade))
        assert loads(dumps(record)) == record

    def test_a_finer_record_serves_a_coarser_product_and_never_the_reverse(self, tmp_path: Path) -> None:
        info, store = choose("host"), Store(tmp_path)
        for grade, serves in (("elementwise", ("elementwise", "normwise")), ("ieee", ("ieee",))):
            store.keep(replace(make(5.0, graded(grade)), device=info.key))
            for requested in serves:
                lookup = store.lookup(info, graded(requested), look_up)
                assert lookup.record is not None
                assert lookup.record.problem == graded(grade)
                assert lookup.origin == ("exact" if requested == grade else "predicted")
        finer = [store.lookup(info, graded(grade), look_up).record for grade in ("ieee", "elementwise")]
        assert [each and each.problem.accuracy for each in finer] == ["ieee", "elementwise"]

    def test_asking_for_less_accuracy_makes_no_product_slower(self, tmp_path: Path) -> None:
        info, store = choose("host"), Store(tmp_path)
        for grade, us in (("ieee", 5.0), ("elementwise", 4.0), ("normwise", 4.5)):
            store.keep(replace(make(us, graded(grade)), device=info.key))
        lookups = {grade: store.lookup(info, graded(grade), look_up) for grade in ("ieee", "elementwise", "normwise")}
        assert [each.origin for each in lookups.values()] == ["exact"] * 3
        assert [each.record and each.record.median_us for each in lookups.values()] == [5.0, 4.0, 4.0]


def launch_of(grade: str, error: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> tuple[Verifier, Launch]:
    """A verifier, and a launch that adds an error to the exact product."""
    device = open_device(choose("host"))
    vendor = device.vendor(graded(grade))

    def launch(a: object, b: object, c: object, alpha: float, beta: float) -> None:
        vendor(a, b, c, alpha, beta)  # type: ignore[arg-type]
        x, y, out = (verifier_view(each) for each in (a, b, c))
        out += (alpha * error(x, y)).astype(np.float32)

    return Verifier(device, graded(grade)), launch


def verifier_view(operand: object) -> np.ndarray:
    import ctypes

    from tilewright.runtime.device.protocol import Operand

    assert isinstance(operand, Operand)
    raw = (ctypes.c_char * (4 * operand.rows * operand.ld)).from_address(operand.pointer)
    return np.frombuffer(raw, np.float32).reshape(operand.rows, operand.ld)


@pytest.mark.parametrize(("grade", "right"), [("ieee", False), ("elementwise", False), ("normwise", True)])
def test_each_grade_has_its_own_bound(grade: str, right: bool) -> None:
    # Between the two bounds: |a_i| |b_j| by norms is about 4/3 of |A| |B| for uniform data.
    def error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)[None, :]
        return 0.97 * 302 * 2.0**-24 * norms

    verifier, launch = launch_of(grade, error)
    assert (verifier.check(launch).reason == "") is right


def test_a_lost_term_breaks_every_bound() -> None:
    for grade in Grade:
        verifier, launch = launch_of(grade, lambda a, b: -np.outer(a[:, 7], b[7]))
        assert "times its bound" in verifier.check(launch).reason


class TestUse:
    """Grades in the library and in emitted files."""

    def test_matmul_and_load_take_an_accuracy(self) -> None:
        a, b = np.ones((8, 5), np.float32), np.ones((5, 7), np.float32)
        for grade in Grade:
            assert (tilewright.matmul(a, b, accuracy=grade, device="host") == 5).all()
        loaded = tilewright.load(8, 7, 5, accuracy="normwise", device="host")
        assert loaded.problem.accuracy is Grade.NORMWISE
        with pytest.raises(ArgumentTypeError, match="'half'"):
            tilewright.matmul(a, b, accuracy="half", device="host")
        with pytest.raises(ConfigError, match="is for float"):
            tilewright.matmul(a.astype(float), b.astype(float), accuracy="normwise", device="host")

    def test_a_bundle_has_one_accuracy_and_names_it_in_its_command(self) -> None:
        target, config = TYPICAL["sm_80"], parse("tiled:16")
        both = [Served(graded("normwise"), config, target), Served(Problem(5, 5, 5), config, target)]
        with pytest.raises(ConfigError, match="one accuracy for all shapes, got normwise and ieee"):
            emit(both)
        assert "--accuracy normwise" in emit(both[:1]).files[0][1]
        assert "--accuracy" not in emit(both[1:]).files[0][1]


@pytest.mark.gpu
@pytest.mark.parametrize("k", [512, 4096, 16384])
@pytest.mark.parametrize("text", ["mma:128x128x32", "wgmma:128x128x64", "mma:64x64x32,scheme=bf16x6,promote=32",
                                  "wgmma:128x128x64,scheme=bf16x6,stages=2", "tf32x3:64x64x32"])  # fmt: skip
def test_on_a_gpu_each_grade_keeps_its_promise_on_six_kinds_of_data(text: str, k: int) -> None:
    device, config = open_device(choose("cuda")), parse(text)
    problem, plain = Problem(300, 260, k, accuracy=config.accuracy), Problem(300, 260, k)
    if broken := list(rejections(problem, config, device.info)):
        pytest.skip(broken[0])
    with device.entered():
        kernels = {"ours": prepare(device, problem, config), "in order": prepare(device, plain, parse("tiled:16"))}
        errors = error_kinds(device, problem, {name: kernel.launch for name, kernel in kernels.items()})
    assert broken_promise(problem, errors, "ours") == ""
    elementwise = {(each.kind, each.contender): each.elementwise for each in errors}
    for kind in KINDS.keys() - ({"graded"} if config.accuracy is Grade.NORMWISE else set()):
        assert elementwise[kind, "ours"] <= elementwise[kind, "in order"], kind
