"""Variants on their way: a pool of processes compiles them, then a worker verifies and times one at a time.

The parent never touches the device. A fresh worker replaces one that crashes, hangs or leaves the device in error; the
variant that it had in hand takes the blame.
"""

import math
import os
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, cast

from ...codegen.config import Config
from ...codegen.errors import ConfigError, TilewrightError, TuningError
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Record, Status
from ...runtime.store.versions import generator_version
from .child import Child, ChildDiedError, child_for, leave
from .evaluate import Duel, Phases, Tried, one_line, status_of

COMPILE_LIMIT_S = 60.0
"""Seconds that compiling one variant may take."""
OPEN_LIMIT_S = 180.0
"""Seconds that opening a device may take."""
TRY_LIMIT_S = 10.0
"""Seconds that checking and timing one variant may take."""
TRY_OVER_INCUMBENT = 20
"""Factor on the incumbent's time: a variant may run for that long where it is more than TRY_LIMIT_S."""
DUEL_LIMIT_S = 180.0
"""Seconds that a duel may take."""
MAX_RESTARTS = 3
"""Number of ends of the measuring process, one after another, that end a run."""
WORKER_QUEUE = 2
"""Variants that the worker holds: the current one and the next, so that it never waits for the parent."""
MOST_COMPILERS = 20
"""Compile processes at most: with more, the sampler would choose too many variants before earlier outcomes are in."""
READY = 4
"""Variants that wait for a compile process, or for the worker once they are compiled."""
_COMPILING, _MEASURING = "compiling", "measuring"
"""Kinds of work for which `child_for` keeps processes."""


@dataclass(slots=True)
class _Job:
    config: Config
    compile_s: float = 0.0
    """Seconds that compiling took."""
    code: str = ""
    """Digest of the machine code, once it is compiled."""
    check: bool = False
    """Whether this is the incumbent, tried again in a fresh worker, whose outcome is no result."""


class Isolated:
    """Evaluator of variants with a pool of compile processes and one measuring worker."""

    def __init__(self, info: DeviceInfo, problem: Problem) -> None:
        self._info, self._problem = info, problem
        self._versions = (("driver", info.driver), ("generator", generator_version()))
        count = max(1, min(MOST_COMPILERS, len(os.sched_getaffinity(0)) - 1))
        self.compilers = [child_for(_COMPILING) for _ in range(count)]
        """Compile processes."""
        self._worker = child_for(_MEASURING)
        self._sound = False
        """Whether the device is in order: the worker came to the end of a duel."""
        self._to_compile: deque[_Job] = deque()
        self._compiled: deque[_Job] = deque()
        self._records: dict[str, Record] = {}
        """Records of measured variants, by the digest of their machine code."""
        self._out: list[Tried] = []
        """Outcomes that `results` has not returned yet."""
        self._restarts = 0
        self.given_up = ""
        """The crashes that ended the run; empty while it goes on."""
        self._incumbent: Record | None = None
        self._started = time.monotonic()
        self._spans: list[tuple[float, float]] = []
        """Begin and end of each job of the worker, by time.monotonic()."""
        self._open_worker()

    def _open_worker(self) -> None:
        # `_read` takes the answer, without a job: compiling goes on while the device starts.
        self._opened = False
        self._worker.send(("open", self._info, self._problem), None, OPEN_LIMIT_S)

    def room(self) -> int:
        """Number of variants to submit, so that neither compilers nor worker wait."""
        under_way = len(self._to_compile) + len(self._compiled) + sum(c.job is not None for c in self.compilers)
        return len(self.compilers) + READY - under_way

    def busy(self) -> bool:
        """Whether any variant is under way."""
        measuring = self._opened and self._worker.job is not None
        return bool(self._to_compile or self._compiled or measuring or any(c.job for c in self.compilers))

    def submit(self, config: Config) -> None:
        """Queue one variant for compiling."""
        self._to_compile.append(_Job(config))

    def results(self, timeout_s: float, stop_above_us: float) -> list[Tried]:
        """Hand out variants and return the outcomes that came, after `timeout_s` at most. Raises TuningError where the
        device cannot be opened, or the best variant fails in a fresh worker."""
        end = time.monotonic() + timeout_s
        while not self._out:
            self._hand_out(stop_above_us)
            remaining_s = end - time.monotonic()
            if remaining_s <= 0 or not self.busy():
                break
            self._wait(remaining_s)
        done, self._out = self._out, []
        return done

    def _hand_out(self, stop_above_us: float) -> None:
        for child in list(self.compilers):
            if child.job is None and self._to_compile:
                job = self._to_compile.popleft()
                self._send(child, ("compile", self._info, self._problem, job.config), job, COMPILE_LIMIT_S)
        while self._opened and len(self._worker.jobs) < WORKER_QUEUE and (waiting := self._next_compiled()):
            if waiting.code in self._records and not waiting.check:
                # The machine code was measured already under another name.
                record = replace(self._records[waiting.code], config=waiting.config)
                self._out.append(Tried(record, Phases(compile_s=waiting.compile_s)))
                continue
            incumbent_s = self._incumbent.median_us / 1e6 if self._incumbent else 0.0
            limit_s = max(TRY_LIMIT_S, TRY_OVER_INCUMBENT * incumbent_s)
            self._send(self._worker, ("try_variant", waiting.config, stop_above_us), waiting, limit_s)

    def _send(self, child: Child, question: tuple[Any, ...], job: _Job, limit_s: float) -> None:
        try:
            child.send(question, job, limit_s)
        except ChildDiedError as error:
            self._died(child, Status.CRASHED, str(error))

    def _next_compiled(self) -> _Job | None:
        """The first job whose machine code the worker has not in hand: a job with equal code waits for the record."""
        in_hand = {job.code for job, _ in self._worker.jobs}
        job = next((job for job in self._compiled if job.code not in in_hand), None)
        if job is not None:
            self._compiled.remove(job)
        return job

    def _wait(self, timeout_s: float) -> None:
        children = [*self.compilers, self._worker]
        nearest = min(child.deadline for child in children) - time.monotonic()
        ready = wait([child.connection for child in children], max(0.0, min(timeout_s, nearest)))
        for child in children:
            if child.connection in ready:
                self._read(child)
        now = time.monotonic()
        for child in [*self.compilers, self._worker]:
            if now > child.deadline:
                limit = "it did not end in time" if child is self._worker else f"it took over {COMPILE_LIMIT_S:.0f} s"
                self._died(child, Status.TIMEOUT, limit)

    def _read(self, child: Child) -> None:
        """Take a child's answer to its first job."""
        job, begun = child.job, child.begun
        try:
            answer = child.receive()
        except ChildDiedError as error:
            self._died(child, Status.CRASHED, str(error))
            return
        if job is None:
            if isinstance(answer, Exception):
                raise TuningError(f"the device cannot be opened: {one_line(answer)}")
            self._opened = True
            return
        if child is self._worker:
            self._spans.append((begun, time.monotonic()))
        if isinstance(answer, Exception):
            self._failed(job, status_of(answer), one_line(answer))
        elif child is self._worker:
            self._measured(job, answer)
        else:
            job.code, job.compile_s = answer
            self._compiled.append(job)

    def _measured(self, job: _Job, tried: Tried) -> None:
        tried = replace(tried, phases=replace(tried.phases, compile_s=tried.phases.compile_s + job.compile_s))
        if job.check:
            if tried.record.status is not Status.OK:
                raise TuningError(f"in a fresh process the best variant no longer works: {tried.record.reason}")
            return
        self._out.append(tried)
        self._records[job.code] = tried.record
        if tried.fault:
            self._restart(tried.record.reason)
            return
        self._restarts = 0
        if tried.record.median_us < (self._incumbent.median_us if self._incumbent else math.inf):
            self._incumbent = tried.record

    def _died(self, child: Child, status: Status, reason: str) -> None:
        """Start a fresh process for one that ended or is overdue. Its first job takes the blame; the next worker gets
        the others."""
        if child is not self._worker:
            if child.job is not None:
                self._failed(child.job, status, f"compiling: {reason}")
            child.end()
            self.compilers[self.compilers.index(child)] = Child()
            return
        job = child.job
        if job is not None:
            self._spans.append((child.begun, time.monotonic()))
            child.jobs.popleft()
            if not job.check:
                self._failed(job, status, reason)
        self._restart(reason)

    def _restart(self, reason: str) -> None:
        """Start a fresh worker, which first checks that the incumbent still works."""
        self._worker.end()
        waiting = [job for job, _ in self._worker.jobs if isinstance(job, _Job) and not job.check]
        self._compiled.extendleft(reversed(waiting))
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
        """Time configs side by side in the worker, after the variants that it has in hand; the others are dropped.
        Raises TuningError, ConfigError where every config is wrong."""
        for _ in range(MAX_RESTARTS):
            try:
                self._compiled.clear()
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
        """Share of the time after the first ten seconds in which the worker was busy, None for a short run, and seconds
        in which it was idle. `duel_s` is the time of the duel."""
        whole_s, late = time.monotonic() - self._started, self._started + 10.0
        busy_s = sum(end - begin for begin, end in self._spans)
        busy_late_s = sum(max(0.0, end - max(begin, late)) for begin, end in self._spans)
        # The duel waits for the variants under way, which are counted already: hence the bounds.
        share = min(1.0, (busy_late_s + duel_s) / (whole_s - 10.0)) if whole_s > 11.0 else None
        return share, max(0.0, whole_s - busy_s - duel_s)

    def close(self) -> None:
        """End every process, or keep it for the next run."""
        if self._sound:
            leave(self._worker, _MEASURING)
        else:
            self._worker.end()  # before the compilers: it may be about to measure another variant
        for child in self.compilers:
            child.drain()
            leave(child, _COMPILING)
