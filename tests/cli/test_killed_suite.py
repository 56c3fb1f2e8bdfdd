"""`tune --suite` that is killed and run again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tilewright.runtime.store.store import Store

PROGRAM = Path(__file__).parent.parent / "support" / "measured.py"
SHAPES, TRIALS = 10, 3
SPACE = """family = "naive"
[parameters]
block_m = [4, 8]
block_n = [8, 16]
unroll = [1]
edge = ["bounds"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [25])
def test_of_ten_shapes_at_most_one_trial_is_measured_twice(tmp_path: Path, seed: int) -> None:
    """Killed at a random moment, the run goes on where it was: what was told is in a journal."""
    chance = random.Random(seed)
    measured, suite, store = tmp_path / "measured.txt", tmp_path / "suite.csv", tmp_path / "store"
    suite.write_text("m,n,k\n" + "".join(f"{size},{size + 1},{size + 2}\n" for size in range(2, 2 + SHAPES)))
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "naive.toml").write_text(SPACE)
    limits = ("--trials", str(TRIALS), "--seconds", "60", "--keep", "1", "--sampler", "random")
    where = ("--device", "host", "--store", str(store), "--spaces", str(tmp_path / "spaces"))
    command = [sys.executable, str(PROGRAM), "tune", "--suite", str(suite), *limits, *where]
    environment = {**os.environ, "MEASURED": str(measured)}

    def noted() -> list[str]:
        return measured.read_text().splitlines() if measured.exists() else []

    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wanted = chance.randint(2, SHAPES * TRIALS - 2)
    end = time.monotonic() + 120
    while len(noted()) < wanted and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = noted()
    assert wanted <= len(before) < SHAPES * TRIALS

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    counts = Counter(noted())
    assert len(counts) == SHAPES * TRIALS
    assert counts.total() - len(counts) <= 1, [each for each, count in counts.items() if count > 1]
    assert len(Store(store).layers()[0]) == SHAPES
    journals = list((store / "trials").glob("*.jsonl"))
    assert [len(journal.read_text().splitlines()) for journal in journals] == [1 + TRIALS] * SHAPES

    over = subprocess.run([*command, "--skip-tuned"], env=environment, capture_output=True, text=True, check=False)
    assert over.stdout.startswith(f"{SHAPES} of {SHAPES} shapes have a record of host")
    assert (over.returncode, Counter(noted())) == (0, counts)
