"""How fast is a variant? Device events around batches of launches over rotating inputs."""

import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...codegen.problem import Problem
from ..device.protocol import Device, Launch, Operand
from ..locks import CachedProperty
from ..product.arguments import operand_of
from ..store.record import Measurement
from .threads import one_thread
from .verify import place

Name = TypeVar("Name", bound=Hashable)
P = ParamSpec("P")
R = TypeVar("R")
Inputs: TypeAlias = tuple[Operand, Operand, Operand]

GRAPH_BELOW_US = 500.0
"""Contenders that are compared are launched from a graph below this: later than a variant that is timed by itself, so
that none has the launch of its batch in its time and another not."""

_STAYS_WARM_S = 2.0
"""An H200 kept its clocks through 4 s of idling, and its times through those measured in between."""
_ROW_US = 20_000.0
"""Batches of a contender that runs for some time are queued in rows of about this length, so that gaps are short."""
_ELEMENTS = 4096
"""Of the array of the kernel that is put between two products: it takes some 2 us, most of it the launch."""
_NOISE = 0.1
"""What a product adds to the time of that kernel is at least this share of it, or is not told from noise."""
_EAGER_CALLS = 100
_LOWER = 0.97
"""Clocks below this share of the highest are lower."""


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How much timing is enough."""

    warm_seconds: float
    """The device runs this long before anything is timed: idle clocks are a fraction of loaded ones."""
    graph_below_us: float
    """Products faster than this are launched from one graph, so that the launch itself is not what is timed."""
    batch_us: float
    """A batch lasts at least this long, so that the events' resolution does not count."""
    seconds: float
    """Batches are timed for this long."""
    least: int
    """Batches timed whatever the time."""
    most: int
    """Batches after which no more is learned."""
    rotate_l2: float
    """The inputs rotated over are this many times the last-level cache."""
    max_sets: int
    """Most input sets."""
    between: bool = False
    """Whether products that are compared are also timed with another library's kernel between two of them."""

    @classmethod
    def of(cls, device: Device) -> "TimingPlan":
        """The plan for a device: the processor needs neither a graph nor cold inputs to be judged."""
        if device.info.arch.is_host:
            return cls(0.0, 0.0, 200.0, 0.25, 1, 5, 0.0, 1)
        return cls(0.3, 50.0, 200.0, 0.02, 3, 64, 2.5, 2048, between=True)

    def cold_sets(self, device: Device, problem: Problem) -> int:
        """So many input sets have to be rotated over for each to be read from memory."""
        return max(1, math.ceil(self.rotate_l2 * device.info.l2_bytes / max(1, problem.bytes)))

    @classmethod
    def side_by_side(cls, device: Device) -> "TimingPlan":
        """The plan for contenders that are compared with each other."""
        plan = cls.of(device)
        return replace(plan, graph_below_us=plan.graph_below_us and GRAPH_BELOW_US)


@dataclass(frozen=True, slots=True)
class Timed:
    """A contender, ready to be timed again and again."""

    batch: Callable[[], None]
    """Launches one batch."""
    launches: int
    """Products in a batch."""
    first_us: float
    """Microseconds of one product launched by itself."""


def _on_one_thread(
    method: Callable[Concatenate["Timer", P], R],
) -> Callable[Concatenate["Timer", P], R]:
    """A method of `Timer` during which NumPy multiplies on one thread where the device is the processor: kernels run
    on one core of it."""

    @wraps(method)
    def limited(timer: "Timer", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with one_thread() if timer.device.info.arch.is_host else nullcontext():
            return method(timer, *args, **kwargs)

    return limited


class Timer:
    """Rotating inputs of one problem on one device; times any number of contenders on them."""

    def __init__(
        self, device: Device, problem: Problem, seed: int = 7, plan: TimingPlan | None = None,
        inputs: Sequence[Inputs] = (),
    ) -> None:  # fmt: skip
        """`inputs` are rotated over in place of random ones; each C is overwritten."""
        self.device = device
        self.problem = problem
        self.plan = plan or TimingPlan.of(device)
        self.sets = len(inputs) or min(self.plan.max_sets, self.plan.cold_sets(device, problem))
        self._inputs = list(inputs) or self._rotating(seed)
        self._next = 0
        self._warm_until = 0.0

    def _rotating(self, seed: int) -> list[Inputs]:
        """The sets, each matrix of all sets in one allocation. Random: zeros run faster than data."""
        problem, sets = self.problem, self.sets
        rng = np.random.default_rng(seed)
        shapes = (
            (problem.stored_a, problem.trans_a),
            (problem.stored_b, problem.trans_b),
            ((problem.m, problem.n), False),
        )
        stacks = []
        for (rows, cols), trans in shapes:
            stack, _ = place(self.device, problem, (sets * rows, cols), False, rng)
            step = rows * cols * problem.dtype.size_bytes
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
        """Keep the device busy until its clocks are up; at once if it was busy a moment ago. Raises LaunchError."""
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
        """Decide how a contender is batched, and capture the batch where it is fast. Raises LaunchError."""
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
        """Microseconds of one product, from so many batches in a row."""

        def run() -> None:
            for _ in range(batches):
                timed.batch()

        elapsed = self.device.elapsed_us(run) / (timed.launches * batches)
        self._warm_until = time.perf_counter() + _STAYS_WARM_S
        return elapsed

    @_on_one_thread
    def measure(self, launch: Launch, stop_above_us: float = math.inf) -> Measurement:
        """Time one contender; it is given up after one product if that took longer than `stop_above_us`.

        Raises LaunchError.
        """
        timed = self.ready(launch)
        samples: list[float] = []
        if timed.first_us > max(stop_above_us, self.plan.batch_us):
            return summarise([timed.first_us], self.device.clock_mhz())
        end = time.perf_counter() + self.plan.seconds
        while len(samples) < self.plan.most:
            samples.append(self.sample_us(timed))
            if len(samples) >= self.plan.least and (time.perf_counter() > end or min(samples) > stop_above_us):
                break
        return summarise(samples, self.device.clock_mhz())

    @_on_one_thread
    def rounds(
        self,
        contenders: Mapping[Name, Launch],
        count: int,
        seconds: float = 0.0,
        turn_seconds: float = 0.0,
    ) -> tuple[dict[Name, list[float]], float | None]:
        """Time contenders side by side, `count` rounds in shuffled orders: samples by name, and the clock.

        Where they take less than `seconds`, more rounds follow, up to the most of the plan. A sample is a batch, or
        with `turn_seconds` what is left of so long a turn after a third of it: a device at its power limit then runs
        each at the clock that it comes to by itself, and else all at one. Raises LaunchError.
        """
        timed = {name: self.ready(launch) for name, launch in contenders.items()}
        samples: dict[Name, list[float]] = {name: [] for name in contenders}
        order = random.Random(0)
        end = time.perf_counter() + seconds
        for done in range(max(count, self.plan.most)):
            if done >= count and time.perf_counter() >= end:
                break
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
        """A product and after it a short kernel of the array library; that kernel alone where no product is given.

        The array library launches it without PDL: it begins when the product is done, and ends before the next one
        reads anything.
        """
        negative, array = self.device.xp.negative, self.device.xp.zeros(_ELEMENTS, "float32")

        def both(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            if launch is not None:
                launch(a, b, c, alpha, beta)
            negative(array, out=array)

        return both

    def _run_for(self, timed: Timed, seconds: float) -> float:
        """Keep a contender running: the mean microseconds of a product, gaps between rows of batches left out."""
        batches = max(1, round(_ROW_US / max(1.0, timed.first_us * timed.launches)))
        end = time.perf_counter() + seconds
        samples = [self.sample_us(timed, batches)]
        while time.perf_counter() < end:
            samples.append(self.sample_us(timed, batches))
        return statistics.fmean(samples)

    def held_back(self) -> bool:
        """Whether the device has lowered its clocks for power or heat, asked right after it was busy."""
        clock = self.device.clock_mhz()
        return clock is not None and clock < _LOWER * self.device.info.clock_mhz and self.device.held_back()

    @_on_one_thread
    def eager(self, contenders: Mapping[Name, Launch]) -> dict[Name, list[float]]:
        """Microseconds from one call to its end, no graph, what the processor does counted; contenders take turns."""
        samples: dict[Name, list[float]] = {name: [] for name in contenders}
        for launch in contenders.values():
            self.warm(launch)
        end = time.perf_counter() + self.plan.seconds * len(contenders)
        for done in range(_EAGER_CALLS):
            if done >= self.plan.least and time.perf_counter() >= end:
                break
            for name, launch in contenders.items():
                begin = time.perf_counter()
                self._launch_next(launch, 1)
                self.device.synchronize()
                samples[name].append((time.perf_counter() - begin) * 1e6)
        return samples

    @_on_one_thread
    def end_to_end_us(self, launch: Launch) -> float:
        """Microseconds from operands in the processor's memory to the result there: the median of a few products."""
        xp, problem = self.device.xp, self.problem
        a, b = self._in_processors_memory

        def product() -> None:
            inside = [xp.asarray(array) for array in (a, b)]  # no copy where the device is the processor
            c = xp.empty((problem.m, problem.n), problem.dtype.numpy_name)
            a_operand = operand_of("a", inside[0], problem.trans_a)
            b_operand = operand_of("b", inside[1], problem.trans_b)
            launch(a_operand, b_operand, operand_of("c", c, False), 1.0, 0.0)
            self.device.to_numpy(c)

        times: list[float] = []
        end = time.perf_counter() + self.plan.seconds
        while not times or (len(times) < 5 and time.perf_counter() < end):
            begin = time.perf_counter()
            product()
            times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times)

    @CachedProperty
    def _in_processors_memory(self) -> tuple[NDArray[Any], NDArray[Any]]:
        rng, problem = np.random.default_rng(5), self.problem
        a, b = (rng.random(shape).astype(problem.dtype.numpy_name) for shape in (problem.stored_a, problem.stored_b))
        return a, b


def added_us(followed: Sequence[float], alone: Sequence[float]) -> list[float]:
    """What a product adds, round by round, to the kernel after it (`Timer.followed`): microseconds with the product
    minus the median of those without. Empty where one of them is so short that it may be noise."""
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
