"""`tilewright forget`: what was tuned, removed."""

import sys
from pathlib import Path

import click

from ..codegen.errors import StoreError
from ..runtime.device.cache import remove_kernels
from ..runtime.store.store import Store
from ..tuner.forget import Holdings
from . import options
from .tables import counted, plain


@click.command("forget")
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="Every shape. Asks first.")
@options.selection
@click.option("--cache", is_flag=True, help="Compiled kernels too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.store
@options.debug
def forget_command(
    shapes: tuple[str, ...],
    everything: bool,
    dtype: str | None,
    trans: str | None,
    accuracy: str | None,
    device_key: str | None,
    cache: bool,
    yes: bool,
    store: Path | None,
) -> int:
    """Remove what you tuned: your own records and the journals of their searches.

    \b
    tilewright forget --shape 1024x768x512             of every type and device
    tilewright forget --shape 1000 --cache             and its compiled kernels
    tilewright forget --all --device-key nvidia-h200   all of one device

    What goes is what `tilewright show` lists as your own with the same options. Records that ship with tilewright
    cannot be removed.
    """
    if bool(shapes) == everything:
        raise click.UsageError("forget takes --shape, or --all for every shape")
    chosen, shelf = options.Selection(shapes or None, dtype, trans, accuracy, device_key), Store(store)
    holdings = Holdings.of(shelf, chosen.takes)
    shipped = sum(chosen.takes(record.device, record.problem) for record in shelf.both()[1])
    stays = f"; what ships with tilewright cannot be removed: {counted(shipped, 'record')}" if shipped else ""
    whole = everything and not chosen.words
    if everything and not yes and (holdings.problems or cache) and not _sure(holdings, cache):
        click.echo("nothing was removed")
        return 1
    gone = holdings.removed(kernels=cache and not whole)
    kernels = remove_kernels() if cache and whole else gone.kernels
    if not gone.problems and not kernels:
        raise StoreError(f"nothing that you tuned is stored{chosen.words}{stays}")
    compiled = f", {counted(kernels, 'compiled kernel')}" if cache else ""
    click.echo(plain(f"removed {_words(gone)}{compiled}{stays}"))
    return 0


def _words(holdings: Holdings) -> str:
    """The numbers of records and journals in words, and their product where it is a single one."""
    records, journals = counted(len(holdings.records), "record"), counted(len(holdings.journals), "journal")
    of = [f" of {problem} on {device}" for device, problem in holdings.problems]
    return f"{records} and {journals}{of[0] if len(of) == 1 else f' of {len(of):,} products' if of else ''}"


def _sure(holdings: Holdings, cache: bool) -> bool:
    """Whether the user says so."""
    kernels = ", and compiled kernels" if cache else ""
    try:
        return click.confirm(f"remove {_words(holdings)}{kernels} from {holdings.store.root}?")
    except click.Abort as error:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise click.UsageError("--all asks first, and nobody answers: --yes says so") from error
