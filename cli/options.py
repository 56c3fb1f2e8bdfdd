"""Options that several commands share, and what stands behind them. To be imported whole: `@options.dtype`."""

from pathlib import Path
from typing import Any

import click

from ..codegen.errors import ConfigError, check_path
from ..runtime.device.detect import choose
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import check_output
from ..tuner.result import EFFORTS


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
        if not path.absolute().parent.is_dir():
            self.fail(f"no such folder: {path.absolute().parent}", param, ctx)
        try:
            check_output("it", path)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return path


CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
"""Settings of every command."""
FILE = _NewFile(path_type=Path)
_EFFORT = click.Choice(list(EFFORTS))
TRANS = click.Choice(["nn", "nt", "tn", "tt"])
FOLDER = _Path(path_type=Path, file_okay=False)
FOLDER_THERE = _Path(path_type=Path, file_okay=False, exists=True)
_BUDGETS = "; ".join(f"{name}: {budget.trials:,} trials or {budget.seconds:g} s" for name, budget in EFFORTS.items())

store = click.option("--store", type=FOLDER, help="Folder of tuned records [default: per user].")
dtype = click.option("--dtype", default="float", help="float or double.")
trans = click.option("--trans", type=TRANS, default="nn", help="Transposes of A and B.")
device = click.option("--device", default="auto", help="auto, cuda, cuda:N or host.")
effort = click.option("--effort", type=_EFFORT, default="normal", help=f"Limits of a search. {_BUDGETS}.")
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")


def chosen(selector: str) -> DeviceInfo:
    """The device, with a word to the user where a GPU was passed over. On stderr: what is found is on stdout."""
    choice = choose(selector)
    if choice.notice:
        click.echo(f"note: {choice.notice}", err=True)
    return choice.info


def distinct(files: dict[str, Path | None]) -> None:
    """Raise UsageError where two options, by their names, would write one file."""
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path and (path.is_file() or not path.exists()):  # /dev/null takes both
            other = seen.setdefault(path.resolve(), name)
            if other != name:
                raise click.UsageError(f"{other} and {name} would both write {path}")
