"""`tune` on several devices: of this machine, or of a Dask cluster. And `tilewright worker`, one of its workers."""

import importlib.util
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..codegen.errors import DeviceError, check, check_path
from ..codegen.problem import Problem
from ..runtime.device.detect import available
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import spared, write_output
from ..runtime.store.store import Store
from ..tuner.bench.report import figure
from ..tuner.cluster.messages import Tells, Told
from ..tuner.plan import check_tunable
from ..tuner.result import EFFORTS, Result
from ..tuner.search.candidates import read_spaces
from . import options
from .progress import LINE_EVERY_S, ON_PROCESSOR, Shown
from .result import result_json
from .show import show_records
from .tables import new_console, plain, say
from .trials import TrialsFile

_MISSING = "{} needs the extra [cluster], which is not installed: pip install 'tilewright[cluster]'"
_RUNNING_SHOWN = 12


class _Workers(click.ParamType[int]):
    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number of workers; 0 for one for each GPU."""
        if value in ("auto", 0):
            return 0
        if not str(value).isdecimal() or not 1 <= int(value) <= 1024:
            self.fail(f"{value!r} is not auto or a number from 1 to 1024", param, ctx)
        return int(value)


_KEYS = ("tls_ca_file", "tls_cert", "tls_key")
_TLS = (
    click.option("--tls-ca-file", type=options.EXISTING, help="TLS: the authority that signed all certificates."),
    click.option("--tls-cert", type=options.EXISTING, help="TLS: this side's certificate."),
    click.option("--tls-key", type=options.EXISTING, help="TLS: its private key."),
)
_SCHEDULER = "tcp://HOST:PORT, tls://HOST:PORT or a Dask scheduler file."
_ON_WORKERS = (
    click.option("--workers", type=_Workers(), help="On so many devices at once; auto: on every GPU of this machine."),
    click.option("--scheduler", help=f"On the workers of this Dask cluster: {_SCHEDULER}"),
    click.option("--device-key", default="", help="Of workers with GPUs of several models: on this one."),
    *_TLS,
)
ON_WORKERS = ("workers", "scheduler", "device_key", *_KEYS)
"""What `tuned_on_workers` takes of a command's arguments."""


def on_workers(command: Callable[..., Any]) -> Callable[..., Any]:
    """All options that ask for several devices."""
    for option in reversed(_ON_WORKERS):
        command = option(command)
    return command


def wanted(given: dict[str, Any], device: str, problems: Sequence[Problem]) -> bool:
    """Whether several devices are meant: asked for, or several GPUs that meet several problems."""
    if given["workers"] is not None or given["scheduler"]:
        return True
    for name in ("device_key", *_KEYS):
        if given[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --workers or --scheduler")
    if device not in ("auto", "cuda") or len(problems) < 2:
        return False
    gpus = [info for info in available()[0] if info.uuid]
    if len(gpus) > 1 and not _installed():
        click.echo(f"note: one of {len(gpus)} GPUs is used; for all: pip install 'tilewright[cluster]'", err=True)
        return False
    return len(gpus) > 1


def _installed() -> bool:
    return importlib.util.find_spec("distributed") is not None


def _devices(device: str, count: int | None, key: str) -> list[DeviceInfo]:
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
    if count and count > len(gpus):
        raise click.UsageError(f"--workers {count}: there are {len(gpus)} GPUs of {key or info.key} here")
    return gpus[: count or None]


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
    name = "--scheduler" if scheduler else "--workers"
    check(_installed(), _MISSING.format(name), DeviceError)
    if scheduler and (count is not None or device != "auto"):
        raise click.UsageError("--scheduler goes without --workers and --device: its workers have devices of their own")
    if given.pop("record"):
        raise click.UsageError(f"--record goes without {name}: trials are in --csv, and in the store's journals")
    from ..tuner.cluster import client, link
    from ..tuner.search.study import check_sampler

    console, store, spaces = new_console(), Store(given.pop("store")), check_path("spaces", given.pop("spaces"))
    shown = ClusterShown(
        console, TrialsFile(csv_file) if csv_file else None, json_file, given["seconds"], given["effort"]
    )
    keys = link.Keys(*(asked[each] for each in _KEYS))
    link.quiet()
    check_sampler(given["sampler"])
    read_spaces(spaces)
    with ExitStack() as ending:
        infos = [] if scheduler else _devices(device, count, key)
        if scheduler:
            here = link.connected(scheduler, keys)
            ending.callback(lambda: run.client.close(timeout=2) if run else here.close(timeout=2))
            run: client.Tuning | None = None
            info = client.model(here, key, shown.note, lambda: False)
            assert info is not None
        else:
            info = infos[0]
        for problem in problems:
            check_tunable(problem, info, given["configs"])
        if skip_tuned:
            left = options.untuned(problems, info, store.root)
            say(console, f"{len(problems) - len(left)} of {len(problems)} shapes have a record of {info.name}")
            problems = left
        if not problems:
            return 0
        store.make()
        shown.opened(problems, info)
        if not scheduler:
            cluster, here = link.started(infos[: len(problems)])
            ending.callback(cluster.close, timeout=10)
            ending.callback(here.close, timeout=2)
        sent = {**given, "configs": [str(config) for config in given["configs"]]}
        run = client.Tuning(here, problems, sent, store, info.key, shown, spaces)
        back = lambda: link.again(scheduler, keys, link.RETURN_S, lambda: bool(run.interrupted))  # noqa: E731
        with shown.drawn():
            run.run(back if scheduler else None)
        results = [run.results[each] for each in problems if each in run.results]
        if results:
            say(console, "")
            show_records(console, [each.best for each in results], f"{len(results)} of {len(problems)} shapes")
        if run.interrupted:
            return 130
        return 0 if len(results) == len(problems) else 1


class ClusterShown(Shown, Told):
    """What a user sees of all workers: a line for each problem that is done, and how far the others are."""

    def __init__(
        self, console: Console, trials: TrialsFile | None, json_file: Path | None, seconds: float | None, effort: str
    ) -> None:
        super().__init__(console)
        self._trials, self._json_file = trials, json_file
        self._seconds = seconds or EFFORTS[effort].seconds
        self._results: list[Result] = []
        self._running: dict[Problem, list[Any]] = {}
        self._causes: Counter[str] = Counter()
        self._seats, self._said_s = 0, time.monotonic()

    def opened(self, problems: Sequence[Problem], info: DeviceInfo) -> None:
        """The opening lines."""
        self.total, self.begun_s = len(problems), time.monotonic()
        if info.arch.is_host:
            say(self.console, ON_PROCESSOR)
        say(self.console, f"{len(problems)} shapes on {info.name}, at most {self._seconds:g} s each", style="bold")

    def workers(self, seats: int) -> None:
        """A line where it changes."""
        if seats != self._seats:
            say(self.console, f"{seats} worker{'s' * (seats != 1)}")
        self._seats = seats

    def note(self, text: str) -> None:
        """On stderr: what is found is on stdout."""
        click.echo(f"note: {plain(text)}", err=True)

    def begun(self, problem: Problem, worker: str, trials: int, resumed: int) -> None:
        """Among those that run."""
        self._running[problem] = [resumed, trials, None, ""]
        if resumed:
            say(self.console, f"{problem}: goes on from {resumed} trials")

    def tried(self, problem: Problem, device_key: str, told: Tells) -> None:
        """One more of one that runs."""
        if self._trials:
            self._trials.told(problem, device_key, told.config, told.entry)
        running = self._running.setdefault(problem, [0, 0, None, ""])
        running[0] += 1
        time_us = told.entry.time_us
        if time_us is not None and (running[2] is None or time_us < running[2]):
            running[2:] = time_us, told.variant
        if time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._said_s = time.monotonic()
            self.line()

    def ended(self, result: Result) -> None:
        """A line, and the results so far as JSON: whatever comes, they are not lost."""
        self._results.append(result)
        self._over(result.problem)
        if self._json_file:
            text = json.dumps([result_json(each) for each in self._results], indent=1) + "\n"
            with spared(self._json_file):
                write_output(self._json_file, text.encode())
        best = result.best
        ratio = f", {figure(best.ratio_vendor)} x vendor" if best.ratio_vendor else ""
        count = f"{result.trials} trials in {result.seconds:.0f} s"
        text = f"{self.done}/{self.total} {result.problem}: {figure(best.median_us)} us{ratio}, {best.config}; {count}"
        say(self.console, text)

    def failed(self, problem: Problem, reason: str) -> None:
        """It costs this shape alone."""
        self._over(problem)
        self._causes[reason.partition(":")[0]] += 1
        click.echo(f"tilewright: {plain(f'{problem}: {reason}' if str(problem) not in reason else reason)}", err=True)

    def _over(self, problem: Problem) -> None:
        self._running.pop(problem, None)
        self.done += 1

    def texts(self) -> list[str]:
        """How many, for how long, what runs with its best, what failed."""
        spent_s, left = time.monotonic() - self.begun_s, self.total - self.done
        each_s = spent_s * self._seats / self.done if self.done else self._seconds
        left_s = each_s * left / max(1, self._seats)
        texts = [f"{self.done}/{self.total} shapes done on {self._seats} workers, about {left_s:.0f} s left"]
        failed = ", ".join(f"{count} {cause}" for cause, count in self._causes.most_common())
        texts += [f"failed: {failed}"] if failed else []
        if self.console.is_interactive:
            for problem, (tried, trials, best_us, variant) in list(self._running.items())[:_RUNNING_SHOWN]:
                best = "none yet" if best_us is None else f"{figure(best_us)} us, {variant}"
                texts.append(f"{problem} {tried}/{trials}: {best}")
        else:
            texts.append(f"{len(self._running)} running, {sum(each[0] for each in self._running.values())} trials")
        return texts


@click.command("worker", context_settings=options.CONTEXT)
@click.option("--scheduler", required=True, help=_SCHEDULER)
@click.option("--workers", type=_Workers(), default="auto", help="So many devices; auto: every GPU of this machine.")
@options.device
@click.option("--host", help="Address to listen on [default: the one that leads to the scheduler].")
@options.debug
def worker_command(scheduler: str, workers: int, device: str, host: str | None, **tls: Any) -> int:
    """Tune for whoever uses a Dask scheduler: `tune --scheduler` elsewhere.

    \b
    tilewright worker --scheduler tcp://127.0.0.1:8786             a worker for each GPU of this machine
    tilewright worker --scheduler scheduler.json --device host --workers 4

    Whoever reaches the scheduler can run any code here: on a network use TLS, see docs/cluster.md.
    """
    check(_installed(), _MISSING.format("tilewright worker"), DeviceError)
    import asyncio

    from ..tuner.cluster import link

    infos = _devices(device, workers, "")
    link.quiet()
    say_it = lambda text: click.echo(plain(text))  # noqa: E731
    return asyncio.run(link.serve(scheduler, link.Keys(*(tls[each] for each in _KEYS)), infos, host, say_it))


for _option in reversed(_TLS):
    worker_command = _option(worker_command)
