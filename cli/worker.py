"""`tilewright worker`: devices for those who tune on a Dask cluster."""

import asyncio
from typing import Any

import click

from ..codegen.errors import DeviceError, check
from . import options
from .on_workers import KEYS, MISSING, SCHEDULER, Workers, devices_here, installed, tls
from .tables import plain


@click.command("worker")
@click.option("--scheduler", required=True, help=SCHEDULER)
@click.option("--workers", type=Workers(), default="auto", help="So many devices; auto: every GPU of this machine.")
@options.device
@click.option("--host", help="Address to listen on [default: the one that leads to the scheduler].")
@tls
@options.debug
def worker_command(scheduler: str, workers: int, device: str, host: str | None, **given: Any) -> int:
    """Tune for whoever uses a Dask scheduler: `tune --scheduler` elsewhere.

    \b
    tilewright worker --scheduler tcp://127.0.0.1:8786   a worker for each GPU
    tilewright worker --scheduler scheduler.json --device host --workers 4

    Whoever reaches the scheduler can run any code here: on a network use TLS, see docs/cluster.md.
    """
    check(installed(), MISSING.format("tilewright worker"), DeviceError)
    from ..tuner.cluster import link

    infos = devices_here(device, workers, "")
    link.quiet()
    say_it = lambda text: click.echo(plain(text))  # noqa: E731
    return asyncio.run(link.serve(scheduler, link.Keys(*(given[each] for each in KEYS)), infos, host, say_it))
