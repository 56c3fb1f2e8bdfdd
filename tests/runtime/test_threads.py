"""Times on the processor are those of one thread, NumPy's too: kernels run on one core of it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.threads import one_thread
from tilewright.runtime.check.timing import Timer
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Launch, Operand
from tilewright.tuner.bench import contest

PROBLEM = Problem(9, 8, 7)


def most() -> int:
    """The most threads of a library that multiplies."""
    return max(each["num_threads"] for each in threadpool_info())


@pytest.fixture
def two_threads() -> Iterator[None]:
    """A process whose libraries take two threads, as they do unless somebody says otherwise."""
    with threadpool_limits(2):
        yield
        assert most() == 2


class Noting(HostDevice):
    """Notes how many threads NumPy has, each time it multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def vendor(self, *given: Any) -> Launch:
        launch = super().vendor(*given)

        def noting(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            self.noted.append(most())
            launch(a, b, c, alpha, beta)

        return noting


@pytest.mark.parametrize("way", ["ready", "sample", "measure", "rounds", "turns", "eager", "end to end"])
def test_each_way_of_timing(way: str, two_threads: None) -> None:
    device = Noting()
    timer, launch = Timer(device, PROBLEM), device.vendor(PROBLEM)
    timed = timer.ready(launch)
    device.noted.clear()
    {
        "ready": lambda: timer.ready(launch),
        "sample": lambda: timer.sample_us(timed),
        "measure": lambda: timer.measure(launch),
        "rounds": lambda: timer.rounds({"numpy": launch}, 2),
        "turns": lambda: timer.rounds({"numpy": launch}, 1, turn_seconds=0.001),
        "eager": lambda: timer.eager({"numpy": launch}),
        "end to end": lambda: timer.end_to_end_us(launch),
    }[way]()
    assert set(device.noted) == {1}


def test_a_contest_with_numpy(two_threads: None) -> None:
    device = Noting()
    found = contest.contest(device, PROBLEM, ("numpy",), None, 0.01)
    assert [rival.key for rival in found.rivals] == ["numpy"]
    timed = device.noted[device.noted.index(1) :]  # what is checked comes before
    assert len(timed) > 7
    assert set(timed) == {1}


def test_threads_that_want_it_take_turns() -> None:
    """Each would else restore the limit of another one, for good."""
    entered, leave, seen = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with one_thread(), one_thread():
            entered.set()
            leave.wait(10)
            seen.append("first")

    def second() -> None:
        with one_thread():
            seen.append("second")

    threads = [threading.Thread(target=each) for each in (first, second)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    threads[1].join(0.05)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["first", "second"]
