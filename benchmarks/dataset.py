"""The data set of tuned shapes that the ranking of untuned ones is fitted to: measured on a GPU, packed anywhere.

    python benchmarks/dataset.py measure trials.jsonl --have benchmarks/results/nvidia-h200/dataset --seconds 500
    python benchmarks/dataset.py measure more.jsonl --have benchmarks/results/nvidia-h200/dataset --choices
    python benchmarks/dataset.py search found.jsonl --trials 200
    python benchmarks/dataset.py measure normwise.jsonl --accuracy normwise
    python benchmarks/dataset.py pack benchmarks/results/nvidia-h200/dataset trials.jsonl more.jsonl new-folder

`measure` goes on with a file: it takes the problems that the file lacks, in an order in which any first part is a fair
sample. Processes find and compile the variants of the next problems while one is measured. `--choices` measures what a
look-up would take now for the problems of --have, and what a search would try first, beside the best that is known.
`search` tunes all problems, the narrowest first, and keeps every trial: of the best kernels for narrow problems
`measure` tries few. `--accuracy` measures float products that need not be `ieee`. With several GPUs, a process for each
takes its `--share` of the problems to a file of its own. `pack` writes a .tar.xz for each type and accuracy: a Kernel
Tuner cache file and a T4 file for each problem. Needs CuPy.
"""

import argparse
import io
import itertools
import json
import lzma
import math
import multiprocessing
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.codegen.config import Config
from tilewright.codegen.errors import CompileError, TuningError
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.timing import Timer, TimingPlan
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, compiler_for, open_device
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.measure.child import kept_between_runs
from tilewright.tuner.measure.evaluate import Bench
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, read_cache_file, write_cache_file, write_t4
from tilewright.tuner.recording.replay import entry_of
from tilewright.tuner.search.candidates import candidates, config_of, given, read_spaces
from tilewright.tuner.search.features import Table
from tilewright.tuner.search.model import estimate_us
from tilewright.tuner.search.nearest import fitted
from tilewright.tuner.search.policies import policy_of
from tilewright.tuner.search.ranked import ranked
from tilewright.tuner.search.ranker import name_of, ranker_of, shared_out
from tilewright.tuner.tune import tune

SEED = 20261123
TRIALS, GRADED_TRIALS = 100, 60
"""Of a problem, and of one that need not be `ieee`, whose kernels take a second to compile and whose `ieee` kernels are
tried where the same problem is."""
POOLED, GUESSED, FAR = 0.7, 0.15, 0.05
"""Of these such shares are kernels of the pool, the best by the model of the device, and kernels of the pool with any
way to share out the work; the others are drawn from what the model puts within NEAR of the best. What the model does
not believe in has to be measured too: it may be wrong, and the ranking has to know what does not pay."""
CHOICES = 12
"""What a look-up takes first is tried too: without it how good a look-up is can be told for few problems."""
GUESSES = 6
"""Of searches, which kernels that came after a problem was measured may be among."""
WAYS = 2
"""Ways to share out the work of each kernel of the pool."""
EDGES = Edge.EXACT, Edge.BOUNDS
NEAR = 2.5
POOL = Path(__file__).parent / "suites" / "pool.json"
"""Kernels that are tried for many problems, so that they can be compared: those of the shipped records, and those that
the model had among its first guesses for most problems."""
STOP_OVER = 2.0
"""A variant that takes so many times the best after its first repetitions is not timed any longer."""
MOST_STEPS = 4e10
"""Multiply-adds of a drawn shape at most."""
FEWEST_STEPS, MIDDLE_STEPS = 1e9, 1e8
"""And at least of one that is to be large, or of middle size."""
VENDORS = "vendor.json"
"""The member of an archive that has the times of the vendor's library by problem."""
DEEPBENCH = (
    "1760x16x1760 1760x64x1760 1760x128x1760 1760x7000x1760 2048x32x2048 2048x128x2048 2048x7000x2048 2560x16x2560 "
    "2560x64x2560 2560x7000x2560 4096x32x4096 4096x128x4096 5124x9124x1760 35x8457x1760 5124x9124x2048 35x8457x2560 "
    "7680x16x2560 7680x64x2560 7680x128x2560 3072x16x1024 3072x64x1024 3072x128x1024 3072x7435x1024 7680x5481x2560 "
    "5124x700x2560 35x700x2560 35x1500x2048 5124x1500x2560 7680x1x2560 7680x2x2560 7680x4x2560 3072x1x1024 3072x4x1024 "
    "7680x1500x2560 6144x4x2048 512x1500x2816 1024x700x512 512x6000x2048 1024x6000x2816 512x16x512 1024x16x500000"
).split()
"""Of the list of products that DeepBench publishes for training and inference."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """What was measured of one problem."""

    problem: Problem
    entries: Mapping[Config, Entry]
    vendor_us: float | None
    """Microseconds of the vendor's library, where it was timed."""

    @property
    def fastest(self) -> tuple[Config, ...]:
        """All variants, the fastest first."""
        times = {config: math.inf if entry.time_us is None else entry.time_us for config, entry in self.entries.items()}
        return tuple(sorted(times, key=times.__getitem__))

    def with_more(self, more: "Trials") -> "Trials":
        """The same with what was measured later, whose times are scaled by those of the variants measured both times:
        GPUs of one kind differ."""
        both = [config for config in self.entries if config in more.entries]
        pairs = ((self.entries[config].time_us, more.entries[config].time_us) for config in both)
        ratios = [before / after for before, after in pairs if before and after]
        scale = statistics.median(ratios) if ratios else 1.0
        scaled = {
            config: entry
            if entry.time_us is None
            else replace(entry, time_us=entry.time_us * scale, times_us=tuple(us * scale for us in entry.times_us))
            for config, entry in more.entries.items()
        }
        vendor_us = self.vendor_us
        if vendor_us is None and more.vendor_us is not None:
            vendor_us = more.vendor_us * scale
        return Trials(self.problem, scaled | dict(self.entries), vendor_us)

    @property
    def name(self) -> str:
        """Of its files, without what they end in."""
        return f"{self.problem.shape}-{self.problem.trans}"


def problems(accuracy: Grade = Grade.IEEE) -> list[Problem]:
    """All problems, in an order that is fair at every length: both types of a shape follow each other. In
    float alone where they need not be `ieee`."""
    dtypes = ("float", "double") if accuracy is Grade.IEEE else ("float",)
    shapes = (*_at_first(random.Random(SEED)), *_since_then(random.Random(SEED + 3)), *_last(random.Random(SEED + 4)))
    return [Problem.parse(shape, dtype, trans, accuracy) for shape, trans in shapes for dtype in dtypes]


def _at_first(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Shapes and transposes of all kinds."""
    everything = (1, 16384)
    shapes = [*DEEPBENCH]
    shapes += _drawn(rng, 72, everything, everything, everything)
    shapes += _drawn(rng, 28, (64, 4096), (64, 4096), (64, 4096))
    shapes += ("x".join(str(2 * _size(rng, 16, 2048) + 1) for _ in range(3)) for _ in range(16))
    shapes += _drawn(rng, 12, (8, 256), (8, 256), (8192, 200_000))  # long k, small C
    shapes += _drawn(rng, 6, (8192, 100_000), (2, 128), (16, 2048))  # long and narrow C
    shapes += _drawn(rng, 6, (2, 128), (8192, 100_000), (16, 2048))
    shapes += _drawn(rng, 8, (1024, 12288), (1024, 12288), (8, 96))  # short k, large C
    rng.shuffle(shapes)
    return ((shape, rng.choices(("nn", "nt", "tn", "tt"), (46, 18, 18, 18))[0]) for shape in shapes)


def _since_then(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kinds that look-ups were worst at: large with rows that are not aligned, and hardly any k. None is near a shape
    that `untuned.py` times."""
    for shape in _drawn(rng, 24, (192, 8192), (192, 8192), (192, 16384), FEWEST_STEPS):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))
    for shape in _drawn(rng, 8, (512, 8192), (512, 8192), (1, 8)):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _last(rng: random.Random) -> Iterator[tuple[str, str]]:
    """And again: narrow ones, and more with hardly any k or of middle and large sizes. None is near a shape
    that `untuned.py` times."""
    narrow, wide = (1, 16), (64, 16384)
    shapes = [*_drawn(rng, 12, narrow, wide, wide), *_drawn(rng, 12, wide, narrow, wide)]
    shapes += [*_drawn(rng, 8, (256, 8192), (256, 8192), (1, 8)), *_drawn(rng, 16, *[(64, 8192)] * 3, MIDDLE_STEPS)]
    return ((shape, rng.choice(("nn", "nt", "tn", "tt"))) for shape in shapes)


def _size(rng: random.Random, low: float, high: float) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _drawn(
    rng: random.Random, count: int, m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], fewest: float = 0
) -> Iterator[str]:
    while count:
        sizes = _size(rng, *m), _size(rng, *n), _size(rng, *k)
        if fewest <= math.prod(sizes) <= MOST_STEPS:
            count -= 1
            yield "x".join(map(str, sizes))


def choices(problem: Problem, info: DeviceInfo) -> list[Config]:
    """What a look-up takes for a problem, and what it would take next."""
    ranker = ranker_of(problem.dtype, problem.accuracy)
    if ranker is None:
        return []
    fits = (fitted(each.config, problem, info.arch, EDGES) for each in ranker.ranked(problem, info))
    return list(dict.fromkeys(itertools.islice((config for config in fits if config is not None), CHOICES)))


def variants(problem: Problem, info: DeviceInfo) -> list[Config]:
    """What is tried for a problem, likely ones first."""
    rng = random.Random(f"{SEED} {problem}")
    trials = TRIALS if problem.accuracy is Grade.IEEE else GRADED_TRIALS
    most_pooled, guessed, far = (round(share * trials) for share in (POOLED, GUESSED, FAR))

    def likely(config: Config) -> float:
        return estimate_us(problem, config, info) * policy_of(config.family).factor(config)

    pooled, other = list[Config](), list[Config]()
    for base in map(parse, json.loads(POOL.read_text())[name_of(problem.dtype, problem.accuracy)]):
        shared = shared_out(base, problem.dtype, info.arch, problem.accuracy)
        if not shared:
            continue
        table = Table(shared, problem.dtype, info)
        ways = [config for config, pays in zip(table.configs, table.sensible(problem)) if pays]
        fits = (fitted(way, problem, info.arch, EDGES) for way in sorted(ways, key=likely)[:WAYS])
        pooled += [config for config in fits if config is not None]
        other += ways
    found = candidates(problem, info, read_spaces(), pooled)
    estimates = {config: estimate_us(problem, config, info) for config in found.configs}
    limit = NEAR * min(estimates.values())
    near = [config for config, us in estimates.items() if us <= limit]
    chosen = dict.fromkeys([*choices(problem, info), *sorted(pooled, key=likely)[: most_pooled - CHOICES]])
    chosen |= dict.fromkeys(
        itertools.islice((c for c in ranked(problem, info, found.configs) if c not in chosen), guessed)
    )
    drawn = (fitted(way, problem, info.arch, (Edge.BOUNDS,)) for way in rng.sample(other, min(len(other), far)))
    chosen |= dict.fromkeys(config for config in drawn if config is not None)
    chosen |= dict.fromkeys(rng.sample(near, min(len(near), trials)))
    return list(chosen)[:trials]


def compiled(job: tuple[Problem, tuple[Config, ...]]) -> tuple[Problem, list[Config]]:
    """The variants of a problem, with their binaries in the cache as far as they can be compiled. Where some are known,
    the best first: that one, and what a look-up takes beside them, and what a search would guess."""
    (problem, known), info = job, KNOWN["nvidia-h200"]
    if known:
        guesses = ranked(problem, info, candidates(problem, info, read_spaces()).configs)[:GUESSES]
        found = [known[0], *(each for each in (*choices(problem, info), *guesses) if each not in known)]
    else:
        found = variants(problem, info)
    compiler = compiler_for(info)
    for config in found:
        try:
            compile_cached(compiler, render(problem, config, info.arch))
        except CompileError:
            continue  # measuring says so
    return problem, found


def measured(
    problem: Problem, configs: Sequence[Config], info: DeviceInfo, warm_s: float
) -> tuple[float, dict[Config, Entry]]:
    """Microseconds of the vendor's library, and every variant checked and timed. One that leaves the device in error is
    the last."""
    device = open_device(info)
    bench = Bench(device, problem)
    with device.entered():
        bench._timer = Timer(device, problem, plan=replace(TimingPlan.of(device), warm_seconds=warm_s, seconds=0.01))
        vendor_us = bench._timer.measure(device.vendor(problem)).median_us
    entries: dict[Config, Entry] = {}
    for config in configs:
        best_us = min((e.time_us for e in entries.values() if e.time_us is not None), default=math.inf)
        tried = bench.try_variant(config, STOP_OVER * best_us)
        entries[config] = entry_of(tried)
        if tried.fault:
            break
    return vendor_us, entries


SHARE_HELP = "the I-th of every N shapes, as I/N: for a process on each of N GPUs"


def share_of(text: str) -> slice:
    """What `2/3` takes of a list: every third, from the second on."""
    first, _, every = text.partition("/")
    if not (first.isdecimal() and every.isdecimal() and 1 <= int(first) <= int(every)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write I/N, such as 1/2 or 2/2")
    return slice(int(first) - 1, None, int(every))


def measure(
    path: Path,
    have: Path | None,
    again: bool,
    seconds: float,
    processes: int,
    accuracy: Grade = Grade.IEEE,
    share: slice = slice(None),
) -> None:
    """Go on with a file until the time is up; `have` is a folder of packed files with other problems, or with those
    whose choices are measured."""
    end, info = time.monotonic() + seconds, choose("cuda").info
    done = {each.problem for each in read(path)} if path.exists() else set()
    known = {each.problem: each.fastest for each in read(have)} if have else {}
    left = [(problem, known.get(problem, ())) for problem in problems(accuracy)[share] if problem not in done]
    left = [job for job in left if bool(job[1]) is again]
    with multiprocessing.get_context("spawn").Pool(processes) as pool, path.open("a") as file:
        for number, (problem, configs) in enumerate(pool.imap(compiled, left)):
            if again and len(configs) == 1:
                continue  # all are known
            begin = time.monotonic()
            vendor_us, entries = measured(problem, configs, info, 0.05 if number else 0.3)
            file.write(_line(Trials(problem, entries, vendor_us)))
            file.flush()
            best = min((e.time_us for e in entries.values() if e.time_us), default=math.nan)
            spent = time.monotonic() - begin
            print(f"{problem}: {len(entries)} trials, best {best:.2f} us, {spent:.1f} s", file=sys.stderr, flush=True)
            if any(entry.status == "crashed" for entry in entries.values()):
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
            file.write(_line(_trials(read_cache_file(record), found.best.vendor_us)))
            file.flush()
            best = f"best {found.best.median_us:.2f} us, {found.best.config}"
            print(f"{problem}: {found.trials} trials, {best}, {found.seconds:.1f} s", file=sys.stderr, flush=True)


def _line(trials: Trials) -> str:
    """As `read` takes it."""
    problem, entries = trials.problem, [[str(config), entry.packed()] for config, entry in trials.entries.items()]
    row = {"shape": problem.shape, "dtype": problem.dtype.value, "trans": str(problem.trans)}
    row |= {"accuracy": problem.accuracy.value, "vendor_us": trials.vendor_us, "trials": entries}
    return json.dumps(row) + "\n"


def read(path: Path) -> Iterator[Trials]:
    """All problems of a file of `measure` or `search`, or of the packed files of a folder."""
    if path.is_dir():
        for packed in sorted(path.glob("*.tar.xz")):
            with tarfile.open(packed) as archive:
                texts = {member.name: _text(archive, member) for member in archive if ".t4." not in member.name}
            vendors = json.loads(texts.pop(VENDORS, "{}"))
            yield from (_unpacked(text, vendors.get(name.removesuffix(".json"))) for name, text in texts.items())
        return
    for line in path.read_text().splitlines():
        row = json.loads(line)
        entries = {parse(text): Entry.unpacked(values) for text, values in row["trials"]}
        problem = Problem.parse(row["shape"], row["dtype"], row["trans"], row.get("accuracy", Grade.IEEE))
        yield Trials(problem, entries, row.get("vendor_us"))


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    extracted = archive.extractfile(member)
    assert extracted is not None
    return extracted.read().decode()


def _unpacked(text: str, vendor_us: float | None) -> Trials:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        return _trials(read_cache_file(Path(file.name)), vendor_us)


def _trials(recording: Recording, vendor_us: float | None) -> Trials:
    assert recording.problem is not None
    entries = {config_of(recording.values(point)): entry for point, entry in recording.entries.items()}
    return Trials(recording.problem, entries, vendor_us)


def pack(paths: Sequence[Path], folder: Path) -> None:
    """Write the archives, the same bytes for the same trials."""
    folder.mkdir(parents=True, exist_ok=True)
    by_problem: dict[Problem, Trials] = {}
    for each in (each for path in paths for each in read(path)):
        before = by_problem.get(each.problem)
        by_problem[each.problem] = before.with_more(each) if before else each
    found = [*by_problem.values()]
    for kind in dict.fromkeys(name_of(each.problem.dtype, each.problem.accuracy) for each in found):
        texts = {VENDORS: ""}
        vendors: dict[str, float] = {}
        of_kind = (each for each in found if name_of(each.problem.dtype, each.problem.accuracy) == kind)
        for each in sorted(of_kind, key=lambda each: each.name):
            if each.vendor_us is not None:
                vendors[each.name] = each.vendor_us
            texts |= _as_files(each)
        texts[VENDORS] = json.dumps(vendors, indent=1) + "\n"
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:xz", preset=9 | lzma.PRESET_EXTREME) as tar:
            for name, text in texts.items():
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
        (folder / f"{kind.replace(' ', '-')}.tar.xz").write_bytes(archive.getvalue())


def _as_files(trials: Trials) -> dict[str, str]:
    """A Kernel Tuner cache file and a T4 file."""
    found = given(trials.entries)
    points: dict[Any, Entry] = {}
    for config, entry in trials.entries.items():
        point = found.point_of(config)
        assert point is not None
        points[point] = entry
    recording = Recording.of(trials.problem, KNOWN["nvidia-h200"].name, found.space.dimensions, points)
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix, write in ((".json", write_cache_file), (".t4.json", write_t4)):
            path = Path(folder) / f"{trials.name}{suffix}"
            write(path, recording)
            texts[path.name] = path.read_text()
    return texts


def main() -> None:
    """Measure, search or pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("measure")
    command.add_argument("file", type=Path)
    command.add_argument("--have", type=Path, help="a folder of packed files, whose problems are left out")
    command.add_argument("--choices", action="store_true", help="measure what look-ups and searches begin with there")
    grades = [str(grade) for grade in Grade]
    command.add_argument(
        "--accuracy", choices=grades, default=str(Grade.IEEE), help="of float products, for all of them"
    )
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
        measure(options.file, options.have, options.choices, options.seconds, processes, accuracy, share)
    elif options.command == "search":
        search(options.file, options.trials, options.seconds, options.share)
    else:
        pack(options.file, options.folder)


if __name__ == "__main__":
    main()
