"""`tune` on several devices of this machine or of a Dask cluster."""

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..codegen.errors import DeviceError, TuningError, check, check_path
from ..codegen.problem import Problem
from ..runtime.device.detect import available, choose
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from ..tuner.plan import check_tunable
from ..tuner.search.candidates import read_spaces
from ..tuner.settings import EFFORTS
from . import options
from .commands import TLS
from .progress import WorkersShown
from .result import ResultsFile
from .show import show_bests
from .tables import counted, new_console, plain
from .trials import TrialsFile

MISSING = "{} needs the extra [cluster], which is not installed: pip install 'tilewright[cluster]'"
"""Error line for an option or command that needs the extra."""


def uses_workers(several: dict[str, Any], device: str, problems: Sequence[Problem]) -> bool:
    """Whether several devices tune: the options ask for them, or there are several GPUs for several problems."""
    if several["workers"] is not None or several["scheduler"]:
        return True
    for name in ("device_key", *TLS):
        option = f"--{name.replace('_', '-')}"
        check(not several[name], f"{option} is for --workers or --scheduler; add one, or leave it out")
    if device not in ("auto", "cuda") or len(problems) < 2:
        return False
    gpus = [info for info in available()[0] if info.uuid]
    if len(gpus) > 1 and not installed():
        click.echo(f"note: one of {len(gpus)} GPUs is used; for all: pip install 'tilewright[cluster]'", err=True)
        return False
    return len(gpus) > 1


def installed() -> bool:
    """Whether the extra [cluster] is installed."""
    return importlib.util.find_spec("distributed") is not None


def devices_here(device: str, count: int | None, key: str) -> list[DeviceInfo]:
    """Devices of this machine for workers: `count` of them, or for None or 0 all GPUs of one model, which `key` may
    name. Raises ConfigError and DeviceError."""
    remedy = "name cuda or host, and a single GPU by CUDA_VISIBLE_DEVICES"
    check(device in ("auto", "cuda", "host"), f"--workers excludes --device {device}; {remedy}")
    info = choose(device)
    if info.arch.is_host:
        no_gpu = "--workers auto is one for each GPU, and there is none here; --workers N is N on the processor"
        check(bool(count), no_gpu)
        check(key in ("", info.key), f"--device-key must be {info.key} here, got {key!r}", DeviceError)
        return [info] * (count or 0)
    gpus = [each for each in available()[0] if each.uuid and each.key == (key or info.key)]
    missing = "--workers: no GPU here has a UUID, by which a worker would take it; leave out --workers"
    if key:
        missing = f"--device-key {key}: no GPU here is one; `tilewright devices` lists those that are"
    check(bool(gpus), missing, DeviceError)
    others = sorted({each.key for each in available()[0] if each.uuid} - {gpus[0].key})
    if others and not key:
        click.echo(f"note: {gpus[0].key} alone is used; --device-key names another: {', '.join(others)}", err=True)
    too_few = f"--workers {count}: there are {counted(len(gpus), 'GPU')} of {key or info.key} here; name fewer, or auto"
    check((count or 0) <= len(gpus), too_few)
    return gpus[: count or None]


def tuned_on_workers(
    problems: list[Problem],
    device: str,
    skip_tuned: bool,
    csv_file: Path | None,
    json_file: Path | None,
    arguments: dict[str, Any],
    several: dict[str, Any],
) -> int:
    """Tune on workers and return the exit status; `several` has the arguments of ON_WORKERS, `arguments` the others."""
    count, scheduler, key = several["workers"], several["scheduler"], several["device_key"]
    name = "--scheduler" if scheduler else "--workers"
    check(installed(), MISSING.format(name), DeviceError)
    excludes = "--scheduler excludes --workers and --device, as its workers have devices of their own; leave them out"
    check(not scheduler or (count is None and device == "auto"), excludes)
    check(arguments.pop("record") is None, f"--record excludes {name}; --csv writes the trials too")
    from ..tuner.cluster import client, link
    from ..tuner.search.study import check_sampler

    console, store, spaces = new_console(), Store(arguments.pop("store")), check_path("spaces", arguments.pop("spaces"))
    results, seconds = ResultsFile(json_file), arguments["seconds"] or EFFORTS[arguments["effort"]].seconds
    shown = WorkersShown(console, TrialsFile(csv_file), results, seconds)
    keys = link.Keys(*(several[each] for each in TLS))
    link.quiet()
    check_sampler(arguments["sampler"])
    read_spaces(spaces)
    with ExitStack() as ending:
        ending.enter_context(results)
        if scheduler:
            connection = link.connected(scheduler, keys)
            ending.callback(lambda: connection.close(timeout=2))
            info = client.model(connection, key, shown.note)
        else:
            infos = devices_here(device, count, key)
            info = infos[0]
        for problem in problems:
            check_tunable(problem, info, arguments["configs"])
        if skip_tuned:
            problems = options.remaining(console, problems, info, store.root)
        if not problems:
            return 0
        store.make()
        shown.opened(problems, info)
        if not scheduler:
            with link.signals_held():
                cluster, connection = link.started(infos[: len(problems)])
                ending.callback(cluster.close, timeout=10)
                ending.callback(connection.close, timeout=2)
        sent = {**arguments, "configs": [str(config) for config in arguments["configs"]]}
        run = client.Tuning(connection, problems, sent, store, info.key, shown, spaces)
        reconnect = partial(link.again, scheduler, keys, link.RETURN_S, run.interrupted)
        try:
            with shown.drawn():
                run.run(reconnect if scheduler else None)
        except TuningError as error:  # the results so far are shown below
            click.echo(f"tilewright: {plain(str(error))}", err=True)
        finally:
            connection = run.client  # a new client, where the scheduler went away and came back
    done = [run.results[each] for each in problems if each in run.results]
    show_bests(console, done, len(problems))
    return 130 if run.interrupted else int(len(done) < len(problems))
