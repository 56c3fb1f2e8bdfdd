"""Options that several commands share, and what stands behind them."""

import logging
import sys
from pathlib import Path

import click
from rich.console import Console

from ..runtime.device.detect import choose
from ..runtime.device.protocol import DeviceInfo
from ..tuner.result import EFFORTS

__all__ = [
    "EFFORT_HELP",
    "HELP",
    "chosen",
    "debug_option",
    "device_option",
    "dtype_option",
    "new_console",
    "quiet_optuna",
    "store_option",
    "trans_option",
]

HELP = {"help_option_names": ["-h", "--help"]}
EFFORT_HELP = "; ".join(f"{name}: {budget.trials:,} trials or {budget.seconds:g} s" for name, budget in EFFORTS.items())

store_option = click.option(
    "--store", type=click.Path(path_type=Path, file_okay=False), help="Folder of tuned records [default: per user]."
)
dtype_option = click.option("--dtype", default="float", show_default=True, help="float or double.")
trans_option = click.option(
    "--trans",
    type=click.Choice(["nn", "nt", "tn", "tt"]),
    default="nn",
    show_default=True,
    help="Transposes of A and B.",
)
device_option = click.option("--device", default="auto", show_default=True, help="auto, cuda, cuda:N or host.")
debug_option = click.option("--debug", is_flag=True, help="Show tracebacks.")


def chosen(device: str) -> DeviceInfo:
    """The device, with a word to the user where a GPU was passed over. On stderr: what is found is on stdout."""
    choice = choose(device)
    if choice.notice:
        click.echo(f"note: {choice.notice}", err=True)
    return choice.info


def quiet_optuna() -> None:
    """That a study was made is no news to the user."""
    for name in ("optuna.study", "optuna.storages"):
        logging.getLogger(name).setLevel(logging.WARNING)


def new_console() -> Console:
    """Where tables go."""
    # A pipe or a file has no width of its own; the tables need some 150 columns to stay on one line a row.
    return Console() if sys.stdout.isatty() else Console(width=150)
