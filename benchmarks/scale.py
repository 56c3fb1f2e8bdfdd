"""How many workers one client serves, by simulation; and, on a machine with GPUs, what several bring over one.

    python benchmarks/scale.py RECORDING... --workers 1 4 16 64 256
    python benchmarks/scale.py --gpus 4
    python benchmarks/scale.py --gpus 4 --kills 3

The first needs no GPU: a Dask scheduler, a client and workers of their own processes, which tune as ever but that a
trial is a sleep of so long as it took when it was recorded, or by --pace of so many a second. The second tunes 24
problems on one GPU of four and on two of the others at the same time, each with as many whole cores for a GPU as there
are, then on all four. The third tunes them on all again, so often while a worker is killed at a random moment, and
compares with what the second wrote. All write their part of benchmarks/results/cluster.json.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, Worker
from distributed import __version__ as dask_version
from tilewright.codegen.problem import Problem
from tilewright.runtime.device import detect
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.cluster import worker as tuning_worker
from tilewright.tuner.cluster.client import Tuning, resources
from tilewright.tuner.cluster.link import processors, quiet
from tilewright.tuner.cluster.messages import ClusterProgress, Tells
from tilewright.tuner.measure.decide import NAIVE, Contender
from tilewright.tuner.measure.evaluate import Phases
from tilewright.tuner.recording.files import Recording, read_cache_file
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.result import Result
from tilewright.tuner.settings import Budget

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "cluster.json"
WORKERS_A_PROCESS = 64
ROUNDS = 4
"""Problems for each worker."""
SECONDS = 15.0
"""Seconds of each problem, as --seconds says in a tuning."""
SAMPLES = Measurement((10.0, 10.1, 9.9) * 4, 10.0, 0.1)
SHAPES = [f"{m}x{n}x{k}" for m in (256, 512, 1024, 2048) for n in (192, 768, 2048) for k in (256, 1024)]
"""The problems that GPUs tune, in float."""


def simulated_info() -> DeviceInfo:
    """The device that simulated workers say they have."""
    return DeviceInfo(
        name="host simulated",
        selector="host",
        arch=host_info().arch,
        sm_count=1,
        clock_mhz=1000.0,
        memory_bytes=1 << 36,
        l2_bytes=1 << 20,
        bandwidth_gbs=10.0,
        driver="none",
    )


def result_of(problem: Problem, trials: int, seconds: float) -> Result:
    """A result as large as a real one."""
    accuracy, info = Accuracy(0.1, 0, 0), simulated_info()
    best = Record(problem, info.key, NAIVE, Status.OK, measurement=SAMPLES, accuracy=accuracy)
    contenders = tuple(Contender(config, SAMPLES, accuracy, 1.0, (1.0, 1.0)) for config in (*[NAIVE] * 6, None))
    return Result(
        problem, info, best, contenders, trials, 0, (("ok", trials),), (), Phases(), 0.0, seconds, None, None, 0, 1.0,
        "seconds",
    )  # fmt: skip


def simulated(recording: Recording, pace: float) -> Any:
    """The function that stands for `tune` in a simulated worker."""
    points = [point for point, entry in recording.entries.items() if entry.status != "pruned"]
    variants = {point: str(config_of(recording.values(point))) for point in points}

    def tune(problem: Problem, *, progress: Any, seconds: float, **options: Any) -> Result:
        chance, begun, spent_s, trials = random.Random(str(problem)), time.monotonic(), 0.0, 0
        progress.started(problem, simulated_info(), len(points), Budget(100_000, seconds), 0)
        while True:
            point = chance.choice(points)
            entry = recording.entries[point]
            spent_s += 1 / pace if pace else entry.charged_s
            if spent_s > seconds:  # as `tune` does, which drops what is under way then
                time.sleep(max(0.0, begun + seconds - time.monotonic()))
                break
            trials += 1
            time.sleep(max(0.0, begun + spent_s - time.monotonic()))
            now = datetime.datetime.now().isoformat(timespec="seconds")
            progress.say(Tells(progress.name, variants[point], entry, now))
            progress.check()
        return result_of(problem, trials, time.monotonic() - begun)

    return tune


def host(address: str, count: int, recording: str, pace: float) -> None:
    """A process full of simulated workers."""
    quiet()
    info = simulated_info()
    tuning_worker._here[:] = [info]
    tuning_worker.tune = simulated(read_cache_file(Path(recording)), pace)

    async def serve() -> None:
        seat = {tuning_worker.seat_of(info.key): 1}
        options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "host": "127.0.0.1", "resources": seat}
        options |= {"dashboard_address": "127.0.0.1:0", "heartbeat_interval": "5s"}
        workers = [Worker(address, **options) for _ in range(count)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(serve())


class Counted(ClusterProgress):
    """How many messages came."""

    def __init__(self) -> None:
        self.trials = self.failed_count = 0

    def tried(self, problem: Problem, device_key: str, told: Tells) -> None:
        self.trials += 1

    def failed(self, problem: Problem, reason: str) -> None:
        self.failed_count += 1
        print(f"{problem}: {reason}", file=sys.stderr)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def simulate(recordings: list[str], count: int, pace: float) -> dict[str, Any]:
    """One number of workers: a row of the results."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "scheduler.json"
        scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        scheduler += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
        processes = [subprocess.Popen(scheduler, stderr=subprocess.DEVNULL, cwd=folder)]
        ending.callback(lambda: [(process.kill(), process.wait()) for process in processes])
        while not file.exists():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        sizes = [min(WORKERS_A_PROCESS, count - begin) for begin in range(0, count, WORKERS_A_PROCESS)]
        for number, size in enumerate(sizes):
            given = ["--host", address, str(size), recordings[number % len(recordings)], str(pace)]
            processes.append(subprocess.Popen([sys.executable, __file__, *given], cwd=folder))
        client = Client(address, set_as_default=False)
        ending.callback(client.close, timeout=5)
        while len(resources(client)) < count:
            time.sleep(0.2)
        counted, key = Counted(), simulated_info().key
        problems = [Problem(64 + number // 97, 64 + number % 97, 64) for number in range(ROUNDS * count)]
        tuning = Tuning(client, problems, {"seconds": SECONDS}, Store(folder / "store"), key, counted)
        outer = [psutil.Process(process.pid) for process in processes]
        before, begun, own = [sum(each.cpu_times()[:2]) for each in outer], time.monotonic(), time.process_time()
        tuning.run()
        wall_s, own_s = time.monotonic() - begun, time.process_time() - own
        cpu_s = [sum(each.cpu_times()[:2]) - first for each, first in zip(outer, before)]
        assert (len(tuning.results), counted.failed_count) == (len(problems), 0)
        told = sum(len(path.read_bytes().splitlines()) - 1 for path in (folder / "store" / "trials").glob("*.jsonl"))
        assert told == counted.trials == sum(result.trials for result in tuning.results.values())
        return {
            "workers": count,
            "trials_a_second_of_a_worker": round(counted.trials / len(problems) / SECONDS, 2),
            "problems": len(problems),
            "seconds": round(wall_s, 2),
            "problems_an_hour": round(len(problems) / wall_s * 3600, 1),
            "messages": counted.trials + 3 * len(problems),
            "messages_a_second": round((counted.trials + 3 * len(problems)) / wall_s, 1),
            "client_share_of_a_core": round(own_s / wall_s, 4),
            "scheduler_share_of_a_core": round(cpu_s[0] / wall_s, 4),
            "simulated_workers_share_of_a_core": round(sum(cpu_s[1:]) / wall_s, 4),
            "client_mb": round(psutil.Process().memory_info().rss / 1e6),
        }


def on_gpus(gpus: int) -> dict[str, Any]:
    """24 problems on one GPU and on half of them at the same time, then on all."""
    cores, half = processors(), gpus // 2
    each = len(cores) // gpus
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(tuned, [0], cores[:each])
        some = pool.submit(tuned, list(range(1, 1 + half)), cores[each : each * (1 + half)]) if half > 1 else None
        plain = [one.result(), *([some.result()] if some else [])]
    plain.append(tuned(list(range(gpus)), cores))
    rows = [row for row, _ in plain]
    for row in rows:
        row["times_one"] = round(row["problems_an_hour"] / rows[0]["problems_an_hour"], 3)
    return {"processors": len(cores), "runs": rows, "winners_us": plain[-1][1]}


def with_kills(gpus: int, kills: int, before: dict[str, Any]) -> list[dict[str, Any]]:
    """The list on all GPUs, several times, while a worker is killed at a random moment."""
    chance, cores, rows = random.Random(27), processors(), []
    plain_s, winners = before["runs"][-1]["seconds"], before["winners_us"]
    for _ in range(kills):
        row, found = tuned(list(range(gpus)), cores, chance.uniform(0.1, 0.8) * plain_s)
        slower = max(found[shape] / us for shape, us in winners.items()) - 1
        rows.append({**row, "slowest_winner_over_the_undisturbed": round(slower, 4), "winners_us": found})
    return rows


def tuned(
    gpus: Sequence[int], cores: Sequence[int], kill_after_s: float | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """One run of the command on some GPUs and processors, and the time of each problem's winner."""
    with tempfile.TemporaryDirectory() as made:
        noted, output = Path(made) / "measured", Path(made) / "out.json"
        shapes = [word for shape in SHAPES for word in ("--shape", shape)]
        program = ["taskset", "-c", ",".join(map(str, cores)), sys.executable]
        program += [str(ROOT / "tests" / "support" / "measured.py"), "tune", *shapes]
        program += ["--workers", str(len(gpus)), "--json", str(output), "--store", f"{made}/store"]
        own = {"MEASURED": str(noted), "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "TILEWRIGHT_CACHE": made}
        begun = time.monotonic()
        process = subprocess.Popen(program, env={**os.environ, **own}, stdout=subprocess.DEVNULL)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            children = psutil.Process(process.pid).children()
            workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
            random.choice(workers).send_signal(signal.SIGKILL)
        status, wall_s = process.wait(), time.monotonic() - begun
        results = json.loads(output.read_text())
        counts = Counter(noted.read_text().splitlines())
        spent = [result["seconds"] for result in results]
        row = {
            "workers": len(gpus),
            "processors": len(cores),
            "killed_after_s": kill_after_s and round(kill_after_s, 1),
            "status": status,
            "problems": len(results),
            "seconds": round(wall_s, 1),
            "problems_an_hour": round(len(results) / wall_s * 3600, 1),
            "seconds_a_problem": round(statistics.median(spent), 2),
            "longest_problem_s": round(max(spent), 2),
            "variants_a_problem": statistics.median(result["trials"] for result in results),
            "measured_twice": counts.total() - len(counts),
        }
        return row, {str(result["problem"]): result["best"]["measurement"]["median_us"] for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", help="Kernel Tuner cache files")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--pace", type=float, nargs="+", default=[0.0, 25.0], help="trials a second; 0: as recorded")
    parser.add_argument("--gpus", type=int, help="measure on so many GPUs of this machine instead")
    parser.add_argument("--kills", type=int, help="measure so many runs with a worker killed, beside those before")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--host", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.host:
        address, count, recording, pace = given.host
        host(address, int(count), recording, float(pace))
        return
    if not given.gpus and not given.recordings:
        parser.error("name recordings, or --gpus")
    known = json.loads(given.output.read_text()) if given.output.exists() else {}
    facts = {
        "date": f"{datetime.date.today()}",
        "machine": f"{os.cpu_count()} cores, {host_info().name.removeprefix('host ')}",
        "python": platform.python_version(),
        "distributed": dask_version,
    }
    if given.kills:
        known["gpus"]["killed"] = with_kills(given.gpus, given.kills, known["gpus"])
    elif given.gpus:
        known["gpus"] = facts | {"device": detect.choose("cuda").name} | on_gpus(given.gpus)
    else:
        quiet()
        recordings = [str(Path(each).resolve()) for each in given.recordings]
        rows = []
        for pace in given.pace:
            for count in given.workers:
                rows.append(simulate(recordings, count, pace) | {"pace": pace or "recorded"})
                print(json.dumps(rows[-1]), flush=True)
        for row in rows:
            one = next((each for each in rows if each["workers"] == 1 and each["pace"] == row["pace"]), None)
            row["times_one"] = one and round(row["problems_an_hour"] / one["problems_an_hour"], 2)
        names = [Path(each).name for each in recordings]
        told = {"recordings": names, "seconds_a_problem": SECONDS, "problems_a_worker": ROUNDS}
        known["simulation"] = facts | told | {"rows": rows}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
