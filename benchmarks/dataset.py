"""Measure and pack the data set that the rankers are fitted to.

    python benchmarks/dataset.py measure trials.jsonl --have benchmarks/results/nvidia-h200/dataset --seconds 500
    python benchmarks/dataset.py measure more.jsonl --have benchmarks/results/nvidia-h200/dataset --choices chosen.jsonl
    python benchmarks/dataset.py search searches.jsonl --trials 200
    python benchmarks/dataset.py measure normwise.jsonl --accuracy normwise
    python benchmarks/dataset.py pack benchmarks/results/nvidia-h200/dataset trials.jsonl more.jsonl new-folder

`measure` appends to a file the problems that it lacks. Their order is such that any first part is a fair sample.
Processes choose and compile the variants of the next problems while one problem is measured. Without `--choices` it
leaves the problems of `--have` out. With `--choices` it measures those again: the fastest variant, what a look-up takes
today, also of each family, what a search would try first, and neighbours of the fastest. A file after `--choices`, as
`fit_ranker.py --choices` writes it, replaces what a look-up takes by the choices of a fit without the problem: they
judge such fits, and later fits learn from their errors. `--accuracy` measures float products that need not be `ieee`.

`search` tunes all problems, the narrowest first, and stores every trial: `measure` tries few of the kernels that are
best for narrow problems. `pack` writes a .jsonl.xz for each type and accuracy, of which `trials.py export` makes Kernel
Tuner cache files and T4 files.

With several GPUs, a process for each takes its `--share` of the problems to a file of its own. Measuring needs CuPy.
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shapes import SEED, batches, problems
from tilewright.codegen.config import Config
from tilewright.codegen.errors import CompileError, TuningError
from tilewright.codegen.families import families, parse
from tilewright.codegen.families.simt import Order
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.timing import Timer, TimingPlan
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, compiler_for, open_device
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Status
from tilewright.tuner.choose.choice import carried
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.model import Table
from tilewright.tuner.choose.ranker import decomposed, kernel_of, name_of, ranker_of
from tilewright.tuner.choose.shortlist import ENTRIES, shortlist, varied
from tilewright.tuner.measure.child import kept_between_runs
from tilewright.tuner.measure.evaluate import Bench
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.neighbours import neighbours
from tilewright.tuner.tune import tune
from trials import Outcome, Trials, line_of, looked_up, outcome_of, pack, read, read_chosen, trials_of

TRIALS, GRADED_TRIALS = 100, 60
"""Trials of a problem that must be `ieee`, and of one that need not be, whose kernels take a second to compile."""
POOLED, GUESSED, FAR = 0.7, 0.15, 0.05
"""Shares of the trials that are kernels of the pool, the best configs by the model of the device, and kernels of the
pool with any decomposition of the work. The others are drawn from the configs that the model puts within NEAR of the
best. Slow kernels are measured too, as the ranker has to learn what does not pay."""
BATCH_TRIALS = 48
"""Trials of a batch."""
OF_FAMILY_OF_BATCH = 6
"""Kernels of each family that are tried for a batch."""
NEAR_FIRST = 3
"""Neighbours of the first choice of each family that are tried for a batch: as many of the likeliest as others."""
TILED = 8
"""Tiles of float kernels that are tried for a batch beyond a look-up's: a product of a batch has few tiles, so that it
matters how much of the last ones lies outside C."""
MOST_WARPS, MOST_ACCUMULATORS = 8, 140
"""Most warps of these kernels, and most elements of C that a thread computes."""
CHOICES = 12
"""First choices of a look-up that are tried: a look-up can be judged only where its choices were measured."""
GUESSES = 6
"""Configs that a search would try first and that are tried: new kernels may be among them."""
OF_FAMILY = 3
"""First choices of a look-up in each family that are tried."""
BESIDE, BESIDE_AT_RANDOM = 16, 4
"""Neighbours of the fastest variant that are tried: the likeliest, and others at random."""
FASTEST, FAR_ELSEWHERE = 10, 2
"""Variants measured on another device that are tried: the fastest there, and others at random."""
DECOMPOSITIONS = 2
"""Decompositions of each kernel of the pool that are tried, the first by the model."""
NEAR = 2.5
"""Expected time over the least expected time up to which configs are drawn at random."""
POOL = Path(__file__).parent / "suites" / "pool.json"
"""Kernels that are tried for many problems, so that their times can be compared."""
STOP_OVER = 2.0
"""A variant that takes this many times the best time in its first repetitions is not timed any longer."""


def choices(problem: Problem, info: DeviceInfo) -> list[Config]:
    """The choices of a look-up for a problem, in order; none where there is no ranker."""
    if problem.batch > 1:
        return [choice.config for choice in shortlist(problem, info, (), ENTRIES)]
    ranker = ranker_of(problem.dtype, problem.accuracy, info.arch)
    return looked_up(ranker, problem, info) if ranker else []


def of_families(configs: Sequence[Config], count: int = OF_FAMILY) -> Iterator[Config]:
    """The first configs of each family."""
    for name in families():
        yield from itertools.islice((config for config in configs if config.family == name), count)


def modelled(problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> dict[Config, float]:
    """Microseconds by the model of the device of the configs for which it holds, the least first."""
    table = Table(configs, problem.dtype, info)
    valid = table.valid(problem).nonzero()[0]
    us = table.modelled_us(problem, valid)
    return {table.configs[valid[place]]: float(us[place]) for place in us.argsort(kind="stable")}


@functools.cache
def tilings() -> tuple[Config, ...]:
    """A kernel of `simt` for each thread tile, arrangement of lanes and warps and depth of tiles."""
    simt = families()["simt"]
    block_m, block_n = (frozenset(simt.leaf(name).choices) for name in ("block_m", "block_n"))
    thread_m, thread_n, lanes_m = (simt.leaf(name).choices for name in ("thread_m", "thread_n", "lanes_m"))
    warps = [(m, n) for m in range(1, MOST_WARPS + 1) for n in range(1, MOST_WARPS // m + 1)]
    return tuple(
        simt.build(
            {"block_m": lanes * m * warps_m, "block_n": 32 // lanes * n * warps_n, "block_k": k, "thread_m": m}
            | {"thread_n": n, "lanes_m": lanes, "order": Order.ROWS, "interleave": 2, "shared": True}
        )
        for m, n, lanes, (warps_m, warps_n), k in itertools.product(thread_m, thread_n, lanes_m, warps, (8, 16))
        if m * n <= MOST_ACCUMULATORS and lanes * m * warps_m in block_m and 32 // lanes * n * warps_n in block_n
    )


def tiled(problem: Problem, info: DeviceInfo) -> Iterator[Config]:
    """Kernels of `tilings` that serve a batch, one for each tile, the fastest by the model first; none in double."""
    tiles = set[tuple[object, ...]]()
    for config in modelled(problem, info, tilings()) if problem.dtype is DType.FLOAT else ():
        tile = config.cta_tile[:2], config.get("thread_m"), config.get("thread_n")
        fits = carried(config, problem, info) if tile not in tiles else None
        if fits is not None:
            tiles.add(tile)
            yield fits


def listed(problem: Problem, info: DeviceInfo) -> tuple[Config, ...]:
    """Configs that a search of the shipped spaces may try without records. Raises ShapeError where none serves the
    problem."""
    likely = [choice.config for choice in shortlist(problem, info, (), ENTRIES)]
    return candidates(Forecast(problem, info), read_spaces(None), likely, likely).configs


def searched(problem: Problem, info: DeviceInfo) -> dict[Config, float]:
    """Configs of `listed` and their microseconds by the model, the least first."""
    return modelled(problem, info, listed(problem, info))


def variants(problem: Problem, info: DeviceInfo, trials: int | None = None) -> list[Config]:
    """The variants that are tried for a new problem, likely ones first."""
    if problem.batch > 1:
        return variants_of_batch(problem, info, trials or BATCH_TRIALS)
    rng = random.Random(f"{SEED} {problem}")
    trials = trials or (TRIALS if problem.accuracy is Grade.IEEE else GRADED_TRIALS)
    most_pooled, guessed, far = (round(share * trials) for share in (POOLED, GUESSED, FAR))

    bases = map(parse, json.loads(POOL.read_text())[name_of(problem.dtype, problem.accuracy)])
    divided = [each for base in bases for each in decomposed(base, problem.dtype, info, problem.accuracy)]
    pooled, decompositions = list[Config](), Counter[Config]()
    of_pool = list(modelled(problem, info, divided))
    for config in of_pool:
        kernel = kernel_of(config)
        decompositions[kernel] += 1
        if decompositions[kernel] <= DECOMPOSITIONS and (fits := carried(config, problem, info)) is not None:
            pooled.append(fits)
    of_search = searched(problem, info)
    limit_us = NEAR * min(of_search.values(), default=math.inf)
    near = [config for config, us in of_search.items() if us <= limit_us]
    looked_up = choices(problem, info)
    chosen = dict.fromkeys([*looked_up[:CHOICES], *of_families(looked_up)])
    chosen |= dict.fromkeys(pooled[: max(0, most_pooled - len(chosen))])
    chosen |= dict.fromkeys(itertools.islice((c for c in varied(list(of_search)) if c not in chosen), guessed))
    drawn = (carried(config, problem, info) for config in rng.sample(of_pool, min(len(of_pool), far)))
    chosen |= dict.fromkeys(config for config in drawn if config is not None)
    chosen |= dict.fromkeys(rng.sample(near, min(len(near), trials)))
    return list(chosen)[:trials]


def variants_of_batch(problem: Problem, info: DeviceInfo, trials: int) -> list[Config]:
    """The variants that are tried for a new batch: choices of a look-up, also of each family, every family's default,
    kernels of many tiles, neighbours of the first choice of each family, and further choices at random."""
    rng, forecast = random.Random(f"{SEED} {problem}"), Forecast(problem, info)
    looked_up = choices(problem, info)
    chosen = dict.fromkeys([*looked_up[:CHOICES], *of_families(looked_up, OF_FAMILY_OF_BATCH)])
    defaults = (family() for family in families().values() if problem.accuracy is Grade.IEEE)
    chosen |= dict.fromkeys(config for config in defaults if serves(config, problem, info))
    chosen |= dict.fromkeys(itertools.islice(tiled(problem, info), TILED))
    for first in of_families(looked_up, 1):
        near = [config for config in forecast.ordered(neighbours(first, forecast)) if config not in chosen]
        chosen |= dict.fromkeys([*near[:NEAR_FIRST], *rng.sample(near, min(len(near), NEAR_FIRST))])
    others = [config for config in looked_up if config not in chosen]
    chosen |= dict.fromkeys(rng.sample(others, min(len(others), max(0, trials - len(chosen)))))
    return [*chosen]


@dataclass(frozen=True, slots=True)
class Job:
    """A problem to be measured."""

    problem: Problem
    info: DeviceInfo
    earlier: Sequence[Config] = ()
    """Variants that were measured before, the fastest first."""
    elsewhere: bool = False
    """Whether they were measured on another device."""
    choices: Sequence[Config] | None = None
    """Configs in place of the choices of today's look-up."""
    trials: int | None = None
    """Most variants that are tried; None for what is usual."""


def variants_of(job: Job) -> list[Config]:
    """The variants that are tried for a job, likely ones first.

    For a problem that was measured on the device they are the fastest variant, whose time relates both measurements,
    and new ones: choices of a look-up, also of each family, kernels of many tiles for a batch, what a search would
    guess, and neighbours of the fastest. For a problem that was measured elsewhere they are the fastest variants there,
    some others, and fewer choices.
    """
    problem, info, earlier = job.problem, job.info, job.earlier
    if not earlier:
        return variants(problem, info, job.trials)
    looked_up = choices(problem, info) if job.choices is None else job.choices
    guesses = varied(looked_up if problem.batch > 1 else list(searched(problem, info)))[:GUESSES]
    rng = random.Random(f"{SEED} {problem}")
    if job.elsewhere:
        others = rng.sample(earlier[FASTEST:], min(len(earlier[FASTEST:]), FAR_ELSEWHERE))
        chosen = *earlier[:FASTEST], *looked_up[: CHOICES // 2], *of_families(looked_up, 1), *guesses[:1], *others
        return list(dict.fromkeys(chosen))[: job.trials]
    forecast = Forecast(problem, info)
    near = [config for config in forecast.ordered(neighbours(earlier[0], forecast)) if config not in earlier]
    others = rng.sample(near[BESIDE:], min(len(near[BESIDE:]), BESIDE_AT_RANDOM))
    tiles = itertools.islice(tiled(problem, info), TILED) if problem.batch > 1 else ()
    chosen = *looked_up[:CHOICES], *of_families(looked_up), *tiles, *guesses, *near[:BESIDE], *others
    return [earlier[0], *(config for config in dict.fromkeys(chosen) if config not in earlier)][: job.trials]


def compiled(job: Job) -> tuple[Problem, list[Config]]:
    """A job's problem and its variants, whose binaries are in the cache then, but for those that do not compile."""
    problem, info, configs = job.problem, job.info, variants_of(job)
    compiler = compiler_for(info)
    for config in configs:
        try:
            compile_cached(compiler, render(problem, config, info))
        except CompileError:
            continue  # measuring it records the failure
    return problem, configs


def measured(
    problem: Problem, configs: Sequence[Config], info: DeviceInfo, warm_s: float
) -> tuple[float, dict[Config, Outcome]]:
    """Microseconds of the vendor's library, and the outcomes of variants, which are verified and timed. The first one
    that leaves the device in error is the last one that is tried."""
    device = open_device(info)
    bench = Bench(device, problem)
    with device.entered():
        bench._timer = Timer(device, problem, plan=replace(TimingPlan.of(device), warm_seconds=warm_s, seconds=0.01))
        vendor_us = bench._timer.measure(device.vendor(problem)).median_us
    outcomes: dict[Config, Outcome] = {}
    for config in configs:
        tried = bench.try_variant(config, STOP_OVER * _best_us(outcomes))
        outcomes[config] = outcome_of(Entry.of(tried))
        if tried.fault:
            break
    return vendor_us, outcomes


def _best_us(outcomes: Mapping[Config, Outcome]) -> float:
    """The least time in microseconds, infinite where no variant worked."""
    return min((us for us in outcomes.values() if not isinstance(us, Status)), default=math.inf)


SHARE_HELP = "the I-th of every N shapes, as I/N: for a process on each of N GPUs"


def share_of(text: str) -> slice:
    """The share `I/N` as a slice: `2/3` takes every third element from the second on."""
    first, _, every = text.partition("/")
    if not (first.isdecimal() and every.isdecimal() and 1 <= int(first) <= int(every)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write I/N, such as 1/2 or 2/2")
    return slice(int(first) - 1, None, int(every))


def measure(
    path: Path,
    have: Path | None,
    again: bool,
    chosen: Path | None,
    seconds: float,
    processes: int,
    accuracy: Grade = Grade.IEEE,
    share: slice = slice(None),
    trials: int | None = None,
    of_batches: bool = False,
) -> None:
    """Append to a file of trials until the time is up.

    Problems of the packed files of the folder `have` are left out or, with `again`, those alone are measured: choices
    are those of the file `chosen`, where there is one, else a look-up's.
    """
    end, info = time.monotonic() + seconds, choose("cuda")
    done = {each.problem for each in read(path)} if path.exists() else set()
    before = {each.problem: each for each in read(have)} if have else {}
    choices_of = read_chosen(chosen) if chosen else {}
    jobs = [
        Job(each, info, before[each].fastest, before[each].device_key != info.key, choices_of.get(each), trials)
        if again
        else Job(each, info, trials=trials)
        for each in (batches() if of_batches else problems(accuracy))[share]
        if each not in done and (each in before) is again
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool, path.open("a") as file:
        for number, (problem, configs) in enumerate(pool.imap(compiled, jobs)):
            if again and len(configs) == 1:
                continue  # every variant was measured before
            begin = time.monotonic()
            vendor_us, outcomes = measured(problem, configs, info, 0.05 if number else 0.3)
            file.write(line_of(Trials(problem, outcomes, vendor_us, info.key)))
            file.flush()
            best, spent = _best_us(outcomes), time.monotonic() - begin
            print(f"{problem}: {len(outcomes)} trials, best {best:.2f} us, {spent:.1f} s", file=sys.stderr, flush=True)
            if Status.CRASHED in outcomes.values():
                pool.terminate()  # the device is in error for this process: another one goes on
                command = [sys.executable, *sys.argv, "--seconds", str(end - time.monotonic())]  # the last one holds
                os.execv(sys.executable, command)
            if time.monotonic() > end:
                pool.terminate()
                break


def search(path: Path, trials: int, seconds: float, share: slice) -> None:
    """Append the trials of searches to a file until the time is up, the narrowest problems first."""
    end = time.monotonic() + seconds
    done = {each.problem for each in read(path)} if path.exists() else set()
    narrow_first = sorted(problems(), key=lambda problem: min(problem.m, problem.n, problem.k))
    with path.open("a") as file, kept_between_runs(), tempfile.TemporaryDirectory() as folder:
        for problem in narrow_first[share]:
            if problem in done:
                continue
            if time.monotonic() > end:
                break
            record = Path(folder) / "trials.json"
            try:
                result = tune(problem, device="cuda", trials=trials, store=f"{folder}/{problem}", record=record)
            except TuningError as error:
                print(f"{problem}: {error}", file=sys.stderr, flush=True)
                continue
            file.write(line_of(trials_of(read_cache_file(record), result.best.vendor_us, result.best.device)))
            file.flush()
            best = f"best {result.best.median_us:.2f} us, {result.best.config}"
            print(f"{problem}: {result.trials} trials, {best}, {result.seconds:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, search or pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("measure")
    command.add_argument("file", type=Path)
    command.add_argument("--have", type=Path, help="folder of packed files, whose problems are left out")
    command.add_argument(
        "--choices",
        nargs="?",
        const=True,
        metavar="FILE",
        help="measure the problems of --have again, with today's choices or those of a file",
    )
    grades = [str(grade) for grade in Grade]
    command.add_argument(
        "--accuracy", choices=grades, default=str(Grade.IEEE), help="accuracy of all problems, of float alone"
    )
    command.add_argument(
        "--trials",
        type=int,
        help=f"most variants of a problem (new ones: {TRIALS}, {GRADED_TRIALS} if they need not be ieee)",
    )
    command.add_argument("--batches", action="store_true", help="measure batches")
    command.add_argument("--seconds", type=float, default=500.0)
    command.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    command.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    command = commands.add_parser("search")
    command.add_argument("file", type=Path)
    command.add_argument("--trials", type=int, default=200, help="most variants of a problem (200)")
    command.add_argument("--seconds", type=float, default=500.0)
    command.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    command = commands.add_parser("pack")
    command.add_argument(
        "file", type=Path, nargs="+", help="files of `measure` and `search`, or folders of packed ones"
    )
    command.add_argument("folder", type=Path, help="folder of the packed files, the last argument")
    options = parser.parse_args()
    if options.command == "pack" and options.folder.is_file():
        parser.error(f"argument folder: {options.folder} is a file: name the folder of the packed files last")
    if options.command == "measure":
        accuracy = Grade.parse(options.accuracy)
        processes, share = options.processes, options.share
        chosen = Path(options.choices) if isinstance(options.choices, str) else None
        again = options.choices is not None
        more = options.trials, options.batches
        measure(options.file, options.have, again, chosen, options.seconds, processes, accuracy, share, *more)
    elif options.command == "search":
        search(options.file, options.trials, options.seconds, options.share)
    else:
        pack(options.file, options.folder)


if __name__ == "__main__":
    main()
