"""Variants on their way: compiled ahead in a pool of processes, then verified and timed one at a time by a worker.

The parent never touches the device. A worker that crashes, hangs or leaves the device in error is ended and started
anew; the variant it was on keeps the blame.
"""

import math
import os
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import cast

from ...codegen.config import Config
from ...codegen.errors import ConfigError, TilewrightError, TuningError
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Record, Status
from ...runtime.store.versions import generator_version
from .child import Child, ChildDiedError, child_for, leave
from .evaluate import Duel, Phases, Tried, one_line, status_of

COMPILE_LIMIT_S = 60.0
OPEN_LIMIT_S = 180.0
TRY_LIMIT_S = 10.0
TRY_OVER_INCUMBENT = 20
"""A variant may take TRY_LIMIT_S, or this many times the incumbent's product if that is more."""
DUEL_LIMIT_S = 180.0
MAX_RESTARTS = 3
WORKER_QUEUE = 2
"""Variants the worker holds: the one it is on, and the next, so that it never waits for the parent."""
MOST_COMPILERS = 20
"""Compile processes at most: with more of them too many variants would be chosen before what is under way has come
out."""
READY = 4
"""Variants that wait for a compile process, or for the worker once they are compiled."""

_COMPILING, _MEASURING = "compiling", "measuring"


@dataclass(slots=True)
class _Job:
    config: Config
    compile_s: float = 0.0
    code: str = ""
    check: bool = False
    """The incumbent, tried again in a fresh worker: not a result."""


class Isolated:
    """A pool of compile processes and one measuring worker."""

    def __init__(self, info: DeviceInfo, problem: Problem) -> None:
        self._info, self._problem = info, problem
        self._versions = (("driver", info.driver), ("generator", generator_version()))
        count = max(1, min(MOST_COMPILERS, len(os.sched_getaffinity(0)) - 1))
        self.compilers = [child_for(_COMPILING) for _ in range(count)]
        """Compile processes."""
        self._worker = child_for(_MEASURING)
        self._opened = False
        self._sound = False
        """Whether the worker's device is known to be in order: it came to the end of a duel."""
        self._to_compile: deque[_Job] = deque()
        self._compiled: deque[_Job] = deque()
        self._known: dict[str, Record] = {}
        self._out: list[Tried] = []
        self._restarts = 0
        self.given_up = ""
        """The crashes that ended the run."""
        self._begun = 0.0
        self._incumbent: Record | None = None
        self._started = time.monotonic()
        self._spans: list[tuple[float, float]] = []
        """When the worker had a variant in hand: begin and end of each, by time.monotonic()."""
        self._open_worker()

    def _open_worker(self) -> None:
        # The answer is read with the others: compiling goes on while the device starts.
        self._opened = False
        self._worker.send(("open", self._info, self._problem), "open", OPEN_LIMIT_S)

    def room(self) -> int:
        """Enough under way that neither compilers nor worker wait."""
        under_way = len(self._to_compile) + len(self._compiled) + sum(c.job is not None for c in self.compilers)
        return len(self.compilers) + READY - under_way

    def busy(self) -> bool:
        """Whether anything is under way."""
        measuring = self._opened and self._worker.job is not None
        return bool(self._to_compile or self._compiled or measuring or any(c.job for c in self.compilers))

    def submit(self, config: Config) -> None:
        """Queue one variant for compiling."""
        self._to_compile.append(_Job(config))

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        """Hand out work, wait for answers, collect what has come out."""
        end = time.monotonic() + timeout_s
        while not self._out:
            self._hand_out(stop_above_us)
            left = end - time.monotonic()
            if left <= 0 or not self.busy():
                break
            self._wait(left)
        done, self._out = self._out, []
        return done

    def _hand_out(self, stop_above_us: float) -> None:
        for place, child in enumerate(self.compilers):
            if child.job is None and self._to_compile:
                waiting = self._to_compile.popleft()
                try:
                    child.send(("compile", self._info, self._problem, waiting.config), waiting, COMPILE_LIMIT_S)
                except ChildDiedError as error:
                    self._compiler_died(place, waiting, Status.CRASHED, str(error))
        while self._opened and len(self._worker.jobs) < WORKER_QUEUE:
            job = self._next_compiled()
            if job is None:
                break
            if job.code in self._known and not job.check:
                # Its machine code was measured already under another name.
                record = replace(self._known[job.code], config=job.config)
                self._out.append(Tried(record, Phases(compile_s=job.compile_s)))
                continue
            if not self._worker.jobs:
                self._begun = time.monotonic()
            incumbent_s = self._incumbent.median_us / 1e6 if self._incumbent else 0.0
            limit_s = max(TRY_LIMIT_S, TRY_OVER_INCUMBENT * incumbent_s)
            try:
                self._worker.send(("try_variant", job.config, stop_above_us), job, limit_s)
            except ChildDiedError as error:
                self._worker_died(Status.CRASHED, str(error))

    def _next_compiled(self) -> _Job | None:
        """The first job whose machine code the worker has not in hand; a twin waits for the other's record."""
        in_hand = {job.code for job, _ in self._worker.jobs}
        for place, job in enumerate(self._compiled):
            if job.code not in in_hand:
                del self._compiled[place]
                return job
        return None

    def _wait(self, timeout_s: float) -> None:
        children = [*self.compilers, self._worker]
        nearest = min(child.deadline for child in children) - time.monotonic()
        ready = wait([child.connection for child in children], max(0.0, min(timeout_s, nearest)))
        for child in children:
            if child.connection not in ready:
                continue
            if child is self._worker:
                self._worker_spoke()
            else:
                self._compiler_spoke(self.compilers.index(child))
        now = time.monotonic()
        for place, child in enumerate(self.compilers):
            if now > child.deadline:
                self._compiler_died(place, child.job, Status.TIMEOUT, f"compiling took over {COMPILE_LIMIT_S:.0f} s")
        if now > self._worker.deadline:
            self._worker_died(Status.TIMEOUT, "it did not end in time")

    def _compiler_spoke(self, place: int) -> None:
        child = self.compilers[place]
        job = child.job
        try:
            answer = child.receive()
        except ChildDiedError as error:
            self._compiler_died(place, job, Status.CRASHED, f"compiling: {error}")
            return
        if isinstance(answer, Exception):
            self._failed(job, status_of(answer), one_line(answer))
        else:
            job.code, job.compile_s = answer
            self._compiled.append(job)

    def _compiler_died(self, place: int, job: _Job | None, status: Status, reason: str) -> None:
        self.compilers[place].end()
        self.compilers[place] = Child()
        if job is not None:
            self._failed(job, status, reason)

    def _worker_spoke(self) -> None:
        job = self._worker.job
        try:
            answer = self._worker.receive()
        except ChildDiedError as error:
            self._worker_died(Status.CRASHED, str(error))
            return
        if job == "open":
            if isinstance(answer, Exception):
                raise TuningError(f"the device cannot be opened: {one_line(answer)}")
            self._opened = True
            return
        self._count_busy()
        if isinstance(answer, Exception):
            self._failed(job, status_of(answer), one_line(answer))
            return
        tried: Tried = answer
        tried = replace(tried, phases=replace(tried.phases, compile_s=tried.phases.compile_s + job.compile_s))
        if job.check:
            if tried.record.status is not Status.OK:
                raise TuningError(f"in a fresh process the best variant no longer works: {tried.record.reason}")
            return
        self._out.append(tried)
        self._known[job.code] = tried.record
        if tried.fault:
            self._restart(tried.record.reason)
            return
        self._restarts = 0
        if tried.record.median_us < (self._incumbent.median_us if self._incumbent else math.inf):
            self._incumbent = tried.record

    def _count_busy(self) -> None:
        now = time.monotonic()
        self._spans.append((self._begun, now))
        self._begun = now  # of the job behind it, if there is one

    def _worker_died(self, status: Status, reason: str) -> None:
        """The first job takes the blame; what waited behind it is handed to the next worker."""
        job = self._worker.job
        if isinstance(job, _Job):
            self._count_busy()
            self._worker.jobs.popleft()
            if not job.check:
                self._failed(job, status, reason)
        self._restart(reason)

    def _restart(self, reason: str) -> None:
        """A fresh worker, which must show that the incumbent still verifies before it is trusted."""
        self._worker.end()
        self._compiled.extendleft(
            job for job, _ in reversed(self._worker.jobs) if isinstance(job, _Job) and not job.check
        )
        self._restarts += 1
        if self._restarts >= MAX_RESTARTS:
            self.given_up = f"the measuring process ended {self._restarts} times in a row, last: {reason}"
            self._compiled.clear()
            self._to_compile.clear()
        self._worker = Child()
        self._open_worker()
        if self._incumbent is not None:
            self._compiled.appendleft(_Job(self._incumbent.config, check=True))

    def _failed(self, job: _Job, status: Status, reason: str) -> None:
        record = Record(
            problem=self._problem,
            device=self._info.key,
            config=job.config,
            status=status,
            reason=reason or status.value,
            versions=self._versions,
        )
        self._out.append(Tried(record, Phases(compile_s=job.compile_s)))

    def duel(self, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        """Time some side by side in the worker. Raises TuningError."""
        for _ in range(MAX_RESTARTS):
            try:
                self._compiled.clear()  # the answers under way are waited for, what is behind them is dropped
                self._to_compile.clear()
                while not self._opened or self._worker.jobs:
                    self._wait(1.0)
                duel = cast(Duel, self._worker.ask(("duel", configs, rounds, seconds), DUEL_LIMIT_S))
                self._sound = True
                return duel
            except ChildDiedError as error:
                self._restart(str(error))
            except (TilewrightError, MemoryError) as error:
                kind = ConfigError if isinstance(error, ConfigError) else TuningError
                raise kind(f"the final comparison failed: {one_line(error)}") from error
        raise TuningError("the final comparison ended its process every time")

    def use(self, duel_s: float) -> tuple[float | None, float | None]:
        """The share of the time after ten seconds in which the worker was busy, and the seconds in which it was
        idle."""
        whole_s, late = time.monotonic() - self._started, self._started + 10.0
        busy_s = sum(end - begin for begin, end in self._spans)
        busy_late_s = sum(max(0.0, end - max(begin, late)) for begin, end in self._spans)
        # The duel waits for the variants under way, which are counted already: hence the limits.
        share = min(1.0, (busy_late_s + duel_s) / (whole_s - 10.0)) if whole_s > 11.0 else None
        return share, max(0.0, whole_s - busy_s - duel_s)

    def close(self) -> None:
        """End every process, or leave it to the next run."""
        if self._sound:
            leave(self._worker, _MEASURING)
        else:
            self._worker.end()  # first: it may be about to measure what nobody asks for any more
        for child in self.compilers:
            child.drain()
            leave(child, _COMPILING)
