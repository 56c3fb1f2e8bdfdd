"""Trying variants in this process: compile, verify, time. A failure is a record, not an exception."""

import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

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
from ...runtime.locks import Lock
from ...runtime.product.kernel import prepare
from ...runtime.store.record import Accuracy, Measurement, Record, Status
from ...runtime.store.versions import versions_of
from .rounds import side_by_side

MEASURING = Lock()
"""Held while a product of the caller's is measured in this process: two at a time would disturb each other's times."""
AHEAD_OF_THREADS = 2
"""Variants that wait, compiled or for a thread, where several threads compile."""
TIE = 0.005
"""Contenders nearer than this are equal."""
_BETWEEN_ROUNDS = 7
FAR_BEHIND, _FEW_ROUNDS, _LONG_US = 4.0, 3, 1e5
"""Contenders that take so many times as long as the fastest config have so many rounds, by themselves; one product
where it takes so long."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of one try went, in seconds."""

    compile_s: float = 0.0
    """Rendering, compiling and loading."""
    verify_s: float = 0.0
    """Checking results against the reference."""
    time_s: float = 0.0
    """Timing."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A variant's record and what trying it cost."""

    record: Record
    phases: Phases
    fault: bool = False
    """The device is in error and this process must not go on with it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a duel, timed interleaved with the others, in shuffled order, on fresh buffers."""

    config: Config | None
    """The variant; None for the vendor's library."""
    measurement: Measurement
    """One time a round, in the rounds' order; fewer of one far behind, from rounds of its own."""
    accuracy: Accuracy
    """The error over its bound on these inputs."""
    between_us: tuple[float, ...] = ()
    """What it adds, one time a round, to a kernel of another library that comes between two products; nothing for one
    far behind, and where that was not timed."""
    again_us: tuple[float, ...] = ()
    """Its times as a further contender of the same rounds, of the one that was the fastest at first: what the duel
    itself is worth."""


Duel: TypeAlias = tuple[Side, ...]


class Bench:
    """Verifies and times variants of one problem on one device. Inputs and reference are made once."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device = device
        self.problem = problem
        self._versions = versions_of(device.info, device.compiler)
        # An array library compiles each operation when it first meets it: paid here, not by the first variant, whose
        # time is limited, and what comparing takes beside what the reference does.
        with ThreadPoolExecutor(1) as aside, device.entered():
            compiling = None if device.info.arch.is_host else aside.submit(compile_check, device, problem)
            self._verifier = Verifier(device, problem)
            if compiling is not None:
                compiling.result()
            # Nothing is launched, so what the check says does not matter.
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
        """Compile, verify, then time one variant; it is stopped early if it is slower than `stop_above_us`."""
        self._spent = {}
        status, reason, fault, digest = Status.OK, "", False, ""
        accuracy: Accuracy | None = None
        measurement: Measurement | None = None
        try:
            with self._phase("compile_s"):
                kernel = prepare(self.device, self.problem, config)
                digest = kernel.source.digest
            with self._phase("verify_s"):
                verdict = self._verifier.check(kernel.launch)
                accuracy, reason = verdict.accuracy, verdict.reason
            if reason:
                status = Status.WRONG_RESULT
            else:
                with self._phase("time_s"):
                    measurement = self._timer.measure(kernel.launch, stop_above_us)
        except FAILURES as error:
            status, reason, fault = status_of(error), one_line(error), isinstance(error, DeviceFaultError)
        record = Record(
            problem=self.problem,
            device=self.device.info.key,
            config=config,
            status=status,
            reason=reason,
            measurement=measurement,
            accuracy=accuracy if status in (Status.OK, Status.WRONG_RESULT) else None,
            versions=self._versions,
            digest=digest,
        )
        return Tried(record, Phases(**self._spent), fault)

    def warm(self) -> None:
        """Have the vendor's library load its kernel for the problem, which can take it seconds, and the device raise
        its clocks. Raises one of FAILURES."""
        with self.device.entered():
            self._timer.sample_us(self._timer.ready(self.device.vendor(self.problem)))

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0, brief: bool = False) -> Duel:
        """Time the configs and the vendor's library, where it can be had, side by side.

        So many rounds, and where they take less than `seconds` more of them. Each is checked again first, and a config
        that is wrong is left out. Configs far behind the fastest have a few rounds of their own afterwards: they would
        take most of the time, and while they leave the device half idle it gathers clocks for whoever comes next. The
        one that is the fastest at first is two contenders. Buffers are such as no earlier timing used, and the others
        have further rounds with another library's kernel between two products, unless it is to be `brief`: then a
        library that is wrong is left out too. Raises LaunchError, and ConfigError where every config is wrong.
        """
        with self.device.entered():
            contenders: dict[Config | None, Launch] = {
                config: prepare(self.device, self.problem, config).launch for config in configs
            }
            verifier = self._verifier if brief else Verifier(self.device, self.problem, seed=101)
            verdicts: dict[Config | None, Verdict] = {c: verifier.check(launch) for c, launch in contenders.items()}
            with suppress(DeviceError, LaunchError):
                vendor = self.device.vendor(self.problem)
                verdicts[None] = verifier.check(vendor)
                contenders[None] = vendor
            wrong = [config for config in configs if verdicts[config].reason]
            if len(wrong) == len(configs):
                raise ConfigError(f"{wrong[0]} is wrong on fresh data: {verdicts[wrong[0]].reason}")
            for config in wrong:
                del contenders[config]
            if brief and None in contenders and verdicts[None].reason:
                del contenders[None]
            configs = tuple(config for config in configs if config in contenders)
            plan = TimingPlan.side_by_side(self.device)
            timer = self._timer if brief else Timer(self.device, self.problem, seed=103, plan=plan)
            alone_us = {config: timer.ready(contenders[config]).first_us for config in configs}
            behind = [config for config, us in alone_us.items() if us > FAR_BEHIND * min(alone_us.values())]
            near = {config: launch for config, launch in contenders.items() if config not in behind}
            fastest = min(alone_us, key=lambda config: alone_us[config])
            found = side_by_side(timer, near, rounds, twice=fastest, seconds=seconds)
            samples = dict(found.samples)
            if behind:
                few = min(rounds, _FEW_ROUNDS)
                short: dict[Config | None, Launch] = {c: contenders[c] for c in behind if alone_us[c] < _LONG_US}
                samples.update(side_by_side(timer, short, few).samples)
                for config in behind:
                    samples.setdefault(config, [alone_us[config]])
            between = _between(timer, near) if timer.plan.between and not brief else {}
            medians = {config: statistics.median(samples[config]) for config in configs}
            # Operands of gigabytes take a second to be copied: for those alone that may win.
            may_win = [config for config in configs if tied(medians[config], min(medians.values())) and not brief]
            whole: dict[Config | None, float] = {config: timer.end_to_end_us(contenders[config]) for config in may_win}
            return tuple(
                Side(
                    config,
                    summarise(samples[config], found.clock_mhz, whole.get(config)),
                    verdicts[config].accuracy,
                    tuple(between.get(config, ())),
                    tuple(found.again) if config == fastest else (),
                )
                for config in contenders
            )


def tied(us: float, fastest_us: float) -> bool:
    """Whether a contender is as good as the fastest."""
    return us <= fastest_us * (1 + TIE)


def _between(timer: Timer, contenders: dict[Config | None, Launch]) -> dict[Config | None, list[float]]:
    """What each adds to another library's kernel, round by round."""
    followed: dict[Config | str | None, Launch] = {config: timer.followed(each) for config, each in contenders.items()}
    samples = side_by_side(timer, {**followed, "alone": timer.followed()}, _BETWEEN_ROUNDS).samples
    return {config: added_us(samples[config], samples["alone"]) for config in contenders}


class InProcess:
    """`Isolated` without processes: threads compile, and who asks for results verifies and times.

    A crash ends the caller. With one thread there is one variant at a time, for debugging.
    """

    compilers = ()

    def __init__(
        self, info: DeviceInfo, problem: Problem, device: Device | None = None, threads: int = 1, brief: bool = False
    ) -> None:
        """`device` is the opened one where there is one; `brief` makes the duel so."""
        self.given_up = ""
        """The fault of the device that ended the run."""
        self._info, self._problem, self._threads, self._brief = info, problem, threads, brief
        self._device = open_device(info) if device is None else device
        self._pool = ThreadPoolExecutor(threads, "compiler")
        self._waiting: dict[Future[float], Config] = {}
        self._made: Bench | None = None

    @property
    def _bench(self) -> Bench:
        """Made when it is first asked for, while threads compile: on a bare machine it has much to compile too."""
        if self._made is None:
            self._made = Bench(self._device, self._problem)
            if self._brief and not self._info.arch.is_host:
                with suppress(*FAILURES):
                    self._made.warm()  # compilers are under way, so this takes no time of its own
        return self._made

    def room(self) -> int:
        """Enough under way that no thread waits."""
        return self._threads + (AHEAD_OF_THREADS if self._threads > 1 else 0) - len(self._waiting)

    def submit(self, config: Config) -> None:
        """Have a variant compiled, and keep it for `results`."""
        # Rendered here: the first time templates are compiled, which threads would do side by side under one lock.
        try:
            source = render(self._problem, config, self._info)
            future = self._pool.submit(_compiled, self._device, source)
        except FAILURES:  # told by `try_variant`
            future = Future()
            future.set_result(0.0)
        self._waiting[future] = config

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        """Try a variant that is compiled, the one that was submitted first."""
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
        """Whether one waits."""
        return bool(self._waiting)

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        """Time some side by side."""
        self.close()
        return self._bench.duel(configs, rounds, seconds, self._brief)

    def use(self, duel_s: float) -> tuple[float | None, float | None]:
        """Unknown."""
        return None, None

    def close(self) -> None:
        """Begin no further compilation."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compiled(device: Device, source: KernelSource) -> float:
    """Compile a kernel, which ends in the cache; the seconds that it took. A failure is told by who tries it."""
    with suppress(*FAILURES):
        return compile_cached(device.compiler, source).seconds
    return 0.0


FAILURES = (ConfigError, CompileError, LaunchError, DeviceError, MemoryError)
"""What trying a variant may raise; a DeviceFaultError is a LaunchError."""


def status_of(error: Exception) -> Status:
    """How a variant ended that raised one of FAILURES."""
    kinds = {ConfigError: Status.PRUNED, CompileError: Status.COMPILE_ERROR, DeviceFaultError: Status.CRASHED}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), Status.LAUNCH_ERROR)


def one_line(what: object) -> str:
    """A text or an error as one line of a report."""
    return " ".join(str(what).split())[:500] or type(what).__name__
