"""Steps that several commands share: problems, devices, and checks of output files."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..codegen.arch import Arch, arch_named
from ..codegen.errors import ConfigError, check, nearest_of
from ..codegen.problem import DType, Problem
from ..runtime.device.detect import choose
from ..runtime.device.known import KNOWN, of_arch, typical
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import descriptor_of
from ..runtime.store.store import Store
from ..tuner.bench.suites import MAX_PROBLEMS, suite_problems
from ..tuner.choose.shortlist import look_up
from .commands import GPUS
from .tables import say


@dataclass(frozen=True, slots=True)
class Selection:
    """Products and devices that the options of a command select; None selects all."""

    shapes: Sequence[str] | None
    dtype: str | None
    trans: str | None
    accuracy: str | None
    device_key: str | None
    batch: int | None = None

    def __post_init__(self) -> None:
        """Normalize shapes and dtype. Raises ShapeError or ArgumentTypeError for wrong ones."""
        if self.shapes is not None:
            object.__setattr__(self, "shapes", tuple(Problem.parse(shape).shape for shape in self.shapes))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", DType.parse(self.dtype).value)

    def takes(self, device_key: str, problem: Problem) -> bool:
        """Whether a product on a device is selected."""
        selected = self.dtype, self.trans, self.accuracy, self.device_key, self.batch
        values = problem.dtype.value, problem.trans, problem.accuracy, device_key, problem.batch
        is_kind = all(choice in (None, value) for choice, value in zip(selected, values))
        return is_kind and (self.shapes is None or problem.shape in self.shapes)

    @property
    def words(self) -> str:
        """The selection as the end of a sentence, ` for 64x64x64 float on nvidia-h200`; empty where it selects all."""
        batch = f"batch {self.batch}" if self.batch else None
        named = ", ".join(self.shapes or ()), self.dtype, self.trans, self.accuracy, batch
        words = [word for word in named if word]
        return (f" for {' '.join(words)}" if words else "") + (f" on {self.device_key}" if self.device_key else "")


def problems_of(
    shapes: Sequence[str],
    suite: str | None,
    m: range | None,
    n: range | None,
    k: range | None,
    **kind: Any,
) -> list[Problem]:
    """The problems that the options name, each once: a suite's, those of the ranges, then single shapes. `kind` has
    their dtype, trans, accuracy and batch. Raises ConfigError, ShapeError or ArgumentTypeError."""
    problems = list(suite_problems(suite, **kind)) if suite is not None else []
    sizes = {"--m": m, "--n": n, "--k": k}
    missing = [name for name, each in sizes.items() if each is None]
    ranges = [each for each in sizes.values() if each is not None]
    check(not (ranges and missing), f"--m, --n and --k go together; add {' and '.join(missing)}")
    count, limit = math.prod(map(len, ranges)), f"{MAX_PROBLEMS:,} are taken at most"
    check(count <= MAX_PROBLEMS, f"--m, --n and --k make {count:,} shapes, {limit}; take larger steps")
    if ranges:
        problems += (Problem.parse("x".join(map(str, each)), **kind) for each in itertools.product(*ranges))
    problems = list(dict.fromkeys([*problems, *(Problem.parse(each, **kind) for each in shapes)]))
    text = f"all options together make {len(problems):,} shapes, {limit}; name fewer"
    check(len(problems) <= MAX_PROBLEMS, text)
    return problems


def remaining(console: Console, problems: list[Problem], info: DeviceInfo, store: Path | None) -> list[Problem]:
    """The problems that have no record of the device, after a line on how many have one."""
    rest = untuned(problems, info, store)
    say(console, f"{len(problems) - len(rest)} of {len(problems)} shapes have a record of {info.name}")
    return rest


def untuned(problems: Sequence[Problem], info: DeviceInfo, store: Path | None) -> list[Problem]:
    """The problems that no record of the device serves."""
    shelf = Store(store)
    return [each for each in problems if shelf.lookup(info, each, look_up).origin != "exact"]


def distinct(files: dict[str, Path | None]) -> None:
    """Raise ConfigError where two options would write one file; `files` has the file of each option."""
    option_of: dict[Path | int, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        place: Path | int | None = descriptor_of(path)
        if place is None and (path.is_file() or not path.exists()):  # /dev/null may be named twice
            place = path.resolve()
        if place is not None and (other := option_of.setdefault(place, name)) != name:
            raise ConfigError(f"{other} and {name} would both write {path}; name two files")


def targets(
    arches: Sequence[str], keys: Sequence[str], device: str, store: Store
) -> tuple[list[DeviceInfo], list[str]]:
    """The devices of these architectures and keys, else the one that `device` selects, and notes on the choice. Raises
    ConfigError and DeviceError."""
    if not arches and not keys:
        return [choose(device)], []
    recorded = Counter(record.device for record in store.records())
    rows = [arch_named(arch) for arch in arches]
    check(all(not row.is_host for row in rows), f"--arch must be one of {GPUS}, got 'host'")
    infos = [_keyed(key, tuple(recorded), [row.name for row in rows]) for key in keys]
    notes = []
    for row in dict.fromkeys(rows):
        if all(info.arch != row for info in infos):
            info, note = _of_arch(row, recorded)
            infos.append(info)
            notes.append(note)
    return infos, notes


def _keyed(key: str, recorded: Sequence[str], arches: Sequence[str]) -> DeviceInfo:
    if key in KNOWN:
        return KNOWN[key]
    choices = sorted({*recorded, *KNOWN} - {key for key in recorded if key.startswith("host")})
    check(key in recorded, f"--device-key must be one of {', '.join(choices)}, got {key!r}{nearest_of(key, choices)}")
    check(
        len(arches) == 1, f"--device-key {key}: its facts do not ship with tilewright; name its architecture by --arch"
    )
    return replace(typical(arch_named(arches[0])), name=key)


def _of_arch(arch: Arch, recorded: dict[str, int]) -> tuple[DeviceInfo, str]:
    """The device of an architecture with the most records, else the typical one, and a note on the choice."""
    tuned = of_arch(arch, recorded)
    if not tuned:
        info = typical(arch)
        return info, f"nothing was tuned for {arch.name}: a model chooses as for {info.key}"
    others = ", ".join(info.key for info in tuned[1:])
    more = f" (--device-key names another: {others})" if others else ""
    return tuned[0], f"{arch.name}: records of {tuned[0].key}{more}"
