"""What was measured of the problems of the data set, as files: lines of JSON, and archives of recordings."""

import io
import json
import lzma
import math
import statistics
import tarfile
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, read_cache_file, write_cache_file, write_t4
from tilewright.tuner.search.candidates import config_of, given
from tilewright.tuner.search.nearest import fitted
from tilewright.tuner.search.ranker import Ranker, name_of

EDGES = Edge.EXACT, Edge.BOUNDS
"""In the order in which a look-up tries them."""
FIRST_DEVICE = "nvidia-h200"
"""Of lines that do not say where they were measured."""
KEPT_TIMES = 3
"""Repetitions of a variant that a file has, from the shortest to the longest in equal steps: all of them would be most
of it."""
MANY = 3
"""Variants measured both times, from which on they tell how two GPUs differ."""
VENDORS = "vendor.json"
"""The member of an archive that has the times of the vendor's library by problem."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """What was measured of one problem."""

    problem: Problem
    entries: Mapping[Config, Entry]
    vendor_us: float | None
    """Microseconds of the vendor's library, where it was timed."""
    device_key: str = FIRST_DEVICE

    @property
    def fastest(self) -> tuple[Config, ...]:
        """All variants, the fastest first."""
        times = {config: math.inf if entry.time_us is None else entry.time_us for config, entry in self.entries.items()}
        return tuple(sorted(times, key=times.__getitem__))

    def with_more(self, more: "Trials") -> "Trials":
        """The same with what was measured later, whose times are scaled by those of the variants measured both times,
        where these are many: GPUs of one kind differ, but two times of one variant often by more."""
        both = [config for config in self.entries if config in more.entries]
        pairs = ((self.entries[config].time_us, more.entries[config].time_us) for config in both)
        ratios = [before / after for before, after in pairs if before and after]
        scale = statistics.median(ratios) if len(ratios) >= MANY else 1.0
        scaled = {
            config: entry
            if entry.time_us is None
            else replace(entry, time_us=entry.time_us * scale, times_us=tuple(us * scale for us in entry.times_us))
            for config, entry in more.entries.items()
        }
        vendor_us = self.vendor_us
        if vendor_us is None and more.vendor_us is not None:
            vendor_us = more.vendor_us * scale
        return Trials(self.problem, scaled | dict(self.entries), vendor_us, self.device_key)

    @property
    def name(self) -> str:
        """Of its files, without what they end in."""
        return f"{self.problem.shape}-{self.problem.trans}"


def line_of(trials: Trials) -> str:
    """As `read` takes it."""
    problem, entries = trials.problem, [[str(config), entry.packed()] for config, entry in trials.entries.items()]
    row = {"shape": problem.shape, "dtype": problem.dtype.value, "trans": str(problem.trans)}
    row |= {"accuracy": problem.accuracy.value, "device": trials.device_key}
    row |= {"vendor_us": trials.vendor_us, "trials": entries}
    return json.dumps(row) + "\n"


def choices(ranker: Ranker, problem: Problem, info: DeviceInfo) -> Iterator[Config]:
    """The configs that a look-up by a ranker may take for a problem, the likeliest first; one may come twice."""
    fits = (fitted(each.config, problem, info.arch, EDGES) for each in ranker.ranked(problem, info))
    return (config for config in fits if config is not None)


def looked_up(ranker: Ranker, problem: Problem, info: DeviceInfo) -> list[Config]:
    """All that a look-up by a ranker may take for a problem, the likeliest first."""
    return list(dict.fromkeys(choices(ranker, problem, info)))


def chosen_line(problem: Problem, configs: Iterable[Config]) -> str:
    """Configs for a problem, as `read_chosen` takes them."""
    row = {"shape": problem.shape, "dtype": problem.dtype.value, "trans": str(problem.trans)}
    row |= {"accuracy": problem.accuracy.value, "configs": [*map(str, configs)]}
    return json.dumps(row) + "\n"


def read_chosen(path: Path) -> dict[Problem, tuple[Config, ...]]:
    """Configs by problem."""
    rows = map(json.loads, path.read_text().splitlines())
    return {
        Problem.parse(row["shape"], row["dtype"], row["trans"], row["accuracy"]): tuple(map(parse, row["configs"]))
        for row in rows
    }


def read(path: Path, shapes: Container[str] | None = None) -> Iterator[Trials]:
    """The problems of a file of `measure` or `search`, of a packed file or of all packed files of a folder; of some
    shapes, which are looked for by name without reading the others, or of all."""
    if path.is_dir():
        for packed in sorted(path.glob("*.tar.xz")):
            yield from read(packed, shapes)
        return
    if path.suffix == ".xz":
        with tarfile.open(path) as archive:
            members = (member for member in archive if ".t4." not in member.name)
            wanted = (m for m in members if shapes is None or m.name == VENDORS or m.name.partition("-")[0] in shapes)
            texts = {member.name: _text(archive, member) for member in wanted}
        vendors = json.loads(texts.pop(VENDORS, "{}"))
        yield from (_unpacked(text, vendors.get(name.removesuffix(".json"))) for name, text in texts.items())
        return
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if shapes is not None and row["shape"] not in shapes:
            continue
        entries = {parse(text): Entry.unpacked(values) for text, values in row["trials"]}
        problem = Problem.parse(row["shape"], row["dtype"], row["trans"], row.get("accuracy", Grade.IEEE))
        yield Trials(problem, entries, row.get("vendor_us"), row.get("device", FIRST_DEVICE))


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    extracted = archive.extractfile(member)
    assert extracted is not None
    return extracted.read().decode()


def _unpacked(text: str, vendor_us: float | None) -> Trials:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        return trials_of(read_cache_file(Path(file.name)), vendor_us)


def trials_of(recording: Recording, vendor_us: float | None) -> Trials:
    """What a recording of ours tells."""
    assert recording.problem is not None
    entries = {config_of(recording.values(point)): entry for point, entry in recording.entries.items()}
    named = {info.name: key for key, info in KNOWN.items()}
    return Trials(recording.problem, entries, vendor_us, named.get(recording.device_name, FIRST_DEVICE))


def thinned(entry: Entry) -> Entry:
    """The same with KEPT_TIMES repetitions; the time that counts is that of all."""
    times, last = sorted(entry.times_us), len(entry.times_us) - 1
    if last < KEPT_TIMES:
        return entry
    return replace(entry, times_us=tuple(times[round(i * last / (KEPT_TIMES - 1))] for i in range(KEPT_TIMES)))


def short(entry: Entry) -> Entry:
    """The same with five significant digits of each time, which is more than clocks tell, and three of what it took to
    get it: digits of noise would be half of an archive."""

    def digits(value: float, count: int) -> float:
        return float(f"{value:.{count}g}")

    took = {name: digits(getattr(entry, name), 3) for name in ("compile_s", "verify_s", "bench_s")}
    error = None if entry.error is None else digits(entry.error, 3)
    time_us = None if entry.time_us is None else digits(entry.time_us, 5)
    times_us = tuple(digits(us, 5) for us in entry.times_us)
    return replace(entry, time_us=time_us, times_us=times_us, error=error, **took)


def pack(paths: Sequence[Path], folder: Path) -> None:
    """Write the archives, the same bytes for the same trials. Raises ValueError for those of two devices."""
    folder.mkdir(parents=True, exist_ok=True)
    by_problem: dict[Problem, Trials] = {}
    for each in (each for path in paths for each in read(path)):
        if by_problem and each.device_key != next(iter(by_problem.values())).device_key:
            raise ValueError(f"{each.problem} was measured on {each.device_key}: pack each device into its own folder")
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
        points[point] = short(thinned(entry))
    recording = Recording.of(trials.problem, KNOWN[trials.device_key].name, found.space.dimensions, points)
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        unrestricted = partial(write_cache_file, restricted=False)  # restrictions would be two thirds of the archive
        for suffix, write in ((".json", unrestricted), (".t4.json", write_t4)):
            path = Path(folder) / f"{trials.name}{suffix}"
            write(path, recording)
            texts[path.name] = path.read_text()
    return texts
