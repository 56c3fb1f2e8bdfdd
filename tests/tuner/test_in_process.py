"""Threads of this process compile variants, which are tried one after the other."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from stored import INFO, make
from tilewright.codegen.config import Config
from tilewright.codegen.errors import CompileError, DeviceError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Status
from tilewright.tuner.measure import evaluate
from tilewright.tuner.measure.evaluate import THREAD_QUEUE, InProcess, Phases, Tried

PROBLEM = Problem(40, 24, 56)
FIRST, SECOND, THIRD = (parse(f"tiled:{width}") for width in (8, 16, 32))
LIMIT_S = 20.0
"""Seconds after which a test that waits for a thread has failed."""


class Compiling:
    """A compiler whose kernels are done when a test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done = {config: threading.Event() for config in (FIRST, SECOND, THIRD)}
        self.failing: Exception | None = None
        self._change = threading.Condition()

    def __call__(self, compiler: object, source: KernelSource) -> SimpleNamespace:
        with self._change:
            self.begun.append(source.name)
            self._change.notify_all()
        release = next((event for config, event in self.done.items() if source.name == name_of(config)), None)
        assert release is None or release.wait(LIMIT_S)
        if self.failing is not None:
            raise self.failing
        return SimpleNamespace(seconds=3.5)

    def wait_for(self, count: int) -> list[str]:
        """Names of the kernels that were begun, once there are `count`."""
        with self._change:
            assert self._change.wait_for(lambda: len(self.begun) >= count, LIMIT_S)
            return list(self.begun)


def name_of(config: Config) -> str:
    return evaluate.render(PROBLEM, config, INFO).name


class Trying:
    """A bench on which each variant takes as long as it may, and all but `fault` work."""

    benches: ClassVar[list["Trying"]] = []
    fault: ClassVar[Config | None] = None
    warm_error: ClassVar[Exception | None] = None

    def __init__(self, device: Any, problem: Problem) -> None:
        self.device, self.warmed, self.duels = device, 0, list[tuple[Any, ...]]()
        self.benches.append(self)

    def warm(self) -> None:
        self.warmed += 1
        if self.warm_error is not None:
            raise self.warm_error

    def try_variant(self, config: Config, stop_above_us: float) -> Tried:
        record = make(stop_above_us, config=config)
        if config == self.fault:
            record = replace(record, status=Status.CRASHED, measurement=None, accuracy=None, reason="a wrong address")
        return Tried(record, Phases(compile_s=0.25), fault=config == self.fault)

    def duel(self, *arguments: Any) -> str:
        self.duels.append(arguments)
        return "a duel"


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    compiler = Compiling()
    monkeypatch.setattr(evaluate, "compile_cached", compiler)
    monkeypatch.setattr(evaluate, "Bench", Trying)
    monkeypatch.setattr(Trying, "benches", [])
    yield compiler
    for event in compiler.done.values():  # threads of a failed test end too
        event.set()


@pytest.fixture
def started() -> Iterator[Callable[..., InProcess]]:
    """Factory of evaluators that end with the test."""
    evaluators: list[InProcess] = []

    def start(threads: int = 2, brief: bool = True, info: DeviceInfo = INFO) -> InProcess:
        device: Any = SimpleNamespace(info=info, compiler="a compiler")
        evaluators.append(InProcess(info, PROBLEM, device, threads, brief))
        return evaluators[-1]

    yield start
    for evaluator in evaluators:
        evaluator.close()


def tried(evaluator: InProcess, timeout_s: float = LIMIT_S, stop_above_us: float = 50.0) -> list[Config]:
    return [each.record.config for each in evaluator.results(timeout_s, stop_above_us)]


def test_threads_compile_side_by_side_and_a_few_variants_wait_for_them(
    compiling: Compiling, started: Callable[..., InProcess]
) -> None:
    evaluator = started(threads=2)
    assert evaluator.room() == 2 + THREAD_QUEUE
    for config in (FIRST, SECOND, THIRD):
        evaluator.submit(config)
    assert evaluator.room() == THREAD_QUEUE - 1
    assert set(compiling.wait_for(2)) == {name_of(FIRST), name_of(SECOND)}  # at the same time
    assert len(compiling.begun) == 2
    compiling.done[SECOND].set()
    assert compiling.wait_for(3)[-1] == name_of(THIRD)


def test_one_thread_has_one_variant_at_a_time(compiling: Compiling, started: Callable[..., InProcess]) -> None:
    evaluator = started(threads=1, brief=False)
    assert (evaluator.room(), evaluator.busy()) == (1, False)
    evaluator.submit(FIRST)
    assert (evaluator.room(), evaluator.busy()) == (0, True)
    compiling.done[FIRST].set()
    assert tried(evaluator) == [FIRST]
    assert (evaluator.room(), evaluator.busy()) == (1, False)


def test_the_compiled_variant_that_was_submitted_first_is_tried_and_late_ones_are_not_waited_for(
    compiling: Compiling, started: Callable[..., InProcess]
) -> None:
    evaluator = started(threads=3)
    for config in (FIRST, SECOND, THIRD):
        evaluator.submit(config)
    assert tried(evaluator, 0.01) == []
    compiling.done[THIRD].set()
    assert tried(evaluator) == [THIRD]
    assert evaluator.busy()
    futures = {config: future for future, config in evaluator._waiting.items()}
    for config in (SECOND, FIRST):
        compiling.done[config].set()
        futures[config].result(LIMIT_S)
    assert [tried(evaluator), tried(evaluator), tried(evaluator)] == [[FIRST], [SECOND], []]
    assert not evaluator.busy()


def test_a_trial_has_the_seconds_of_compiling_and_the_limit_of_timing(
    compiling: Compiling, started: Callable[..., InProcess]
) -> None:
    evaluator = started()
    compiling.done[FIRST].set()
    evaluator.submit(FIRST)
    (result,) = evaluator.results(LIMIT_S, 77.0)
    assert result.phases.compile_s == 3.5 + 0.25
    assert result.record.median_us == 77.0  # that bench takes as long as it may


@pytest.mark.parametrize("failing", [CompileError("no such instruction"), DeviceError("no compiler")])
def test_an_error_of_a_compiler_is_left_to_the_trial(
    failing: Exception, compiling: Compiling, started: Callable[..., InProcess]
) -> None:
    evaluator, compiling.failing = started(), failing
    compiling.done[FIRST].set()
    evaluator.submit(FIRST)
    assert tried(evaluator) == [FIRST]


def test_a_variant_that_cannot_be_rendered_is_a_failure_like_any_other() -> None:
    evaluator = InProcess(HostDevice().info, PROBLEM, HostDevice(), 2)
    evaluator.submit(parse("tiled:8,unroll=32"))
    assert evaluator.busy()
    (result,) = evaluator.results(LIMIT_S, math.inf)
    evaluator.close()
    assert result.record.status is Status.PRUNED
    assert "unroll" in result.record.reason
    assert not evaluator.given_up


def test_the_bench_is_made_while_threads_compile_and_the_library_loads_its_kernel_then(
    compiling: Compiling, started: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trying, "warm_error", LaunchError("the library is missing"))  # costs no variant
    evaluator = started(brief=True)
    evaluator.submit(FIRST)
    compiling.wait_for(1)
    assert Trying.benches == []
    assert tried(evaluator, 0.01) == []
    assert [bench.warmed for bench in Trying.benches] == [1]
    compiling.done[FIRST].set()
    assert tried(evaluator) == [FIRST]
    assert len(Trying.benches) == 1
    for thorough in (started(brief=False), started(brief=True, info=HostDevice().info)):
        assert thorough.results(0.0, math.inf) == []
        assert Trying.benches[-1].warmed == 0


def test_on_the_processor_nothing_is_timed_while_threads_compile(
    compiling: Compiling, started: Callable[..., InProcess]
) -> None:
    evaluator, ended = started(info=HostDevice().info), list[Config]()
    compiling.done[FIRST].set()
    for config in (FIRST, SECOND):
        evaluator.submit(config)
    thread = threading.Thread(target=lambda: ended.extend(tried(evaluator, 0.0)))
    thread.start()
    compiling.wait_for(2)
    thread.join(0.1)
    assert thread.is_alive()
    assert ended == []
    compiling.done[SECOND].set()
    thread.join(LIMIT_S)
    assert ended == [FIRST]


def test_a_device_in_error_ends_the_evaluator(
    compiling: Compiling, started: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trying, "fault", SECOND)
    evaluator = started()
    for config, reason in ((FIRST, ""), (SECOND, "a wrong address")):
        compiling.done[config].set()
        evaluator.submit(config)
        assert tried(evaluator) == [config]
        assert evaluator.given_up == reason


def test_a_duel_drops_the_variants_that_wait(compiling: Compiling, started: Callable[..., InProcess]) -> None:
    for brief in (False, True):
        evaluator = started(threads=2, brief=brief)
        for config in (FIRST, SECOND, THIRD):
            evaluator.submit(config)
        waiting = {config: future for future, config in evaluator._waiting.items()}
        result: Any = evaluator.duel((FIRST,), 7, 1.5)
        assert result == "a duel"
        assert Trying.benches[-1].duels == [((FIRST,), 7, 1.5, brief)]
        assert waiting[THIRD].cancelled()  # no thread had begun it
