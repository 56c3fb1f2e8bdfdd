"""First use: a shape that was not tuned is measured when it is first used."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest
import tilewright
from stored import INFO, make
from tilewright.codegen.config import Config
from tilewright.codegen.errors import CaptureError, ConfigError, DeviceError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.timing import summarise
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.store.lookup import filling
from tilewright.runtime.store.record import FIRST_USE, Accuracy, Status
from tilewright.runtime.store.store import LookupResult, Store
from tilewright.tuner import first_use
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import ENTRIES, shortlist
from tilewright.tuner.first_use import DUEL_SHARE, DUEL_TRIES, KEEP, LEAST_OUTCOMES, ROUNDS, TRIALS, measured
from tilewright.tuner.measure import ratios
from tilewright.tuner.measure.evaluate import Bench, Duel, InProcess, Phases, Side, Tried
from tilewright.tuner.search.neighbourhood import BEGUN
from tilewright.tuner.search.neighbours import neighbours

PROBLEM = Problem(40, 24, 56)
FAST, SLOW = parse("tiled:16"), parse("naive:")
FEW = 6
"""Number of variants that are tried in place of TRIALS, since each is compiled."""


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configs that are tried, FEW at most, in order."""
    monkeypatch.setattr(first_use, "TRIALS", FEW)
    configs: list[str] = []
    original = Bench.try_variant

    def noted(self: Bench, config: Any, stop_above_us: float) -> Tried:
        configs.append(str(config))
        return original(self, config, stop_above_us)

    monkeypatch.setattr(Bench, "try_variant", noted)
    return configs


def keep_near_records(store: Store, *texts: str) -> None:
    """Keep a record of each config for a near shape on this machine."""
    for number, text in enumerate(texts, 1):
        store.keep(make(10.0, Problem(40, 24, 56 + 8 * number), parse(text), choose("host").key))


# --- on the processor --------------------------------------------------------------------------------------------


def test_the_fastest_is_kept_with_its_effort_and_is_exact_from_then_on(tried: list[str]) -> None:
    keep_near_records(Store(), "tiled:16", "tiled:8", "simt:16x16x8,thread=2x2")
    kernel = tilewright.load(40, 24, 56, device="host", first_use="measure", seconds=60)
    assert tried[0] == "tiled:16"  # what a look-up takes
    assert len(tried) == len(set(tried)) == FEW
    record = Store().best(kernel.device.key, PROBLEM)
    assert record is not None
    assert (record.effort, record.config, kernel.origin) == (FIRST_USE, kernel.config, "exact")
    assert str(record.config) in tried
    assert record.vendor_us is not None  # NumPy was in the duel
    assert record.accuracy is not None
    assert record.accuracy.ok
    a, b = np.ones((40, 56), "f4"), np.ones((56, 24), "f4")
    assert (kernel(a, b) == 56).all()
    tried.clear()
    reloaded = tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert (tried, reloaded.config) == ([], kernel.config)


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


def test_a_record_of_a_batch_that_fills_the_device_ends_measuring_for_its_class(tried: list[str]) -> None:
    info = choose("host")
    full, few = (Problem(16, 16, 16, batch=filling(256, info) * part // 4) for part in (4, 1))
    Store().keep(make(10.0, full, FAST, info.key))
    other = tilewright.load(16, 16, 16, batch=3 * full.batch, device="host", first_use="measure", seconds=60)
    assert (other.origin, other.config, tried) == ("predicted", FAST, [])
    tilewright.load(16, 16, 16, batch=few.batch, device="host", first_use="measure", seconds=60)
    assert tried != []
    assert Store().best(info.key, full).config == FAST


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
    tilewright.matmul(a, b, device="host")
    selector = tilewright.load(40, 24, 56, device="host").device.selector
    assert tried == []
    tilewright.prepare((40, 24, 56), device=selector, measure=True, seconds=0.5)
    assert tried[0]
    tried.clear()
    tilewright.prepare((40, 24, 56), device=selector, measure=True, seconds=0.5)
    assert tried == []
    assert (tilewright.matmul(a, b, device="host") == 56).all()
    tilewright.clear()


def test_the_seconds_are_kept_but_what_a_look_up_takes_is_always_tried(tried: list[str]) -> None:
    keep_near_records(Store(), "tiled:16", "tiled:8")
    kernel = tilewright.load(40, 24, 56, device="host", first_use="measure", seconds=1e-9)
    assert (kernel.origin, str(kernel.config)) == ("exact", "tiled:16")
    assert tried == ["tiled:16"]


def test_the_winner_of_the_duel_is_kept_beside_the_library_and_without_it(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "NOISY", math.inf)
    monkeypatch.setattr(first_use, "TRIALS", 2)
    device, lookup, duels = HostDevice(), LookupResult(FAST, "predicted"), list[Duel]()
    original = Bench.duel

    def noted(self: Bench, *arguments: Any) -> Duel:
        duels.append(original(self, *arguments))
        return duels[-1]

    def missing(self: HostDevice, problem: Problem, *arguments: Any) -> Any:
        raise DeviceError("cuBLAS is missing")

    monkeypatch.setattr(Bench, "duel", noted)
    for number, present in enumerate((True, False)):
        if not present:
            monkeypatch.setattr(HostDevice, "vendor", missing)
        problem = Problem(40, 24, 56 + number)
        record = measured(device, problem, Store(), lookup, 60.0).record
        assert record is not None
        assert Store().best(device.info.key, problem) == record
        assert (None in {side.config for side in duels[-1]}) is present
        figures = (record.vendor_us, record.ratio_vendor, record.ratio_interval)
        assert [each is not None for each in figures] == [present] * 3
        assert record.measurement in [side.measurement for side in duels[-1]]
    assert len(duels) == 2


def test_variants_that_do_not_work_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tried: list[str], tmp_path: Path
) -> None:
    device, store = HostDevice(), Store(tmp_path)
    store.keep(make(10.0, Problem(40, 24, 64), SLOW, device.info.key))
    lookup, original = LookupResult(FAST, "predicted"), Bench.try_variant
    working = {SLOW}

    def broken(self: Bench, config: Any, stop_above_us: float) -> Tried:
        outcome = original(self, config if config in working else parse("tiled:8,unroll=32"), stop_above_us)
        return replace(outcome, record=replace(outcome.record, config=config))

    monkeypatch.setattr(Bench, "try_variant", broken)
    assert measured(device, PROBLEM, store, lookup, 60.0).config == SLOW
    record = store.best(device.info.key, PROBLEM)
    assert record is not None
    assert (record.config, len(tried)) == (SLOW, FEW)
    working.clear()
    assert measured(device, Problem(40, 24, 57), store, lookup, 60.0) is lookup  # nothing works
    assert store.best(device.info.key, Problem(40, 24, 57)) is None
    assert len(tried) == 2 * FEW


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch, tried: list[str]) -> None:
    monkeypatch.setattr(HostDevice, "capturing", lambda self, stream: True)
    with pytest.raises(CaptureError, match=r"call tilewright.prepare\('40x24x56', measure=True\) before"):
        tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert tried == []


def test_a_record_that_cannot_serve_is_measured_anew(tried: list[str]) -> None:
    Store().keep(make(1e-3, PROBLEM, parse("tiled:8,unroll=32"), choose("host").key))
    kernel = tilewright.load(40, 24, 56, device="host", first_use="measure")
    assert tried
    record = Store().best(kernel.device.key, PROBLEM)
    assert record is not None
    assert (kernel.origin, record.config, record.effort) == ("exact", kernel.config, FIRST_USE)


def test_threads_measure_a_shape_once(tried: list[str]) -> None:
    keep_near_records(Store(), "tiled:16")
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(tilewright.load, 40, 24, 56, device="host", first_use="measure") for _ in range(4)]
        configs = {load.result().config for load in loads}
    assert len(configs) == 1
    assert len(tried) == len(set(tried)) > 0


@pytest.mark.usefixtures("tried")
def test_a_store_that_cannot_be_written_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Store, record: Any, replace: bool = False) -> bool:
        raise LaunchError("the disk is full")

    monkeypatch.setattr(Store, "keep", keep)
    with pytest.warns(UserWarning, match="measured, but not kept: the disk is full"):
        assert tilewright.load(40, 24, 56, device="host", first_use="measure").origin == "exact"


def test_no_thread_is_left_and_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[InProcess] = []
    close = InProcess.close
    monkeypatch.setattr(InProcess, "close", lambda self: (closed.append(self), close(self))[1])

    def full(self: HostDevice, nbytes: int, *arguments: Any) -> Any:
        raise LaunchError("no memory is left")

    monkeypatch.setattr(HostDevice, "allocate", full)
    with pytest.raises(LaunchError, match="no memory is left"):
        measured(HostDevice(), PROBLEM, Store(), LookupResult(FAST, "predicted"), 1.0)
    (evaluator,) = closed
    with pytest.raises(RuntimeError, match="shutdown"):
        evaluator._pool.submit(print)


# --- on a simulated GPU --------------------------------------------------------------------------------------------


class Times(Protocol):
    """Microseconds of a config; infinity where it fails."""

    def __call__(self, config: Config) -> float: ...


@dataclass
class Gpu:
    """An evaluator in place of `InProcess`. A test says how long each step takes on it."""

    us: Times
    compile_s: Callable[[Config], float] = lambda config: 0.0
    try_s: float = 0.0
    faulty: Config | None = None
    """The config that leaves the device in error."""
    duelled_us: Times | None = None
    """Times in the duel; None takes those of the search."""
    duel_error: Exception | None = None
    given_up: str = ""
    compilers: tuple[()] = ()
    order: list[Config] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    duels: list[tuple[tuple[Config, ...], int, float]] = field(default_factory=list)
    """Contenders, number of rounds, and seconds of each duel."""
    closed: int = 0
    _ready: dict[Config, float] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    brief: bool = False

    def __call__(self, *arguments: Any, brief: bool = False) -> "Gpu":
        self.arguments, self.brief = arguments, brief
        return self

    def room(self) -> int:
        return 10 - len(self._ready)

    def submit(self, config: Config) -> None:
        self._ready[config] = time.monotonic() + self.compile_s(config)

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        end = time.monotonic() + timeout_s
        while not (done := [config for config, at in self._ready.items() if at <= time.monotonic()]):
            if time.monotonic() >= end:
                return []
            time.sleep(0.002)
        del self._ready[done[0]]
        self.order.append(done[0])
        self.limits.append(stop_above_us)
        time.sleep(self.try_s)
        us = self.us(done[0])
        record = make(us if us < math.inf else 1.0, PROBLEM, done[0])
        if us == math.inf or done[0] == self.faulty:
            status = Status.CRASHED if done[0] == self.faulty else Status.WRONG_RESULT
            record = replace(record, status=status, measurement=None, accuracy=None, reason="no")
            self.given_up = "no" if done[0] == self.faulty else ""
        return [Tried(record, Phases(verify_s=self.try_s), fault=done[0] == self.faulty)]

    def busy(self) -> bool:
        return bool(self._ready)

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        self.duels.append((configs, rounds, seconds))
        if self.duel_error is not None:
            raise self.duel_error
        right, us = Accuracy(0.25, 0, 0), self.duelled_us or self.us
        sides = [Side(config, summarise([us(config)] * rounds), right) for config in configs]
        return (*sides, Side(None, summarise([30.0] * rounds), right))

    def close(self) -> None:
        self.closed += 1

    def first_used(
        self, store: Store, first: Config, seconds: float = 60.0, problem: Problem = PROBLEM
    ) -> LookupResult:
        """The result of a look-up after first use has measured on this GPU."""
        compiler = SimpleNamespace(identity="nvrtc 13.0")
        device: Any = SimpleNamespace(
            info=INFO, compiler=compiler, entered=nullcontext, stream=lambda: 0, capturing=lambda stream: False
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first_use, "InProcess", self)
            result = measured(device, problem, store, LookupResult(first, "predicted"), seconds)
        assert self.arguments[:3] == (INFO, problem, device)
        assert self.brief
        assert self.closed > 0
        assert len(self.order) == len(set(self.order)) <= TRIALS
        return result


def start(first: Config, problem: Problem = PROBLEM) -> list[Config]:
    """The configs that a search on the simulated GPU begins with where nothing is stored."""
    ranked = shortlist(problem, INFO, tuple(Store(Path("nowhere").absolute()).records()), ENTRIES)
    return list(dict.fromkeys((first, *(choice.config for choice in ranked))))


def deeper(config: Config) -> float:
    """Microseconds that fall with the k of a tile and the stages of `simt`, and are large for other families."""
    return 30.0 if config.family != "simt" else 20.0 - math.log2(config.cta_tile[2]) - int(config.get("stages")) / 10


def test_a_search_begins_with_the_look_up_and_goes_on_to_neighbours_of_the_fastest() -> None:
    gpu, first = Gpu(deeper), parse("simt:16x16x16,thread=2x4")
    began = time.perf_counter()
    result = gpu.first_used(Store(), first)
    assert time.perf_counter() - began < 20
    expected = start(first)
    assert gpu.order[:BEGUN] == expected[:BEGUN]
    later = gpu.order[BEGUN:]
    assert later
    forecast, shortlisted = Forecast(PROBLEM, INFO), set(expected)
    adjacent = {each for config in gpu.order for each in neighbours(config, forecast)}
    assert set(later) <= shortlisted | adjacent
    assert set(later) - shortlisted
    assert min(map(deeper, later)) < min(map(deeper, gpu.order[:BEGUN]))
    assert deeper(result.config) == min(map(deeper, gpu.order))
    # Timing stops early for a variant that is 1.3 times as slow as the best before it.
    best = [min(map(deeper, gpu.order[:place]), default=math.inf) for place in range(len(gpu.order))]
    assert gpu.limits == pytest.approx([1.3 * us for us in best])


def test_a_search_ends_where_no_gain_is_expected_or_at_the_limit_of_variants() -> None:
    first = parse("simt:16x16x16,thread=2x4")
    for number, (gain, least, most) in enumerate(((first_use.GAIN, LEAST_OUTCOMES, TRIALS - 1), (0.0, TRIALS, TRIALS))):
        gpu = Gpu(lambda config: 10.0 if config == first else 50.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first_use, "GAIN", gain)
            gpu.first_used(Store(), first, problem=Problem(40, 24, 56 + number))
        assert least <= len(gpu.order) <= most


def test_kernels_of_every_family_on_the_shortlist_are_tried() -> None:
    problem, gpu = Problem(3, 70000, 5), Gpu(lambda config: 10.0)
    gpu.first_used(Store(), SLOW, problem=problem)
    assert gpu.order[0] == SLOW
    families = {config.family for config in start(SLOW, problem)}
    assert families >= {"naive", "simt", "skinny"}
    assert {config.family for config in gpu.order} == families


@pytest.mark.parametrize("seconds", [1e-9, 0.05])
def test_the_look_up_is_waited_for_however_short_the_seconds_are(seconds: float) -> None:
    gpu = Gpu(lambda config: 20.0 if config == FAST else 30.0, compile_s=lambda config: 0.4 if config == FAST else 9e9)
    result = gpu.first_used(Store(), FAST, seconds)
    assert gpu.order == [FAST]
    assert (result.config, result.origin) == (FAST, "exact")


def test_nothing_else_is_waited_for_beyond_the_seconds_and_the_duel_has_its_share_of_them() -> None:
    late, try_s = start(FAST)[1], 0.05
    gpu = Gpu(lambda config: 20.0, lambda config: 9e9 if config == late else 0.0, try_s)
    gpu.duel_error = LaunchError("not of interest")
    searched_s = 1.0 - DUEL_SHARE - DUEL_TRIES * try_s
    assert 0.3 < searched_s < 0.6
    began = time.monotonic()
    gpu.first_used(Store(), FAST, seconds=1.0)
    assert searched_s - 0.01 <= time.monotonic() - began < 10
    assert late not in gpu.order
    assert 1 < len(gpu.order) <= 1 + searched_s / try_s
    assert len(gpu.duels) == 1


def test_the_fastest_meet_once_more_beside_the_library() -> None:
    first, *others = start(FAST)
    us = {config: 10.0 + place / 10 for place, config in enumerate(others[:9])}
    winner = others[2]
    gpu = Gpu(lambda config: us.get(config, 20.0), duelled_us=lambda config: 6.0 if config == winner else 12.0)
    result = gpu.first_used(Store(), first)
    ((configs, rounds, seconds),) = gpu.duels
    assert configs == (*others[:KEEP], first)  # what a look-up takes is among them, however slow
    assert (rounds, seconds) == (ROUNDS, 0.0)
    record = result.record
    assert record is not None
    assert (result.config, record.config, record.median_us) == (winner, winner, 6.0)
    assert (record.vendor_us, record.ratio_vendor, record.ratio_interval) == (30.0, 5.0, (5.0, 5.0))
    assert (record.effort, record.accuracy) == (FIRST_USE, Accuracy(0.25, 0, 0))
    assert Store().best(INFO.key, PROBLEM) == record


@pytest.mark.parametrize("error", [
    LaunchError("the device is in error"), ConfigError("wrong on fresh data"), MemoryError("no memory is left"),
])  # fmt: skip
def test_without_a_duel_the_fastest_of_the_search_serves(error: Exception) -> None:
    fastest = start(FAST)[5]
    gpu = Gpu(lambda config: 5.0 if config == fastest else 20.0, duel_error=error)
    record = gpu.first_used(Store(), FAST).record
    assert record is not None
    assert (record.config, record.median_us, record.effort) == (fastest, 5.0, FIRST_USE)
    assert (record.vendor_us, record.ratio_vendor) == (None, None)
    assert len(gpu.duels) == 1


def test_a_device_in_error_ends_the_search_with_the_fastest_so_far() -> None:
    configs = start(FAST)
    us = {configs[2]: 7.0, configs[8]: 1.0}
    gpu = Gpu(lambda config: us.get(config, 20.0), faulty=configs[6])
    result = gpu.first_used(Store(), FAST)
    assert gpu.order == configs[:7]
    assert gpu.duels == []  # nothing more runs on that device
    assert result.record is not None
    assert (result.config, result.record.median_us, result.record.vendor_us) == (configs[2], 7.0, None)
    assert Store().best(INFO.key, PROBLEM) == result.record


def test_a_device_in_error_before_anything_works_leaves_what_a_look_up_takes() -> None:
    gpu = Gpu(lambda config: 20.0, faulty=FAST)
    result = gpu.first_used(Store(), FAST)
    assert (result.config, result.origin, result.record) == (FAST, "predicted", None)
    assert (gpu.order, gpu.duels) == ([FAST], [])
    assert Store().best(INFO.key, PROBLEM) is None


def test_a_record_that_another_thread_kept_meanwhile_is_taken() -> None:
    store = Store()
    store.keep(make(5.0, PROBLEM, SLOW))
    device: Any = SimpleNamespace(
        info=INFO, entered=nullcontext, stream=lambda: 0, capturing=lambda stream: False
    )  # nothing can be compiled on it
    result = measured(device, PROBLEM, store, LookupResult(FAST, "predicted"), 2.0)
    assert (result.config, result.origin, result.record) == (SLOW, "exact", make(5.0, PROBLEM, SLOW))


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"first_use": "guess"}, r"first_use must be 'predict' or 'measure', got 'guess'"),
    ({"first_use": "measure", "seconds": "2"}, r"seconds must be a number, got '2'"),
    ({"first_use": "measure", "seconds": math.inf}, r"seconds must be positive and below 10\^9, got inf"),
    ({"seconds": math.nan}, r"seconds must be positive and below 10\^9, got nan"),
    ({"seconds": 0}, r"seconds must be positive and below 10\^9, got 0"),
])  # fmt: skip
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=message):
        tilewright.load(40, 24, 56, device="host", **options)


def test_a_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "yes")
    with pytest.raises(ConfigError, match="TILEWRIGHT_FIRST_USE must be predict or measure, got 'yes'"):
        tilewright.load(40, 24, 56, device="host")
