"""Tuning several shapes, killed at random moments and run again: hardly a variant is measured twice."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tilewright.runtime.store.store import Store

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
    log, chance = tmp_path / "log", random.Random(shapes)
    log.touch()
    listed = [word for size in range(8, 8 + shapes) for word in ("--shape", str(size))]
    budget = ["--trials", str(trials), "--seconds", "60", "--device", "host", "--store", str(tmp_path / "store")]
    command = [sys.executable, "-c", NOTING.format(log=str(log)), "tune", *listed, *budget]
    for _ in range(kills):
        before = len(log.read_text().splitlines())
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted, end = before + chance.randint(1, trials), time.monotonic() + 100
        while len(log.read_text().splitlines()) < wanted and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.2)
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it had work left
    last = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert last.returncode == 0, last.stderr
    assert last.stderr == ""
    measured = Counter(log.read_text().splitlines())
    assert len(measured) >= shapes
    assert sum(measured.values()) - len(measured) <= kills
    assert len(Store(tmp_path / "store").layers()[0]) == shapes
