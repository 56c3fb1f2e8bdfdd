"""Commands that tune on several workers, the processes that they start, and the trials that these measure."""

import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tilewright.runtime.store.store import Store

PROGRAM = str(Path(__file__).parent / "measured.py")
SPACE = """family = "naive"
[parameters]
block_m = [4, 8]
block_n = [8, 16]
unroll = [1]
edge = ["bounds"]
"""
TRIALS = 4
ROUTES = ("/info/logs", "/info/main/workers.html", "/json/identity.json", "/metrics", "/health", "/sitemap.json")
"""Paths of pages that Dask's schedulers and workers serve by default."""
MARK = "TILEWRIGHT_TEST_CLUSTER"
"""Environment variable that marks the processes of a test; its value is the folder of the test's place."""


@dataclass
class Place:
    """The folder in which the commands of one test work. It marks all their processes and lists the trials measured."""

    folder: Path
    shapes: int
    pause_s: float = 0.1
    """Seconds that each trial rests after it is measured."""
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "spaces").mkdir(parents=True)
        (self.folder / "spaces" / "naive.toml").write_text(SPACE)
        rows = (f"{size},{size + 1},{size + 2}\n" for size in range(2, 2 + self.shapes))
        (self.folder / "suite.csv").write_text("m,n,k\n" + "".join(rows))
        self.measured = self.folder / "measured.txt"
        self.store = self.folder / "store"

    @property
    def tune(self) -> tuple[str, ...]:
        """Arguments of `tune`, without those that name workers."""
        limits = ("--trials", str(TRIALS), "--seconds", "60", "--keep", "1", "--sampler", "random")
        places = ("--store", str(self.store), "--spaces", str(self.folder / "spaces"))
        return ("tune", "--suite", str(self.folder / "suite.csv"), *limits, *places)

    def start(self, *arguments: str, program: str = PROGRAM, **variables: str) -> "subprocess.Popen[str]":
        """Start a command in the background."""
        settings = {"MEASURED": str(self.measured), "MEASURED_PAUSE_S": str(self.pause_s)}
        environment = {**os.environ, **variables, **settings, MARK: str(self.folder)}
        pipe: Any = subprocess.PIPE
        command = [sys.executable, "-u", program, *arguments]
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def scheduler(self, *options: str, port: int = 0) -> "subprocess.Popen[str]":
        """Start Dask's scheduler, which writes its address to scheduler.json."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        code = "import sys; from distributed.cli.dask_scheduler import main; main(sys.argv[1:])"
        common = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        environment = {**os.environ, MARK: str(self.folder)}
        quiet: Any = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-c", code, *common, "--scheduler-file", str(file), *options],
            env=environment, text=True, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        until(lambda: _is_whole(file))
        return process

    def dask_worker(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start Dask's own worker command for that scheduler."""
        program = self.folder / "dask_worker.py"  # a file, because multiprocessing imports it again
        program.write_text("from distributed.cli.dask_worker import main\nif __name__ == '__main__':\n    main()\n")
        address = json.loads((self.folder / "scheduler.json").read_text())["address"]
        quiet = ("--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard")
        return self.start(address, *quiet, *arguments, program=str(program))

    @property
    def scheduler_option(self) -> tuple[str, str]:
        """Option of `tune` that names the file of that scheduler."""
        return "--scheduler", str(self.folder / "scheduler.json")

    def noted(self) -> list[str]:
        """Trials that were measured, in all processes: a line for each, with its problem and config."""
        return self.measured.read_text().splitlines() if self.measured.exists() else []

    def repeats(self) -> int:
        """Number of measurements that repeat a trial."""
        counts = Counter(self.noted())
        assert len(counts) == self.shapes * TRIALS
        return counts.total() - len(counts)

    def journaled(self) -> int:
        """Number of trials that the client has written to its journals."""
        journals = (self.store / "trials").glob("*.jsonl")
        return sum(max(0, journal.read_text().count("\n") - 1) for journal in journals)

    def complete(self) -> bool:
        """Whether each problem has a record, and a journal with the right number of trials."""
        journals = list((self.store / "trials").glob("*.jsonl"))
        lines = [len(journal.read_text().splitlines()) for journal in journals]
        return len(Store(self.store).layers()[0]) == self.shapes and lines == [1 + TRIALS] * self.shapes

    def processes(self) -> Iterator[psutil.Process]:
        """Processes that the commands started and that still run."""
        for process in psutil.process_iter():
            try:
                own = process.environ().get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if own:
                yield process

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports on which these processes listen."""
        addresses = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                inet = process.net_connections("inet")
                addresses |= {tuple(each.laddr) for each in inet if each.status == psutil.CONN_LISTEN}
        return addresses

    def pages(self) -> set[tuple[int, str]]:
        """Status and path of each answer to a plain HTTP request, error statuses included."""
        answers = set()
        for (host, port), path in itertools.product(self.listening(), ROUTES):
            connection = http.client.HTTPConnection(host, port, timeout=5)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", path)
                answers.add((connection.getresponse().status, path))
            connection.close()
        return answers

    def measuring(self) -> list[psutil.Process]:
        """Processes that compile or measure."""
        return self._running("measure.worker")

    def wait_until_idle(self) -> None:
        """Wait until no process has compiled or measured for a second."""
        last = time.monotonic()

        def rested() -> bool:
            nonlocal last
            last = time.monotonic() if self.measuring() else last
            return time.monotonic() > last + 1

        until(rested)

    def workers(self) -> list[psutil.Process]:
        """Dask's worker processes."""
        return self._running("spawn_main")

    def _running(self, words: str) -> list[psutil.Process]:
        processes = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                processes += [process] if words in " ".join(process.cmdline()) else []
        return processes


def _is_whole(file: Path) -> bool:
    """Whether a scheduler has written its file to the end: it does not write to another name first."""
    try:
        return "address" in json.loads(file.read_text())
    except (OSError, ValueError):
        return False


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds. Fails where this takes more than `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.02)


@contextmanager
def place(folder: Path, shapes: int, pause_s: float = 0.1) -> Iterator[Place]:
    """A place whose processes are all ended afterwards."""
    created = Place(folder / "place", shapes, pause_s)
    try:
        yield created
    finally:
        for process in created.processes():
            process.kill()
        for started in created.started:
            started.communicate()
