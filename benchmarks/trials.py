"""Files of measured times of the data set: lines of JSON while it is measured, packed for the repository.

    python benchmarks/trials.py export benchmarks/results/nvidia-h200/dataset/float.jsonl.xz --shape 1024x768x512 -o out

A packed file is `xz` of lines of JSON. The head has the device, the type, the accuracy and the text of every design.
Each further line is a problem: `designs` are places in the head's list, and `us` has for each of them microseconds with
five significant digits, or the word of how it failed. `export` writes a problem as a Kernel Tuner cache file and as T4.
"""

import argparse
import json
import lzma
import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Status
from tilewright.tuner.choose.batches import BATCHES
from tilewright.tuner.choose.choice import carried
from tilewright.tuner.choose.ranker import Ranker, name_of
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, write_both
from tilewright.tuner.recording.points import config_of

MANY = 3
"""Fewest variants with two times by which the times of one GPU are scaled to those of another."""
SUFFIX = ".jsonl.xz"
"""Ending of packed files."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
"""Settings of xz for text: bytes are guessed from half of the byte before, and not from their place in a word."""

Outcome: TypeAlias = float | Status
"""Microseconds, or how a variant failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The measurements of one problem on one device."""

    problem: Problem
    outcomes: Mapping[Config, Outcome]
    vendor_us: float | None
    """Microseconds of the vendor's library, where it was timed."""
    device_key: str

    @property
    def times(self) -> dict[Config, float]:
        """Microseconds of the variants that worked."""
        return {config: us for config, us in self.outcomes.items() if not isinstance(us, Status)}

    @property
    def fastest(self) -> tuple[Config, ...]:
        """All variants, the fastest first."""
        times = self.times
        return tuple(sorted(self.outcomes, key=lambda config: times.get(config, math.inf)))

    def with_more(self, more: "Trials") -> "Trials":
        """These trials and later ones of the same problem.

        The later times are scaled by the median ratio over the variants that were measured both times, where there are
        MANY: GPUs of one model differ, but two times of one variant often differ by more.
        """
        before, after = self.times, more.times
        ratios = [us / after[config] for config, us in before.items() if config in after]
        scale = statistics.median(ratios) if len(ratios) >= MANY else 1.0
        scaled = {c: us if isinstance(us, Status) else us * scale for c, us in more.outcomes.items()}
        vendor_us = self.vendor_us
        if vendor_us is None and more.vendor_us is not None:
            vendor_us = more.vendor_us * scale
        return Trials(self.problem, scaled | dict(self.outcomes), vendor_us, self.device_key)

    @property
    def recording(self) -> Recording:
        """The problem as tuners read it."""
        entries = {
            config: Entry(us.value) if isinstance(us, Status) else Entry("ok", us, (us,))
            for config, us in self.outcomes.items()
        }
        return Recording.of(self.problem, KNOWN[self.device_key].name, entries)


def outcome_of(entry: Entry) -> Outcome:
    """Microseconds of a tried variant, or how it failed."""
    return Status(entry.status) if entry.time_us is None else entry.time_us


def trials_of(recording: Recording, vendor_us: float | None, device_key: str) -> Trials:
    """The measurements of a recording that tilewright wrote."""
    assert recording.problem is not None
    outcomes = {config_of(recording.values(point)): outcome_of(entry) for point, entry in recording.entries.items()}
    return Trials(recording.problem, outcomes, vendor_us, device_key)


def line_of(trials: Trials) -> str:
    """A problem's line of a file that is not packed."""
    row = _names(trials.problem) | {"device": trials.device_key, "vendor_us": trials.vendor_us}
    row |= {"designs": [*map(str, trials.outcomes)], "us": [*map(_plain, trials.outcomes.values())]}
    return json.dumps(row) + "\n"


def chosen_line(problem: Problem, configs: Iterable[Config]) -> str:
    """Configs for a problem as a line of a file that `read_chosen` reads."""
    return json.dumps(_names(problem) | {"configs": [*map(str, configs)]}) + "\n"


def _names(problem: Problem) -> dict[str, Any]:
    names: dict[str, Any] = {"shape": problem.shape, "dtype": problem.dtype.value}
    return names | {"trans": str(problem.trans), "accuracy": problem.accuracy.value} | _batch(problem)


def _batch(problem: Problem) -> dict[str, Any]:
    return {} if problem.batch == 1 else {"batch": problem.batch}


def _problem(row: Mapping[str, Any]) -> Problem:
    return Problem.parse(row["shape"], row["dtype"], row["trans"], row["accuracy"], batch=row.get("batch", 1))


def read_chosen(path: Path) -> dict[Problem, tuple[Config, ...]]:
    """Configs by problem, from a file of lines of `chosen_line`."""
    return {_problem(row): tuple(map(parse, row["configs"])) for row in map(json.loads, path.read_text().splitlines())}


def choices(ranker: Ranker, problem: Problem, info: DeviceInfo) -> Iterator[Config]:
    """Configs that a look-up by a ranker may take for a problem, the likeliest first, some of them twice."""
    fits = (carried(each.config, problem, info) for each in ranker.ranked(problem, info))
    return (config for config in fits if config is not None)


def looked_up(ranker: Ranker, problem: Problem, info: DeviceInfo) -> list[Config]:
    """All configs that a look-up by a ranker may take for a problem, the likeliest first."""
    return list(dict.fromkeys(choices(ranker, problem, info)))


def read(path: Path, shapes: Container[str] | None = None) -> Iterator[Trials]:
    """Trials of a file that is packed or not, or of all packed files of a folder; of these shapes, or of all."""
    if path.is_dir():
        for file in sorted(path.glob(f"*{SUFFIX}")):
            yield from read(file, shapes)
        return
    data, is_packed = path.read_bytes(), path.suffix == ".xz"
    lines = (lzma.decompress(data) if is_packed else data).decode().splitlines()
    head: dict[str, Any] = json.loads(lines.pop(0)) if is_packed else {}
    texts, config_at = head.get("designs", []), cache(parse)
    for line in lines:
        row = head | json.loads(line)
        if shapes is None or row["shape"] in shapes:
            configs = (config_at(texts[each] if is_packed else each) for each in row["designs"])
            outcomes = (Status(us) if isinstance(us, str) else us for us in row["us"])
            yield Trials(_problem(row), dict(zip(configs, outcomes, strict=True)), row["vendor_us"], row["device"])


def pack(paths: Sequence[Path], folder: Path) -> None:
    """Write a packed file for each type and accuracy, and one for batches. The same trials give the same bytes. Raises
    ValueError for trials of two devices."""
    folder.mkdir(parents=True, exist_ok=True)
    by_problem: dict[Problem, Trials] = {}
    for each in (each for path in paths for each in read(path)):
        if by_problem and each.device_key != next(iter(by_problem.values())).device_key:
            raise ValueError(f"{each.problem} was measured on {each.device_key}: pack each device into its own folder")
        before = by_problem.get(each.problem)
        by_problem[each.problem] = before.with_more(each) if before else each
    by_kind: dict[str, list[Trials]] = {}
    for each in by_problem.values():
        kind = name_of(each.problem.dtype, each.problem.accuracy) if each.problem.batch == 1 else BATCHES
        by_kind.setdefault(kind, []).append(each)
    for kind, trials in by_kind.items():
        data = lzma.compress(packed(trials), filters=_FILTERS)
        (folder / f"{kind}{SUFFIX}").write_bytes(data)


def packed(trials: Sequence[Trials]) -> bytes:
    """A packed file of one device, type and accuracy, or of batches, before it is compressed. The line of a batch has
    its type where that is not the head's."""
    texts = {config: str(config) for each in trials for config in each.outcomes}
    designs = sorted(texts.values())
    place = {text: i for i, text in enumerate(designs)}
    problem, device_key = trials[0].problem, trials[0].device_key
    head = {"device": device_key, "dtype": problem.dtype.value, "accuracy": problem.accuracy.value, "designs": designs}
    rows: list[dict[str, Any]] = [head]
    for each in sorted(trials, key=lambda each: (each.problem.shape, each.problem.trans, each.problem.batch)):
        outcomes = sorted((place[texts[config]], us) for config, us in each.outcomes.items())
        row = {"shape": each.problem.shape, "trans": str(each.problem.trans)} | _batch(each.problem)
        row |= {} if each.problem.dtype is problem.dtype else {"dtype": each.problem.dtype.value}
        row |= {"vendor_us": each.vendor_us and _plain(each.vendor_us, 5)}
        row |= {"designs": [i for i, _ in outcomes], "us": [_plain(us, 5) for _, us in outcomes]}
        rows.append(row)
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()


def _plain(us: Outcome, digits: int = 12) -> float | str:
    """The outcome as JSON has it; microseconds have this number of significant digits."""
    return us.value if isinstance(us, Status) else float(f"{us:.{digits}g}")


def export(path: Path, shape: str, trans: str, folder: Path) -> list[Path]:
    """Write the problems of a shape as recordings, and return their files. Raises ValueError where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for each in read(path, (shape,)):
        if each.problem.trans == trans:
            file = folder / f"{name_of(each.problem.dtype, each.problem.accuracy)}-{shape}-{trans}.json"
            write_both(file, each.recording)
            written.append(file)
    if not written:
        raise ValueError(f"{path} has no {shape} {trans}: name a shape and the transposes that were measured")
    return written


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(dest="command", required=True).add_parser("export")
    command.add_argument("file", type=Path, help="a packed file, or a folder of them")
    command.add_argument("--shape", required=True, metavar="MxNxK")
    command.add_argument("--trans", default="nn", help="transposes of A and B (nn)")
    command.add_argument("-o", "--output", type=Path, default=Path(), help="folder to write to (this one)")
    options = parser.parse_args()
    try:
        print(*export(options.file, options.shape, options.trans, options.output), sep="\n")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
