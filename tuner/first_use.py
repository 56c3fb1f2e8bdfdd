"""First use of a shape that was not tuned: a search of some seconds in the process that uses it."""

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
"""Most variants that are tried."""
GAIN = 0.005
"""Share of the best time: the search ends where its next variants are expected to save less."""
LEAST_OUTCOMES = 24
"""Number of outcomes before which the search does not end."""
KEEP, ROUNDS = 3, 7
"""Number of the fastest variants that meet in the duel, and its rounds."""
DUEL_SHARE, DUEL_TRIES = 0.06, 9
"""Share of the seconds that is reserved for the duel, and number of trials whose median time is reserved as well."""


def measured(device: Device, problem: Problem, store: Store, lookup: LookupResult, seconds: float) -> LookupResult:
    """Search the likely kernels, the looked-up one among them, for some `seconds`, and store the fastest right one.

    The search has memory of its own, and the processor waits. A record that another thread stored meanwhile is returned
    instead. Raises CaptureError while the current stream is captured, LaunchError where no memory is left.
    """
    info, begin = device.info, time.monotonic()
    with device.entered():
        capturing = device.capturing(device.stream())
    text = f"{problem} is not ready, and nothing is measured while a graph is captured"
    check(not capturing, f"{text}: call tilewright.prepare('{problem.shape}', measure=True) before", CaptureError)
    with MEASURING.alone():
        stored = store.best(info.key, problem)
        if stored is not None and serves(stored.config, problem, info):
            return LookupResult(stored.config, "exact", stored)
        evaluator = InProcess(info, problem, device, len(os.sched_getaffinity(0)), brief=True)
        likely = [choice.config for choice in shortlist(problem, info, tuple(store.records()), ENTRIES)]
        search = AskAhead(Unrecorded(Neighbourhood(Forecast(problem, info), (lookup.config, *likely), LEAST_OUTCOMES)))
        first, budget = (lookup.config,), Budget(TRIALS, seconds, GAIN)
        duel = DuelTerms(ROUNDS, 0.0, DUEL_TRIES, 0.0, ())
        run = Run(Plan(search, LOCAL, {}, KEEP, (), first, duel=duel), budget, Progress())
        try:
            run.explore(evaluator, begin + seconds * (1 - DUEL_SHARE), patience=math.inf)
            if run.best is None:
                return lookup
            record = replace(run.best, effort=FIRST_USE)
            if not evaluator.given_up:
                with suppress(*FAILURES, TuningError):  # the fastest of the search serves without a duel
                    sides = run.duel(evaluator, info, begin + seconds - time.monotonic())
                    versions = versions_of(info, device.compiler)
                    record = decided(problem, info, judge(sides), versions, FIRST_USE)
        finally:
            search.close()
            evaluator.close()
        try:
            store.keep(record, replace=stored is not None)  # the stored one cannot serve, however fast
        except TilewrightError as error:
            warnings.warn(f"measured, but not kept: {error}", stacklevel=5)
        return LookupResult(record.config, "exact", record)
