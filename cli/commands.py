"""Commands, their options and their help. The work of a command lies in its own module, which is imported when it runs:
help and completion wait for neither NumPy nor Optuna."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ..codegen.arch import ARCHES
from ..codegen.errors import nearest_of
from ..codegen.problem import INT_MAX, DType, Grade
from ..tuner.settings import BENCH_SECONDS, EFFORTS, SAMPLERS
from . import completion
from .values import OutputFile, PathValue, number, sizes, variant, workers

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

GPUS = ", ".join(name for name in ARCHES if name != "host")


class _Command(click.Command):
    """A command that takes options alone, and says what to do with a word that is none."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            shape = "; --shape names a shape" if any("--shape" in each.opts for each in self.params) else ""
            raise click.UsageError(f"{self.name} takes options alone, got {rest[0]!r}{shape}", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # click would add an empty line
            raise click.exceptions.Abort from error


class _Commands(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not ctx.resilient_parsing:
            remedy = nearest_of(name, self.commands) or f"; the commands are {', '.join(self.commands)}"
            raise click.UsageError(f"there is no command {name!r}{remedy}", ctx)
        return super().resolve_command(ctx, args)


def _version(context: click.Context, parameter: click.Parameter, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        from ..runtime.store.versions import package_version

        click.echo(f"tilewright, version {package_version()}")
        context.exit()


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
version = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)


@click.group(cls=_Commands, context_settings=_SETTINGS)
@version
def commands() -> None:
    """Generate, tune and run tiled CUDA matrix-multiplication kernels.

    Exit status: 0 done, 1 failed or a file not written, 2 bad input, 130 interrupted.
    """


def _command(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function, whose docstring is the help. The command runs `NAME_command` of the module `NAME`,
    where NAME is the name of the function."""
    name = function.__name__

    def run(**arguments: Any) -> Any:
        return getattr(import_module(f".{name}", __package__), f"{name}_command")(**arguments)

    summary = (function.__doc__ or "").partition("\n")[0]  # click would cut it
    command = click.command(name, cls=_Command, context_settings=_SETTINGS, short_help=summary)(function)
    command.callback = run
    commands.add_command(command)
    return command


def _all(*options: Decorator) -> Decorator:
    """Several options as one decorator, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


FILE = OutputFile(path_type=Path)
FOLDER = PathValue(path_type=Path, file_okay=False)
NAMED = PathValue(path_type=Path, dir_okay=False)
FOLDER_THERE = PathValue(path_type=Path, file_okay=False, exists=True)
_BUDGETS = "; ".join(f"{name}: {budget.trials:,} trials or {budget.seconds:g} s" for name, budget in EFFORTS.items())
_DTYPES = [dtype.value for dtype in DType]
_TO_STDOUT = "- is standard output"


def _option(metavar: str, *names: str, help: str, **more: Any) -> Decorator:  # noqa: A002
    """An option whose value the help calls `metavar`."""
    return click.option(*names, metavar=metavar, help=help, **more)


def _flag(*names: str, help: str) -> Decorator:  # noqa: A002
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help)


def _dtype(text: str, *names: str, **more: Any) -> Decorator:
    complete = completion.of_words(*_DTYPES)
    return _option("|".join(_DTYPES), "--dtype", *names, help=text, shell_complete=complete, **more)


def _trans(text: str, **more: Any) -> Decorator:
    return click.option("--trans", type=click.Choice(["nn", "nt", "tn", "tt"]), help=text, **more)


def _accuracy(text: str, **more: Any) -> Decorator:
    return click.option("--accuracy", type=click.Choice([grade.value for grade in Grade]), help=text, **more)


def _device(text: str, *words: str) -> Decorator:
    complete = completion.of_devices("auto", "cuda", "host", *words)
    return _option("DEVICE", "--device", help=text, default="auto", shell_complete=complete)


def _device_key(text: str, *names: str, **more: Any) -> Decorator:
    return _option("KEY", "--device-key", *names, help=text, shell_complete=completion.device_keys, **more)


def _configs(text: str) -> Decorator:
    more: dict[str, Any] = {"type": variant, "multiple": True, "shell_complete": completion.configs}
    return _option("VARIANT", "--config", "configs", help=text, **more)


def _workers(text: str, **more: Any) -> Decorator:
    return _option("auto|N", "--workers", help=text, type=workers, shell_complete=completion.of_words("auto"), **more)


def _json_file(text: str) -> Decorator:
    """The option --json of a command that prints its results too."""
    return _option("FILE", "--json", "json_file", type=FILE, help=f"{text}; {_TO_STDOUT}.")


def _json_output(text: str) -> Decorator:
    """The option --json of a command that prints one thing: without a file it goes to standard output."""
    more: dict[str, Any] = {"type": FILE, "is_flag": False, "flag_value": "-", "show_default": False}
    return _option("[FILE]", "--json", "json_file", help=f"{text}, to FILE or to standard output.", **more)


_SHAPE = "Shape of a product, as MxNxK or as one number for a cube"
shapes = _option("SHAPE", "--shape", "shapes", multiple=True, help=f"{_SHAPE}; may be repeated.")
shape = _option("SHAPE", "--shape", help=f"{_SHAPE}.")
_SUITE = "List of shapes: the name of a suite that ships, or a .toml, .json or .csv file."
suite = _option("SUITE", "--suite", help=_SUITE, shell_complete=completion.suites)
_STORE = "Folder of tuned records; without it TILEWRIGHT_STORE, else the user's own."
store = _option("FOLDER", "--store", type=FOLDER, help=_STORE)
accuracy = _accuracy("Accuracy that a float product must have.", default="ieee")
batch = _option("N", "--batch", type=number(int, 1, INT_MAX), default=1, help="Products of the shape in one call.")
kind = _all(
    _dtype("Type of the elements.", default="float"),
    _trans("Transposes of A and B: n takes a matrix as it is, t its transpose.", default="nn"),
    accuracy,
    batch,
)
device = _device("Device: auto, cuda, cuda:N or host, which is the processor; auto takes a GPU where there is one.")
targets = _all(
    _option(
        "ARCH",
        "--arch",
        "arches",
        multiple=True,
        shell_complete=completion.of_words(*GPUS.split(", ")),
        help=f"Architecture of a GPU that need not be here: {GPUS}; may be repeated.",
    ),
    _device_key("Key of a device that need not be here, such as nvidia-h200; may be repeated.", "keys", multiple=True),
    device,
)
"""Options of the devices for which `options.targets` looks kernels up."""
_SPACES = "Folder of space files, which say what a search tries; without it the package's own."
spaces = _option("FOLDER", "--spaces", type=FOLDER_THERE, help=_SPACES)
effort = click.option(
    "--effort", type=click.Choice(list(EFFORTS)), default="normal", help=f"Limits of a search ({_BUDGETS})."
)
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")

selection = _all(
    _dtype("Select this type of elements."),
    _trans("Select these transposes of A and B."),
    _accuracy("Select products that must have this accuracy."),
    _option("N", "--batch", type=number(int, 1, INT_MAX), help="Select batches of N products."),
    _device_key("Select this device, such as nvidia-h200."),
)
"""Options of a Selection, but for its shapes."""

PROBLEMS = ("shapes", "suite", "m", "n", "k", "dtype", "trans", "accuracy", "batch")
"""Arguments of `options.problems_of`, as the options below name them."""
_ROWS = "Rows of C: one size, or START:STOP:STEP with both ends; needs --n and --k."
problems = _all(
    shapes,
    suite,
    _option("SIZES", "--m", type=sizes, help=_ROWS),
    _option("SIZES", "--n", type=sizes, help="Columns of C, written as --m."),
    _option("SIZES", "--k", type=sizes, help="Inner dimension, written as --m."),
    kind,
)

_SCHEDULER = "Address of a Dask scheduler, tcp://HOST:PORT or tls://HOST:PORT, or the scheduler's file"
TLS = ("tls_ca_file", "tls_cert", "tls_key")
_AUTHORITY = "Certificate of the authority that signed the certificates of all sides, for TLS."
tls = _all(
    _option("FILE", "--tls-ca-file", type=NAMED, help=_AUTHORITY),
    _option("FILE", "--tls-cert", type=NAMED, help="Certificate of this side, for TLS."),
    _option("FILE", "--tls-key", type=NAMED, help="Private key of this side's certificate, for TLS."),
)
ON_WORKERS = ("workers", "scheduler", "device_key", *TLS)
"""Arguments of `tune` that are about several devices."""
_MODEL = "Key of the GPU model to tune on, where workers have several models."
on_workers = _all(
    _workers("Number of devices that tune at once; auto is every GPU of this machine."),
    _option("ADDRESS", "--scheduler", help=f"{_SCHEDULER}, on whose workers to tune."),
    _device_key(_MODEL, default="", show_default=False),
    tls,
)


@_command
@problems
@_flag("--skip-tuned", help="Skip shapes that have a record of this device, to go on with a list.")
@_device("Device: auto, cuda, cuda:N or host; replay:FILE searches a recorded run.", "replay:")
@_configs("Variant to try in place of a search, as family:tile,name=value; may be repeated.")
@effort
@_option("N", "--trials", type=number(int, 1), help="Most variants tried, whatever --effort says.")
@_option(
    "S", "--seconds", type=number(float, 0, above=True), help="Most seconds for each shape, whatever --effort says."
)
@_option(
    "NAME", "--sampler", shell_complete=completion.of_words(*SAMPLERS, "optuna:"),
    help="Sampler that chooses variants: local (neighbours of the fastest, the default), gp (a Gaussian process, the "
    "default with --spaces and for a recording), tpe (Optuna's), random, exhaustive or optuna:CLASS.",
)  # fmt: skip
@_option("N", "--seed", type=number(int, 0, 2**32 - 1), default=0, help="Seed of the sampler's random generator.")
@spaces
@_option(
    "N", "--keep", type=number(int, 1, 64), default=5,
    help="Let the N best variants meet in the final duel, and up to N - 1 more that are within 2% of the fastest.",
)  # fmt: skip
@_flag("--replace", help="Keep the winner even where the stored record is faster.")
@click.option(
    "--isolation/--no-isolation", default=True, help="Try variants in other processes, which may crash or hang."
)
@_option(
    "FILE", "--record", type=FILE,
    help="File for every trial in Kernel Tuner's format, .json or .json.gz; a T4 file is written beside it.",
)  # fmt: skip
@_option("FILE", "--csv", "csv_file", type=FILE, help=f"File for every trial as it ends, a row each; {_TO_STDOUT}.")
@_json_file("File for the results")
@store
@on_workers
@version
@debug
def tune() -> None:
    """Find the fastest correct kernel for each shape and store it.

    \b
    tune --shape 1024x768x512               the GPU if there is one, else the host
    tune --shape 1024x768x512 --shape 1000  several shapes; the order is M x N x K
    tune --shape 1000 --dtype double --trials 60 --seconds 120
    tune --suite shapes.csv --skip-tuned    goes on with a list of shapes
    tune --suite shapes.csv --workers auto  on every GPU of this machine
    tune --m 256:4096:256 --n 1024 --k 64:512:64
    tune --shape 1000 --config tiled:32 --config tiled:16,edge=pad

    Ctrl-C ends the search early: the best variants so far meet in the final duel and the winner is kept. With --config
    there is no search: these variants alone are checked, timed and compared with what the library runs now. The stored
    record of a shape gives way only to what is faster in the duel, or with --replace.
    """


@_command
@shapes
@suite
@_dtype("Type of the elements; may be repeated.", "dtypes", multiple=True, default=["float"])
@_trans("Transposes of A and B; may be repeated.", multiple=True, default=["nn"])
@accuracy
@targets
@_configs("Variant to emit in place of the tuned one, as family:tile,name=value; may be repeated, one for each shape.")
@_option(
    "NAME", "--name",
    help="Name of the functions and of the files; by default it tells the product: gemm_f32_nn_1024x768x512.",
)  # fmt: skip
@_flag(
    "--plain", "is_plain",
    help="Write one readable file instead: a kernel of naive or tiled, with a program that times and checks it.",
)  # fmt: skip
@_flag("--main", help="Add a program that tests and times every kernel.")
@_flag("--split", help="Write the kernels of each config into a file of their own.")
@_flag("--header-only", help="Write one header with everything in it, for one kernel.")
@_flag("--cmake", help="Add CMakeLists.txt and a pkg-config file.")
@_flag("--batched", help="Add functions for batches of products; then every kernel serves batches.")
@_option(
    "N", "--batch", type=number(int, 1, INT_MAX), default=1,
    help="Choose kernels for batches of N products; above 1 it includes --batched.",
)  # fmt: skip
@_option("FOLDER", "-o", "--output", type=FOLDER, default=Path(), help="Folder of the files.")
@_flag("--overwrite", help="Overwrite files that were edited by hand or are of another bundle.")
@store
@debug
def emit() -> None:
    """Write tuned kernels as C++ files for another project.

    \b
    tilewright emit --shape 1024x768x512 -o out
    tilewright emit --name my_gemm --suite public --arch sm_90a --cmake -o out
    tilewright emit --config tiled:32,edge=pad --arch sm_80 --name my_gemm -o out
    tilewright emit --shape 256 --batched --main -o out
    tilewright emit --shape 16 --batch 100000 -o out
    tilewright emit --plain --config tiled:16 --name tiled -o out
    """


@_command
@shape
@selection
@_flag("--shipped", "with_shipped", help="List the records that ship with tilewright too.")
@_flag("--best", help="List the fastest record of each product, whatever its device.")
@_json_output("Write every field of the records as JSON")
@_flag("--csv", "as_csv", help="Print the records as comma-separated values.")
@store
@debug
def show() -> None:
    """List tuned records: your own, and how many ship with tilewright.

    \b
    tilewright show --shipped                         also those that ship
    tilewright show --best                            the fastest of each product
    tilewright show --best --device-key nvidia-h200   the same on one device

    With --best, --json and --csv records of both kinds are listed.
    """


@_command
@shapes
@_flag("--all", "everything", help="Remove every shape, after a question.")
@selection
@_flag("--cache", help="Remove compiled kernels too.")
@_flag("--yes", help="Remove without a question.")
@store
@debug
def forget() -> None:
    """Remove your own records and the journals of their searches.

    \b
    tilewright forget --shape 1024x768x512             of every type and device
    tilewright forget --shape 1000 --cache             and its compiled kernels
    tilewright forget --all --device-key nvidia-h200   all of one device

    The records removed are those that `tilewright show` lists as your own with the same options. Records that ship with
    tilewright cannot be removed.
    """


@_command
@shapes
@kind
@targets
@spaces
@_json_output("Write the whole shortlist and every reason as JSON")
@store
@debug
def explain() -> None:
    """Show what a look-up takes and why, and what else could run.

    \b
    tilewright explain --shape 1024x768x512
    tilewright explain --shape 1000 --dtype double --device-key nvidia-a10
    tilewright explain --shape 16x4096x4096 --arch sm_80 --json

    With --arch or --device-key the look-up is for that GPU, which need not be here. Nothing is compiled or run.
    """


@_command
@_json_output("Write the devices and all their limits as JSON")
@debug
def devices() -> None:
    """List the devices that kernels can run on, with their limits."""


@_command
@problems
@device
@_configs("Variant to time in place of the one that the store holds; may be repeated.")
@_option(
    "S", "--seconds", type=number(float, 0, 600, above=True), default=BENCH_SECONDS,
    help="Seconds that each shape is timed side by side, for at least 7 rounds.",
)  # fmt: skip
@_option(
    "S", "--turns", type=number(float, 0, 10), default=0.0,
    help="Seconds that each contender runs in its turn, at its own clock; with 0 batches alternate at one clock.",
)  # fmt: skip
@_flag("--tune", "tune_first", help="Tune shapes first that have no record of their own.")
@effort
@_json_file("File for all results, written again after each shape")
@_option("FILE", "--markdown", type=FILE, help=f"File for the tables; {_TO_STDOUT}.")
@_option("FILE", "--plot", "plot_file", type=FILE, help="File for a plot of speed and ratios: .svg, .png or .pdf.")
@store
@debug
def bench() -> None:
    """Time the kernel of each shape beside cuBLAS and cuBLASLt.

    \b
    tilewright bench                              the public suite on the GPU
    tilewright bench --dtype double --json double.json --plot double.svg
    tilewright bench --shape 1000 --shape 64x4096x4096 --tune
    tilewright bench --m 256:4096:256 --n 1024 --k 512 --config tiled:32
    tilewright bench --shape 1000 --config tiled:16 --config tiled:32

    Without shapes the suite is `public`, on the processor `small`. Ours is the kernel that the store holds for the
    shape, else that of a near one, else the predicted one; or each variant that --config names. Every result is checked
    before it is timed. A ratio above 1 means that ours is faster. Ctrl-C ends with the shapes that are done.
    """


@_command
@shape
@kind
@_device_key("Key of the tuned device, such as nvidia-h200; without it this machine's, else the only one.")
@_option("FILE", "--recording", type=NAMED, help="File of tune --record with the trials, which also names the shape.")
@_option("FILE", "--results", type=NAMED, help="File of tune --json with the winner and the duel.")
@_option(
    "FILE", "--bench", "benches", multiple=True, type=NAMED, help="File of bench --json to report; may be repeated."
)
@_flag("--ncu", help="Add counters of the winner by Nsight Compute, on the GPU of the tuning.")
@_option("FILE", "-o", "--output", type=FILE, default=Path("report.html"), help=f"File of the page; {_TO_STDOUT}.")
@store
@debug
def report() -> None:
    """Write a page on a tuning or a bench.

    \b
    tilewright report --shape 1024x768x512 -o report.html
    tilewright report --recording run.json.gz -o report.html
    tilewright report --bench float.json --bench double.json -o report.html

    The page is one HTML file that needs no network. A tuning's page has the winner and its reasons, the search, the
    importance of the parameters and every trial. Its data are the store's record and journal, unless files are named.
    """


@_command
@_option("ADDRESS", "--scheduler", help=f"{_SCHEDULER}; needed.")
@_workers("Number of devices to offer; auto is every GPU of this machine.", default="auto")
@device
@_option("ADDRESS", "--host", help="Address to listen on; without it the one that leads to the scheduler.")
@tls
@debug
def worker() -> None:
    """Offer this machine's devices to a Dask scheduler for tuning.

    \b
    tilewright worker --scheduler tcp://127.0.0.1:8786   a worker for each GPU
    tilewright worker --scheduler scheduler.json --device host --workers 4

    Elsewhere `tune --scheduler` uses them. Whoever reaches the scheduler can run any code here: on a network use TLS,
    see docs/cluster.md.
    """
