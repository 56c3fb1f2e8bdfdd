"""`tilewright worker`: this machine's devices as workers of a Dask cluster."""

import asyncio
from typing import Any

import click

from ..codegen.errors import DeviceError, check
from .commands import TLS
from .on_workers import MISSING, devices_here, installed
from .tables import plain


def worker_command(scheduler: str | None, workers: int, device: str, host: str | None, **tls_files: Any) -> int:
    """Serve a scheduler until it ends or a signal comes, and return the exit status."""
    if scheduler is None:
        raise click.UsageError("worker needs --scheduler, such as tcp://HOST:PORT, tls://HOST:PORT or a file of Dask's")
    check(installed(), MISSING.format("tilewright worker"), DeviceError)
    from ..tuner.cluster import link

    infos = devices_here(device, workers, "")
    link.quiet()
    say_it = lambda text: click.echo(plain(text))  # noqa: E731
    return asyncio.run(link.serve(scheduler, link.Keys(*(tls_files[each] for each in TLS)), infos, host, say_it))
