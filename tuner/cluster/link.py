"""Connections to a Dask cluster: one that runs, or one that is started on this machine."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import dask.config
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.comm import connect, get_address_host
from distributed.security import Security
from distributed.utils import get_ip

from ...codegen.errors import ConfigError, DeviceError, check
from ...codegen.reading import read_named
from ...runtime.device.protocol import DeviceInfo

PRELOAD = f"{__package__}.worker"
"""Module that makes a Dask worker tune."""
TOPOLOGY = Path("/sys/devices/system/cpu")
"""Folder in which Linux lists the processors of each core."""
LOOPBACK = "127.0.0.1"
_SCHEDULER_ROUTES, WORKER_ROUTES = (f"distributed.{side}.http.routes" for side in ("scheduler", "worker"))
"""Names in Dask's configuration of the modules whose HTTP routes a scheduler and a worker serve."""
SILENT = logging.CRITICAL + 1
"""Level of logging above all messages."""
ANSWER_S = 10.0
"""Seconds within which a scheduler answers."""
_MOST_BYTES = 1 << 20
"""Bytes of the largest scheduler file, certificate or key."""
_ADDRESS = re.compile(r"(?:tcp|tls)://(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%\w]+\]):(\d{1,5})")
RETURN_S = 60.0
"""Seconds of a wait for a scheduler that is gone, or for workers of this machine."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Files of TLS, all three or none: without them connections are neither encrypted nor checked."""

    ca: Path | None = None
    """Certificate of the authority that signed the certificates of both sides."""
    cert: Path | None = None
    """Certificate of this side."""
    key: Path | None = None
    """Private key of this side."""

    def security(self, address: str) -> Security:
        """Dask's settings of TLS. Raises ConfigError for one file without the others, for a file of another kind, and
        where the scheme of the address contradicts the files."""
        files = {"--tls-ca-file": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        missing = [name for name, file in files.items() if file is None]
        check(
            len(missing) in (0, 3),
            f"--tls-ca-file, --tls-cert and --tls-key go together; add {' and '.join(missing)}",
        )
        if missing:
            needed = "--tls-ca-file, --tls-cert and --tls-key, or tls settings of Dask's own"
            security = Security()  # Dask's configuration may name files
            complete = not address.startswith("tls:") or security.tls_ca_file is not None
            check(complete, f"--scheduler {address} needs {needed}")
            return security
        for name, file in files.items():
            check(file is not None and file.is_file(), f"{name} {file}: there is no such file; name another")
            read_named(f"file of {name}", Path(str(file)), _MOST_BYTES)
        check(
            not address.startswith("tcp:"),
            f"--scheduler {address} is not encrypted; with --tls-cert write tls:// for tcp://",
        )
        sides = {f"tls_{side}_{name}": str(file) for side in ("client", "worker") for name, file in
                 (("cert", self.cert), ("key", self.key))}  # fmt: skip
        security = Security(tls_ca_file=str(self.ca), require_encryption=True, **sides)
        try:
            security.get_connection_args("client")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(
                f"--tls-ca-file, --tls-cert and --tls-key cannot be used: {error}; name PEM files that belong together"
            ) from error
        return security


def address_of(scheduler: str) -> str:
    """Address of a scheduler: the text itself, or the address in the file that it names. Raises ConfigError."""
    if not scheduler.endswith(".json"):
        rule = "must be tcp://HOST:PORT, tls://HOST:PORT or a file ending in .json"
        check(_is_address(scheduler), f"--scheduler {rule}, got {scheduler!r}")
        return scheduler
    data = read_named("file of --scheduler", Path(scheduler), _MOST_BYTES)
    try:
        address = json.loads(data)["address"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"--scheduler {scheduler}: it is no scheduler file of Dask's; name one of `dask scheduler`"
        ) from error
    good = isinstance(address, str) and _is_address(address)
    check(good, f"--scheduler {scheduler}: its address must be tcp://HOST:PORT or tls://HOST:PORT, got {address!r:.80}")
    return str(address)


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 1 << 16


def _may_come(error: ConfigError) -> bool:
    """Whether a scheduler's file that cannot be read may be read a little later: it is missing, or half written."""
    return isinstance(error.__cause__, FileNotFoundError | json.JSONDecodeError)


def connected(scheduler: str, keys: Keys) -> Client:
    """A client of a running scheduler. Raises ConfigError, and DeviceError where the scheduler does not answer."""
    address = address_of(scheduler)
    security = keys.security(address)
    try:
        return Client(address, security=security, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _unanswered(scheduler, error) from error


def _unanswered(scheduler: str, error: BaseException) -> DeviceError:
    why = _of_tls(error)
    refused = (
        f"TLS failed, its certificate or ours is refused: {why}; name certificates of one authority"
        if why
        else "no scheduler answers there; start it, or name another"
    )
    return DeviceError(f"--scheduler {scheduler}: {refused}")


def _of_tls(error: BaseException | None) -> str:
    """Reason of an error of TLS; empty for any other error."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error.reason or str(error)
        error = error.__cause__ or error.__context__
    return ""


def again(scheduler: str, keys: Keys, seconds: float, interrupted: Sequence[int]) -> Client | None:
    """A client of a scheduler that went away, once it is back; None after `seconds`, or once a signal came."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not interrupted:
        with contextlib.suppress(DeviceError, ConfigError):
            return connected(scheduler, keys)
        time.sleep(0.5)
    return None


def processors() -> list[int]:
    """Numbers of the processors that this process may use. Processors of one core are neighbours, so that equal parts
    of the list are whole cores."""
    return sorted(os.sched_getaffinity(0), key=lambda each: (_first_of_core(each), each))


def _first_of_core(processor: int) -> int:
    """The first processor of a processor's core; the processor itself where Linux does not list the core."""
    try:
        siblings = (TOPOLOGY / f"cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:
        return processor
    return int(re.split(r"[,-]", siblings)[0])


def shares(infos: Sequence[DeviceInfo]) -> list[list[int]]:
    """The processors of each device's worker: an equal part of all. A GPU's worker also has a third as many from the
    part of the next worker, which compiles nothing during its duels."""
    cores, count = processors(), len(infos)
    each = max(1, len(cores) // count)
    reach = each if infos[0].arch.is_host else min(len(cores), each + -(-each // 3))
    turns = range(0, len(cores) - each + 1, each)
    return [(cores * 2)[first : first + reach] for first, _ in zip(itertools.cycle(turns), range(count))]


def workers(infos: Sequence[DeviceInfo]) -> list[dict[str, object]]:
    """Arguments of each worker's nanny: its device, a GPU by its UUID, and its share of the processors."""
    return [
        {
            "nthreads": 1,
            "memory_limit": 0,  # NumPy's reference of a large problem is no leak
            "preload": [PRELOAD],
            "preload_argv": [
                ["--device", "host" if info.arch.is_host else "cuda:0", "--cores", ",".join(map(str, share))]
            ],
            "env": {} if info.arch.is_host else {"CUDA_VISIBLE_DEVICES": info.uuid},
            "silence_logs": SILENT,
        }
        for info, share in zip(infos, shares(infos))
    ]


def started(infos: Sequence[DeviceInfo]) -> tuple[SpecCluster, Client]:
    """A cluster on this machine, with a worker for each device, and its client. No other user can connect: the cluster
    listens on the loopback address, and its certificate is in the memory of its processes alone. Raises DeviceError."""
    quiet()
    has_pages = _set_routes()
    security = Security.temporary()
    common = {"host": LOOPBACK, "dashboard_address": f"{LOOPBACK}:0", "security": security, "protocol": "tls"}
    scheduler = {"cls": Scheduler, "options": {**common, "port": 0, "dashboard": False}}
    specs = {place: {"cls": Nanny, "options": {**common, **each}} for place, each in enumerate(workers(infos))}
    try:
        cluster = SpecCluster(scheduler=scheduler, workers=specs, security=security, silence_logs=False)
    except (RuntimeError, OSError) as error:
        raise DeviceError(f"--workers {len(infos)}: the workers cannot be started: {error}") from error
    if not has_pages:
        cluster.loop.add_callback(cluster.scheduler.http_server.stop)
    return cluster, Client(cluster, security=security, timeout=ANSWER_S, set_as_default=False)


def _set_routes() -> bool:
    """Give schedulers and workers that this process starts only the HTTP routes of the user's own configuration of
    Dask, in files or environment variables: HTTP asks for no certificate, and Dask has routes by default. Returns
    whether the scheduler has any."""
    own = dask.config.collect()
    routes = {name: dask.config.get(name, [], config=own) for name in (_SCHEDULER_ROUTES, WORKER_ROUTES)}
    dask.config.set(routes)  # for good: a nanny passes the configuration to each worker that it starts
    return bool(routes[_SCHEDULER_ROUTES])


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Context that holds back the signals of a terminal. Threads and processes that start meanwhile never get them: the
    client answers them."""
    resource_tracker.ensure_running()  # multiprocessing's tracker lets signals through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet() -> None:
    """Silence the logs of Dask, whose errors we report in a line."""
    for name in ("distributed", "tornado", "asyncio", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):  # Dask gives several a level of their own
            logging.getLogger(name).setLevel(SILENT)


async def serve(
    scheduler: str, keys: Keys, infos: Sequence[DeviceInfo], host: str | None, say: Callable[[str], None]
) -> int:
    """Run workers for a scheduler until a signal ends them; where it goes away they wait for it. Returns the exit
    status. Raises ConfigError, and DeviceError where the scheduler does not answer."""
    _set_routes()
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    wait_s = ANSWER_S
    while (reached := await _reached(scheduler, keys, wait_s, signalled)) is not None:
        address, security = reached
        here = host or get_ip(get_address_host(address))
        common = {"host": here, "dashboard_address": f"{here}:0", "security": security, "death_timeout": RETURN_S}
        nannies = [Nanny(address, **common, **each) for each in workers(infos)]
        ended = asyncio.gather(*(_lived(nanny) for nanny in nannies), return_exceptions=True)
        say(f"{len(nannies)} worker{'s' * (len(nannies) != 1)} for {address}: {infos[0].name}")
        stopped = asyncio.create_task(signalled.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await asyncio.gather(*(nanny.close(timeout=2) for nanny in nannies), return_exceptions=True)
        await ended
        if not signalled.is_set():
            say(f"the scheduler {address} is gone: waiting {RETURN_S:.0f} s for it")
        wait_s = RETURN_S
    return 0


async def _lived(nanny: Nanny) -> None:
    await nanny
    await nanny.finished()


async def _reached(scheduler: str, keys: Keys, seconds: float, signalled: asyncio.Event) -> tuple[str, Security] | None:
    """Address of a scheduler that answers, and settings of TLS; None once a signal came. Raises ConfigError,
    DeviceError."""
    end = time.monotonic() + seconds
    while not signalled.is_set():
        try:
            address = address_of(scheduler)  # a file may come later, and again
            security = keys.security(address)
            comm = await connect(address, timeout=2, **security.get_connection_args("worker"))
            await comm.close()
            return address, security
        except ConfigError as error:
            if time.monotonic() > end or not _may_come(error):
                raise
        except (OSError, ValueError) as error:
            if time.monotonic() > end or _of_tls(error):
                raise _unanswered(scheduler, error) from error
        await asyncio.sleep(0.5)
    return None
