"""The data set of tuned shapes that the ranking of untuned ones is fitted to: measured on a GPU, packed anywhere.

    python benchmarks/dataset.py measure trials.jsonl --have benchmarks/results/nvidia-h200/dataset --seconds 500
    python benchmarks/dataset.py measure more.jsonl --have benchmarks/results/nvidia-h200/dataset --choices chosen.jsonl
    python benchmarks/dataset.py search found.jsonl --trials 200
    python benchmarks/dataset.py measure normwise.jsonl --accuracy normwise
    python benchmarks/dataset.py pack benchmarks/results/nvidia-h200/dataset trials.jsonl more.jsonl new-folder

`measure` goes on with a file: it takes the problems that the file lacks, in an order in which any first part is a fair
sample. Processes find and compile the variants of the next problems while one is measured. `--choices` measures what a
look-up would take now for the problems of --have, also of each family, what a search would try first, and what is next
to the best that is known, all beside that one. With a file of `fit_ranker.py --choices` it is what a look-up would take
by a fit that does not know the problem: so one is judged, and learns where it is wrong.
`search` tunes all problems, the narrowest first, and keeps every trial: of the best kernels for narrow problems
`measure` tries few. `--accuracy` measures float products that need not be `ieee`. With several GPUs, a process for each
takes its `--share` of the problems to a file of its own. `pack` writes a .jsonl.xz for each type and accuracy, from
which `trials.py export` writes Kernel Tuner cache files and T4 files. Needs CuPy.
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
"""Trials of a problem, unless `--trials` says otherwise, and of one that need not be `ieee`, whose kernels take a
second to compile and whose `ieee` kernels are tried where the same problem is."""
POOLED, GUESSED, FAR = 0.7, 0.15, 0.05
"""Shares of these that are kernels of the pool, the best by the model of the device, and kernels of the pool with any
decomposition of the work; the others are drawn from what the model puts within NEAR of the best. Kernels that the
model does not believe in have to be measured too: it may be wrong, and the ranking has to know what does not pay."""
BATCH_TRIALS = 48
"""Trials of a batch."""
OF_FAMILY_OF_BATCH = 6
"""Kernels of each family that are tried for a batch."""
NEAR_FIRST = 3
"""Variants next to the first one of each family of a batch, the likeliest and others."""
TILED = 8
"""Kernels of any tile that are tried for a batch in float: each product has few tiles, so that it matters how much of
the last ones lies outside C."""
MOST_WARPS, MOST_ACCUMULATORS = 8, 140
"""Warps of these kernels, and elements of C of a thread, at most."""
CHOICES = 12
"""The first choices of a look-up are tried too: without it how good a look-up is can be told for few problems."""
GUESSES = 6
"""Number of configs that a search would try first by the model: kernels may be among them that came after a problem was
measured."""
OF_FAMILY = 3
"""Kernels of each family that a look-up would take first."""
BESIDE, BESIDE_AT_RANDOM = 16, 4
"""Variants that differ from the best that is known by a parameter or two: the likeliest, and some of the others."""
FASTEST, FAR_ELSEWHERE = 10, 2
"""Variants that were measured on another device, with half of the choices and one of each family: few, of many
problems."""
DECOMPOSITIONS = 2
"""Number of decompositions of each kernel of the pool that are tried, the first by the model."""
NEAR = 2.5
POOL = Path(__file__).parent / "suites" / "pool.json"
"""Kernels that are tried for many problems, so that they can be compared: those of the shipped records, and those that
the model had among its first guesses for most problems."""
STOP_OVER = 2.0
"""A variant that takes so many times the best after its first repetitions is not timed any longer."""


def choices(problem: Problem, info: DeviceInfo) -> list[Config]:
    """The choices of a look-up for a problem, in order; nothing where there is no ranker."""
    if problem.batch > 1:
        return [choice.config for choice in shortlist(problem, info, (), ENTRIES)]
    ranker = ranker_of(problem.dtype, problem.accuracy, info.arch)
    return looked_up(ranker, problem, info) if ranker else []


def of_families(expected: Sequence[Config], each: int = OF_FAMILY) -> Iterator[Config]:
    """The first of each family."""
    for name in families():
        yield from itertools.islice((config for config in expected if config.family == name), each)


def modelled(problem: Problem, info: DeviceInfo, configs: Sequence[Config]) -> dict[Config, float]:
    """Microseconds by the model of the device, the least first, of the configs for which it holds."""
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
            | {"thread_n": n, "lanes_m": lanes, "order": Order.ROWS, "interleave": 2}
        )
        for m, n, lanes, (warps_m, warps_n), k in itertools.product(thread_m, thread_n, lanes_m, warps, (8, 16))
        if m * n <= MOST_ACCUMULATORS and lanes * m * warps_m in block_m and 32 // lanes * n * warps_n in block_n
    )


def tiled(problem: Problem, info: DeviceInfo) -> Iterator[Config]:
    """The kernels of `tilings` that serve a batch, those of different tiles, the fastest by the model first; none in
    double."""
    tiles = set[tuple[object, ...]]()
    for config in modelled(problem, info, tilings()) if problem.dtype is DType.FLOAT else ():
        tile = config.cta_tile[:2], config.get("thread_m"), config.get("thread_n")
        fits = carried(config, problem, info) if tile not in tiles else None
        if fits is not None:
            tiles.add(tile)
            yield fits


def listed(problem: Problem, info: DeviceInfo) -> tuple[Config, ...]:
    """The configs that a search of the shipped spaces may try without any records. Raises ShapeError where none serves
    the problem."""
    likely = [choice.config for choice in shortlist(problem, info, (), ENTRIES)]
    return candidates(Forecast(problem, info), read_spaces(None), likely, likely).configs


def searched(problem: Problem, info: DeviceInfo) -> dict[Config, float]:
    """The same variants, the first by the model first."""
    return modelled(problem, info, listed(problem, info))


def variants(problem: Problem, info: DeviceInfo, trials: int | None = None) -> list[Config]:
    """The variants that are tried for a problem, likely ones first."""
    if problem.batch > 1:
        return variants_of_batch(problem, info, trials or BATCH_TRIALS)
    rng = random.Random(f"{SEED} {problem}")
    trials = trials or (TRIALS if problem.accuracy is Grade.IEEE else GRADED_TRIALS)
    most_pooled, guessed, far = (round(share * trials) for share in (POOLED, GUESSED, FAR))

    bases = map(parse, json.loads(POOL.read_text())[name_of(problem.dtype, problem.accuracy)])
    divided = [each for base in bases for each in decomposed(base, problem.dtype, info, problem.accuracy)]
    pooled, of_kernel = list[Config](), Counter[Config]()
    other = list(modelled(problem, info, divided))
    for config in other:
        of_kernel[kernel_of(config)] += 1
        if of_kernel[kernel_of(config)] <= DECOMPOSITIONS and (fits := carried(config, problem, info)) is not None:
            pooled.append(fits)
    tried = searched(problem, info)
    limit = NEAR * min(tried.values(), default=math.inf)
    near = [config for config, us in tried.items() if us <= limit]
    expected = choices(problem, info)
    chosen = dict.fromkeys([*expected[:CHOICES], *of_families(expected)])
    chosen |= dict.fromkeys(pooled[: max(0, most_pooled - len(chosen))])
    chosen |= dict.fromkeys(itertools.islice((c for c in varied(list(tried)) if c not in chosen), guessed))
    drawn = (carried(config, problem, info) for config in rng.sample(other, min(len(other), far)))
    chosen |= dict.fromkeys(config for config in drawn if config is not None)
    chosen |= dict.fromkeys(rng.sample(near, min(len(near), trials)))
    return list(chosen)[:trials]


def variants_of_batch(problem: Problem, info: DeviceInfo, trials: int) -> list[Config]:
    """The variants that are tried for a batch: what a look-up takes, also of each family, every family's default, some
    of what is next to the first of each family, and others that a search begins with."""
    rng, forecast = random.Random(f"{SEED} {problem}"), Forecast(problem, info)
    expected = choices(problem, info)
    chosen = dict.fromkeys([*expected[:CHOICES], *of_families(expected, OF_FAMILY_OF_BATCH)])
    defaults = (family() for family in families().values() if problem.accuracy is Grade.IEEE)
    chosen |= dict.fromkeys(config for config in defaults if serves(config, problem, info))
    chosen |= dict.fromkeys(itertools.islice(tiled(problem, info), TILED))
    for first in of_families(expected, 1):
        near = [config for config in forecast.ordered(neighbours(first, forecast)) if config not in chosen]
        chosen |= dict.fromkeys([*near[:NEAR_FIRST], *rng.sample(near, min(len(near), NEAR_FIRST))])
    left = [config for config in expected if config not in chosen]
    chosen |= dict.fromkeys(rng.sample(left, min(len(left), max(0, trials - len(chosen)))))
    return [*chosen]


@dataclass(frozen=True, slots=True)
class Job:
    """A problem to be measured."""

    problem: Problem
    info: DeviceInfo
    known: Sequence[Config] = ()
    """The measured variants, the fastest first."""
    elsewhere: bool = False
    """On another device."""
    choices: Sequence[Config] | None = None
    """The choice of a look-up, where that was told."""
    trials: int | None = None
    """Variants at most, as told, of a problem of which nothing was measured."""


def variants_of(job: Job) -> list[Config]:
    """Where some are known, the best first: that one, what a look-up takes beside them, what a search would guess, and
    what is next to it. Where they are known of another device, the fastest there and some others in place of the
    last."""
    problem, info, known = job.problem, job.info, job.known
    if not known:
        return variants(problem, info, job.trials)
    expected = choices(problem, info) if job.choices is None else job.choices
    guesses = varied(expected if problem.batch > 1 else list(searched(problem, info)))[:GUESSES]
    rng = random.Random(f"{SEED} {problem}")
    if job.elsewhere:
        others = rng.sample(known[FASTEST:], min(len(known[FASTEST:]), FAR_ELSEWHERE))
        chosen = *known[:FASTEST], *expected[: CHOICES // 2], *of_families(expected, 1), *guesses[:1], *others
        return list(dict.fromkeys(chosen))
    forecast = Forecast(problem, info)
    near = [config for config in forecast.ordered(neighbours(known[0], forecast)) if config not in known]
    others = rng.sample(near[BESIDE:], min(len(near[BESIDE:]), BESIDE_AT_RANDOM))
    tiles = itertools.islice(tiled(problem, info), TILED) if problem.batch > 1 else ()
    chosen = *expected[:CHOICES], *of_families(expected), *guesses, *near[:BESIDE], *others, *tiles
    return [known[0], *(config for config in dict.fromkeys(chosen) if config not in known)]


def compiled(job: Job) -> tuple[Problem, list[Config]]:
    """The variants of a problem, with their binaries in the cache as far as they can be compiled."""
    problem, info, found = job.problem, job.info, variants_of(job)
    compiler = compiler_for(info)
    for config in found:
        try:
            compile_cached(compiler, render(problem, config, info))
        except CompileError:
            continue  # measuring says so
    return problem, found


def measured(
    problem: Problem, configs: Sequence[Config], info: DeviceInfo, warm_s: float
) -> tuple[float, dict[Config, Outcome]]:
    """Microseconds of the vendor's library, and every variant checked and timed. One that leaves the device in error is
    the last."""
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
    """The least time, infinite where nothing worked."""
    return min((us for us in outcomes.values() if not isinstance(us, Status)), default=math.inf)


SHARE_HELP = "the I-th of every N shapes, as I/N: for a process on each of N GPUs"


def share_of(text: str) -> slice:
    """The part of a list that `2/3` takes: every third, from the second on."""
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
    """Go on with a file until the time is up; `have` is a folder of packed files with other problems, or with those
    whose choices are measured, those of the file `chosen` where it is given."""
    end, info = time.monotonic() + seconds, choose("cuda")
    done = {each.problem for each in read(path)} if path.exists() else set()
    known = {each.problem: each for each in read(have)} if have else {}
    told = read_chosen(chosen) if chosen else {}
    asked = [problem for problem in (batches() if of_batches else problems(accuracy))[share] if problem not in done]
    left = [
        Job(each, info, known[each].fastest, known[each].device_key != info.key, told.get(each))
        if again
        else Job(each, info, trials=trials)
        for each in asked
        if (each in known) is again
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool, path.open("a") as file:
        for number, (problem, configs) in enumerate(pool.imap(compiled, left)):
            if again and len(configs) == 1:
                continue  # all are known
            begin = time.monotonic()
            vendor_us, outcomes = measured(problem, configs, info, 0.05 if number else 0.3)
            file.write(line_of(Trials(problem, outcomes, vendor_us, info.key)))
            file.flush()
            best, spent = _best_us(outcomes), time.monotonic() - begin
            print(f"{problem}: {len(outcomes)} trials, best {best:.2f} us, {spent:.1f} s", file=sys.stderr, flush=True)
            if Status.CRASHED in outcomes.values():
                pool.terminate()  # the device is in error for this process: on with another one
                command = [sys.executable, *sys.argv, "--seconds", str(end - time.monotonic())]  # the last one counts
                os.execv(sys.executable, command)
            if time.monotonic() > end:
                pool.terminate()
                break


def search(path: Path, trials: int, seconds: float, share: slice) -> None:
    """Go on with a file of searches until the time is up, the narrowest problems first."""
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
                found = tune(problem, device="cuda", trials=trials, store=f"{folder}/{problem}", record=record)
            except TuningError as error:
                print(f"{problem}: {error}", file=sys.stderr, flush=True)
                continue
            file.write(line_of(trials_of(read_cache_file(record), found.best.vendor_us, found.best.device)))
            file.flush()
            best = f"best {found.best.median_us:.2f} us, {found.best.config}"
            print(f"{problem}: {found.trials} trials, {best}, {found.seconds:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, search or pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("measure")
    command.add_argument("file", type=Path)
    command.add_argument("--have", type=Path, help="a folder of packed files, whose problems are left out")
    command.add_argument(
        "--choices", nargs="?", const=True, metavar="FILE", help="measure what is likely there by now, or says a file"
    )
    grades = [str(grade) for grade in Grade]
    command.add_argument(
        "--accuracy", choices=grades, default=str(Grade.IEEE), help="of float products, for all of them"
    )
    command.add_argument(
        "--trials",
        type=int,
        help=f"variants of a new problem at most ({TRIALS}; {GRADED_TRIALS} if it need not be ieee)",
    )
    command.add_argument("--batches", action="store_true", help="of batches")
    command.add_argument("--seconds", type=float, default=500.0)
    command.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    command.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    command = commands.add_parser("search")
    command.add_argument("file", type=Path)
    command.add_argument("--trials", type=int, default=200, help="variants of a problem at most (200)")
    command.add_argument("--seconds", type=float, default=500.0)
    command.add_argument("--share", type=share_of, default=slice(None), help=SHARE_HELP)
    command = commands.add_parser("pack")
    command.add_argument(
        "file", type=Path, nargs="+", help="files of `measure` and `search`, or folders of packed ones"
    )
    command.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "measure":
        accuracy = Grade.parse(options.accuracy)
        processes, share = options.processes, options.share
        chosen = Path(options.choices) if isinstance(options.choices, str) else None
        again = options.choices is not None
        told = options.trials, options.batches
        measure(options.file, options.have, again, chosen, options.seconds, processes, accuracy, share, *told)
    elif options.command == "search":
        search(options.file, options.trials, options.seconds, options.share)
    else:
        pack(options.file, options.folder)


if __name__ == "__main__":
    main()
