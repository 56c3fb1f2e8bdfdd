"""Options that several commands share, and what stands behind them. To be imported whole: `@options.dtype`."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..codegen import arch
from ..codegen.errors import ConfigError, absolute, check_path
from ..codegen.families import parse
from ..codegen.problem import DType, Grade, Problem
from ..runtime.device.detect import choose
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import check_output
from ..runtime.store.store import Store
from ..tuner.bench.suites import MAX_PROBLEMS, suite_problems
from ..tuner.result import EFFORTS
from ..tuner.search.nearest import nearest
from .tables import say


class _Path(click.Path):
    """A path; `~` is a home, and the empty path is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = check_path("it", str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return super().convert(str(path), param, ctx)


class _NewFile(_Path):
    """A file to be written, in a folder that is there: tried before there is anything to write."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path: Path = super().convert(value, param, ctx)
        try:
            folder = absolute("it", path).parent
            if not folder.is_dir():
                self.fail(f"no such folder: {folder}", param, ctx)
            check_output("it", path)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return path


def _sizes(text: str) -> range:
    """One size, or several as START:STOP:STEP, both ends included."""
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}):(\d{1,10}))?", text)
    start, stop, step = (int(group or match[1]) for group in match.groups()) if match else (0, 0, 0)
    if not 0 < start <= stop or step < 1:
        raise click.BadParameter(f"{text!r} is not START:STOP:STEP, such as 256:4096:256, or one number from 1 on")
    return range(start, stop + 1, step)


FILE = _NewFile(path_type=Path)
ARCHES = ", ".join(name for name in arch.ARCHES if name != "host")
_EFFORT = click.Choice(list(EFFORTS))
TRANS = click.Choice(["nn", "nt", "tn", "tt"])
GRADE = click.Choice([grade.value for grade in Grade])
FOLDER = _Path(path_type=Path, file_okay=False)
NAMED = _Path(path_type=Path, dir_okay=False)
FOLDER_THERE = _Path(path_type=Path, file_okay=False, exists=True)
_BUDGETS = "; ".join(f"{name}: {budget.trials:,} trials or {budget.seconds:g} s" for name, budget in EFFORTS.items())

shape = click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
suite = click.option("--suite", help="Shapes of a .toml, .json or .csv file, or of a suite that ships, by its name.")
store = click.option("--store", type=FOLDER, help="Folder of tuned records [default: per user].")
dtype = click.option("--dtype", default="float", help="float or double.")
accuracy = click.option("--accuracy", type=GRADE, default="ieee", help="How accurate a float product has to be.")
trans = click.option("--trans", type=TRANS, default="nn", help="Transposes of A and B.")
device = click.option("--device", default="auto", help="auto, cuda, cuda:N or host.")
variant = click.option(
    "--config", type=parse, metavar="VARIANT", help="This variant, instead of the one that the store holds."
)
variants = click.option(
    "--config", "configs", type=parse, metavar="VARIANT", multiple=True, help="Only this variant. Repeatable."
)
spaces = click.option("--spaces", type=FOLDER_THERE, help="Folder of space files [default: those of the package].")
arches = click.option("--arch", "arches", multiple=True, help=f"For these: {ARCHES}.")
keys = click.option("--device-key", "keys", multiple=True, help="For these devices, as `tilewright show` has them.")
effort = click.option("--effort", type=_EFFORT, default="normal", help=f"Limits of a search. {_BUDGETS}.")
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")

_SELECTION = (
    click.option("--dtype", help="Only float or double."),
    click.option("--trans", type=TRANS, help="Only with these transposes of A and B."),
    click.option("--accuracy", type=GRADE, help="Only for products that have to be this accurate."),
    click.option("--device-key", help="Only this device, such as nvidia-h200."),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The products and devices that the options of a command select; None stands for all."""

    shapes: Sequence[str] | None
    dtype: str | None
    trans: str | None
    accuracy: str | None
    device_key: str | None

    def __post_init__(self) -> None:
        """Raises ShapeError or ArgumentTypeError for what is none."""
        if self.shapes is not None:
            object.__setattr__(self, "shapes", tuple(Problem.parse(shape).shape for shape in self.shapes))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", DType.parse(self.dtype).value)

    def takes(self, device_key: str, problem: Problem) -> bool:
        """Whether a product on a device is among them."""
        pairs = (
            (self.dtype, problem.dtype.value), (self.trans, problem.trans), (self.accuracy, problem.accuracy),
            (self.device_key, device_key),
        )  # fmt: skip
        return (self.shapes is None or problem.shape in self.shapes) and all(one in (None, its) for one, its in pairs)

    @property
    def words(self) -> str:
        """The selection as the end of a sentence, ` for 64x64x64 float on nvidia-h200`; empty where it is all."""
        words = [word for word in (", ".join(self.shapes or ()), self.dtype, self.trans, self.accuracy) if word]
        return (f" for {' '.join(words)}" if words else "") + (f" on {self.device_key}" if self.device_key else "")


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a Selection, but for its shapes."""
    for option in reversed(_SELECTION):
        command = option(command)
    return command


_SIZE = "A size, or 256:4096:256 for all from 256 to 4096 in steps of 256; with {}."
_ASKED = (
    shape,
    suite,
    click.option("--m", "m", type=_sizes, metavar="SIZES", help=_SIZE.format("--n and --k")),
    click.option("--n", "n", type=_sizes, metavar="SIZES", help="The same for the columns of C."),
    click.option("--k", "k", type=_sizes, metavar="SIZES", help="The same for the inner dimension."),
    dtype,
    trans,
    accuracy,
)
ASKED = ("shapes", "suite", "m", "n", "k", "dtype", "trans", "accuracy")
"""What `asked` takes."""


def problems(command: Callable[..., Any]) -> Callable[..., Any]:
    """All options that ask for problems; the command hands what they are given to `asked`."""
    for option in reversed(_ASKED):
        command = option(command)
    return command


def asked(
    shapes: Sequence[str],
    suite: str | None,
    m: range | None,
    n: range | None,
    k: range | None,
    dtype: str,
    trans: str,
    accuracy: str,
) -> list[Problem]:
    """The problems that the options ask for, each once: of the suite, of the ranges, then single shapes. Raises
    UsageError, ConfigError, ShapeError or ArgumentTypeError."""
    kind = dtype, trans, accuracy
    found = list(suite_problems(suite, *kind)) if suite is not None else []
    sizes = {"--m": m, "--n": n, "--k": k}
    missing = [name for name, each in sizes.items() if each is None]
    ranges = [each for each in sizes.values() if each is not None]
    if ranges and missing:
        raise click.UsageError(f"--m, --n and --k go together: {' and '.join(missing)} missing")
    if (count := math.prod(map(len, ranges))) > MAX_PROBLEMS:
        raise click.UsageError(
            f"--m, --n and --k make {count:,} shapes, {MAX_PROBLEMS:,} are taken at most: larger steps"
        )
    if ranges:
        found += (Problem.parse("x".join(map(str, each)), *kind) for each in itertools.product(*ranges))
    found = list(dict.fromkeys([*found, *(Problem.parse(each, *kind) for each in shapes)]))
    if len(found) > MAX_PROBLEMS:
        raise click.UsageError(f"all options together make {len(found):,} shapes, {MAX_PROBLEMS:,} are taken at most")
    return found


def chosen(selector: str) -> DeviceInfo:
    """The device, with a word to the user where a GPU was passed over. On stderr: what is found is on stdout."""
    choice = choose(selector)
    if choice.notice:
        click.echo(f"note: {choice.notice}", err=True)
    return choice.info


def left_of(console: Console, problems: list[Problem], info: DeviceInfo, store: Path | None) -> list[Problem]:
    """The untuned ones, and a line that tells how many are not."""
    left = untuned(problems, info, store)
    say(console, f"{len(problems) - len(left)} of {len(problems)} shapes have a record of {info.name}")
    return left


def untuned(problems: Sequence[Problem], info: DeviceInfo, store: Path | None) -> list[Problem]:
    """Those that have no record of the device that would serve them, or one of a kernel that is gone."""
    shelf = Store(store)
    looked_up = ((each, shelf.lookup(info, each, nearest)) for each in problems)
    return [each for each, found in looked_up if found.origin != "exact" or (found.record and found.record.removed)]


def distinct(files: dict[str, Path | None]) -> None:
    """Raise UsageError where two options, by their names, would write one file."""
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path and (path.is_file() or not path.exists()):  # /dev/null takes both
            other = seen.setdefault(path.resolve(), name)
            if other != name:
                raise click.UsageError(f"{other} and {name} would both write {path}")
