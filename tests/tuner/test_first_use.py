"""A shape that was not tuned, measured when it is first used."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import tilewright
from stored import INFO, make
from tilewright.codegen.config import Config
from tilewright.codegen.errors import CaptureError, ConfigError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.store.record import FIRST_USE
from tilewright.runtime.store.store import Found, Store
from tilewright.tuner import first_use
from tilewright.tuner.choose.shortlist import distance, predictions
from tilewright.tuner.first_use import MOST, likely, measured
from tilewright.tuner.measure import ratios
from tilewright.tuner.measure.evaluate import Bench, Phases, Tried
from tilewright.tuner.measure.rounds import Rounds
from tilewright.tuner.search.neighbours import neighbours

PROBLEM = Problem(40, 24, 56)
FAST, SLOW = parse("tiled:16"), parse("naive:")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tried, in order: a third of what usually is, as each is compiled."""
    monkeypatch.setattr(first_use, "MOST", MOST // 3)
    found: list[str] = []
    original = Bench.try_variant

    def noted(self: Bench, config: Any, stop_above_us: float) -> Tried:
        found.append(str(config))
        return original(self, config, stop_above_us)

    monkeypatch.setattr(Bench, "try_variant", noted)
    return found


def near(store: Store, *texts: str) -> None:
    """Records of near shapes on this machine."""
    for number, text in enumerate(texts, 1):
        store.keep(make(10.0, Problem(40, 24, 56 + 8 * number), parse(text), choose("host").info.key))


def test_the_fastest_is_kept_with_its_effort_and_is_exact_from_then_on(tried: list[str]) -> None:
    near(Store(), "tiled:16", "tiled:8", "simt:16x16x8,thread=2x2")
    kernel = tilewright.load(40, 24, 56, device="host", first_use="measure", seconds=60)
    assert {"tiled:16", "tiled:8"} < set(tried)
    assert len(tried) <= MOST // 3
    record = Store().best(kernel.device.key, PROBLEM)
    assert record is not None
    assert (record.effort, record.config, kernel.origin) == (FIRST_USE, kernel.config, "exact")
    assert record.accuracy is not None
    assert record.accuracy.ok
    a, b = np.ones((40, 56), "f4"), np.ones((56, 24), "f4")
    assert (kernel(a, b) == 56).all()
    tried.clear()
    again = tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert (tried, again.config) == ([], kernel.config)


def test_nothing_is_measured_unless_it_is_asked_for(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tilewright.load(40, 24, 56, device="host").origin == "default"
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "predict")
    assert tilewright.load(40, 24, 56, device="host").origin == "default"
    assert tried == []
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "measure")
    assert tilewright.load(40, 24, 56, device="host", first_use="predict").origin == "default"
    assert tilewright.load(40, 0, 56, device="host").origin == "default"  # nothing to time
    assert tried == []
    assert tilewright.load(40, 24, 56, device="host").origin == "exact"
    assert tried != []


def test_matmul_and_prepare_measure_too(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tilewright.clear()
    tilewright.prepare((40, 24, 56), device="host", measure=True, seconds=0.5)
    assert tried != []
    tried.clear()
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "measure")
    a, b = np.ones((24, 56), "f4"), np.ones((56, 40), "f4")
    out = np.full((24, 40), 7, "f4")
    tilewright.matmul(a, b, out=out, beta=1.0, device="host")
    assert tried != []
    assert (out == 63).all()  # what was measured did not touch it
    tilewright.clear()


def test_prepare_measures_what_was_used_before_too(tried: list[str]) -> None:
    tilewright.clear()
    a, b = np.ones((40, 56), "f4"), np.ones((56, 24), "f4")
    where = tilewright.matmul(a, b, device="host"), tilewright.load(40, 24, 56, device="host").device.selector
    assert tried == []
    tilewright.prepare((40, 24, 56), device=where[1], measure=True, seconds=0.5)
    (first, *_) = tried
    assert first
    tried.clear()
    tilewright.prepare((40, 24, 56), device=where[1], measure=True, seconds=0.5)
    assert tried == []
    assert (tilewright.matmul(a, b, device="host") == 56).all()
    tilewright.clear()


class Beside:
    """A GPU on which contenders are timed side by side."""

    device = SimpleNamespace(info=INFO)
    asked: ClassVar[list[tuple[Config, ...]]] = []

    def __init__(self, theirs: list[float], **ours: float) -> None:
        self.theirs, self.ours = theirs, ours

    def beside_vendor(self, configs: tuple[Config, ...], rounds: int, fastest_us: float) -> Any:
        self.asked.append(configs)
        if not self.ours:
            raise LaunchError("the device is in error")
        samples: dict[Config | None, list[float]] = {each: [self.ours[each.family]] * rounds for each in configs}
        timed = len(self.theirs) == rounds
        interval = (1.0, 1.0)
        found = Rounds(samples | ({None: self.theirs} if timed else {}), samples[configs[0]], interval, None)
        return found, None if timed or not self.theirs else self.theirs[0]


@pytest.mark.parametrize(("theirs", "ratio"), [([9.0] * 7, 0.9), ([60.0], 6.0), ([], None)])
def test_on_a_gpu_the_winner_is_timed_beside_the_vendors_library(theirs: list[float], ratio: float | None) -> None:
    record = first_use._decided(Beside(theirs, tiled=10.0), [make(10.0, config=FAST)])  # type: ignore[arg-type]
    assert (record.vendor_us, record.ratio_vendor) == (theirs[0] if theirs else None, ratio)
    assert (record.ratio_interval is not None) is (len(theirs) == 7)
    assert first_use._decided(Beside(theirs), [make(10.0)]) == make(10.0)  # type: ignore[arg-type]


def test_a_library_that_is_far_behind_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "NOISY", math.inf)
    bench = Bench(HostDevice(), Problem(40, 24, 56))
    found, behind_us = bench.beside_vendor((FAST,), 3, 1e-9)
    assert (len(found.samples[None]), behind_us) == (3, None)  # it was not timed before
    bench.warm()
    for fastest_us, behind in ((1e-9, True), (1e9, False)):
        found, behind_us = bench.beside_vendor((FAST, SLOW), 3, fastest_us)
        assert (None in found.samples) is not behind
        assert (behind_us is not None) is behind
        assert [len(found.samples[config]) for config in (FAST, SLOW)] == [3, 3]
        assert (found.ratio(None, FAST)[0] is None) is behind
    monkeypatch.setattr(ratios, "NOISY", -1.0)  # each is too far from itself
    found, _ = bench.beside_vendor((FAST, SLOW), 3, 1e9)
    assert found.is_noisy
    assert found.ratio(None, FAST) == (None, None)


def test_on_a_gpu_those_that_are_nearly_as_fast_meet_once_more() -> None:
    far = parse("simt:64x64x16")
    tried = [make(10.0, config=FAST), make(20.0, config=far), make(10.2, config=SLOW)]
    best = first_use._decided(Beside([30.0] * 7, tiled=10.1, naive=10.0), tried)  # type: ignore[arg-type]
    assert (best.config, best.ratio_vendor) == (SLOW, 3.0)
    assert Beside.asked[-1] == (FAST, SLOW)
    many = [make(10.0 + i / 100, config=SLOW.changed(block_n=8 * i)) for i in range(1, 9)]
    first_use._decided(Beside([], naive=10.0), many)  # type: ignore[arg-type]
    assert Beside.asked[-1] == tuple(record.config for record in many[:3])


def test_deciding_takes_its_part_of_the_time() -> None:
    def left(*seconds: float) -> float:
        return first_use._Tries(time.monotonic() + 2, seconds=list(seconds)).left

    assert [left(), left(0.4)] == pytest.approx([1.73, 1.73], abs=0.03)  # the first one's includes what is done once
    assert left(0.4, 0.01, 0.01) == pytest.approx(1.91, abs=0.03)
    assert left(0.1, 0.1) == pytest.approx(1.1, abs=0.03)


def test_the_seconds_are_kept_but_one_is_always_tried(tried: list[str]) -> None:
    near(Store(), "tiled:16", "tiled:8")
    assert tilewright.load(40, 24, 56, device="host", first_use="measure", seconds=1e-9).origin == "exact"
    assert len(tried) == 1


def test_on_a_gpu_no_compilation_is_waited_for_beyond_the_seconds() -> None:
    class Gpu:
        device = SimpleNamespace(info=INFO)
        order: ClassVar[list[Config]] = []

        def try_variant(self, config: Config, stop_above_us: float) -> Tried:
            self.order.append(config)
            record = make(10.0, config=config) if config == FAST else make(20.0, config=config)
            return Tried(record, Phases())

    ready, waiting, late = Future[None](), Future[None](), Future[None]()
    ready.set_result(None)
    threading.Timer(0.2, lambda: late.set_result(None)).start()
    begin = time.monotonic()
    tries = first_use._Tries(begin + 1.0)
    assert not first_use._try(Gpu(), {waiting: SLOW, late: FAST, ready: SLOW}, tries, 0)  # type: ignore[arg-type]
    assert len(tries.seconds) == 2
    assert tries.found == [make(20.0, config=SLOW), make(10.0, config=FAST)]
    assert Gpu.order == [SLOW, FAST]
    assert waiting.cancelled()
    assert 0.9 <= time.monotonic() - begin < 10  # the other one never ends
    # The first that works is waited for, however long it takes.
    late = Future[None]()
    threading.Timer(0.2, lambda: late.set_result(None)).start()
    tries = first_use._Tries(begin)
    assert not first_use._try(Gpu(), {late: FAST}, tries, 0)  # type: ignore[arg-type]
    assert tries.found == [make(10.0, config=FAST)]


def steps_from(first: Config, us_of: Callable[[Config], float], patch: pytest.MonkeyPatch, **more: Any) -> list[Config]:
    """What a search on a GPU tries from a config on, where each takes so many microseconds."""
    order: list[Config] = []

    class Gpu:
        device, problem = SimpleNamespace(info=INFO), PROBLEM

        def try_variant(self, config: Config, stop_above_us: float) -> Tried:
            order.append(config)
            return Tried(make(us_of(config), config=config), Phases(), fault=config == more.get("faulty"))

    def building(device: Any, problem: Problem, configs: Sequence[Config]) -> dict[Future[None], Config]:
        found: dict[Future[None], Config] = {Future(): config for config in configs}
        for future in found:
            future.set_result(None)
        return found

    patch.setattr(first_use, "_building", building)
    deadline = time.monotonic() + more.get("seconds", 60)
    begin = more.get("begin", [first])
    tried = first_use._searched(Gpu(), building(None, PROBLEM, begin), deadline)  # type: ignore[arg-type]
    assert [record.median_us for record in tried.found] == list(map(us_of, order))
    return order


def test_on_a_gpu_what_is_next_to_the_fastest_is_tried_until_it_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse("simt:16x16x16,thread=2x4")

    def deeper(config: Config) -> float:
        return 10.0 - config.cta_tile[2] / 16 - int(config.get("stages")) / 10

    order = steps_from(first, deeper, monkeypatch)
    assert len(order) == len(set(order)) > 2 * MOST
    assert order[1 : MOST + 1] == neighbours(first, PROBLEM, INFO)[:MOST]
    assert min(order, key=deeper).cta_tile[2] >= 32
    assert len(steps_from(first, lambda config: 10.0, monkeypatch)) == 1 + MOST  # not faster: one step
    assert steps_from(first, deeper, monkeypatch, seconds=-1) == [first]
    second = neighbours(first, PROBLEM, INFO)[1]
    assert steps_from(first, deeper, monkeypatch, faulty=second)[-1] == second  # the device is in error


def test_a_step_begins_while_the_last_of_the_one_before_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = neighbours(parse("simt:16x16x16,thread=2x4"), PROBLEM, INFO)[:MOST]
    times = {first: 10.0, others[-1]: 5.0}  # the last one turns out to be the fastest
    order = steps_from(first, lambda config: times.get(config, 20.0), monkeypatch, begin=[first, *others])
    assert order[:MOST] == [first, *others]
    beside = [config for config in neighbours(first, PROBLEM, INFO) if config not in order[:MOST]]
    assert order[MOST : MOST + len(beside[:MOST])] == beside[:MOST]
    assert set(order[MOST + len(beside[:MOST]) :]) & set(neighbours(others[-1], PROBLEM, INFO))


@pytest.mark.parametrize(("behind", "both"), [(1.2, True), (1.4, False)])
def test_another_family_that_is_little_behind_has_a_third_of_the_steps(
    behind: float, both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    simt, skinny = parse("simt:16x16x16,thread=2x4"), parse("skinny:1x2x4,lanes_k=8,resident_k=128")
    times, others = {simt: 10.0, skinny: 10.0 * behind}, [parse(f"tiled:{tile}") for tile in (4, 8, 16, 32)]
    order = steps_from(simt, lambda config: times.get(config, 20.0), monkeypatch, begin=[skinny, simt, *others])
    steps = [config.family for config in order[2 + len(others) :]]
    assert (len(steps), steps.count("skinny")) == (MOST, MOST // 3 if both else 0)


def test_what_does_not_work_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device, store = HostDevice(), Store(tmp_path)
    store.keep(make(10.0, Problem(40, 24, 64), SLOW, device.info.key))
    found = Found(FAST, "predicted")
    original = Bench.try_variant

    def broken(self: Bench, config: Any, stop_above_us: float) -> Tried:
        return original(self, parse("tiled:8,unroll=32") if config == FAST else config, stop_above_us)

    monkeypatch.setattr(Bench, "try_variant", broken)
    assert measured(device, PROBLEM, store, found, 2.0).config == SLOW
    monkeypatch.setattr(first_use, "likely", lambda *given: [FAST])
    assert measured(device, Problem(40, 24, 57), store, found, 2.0) is found  # nothing works: as it was


def test_never_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch, tried: list[str]) -> None:
    monkeypatch.setattr(HostDevice, "capturing", lambda self, stream: True)
    with pytest.raises(CaptureError, match=r"call tilewright.prepare\('40x24x56', measure=True\) before"):
        tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert tried == []


def test_a_record_that_cannot_serve_is_measured_anew(tried: list[str]) -> None:
    Store().keep(make(1e-3, PROBLEM, parse("tiled:8,unroll=32"), choose("host").info.key))
    kernel = tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert tried
    record = Store().best(kernel.device.key, PROBLEM)
    assert record is not None
    assert (kernel.origin, record.config, record.effort) == ("exact", kernel.config, FIRST_USE)


def test_threads_measure_a_shape_once(tried: list[str]) -> None:
    near(Store(), "tiled:16")
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(tilewright.load, 40, 24, 56, device="host", first_use="measure") for _ in range(4)]
        configs = {load.result().config for load in loads}
    assert len(configs) == 1
    assert len(tried) == len(set(tried))


def test_a_store_that_cannot_be_written_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Store, record: Any, replace: bool = False) -> bool:
        raise LaunchError("the disk is full")

    monkeypatch.setattr(Store, "keep", keep)
    with pytest.warns(UserWarning, match="measured, but not kept: the disk is full"):
        assert tilewright.load(40, 24, 56, device="host", first_use="measure").origin == "exact"


def test_on_a_gpu_a_model_adds_to_the_winners_of_near_shapes() -> None:
    records = tuple(Store(Path("nowhere").absolute()).records())
    problem = Problem(777, 1234, 600)
    start = time.perf_counter()
    configs = likely(problem, INFO, records, SLOW)
    assert time.perf_counter() - start < 2
    assert configs[0] == SLOW
    assert len(configs) == len(set(configs)) == MOST
    assert any(config.cta_tile[0] >= 64 for config in configs)
    predicted = [each.config for each in predictions(problem, INFO, MOST)]
    assert len(set(configs) - {SLOW, *predicted}) <= 2  # of records
    far = Problem(3, 70000, 5)
    assert all(distance(record.problem, far) > 3 for record in records)
    found = likely(far, INFO, records, SLOW)
    expected = [each.config for each in predictions(far, INFO, 100)]
    firsts = {config.family: config for config in reversed(expected)}
    assert set(firsts) == {"simt", "skinny"}
    assert {SLOW, *firsts.values()} <= set(found) <= {SLOW, *firsts.values(), *expected[:MOST]}
    assert len(found) == MOST


@pytest.mark.parametrize(("given", "message"), [
    ({"first_use": "guess"}, r"first_use must be 'predict' or 'measure', got 'guess'"),
    ({"first_use": "measure", "seconds": "2"}, r"seconds must be a number, got '2'"),
    ({"first_use": "measure", "seconds": math.inf}, r"seconds must be positive and below 10\^9, got inf"),
    ({"seconds": math.nan}, r"seconds must be positive and below 10\^9, got nan"),
    ({"seconds": 0}, r"seconds must be positive and below 10\^9, got 0"),
])  # fmt: skip
def test_bad_input(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=message):
        tilewright.load(40, 24, 56, device="host", **given)


def test_a_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "yes")
    with pytest.raises(ConfigError, match="TILEWRIGHT_FIRST_USE must be predict or measure, got 'yes'"):
        tilewright.load(40, 24, 56, device="host")
