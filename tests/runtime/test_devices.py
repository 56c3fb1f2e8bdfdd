"""Tests that every device has to pass: any problem, the vendor's product, timing, capture."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import products
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tilewright.codegen.errors import DeviceError
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import fitted
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.check.timing import Timer, TimingPlan, added_us
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import ALIGNED_BYTES, Device, Launch, Operand
from tilewright.runtime.product.kernel import Kernel, prepare
from variants import variant

CONFIGS = (
    "naive:4x8,edge=bounds",
    "naive:4x8,unroll=2",
    "naive:2x16,edge=pad",
    "tiled:8,skew,unroll=8,edge=bounds",
    "tiled:8,unroll=4",
    "tiled:8,skew,unroll=1,edge=pad",
    "tiled:16,edge=bounds",
    "tiled:4,unroll=4,edge=pad",
)
SCALARS = ((1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-0.5, 0.0), (2.0, -1.5), (0.0, 2.5))
TRANS = ("nn", "nt", "tn", "tt")


@cache
def device_for(selector: str) -> Device:
    return open_device(choose(selector))


class Conformance:
    """One class for all devices; a subclass names its selector."""

    selector = ""

    @pytest.fixture
    def device(self) -> Device:
        return device_for(self.selector)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_any_problem(self, data: st.DataObject) -> None:
        """Random shapes, transposes, types, scalars and paddings, on random configs that serve them."""
        device = device_for(self.selector)
        m, n, k = (data.draw(st.integers(0, 70), label=name) for name in "mnk")
        dtype = data.draw(st.sampled_from(DType))
        trans = data.draw(st.sampled_from(TRANS))
        problem = Problem(m, n, k, dtype, trans[0] == "t", trans[1] == "t")
        config = variant(data.draw(st.sampled_from(CONFIGS)))
        alpha, beta = data.draw(st.sampled_from(SCALARS))
        a, b, c = products.integers(problem, data.draw(st.integers(0, 99)))
        got = products.run(device, prepare(device, problem, config), a, b, c, alpha, beta, data.draw(st.integers(0, 9)))
        assert np.array_equal(got, products.exact(problem, a, b, c, alpha, beta))

    @pytest.mark.parametrize("dtype", list(DType))
    @pytest.mark.parametrize("trans", TRANS)
    def test_vendor(self, device: Device, dtype: DType, trans: str) -> None:
        problem = Problem.parse("33x21x40", dtype, trans)
        verdict = Verifier(device, problem).check(device.vendor(problem))
        assert verdict.reason == ""

    def test_timing(self, device: Device) -> None:
        problem = Problem(64, 64, 64)
        kernel = prepare(device, problem, variant("tiled"))
        timer = Timer(device, problem)
        measured = timer.measure(kernel.launch)
        assert 0 < measured.median_us < 1e6
        stopped = timer.measure(kernel.launch, stop_above_us=1e-6)
        assert len(stopped.samples_us) <= timer.plan.least
        samples, _ = timer.rounds({"one": kernel.launch, "vendor": device.vendor(problem)}, 4)
        assert [len(entry) for entry in samples.values()] == [4, 4]
        assert timer.held_back() in (False, True)

    def test_timing_in_turns(self, device: Device) -> None:
        problem = Problem(64, 64, 64)
        launches: list[str] = []
        kernel = prepare(device, problem, variant("tiled"))

        def noted(name: str) -> Launch:
            def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
                launches.append(name)
                kernel.launch(a, b, c, alpha, beta)

            return launch

        plan = replace(TimingPlan.of(device), warm_seconds=0.0, graph_below_us=0.0)
        timer = Timer(device, problem, plan=plan)
        samples, _ = timer.rounds({"one": noted("one"), "other": noted("other")}, 3, turn_seconds=0.03)
        assert [len(entry) for entry in samples.values()] == [3, 3]
        assert min(map(min, samples.values())) > 0
        changes = [name for name, before in zip(launches[1:], launches) if name != before]
        assert len(changes) < 0.1 * len(launches)  # each runs for a while

    def test_timing_with_another_librarys_kernel_in_between(self, device: Device) -> None:
        problem = Problem(64, 64, 64)
        kernel = prepare(device, problem, variant("tiled"))
        verifier, timer = Verifier(device, problem), Timer(device, problem)
        assert verifier.check(timer.followed(kernel.launch)).reason == ""
        contenders = {"one": timer.followed(kernel.launch), "kernel": timer.followed()}
        samples, _ = timer.rounds(contenders, 4)
        added = added_us(samples["one"], samples["kernel"])
        assert len(added) == 4
        assert 0 < min(added) < max(added) < max(samples["one"])

    def test_eager_calls_take_turns(self, device: Device) -> None:
        problem = Problem(17, 18, 19)
        order: list[str] = []
        kernel = prepare(device, problem, variant("tiled"))

        def noted(name: str) -> Launch:
            def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
                order.append(name)
                kernel.launch(a, b, c, alpha, beta)

            return launch

        plan = replace(TimingPlan.of(device), warm_seconds=0.0)
        samples = Timer(device, problem, plan=plan).eager({"one": noted("one"), "other": noted("other")})
        assert order == ["one", "other"] * len(samples["one"])
        assert len(samples["one"]) == len(samples["other"]) >= plan.least
        assert min(map(min, samples.values())) > 0

    def test_a_captured_launch_computes_the_product(self, device: Device) -> None:
        problem = Problem(17, 18, 19)
        for text in ("tiled:edge=bounds", "tiled:edge=pad"):
            kernel = prepare(device, problem, variant(text))
            verifier = Verifier(device, problem)

            def through_graph(*arguments: object, kernel: Kernel = kernel) -> None:
                device.capture(lambda: kernel.launch(*arguments))()  # type: ignore[arg-type]

            # Capturing runs it once more, so only beta = 0 can be compared.
            verifier.SCALARS = ((1.0, 0.0), (0.5, 0.0))
            assert verifier.check(through_graph).reason == ""


def test_what_a_product_adds_to_the_kernel_after_it() -> None:
    alone = [2.0, 2.5, 30.0]  # one slow round changes nothing
    assert added_us([5.0, 4.0, 9.0], alone) == [2.5, 1.5, 6.5]
    assert added_us([5.0, 2.6, 9.0], alone) == []  # 0.1 us beside a kernel of 2.5 may be noise


class Scripted(HostDevice):
    """The host device with times from a list; what is timed is not run."""

    def __init__(self, *elapsed_us: float) -> None:
        super().__init__()
        self.remaining_us = list(elapsed_us)

    def elapsed_us(self, run: Callable[[], None]) -> float:
        return self.remaining_us.pop(0)


@pytest.mark.parametrize(
    ("elapsed_us", "samples"),
    [
        ((300.0, 900.0, 900.0, 400.0, 900.0, 900.0), 5),  # one sample is fast enough: the others were held up
        ((300.0, 900.0, 900.0, 900.0, 400.0, 900.0), 3),
        ((900.0, 400.0, 400.0, 400.0, 400.0, 400.0), 1),  # too slow by itself
    ],
)
def test_a_variant_is_dropped_when_its_fastest_sample_is_too_slow(elapsed_us: tuple[float, ...], samples: int) -> None:
    plan = TimingPlan(0.0, 0.0, 200.0, seconds=60.0, least=3, most=5, rotate_l2=0.0, max_sets=1)
    timer = Timer(Scripted(*elapsed_us), Problem(4, 4, 4), plan=plan)
    assert len(timer.measure(lambda *operands: None, stop_above_us=500.0).samples_us) == samples


@pytest.mark.parametrize("problem", [Problem(3, 3, 3, batch=5), Problem(35, 7, 9), Problem(0, 3, 4, batch=2)], ids=str)
def test_every_set_of_inputs_is_aligned_as_the_first(problem: Problem) -> None:
    """Else a kernel of small matrices, whose runs have no padding, would be timed with its instance for any address."""
    plan = TimingPlan(0.0, 0.0, 200.0, seconds=0.0, least=1, most=1, rotate_l2=2.5, max_sets=4)
    seen: list[tuple[Operand, ...]] = []
    timer = Timer(HostDevice(), problem, plan=plan)
    timer.sample_us(timer.ready(lambda *operands: seen.append(operands[:3])))
    assert timer.sets == 4
    sets = seen[: timer.sets]
    for one, other in pairwise(sets):
        for here, there in zip(one, other):
            assert (there.pointer - here.pointer) % ALIGNED_BYTES == 0
            assert there.pointer - here.pointer >= here.rows * here.ld * 4


@pytest.mark.parametrize("text", ["naive:8x32", "tiled:16"])
def test_edges_of_the_classic_kernels(text: str) -> None:
    """A config that asks for guards or padding has them even where tiles divide the shape."""
    device = device_for("host")
    edges = {
        policy: tuple(
            fitted(Problem.parse(shape), variant(f"{text},edge={policy}"), device.info).edge
            for shape in ("32x64x16", "32x65x16")
        )
        for policy in ("fit", "bounds", "pad")
    }
    assert edges == {
        "fit": (Edge.EXACT, Edge.BOUNDS), "bounds": (Edge.BOUNDS, Edge.BOUNDS), "pad": (Edge.PAD, Edge.PAD)
    }  # fmt: skip


class TestHost(Conformance):
    selector = "host"


@pytest.mark.gpu
class TestCuda(Conformance):
    selector = "cuda"

    def test_more_than_two_to_the_31_elements(self) -> None:
        """B and C pass 2^31 elements: offsets need 64 bits."""
        device = device_for("cuda")
        problem = Problem(3, 2**31 // 2, 3)
        config = variant("tiled:32")
        kernel = prepare(device, problem, config)
        xp = device.xp
        a = xp.asarray(np.arange(9, dtype=np.float32).reshape(3, 3))
        b = xp.arange(3 * problem.n, dtype=xp.int64).reshape(3, problem.n) % 7
        b = b.astype(xp.float32)
        c = xp.full((3, problem.n), xp.nan, dtype=xp.float32)

        operands = list(map(products.on_device, (a, b, c)))
        kernel.launch(*operands)
        device.synchronize()
        for column in (0, 12345, problem.n - 1):
            expected = device.to_numpy(a) @ device.to_numpy(b[:, column])
            assert np.array_equal(device.to_numpy(c[:, column]), expected)
        assert not bool(xp.isnan(c).any())

    def test_detecting_creates_no_context(self) -> None:
        import subprocess
        import sys

        code = (
            "import ctypes; from tilewright.runtime.device.detect import choose; choose('cuda');"
            "cuda = ctypes.CDLL('libcuda.so.1'); flags, active = ctypes.c_uint(), ctypes.c_int();"
            "assert cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0;"
            "assert active.value == 0"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_gpu_that_is_named_is_never_replaced() -> None:
    with pytest.raises(DeviceError, match="cuda"):
        choose("cuda:99")
