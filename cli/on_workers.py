"""`tune` on several devices: of this machine, or of a Dask cluster."""

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..codegen.errors import DeviceError, TuningError, check, check_path
from ..codegen.problem import Problem
from ..runtime.device.detect import available
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from ..tuner.plan import check_tunable
from ..tuner.result import EFFORTS
from ..tuner.search.candidates import read_spaces
from . import options
from .progress import WorkersShown
from .show import show_records
from .tables import new_console, plain, say
from .trials import TrialsFile

MISSING = "{} needs the extra [cluster], which is not installed: pip install 'tilewright[cluster]'"


class Workers(click.ParamType[int]):
    """How many."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number of workers; 0 for one for each GPU."""
        if value in ("auto", 0):
            return 0
        if not str(value).isdecimal() or not 1 <= int(value) <= 1024:
            self.fail(f"{value!r} is not auto or a number from 1 to 1024", param, ctx)
        return int(value)


KEYS = ("tls_ca_file", "tls_cert", "tls_key")
_TLS = (
    click.option("--tls-ca-file", type=options.NAMED, help="TLS: the authority that signed all certificates."),
    click.option("--tls-cert", type=options.NAMED, help="TLS: this side's certificate."),
    click.option("--tls-key", type=options.NAMED, help="TLS: its private key."),
)
SCHEDULER = "tcp://HOST:PORT, tls://HOST:PORT or a Dask scheduler file."
_OPTIONS = (
    click.option("--workers", type=Workers(), help="On so many devices at once; auto: on every GPU of this machine."),
    click.option("--scheduler", help=f"On the workers of this Dask cluster: {SCHEDULER}"),
    click.option(
        "--device-key", default="", show_default=False, help="Of workers with GPUs of several models: on this one."
    ),
    *_TLS,
)
ON_WORKERS = ("workers", "scheduler", "device_key", *KEYS)
"""What `tuned_on_workers` takes of a command's arguments."""


def on_workers(command: Callable[..., Any]) -> Callable[..., Any]:
    """All options that ask for several devices."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def tls(command: Callable[..., Any]) -> Callable[..., Any]:
    """Those of TLS."""
    for option in reversed(_TLS):
        command = option(command)
    return command


def wanted(given: dict[str, Any], device: str, problems: Sequence[Problem]) -> bool:
    """Whether several devices are meant: asked for, or several GPUs that meet several problems."""
    if given["workers"] is not None or given["scheduler"]:
        return True
    for name in ("device_key", *KEYS):
        if given[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --workers or --scheduler")
    if device not in ("auto", "cuda") or len(problems) < 2:
        return False
    gpus = [info for info in available()[0] if info.uuid]
    if len(gpus) > 1 and not installed():
        click.echo(f"note: one of {len(gpus)} GPUs is used; for all: pip install 'tilewright[cluster]'", err=True)
        return False
    return len(gpus) > 1


def installed() -> bool:
    """Whether the extra is."""
    return importlib.util.find_spec("distributed") is not None


def devices_here(device: str, count: int | None, key: str) -> list[DeviceInfo]:
    """Of this machine. Raises UsageError, DeviceError."""
    if device not in ("auto", "cuda", "host"):
        raise click.UsageError(
            f"--workers takes GPUs that CUDA_VISIBLE_DEVICES shows, or the host: not --device {device}"
        )
    info = options.chosen(device)
    if info.arch.is_host:
        if not count:
            raise click.UsageError(
                "--workers auto is one for each GPU, and there is none: --workers N is N on the processor"
            )
        check(key in ("", info.key), f"--device-key must be {info.key} here, got {key!r}", DeviceError)
        return [info] * count
    gpus = [each for each in available()[0] if each.uuid and each.key == (key or info.key)]
    check(bool(gpus), f"--workers: no GPU here {f'is a {key}' if key else 'tells its UUID'}", DeviceError)
    others = sorted({each.key for each in available()[0] if each.uuid} - {gpus[0].key})
    if others and not key:
        click.echo(f"note: {gpus[0].key} alone is used; --device-key names another: {', '.join(others)}", err=True)
    if count and count > len(gpus):
        raise click.UsageError(f"--workers {count}: there are {len(gpus)} GPUs of {key or info.key} here")
    return gpus[: count or None]


def _check(count: int | None, scheduler: str | None, device: str, record: Path | None) -> None:
    name = "--scheduler" if scheduler else "--workers"
    check(installed(), MISSING.format(name), DeviceError)
    if scheduler and (count is not None or device != "auto"):
        raise click.UsageError("--scheduler goes without --workers and --device: its workers have devices of their own")
    if record:
        raise click.UsageError(f"--record goes without {name}: trials are in --csv, and in the store's journals")


def tuned_on_workers(
    problems: list[Problem],
    device: str,
    skip_tuned: bool,
    csv_file: Path | None,
    json_file: Path | None,
    given: dict[str, Any],
    asked: dict[str, Any],
) -> int:
    """`tune` by workers; `asked` has the arguments of ON_WORKERS, `given` those of `tune` itself. The exit status."""
    count, scheduler, key = asked["workers"], asked["scheduler"], asked["device_key"]
    _check(count, scheduler, device, given.pop("record"))
    from ..tuner.cluster import client, link, models
    from ..tuner.search.study import check_sampler

    console, store, spaces = new_console(), Store(given.pop("store")), check_path("spaces", given.pop("spaces"))
    trials = TrialsFile(csv_file) if csv_file else None
    shown = WorkersShown(console, trials, json_file, given["seconds"] or EFFORTS[given["effort"]].seconds)
    keys = link.Keys(*(asked[each] for each in KEYS))
    link.quiet()
    check_sampler(given["sampler"])
    read_spaces(spaces)
    with ExitStack() as ending:
        if scheduler:
            here = link.connected(scheduler, keys)
            ending.callback(lambda: here.close(timeout=2))
            info = models.model(here, key, shown.note)
        else:
            infos = devices_here(device, count, key)
            info = infos[0]
        for problem in problems:
            check_tunable(problem, info, given["configs"])
        if skip_tuned:
            problems = options.left_of(console, problems, info, store.root)
        if not problems:
            return 0
        store.make()
        shown.opened(problems, info)
        if not scheduler:
            with link.signals_held():
                cluster, here = link.started(infos[: len(problems)])
                ending.callback(cluster.close, timeout=10)
                ending.callback(here.close, timeout=2)
        sent = {**given, "configs": [str(config) for config in given["configs"]]}
        run = client.Tuning(here, problems, sent, store, info.key, shown, spaces)
        back = partial(link.again, scheduler, keys, link.RETURN_S, run.interrupted)
        try:
            with shown.drawn():
                run.run(back if scheduler else None)
        except TuningError as error:  # what is done is shown all the same
            click.echo(f"tilewright: {plain(str(error))}", err=True)
        finally:
            here = run.client  # another one, where the scheduler went away and came back
    results = [run.results[each] for each in problems if each in run.results]
    if results:
        say(console, "")
        show_records(console, [each.best for each in results], f"{len(results)} of {len(problems)} shapes")
    return 130 if run.interrupted else int(len(results) < len(problems))
