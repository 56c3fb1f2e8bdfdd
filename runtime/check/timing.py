"""Timing of variants by device events around batches of launches over rotating inputs."""

import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...codegen.problem import Problem
from ..device.protocol import Device, Launch, Operand, aligned_bytes
from ..locks import CachedProperty, one_thread
from ..product.arguments import operand_of
from ..store.record import Measurement
from .verify import place

Name = TypeVar("Name", bound=Hashable)
M = TypeVar("M", bound=Callable[..., Any])
Inputs: TypeAlias = tuple[Operand, Operand, Operand]

GRAPH_BELOW_US = 500.0
"""Microseconds of a product below which contenders are compared from a graph. The limit is higher than for a variant
that is timed alone, so that the launch of a batch is in the times of all contenders or of none."""

_STAYS_WARM_S = 2.0
"""Seconds of idling after which a device is warmed up again. An H200 keeps its clocks for longer."""
_ROW_US = 20_000.0
"""Microseconds of batches that are queued in a row for a contender with long turns, so that gaps are short."""
_ELEMENTS = 4096
"""Elements of the array that the short kernel between two products negates, in some 2 us, mostly for its launch."""
_NOISE = 0.1
"""Share of the short kernel's time below which the time that a product adds to it may be noise."""
_EAGER_CALLS = 100
"""Most calls of each contender that are timed one by one."""
_END_TO_END = 5
"""Most products that are timed with copies to the device and back."""
_LOWER = 0.97
"""Share of the highest clock below which clocks count as lowered."""


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """Amount of timing."""

    warm_seconds: float
    """Seconds that the device runs before anything is timed: idle clocks are a fraction of loaded ones."""
    graph_below_us: float
    """Microseconds below which products are launched from one graph, so that launches do not dominate the time."""
    batch_us: float
    """Least microseconds of a batch, so that the events' resolution does not matter."""
    seconds: float
    """Seconds in which batches are timed."""
    least: int
    """Least number of batches."""
    most: int
    """Largest number of batches."""
    rotate_l2: float
    """Size of all input sets together, as a multiple of the last-level cache."""
    max_sets: int
    """Largest number of input sets."""
    between: bool = False
    """Whether products that are compared are also timed with another library's kernel between two of them."""

    @classmethod
    def of(cls, device: Device) -> "TimingPlan":
        """The plan for a device; the processor needs neither graphs nor cold inputs."""
        if device.info.arch.is_host:
            return cls(0.0, 0.0, 200.0, 0.25, 1, 5, 0.0, 1)
        return cls(0.3, 50.0, 200.0, 0.02, 3, 64, 2.5, 2048, between=True)

    def cold_sets(self, device: Device, problem: Problem) -> int:
        """Number of input sets that suffices for every product to read from memory, not from the cache."""
        return max(1, math.ceil(self.rotate_l2 * device.info.l2_bytes / max(1, problem.bytes)))

    @classmethod
    def side_by_side(cls, device: Device) -> "TimingPlan":
        """The plan for contenders that are compared with each other."""
        plan = cls.of(device)
        return replace(plan, graph_below_us=plan.graph_below_us and GRAPH_BELOW_US)


@dataclass(frozen=True, slots=True)
class Timed:
    """A contender that is ready for timing."""

    batch: Callable[[], None]
    """Launches one batch."""
    launches: int
    """Number of products in a batch."""
    first_us: float
    """Microseconds of one product launched by itself."""


def _on_one_thread(method: M) -> M:
    """Wrap a method of `Timer` so that NumPy multiplies on one thread where the device is the processor, as kernels run
    on one core."""

    @wraps(method)
    def limited(timer: "Timer", *args: Any, **options: Any) -> Any:
        with one_thread() if timer.device.info.arch.is_host else nullcontext():
            return method(timer, *args, **options)

    return cast(M, limited)


class Timer:
    """Times any number of contenders for one problem on one device, on rotating inputs."""

    def __init__(
        self, device: Device, problem: Problem, seed: int = 7, plan: TimingPlan | None = None,
        inputs: Sequence[Inputs] = (),
    ) -> None:  # fmt: skip
        """`inputs` take the place of random ones; each C is overwritten."""
        self.device = device
        self.problem = problem
        self.plan = plan or TimingPlan.of(device)
        self.sets = len(inputs) or min(self.plan.max_sets, self.plan.cold_sets(device, problem))
        self._inputs = list(inputs) or self._rotating(seed)
        self._next = 0
        self._warm_until = 0.0

    def _rotating(self, seed: int) -> list[Inputs]:
        """Draw random input sets, as zeros run faster than data. The sets share one allocation for A, B and C each."""
        problem, sets = self.problem, self.sets
        rng = np.random.default_rng(seed)
        shapes = (
            (problem.stored_a, problem.trans_a),
            (problem.stored_b, problem.trans_b),
            ((problem.m, problem.n), False),
        )
        stacks = []
        for (matrix_rows, cols), trans in shapes:
            rows, size = matrix_rows * problem.batch, problem.dtype.size_bytes  # matrices of a batch follow each other
            step = aligned_bytes(rows * cols * size)
            stack, _ = place(self.device, problem, (1, sets * step // size), False, rng)
            stacks.append(
                [Operand(stack.pointer + i * step, rows, cols, max(1, cols), trans, stack.owner) for i in range(sets)]
            )
        return list(zip(*stacks))

    def _launch_next(self, launch: Launch, count: int) -> None:
        for _ in range(count):
            a, b, c = self._inputs[self._next]
            self._next = (self._next + 1) % self.sets
            launch(a, b, c, 1.0, 0.0)

    def warm(self, launch: Launch) -> None:
        """Keep the device busy until its clocks are up, unless it was busy a moment ago. Raises LaunchError."""
        if not self.plan.warm_seconds:
            return
        end = time.perf_counter() + (self.plan.warm_seconds if time.perf_counter() > self._warm_until else 0.0)
        while True:
            self._launch_next(launch, 1)
            self.device.synchronize()
            if time.perf_counter() >= end:
                break
        self._warm_until = time.perf_counter() + _STAYS_WARM_S

    @_on_one_thread
    def ready(self, launch: Launch) -> Timed:
        """Choose the size of a contender's batch, and capture a fast one's batch as a graph. Raises LaunchError."""
        self.warm(launch)
        first_us = self.device.elapsed_us(lambda: self._launch_next(launch, 1))
        if first_us >= self.plan.graph_below_us:
            launches = max(1, math.ceil(self.plan.batch_us / first_us))
            return Timed(lambda: self._launch_next(launch, launches), launches, first_us)
        launches = self.sets * math.ceil(20 / self.sets)
        self._next = 0
        batch = self.device.capture(
            lambda: self._launch_next(launch, launches), first=lambda: self._launch_next(launch, 1)
        )
        return Timed(batch, launches, first_us)

    @_on_one_thread
    def sample_us(self, timed: Timed, batches: int = 1) -> float:
        """Mean microseconds of one product over `batches` in a row."""

        def run() -> None:
            for _ in range(batches):
                timed.batch()

        elapsed = self.device.elapsed_us(run) / (timed.launches * batches)
        self._warm_until = time.perf_counter() + _STAYS_WARM_S
        return elapsed

    @_on_one_thread
    def measure(self, launch: Launch, stop_above_us: float = math.inf) -> Measurement:
        """Time one contender. Timing ends early once the contender has proved slower than `stop_above_us`.

        Raises LaunchError.
        """
        timed = self.ready(launch)
        samples: list[float] = []
        if timed.first_us > max(stop_above_us, self.plan.batch_us):
            return summarise([timed.first_us], self.device.clock_mhz())
        for _ in _repeated(self.plan.seconds, self.plan.least, self.plan.most):
            samples.append(self.sample_us(timed))
            if len(samples) >= self.plan.least and min(samples) > stop_above_us:
                break
        return summarise(samples, self.device.clock_mhz())

    @_on_one_thread
    def rounds(
        self, contenders: Mapping[Name, Launch], count: int, seconds: float = 0.0, turn_seconds: float = 0.0
    ) -> tuple[dict[Name, list[float]], float | None]:
        """Time contenders side by side, in `count` rounds of shuffled orders. Returns samples in microseconds by name,
        and the clock in MHz.

        More rounds follow until `seconds` have passed, up to the plan's largest number. A sample is one batch, or with
        `turn_seconds` the last two thirds of a turn of that length. In turns a device at its power limit runs each
        contender at the contender's own clock, and else all of them at one clock. Raises LaunchError.
        """
        timed = {name: self.ready(launch) for name, launch in contenders.items()}
        samples: dict[Name, list[float]] = {name: [] for name in contenders}
        order = random.Random(0)
        for _ in _repeated(seconds, count, max(count, self.plan.most)):
            names = list(timed)
            order.shuffle(names)
            for name in names:
                if turn_seconds:
                    self._run_for(timed[name], turn_seconds / 3)
                    samples[name].append(self._run_for(timed[name], turn_seconds * 2 / 3))
                else:
                    samples[name].append(self.sample_us(timed[name]))
        return samples, self.device.clock_mhz()

    def followed(self, launch: Launch | None = None) -> Launch:
        """Return a launch of a product, if there is one, and then of a short kernel of the array library.

        The array library launches its kernel without PDL, so that it begins when the product is done, and ends before
        the next product reads anything.
        """
        negative, array = self.device.xp.negative, self.device.xp.zeros(_ELEMENTS, "float32")

        def both(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            if launch is not None:
                launch(a, b, c, alpha, beta)
            negative(array, out=array)

        return both

    def _run_for(self, timed: Timed, seconds: float) -> float:
        """Run a contender for `seconds`. Returns the mean microseconds of a product, without gaps between rows."""
        batches = max(1, round(_ROW_US / max(1.0, timed.first_us * timed.launches)))
        end = time.perf_counter() + seconds
        samples = [self.sample_us(timed, batches)]
        while time.perf_counter() < end:
            samples.append(self.sample_us(timed, batches))
        return statistics.fmean(samples)

    def held_back(self) -> bool:
        """Whether the device has lowered its clocks for power or heat; it must have been busy until now."""
        clock = self.device.clock_mhz()
        return clock is not None and clock < _LOWER * self.device.info.clock_mhz and self.device.held_back()

    @_on_one_thread
    def eager(self, contenders: Mapping[Name, Launch]) -> dict[Name, list[float]]:
        """Microseconds of single calls without a graph, the processor's work included. Contenders take turns."""
        samples: dict[Name, list[float]] = {name: [] for name in contenders}
        for launch in contenders.values():
            self.warm(launch)
        for _ in _repeated(self.plan.seconds * len(contenders), self.plan.least, _EAGER_CALLS):
            for name, launch in contenders.items():
                begin = time.perf_counter()
                self._launch_next(launch, 1)
                self.device.synchronize()
                samples[name].append((time.perf_counter() - begin) * 1e6)
        return samples

    @_on_one_thread
    def end_to_end_us(self, launch: Launch) -> float:
        """Median microseconds of a few products from operands in the processor's memory to the result there."""
        xp, problem = self.device.xp, self.problem
        a, b = self._in_processors_memory

        def product() -> None:
            on_device = [xp.asarray(array) for array in (a, b)]  # no copy where the device is the processor
            c = xp.empty((problem.batch * problem.m, problem.n), problem.dtype.numpy_name)
            a_operand = operand_of("a", on_device[0], problem.trans_a)
            b_operand = operand_of("b", on_device[1], problem.trans_b)
            launch(a_operand, b_operand, operand_of("c", c, False), 1.0, 0.0)
            self.device.to_numpy(c)

        times: list[float] = []
        for _ in _repeated(self.plan.seconds, 1, _END_TO_END):
            begin = time.perf_counter()
            product()
            times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times)

    @CachedProperty
    def _in_processors_memory(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A and B in the processor's memory, drawn once."""
        rng, problem = np.random.default_rng(5), self.problem
        a, b = (
            rng.random((problem.batch * rows, cols)).astype(problem.dtype.numpy_name)
            for rows, cols in (problem.stored_a, problem.stored_b)
        )
        return a, b


def _repeated(seconds: float, least: int, most: int) -> Iterator[None]:
    """Repeat a loop until `seconds` have passed, but at least `least` times and at most `most` times."""
    end = time.perf_counter() + seconds
    for done in range(most):
        if done >= least and time.perf_counter() >= end:
            break
        yield


def added_us(followed: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Microseconds that a product adds to the kernel after it (`Timer.followed`), by round: the time with the product
    less the median time without. Empty if one of the differences is so short that it may be noise."""
    kernel_us = statistics.median(alone)
    added = [us - kernel_us for us in followed]
    return added if min(added) > _NOISE * kernel_us else []


def summarise(samples: list[float], clock_mhz: float | None = None, end_to_end_us: float | None = None) -> Measurement:
    """Median and interquartile range of samples in microseconds."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return Measurement(
        samples_us=tuple(samples),
        median_us=statistics.median(samples),
        spread_us=max(0.0, quartiles[2] - quartiles[0]),
        end_to_end_us=end_to_end_us,
        clock_mhz=clock_mhz,
    )
