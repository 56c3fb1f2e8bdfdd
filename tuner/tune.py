"""One tuning run: it searches the variants of a problem, and a duel decides which one the store keeps."""

import math
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import NoneType
from typing import SupportsIndex

from ..codegen.config import Config
from ..codegen.errors import StoreError, TuningError, check, check_path, check_type, nearest_of
from ..codegen.problem import DTypeLike, GradeLike, Problem, Shape, Trans
from ..runtime.device.detect import choose, compiler_for
from ..runtime.device.protocol import DeviceName
from ..runtime.files import check_output
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from ..runtime.store.versions import versions_of
from .ending import noting_signals, watched
from .measure.decide import aa_spread, decided, judge
from .measure.evaluate import InProcess
from .measure.pipeline import TRY_LIMIT_S, Isolated
from .plan import check_time, check_tunable, planned
from .recording.files import t4_path, write_both
from .result import Progress, Result
from .run import Evaluator, Run, counted
from .settings import EFFORTS, Budget, Effort, SamplerName

DUEL_SHARE = 0.2
HOST_DUEL_SHARE = 0.35
"""Share of a run's seconds that is reserved for the duel; on the processor it also covers the variant under way."""


def tune(
    problem: Shape,
    *,
    dtype: DTypeLike | None = None,
    trans: Trans | None = None,
    trans_a: bool | None = None,
    trans_b: bool | None = None,
    accuracy: GradeLike | None = None,
    batch: SupportsIndex | None = None,
    device: DeviceName = "auto",
    effort: Effort = "normal",
    trials: int | None = None,
    seconds: float | None = None,
    store: Path | str | None = None,
    sampler: SamplerName | None = None,
    isolation: bool = True,
    spaces: Path | str | None = None,
    keep: int = 5,
    seed: int = 0,
    configs: Sequence[Config] = (),
    record: Path | str | None = None,
    progress: Progress | None = None,
    replace: bool = False,
) -> Result:
    """Find the fastest right variant for a shape on a device, and keep it in the store: `tune("1024x768x512")`.

    A final duel times the fastest variants beside the stored configs of the problem, the user's own and shipped ones: a
    record is replaced only by a config that is faster there, or with `replace`. A run goes on from the trials of
    earlier runs of the same problem, device and versions. In the main thread SIGINT and SIGTERM end the search and
    leave the duel and the store to finish.

    Args:
        problem: "1024x768x512" (M x N x K), "1024" for a cube, (m, n, k), or a Problem, which has its own dtype,
            transposes and accuracy; no dimension may be 0.
        dtype: float or double, or a type of that name of NumPy, CuPy or torch; None for float.
        trans: nn, nt, tn or tt: which of A and B are stored transposed; None for nn.
        trans_a: whether A is stored k x m, in place of `trans`.
        trans_b: whether B is stored n x k, in place of `trans`.
        accuracy: ieee, or for float elementwise or normwise; None for ieee.
        batch: products of the shape in one call, whose matrices follow each other; None for one.
        device: auto (the first GPU, else the processor), cuda, cuda:N or host.
        effort: quick, normal or full: at most 64, 320 or 100,000 trials and 20, 45 or 900 s; the search ends early
            where its next 40 variants are expected to save less than 1%, 0.3% or 0.03%, full only after 400 trials.
        trials: variants tried at most, in place of the effort's.
        seconds: most seconds of wall time, the duel included, in place of the effort's. The run waits as long again for
            the config that the library would run now, where it was not tried by then.
        store: folder of records; None for the user's own.
        sampler: local, gp, tpe, random, exhaustive, or optuna:NAME for a class of `optuna.samplers`; None for local,
            or with `spaces` for gp. All but local choose among listed variants, and none of these estimates what is
            still to be gained.
        isolation: whether variants run in a process of their own, so that a crash ends only that process.
        spaces: folder of *.toml files with the values to combine; None for those of the package.
        keep: number of contenders in the final duel; up to keep - 1 more join that are within 2% of the fastest.
        seed: seed of the sampler's random generator; its suggestions depend on measured times too.
        configs: variants to try in place of a search, beside the config that the library would run now; the winner is
            kept if it is one of them.
        record: file for every trial, resumed ones included, as a Kernel Tuner cache file; a T4 JSON file is written
            beside it. Where writing them fails in the end, there is an OutputWarning.
        progress: listener that the run calls as it goes on.
        replace: keep the fastest searched config, or the fastest of `configs`, even where a stored one is faster.

    Raises:
        ArgumentTypeError, ShapeError, ConfigError: bad input.
        DeviceError: no such device, or one with too little memory.
        TuningError: no variant works.
        StoreError: the winner cannot be kept.
        KeyboardInterrupt: it was interrupted before anything worked.
    """
    from .search.study import check_sampler

    started = time.monotonic()
    problem = Problem.parse(problem, dtype, trans, accuracy, trans_a=trans_a, trans_b=trans_b, batch=batch)
    budget = _budget(effort, trials, seconds)
    _check_options(keep, seed, progress, replace)
    check_sampler(sampler)
    info = choose(device)
    configs = tuple(dict.fromkeys(configs))
    check_tunable(problem, info, configs)
    check_time(problem, info, budget, TRY_LIMIT_S if isolation else math.inf)
    shelf, folder, file = Store(check_path("store", store)), check_path("spaces", spaces), _writable(record)
    versions = versions_of(info, compiler_for(info))
    shelf.make()
    interrupted: list[int] = []
    with ExitStack() as starting:
        # The evaluator's processes start, and open the device, while this process lists what may be tried.
        evaluator: Evaluator = Isolated(info, problem) if isolation else InProcess(info, problem)
        starting.callback(evaluator.close)
        plan = planned(problem, info, shelf, versions, configs, folder, sampler, seed, keep)
        processes = starting.pop_all()
    if configs:
        budget = Budget(len({*configs, *plan.first}), budget.seconds)
    run = Run(plan, budget, watched(progress or Progress(), interrupted))
    with ExitStack() as ending:
        ending.callback(plan.search.close)
        if file is not None:
            ending.callback(lambda: write_both(file, run.recording(problem, info, versions)))
        ending.push(processes)  # the processes end first
        listed = None if plan.listed is None else len({*plan.listed, *(plan.first if configs else ())})
        run.progress.started(problem, info, listed, budget, run.resumed)
        for config, entry in plan.earlier.items():
            run.progress.resumed(problem, info, config, entry)
        with noting_signals(interrupted):
            deadline = started + budget.seconds * (1 - (HOST_DUEL_SHARE if info.arch.is_host else DUEL_SHARE))
            stopped = run.explore(evaluator, deadline, budget.seconds, interrupted)
            if not run.worked:
                if stopped == "interrupt":
                    raise KeyboardInterrupt
                raise TuningError(run.why_nothing(problem, info, stopped, shelf.root / "trials"))
            duelled = time.monotonic()
            duel = run.duel(evaluator, info, started + budget.seconds - duelled)
        busy_share, idle_s = evaluator.use(time.monotonic() - duelled)
        others = [side.config for side in duel if side.config is not None and not plan.chooses(side.config)]
        compared = tuple(config for config in others if replace or config not in plan.first)
        contenders = judge(duel, compared, plan.stored)
        best = decided(problem, info, contenders, versions, _effort_text(effort, budget))
        keeps = not configs or best.config in configs
        outdone = keeps and not _keep(shelf, best, run.beaten(duel), replace)
    return Result(
        problem=problem,
        device=info,
        best=best,
        contenders=contenders,
        trials=run.resumed + len(run.entries),
        resumed=run.resumed,
        statuses=tuple(counted(run.entries)),
        pruned=plan.pruned,
        phases=run.phases(),
        sampler_s=run.sampler_s,
        seconds=time.monotonic() - started,
        busy_share=busy_share,
        idle_s=idle_s,
        compilers=len(evaluator.compilers),
        guessed_us=min((each.time_us for each in [*run.outcomes.values()][:16] if each.time_us), default=None),
        stopped=stopped,
        expected_gain=plan.search.expected_gain,
        sampler=plan.sampler,
        seed=seed,
        named=configs,
        outdone=outdone,
        aa_spread=aa_spread(duel),
    )


def _keep(shelf: Store, best: Record, beaten: Collection[Config], replace: bool) -> bool:
    """Store the winner unless a record that was not in the duel is faster, and return whether it is stored."""
    try:
        return shelf.keep(best, beaten=beaten, replace=replace)
    except StoreError as error:  # the text is all that is left of the winner
        raise StoreError(f"{error}; the winner, which is not kept: {best.config}, {best.median_us:.4g} us") from error


def _check_options(keep: int, seed: int, progress: Progress | None, replace: bool) -> None:
    check_type("keep", keep, int, "a whole number")
    check(keep > 0, f"keep must be positive, got {keep}")
    check_type("seed", seed, int, "a whole number")
    check_type("progress", progress, (Progress, NoneType), "a Progress")
    check_type("replace", replace, bool, "True or False")


def _writable(record: Path | str | None) -> Path | None:
    """The file of a recording. Raises ConfigError where it cannot be written, before anything is tuned."""
    file = check_path("record", record)
    for each in (file, t4_path(file)) if file else ():
        check_output("record", each)
    return file


def _budget(effort: Effort, trials: int | None, seconds: float | None) -> Budget:
    check_type("trials", trials, (int, NoneType), "a whole number")
    check_type("seconds", seconds, (int, float, NoneType), "a number")
    check_type("effort", effort, str, "a name")
    text = f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}{nearest_of(effort, [*EFFORTS])}"
    check(effort in EFFORTS, text)
    check(trials is None or trials > 0, f"trials must be positive, got {trials}")
    check(seconds is None or 0 < seconds < 1e9, f"seconds must be positive and below 10^9, got {seconds}")
    default = EFFORTS[effort]
    return Budget(trials or default.trials, seconds or default.seconds, default.gain, default.least)


def _effort_text(effort: Effort, budget: Budget) -> str:
    return effort if budget == EFFORTS[effort] else f"{budget.trials} trials or {budget.seconds:g} s"
