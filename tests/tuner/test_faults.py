"""Faults are injected into runs, and runs are killed: no measurement is lost, and no process stays."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import pytest
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, DeviceError, StoreError, TuningError
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.store.record import Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.measure import child, pipeline
from tilewright.tuner.measure.evaluate import Tried
from tilewright.tuner.result import Progress, Result
from tilewright.tuner.tune import tune
from variants import variant

PROBLEM = Problem(24, 20, 16)
FAULTY = "tiled:8,unroll=4"


CRASH = "*(volatile int*)(1 << 12) = 1;"
ENDLESS = {
    "host": "for (volatile int forever = 1; forever;) {}",
    "cuda": 'while (true) asm volatile("nanosleep.u32 100;");',
}
"""A loop that no compiler removes, by device."""


class Watching(Progress):
    """Progress that collects every record, and calls back after each."""

    def __init__(self, after: Callable[[int], None] = lambda count: None) -> None:
        self.records: list[Record] = []
        self._after = after

    def tried(self, tried: Tried, best: Record | None) -> None:
        self.records.append(tried.record)
        self._after(len(self.records))

    def of(self, config: Config) -> Record:
        return next(record for record in self.records if record.config == config)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[int]:
    """Process ids of all workers that a test starts. Limits are short, so that a hang is soon noticed; a GPU has a
    longer one, since it reports errors late where other tests use it too."""
    pids: list[int] = []
    original = child.Child.__init__

    def noting(self: child.Child) -> None:
        original(self)
        pids.append(self._process.pid)

    monkeypatch.setattr(child.Child, "__init__", noting)
    monkeypatch.setattr(pipeline, "TRY_LIMIT_S", 12.0 if request.node.get_closest_marker("gpu") else 4.0)
    return pids


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def all_gone(pids: list[int], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


class Faults:
    """Faults that may occur on every device."""

    selector = ""
    problem = PROBLEM

    def run(self, tmp_path: Path, watching: Watching, *widths: int, **options: Any) -> Result:
        spaces = faults.small_space(tmp_path / "spaces", *widths)
        arguments = {"device": self.selector, "seconds": 60.0, "sampler": "exhaustive", "spaces": spaces}
        return tune(self.problem, progress=watching, **{**arguments, **options})

    def survives(self, tmp_path: Path, started: list[int], statement: str, status: Status, named: str) -> None:
        """The faulty variant gets the status; the others are measured, and one of them wins and is kept."""
        faulty = faults.plant(self.selector, self.problem, FAULTY, statement, PRELUDE.get(self.selector, ""))
        watching = Watching()
        result = self.run(tmp_path, watching, 4, 8, 16, 32)
        record = watching.of(faulty)
        assert record.status is status
        assert named in record.reason
        others = [entry for entry in watching.records if entry.config != faulty]
        assert len(others) == 3
        assert {entry.status for entry in others} == {Status.OK}
        assert result.best.config != faulty
        assert dict(result.statuses) == {"ok": 3, status.value: 1}
        assert Store().best(result.device.key, self.problem) == result.best
        assert all_gone(started)

    def test_wrong_result(self, tmp_path: Path, started: list[int]) -> None:
        self.survives(tmp_path, started, "alpha *= Elem(2);", Status.WRONG_RESULT, "times its bound")

    def test_nan(self, tmp_path: Path, started: list[int]) -> None:
        self.survives(tmp_path, started, "alpha = Elem(0) / Elem(0);", Status.WRONG_RESULT, "made NaN")

    def test_endless_loop(self, tmp_path: Path, started: list[int]) -> None:
        self.survives(tmp_path, started, ENDLESS[self.selector], Status.TIMEOUT, "in time")

    def test_bad_address(self, tmp_path: Path, started: list[int]) -> None:
        named = "SIGSEGV" if self.selector == "host" else "cudaErrorIllegalAddress"
        self.survives(tmp_path, started, CRASH, Status.CRASHED, named)

    def test_too_large_for_memory(self, tmp_path: Path, started: list[int]) -> None:
        with pytest.raises(DeviceError, match="13194 GB"):
            tune(Problem(1 << 20, 1 << 20, 1 << 20), device=self.selector, seconds=30.0)
        assert started == []

    def test_out_of_memory_in_the_worker(
        self, tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The device is said to have more memory than it has, so that the operands do not fit."""
        info = choose(self.selector)
        monkeypatch.setattr("tilewright.tuner.tune.choose", lambda name: replace(info, memory_bytes=1 << 60))
        monkeypatch.setattr("tilewright.tuner.tune.check_time", lambda *arguments: None)  # it would be too slow as well
        with pytest.raises(TuningError, match="cannot be opened"):
            tune(Problem(1 << 20, 1 << 20, 1 << 20), device=self.selector, seconds=100.0)
        assert all_gone(started)

    def test_a_crashed_variant_is_not_tried_again(self, tmp_path: Path, started: list[int]) -> None:
        faulty = faults.plant(self.selector, self.problem, FAULTY, CRASH)
        self.run(tmp_path, Watching(), 4, 8)
        watching = Watching()
        result = self.run(tmp_path, watching, 4, 8)
        assert result.resumed == 2
        assert watching.records == []
        assert result.best.config != faulty

    def test_three_crashes_in_a_row_end_the_run_with_the_best_so_far(
        self, tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})  # one compile process keeps their order
        spaces = tmp_path / "three"
        spaces.mkdir()
        (spaces / "tiled.toml").write_text(
            "family = 'tiled'\n[parameters]\ntile_width = [8, 16]\nedge = ['fit']\nskew = [0]\nunroll = [1, 2, 4]\n"
        )
        for width, unroll in itertools.product((8, 16), (1, 2, 4)):
            # The canonical first is tried first and works. All are compiled beforehand, so that none overtakes it.
            good = (width, unroll) == (16, 1)
            text = f"tiled:{width},unroll={unroll}"
            faults.plant(self.selector, self.problem, text, "alpha *= Elem(1);" if good else CRASH)
        watching = Watching()
        result = self.run(tmp_path, watching, 4, spaces=spaces)
        assert result.best.config == variant("tiled:16,unroll=1")
        # A further crash may have been under way when the run was given up.
        assert sum(record.status is Status.CRASHED for record in watching.records) in (3, 4)
        assert result.stopped.startswith("crashes")
        assert all_gone(started)

    def test_no_variant_works(self, tmp_path: Path, started: list[int]) -> None:
        faults.plant(self.selector, self.problem, FAULTY, "alpha *= Elem(2);")
        later = r"; all of it in earlier runs: .*--trials.* remove the journals in .*trials to try these again$"
        for ending in (r"\)$", later):  # the second run has only the journal
            with pytest.raises(TuningError, match=f": 1 wrong_result; .* times its bound.*{ending}"):
                self.run(tmp_path, Watching(), 8)
        assert all_gone(started)

    def test_kill_of_the_measuring_process(self, tmp_path: Path, started: list[int]) -> None:
        killed = []

        def kill_once(count: int) -> None:
            if count == 1 and not killed:
                killed.append(True)
                measuring = max(pid for pid in started if alive(pid))  # the last one that was started
                os.kill(measuring, signal.SIGKILL)

        watching = Watching(kill_once)
        result = self.run(tmp_path, watching, 4, 8, 16, 32)
        assert len(watching.records) == 4
        assert result.best.status is Status.OK
        # The variant under way may count as failed; all others were measured.
        assert sum(record.status is Status.OK for record in watching.records) >= 3
        assert all_gone(started)

    def test_kill_of_the_measuring_process_before_the_duel(self, tmp_path: Path, started: list[int]) -> None:
        """A new process runs the duel."""

        class Killing(Watching):
            def duelling(self, configs: tuple[Config, ...]) -> None:
                os.kill(max(pid for pid in started if alive(pid)), signal.SIGKILL)

        result = self.run(tmp_path, Killing(), 4, 8)
        assert result.best.status is Status.OK
        assert len(result.contenders) >= 3
        assert all_gone(started)

    def test_kill_of_the_parent_loses_nothing_and_leaves_nothing(self, tmp_path: Path) -> None:
        spaces = faults.small_space(tmp_path / "spaces", 4, 8, 16, 32)
        code = (
            "import os, signal\n"
            "from tilewright.tuner.tune import tune\n"
            "from tilewright.tuner.result import Progress\n"
            "from tilewright.codegen.problem import Problem; from tilewright.tuner.measure import child\n"
            "from pathlib import Path\n"
            "real = child.Child.__init__\n"
            "def noting(self):\n    real(self); print('pid', self._process.pid, flush=True)\n"
            "child.Child.__init__ = noting\n"
            "class Killing(Progress):\n"
            "    count = 0\n"
            "    def tried(self, tried, best):\n"
            "        self.count += 1; print('tried', flush=True)\n"
            "        if self.count == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"tune(Problem{(self.problem.m, self.problem.n, self.problem.k)}, device={self.selector!r},"
            f" sampler='exhaustive', spaces=Path({str(spaces)!r}), progress=Killing())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        pids = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("pid")]
        assert len(pids) >= 2
        assert all_gone(pids)
        watching = Watching()
        result = self.run(tmp_path, watching, 4, 8, 16, 32)
        assert result.resumed == 2
        assert len(watching.records) == 2
        assert result.trials == 4


PRELUDE: dict[str, str] = {}


class TestHost(Faults):
    selector = "host"

    def test_exit(self, tmp_path: Path, started: list[int]) -> None:
        """A variant that ends its process."""
        PRELUDE["host"] = "#include <cstdlib>\n#include <unistd.h>\n"
        try:
            self.survives(tmp_path, started, "_exit(3);", Status.CRASHED, "exited with 3")
        finally:
            PRELUDE.clear()

    def test_missing_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DeviceError, match="compiler"):
            self.run(tmp_path, Watching(), 4)

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[int]) -> None:
        """The run ends with one line; what the store held before is untouched."""
        record = self.run(tmp_path, Watching(), 4).best
        original = os.fsync

        def full(descriptor: int) -> None:
            if "/store/" in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(28, "No space left on device")
            original(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match="No space left"):
                self.run(tmp_path, Watching(), 8)
        assert Store(tmp_path / "store").best(record.device, PROBLEM) == record
        assert all_gone(started)

    def test_read_only_store(self, tmp_path: Path, started: list[int]) -> None:
        """A store that cannot be written is refused before anything is measured, naming the path."""
        blocked = tmp_path / "blocked"
        blocked.write_text("a file where the folder should be")
        watching = Watching()
        with pytest.raises(StoreError, match="blocked"):
            self.run(tmp_path, watching, 4, store=blocked)
        assert watching.records == []
        assert started == []

    def test_runs_that_follow_each_other_share_processes(
        self, tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = replace(self.problem, m=self.problem.m + 8)
        with child.kept_between_runs():
            self.run(tmp_path, Watching(), 4, 8)
            first = list(started)
            assert all(map(alive, first))
            os.kill(first[0], signal.SIGKILL)  # an idle process, which only the next run misses
            assert all_gone(first[:1])
            result = tune(other, device=self.selector, seconds=60.0, trials=2, progress=Watching())
            assert result.best.problem == other
            assert dict(result.statuses) == {"ok": 2}
            assert len(started) == len(first) + 1

            def fails(self: object, question: object, limit_s: float) -> None:
                raise ConfigError("a result that is wrong")

            with monkeypatch.context() as patched:
                patched.setattr(child.Child, "ask", fails)
                with pytest.raises(ConfigError, match="the final comparison failed"):
                    self.run(tmp_path, Watching(), 16)
            assert sum(map(alive, started)) == len(first) - 1  # the measuring process may have left the device in error
        assert all_gone(started)
        self.run(tmp_path, Watching(), 4, 16)
        assert all_gone(started)
        assert len(started) == 2 * len(first) + 1

    def test_two_tuners_on_one_store(self, tmp_path: Path) -> None:
        spaces = faults.small_space(tmp_path / "spaces", 4, 8, 16, 32)
        command = [sys.executable, "-m", "tilewright", "tune", "--shape", "24x20x16", "--device", "host"]
        command += ["--spaces", str(spaces), "--sampler", "exhaustive", "--store", str(tmp_path / "shared")]
        files = [tmp_path / "one.json", tmp_path / "two.json"]
        runs = [subprocess.Popen([*command, "--json", str(file)], stdout=subprocess.DEVNULL) for file in files]
        assert [run.wait(timeout=120) for run in runs] == [0, 0]
        best = [json.loads(file.read_text())[0]["best"]["config"] for file in files]
        store = Store(tmp_path / "shared")
        ((record,), _) = store.layers()
        assert {"family": "tiled", **dict(record.config.values)} in best


@pytest.mark.gpu
class TestCuda(Faults):
    selector = "cuda"

    def test_trap(self, tmp_path: Path, started: list[int]) -> None:
        """The error stays with the context, so that the worker must not go on."""
        self.survives(tmp_path, started, "__trap();", Status.CRASHED, "cudaErrorLaunchFailure")


def test_without_isolation_a_wrong_result_is_still_only_a_record(tmp_path: Path) -> None:
    faulty = faults.plant("host", PROBLEM, FAULTY, "alpha *= Elem(2);")
    watching = Watching()
    spaces = faults.small_space(tmp_path / "spaces", 4, 8)
    result = tune(PROBLEM, device="host", sampler="exhaustive", spaces=spaces, isolation=False, progress=watching)
    assert watching.of(faulty).status is Status.WRONG_RESULT
    assert result.best.config != faulty


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache of its own, so that planted binaries do not reach other tests."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


# ---- Several shapes, killed at random moments and run again -----------------------------------------------------


NOTING = """
import sys
from tilewright.tuner.measure import child
note = '''
from tilewright.tuner.measure.evaluate import Bench
real = Bench.try_variant
def noting(self, config, *rest):
    tried = real(self, config, *rest)
    with open({log!r}, "a") as file:
        file.write(str(self.problem) + " " + str(config) + chr(10))
    return tried
Bench.try_variant = noting
'''
child._START = child._START.replace("from {{package}}", "exec(" + repr(note) + "); from {{package}}", 1)
from tilewright.cli import main
main(sys.argv[1:])
"""
"""The command, whose workers write a line for each variant that they have measured."""


@pytest.mark.parametrize(
    ("shapes", "trials", "kills"), [(3, 4, 2), pytest.param(14, 6, 8, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_at_most_one_variant_a_kill_is_measured_twice(tmp_path: Path, shapes: int, trials: int, kills: int) -> None:
    log, rng = tmp_path / "log", random.Random(shapes)
    log.touch()
    shape_options = [word for size in range(8, 8 + shapes) for word in ("--shape", str(size))]
    budget = ["--trials", str(trials), "--seconds", "60", "--device", "host", "--store", str(tmp_path / "store")]
    command = [sys.executable, "-c", NOTING.format(log=str(log)), "tune", *shape_options, *budget]
    for _ in range(kills):
        before = len(log.read_text().splitlines())
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        target, end = before + rng.randint(1, trials), time.monotonic() + 100
        while len(log.read_text().splitlines()) < target and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.2)
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it had not ended yet
    last = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert last.returncode == 0, last.stderr
    assert last.stderr == ""
    measured = Counter(log.read_text().splitlines())
    assert len(measured) >= shapes
    assert sum(measured.values()) - len(measured) <= kills
    assert len(Store(tmp_path / "store").layers()[0]) == shapes
