"""`tilewright forget`: removal of what was tuned."""

import sys
from pathlib import Path
from typing import Any

import click

from ..codegen.errors import ConfigError, StoreError, check
from ..runtime.device.cache import remove_kernels
from ..runtime.store.store import Store
from ..tuner.forget import Holdings
from . import options
from .tables import counted, plain


def forget_command(
    shapes: tuple[str, ...],
    everything: bool,
    cache: bool,
    yes: bool,
    store: Path | None,
    **kind: Any,
) -> int:
    """Remove the records, journals and compiled kernels, and return the exit status; `kind` has the options of a
    Selection."""
    either = "forget takes either --shape or --all, which is every shape; name one of the two"
    check(bool(shapes) != everything, either)
    selection, shelf = options.Selection(shapes or None, **kind), Store(store)
    holdings = Holdings.of(shelf, selection.takes)
    shipped = sum(selection.takes(record.device, record.problem) for record in shelf.both()[1])
    stays = f"; what ships with tilewright cannot be removed: {counted(shipped, 'record')}" if shipped else ""
    if everything and not yes and (holdings.problems or cache) and not _sure(holdings, cache):
        click.echo("nothing was removed")
        return 1
    names = None if everything and not selection.words else holdings.kernels() if cache else set()
    removed = holdings.removed()
    kernels = remove_kernels(names) if cache else 0
    if not removed.problems and not kernels:
        raise StoreError(f"nothing that you tuned is stored{selection.words}{stays or '; see `tilewright show`'}")
    compiled = f", {counted(kernels, 'compiled kernel')}" if cache else ""
    click.echo(plain(f"removed {_words(removed)}{compiled}{stays}"))
    return 0


def _words(holdings: Holdings) -> str:
    """Numbers of records and journals, and the product if there is only one, as part of a sentence."""
    records, journals = counted(len(holdings.records), "record"), counted(len(holdings.journals), "journal")
    of = [f" of {problem} on {device}" for device, problem in holdings.problems]
    return f"{records} and {journals}{of[0] if len(of) == 1 else f' of {len(of):,} products' if of else ''}"


def _sure(holdings: Holdings, cache: bool) -> bool:
    """Whether the user answers yes. Raises ConfigError where there is no terminal to ask at."""
    kernels = ", and compiled kernels" if cache else ""
    try:
        return click.confirm(f"remove {_words(holdings)}{kernels} from {holdings.store.root}?")
    except click.Abort as error:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise ConfigError("--all asks a question first, and nobody answers here; add --yes") from error
