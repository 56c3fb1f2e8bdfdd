"""A shape that was not tuned, at its first use: a search of some seconds in the process that uses it."""

import math
import os
import time
import warnings
from contextlib import suppress
from dataclasses import replace

from ..codegen.errors import CaptureError, TilewrightError, TuningError, check
from ..codegen.legality import serves
from ..codegen.problem import Problem
from ..runtime.device.protocol import Device
from ..runtime.store.lookup import LookupResult
from ..runtime.store.record import FIRST_USE
from ..runtime.store.store import Store
from ..runtime.store.versions import versions_of
from .choose.forecast import Forecast
from .choose.shortlist import ENTRIES, shortlist
from .measure.decide import decided, judge
from .measure.evaluate import FAILURES, MEASURING, InProcess
from .plan import DuelTerms, Plan
from .result import Progress
from .run import Run
from .search.ahead import AskAhead, Unrecorded
from .search.neighbourhood import Neighbourhood
from .settings import LOCAL, Budget

TRIALS = 64
"""Variants that are tried at most."""
GAIN = 0.005
"""Share of the best time: the search ends where its next variants are expected to save less."""
LEAST_TOLD = 24
"""Outcomes before which it does not end."""
KEEP, ROUNDS = 3, 7
"""Fastest variants that meet in the duel, and its rounds."""
DUEL_SHARE, DUEL_TRIES = 0.06, 9
"""Share of the seconds that is kept for the duel, and variants whose median time is kept for it too."""


def measured(device: Device, problem: Problem, store: Store, found: LookupResult, seconds: float) -> LookupResult:
    """The fastest right kernel of some likely ones, among them what the look-up found; it is kept in the store.

    Takes some `seconds`, on memory of its own; the processor waits. Where another thread kept a record meanwhile, that
    is it. Raises CaptureError while the current stream is captured, LaunchError where no memory is left.
    """
    info, begin = device.info, time.monotonic()
    with device.entered():
        capturing = device.capturing(device.stream())
    text = f"{problem} is not ready, and nothing is measured while a graph is captured"
    check(not capturing, f"{text}: call tilewright.prepare('{problem.shape}', measure=True) before", CaptureError)
    with MEASURING.alone():
        kept = store.best(info.key, problem)
        if kept is not None and serves(kept.config, problem, info):
            return LookupResult(kept.config, "exact", kept)
        evaluator = InProcess(info, problem, device, len(os.sched_getaffinity(0)), brief=True)
        likely = [choice.config for choice in shortlist(problem, info, tuple(store.records()), ENTRIES)]
        search = AskAhead(Unrecorded(Neighbourhood(Forecast(problem, info), (found.config, *likely), LEAST_TOLD)))
        first, budget = (found.config,), Budget(TRIALS, seconds, GAIN)
        duel = DuelTerms(ROUNDS, 0.0, DUEL_TRIES, 0.0, ())
        run = Run(Plan(search, LOCAL, {}, KEEP, (), first, duel=duel), budget, Progress())
        try:
            run.explore(evaluator, begin + seconds * (1 - DUEL_SHARE), patience=math.inf)
            if run.best is None:
                return found
            record = replace(run.best, effort=FIRST_USE)
            if not evaluator.given_up:
                with suppress(*FAILURES, TuningError):  # the fastest of the search serves then
                    sides = run.duel(evaluator, info, begin + seconds - time.monotonic())
                    versions = versions_of(info, device.compiler)
                    record = decided(problem, info, judge(sides), versions, FIRST_USE)
        finally:
            search.close()
            evaluator.close()
        try:
            store.keep(record, replace=kept is not None)  # that one cannot serve, however fast
        except TilewrightError as error:
            warnings.warn(f"measured, but not kept: {error}", stacklevel=5)
        return LookupResult(record.config, "exact", record)
