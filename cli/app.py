"""The command line: `tilewright tune | emit | show | devices`, and `tune` by itself."""

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from ..codegen.arch import ARCHES, arch_named
from ..codegen.config import Config
from ..codegen.emit import emit as emit_files
from ..codegen.errors import (
    ArgumentTypeError,
    ConfigError,
    DeviceError,
    LayoutError,
    ShapeError,
    TilewrightError,
)
from ..codegen.families import complete, family_of
from ..codegen.problem import Problem
from ..runtime.device.detect import available
from ..runtime.store.store import Store
from ..tuner.recording.files import read_cache_file
from ..tuner.recording.replay import replay
from ..tuner.result import EFFORTS
from ..tuner.search.samplers import SAMPLERS
from ..tuner.tune import tune
from .bench import bench_command
from .options import (
    EFFORT_HELP,
    HELP,
    chosen,
    debug_option,
    device_option,
    dtype_option,
    new_console,
    quiet_optuna,
    store_option,
    trans_option,
)
from .progress import display
from .tables import (
    device_table,
    record_table,
    records_csv,
    records_json,
    result_json,
    show_replay,
    show_result,
)

__all__ = ["main", "main_tune"]

BAD_INPUT = (ArgumentTypeError, ShapeError, LayoutError, ConfigError, DeviceError)
"""Answered with exit status 2; other failures with 1."""

REPLAY_TRIALS = 200
"""Trials of a search in a recording where --trials does not say."""

_tune_device = click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, cuda:N, host, or replay:FILE for a recorded run."
)


@click.group(context_settings=HELP)
@click.version_option(package_name="tilewright")
def commands() -> None:
    """Generate, tune and run tiled CUDA matrix-multiplication kernels.

    Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """


@commands.command("tune", context_settings=HELP)
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
@dtype_option
@trans_option
@_tune_device
@click.option("--effort", type=click.Choice(list(EFFORTS)), default="normal", show_default=True, help=EFFORT_HELP + ".")
@click.option("--trials", type=click.IntRange(1), help="Most variants tried; overrides --effort.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Most seconds a shape; overrides --effort.")
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default="auto",
    show_default=True,
    help="auto: gp where the trials are few, else tpe. optuna-gp needs torch.",
)
@click.option(
    "--spaces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of space files [default: those of the package].",
)
@click.option("--keep", type=click.IntRange(1, 64), default=5, show_default=True, help="Contenders in the final duel.")
@click.option(
    "--isolation/--no-isolation", default=True, show_default=True, help="Try variants in processes of their own."
)
@click.option(
    "--nondeterministic",
    is_flag=True,
    help="Also try variants that add sums by atomics: their results differ in the last bits from run to run.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every trial here as a Kernel Tuner cache file (.json or .json.gz), and as T4 JSON beside it.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the results here."
)
@store_option
@debug_option
def tune_command(
    shapes: tuple[str, ...],
    dtype: str,
    trans: str,
    device: str,
    effort: str,
    trials: int | None,
    seconds: float | None,
    sampler: str,
    spaces: Path | None,
    keep: int,
    isolation: bool,
    nondeterministic: bool,
    record: Path | None,
    json_file: Path | None,
    store: Path | None,
    debug: bool,
) -> int:
    """Find the fastest right kernel for each shape and keep it.

    \b
    tune --shape 1024x768x512                  the GPU if there is one, else the processor
    tune --shape 1024x768x512 --shape 1000     several shapes; the order is M x N x K
    tune --shape 1000 --dtype double --trials 60 --seconds 120

    Ctrl-C ends the search early: what was found meets in the final duel and the winner is kept.
    """
    console = new_console()
    quiet_optuna()
    if device.startswith("replay:"):
        _tune_replay(console, device.removeprefix("replay:"), sampler, trials, seconds)
        return 0
    if not shapes:
        raise click.UsageError("Missing option '--shape'.")
    if record and len(shapes) > 1:
        raise click.UsageError("--record takes one --shape, got " + str(len(shapes)))
    for file in (record, json_file):
        if file and not file.absolute().parent.is_dir():
            raise click.UsageError(f"no such folder: {file.absolute().parent}")
    problems = [Problem.parse(shape, dtype, trans) for shape in shapes]
    chosen(device)
    results = []
    for problem in problems:
        with display(console) as progress:
            result = tune(
                problem,
                device=device,
                effort=effort,
                trials=trials,
                seconds=seconds,
                store=store,
                sampler=sampler,
                isolation=isolation,
                spaces=spaces,
                keep=keep,
                record=record,
                nondeterministic=nondeterministic,
                progress=progress,
            )
        results.append(result)
        show_result(console, result, store)
        if json_file:  # again after each, so that a failure of the next one loses nothing
            json_file.write_text(json.dumps([result_json(each) for each in results], indent=1) + "\n")
        if result.stopped == "interrupt":
            return 130
    return 0


def _tune_replay(console: Console, file: str, sampler: str, trials: int | None, seconds: float | None) -> None:
    if not Path(file).is_file():
        raise click.UsageError(f"no such recording: {file}")
    recording = read_cache_file(Path(file))
    found = replay(recording, sampler=sampler, trials=trials or REPLAY_TRIALS, seconds=seconds or math.inf)
    show_replay(console, found)


@commands.command()
@click.option("--shape", help="MxNxK, or one number for a cube; not needed where --config says what to emit.")
@dtype_option
@trans_option
@device_option
@click.option("--arch", help=f"Emit for this generation instead: {', '.join(a for a in ARCHES if a != 'host')}.")
@click.option("--config", "config_text", help="Emit this variant, family:name=value,..., instead of the tuned one.")
@click.option("--name", default="gemm", show_default=True, help="Name of the function and of the files.")
@click.option("--main", "with_main", is_flag=True, help="Add a self-test program.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder.")
@click.option("--overwrite", is_flag=True, help="Overwrite files that were edited by hand.")
@store_option
@debug_option
def emit(
    shape: str | None,
    dtype: str,
    trans: str,
    device: str,
    arch: str | None,
    config_text: str | None,
    name: str,
    with_main: bool,
    output: Path,
    overwrite: bool,
    store: Path | None,
    debug: bool,
) -> None:
    """Write the tuned kernel as a .cu and .h pair for another project.

    \b
    tilewright emit --shape 1024x768x512 -o out
    tilewright emit --config tiled:tile_width=32,edge=pad --arch sm_80 --name my_gemm --main -o out
    """
    if shape is None and config_text is None:
        raise click.UsageError("emit needs --shape, --config or both")
    info = chosen(device)
    if config_text:
        config, origin = complete(Config.parse(config_text)), "as given"
        # The text serves many shapes; where none is named, the smallest that every edge allows.
        shape = shape or "x".join(map(str, family_of(config).multiples(config)))
    problem = Problem.parse(shape or "1", dtype, trans)
    if not config_text:
        found = Store(store).lookup(info, problem)
        config, origin = found.config, found.origin
    row = arch_named(arch) if arch else info.arch
    for path in emit_files(problem, config, row, name=name, main=with_main).write(output, overwrite=overwrite):
        click.echo(f"wrote {path}")
    click.echo(f"config {config} ({origin}, {info.name})")


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="As comma-separated values.")
@click.option("--device-key", help="Only this device, such as nvidia-h200.")
@store_option
@debug_option
def show(as_json: bool, as_csv: bool, device_key: str | None, store: Path | None, debug: bool) -> None:
    """Show what is stored, shipped records included."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    records = tuple(Store(store).records(device_key))
    if as_json:
        click.echo(records_json(records))
    elif as_csv:
        click.echo(records_csv(records), nl=False)
    elif records:
        new_console().print(record_table(records))
    else:
        what = f" for {device_key}" if device_key else ""
        click.echo(f"nothing is stored{what} yet; tilewright tune --shape 1024x768x512 makes a start")


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@debug_option
def devices(as_json: bool, debug: bool) -> None:
    """List the devices that kernels can run on, with their limits."""
    infos, missing = available()
    if as_json:
        click.echo(json.dumps([{"key": info.key, **_plain(info)} for info in infos], indent=1))
    else:
        new_console().print(device_table(infos))
    if missing:
        click.echo(f"no GPU: {missing.removeprefix('device cuda: ')}", err=True)


def _plain(info: Any) -> dict[str, Any]:
    from ..tuner.measure.worker import pack_info

    return pack_info(info)


commands.add_command(bench_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `tilewright`. Exits with 2 for bad input, 1 for a failed run, 130 where it was interrupted."""
    _run(lambda given: commands.main(given or ["--help"], prog_name="tilewright", standalone_mode=False), arguments)


def main_tune(arguments: list[str] | None = None) -> None:
    """Entry point of `tune`, the same as `tilewright tune`."""
    _run(lambda given: tune_command.main(given, prog_name="tune", standalone_mode=False), arguments)


def _run(command: Callable[[list[str]], Any], arguments: list[str] | None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = command(given)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(_complain("interrupted", 130))
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), 2))
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if "--debug" in given:
            traceback.print_exc()
        sys.exit(_complain(_words(error), 2 if isinstance(error, BAD_INPUT) else 1))
    sys.exit(status if isinstance(status, int) else 0)


def _words(error: Exception) -> str:
    if isinstance(error, TilewrightError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where"


def _complain(message: str, status: int) -> int:
    click.echo(f"tilewright: {' '.join(message.split())}", err=True)
    return status


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _complain(f"warning: {message}", 0)
