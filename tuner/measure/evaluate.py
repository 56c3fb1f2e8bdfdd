"""Trials of variants in this process: compile, verify, time. A failure is a record, not an exception."""

import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...codegen.config import Config
from ...codegen.errors import CompileError, ConfigError, DeviceError, DeviceFaultError, LaunchError
from ...codegen.problem import Problem
from ...codegen.render import render
from ...codegen.source import KernelSource
from ...runtime.check.timing import Timer, TimingPlan, added_us, summarise
from ...runtime.check.verify import Verdict, Verifier, compile_check
from ...runtime.device.cache import compile_cached
from ...runtime.device.detect import open_device
from ...runtime.device.protocol import Device, DeviceInfo, Launch
from ...runtime.locks import CachedProperty, Lock
from ...runtime.product.kernel import prepare
from ...runtime.store.record import Accuracy, Measurement, Record, Status
from ...runtime.store.versions import versions_of
from .rounds import side_by_side

MEASURING = Lock()
"""Lock of measurements in the user's own process: two at a time would disturb each other's times."""
THREAD_QUEUE = 2
"""Variants that wait for a thread or for the bench, where several threads compile."""
TIE = 0.005
"""Share of the fastest time within which contenders are equal."""
_BETWEEN_ROUNDS = 7
"""Rounds with another library's kernel between two products."""
MUCH_SLOWER = 4.0
"""Factor on the fastest config's time beyond which a contender is timed in rounds of its own."""
_FEW_ROUNDS = 3
"""Rounds of a much slower contender."""
_LONG_US = 1e5
"""Microseconds of a product beyond which a much slower contender runs once."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that one trial took, by phase."""

    compile_s: float = 0.0
    """Seconds of rendering, compiling and loading."""
    verify_s: float = 0.0
    """Seconds of checking results against the reference."""
    time_s: float = 0.0
    """Seconds of timing."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The record of a trial and its cost."""

    record: Record
    phases: Phases
    fault: bool = False
    """Whether the device is in error, so that this process must not go on with it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a duel, timed interleaved with the others, in shuffled order, on fresh buffers."""

    config: Config | None
    """The variant; None for the vendor's library."""
    measurement: Measurement
    """One time a round, in the rounds' order; fewer for a much slower side, from rounds of its own."""
    accuracy: Accuracy
    """Error over its bound on these inputs."""
    between_us: tuple[float, ...] = ()
    """Microseconds that the side adds to a kernel of another library between two products, one time a round; empty for
    a much slower side, and where this was not timed."""
    again_us: tuple[float, ...] = ()
    """Microseconds of a second run in each round, for the config that was the fastest at first; empty for the others.
    They show the precision of the duel."""


Duel: TypeAlias = tuple[Side, ...]


class Bench:
    """Verifies and times variants of one problem on one device, with one set of inputs and one reference."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device = device
        self.problem = problem
        self._versions = versions_of(device.info, device.compiler)
        # An array library compiles each operation at its first use. It does so here, outside the limited time of a
        # variant; the operations of a comparison compile while the reference is computed.
        with ThreadPoolExecutor(1) as aside, device.entered():
            compiling = None if device.info.arch.is_host else aside.submit(compile_check, device, problem)
            self._verifier = Verifier(device, problem)
            if compiling is not None:
                compiling.result()
            # Nothing is launched, so that the verdict does not matter.
            self._verifier.check(lambda a, b, c, alpha, beta: None)
            self._timer = Timer(device, problem)
        self._spent: dict[str, float] = {}

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with self.device.entered():
                yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start

    def try_variant(self, config: Config, stop_above_us: float = math.inf) -> Tried:
        """Compile, verify, then time one variant; timing ends early for one slower than `stop_above_us`."""
        self._spent = {}
        facts: dict[str, Any] = {"status": Status.OK}
        fault = False
        try:
            with self._phase("compile_s"):
                kernel = prepare(self.device, self.problem, config)
                facts["digest"] = kernel.source.digest
            with self._phase("verify_s"):
                verdict = self._verifier.check(kernel.launch)
                facts |= {"accuracy": verdict.accuracy, "reason": verdict.reason}
            if verdict.reason:
                facts["status"] = Status.WRONG_RESULT
            else:
                with self._phase("time_s"):
                    facts["measurement"] = self._timer.measure(kernel.launch, stop_above_us)
        except FAILURES as error:
            facts |= {"status": status_of(error), "reason": one_line(error), "accuracy": None}
            fault = isinstance(error, DeviceFaultError)
        key = self.device.info.key
        record = Record(problem=self.problem, device=key, config=config, versions=self._versions, **facts)
        return Tried(record, Phases(**self._spent), fault)

    def warm(self) -> None:
        """Run the vendor's library once: it can take seconds to load its kernel, and the device raises its clocks.
        Raises one of FAILURES."""
        with self.device.entered():
            self._timer.sample_us(self._timer.ready(self.device.vendor(self.problem)))

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0, brief: bool = False) -> Duel:
        """Time the configs and, where there is one, the vendor's library side by side.

        There are `rounds` rounds, and more while they take less than `seconds`. Each side is checked before, and a
        wrong config is left out. Much slower configs have a few rounds of their own afterwards: they would take most of
        the time, and the device, half idle, would raise its clocks for the next contender. The config that is the
        fastest at first is timed twice a round. The duel has buffers of its own, and further rounds with another
        library's kernel between two products. A `brief` duel has neither, and leaves out a wrong library too. Raises
        LaunchError, and ConfigError where every config is wrong.
        """
        with self.device.entered():
            launches = {config: prepare(self.device, self.problem, config).launch for config in configs}
            verifier = self._verifier if brief else Verifier(self.device, self.problem, seed=101)
            verdicts: dict[Config | None, Verdict] = {c: verifier.check(launch) for c, launch in launches.items()}
            configs = tuple(config for config in launches if not verdicts[config].reason)
            if not configs:
                wrong, verdict = next(iter(verdicts.items()))
                raise ConfigError(f"{wrong} is wrong on fresh data: {verdict.reason}")
            contenders: dict[Config | None, Launch] = {config: launches[config] for config in configs}
            with suppress(DeviceError, LaunchError):
                vendor = self.device.vendor(self.problem)
                verdicts[None] = verifier.check(vendor)
                if not (brief and verdicts[None].reason):
                    contenders[None] = vendor
            plan = TimingPlan.side_by_side(self.device)
            timer = self._timer if brief else Timer(self.device, self.problem, seed=103, plan=plan)
            alone_us = {config: timer.ready(contenders[config]).first_us for config in configs}
            slower = [config for config, us in alone_us.items() if us > MUCH_SLOWER * min(alone_us.values())]
            near = {config: launch for config, launch in contenders.items() if config not in slower}
            fastest = min(alone_us, key=lambda config: alone_us[config])
            timed = side_by_side(timer, near, rounds, twice=fastest, seconds=seconds)
            short: dict[Config | None, Launch] = {c: contenders[c] for c in slower if alone_us[c] < _LONG_US}
            few = side_by_side(timer, short, min(rounds, _FEW_ROUNDS)).samples if short else {}
            samples = {config: [us] for config, us in alone_us.items()} | timed.samples | few
            between = _between(timer, near) if timer.plan.between and not brief else {}
            medians = {config: statistics.median(samples[config]) for config in configs}
            # Copying operands of gigabytes takes a second: only configs that may win are timed end to end.
            may_win = [config for config in configs if tied(medians[config], min(medians.values())) and not brief]
            whole: dict[Config | None, float] = {config: timer.end_to_end_us(contenders[config]) for config in may_win}
            return tuple(
                Side(
                    config,
                    summarise(samples[config], timed.clock_mhz, whole.get(config)),
                    verdicts[config].accuracy,
                    tuple(between.get(config, ())),
                    tuple(timed.again) if config == fastest else (),
                )
                for config in contenders
            )


def tied(us: float, fastest_us: float) -> bool:
    """Whether a contender's time counts as equal to the fastest time."""
    return us <= fastest_us * (1 + TIE)


def _between(timer: Timer, contenders: dict[Config | None, Launch]) -> dict[Config | None, list[float]]:
    """Microseconds that each contender adds to another library's kernel, round by round."""
    followed: dict[Config | str | None, Launch] = {config: timer.followed(each) for config, each in contenders.items()}
    samples = side_by_side(timer, {**followed, "alone": timer.followed()}, _BETWEEN_ROUNDS).samples
    return {config: added_us(samples[config], samples["alone"]) for config in contenders}


class InProcess:
    """Evaluator of variants in this process: threads compile, and `results` verifies and times in the caller's thread.

    A crash ends the process. With one thread there is one variant at a time, for debugging.
    """

    compilers = ()

    def __init__(
        self, info: DeviceInfo, problem: Problem, device: Device | None = None, threads: int = 1, brief: bool = False
    ) -> None:
        """Take an open `device`, or open one; `brief` is the kind of `duel`."""
        self.given_up = ""
        """The fault of the device that ended the run; empty while it goes on."""
        self._info, self._problem, self._threads, self._brief = info, problem, threads, brief
        self._device = open_device(info) if device is None else device
        self._pool = ThreadPoolExecutor(threads, "compiler")
        self._waiting: dict[Future[float], Config] = {}

    @CachedProperty
    def _bench(self) -> Bench:
        """The bench, which is made while threads compile: without a cache it has much to compile too."""
        bench = Bench(self._device, self._problem)
        if self._brief and not self._info.arch.is_host:
            with suppress(*FAILURES):
                bench.warm()  # compilers are under way, so this takes no time of its own
        return bench

    def room(self) -> int:
        """Number of variants to submit, so that no thread waits."""
        return self._threads + (THREAD_QUEUE if self._threads > 1 else 0) - len(self._waiting)

    def submit(self, config: Config) -> None:
        """Have a thread compile a variant for `results`."""
        # The caller renders: the first rendering compiles templates, for which threads would wait at one lock.
        try:
            source = render(self._problem, config, self._info)
            future = self._pool.submit(_compiled, self._device, source)
        except FAILURES:  # `try_variant` meets it again and records it
            future = Future()
            future.set_result(0.0)
        self._waiting[future] = config

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        """Try the compiled variant that was submitted first, after a wait of `timeout_s` seconds at most."""
        bench = self._bench
        if self._info.arch.is_host:
            wait(self._waiting)  # compilers would take the processor from what is timed
        done, _ = wait(self._waiting, timeout_s, FIRST_COMPLETED)
        future = next((future for future in self._waiting if future in done), None)
        if future is None:
            return []
        tried = bench.try_variant(self._waiting.pop(future), stop_above_us)
        phases = replace(tried.phases, compile_s=tried.phases.compile_s + future.result())
        if tried.fault:
            self.given_up = tried.record.reason
        return [replace(tried, phases=phases)]

    def busy(self) -> bool:
        """Whether any variant waits."""
        return bool(self._waiting)

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        """Time configs side by side, as `Bench.duel`; variants that wait are dropped."""
        self.close()
        return self._bench.duel(configs, rounds, seconds, self._brief)

    def use(self, duel_s: float) -> tuple[float | None, float | None]:
        """None for both: nothing shows when this process was busy."""
        return None, None

    def close(self) -> None:
        """Begin no further compilation."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compiled(device: Device, source: KernelSource) -> float:
    """Compile a kernel into the cache and return the seconds it took; `try_variant` meets a failure again."""
    with suppress(*FAILURES):
        return compile_cached(device.compiler, source).seconds
    return 0.0


FAILURES = (ConfigError, CompileError, LaunchError, DeviceError, MemoryError)
"""Errors of a trial; a DeviceFaultError is a LaunchError."""


def status_of(error: Exception) -> Status:
    """Status of a variant that raised one of FAILURES."""
    kinds = {ConfigError: Status.PRUNED, CompileError: Status.COMPILE_ERROR, DeviceFaultError: Status.CRASHED}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), Status.LAUNCH_ERROR)


def one_line(what: object) -> str:
    """A text or an error as one line of a report."""
    return " ".join(str(what).split())[:500] or type(what).__name__
